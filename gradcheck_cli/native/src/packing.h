// Copies blocks of A and B into panels that the micro-kernel reads from front to back.
#pragma once

#include <cstring>

#include "product.h"
#include "scratch.h"
#include "vectors.h"

namespace gradcheck::GRADCHECK_ISA {

// An operand as it is packed: its numbers, and where its rows or columns and the steps of the depth lie.
template <class T> struct Source {
    const T *at;
    const Axis &positions;
    const Index *depth;
};

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

// How many of `count` offsets from the first on lie side by side.
inline Index run_length(const Index *offsets, Index count) {
    Index length = 1;
    while (length < count && offsets[length] == offsets[length - 1] + 1)
        ++length;
    return length;
}

inline Index runs(const Index *offsets, Index count) {
    Index found = 0;
    for (Index i = 0; i < count; i += run_length(offsets + i, count - i))
        ++found;
    return found;
}

// `length` elements of each line, at least Piece and at most twice as many: two pieces, which may overlap.
template <class T, int Piece> void copy_pieces(const T *source, const Index *depth, Index count, Index length, Index width, T *out) {
    if (length == Piece) {
        for (Index p = 0; p < count; ++p)
            std::memcpy(out + p * width, source + depth[p], Piece * sizeof(T));
        return;
    }
    for (Index p = 0; p < count; ++p) {
        const T *from = source + depth[p];
        std::memcpy(out + p * width, from, Piece * sizeof(T));
        std::memcpy(out + p * width + length - Piece, from + length - Piece, Piece * sizeof(T));
    }
}

template <class T, int Piece> void copy_run(const T *source, const Index *depth, Index count, Index length, Index width, T *out) {
    if constexpr (Piece > 1) {
        if (length < Piece) {
            copy_run<T, Piece / 2>(source, depth, count, length, width, out);
            return;
        }
    }
    copy_pieces<T, Piece>(source, depth, count, length, width, out);
}

// The columns lie in runs: each is copied line by line.
template <class T, int Width> void copy_runs(const T *source, const Index *depth, Index count, const Index *at, T *out) {
    for (Index j = 0; j < Width;) {
        const Index length = run_length(at + j, Width - j);
        copy_run<T, Width>(source + at[j], depth, count, length, Width, out + j);
        j += length;
    }
}

// Every element on its own.
template <class T> void gather(const T *source, const Index *depth, Index count, const Index *at, Index width, T *out) {
    for (Index p = 0; p < count; ++p, out += width) {
        const T *line = source + depth[p];
        for (Index j = 0; j < width; ++j)
            out[j] = line[at[j]];
    }
}

// L columns of a panel whose source runs along the depth for `count` steps.
template <class T, int L> void transpose_columns(const T *source, Index count, const Index *at, Index width, T *out) {
    Index p = 0;
    if constexpr (L > 1)
        for (; p + L <= count; p += L) {
            Vector<T, L> block[L];
            GRADCHECK_UNROLL
            for (int i = 0; i < L; ++i)
                block[i] = load<T, L>(source + at[i] + p);
            transpose<T, L>(block);
            GRADCHECK_UNROLL
            for (int i = 0; i < L; ++i)
                store<T, L>(out + (p + i) * width, block[i]);
        }
    for (; p < count; ++p)
        for (int i = 0; i < L; ++i)
            out[p * width + i] = source[at[i] + p];
}

// All columns of the panel: L at a time, the rest by fewer.
template <class T, int L> void transpose_run(const T *source, Index count, const Index *at, Index columns, Index width, T *out) {
    Index j = 0;
    for (; j + L <= columns; j += L)
        transpose_columns<T, L>(source, count, at + j, width, out + j);
    if constexpr (L > 1) {
        if (j < columns)
            transpose_run<T, L / 2>(source, count, at + j, columns - j, width, out + j);
    }
}

template <class T> void transpose_runs(const T *source, const Index *depth, Index count, const Index *at, Index width, T *out) {
    constexpr int L = lanes<T> < 8 ? lanes<T> : 8;
    for (Index p = 0; p < count;) {
        const Index length = run_length(depth + p, count - p);
        transpose_run<T, L>(source + depth[p], length, at, width, width, out + p * width);
        p += length;
    }
}

// One panel of B: (depth, Width), where columns beyond the last repeat the first and are never stored.
template <class T, int Width> void pack_right_panel(const Source<T> &from, Span depth, Span columns, T *out) {
    Index at[Width];
    offsets(from.positions, columns.first, columns.last, at);
    const Index present = columns.last - columns.first, count = depth.last - depth.first;
    for (Index j = present; j < Width; ++j)
        at[j] = at[j % 2 < present ? j % 2 : 0];
    const Index *lines = from.depth + depth.first;
    if (4 * runs(at, Width) <= Width)  // four at once and more are worth a vector, two still beat single ones
        copy_runs<T, Width>(from.at, lines, count, at, out);
    else if (4 * runs(lines, count) <= count)
        transpose_runs(from.at, lines, count, at, Index(Width), out);
    else if (2 * runs(at, Width) <= Width)
        copy_runs<T, Width>(from.at, lines, count, at, out);
    else
        gather(from.at, lines, count, at, Index(Width), out);
}

// Panels of B whose columns all lie side by side, line by line, as far as they are whole; gives the first column left.
template <class T, int Width> Index pack_right_lines(const Source<T> &from, Span depth, Span columns, T *out) {
    constexpr Index most = 4;
    Index at[most * Width];
    const Index panels = (columns.last - columns.first) / Width, count = depth.last - depth.first;
    offsets(from.positions, columns.first, columns.first + panels * Width, at);
    if (panels == 0 || !contiguous(at, panels * Width))
        return columns.first;
    const Index *lines = from.depth + depth.first;
    for (Index p = 0; p < count; ++p, out += Width)
        for (Index panel = 0; panel < panels; ++panel)
            std::memcpy(out + panel * count * Width, from.at + lines[p] + at[0] + panel * Width, Width * sizeof(T));
    return columns.first + panels * Width;
}

// Panels of `Width` columns of B, each followed by the next; the last may be half as wide.
template <class T, int Width> void pack_right_panels(const Source<T> &from, Span depth, Span columns, T *out) {
    const Index size = Width * (depth.last - depth.first);
    Index j = pack_right_lines<T, Width>(from, depth, columns, out);
    for (; j < columns.last; j += Width) {
        const Span panel = {j, columns.last - j < Width ? columns.last : j + Width};
        T *to = out + (j - columns.first) / Width * size;
        if (panel.last - panel.first <= Width / 2)
            pack_right_panel<T, Width / 2>(from, depth, panel, to);
        else
            pack_right_panel<T, Width>(from, depth, panel, to);
    }
}

// One line of A: `count` elements, side by side or each on its own.
template <class T> void copy_line(const T *line, const Index *at, Index count, bool dense, T *out) {
    constexpr Index height = GRADCHECK_PACKED_ROWS;
    if (!dense)
        for (Index i = 0; i < count; ++i)
            out[i] = line[at[i]];
    else if (count == height)
        std::memcpy(out, line + at[0], height * sizeof(T));
    else
        std::memcpy(out, line + at[0], static_cast<std::size_t>(count) * sizeof(T));
}

// Panels of A for a block, (depth, rows) each.  Where the source runs along the depth each is transposed on the
// way; elsewhere rows are likely to be neighbours, and a line of all panels is read before the next.
template <class T, int Rows> void pack_left_panels(const Source<T> &from, Span rows, Span depth, T *out) {
    constexpr Index height = GRADCHECK_PACKED_ROWS;
    Index at[Rows];
    offsets(from.positions, rows.first, rows.last, at);
    const Index all = rows.last - rows.first, count = depth.last - depth.first;
    const Index *lines = from.depth + depth.first;
    const auto panel = [&](Index i) { return all - i < height ? all - i : height; };
    if (4 * runs(lines, count) <= count) {
        for (Index i = 0; i < all; i += height)
            transpose_runs(from.at, lines, count, at + i, panel(i), out + i * count);
        return;
    }
    const bool dense = contiguous(at, all);
    for (Index p = 0; p < count; ++p)
        for (Index i = 0; i < all; i += height)
            copy_line(from.at + lines[p], at + i, panel(i), dense, out + i * count + p * panel(i));
}

// Calls pack(a source of floats, where to) and widens what it gives: `count` numbers.
template <class T, class Pack> void widened(const Numbers<T> &numbers, const Axis &positions, const Index *depth, Index count, T *out, const Pack &pack) {
    float *narrow = static_cast<float *>(scratch(Slot::narrow, static_cast<std::size_t>(count) * sizeof(float)));
    pack(Source<float>{numbers.single(), positions, depth}, narrow);
    for (Index i = 0; i < count; ++i)
        out[i] = static_cast<T>(narrow[i]);
}

// Some panels of B; those of floats are packed as such and widened while they are in the cache.
template <class T> void pack_right(const Product<T> &product, Span depth, Span columns, T *out) {
    constexpr Index width = 2 * lanes<T>;
    if (!product.b.narrow) {
        pack_right_panels<T, width>({product.b.wide(), product.b_columns, product.b_depth}, depth, columns, out);
        return;
    }
    const Index sums = columns.last - columns.first, over = sums % width;
    const Index packed = sums - over + (over == 0 ? 0 : over <= width / 2 ? width / 2 : width);
    widened(product.b, product.b_columns, product.b_depth, packed * (depth.last - depth.first), out,
            [&](const Source<float> &from, float *to) { pack_right_panels<float, width>(from, depth, columns, to); });
}

// All panels of a block of A, likewise.
template <class T, int Rows> void pack_left(const Product<T> &product, Span rows, Span depth, T *out) {
    if (!product.a.narrow)
        pack_left_panels<T, Rows>({product.a.wide(), product.a_rows, product.a_depth}, rows, depth, out);
    else
        widened(product.a, product.a_rows, product.a_depth, (rows.last - rows.first) * (depth.last - depth.first), out,
                [&](const Source<float> &from, float *to) { pack_left_panels<float, Rows>(from, rows, depth, to); });
}

}  // namespace gradcheck::GRADCHECK_ISA
