"""Products of many shapes, dtypes and strides: the native kernels beside NumPy's.

python -m benchmarks.kernels
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from benchmarks.table import Table, write
from benchmarks.timing import in_turns, ratio, repeated
from gradcheck_cli.native.products import matmul

Operands = tuple[NDArray[Any], NDArray[Any]]
LARGE = [(1, 1024, 1024, 1024), (1, 512, 512, 512), (1, 2048, 256, 1024), (1, 300, 3000, 300)]
SMALL = [
    (2000, 8, 8, 8),
    (2000, 16, 16, 16),
    (1000, 32, 32, 32),
    (200, 64, 64, 64),
    (500, 7, 50, 13),
    (100, 100, 30, 50),
]
ZEROS = (3, -5)  # zero points of the integers
SKINNY = [(1000, 1, 784, 256), (1, 4, 1024, 1024), (256, 3, 64, 64), (1, 1024, 1024, 4)]


def operands(dtype: Any, count: int, m: int, k: int, n: int) -> Operands:
    """A stack of left matrices, and as many right ones or, for skinny products, a single one."""
    rng = np.random.default_rng(0)
    left, right = (count, m, k), (k, n) if min(m, n) < 8 else (count, k, n)
    return _drawn(rng, left, dtype), _drawn(rng, right, dtype)


def _drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    if np.dtype(dtype).kind == "c":
        return np.asarray(rng.normal(size=shape) + 1j * rng.normal(size=shape), dtype)
    return rng.normal(size=shape).astype(dtype)


def integers(left: Any, right: Any, size: int) -> Operands:
    """Square matrices of any numbers of 8 bits."""
    rng, shape = np.random.default_rng(0), (size, size)
    a, b = (rng.integers(np.iinfo(d).min, np.iinfo(d).max + 1, shape).astype(d) for d in (left, right))
    return a, b


def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """The product by the native kernels; that of integers less their zero points as MatMulInteger has it."""
    if a.dtype.kind not in "iu":
        return matmul(a, b)
    return matmul(a.astype(np.float64) - ZEROS[0], b.astype(np.float64) - ZEROS[1]).astype(np.int32)


def by_numpy(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """The same by NumPy alone."""
    if a.dtype.kind not in "iu":
        return np.asarray(np.matmul(a, b))
    return np.asarray(np.matmul(a.astype(np.int32) - ZEROS[0], b.astype(np.int32) - ZEROS[1]))


def groups() -> Iterator[tuple[str, list[Operands]]]:
    """Families of products whose ratios are averaged."""
    for dtype in (np.float64, np.float32, np.complex128):
        for name, shapes in (("large", LARGE), ("small, stacked", SMALL), ("skinny", SKINNY)):
            yield f"{np.dtype(dtype).name} {name}", [operands(dtype, *shape) for shape in shapes]
    for dtype in (np.float16, ml_dtypes.bfloat16):
        yield f"{np.dtype(dtype).name}", [operands(dtype, *shape) for shape in ((1, 128, 128, 128), (1, 256, 256, 256))]
    for left, right in ((np.int8, np.int8), (np.uint8, np.int8)):
        yield f"{np.dtype(left).name} by {np.dtype(right).name}", [integers(left, right, size) for size in (128, 256)]
    turned = [(a.swapaxes(-1, -2), b) for a, b in (operands(np.float64, *s) for s in LARGE[:2])]
    yield "float64 transposed", turned


def tables(quick: bool = False) -> Iterator[Table]:
    """One table: rates and ratios, geometric means over the products of each family."""
    table = Table("Product kernels", ("products", "GF/s", "NumPy GF/s", "faster than NumPy"))
    for name, group in groups():
        rates = [compared(*pair) for pair in (group[-1:] if quick else group)]
        table.add(name, *(statistics.geometric_mean(column) for column in zip(*rates, strict=True)))
    yield table


def compared(a: NDArray[Any], b: NDArray[Any]) -> tuple[float, float, float]:
    """Billions of operations a second, NumPy's, and the ratio of times."""
    ours, numpy = repeated(lambda: product(a, b)), repeated(lambda: by_numpy(a, b))
    times = in_turns({"ours": ours, "numpy": numpy})
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    work = (8 if a.dtype.kind == "c" else 2) * math.prod(lead) * a.shape[-2] * a.shape[-1] * b.shape[-1] / 1e9
    rates = (work * run.calls / statistics.median(times[n]) for n, run in (("ours", ours), ("numpy", numpy)))  # type: ignore[attr-defined]
    a_call = {n: [t / run.calls for t in times[n]] for n, run in (("ours", ours), ("numpy", numpy))}  # type: ignore[attr-defined]
    return (*rates, ratio(a_call, "numpy", "ours"))


if __name__ == "__main__":
    write(*tables())
