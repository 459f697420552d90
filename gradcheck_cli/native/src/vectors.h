// Vectors of L numbers: the compiler's where it has them, plain loops elsewhere.  Whatever depends on the
// instruction set lives in a namespace of its own, so that the linker cannot mix the variants.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__AVX512F__)
#define GRADCHECK_VECTOR_BYTES 64
#define GRADCHECK_PACKED_ROWS 14
#define GRADCHECK_DIRECT_ROWS 8
#define GRADCHECK_WIDE_ROWS 6
#elif defined(__AVX2__)
#define GRADCHECK_VECTOR_BYTES 32
#define GRADCHECK_PACKED_ROWS 6
#define GRADCHECK_DIRECT_ROWS 6
#define GRADCHECK_WIDE_ROWS 3
#else
#define GRADCHECK_VECTOR_BYTES 16
#define GRADCHECK_PACKED_ROWS 6
#define GRADCHECK_DIRECT_ROWS 6
#define GRADCHECK_WIDE_ROWS 3
#endif

// Asks for the cache line of an address that is written soon, or read; any address will do.
#if defined(__GNUC__) || defined(__clang__)
#define GRADCHECK_PREFETCH(address, write) __builtin_prefetch(address, write)
#else
#define GRADCHECK_PREFETCH(address, write)
#endif

#if defined(__clang__)
#define GRADCHECK_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define GRADCHECK_UNROLL _Pragma("GCC unroll 16")
#else
#define GRADCHECK_UNROLL
#endif

namespace gradcheck::GRADCHECK_ISA {

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define GRADCHECK_SHUFFLES
#endif
#if __has_builtin(__builtin_convertvector)
#define GRADCHECK_CONVERTS
#endif
#endif

#if (defined(__GNUC__) || defined(__clang__)) && !defined(GRADCHECK_PLAIN_LOOPS)
#define GRADCHECK_VECTOR_TYPES

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
    T operator[](int i) const { return lane[i]; }
    T &operator[](int i) { return lane[i]; }
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

// Vectors of T from numbers of T, or from narrower ones.
template <class T, int L, class S> inline Vector<T, L> load_as(const S *from) {
    if constexpr (std::is_same_v<T, S>) {
        return load<T, L>(from);
    } else if constexpr (L == 1) {
        return static_cast<T>(*from);
    } else {
#if defined(GRADCHECK_VECTOR_TYPES) && defined(GRADCHECK_CONVERTS)
        return __builtin_convertvector(load<S, L>(from), Vector<T, L>);
#else
        Vector<T, L> v;
        for (int i = 0; i < L; ++i)
            v[i] = static_cast<T>(from[i]);
        return v;
#endif
    }
}

template <class T, int L> inline void store(T *to, const Vector<T, L> &v) { std::memcpy(to, &v, sizeof(v)); }

// a0 b0 a1 b1 ... of the lanes from `First` on, half of each.
template <class T, int First, int... I>
inline Vector<T, sizeof...(I)> interleaved(const Vector<T, sizeof...(I)> &a, const Vector<T, sizeof...(I)> &b,
                                           std::integer_sequence<int, I...>) {
#if defined(GRADCHECK_VECTOR_TYPES) && defined(GRADCHECK_SHUFFLES)
    return __builtin_shufflevector(a, b, (First + I / 2 + I % 2 * static_cast<int>(sizeof...(I)))...);
#else
    Vector<T, sizeof...(I)> v;
    ((v[I] = I % 2 == 0 ? a[First + I / 2] : b[First + I / 2]), ...);
    return v;
#endif
}

// i times the complex numbers whose real and imaginary parts are pairs of lanes.
template <class T, int... I> inline Vector<T, sizeof...(I)> turned(const Vector<T, sizeof...(I)> &v, std::integer_sequence<int, I...>) {
    const Vector<T, sizeof...(I)> sign = {T(I % 2 == 0 ? -1 : 1)...};
#if defined(GRADCHECK_VECTOR_TYPES) && defined(GRADCHECK_SHUFFLES)
    return sign * __builtin_shufflevector(v, v, (I ^ 1)...);
#else
    const Vector<T, sizeof...(I)> swapped = {v[I ^ 1]...};
    return sign * swapped;
#endif
}

template <class T, int L> inline Vector<T, L> turned(const Vector<T, L> &v) {
    return turned<T>(v, std::make_integer_sequence<int, L>());
}

// Makes the lanes of L vectors of L the vectors: each pass deals two halves of the deck into one another.
template <class T, int L> inline void transpose(Vector<T, L> (&v)[L]) {
    using Lanes = std::make_integer_sequence<int, L>;
    GRADCHECK_UNROLL
    for (int pass = 1; pass < L; pass *= 2) {
        Vector<T, L> dealt[L];
        GRADCHECK_UNROLL
        for (int i = 0; i < L / 2; ++i) {
            dealt[2 * i] = interleaved<T, 0>(v[i], v[i + L / 2], Lanes());
            dealt[2 * i + 1] = interleaved<T, L / 2>(v[i], v[i + L / 2], Lanes());
        }
        GRADCHECK_UNROLL
        for (int i = 0; i < L; ++i)
            v[i] = dealt[i];
    }
}

}  // namespace gradcheck::GRADCHECK_ISA
