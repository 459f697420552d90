// Copies blocks of A and B into panels that the micro-kernel reads from front to back.
#pragma once

#include "product.h"
#include "vectors.h"

namespace gradcheck::GRADCHECK_ISA {

// Those of positions [first, last) of the axis.
inline void offsets(const Axis &axis, Index first, Index last, Index *out) {
    Index turn = first / axis.inner, at = first % axis.inner;
    for (Index i = first; i < last; ++i) {
        *out++ = turn * axis.outer + axis.table[at];
        if (++at == axis.inner) {
            at = 0;
            ++turn;
        }
    }
}

inline bool contiguous(const Index *offsets, Index count) {
    for (Index i = 1; i < count; ++i)
        if (offsets[i] != offsets[i - 1] + 1)
            return false;
    return true;
}

// Each line of the panel is a piece of a row of the source: a plain copy.
template <class T, int Width> void copy_lines(const T *source, const Index *depth, Index count, T *out) {
    for (Index p = 0; p < count; ++p, out += Width)
        std::memcpy(out, source + depth[p], Width * sizeof(T));
}

template <class T> void gather_lines(const T *source, const Index *depth, Index count, const Index *at, Index width, T *out) {
    for (Index p = 0; p < count; ++p, out += width) {
        const T *line = source + depth[p];
        for (Index j = 0; j < width; ++j)
            out[j] = line[at[j]];
    }
}

// The source runs along the depth: read it that way, a column of the panel at a time.
template <class T> void gather_columns(const T *source, Index count, const Index *at, Index width, T *out) {
    Index p = 0;
    for (; p + 8 <= count; p += 8)
        for (Index j = 0; j < width; ++j) {
            const T *from = source + at[j] + p;
            for (Index q = 0; q < 8; ++q)
                out[(p + q) * width + j] = from[q];
        }
    for (; p < count; ++p)
        for (Index j = 0; j < width; ++j)
            out[p * width + j] = source[at[j] + p];
}

// Of a complex row, the line (re, im) at even depth and (-im, re) at odd depth.
template <class T> void rotate_lines(const T *source, const Index *depth, Index count, const Index *at, Index width, T *out) {
    for (Index p = 0; p < count; p += 2, out += 2 * width) {
        const T *line = source + depth[p];
        for (Index j = 0; j < width; j += 2) {
            const T re = line[at[j]], im = line[at[j + 1]];
            out[j] = re;
            out[j + 1] = im;
            out[width + j] = -im;
            out[width + j + 1] = re;
        }
    }
}

// One panel of B: (depth, Width), where columns beyond the last repeat the first and are never stored.
template <class T, int Width> void pack_right_panel(const Product<T> &product, Span depth, Span columns, T *out) {
    Index at[Width];
    offsets(product.b_columns, columns.first, columns.last, at);
    const Index present = columns.last - columns.first, count = depth.last - depth.first;
    for (Index j = present; j < Width; ++j)
        at[j] = at[j % 2 < present ? j % 2 : 0];
    const Index *lines = product.b_depth + depth.first;
    if (product.rotated)
        rotate_lines(product.b, lines, count, at, Index(Width), out);
    else if (contiguous(at, Width))
        copy_lines<T, Width>(product.b + at[0], lines, count, out);
    else if (contiguous(lines, count))
        gather_columns(product.b + lines[0], count, at, Index(Width), out);
    else
        gather_lines(product.b, lines, count, at, Index(Width), out);
}

// One panel of A: (depth, rows), transposed on the way.
template <class T> void pack_left_panel(const Product<T> &product, Span rows, Span depth, T *out) {
    Index at[GRADCHECK_PACKED_ROWS];
    offsets(product.a_rows, rows.first, rows.last, at);
    const Index height = rows.last - rows.first, count = depth.last - depth.first;
    const Index *lines = product.a_depth + depth.first;
    if (contiguous(lines, count))
        gather_columns(product.a + lines[0], count, at, height, out);
    else
        gather_lines(product.a, lines, count, at, height, out);
}

}  // namespace gradcheck::GRADCHECK_ISA
