// Stacked matrix products.
#pragma once

#include "view.h"

namespace gradcheck {

// c = a b: (..., m, k) x (..., k, n) -> (..., m, n), leading axes broadcast; c is C-contiguous and nothing is empty.
template <class T> void matmul(const View &a, const View &b, const View &c);

}  // namespace gradcheck
