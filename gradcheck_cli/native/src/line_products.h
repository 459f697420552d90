// Few rows by a large B, which is read once and in the order in which it lies: some lines of it at a time are added to
// sums that stay in the cache.
#pragma once

#include "product.h"
#include "scratch.h"
#include "vectors.h"

namespace gradcheck::GRADCHECK_ISA {

// Sums of few rows, `row` apart, and the numbers by which lines of B are scaled for them.
template <class T, int Rows, int Lines> struct LineSums {
    T scale[Rows][Lines];
    T *sums;
    Index row;
    bool add;
};

// Columns [first, count), L at a time and the rest by fewer.
template <class T, class S, int Rows, int Lines, int L>
void add_lines(const LineSums<T, Rows, Lines> &to, Index first, Index count, const S *b, Index step) {
    for (; first + L <= count; first += L) {
        Vector<T, L> line[Lines];
        GRADCHECK_UNROLL
        for (int k = 0; k < Lines; ++k)
            line[k] = load_as<T, L>(b + k * step + first);
        GRADCHECK_UNROLL
        for (int i = 0; i < Rows; ++i) {
            Vector<T, L> sum = {};
            if (to.add)
                sum = load<T, L>(to.sums + i * to.row + first);
            GRADCHECK_UNROLL
            for (int k = 0; k < Lines; ++k)
                sum += to.scale[i][k] * line[k];
            store<T, L>(to.sums + i * to.row + first, sum);
        }
    }
    if constexpr (L > 1)
        add_lines<T, S, Rows, Lines, L / 2>(to, first, count, b, step);
}

// Where the i-th row of sums has its row of A.
template <class T> const T *left_row(const SmallProducts<T> &p, const T *a, Index i) {
    return p.join == Join::none ? a + i * p.a_row : a + i / 2 * p.a_row + i % 2;
}

// Adds `Lines` lines from the depth `at` on to all rows, of which four at most share a line in registers.
template <class T, class S, int Lines>
void add_lines_to_rows(const SmallProducts<T> &p, Index at, Index count, const T *a, const S *b, T *sums, Index row) {
    const auto some = [&](auto rows, Index i) {
        constexpr int Rows = decltype(rows)::value;
        LineSums<T, Rows, Lines> to = {{}, sums + i * row, row, at > 0};
        for (int r = 0; r < Rows; ++r)
            for (int k = 0; k < Lines; ++k)
                to.scale[r][k] = left_row(p, a, i + r)[(at + k) * p.a_depth];
        add_lines<T, S, Rows, Lines, lanes<T>>(to, 0, count, b + at * p.b_depth, p.b_depth);
    };
    Index i = 0;
    for (; i + 4 <= p.m; i += 4)
        some(std::integral_constant<int, 4>(), i);
    for (; i + 2 <= p.m; i += 2)
        some(std::integral_constant<int, 2>(), i);
    if (i < p.m)
        some(std::integral_constant<int, 1>(), i);
}

// One product; C has unit columns.
template <class T, class S> void multiply_lines_of(const SmallProducts<T> &p, const T *a, const S *b, T *c) {
    constexpr Index lines = 8, most = 1024;
    T *buffer = nullptr;
    if (p.join != Join::none)
        buffer = static_cast<T *>(scratch(Slot::right, static_cast<std::size_t>(p.m * most) * sizeof(T)));
    for (Index j = 0; j < p.n; j += most) {
        const Index count = p.n - j < most ? p.n - j : most, row = buffer == nullptr ? p.c_row : most;
        T *sums = buffer == nullptr ? c + j : buffer;
        Index k = 0;
        for (; k + lines <= p.depth; k += lines)
            add_lines_to_rows<T, S, lines>(p, k, count, a, b + j, sums, row);
        for (; k < p.depth; ++k)
            add_lines_to_rows<T, S, 1>(p, k, count, a, b + j, sums, row);
        if (p.join == Join::complex)
            for (Index i = 0; i < p.m; i += 2)
                for (Index x = 0; x < count; x += 2) {
                    const T *real = sums + i * row + x, *imaginary = real + row;
                    T *to = c + i / 2 * p.c_row + j + x;
                    to[0] = real[0] - imaginary[1];
                    to[1] = real[1] + imaginary[0];
                }
        else if (p.join == Join::parts)
            for (Index i = 0; i < p.m; i += 2)
                for (Index x = 0; x < count; ++x) {
                    T *to = c + i / 2 * p.c_row + 2 * (j + x);
                    to[0] = sums[i * row + x];
                    to[1] = sums[(i + 1) * row + x];
                }
    }
}

// Products [first, last) of the stack.
template <class T> void multiply_lines(const SmallProducts<T> &p, Index first, Index last) {
    for_places(p.batch, p.batch_rank, first, last,
               [&](const Place &at) {
                   if (p.b.narrow)
                       multiply_lines_of(p, p.a + at.a, p.b.single() + at.b, p.c + at.c);
                   else
                       multiply_lines_of(p, p.a + at.a, p.b.wide() + at.b, p.c + at.c);
               });
}

}  // namespace gradcheck::GRADCHECK_ISA
