// Pools: sums and maxima over windows of images, their transposes, and entries at given places.
//
// Images are dense and many: whatever lies before their spatial axes is one long axis.
#pragma once

#include "product.h"

namespace gradcheck {

constexpr Index most_axes = 8;  // of an image

// The windows along one axis of `length` entries: `taps` of them, `dilation` apart, seen by each of `count` windows,
// which start every `stride` entries, the first `begin` entries before the axis.  What lies outside is not seen.
struct Windows {
    Index length, taps, stride, begin, dilation, count;
};

// Images of `entries` numbers, of which `windows` are made or the other way round; complex ones count as two (`unit`).
template <class T> struct Pooling {
    const T *x;
    T *y;
    Index *place;  // of winners alone: where in its image each lies
    const Windows *axes;
    Index rank, unit, entries, windows;
};

// A kernel of an instruction set: does images [first, last).
template <class T> using PoolKernel = void (*)(const Pooling<T> &, Index first, Index last);

template <class T> void pool(const Pooling<T> &, Index images, PoolKernel<T> kernel);

// `lines` lines of `length` elements, and as many of `count` that lie `at` places of the other one; the places are
// those of `known` lines, over and over.
struct Places {
    const Index *at;
    Index known, lines, length, count;
};

// Elements of `size` bytes at their places in x; false if no element has such a size, or a place lies outside.
bool take_at(const Places &, Index size, const void *x, void *y);

// Adds elements of `unit` numbers to those at their places in y; false if a place lies outside.
template <class T> bool add_at(const Places &, Index unit, const T *x, T *y);

}  // namespace gradcheck
