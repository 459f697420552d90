// A stack of products with the tables they refer to, and how a stack is run on threads.
#pragma once

#include <vector>

#include "product.h"

namespace gradcheck {

// Which operands are complex.  Complex numbers are pairs of reals: those of B are two columns, those of A two rows,
// which are joined in C.
enum class Pairing { none, left, right, both };

inline Pairing pairing(bool left, bool right) {
    return left ? (right ? Pairing::both : Pairing::left) : (right ? Pairing::right : Pairing::none);
}

inline Join join(Pairing kinds) {
    return kinds == Pairing::both ? Join::complex : kinds == Pairing::left ? Join::parts : Join::none;
}

// Offsets of one product, counted in reals, as tables; `pair` makes those of a complex product real ones.
struct Tables {
    std::vector<Index> a_rows, a_depth, b_depth, b_columns, c_rows, c_columns;

    void pair(Pairing pairing);
};

template <class T> struct Stack {
    Product<T> product;
    Tables tables;
    std::vector<BatchAxis> batch;
};

// The stack of products over `batch`, where one axis along which B stands still has become rows, and one along
// which A does, columns.
template <class T> Stack<T> make_stack(Numbers<T> a, Numbers<T> b, T *c, Tables tables, Pairing pairing, std::vector<BatchAxis> batch);

// Without axes of one, and with neighbours made one axis where all operands allow it.
std::vector<BatchAxis> merged(const std::vector<BatchAxis> &axes);

Index count(const std::vector<BatchAxis> &axes);

std::vector<Index> steps(Index count, Index stride);

template <class T> void run(const Stack<T> &stack);
// `kernel` is one of the two of an instruction set for small products.
template <class T>
void run(const SmallProducts<T> &products, void (*kernel)(const SmallProducts<T> &, Index first, Index last));

}  // namespace gradcheck
