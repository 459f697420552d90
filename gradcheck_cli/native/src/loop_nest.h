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
};

// Writes one tile of C, through a buffer where its columns do not lie side by side or are fewer than the panel's.
template <class T> void write_tile(const Product<T> &product, Span rows, Span columns, Index depth, const T *a, const T *b, bool add) {
    constexpr Index height = Blocks<T>::height, width = Blocks<T>::width;
    const Index m = rows.last - rows.first, n = columns.last - columns.first;
    Index row[height], column[width];
    offsets(product.c_rows, rows.first, rows.last, row);
    offsets(product.c_columns, columns.first, columns.last, column);
    const int vectors = n <= lanes<T> ? 1 : 2;
    const PanelKernel<T> kernel = panel_kernel<T>(static_cast<int>(m), vectors);
    T *target[height] = {};
    if (n == vectors * lanes<T> && contiguous(column, n)) {
        for (Index i = 0; i < m; ++i)
            target[i] = product.c + row[i] + column[0];
        kernel(depth, a, b, target, add);
        return;
    }
    T tile[height * width];
    for (Index i = 0; i < m; ++i)
        target[i] = tile + i * width;
    kernel(depth, a, b, target, false);
    for (Index i = 0; i < m; ++i)
        for (Index j = 0; j < n; ++j) {
            T &c = product.c[row[i] + column[j]];
            c = add ? c + target[i][j] : target[i][j];
        }
}

// Panels of B for a block, each followed by the next.
template <class T> void pack_right(const Product<T> &product, Span depth, Span columns, T *out) {
    constexpr int L = lanes<T>;
    for (Index j = columns.first; j < columns.last; j += 2 * L) {
        const Span panel = {j, smaller(j + 2 * L, columns.last)};
        if (panel.last - panel.first <= L)
            pack_right_panel<T, L>(product, depth, panel, out);
        else
            pack_right_panel<T, 2 * L>(product, depth, panel, out);
        out += 2 * L * (depth.last - depth.first);
    }
}

template <class T> void multiply_block(const Product<T> &product, Span rows, Span columns, Span depth, const T *a, const T *b) {
    constexpr Index height = Blocks<T>::height, width = Blocks<T>::width;
    const Index count = depth.last - depth.first;
    for (Index j = columns.first; j < columns.last; j += width)
        for (Index i = rows.first; i < rows.last; i += height)
            write_tile(product, {i, smaller(i + height, rows.last)}, {j, smaller(j + width, columns.last)}, count,
                       a + (i - rows.first) * count, b + (j - columns.first) * count, depth.first > 0);
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
            pack_right(product, depth, across, b);
            for (Index i = rows.first; i < rows.last; i += Block::rows) {
                const Span down = {i, smaller(i + Block::rows, rows.last)};
                pack_left_panels<T, Block::rows>(product, down, depth, a);
                multiply_block(product, down, across, depth, a, b);
            }
        }
    }
}

}  // namespace gradcheck::GRADCHECK_ISA
