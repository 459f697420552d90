"""Where the gradient is checked: targets, sizes, values."""
