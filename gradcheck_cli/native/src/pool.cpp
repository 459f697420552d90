#include "pool.h"

#include <complex>
#include <cstdint>

#include "thread_pool.h"

namespace gradcheck {
namespace {

constexpr double entry = 4;  // multiplications in the time that an entry takes to come and go

// Calls body(line, its places) for every line, on as many threads as they deserve; false if a place lies outside.
template <class Body> bool for_lines(const Places &p, const Body &body) {
    for (Index i = 0; i < p.known * p.count; ++i)
        if (p.at[i] < 0 || p.at[i] >= p.length)
            return false;
    const double work = entry * static_cast<double>(p.lines) * static_cast<double>(p.count);
    share(p.lines, deserved(work), [&](Index first, Index last) {
        for (Index line = first; line < last; ++line)
            body(line, p.at + line % p.known * p.count);
    });
    return true;
}

template <class U> bool take(const Places &p, const void *x, void *y) {
    return for_lines(p, [&](Index line, const Index *at) {
        const U *from = static_cast<const U *>(x) + line * p.length;
        U *to = static_cast<U *>(y) + line * p.count;
        for (Index i = 0; i < p.count; ++i)
            to[i] = from[at[i]];
    });
}

}  // namespace

template <class T> void pool(const Pooling<T> &pooling, Index images, PoolKernel<T> kernel) {
    const double work = entry * static_cast<double>(images) * static_cast<double>(pooling.entries + pooling.windows);
    share(images, deserved(work), [&](Index first, Index last) { kernel(pooling, first, last); });
}

bool take_at(const Places &places, Index size, const void *x, void *y) {
    switch (size) {
    case 1: return take<std::uint8_t>(places, x, y);
    case 4: return take<std::uint32_t>(places, x, y);
    case 8: return take<std::uint64_t>(places, x, y);
    case 16: return take<std::complex<double>>(places, x, y);
    default: return false;
    }
}

template <class T> bool add_at(const Places &p, Index unit, const T *x, T *y) {
    return for_lines(p, [&](Index line, const Index *at) {
        const T *from = x + line * p.count * unit;
        T *to = y + line * p.length * unit;
        for (Index i = 0; i < p.count; ++i)
            for (Index part = 0; part < unit; ++part)
                to[at[i] * unit + part] += from[i * unit + part];
    });
}

template void pool(const Pooling<float> &, Index, PoolKernel<float>);
template void pool(const Pooling<double> &, Index, PoolKernel<double>);
template void pool(const Pooling<std::int8_t> &, Index, PoolKernel<std::int8_t>);
template void pool(const Pooling<std::uint8_t> &, Index, PoolKernel<std::uint8_t>);
template bool add_at(const Places &, Index, const float *, float *);
template bool add_at(const Places &, Index, const double *, double *);

}  // namespace gradcheck
