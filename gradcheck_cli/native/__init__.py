"""Matrix products, convolutions, pools and fused elementwise operations: the interface to the compiled kernels.

They run in C++ for float32, float64, complex64 and complex128 (extrema also for int8 and uint8) and in
NumPy (`reference`) for everything else, or everywhere if `GRADCHECK_KERNELS=numpy`.  The kernels release
the GIL and thread by themselves, with `GRADCHECK_NUM_THREADS` threads (default: all cores), except
within `single_threaded()`.  `GRADCHECK_ISA` (avx512, avx2, baseline) overrules the instruction set.
"""

from __future__ import annotations

from .elementwise import NAMES, by_numpy, fused
from .pools import added, cut_out, maxima, put_back, sums, taken, winners
from .products import along_lines, conv, conv_transpose, matmul
from .selection import info, single_threaded, use

__all__ = [
    "NAMES", "added", "along_lines", "by_numpy", "conv", "conv_transpose", "cut_out", "fused", "info", "matmul", "maxima",
    "put_back", "single_threaded", "sums", "taken", "use", "winners",
]  # fmt: skip
