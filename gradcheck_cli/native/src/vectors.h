// Vectors of L numbers: the compiler's where it has them, plain loops elsewhere.  Whatever depends on the
// instruction set lives in a namespace of its own, so that the linker cannot mix the variants.
#pragma once

#include <cstring>

#if defined(__AVX512F__)
#define GRADCHECK_VECTOR_BYTES 64
#define GRADCHECK_PACKED_ROWS 14
#define GRADCHECK_DIRECT_ROWS 8
#elif defined(__AVX2__)
#define GRADCHECK_VECTOR_BYTES 32
#define GRADCHECK_PACKED_ROWS 6
#define GRADCHECK_DIRECT_ROWS 6
#else
#define GRADCHECK_VECTOR_BYTES 16
#define GRADCHECK_PACKED_ROWS 6
#define GRADCHECK_DIRECT_ROWS 6
#endif

#if defined(__clang__)
#define GRADCHECK_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define GRADCHECK_UNROLL _Pragma("GCC unroll 16")
#else
#define GRADCHECK_UNROLL
#endif

namespace gradcheck::GRADCHECK_ISA {

#if defined(__GNUC__)

template <class T, int L> struct VectorOf {
    typedef T type __attribute__((vector_size(L * sizeof(T))));
};

#else

template <class T, int L> struct Lanes {
    T lane[L];

    Lanes &operator+=(const Lanes &other) {
        for (int i = 0; i < L; ++i)
            lane[i] += other.lane[i];
        return *this;
    }
    friend Lanes operator*(Lanes v, const Lanes &other) {
        for (int i = 0; i < L; ++i)
            v.lane[i] *= other.lane[i];
        return v;
    }
    friend Lanes operator*(T scale, Lanes v) {
        for (int i = 0; i < L; ++i)
            v.lane[i] *= scale;
        return v;
    }
};

template <class T, int L> struct VectorOf {
    using type = Lanes<T, L>;
};

#endif

template <class T> struct VectorOf<T, 1> {
    using type = T;
};

template <class T, int L> using Vector = typename VectorOf<T, L>::type;

template <class T> constexpr int lanes = GRADCHECK_VECTOR_BYTES / static_cast<int>(sizeof(T));

template <class T, int L> inline Vector<T, L> load(const T *from) {
    Vector<T, L> v;
    std::memcpy(&v, from, sizeof(v));
    return v;
}

template <class T, int L> inline void store(T *to, const Vector<T, L> &v) { std::memcpy(to, &v, sizeof(v)); }

}  // namespace gradcheck::GRADCHECK_ISA
