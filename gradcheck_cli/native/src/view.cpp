#include "view.h"

namespace gradcheck {
namespace {

// The stride along the axis-th of `lead` axes of the result, for an operand whose own last `core` do not count.
Index lead_stride(const View &operand, Index core, Index lead, Index axis) {
    const Index own = operand.rank - core - (lead - axis);
    return own < 0 || operand.size(own) == 1 ? 0 : operand.stride(own);
}

}  // namespace

std::vector<BatchAxis> batch_axes(const View &a, Index a_core, const View &b, Index b_core, const View &c, Index core) {
    const Index lead = c.rank - core;
    std::vector<BatchAxis> axes;
    for (Index axis = 0; axis < lead; ++axis)
        axes.push_back({c.size(axis), lead_stride(a, a_core, lead, axis), lead_stride(b, b_core, lead, axis), c.stride(axis)});
    return axes;
}

}  // namespace gradcheck
