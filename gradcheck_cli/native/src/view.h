// An array as the kernels see it.
#pragma once

#include <vector>

#include "product.h"
#include "stack.h"

namespace gradcheck {

// A pointer, sizes, and strides in bytes of an array whose reals take `real` bytes; strides are given in reals.  They
// are floats beside doubles if `narrow`.
struct View {
    void *data;
    bool complex, narrow;
    Index real, rank;
    const Index *sizes, *bytes;

    // Axes may be counted from the end: -1 is the last one.
    Index size(Index axis) const { return sizes[axis < 0 ? axis + rank : axis]; }
    Index stride(Index axis) const { return bytes[axis < 0 ? axis + rank : axis] / real; }
    template <class T> Numbers<T> numbers() const { return {data, narrow}; }
    template <class T> T *at() const { return static_cast<T *>(data); }
};

// The axes of c before its last `core`, along which a and b broadcast; a has `a_core` axes of its own behind
// them, b has `b_core`.
std::vector<BatchAxis> batch_axes(const View &a, Index a_core, const View &b, Index b_core, const View &c, Index core);

}  // namespace gradcheck
