// Small and skinny products, in place: nothing is packed, and only a B without unit columns is copied.
#pragma once

#include <utility>

#include "product.h"
#include "scratch.h"
#include "vectors.h"

namespace gradcheck::GRADCHECK_ISA {

// How the kernel finds its operands: lines of the depth a stride apart or where tables say; or a stride apart, with
// rows of A in twos, the real and imaginary parts of a complex one, which make a complex row of C or its two parts.
enum class Form { strided, lined, complex, parts };

template <Form form> constexpr bool in_twos = form == Form::complex || form == Form::parts;

// Vectors of real and of imaginary parts, as complex numbers.
template <class T, int L> inline void store_parts(T *to, const Vector<T, L> &real, const Vector<T, L> &imaginary) {
    if constexpr (L == 1) {
        to[0] = real;
        to[1] = imaginary;
    } else {
        using Lanes = std::make_integer_sequence<int, L>;
        store<T, L>(to, interleaved<T, 0>(real, imaginary, Lanes()));
        store<T, L>(to + L, interleaved<T, L / 2>(real, imaginary, Lanes()));
    }
}

// A block of C: Rows x Vectors of L lanes each.  The last vector starts at `last`, over lanes of the one before
// it when the columns are no multiple of L: both then compute the same numbers.
template <class T, int Rows, int Vectors, int L, Form form>
void multiply_in_place(const SmallProducts<T> &product, const T *a, const T *b, T *c, Index last) {
    constexpr bool lined = form == Form::lined, twos = in_twos<form>;
    const Index a_row = product.a_row, c_row = product.c_row;
    Vector<T, L> sums[Rows][Vectors] = {};
    for (Index p = 0; p < product.depth; ++p) {
        const T *left = lined ? a + product.a_lines[p] : a, *right = lined ? b + product.b_lines[p] : b;
        Vector<T, L> line[Vectors];
        GRADCHECK_UNROLL
        for (int v = 0; v < Vectors; ++v)
            line[v] = load<T, L>(right + (v + 1 < Vectors ? v * L : last));
        GRADCHECK_UNROLL
        for (int i = 0; i < Rows; ++i) {
            GRADCHECK_UNROLL
            for (int v = 0; v < Vectors; ++v)
                sums[i][v] += left[twos ? i / 2 * a_row + i % 2 : i * a_row] * line[v];
        }
        if constexpr (!lined) {
            a += product.a_depth;
            b += product.b_depth;
        }
    }
    GRADCHECK_UNROLL
    for (int i = 0; i < Rows; i += twos ? 2 : 1) {
        GRADCHECK_UNROLL
        for (int v = 0; v < Vectors; ++v) {
            const Index column = v + 1 < Vectors ? v * L : last;
            if constexpr (form == Form::complex)
                store<T, L>(c + i / 2 * c_row + column, sums[i][v] + turned<T, L>(sums[i + 1][v]));
            else if constexpr (form == Form::parts)
                store_parts<T, L>(c + i / 2 * c_row + 2 * column, sums[i][v], sums[i + 1][v]);
            else
                store<T, L>(c + i * c_row + column, sums[i][v]);
        }
    }
}

template <class T> using InPlace = void (*)(const SmallProducts<T> &, const T *a, const T *b, T *c, Index last);

// How many vectors of columns a block of few rows takes, so that enough sums are in flight.
constexpr int block_vectors(int rows) { return rows == 1 ? 8 : rows <= GRADCHECK_WIDE_ROWS ? 4 : 2; }

// The heights of blocks: 1, 2, 3 ... rows, or 2, 4, 6 ... where they come in twos.
template <Form form> constexpr int height_of(int entry) { return in_twos<form> ? 2 * entry + 2 : entry + 1; }
template <Form form>
using DirectHeights = std::make_integer_sequence<int, in_twos<form> ? GRADCHECK_DIRECT_ROWS / 2 : GRADCHECK_DIRECT_ROWS>;

template <class T, int Vectors, int L, Form form, int... Entry> InPlace<T> in_place(int rows, std::integer_sequence<int, Entry...>) {
    static constexpr InPlace<T> table[] = {
        multiply_in_place<T, height_of<form>(Entry),
                          (Vectors < block_vectors(height_of<form>(Entry)) ? Vectors : block_vectors(height_of<form>(Entry))), L,
                          form>...};
    return table[in_twos<form> ? rows / 2 - 1 : rows - 1];
}

// The kernel for `rows` rows and no more than block_vectors(rows) vectors.
template <class T, int L, Form form, int... Vector> InPlace<T> in_place(int rows, Index vectors, std::integer_sequence<int, Vector...>) {
    using Choice = InPlace<T> (*)(int, DirectHeights<form>);
    static constexpr Choice table[] = {in_place<T, Vector + 1, L, form>...};
    return table[vectors - 1](rows, DirectHeights<form>());
}

// Runs `rows` rows over all columns, at least L: in blocks as wide as can be.
template <class T, int L, Form form> void multiply_rows(const SmallProducts<T> &p, int rows, const T *a, const T *b, T *c) {
    using Widths = std::make_integer_sequence<int, block_vectors(in_twos<form> ? 2 : 1)>;
    constexpr Index each = form == Form::parts ? 2 : 1;
    const Index most = block_vectors(rows);
    for (Index j = 0; j < p.n;) {
        const Index left = p.n - j, needed = (left + L - 1) / L, vectors = needed < most ? needed : most;
        const InPlace<T> block = in_place<T, L, form>(rows, vectors, Widths());
        if (left < L) {
            block(p, a, b + p.n - L, c + each * (p.n - L), 0);
            return;
        }
        block(p, a, b + j, c + each * j, vectors * L <= left ? (vectors - 1) * L : left - L);
        j += vectors * L;
    }
}

// The widest vector that is no wider than the columns, of which there are at least two where they are complex.
template <class T, int L, Form form> void multiply_narrow(const SmallProducts<T> &p, int rows, const T *a, const T *b, T *c) {
    if constexpr (L > (form == Form::complex ? 2 : 1)) {
        if (p.n < L) {
            multiply_narrow<T, L / 2, form>(p, rows, a, b, c);
            return;
        }
    }
    multiply_rows<T, L, form>(p, rows, a, b, c);
}

template <class T, Form form> void multiply_one(const SmallProducts<T> &p, const T *a, const T *b, T *c) {
    constexpr Index each = in_twos<form> ? 2 : 1, wide = GRADCHECK_WIDE_ROWS / 2 * 2;
    const Index most = p.n > 2 * lanes<T> && wide > 2 ? wide : GRADCHECK_DIRECT_ROWS;
    for (Index i = 0, rows = 0; i < p.m; i += rows) {
        const Index blocks = (p.m - i + most - 1) / most;  // of about the same height
        rows = each * (((p.m - i) / each + blocks - 1) / blocks);
        multiply_narrow<T, lanes<T>, form>(p, static_cast<int>(rows), a + i / each * p.a_row, b, c + i / each * p.c_row);
    }
}

// B as a matrix (depth, n) with unit columns.
template <class T> void copy_right(const SmallProducts<T> &p, const T *b, T *out) {
    for (Index k = 0; k < p.depth; ++k)
        for (Index j = 0; j < p.n; j += p.b_unit)
            for (Index i = 0; i < p.b_unit; ++i)
                *out++ = b[k * p.b_depth + j / p.b_unit * p.b_column + i];
}

template <class T, Form form> void multiply_stack(const SmallProducts<T> &products, Index first, Index last) {
    SmallProducts<T> p = products;
    T *copy = nullptr;
    const T *before = nullptr;  // the B that is copied already: often that of the next product, too
    if (p.b_unit != 0) {
        copy = static_cast<T *>(scratch(Slot::right, static_cast<std::size_t>(p.depth * p.n) * sizeof(T)));
        p.b_depth = p.n;
    }
    for_places(p.batch, p.batch_rank, first, last, [&](const Place &at) {
        const T *b = products.b.wide() + at.b;
        if (copy != nullptr) {
            if (b != before)
                copy_right(products, b, copy);
            before = b;
            b = copy;
        }
        multiply_one<T, form>(p, products.a + at.a, b, products.c + at.c);
    });
}

// Products [first, last) of the stack.
template <class T> void multiply_small(const SmallProducts<T> &products, Index first, Index last) {
    if (products.join == Join::complex)
        multiply_stack<T, Form::complex>(products, first, last);
    else if (products.join == Join::parts)
        multiply_stack<T, Form::parts>(products, first, last);
    else if (products.b_lines != nullptr)
        multiply_stack<T, Form::lined>(products, first, last);
    else
        multiply_stack<T, Form::strided>(products, first, last);
}

}  // namespace gradcheck::GRADCHECK_ISA
