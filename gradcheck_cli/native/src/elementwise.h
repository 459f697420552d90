// One operation on a block of numbers.
#pragma once

#include <cmath>

#include "chain.h"

// A block may be written over one that it is made from, number by number; otherwise they do not overlap.
#if defined(__clang__)
#define GRADCHECK_IN_ANY_ORDER _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define GRADCHECK_IN_ANY_ORDER _Pragma("GCC ivdep")
#else
#define GRADCHECK_IN_ANY_ORDER
#endif

namespace gradcheck::GRADCHECK_ISA {

template <class T, class Function>
inline void for_numbers(T *to, const T *left, const T *right, const T *third, Index count, const Function &f) {
    GRADCHECK_IN_ANY_ORDER
    for (Index i = 0; i < count; ++i)
        to[i] = f(left[i], right[i], third[i]);
}

template <class T> void operate(Operation operation, T *to, const T *left, const T *right, const T *third, Index count) {
    const auto each = [=](const auto &f) { for_numbers(to, left, right, third, count, f); };
    switch (operation) {
    case Operation::copy:
        return each([](T x, T, T) { return x; });
    case Operation::negate:
        return each([](T x, T, T) { return -x; });
    case Operation::magnitude:
        return each([](T x, T, T) { return std::fabs(x); });
    case Operation::root:
        return each([](T x, T, T) { return std::sqrt(x); });
    case Operation::add:
        return each([](T x, T y, T) { return x + y; });
    case Operation::subtract:
        return each([](T x, T y, T) { return x - y; });
    case Operation::multiply:
        return each([](T x, T y, T) { return x * y; });
    case Operation::divide:
        return each([](T x, T y, T) { return x / y; });
    case Operation::larger:
        return each([](T x, T y, T) { return (x >= y) | (y != y) ? x : y; });
    case Operation::smaller:
        return each([](T x, T y, T) { return (x <= y) | (y != y) ? x : y; });
    case Operation::less:
        return each([](T x, T y, T) { return x < y ? T(1) : T(0); });
    case Operation::select:
        return each([](T x, T y, T z) { return z != T(0) ? x : y; });
    }
}

}  // namespace gradcheck::GRADCHECK_ISA
