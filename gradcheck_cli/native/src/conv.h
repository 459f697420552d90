// Convolution as a product: the kernel times the windows of the image.
#pragma once

#include "view.h"

namespace gradcheck {

// Cross-correlation without padding: x (..., N, C, *space), w (..., M, C / group, *kernel), y (..., N, M, *out).
// Leading axes of x and w broadcast; nothing is empty.
template <class T>
void conv(const View &x, const View &w, const View &y, const std::vector<Index> &strides, const std::vector<Index> &dilations, Index group);

}  // namespace gradcheck
