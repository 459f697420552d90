// The innermost product: Rows x (Vectors * L) sums held in registers over the whole depth of two packed panels.
#pragma once

#include <utility>

#include "product.h"
#include "vectors.h"

namespace gradcheck::GRADCHECK_ISA {

// a: depth x Rows, b: depth x (Vectors * L), both contiguous; c: one pointer for each row, unit columns.
template <class T, int Rows, int Vectors>
void multiply_panels(Index depth, const T *a, const T *b, T *const *c, bool add) {
    constexpr int L = lanes<T>;
    GRADCHECK_UNROLL
    for (int i = 0; i < Rows; ++i) {
        GRADCHECK_UNROLL
        for (int v = 0; v < Vectors; ++v)
            GRADCHECK_PREFETCH(c[i] + v * L, 1);
    }
    Vector<T, L> sums[Rows][Vectors] = {};
    for (Index p = 0; p < depth; ++p) {
        Vector<T, L> line[Vectors];
        GRADCHECK_UNROLL
        for (int v = 0; v < Vectors; ++v)
            line[v] = load<T, L>(b + v * L);
        GRADCHECK_UNROLL
        for (int i = 0; i < Rows; ++i) {
            GRADCHECK_UNROLL
            for (int v = 0; v < Vectors; ++v)
                sums[i][v] += a[i] * line[v];
        }
        a += Rows;
        b += Vectors * L;
    }
    GRADCHECK_UNROLL
    for (int i = 0; i < Rows; ++i) {
        GRADCHECK_UNROLL
        for (int v = 0; v < Vectors; ++v) {
            if (add)
                sums[i][v] += load<T, L>(c[i] + v * L);
            store<T, L>(c[i] + v * L, sums[i][v]);
        }
    }
}

template <class T> using PanelKernel = void (*)(Index, const T *, const T *, T *const *, bool);

template <class T, int Vectors, int... Row> PanelKernel<T> panel_kernel(int rows, std::integer_sequence<int, Row...>) {
    static constexpr PanelKernel<T> table[] = {multiply_panels<T, Row + 1, Vectors>...};
    return table[rows - 1];
}

// The kernel for panels of `rows` rows and one or two vectors of columns.
template <class T> PanelKernel<T> panel_kernel(int rows, int vectors) {
    using Heights = std::make_integer_sequence<int, GRADCHECK_PACKED_ROWS>;
    return vectors == 1 ? panel_kernel<T, 1>(rows, Heights()) : panel_kernel<T, 2>(rows, Heights());
}

}  // namespace gradcheck::GRADCHECK_ISA
