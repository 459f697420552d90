"""Whether two models compute the same: outputs, and gradients of them."""
