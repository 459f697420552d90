"""Matrix products and convolutions: the only door to the native kernels.

`matmul`, `conv` and `conv_transpose` run in C++ for float32, float64, complex64 and complex128 and in
NumPy (`reference`) for everything else, or everywhere if `GRADCHECK_KERNELS=numpy`.  The kernels release
the GIL and thread by themselves, with `GRADCHECK_NUM_THREADS` threads (default: all cores), except
within `single_threaded()`.  `GRADCHECK_ISA` (avx512, avx2, baseline) overrules the instruction set.
"""

from __future__ import annotations

from .products import conv, conv_transpose, matmul
from .selection import info, single_threaded, use

__all__ = ["conv", "conv_transpose", "info", "matmul", "single_threaded", "use"]
