// Boxes of a tensor: copied out of it one after the other, or written back into it.
#pragma once

#include <vector>

#include "product.h"

namespace gradcheck {

// `count` boxes of `lengths` in a tensor of `sizes` and `strides` in bytes.  Along each axis box p begins at
// `starts[axis][p]`, or, where that is null, at 0.
struct Boxes {
    std::vector<const Index *> starts;
    std::vector<Index> lengths, sizes, strides;
    Index count;
};

// Copies elements of `size` bytes between boxes and `dense`, where box after box lies: into the tensor if `back`, which
// boxes that overlap may not do.  False if no element has such a size, or a box lies partly outside.
bool copy_boxes(const Boxes &, Index size, char *tensor, char *dense, bool back);

}  // namespace gradcheck
