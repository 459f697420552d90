// Products of few rows with few columns, both contiguous along the depth: many dot products at once.
#pragma once

#include <utility>

#include "product.h"
#include "vectors.h"

namespace gradcheck::GRADCHECK_ISA {

template <class T, int L> inline T sum(const Vector<T, L> &v) {
    T lane[L];
    store<T, L>(lane, v);
    for (int half = L / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i)
            lane[i] += lane[i + half];
    return lane[0];
}

// Rows x Columns dot products, one vector of partial sums for each.
template <class T, class S, int Rows, int Columns>
void multiply_dots_of(Index depth, const T *a, Index a_row, const S *b, Index b_column, T *c, Index c_row, Index c_column) {
    constexpr int L = lanes<T>;
    Vector<T, L> sums[Rows][Columns] = {};
    Index p = 0;
    for (; p + L <= depth; p += L) {
        Vector<T, L> left[Rows];
        GRADCHECK_UNROLL
        for (int i = 0; i < Rows; ++i)
            left[i] = load<T, L>(a + i * a_row + p);
        GRADCHECK_UNROLL
        for (int j = 0; j < Columns; ++j) {
            const Vector<T, L> right = load_as<T, L>(b + j * b_column + p);
            GRADCHECK_UNROLL
            for (int i = 0; i < Rows; ++i)
                sums[i][j] += left[i] * right;
        }
    }
    GRADCHECK_UNROLL
    for (int i = 0; i < Rows; ++i) {
        GRADCHECK_UNROLL
        for (int j = 0; j < Columns; ++j) {
            T total = sum<T, L>(sums[i][j]);
            for (Index q = p; q < depth; ++q)
                total += a[i * a_row + q] * static_cast<T>(b[j * b_column + q]);
            c[i * c_row + j * c_column] = total;
        }
    }
}

template <class T, class S> using Dots = void (*)(Index, const T *, Index, const S *, Index, T *, Index, Index);

// The most columns at once, so that sums and operands fit the registers.
constexpr Index dot_columns(Index rows) { return rows == 1 ? 8 : rows == 2 ? 4 : 2; }

template <class T, class S, int Rows, int... Column> Dots<T, S> dots_of(Index columns, std::integer_sequence<int, Column...>) {
    static constexpr Dots<T, S> table[] = {multiply_dots_of<T, S, Rows, Column + 1>...};
    return table[columns - 1];
}

template <class T, class S> Dots<T, S> dots_of(Index rows, Index columns) {
    if (rows == 1)
        return dots_of<T, S, 1>(columns, std::make_integer_sequence<int, dot_columns(1)>());
    if (rows == 2)
        return dots_of<T, S, 2>(columns, std::make_integer_sequence<int, dot_columns(2)>());
    if (rows == 3)
        return dots_of<T, S, 3>(columns, std::make_integer_sequence<int, dot_columns(3)>());
    return dots_of<T, S, 4>(columns, std::make_integer_sequence<int, dot_columns(4)>());
}

template <class T, class S> void multiply_dots_by(const SmallProducts<T> &p, const S *b, Index first, Index last) {
    for_places(p.batch, p.batch_rank, first, last, [&](const Place &at) {
        for (Index i = 0; i < p.m; i += 4) {
            const Index rows = p.m - i < 4 ? p.m - i : 4, most = dot_columns(rows);
            for (Index j = 0; j < p.n; j += most) {
                const Index columns = p.n - j < most ? p.n - j : most;
                dots_of<T, S>(rows, columns)(p.depth, p.a + at.a + i * p.a_row, p.a_row, b + at.b + j * p.b_column,
                                             p.b_column, p.c + at.c + i * p.c_row + j * p.c_column, p.c_row, p.c_column);
            }
        }
    });
}

// Products [first, last) of the stack.
template <class T> void multiply_dots(const SmallProducts<T> &p, Index first, Index last) {
    if (p.b.narrow)
        multiply_dots_by(p, p.b.single(), first, last);
    else
        multiply_dots_by(p, p.b.wide(), first, last);
}

}  // namespace gradcheck::GRADCHECK_ISA
