"""Operators that are misread in one detail, as an implementer may misread them: a table of changed forward kernels.

Each is an operator table for `ops=`, and a use of the operator in which the detail matters.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import gradcheck_cli as gc
from gradcheck_cli.op import Ops
from tests.forward.nets import SIZE, Use


@dataclass(frozen=True)
class Misread:
    """An operator, the place in its results, and the kernel that misreads it."""

    name: str
    use: Use
    ops: Ops


def attrs(name: str, use: Use, **wrong: Any) -> Misread:
    """Attributes that are read as something else, whatever they are."""
    right = gc.OPS[use.domain, use.op]
    if right.bind is not None:
        bind = right.bind
        op = replace(right, bind=lambda metadata, *arrays: bind({**metadata, **wrong}, *arrays))
    else:
        op = replace(right, forward=_around(right.forward, wrong), step=None)
    return Misread(name, use, {**gc.OPS, (use.domain, use.op): op})


def _around(right: Callable[..., Any], wrong: Mapping[str, Any]) -> Callable[..., Any]:
    @functools.wraps(right)
    def forward(*operands: Any, **metadata: Any) -> Any:
        return right(*operands, **{**metadata, **wrong})

    return forward


def kernel(name: str, use: Use, change: Callable[..., Any]) -> Misread:
    """Another kernel: it calls the right one, its first argument, with what it likes."""
    right = gc.OPS[use.domain, use.op]

    @functools.wraps(right.forward)
    def forward(*operands: Any, **metadata: Any) -> Any:
        return change(right.forward, *operands, **metadata)

    return Misread(name, use, {**gc.OPS, (use.domain, use.op): replace(right, forward=forward, step=None)})


_rng = np.random.default_rng(3)
_NONE, _SOME = np.zeros(SIZE), _rng.uniform(0.5, 1.5, SIZE)
_W = _rng.normal(size=(SIZE, SIZE, 3, 3)) * (9 * SIZE) ** -0.5
_SQUARE = _rng.normal(size=(SIZE, SIZE)) * SIZE**-0.5
_TWICE, _ODD = np.float32([1, 1, 2, 2]), np.float32([1, 1, 1.625, 1.625])
_PADS = np.int64([0, 0, 2, 2, 0, 0, 2, 2])
_GRID = _rng.uniform(-1.2, 1.2, (2, 5, 5, 2))
_INDICES = _rng.integers(0, SIZE, (2, SIZE, SIZE, SIZE))


def norm(op: str, *operands: Any, **more: Any) -> Use:
    return Use(op, operands or (_SOME, _NONE), more)


def pool(op: str, **more: Any) -> Use:
    return Use(op, (), {"kernel_shape": [3, 3], **more})


def resize(scales: Any = _TWICE, **more: Any) -> Use:
    return Use("Resize", (None, scales), more)


_TWO = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
NORMS = [
    attrs("LayerNormalization: epsilon 1e-3", norm("LayerNormalization"), epsilon=1e-3),
    attrs("LayerNormalization: epsilon 1e-4", norm("LayerNormalization"), epsilon=1e-4),
    attrs("BatchNormalization: epsilon 1e-3", norm("BatchNormalization", _SOME, _NONE, _NONE, _SOME), epsilon=1e-3),
    attrs("BatchNormalization: epsilon 1e-4", norm("BatchNormalization", _SOME, _NONE, _NONE, _SOME), epsilon=1e-4),
    attrs("InstanceNormalization: epsilon 1e-3", norm("InstanceNormalization"), epsilon=1e-3),
    attrs("GroupNormalization: epsilon 1e-3", norm("GroupNormalization", num_groups=4), epsilon=1e-3),
    attrs("LayerNormalization: another axis", norm("LayerNormalization", _SOME), axis=-2),
    attrs("LRN: size 5", Use("LRN", (), {"size": 3, "alpha": 0.5}), size=5),
    attrs("LRN: bias 1.001", Use("LRN", (), {"size": 3, "alpha": 0.5, "bias": 1.0}), bias=1.001),
    attrs("LpNormalization: p 1", Use("LpNormalization"), p=1),
]
POOLS = [
    attrs("AveragePool: count_include_pad", pool("AveragePool", **_TWO), count_include_pad=1),
    attrs("AveragePool: padding left out", pool("AveragePool", **_TWO, count_include_pad=1), count_include_pad=0),
    attrs("AveragePool: ceil_mode", pool("AveragePool", strides=[2, 2]), ceil_mode=1),
    attrs("MaxPool: ceil_mode", pool("MaxPool", strides=[2, 2], ceil_mode=1), ceil_mode=0),
    attrs("MaxPool: one border pixel", pool("MaxPool", **_TWO), pads=(0, 1, 2, 1)),
    attrs("Conv: one border pixel", Use("Conv", (_W,), {"pads": [1, 1, 1, 1]}), pads=(0, 1, 2, 1)),
    attrs("Conv: dilations", Use("Conv", (_W,), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}), dilations=(1, 1),
          pads=(1, 1, 1, 1)),
    attrs("ConvTranspose: one border pixel", Use("ConvTranspose", (_W,), {"pads": [1, 1, 1, 1]}), pads=(0, 1, 2, 1)),
    attrs("ConvTranspose: SAME_LOWER", Use("ConvTranspose", (_W,), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
          auto_pad="SAME_LOWER"),
]  # fmt: skip
SAMPLING = [
    attrs("Resize: asymmetric", resize(mode="linear"), coordinate_transformation_mode="asymmetric"),
    attrs("Resize: align_corners", resize(_ODD, mode="linear"), coordinate_transformation_mode="align_corners"),
    attrs("Resize: nearest ceil at ties", resize(np.float32([1, 1, 0.5, 0.5])), nearest_mode="ceil"),
    attrs("Resize: nearest ceil", resize(_ODD), nearest_mode="ceil"),
    attrs("Resize: cubic -0.5", resize(mode="cubic"), cubic_coeff_a=-0.5),
    attrs("Resize: exclude_outside", resize(mode="cubic"), exclude_outside=1),
    attrs("GridSample: align_corners", Use("GridSample", (_GRID,)), align_corners=1),
    attrs("GridSample: padding border", Use("GridSample", (_GRID,)), padding_mode="border"),
    attrs("Pad: edge for reflect", Use("Pad", (_PADS,), {"mode": "reflect"}), mode="edge"),
]
ENTRIES = [
    attrs("Gelu: tanh for erf", Use("Gelu"), approximate="tanh"),
    attrs("Gelu: erf for tanh", Use("Gelu", (), {"approximate": "tanh"}), approximate="none"),
    kernel("Erf: by tanh", Use("Erf"), lambda right, x: np.tanh(1.1283791 * x * (1 + 0.0894 * x * x))),
    attrs("Elu: alpha 1.01", Use("Elu"), alpha=1.01),
    attrs("LeakyRelu: slope 0.0101", Use("LeakyRelu"), alpha=0.0101),
    attrs("HardSigmoid: slope 1/6", Use("HardSigmoid"), alpha=1 / 6),
    attrs("Selu: gamma", Use("Selu"), gamma=1.0508),
    attrs("Celu: alpha 2", Use("Celu"), alpha=2.0),
    kernel("Round: half up", Use("Round", before=("Ceil", "Halved")), lambda right, x: np.floor(x + 0.5)),
    kernel("Mod: sign of the divisor", Use("Mod", (np.float64(0.75),), {"fmod": 1}),
           lambda right, a, b, **_: a - np.floor(np.real(a) / np.real(b)) * b),
]  # fmt: skip
AXES = [
    attrs("Softmax: an axis of equal size", Use("Softmax"), axis=-2),
    attrs("LogSoftmax: an axis of equal size", Use("LogSoftmax", (), {"axis": 1}), axis=2),
    attrs("ReduceMean: an axis of equal size", Use("ReduceMean", (np.int64([-1]),)), axes=(-2,)),
    attrs("ReduceL2: an axis of equal size", Use("ReduceL2", (np.int64([1]),)), axes=(2,)),
    attrs("Transpose: an inverse", Use("Transpose", (), {"perm": [0, 2, 3, 1]}), perm=(0, 3, 1, 2)),
    attrs("CumSum: exclusive", Use("CumSum", (np.int64(2),)), exclusive=1),
    attrs("CumSum: an axis of equal size", Use("CumSum", (np.int64(2),)), axis=3),
    attrs("DepthToSpace: CRD", Use("DepthToSpace", (), {"blocksize": 2}), mode="CRD"),
    attrs("GatherElements: an axis of equal size", Use("GatherElements", (_INDICES,), {"axis": 2}), axis=3),
    attrs("Gather: an axis of equal size", Use("Gather", (_rng.integers(0, SIZE, SIZE),), {"axis": 2}), axis=3),
    attrs("Trilu: the other triangle", Use("Trilu"), upper=0),
    attrs("TopK: the smallest", Use("TopK", (np.int64([3]),), outputs=2), largest=0),
    kernel("Einsum: transposed", Use("Einsum", (_SQUARE,), {"equation": "abcd,de->abce"}),
           lambda right, a, b, **how: right(a, np.swapaxes(b, -1, -2), **how)),
    kernel("PRelu: a slope for each column", Use("PRelu", (_SOME.reshape(SIZE, 1, 1),)),
           lambda right, x, s: right(x, s.reshape(1, 1, SIZE))),
    kernel("MatMul: the other factor transposed", Use("MatMul", (_SQUARE,)), lambda right, a, b: right(a, b.T)),
]  # fmt: skip
MISREADS = [*NORMS, *POOLS, *SAMPLING, *ENTRIES, *AXES]
