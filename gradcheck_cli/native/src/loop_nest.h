// The cache-blocked loops around the micro-kernel: a block of B for the outer caches, a block of A for the
// middle one, one panel of each for the innermost.
#pragma once

#include "micro_kernel.h"
#include "packing.h"
#include "scratch.h"

namespace gradcheck::GRADCHECK_ISA {

inline Index smaller(Index a, Index b) { return a < b ? a : b; }

template <class T> struct Blocks {
    static constexpr Index height = GRADCHECK_PACKED_ROWS, width = 2 * lanes<T>;
    static constexpr Index rows = height * (168 / height), columns = 1024, depth = sizeof(T) == 8 ? 256 : 384;
    static constexpr Index fresh = 4 * width;  // columns of B that are packed at a time
};

// Where the columns of C lie that a panel of B makes.
template <class T> struct Columns {
    Index at[4 * lanes<T>], count;  // in C, where sums may be halves of a complex number
    int vectors;                    // of the panel
    bool dense, whole;              // side by side; as many as the panel's lanes

    Columns(const Product<T> &product, Span columns) {
        const Index each = product.join == Join::parts ? 2 : 1, sums = columns.last - columns.first;
        count = each * sums;
        vectors = sums <= lanes<T> ? 1 : 2;
        offsets(product.c_columns, each * columns.first, each * columns.last, at);
        dense = contiguous(at, count);
        whole = sums == vectors * lanes<T>;
    }
};

template <class T> void write_row(T *c, const Columns<T> &columns, const T *sums, bool add) {
    if (!columns.dense) {
        for (Index j = 0; j < columns.count; ++j)
            c[columns.at[j]] = add ? c[columns.at[j]] + sums[j] : sums[j];
        return;
    }
    c += columns.at[0];
    if (!add)
        std::memcpy(c, sums, static_cast<std::size_t>(columns.count) * sizeof(T));
    else
        for (Index j = 0; j < columns.count; ++j)
            c[j] += sums[j];
}

// A complex row of sums by a complex B: those of its real part and i times those of its imaginary part.
template <class T> void join_complex(const T *real, const T *imaginary, T *out) {
    constexpr int L = lanes<T>;
    for (int v = 0; v < 2; ++v)
        store<T, L>(out + v * L, load<T, L>(real + v * L) + turned<T, L>(load<T, L>(imaginary + v * L)));
}

// Writes one tile of C, through a buffer unless its columns fill the panel side by side.
template <class T>
void write_tile(const Product<T> &product, const Index *rows, Index m, const Columns<T> &columns, Index depth, const T *a, const T *b,
                bool add) {
    constexpr Index height = Blocks<T>::height, width = Blocks<T>::width;
    const PanelKernel<T> kernel = panel_kernel<T>(static_cast<int>(m), columns.vectors);
    T *target[height] = {};
    if (product.join == Join::none && columns.dense && columns.whole) {
        for (Index i = 0; i < m; ++i)
            target[i] = product.c + rows[i] + columns.at[0];
        kernel(depth, a, b, target, add);
        return;
    }
    const Index lines = product.join == Join::none ? m : m / 2;
    if (add && columns.dense)
        for (Index i = 0; i < lines; ++i)
            for (Index j = 0; j < columns.count; j += lanes<T>)
                GRADCHECK_PREFETCH(product.c + rows[i] + columns.at[0] + j, 1);
    T tile[height * width] = {}, joined[2 * width];
    for (Index i = 0; i < m; ++i)
        target[i] = tile + i * width;
    kernel(depth, a, b, target, false);
    if (product.join == Join::none) {
        for (Index i = 0; i < m; ++i)
            write_row(product.c + rows[i], columns, target[i], add);
        return;
    }
    for (Index i = 0; i < m; i += 2) {
        if (product.join == Join::complex)
            join_complex(target[i], target[i + 1], joined);
        else
            for (Index j = 0; j < width; ++j) {
                joined[2 * j] = target[i][j];
                joined[2 * j + 1] = target[i + 1][j];
            }
        write_row(product.c + rows[i / 2], columns, joined, add);
    }
}

// One block of A, packed, by all panels of a block of B: these are packed for the first block of A, some at a time just
// before they are needed.
template <class T> void multiply_block(const Product<T> &product, Span rows, Span columns, Span depth, const T *a, T *b, bool first) {
    using Block = Blocks<T>;
    const Index count = depth.last - depth.first, each = product.join == Join::none ? 1 : 2;
    Index at[Block::rows];
    offsets(product.c_rows, rows.first / each, rows.last / each, at);
    for (Index j = columns.first; j < columns.last; j += Block::width, b += Block::width * count) {
        if (first && (j - columns.first) % Block::fresh == 0)
            pack_right(product, depth, {j, smaller(j + Block::fresh, columns.last)}, b);
        const Columns<T> made(product, {j, smaller(j + Block::width, columns.last)});
        for (Index i = rows.first; i < rows.last; i += Block::height) {
            const Index m = smaller(Block::height, rows.last - i);
            write_tile(product, at + (i - rows.first) / each, m, made, count, a + (i - rows.first) * count, b, depth.first > 0);
        }
    }
}

// The rectangle rows x columns of C; rectangles share nothing, so each may run on a thread of its own.
template <class T> void multiply_packed(const Product<T> &product, Span rows, Span columns) {
    using Block = Blocks<T>;
    const Index deepest = smaller(Block::depth, product.depth);
    const Index widest = smaller(Block::columns, columns.last - columns.first + Block::width);
    const Index tallest = smaller(Block::rows, rows.last - rows.first + Block::height);
    T *a = static_cast<T *>(scratch(Slot::left, static_cast<std::size_t>(tallest * deepest) * sizeof(T)));
    T *b = static_cast<T *>(scratch(Slot::right, static_cast<std::size_t>(widest * deepest) * sizeof(T)));
    for (Index j = columns.first; j < columns.last; j += Block::columns) {
        const Span across = {j, smaller(j + Block::columns, columns.last)};
        for (Index p = 0; p < product.depth; p += Block::depth) {
            const Span depth = {p, smaller(p + Block::depth, product.depth)};
            for (Index i = rows.first; i < rows.last; i += Block::rows) {
                const Span down = {i, smaller(i + Block::rows, rows.last)};
                pack_left<T, Block::rows>(product, down, depth, a);
                multiply_block(product, down, across, depth, a, b, i == rows.first);
            }
        }
    }
}

}  // namespace gradcheck::GRADCHECK_ISA
