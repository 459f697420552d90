// Small and skinny products, in place: nothing is packed, and nothing but a B that is spread is copied.
#pragma once

#include <utility>

#include "product.h"
#include "scratch.h"
#include "vectors.h"

namespace gradcheck::GRADCHECK_ISA {

// A block of C: Rows x Vectors of L lanes each.  The last vector starts at `last`, over lanes of the one before
// it when the columns are no multiple of L: both then compute the same numbers.
template <class T, int Rows, int Vectors, int L, bool Lined>
void multiply_in_place(const SmallProducts<T> &product, const T *a, const T *b, T *c, Index last) {
    const Index a_row = product.a_row, c_row = product.c_row;
    Vector<T, L> sums[Rows][Vectors] = {};
    for (Index p = 0; p < product.depth; ++p) {
        const T *left = Lined ? a + product.a_lines[p] : a, *right = Lined ? b + product.b_lines[p] : b;
        Vector<T, L> line[Vectors];
        GRADCHECK_UNROLL
        for (int v = 0; v < Vectors; ++v)
            line[v] = load<T, L>(right + (v + 1 < Vectors ? v * L : last));
        GRADCHECK_UNROLL
        for (int i = 0; i < Rows; ++i) {
            GRADCHECK_UNROLL
            for (int v = 0; v < Vectors; ++v)
                sums[i][v] += left[i * a_row] * line[v];
        }
        if constexpr (!Lined) {
            a += product.a_depth;
            b += product.b_depth;
        }
    }
    GRADCHECK_UNROLL
    for (int i = 0; i < Rows; ++i) {
        GRADCHECK_UNROLL
        for (int v = 0; v < Vectors; ++v)
            store<T, L>(c + i * c_row + (v + 1 < Vectors ? v * L : last), sums[i][v]);
    }
}

template <class T> using InPlace = void (*)(const SmallProducts<T> &, const T *a, const T *b, T *c, Index last);

// How many vectors of columns a block of few rows takes, so that enough sums are in flight.
constexpr int block_vectors(int rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : 2; }

using DirectHeights = std::make_integer_sequence<int, GRADCHECK_DIRECT_ROWS>;

template <class T, int Vectors, int L, bool Lined, int... Row> InPlace<T> in_place(int rows, std::integer_sequence<int, Row...>) {
    static constexpr InPlace<T> table[] = {
        multiply_in_place<T, Row + 1, (Vectors < block_vectors(Row + 1) ? Vectors : block_vectors(Row + 1)), L, Lined>...};
    return table[rows - 1];
}

// The kernel for `rows` rows and no more than block_vectors(rows) vectors.
template <class T, int L, bool Lined, int... Vector>
InPlace<T> in_place(int rows, Index vectors, std::integer_sequence<int, Vector...>) {
    using Choice = InPlace<T> (*)(int, DirectHeights);
    static constexpr Choice table[] = {in_place<T, Vector + 1, L, Lined>...};
    return table[vectors - 1](rows, DirectHeights());
}

// Runs `rows` rows over all columns, at least L: in blocks as wide as can be.
template <class T, int L, bool Lined> void multiply_rows(const SmallProducts<T> &p, int rows, const T *a, const T *b, T *c) {
    const Index most = block_vectors(rows);
    for (Index j = 0; j < p.n;) {
        const Index left = p.n - j, needed = (left + L - 1) / L, vectors = needed < most ? needed : most;
        const InPlace<T> block = in_place<T, L, Lined>(rows, vectors, std::make_integer_sequence<int, block_vectors(1)>());
        if (left < L) {
            block(p, a, b + p.n - L, c + p.n - L, 0);
            return;
        }
        block(p, a, b + j, c + j, vectors * L <= left ? (vectors - 1) * L : left - L);
        j += vectors * L;
    }
}

// The widest vector that is no wider than the columns.
template <class T, int L> void multiply_narrow(const SmallProducts<T> &p, int rows, const T *a, const T *b, T *c) {
    if constexpr (L > 1) {
        if (p.n < L) {
            multiply_narrow<T, L / 2>(p, rows, a, b, c);
            return;
        }
    }
    if (p.b_lines == nullptr)
        multiply_rows<T, L, false>(p, rows, a, b, c);
    else
        multiply_rows<T, L, true>(p, rows, a, b, c);
}

template <class T> void multiply_one(const SmallProducts<T> &p, const T *a, const T *b, T *c) {
    for (Index i = 0; i < p.m; i += GRADCHECK_DIRECT_ROWS) {
        const Index rows = p.m - i < GRADCHECK_DIRECT_ROWS ? p.m - i : GRADCHECK_DIRECT_ROWS;
        multiply_narrow<T, lanes<T>>(p, static_cast<int>(rows), a + i * p.a_row, b, c + i * p.c_row);
    }
}

// B as a real (depth, n) matrix with unit columns, of a B that is strided, complex, or real beside a complex A.
template <class T> void spread_right(const SmallProducts<T> &p, const T *b, T *out) {
    if (p.spread == Spread::copied) {
        for (Index k = 0; k < p.depth; ++k)
            for (Index j = 0; j < p.n; ++j)
                *out++ = b[k * p.b_depth + j * p.b_column];
        return;
    }
    const bool complex = p.spread == Spread::rotated;
    for (Index k = 0; k < p.depth; k += 2, out += 2 * p.n)
        for (Index j = 0; j < p.n; j += 2) {
            const T *from = b + (k / 2) * p.b_depth + (j / 2) * p.b_column;
            const T re = from[0], im = complex ? from[1] : T(0);
            out[j] = re;
            out[j + 1] = im;
            out[p.n + j] = -im;
            out[p.n + j + 1] = re;
        }
}

// Products [first, last) of the stack.
template <class T> void multiply_small(const SmallProducts<T> &products, Index first, Index last) {
    SmallProducts<T> p = products;
    T *spread = nullptr;
    const T *before = nullptr;  // the B that is spread already: often that of the next product, too
    if (p.spread != Spread::none) {
        spread = static_cast<T *>(scratch(Slot::right, static_cast<std::size_t>(p.depth * p.n) * sizeof(T)));
        p.b_depth = p.n;
    }
    for_places(p.batch, p.batch_rank, first, last, [&](const Place &at) {
        const T *b = products.b + at.b;
        if (spread != nullptr) {
            if (b != before)
                spread_right(products, b, spread);
            before = b;
            b = spread;
        }
        multiply_one(p, products.a + at.a, b, products.c + at.c);
    });
}

}  // namespace gradcheck::GRADCHECK_ISA
