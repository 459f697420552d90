"""Rewrites nodes of older opsets in the newest opset, so that the rest of the program knows only that one.

`CHANGES` lists the operators that changed, the opset of the change, and the adapter that rewrites the old form.
An adapter gives the newest form at once, so of several changes only the first that applies is used.  Here are the
adapters of forms that ended with opset 7 or before, and of experimental operators; the others are in `adapters.py`.
The table stands at the end, behind the adapters that it names.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from gradcheck_cli.errors import ModelError, UnsupportedError
from gradcheck_cli.formats.onnx import adapters as to
from gradcheck_cli.formats.onnx.adapters import (
    Adapter,
    Site,
    attributes_as_inputs,
    batch_norm_spatial,
    changed,
    dropout_float_mask,
    float_like,
    new,
    pad_widths,
    split_sizes,
    upsample,
)
from gradcheck_cli.formats.onnx.opset import NEWEST, signature
from gradcheck_cli.graph import Node

ALWAYS = NEWEST + 1  # in place of an opset: rewrites the operator in every opset
EXPERIMENTS = ("Affine", "Crop", "ImageScaler", "ParametricSoftplus", "ScaledTanh")  # gone since opset 10


@dataclass(frozen=True, slots=True)
class OpsetChange:
    """A change of operators in opset `before`; `rewrite` brings nodes of earlier opsets to the newest form."""

    operators: tuple[str, ...]
    before: int
    rewrite: Adapter


def adapt(node: Node, opset: int, site: Site) -> list[Node]:
    """Nodes of the newest opset that compute what `node` computes in `opset`."""
    if node.domain or (node.op not in EXPERIMENTS and signature(node.op, opset) is None):
        return [node]  # some files use operators that their opset does not have yet
    for change in _BY_OPERATOR.get(node.op, ()):
        if opset < change.before:
            return change.rewrite(node, site)
    return [node]


def without(*names: str) -> Adapter:
    """Drops attributes that are redundant."""
    return lambda node, site: [changed(node, drop=names)]


def with_defaults(**attrs: object) -> Adapter:
    """Writes out attributes whose defaults have changed since."""
    return lambda node, site: [changed(node, attrs={k: v for k, v in attrs.items() if k not in node.attrs})]


def broadcast_by_axis(node: Node, site: Site) -> list[Node]:
    """Arithmetic, comparisons and logic before 7: with `axis`, the first dimension of B is that dimension of A."""
    bare, axis = changed(node, drop=("axis", "broadcast")), node.attrs.get("axis")
    if axis is None or not node.attrs.get("broadcast"):
        return [bare]
    before, aligned = _aligned(node, axis, site)
    return [*before, replace(bare, inputs=(node.inputs[0], aligned))]


def slope_of_channels(node: Node, site: Site) -> list[Node]:
    """PRelu before 7: a slope for each channel, which is axis 1."""
    before, aligned = _aligned(node, 1, site)
    return [*before, changed(node, inputs=(node.inputs[0], aligned))]


def batch_norm_is_test(node: Node, site: Site) -> list[Node]:
    """BatchNormalization before 7: training unless `is_test`, whatever the number of outputs."""
    modern = changed(node, drop=("is_test",))
    if node.attrs.get("is_test"):
        return batch_norm_spatial(replace(modern, outputs=node.outputs[:1]), site)
    outputs = [*node.outputs, "", ""][: max(3, len(node.outputs))]
    return batch_norm_spatial(replace(modern, outputs=tuple(n or site.fresh("statistics") for n in outputs)), site)


def dropout_is_test(node: Node, site: Site) -> list[Node]:
    """Dropout before 7: entries are dropped unless `is_test`."""
    dropout, *rest = dropout_float_mask(changed(node, drop=("is_test",)), site)
    if node.attrs.get("is_test"):
        return [dropout, *rest]
    ratio = dropout.inputs[1] if len(dropout.inputs) > 1 else ""
    training = site.constant("training_mode", True, np.bool_)
    return [changed(dropout, inputs=(dropout.inputs[0], ratio, training)), *rest]


def power_of_norm(node: Node, site: Site) -> list[Node]:
    """LpPool and GlobalLpPool before 2: a power that need not be a whole number."""
    power = node.attrs.get("p", 2.0)
    if power != int(power):
        raise UnsupportedError(f"{site.where}: p={power:g} is not supported; it has to be a whole number.")
    return [changed(node, attrs={"p": int(power)})]


def cast_to_name(node: Node, site: Site) -> list[Node]:
    """Cast before 6: the type by its name."""
    number = dict(TensorProto.DataType.items()).get(node.attrs["to"].upper())
    if number is None:
        raise ModelError(f"{site.where}: {node.attrs['to']!r} is no type of a tensor.")
    return [changed(node, attrs={"to": number})]


def pad_paddings(node: Node, site: Site) -> list[Node]:
    """Pad before 2: the attribute `pads` was called `paddings`."""
    return pad_widths(changed(node, attrs={"pads": node.attrs["paddings"]}, drop=("paddings",)), site)


def reshape_shape(node: Node, site: Site) -> list[Node]:
    """Reshape before 5: the shape is an attribute; an empty one makes a scalar."""
    if node.attrs.get("shape", ()):
        return attributes_as_inputs("shape")(node, site)
    shape = site.constant("shape", np.zeros(0, np.int64))
    return [changed(node, inputs=(node.inputs[0], shape), drop=("shape",))]


def split_sizes_of_any_type(node: Node, site: Site) -> list[Node]:
    """Split before 2: sizes may be an input, of the same type as the tensor that is split."""
    if len(node.inputs) < 2 or not node.inputs[1]:
        return split_sizes(node, site)
    cast, sizes = _as_int(node, node.inputs[1], site)
    return [cast, *split_sizes(changed(node, inputs=(node.inputs[0], sizes), drop=("split",)), site)]


def tile_along_axis(node: Node, site: Site) -> list[Node]:
    """Tile before 6: a number of copies along one axis; number and axis are tensors."""
    x, *numbers = node.inputs
    hints = ("tiles", "axis", "shape", "rank", "values", "row", "repeats")
    tiles, axis, shape, rank, values, row, repeats = (site.fresh(f"{node.outputs[0]}/{hint}") for hint in hints)
    one, flat = site.constant("one", [1]), site.constant("flat", [-1])
    casts = [_as_int(node, name, site) for name in numbers]
    return [
        *(cast for cast, _ in casts),
        *(new(node, "Reshape", (c, flat), y) for (_, c), y in zip(casts, (tiles, axis), strict=True)),
        new(node, "Shape", (x,), shape),
        new(node, "Size", (shape,), rank),
        new(node, "Concat", (one, tiles), values, axis=0),
        new(node, "OneHot", (axis, rank, values), row),
        new(node, "Reshape", (row, flat), repeats),
        changed(node, inputs=(x, repeats)),
    ]


def upsample_by_two_scales(node: Node, site: Site) -> list[Node]:
    """Upsample before 7: images only, with a scale for each side; bilinear was linear."""
    scales = (1.0, 1.0, node.attrs["height_scale"], node.attrs["width_scale"])
    mode = {"bilinear": "linear"}.get(node.attrs.get("mode", "nearest"), node.attrs.get("mode", "nearest"))
    return upsample(changed(node, attrs={"scales": scales, "mode": mode}, drop=("height_scale", "width_scale")), site)


def affine(node: Node, site: Site) -> list[Node]:
    """Affine: alpha * x + beta."""
    before: list[Node] = []
    alpha, beta = (_constant(node, name, default, site, before) for name, default in (("alpha", 1.0), ("beta", 0.0)))
    scaled = site.fresh(f"{node.outputs[0]}/scaled")
    return [
        *before,
        new(node, "Mul", (node.inputs[0], alpha), scaled),
        new(node, "Add", (scaled, beta), node.outputs[0]),
    ]


def image_scaler(node: Node, site: Site) -> list[Node]:
    """ImageScaler: scale * x, and a bias for each channel of images."""
    before: list[Node] = []
    channels = np.reshape(node.attrs.get("bias", (0.0,)), (-1, 1, 1))
    biased = changed(node, attrs={"bias": channels})
    scale, bias = _constant(biased, "scale", 1.0, site, before), _constant(biased, "bias", 0.0, site, before)
    scaled = site.fresh(f"{node.outputs[0]}/scaled")
    return [
        *before,
        new(node, "Mul", (node.inputs[0], scale), scaled),
        new(node, "Add", (scaled, bias), node.outputs[0]),
    ]


def of_scaled_input(op: str) -> Adapter:
    """ScaledTanh and ParametricSoftplus: alpha * f(beta * x)."""

    def to(node: Node, site: Site) -> list[Node]:
        before: list[Node] = []
        alpha, beta = (_constant(node, name, 1.0, site, before) for name in ("alpha", "beta"))
        scaled, inner = (site.fresh(f"{node.outputs[0]}/{hint}") for hint in ("scaled", "inner"))
        return [
            *before,
            new(node, "Mul", (node.inputs[0], beta), scaled),
            new(node, op, (scaled,), inner),
            new(node, "Mul", (inner, alpha), node.outputs[0]),
        ]

    return to


def crop(node: Node, site: Site) -> list[Node]:
    """Crop: images without a border (left, top, right, bottom); `scale` gives the number of rows and columns to keep."""
    border, size = node.attrs.get("border", ()), node.attrs.get("scale", ())
    if len(border) != 4 or len(size) not in (0, 2) or min(border) < 0:
        raise ModelError(f"{site.where}: a border has four sizes and a scale two, not {border} and {size}.")
    left, top, right, bottom = border
    ends = (
        (top + size[0], left + size[1]) if size else tuple(-n if n else np.iinfo(np.int64).max for n in (bottom, right))
    )
    sliced = {"starts": (top, left), "ends": ends, "axes": (2, 3)}
    return attributes_as_inputs("starts", "ends", "axes")(
        replace(node, op="Slice", inputs=node.inputs[:1], attrs=sliced), site
    )


def _aligned(node: Node, axis: int, site: Site) -> tuple[list[Node], str]:
    """Appends dimensions of size 1 to input B until its first dimension lines up with dimension `axis` of A.

    Gives the nodes for that and the name of the aligned tensor.
    """
    a, b = node.inputs
    rank_a, rank_b = site.rank(a), site.rank(b)
    if rank_a is None or rank_b is None:
        return _aligned_at_run_time(node, axis, site)
    behind = rank_a - axis % max(rank_a, 1) - rank_b
    if behind <= 0:
        return [], b
    aligned = site.fresh(f"{b}/aligned")
    axes = site.constant("axes", range(rank_b, rank_b + behind))
    return [new(node, "Unsqueeze", (b, axes), aligned)], aligned


def _aligned_at_run_time(node: Node, axis: int, site: Site) -> tuple[list[Node], str]:
    """The same by nodes that compute the ranks, which the file does not declare."""
    a, b = node.inputs
    hints = ("shape_a", "rank_a", "shape_b", "rank_b", "left", "behind", "some", "count", "ones", "shape", "aligned")
    shape_a, rank_a, shape_b, rank_b, left, behind, some, count, ones, shape, aligned = (
        site.fresh(f"{b}/{hint}") for hint in hints
    )
    zero, one, flat = site.constant("zero", 0), site.constant("one", 1), site.constant("flat", [1])
    start = site.constant("axis", abs(axis))
    return [
        new(node, "Shape", (a,), shape_a),
        new(node, "Size", (shape_a,), rank_a),
        new(node, "Shape", (b,), shape_b),
        new(node, "Size", (shape_b,), rank_b),
        new(node, "Sub", (rank_a, start), left) if axis >= 0 else new(node, "Identity", (start,), left),
        new(node, "Sub", (left, rank_b), behind),
        new(node, "Max", (behind, zero), some),
        new(node, "Reshape", (some, flat), count),
        new(node, "Expand", (one, count), ones),
        new(node, "Concat", (shape_b, ones), shape, axis=0),
        new(node, "Reshape", (b, shape), aligned, allowzero=1),
    ], aligned


def _as_int(node: Node, name: str, site: Site) -> tuple[Node, str]:
    """Casts a number that a tensor of floats holds to int64."""
    cast = site.fresh(f"{name}/int64")
    return new(node, "Cast", (name,), cast, to=TensorProto.INT64), cast


def _constant(node: Node, name: str, default: float, site: Site, before: list[Node]) -> str:
    return float_like(changed(node, attrs={name: node.attrs.get(name, default)}), name, site, before)


_REDUCED_TO = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
_REDUCTIONS = tuple(f"Reduce{kind}" for kind in _REDUCED_TO)
_OF_TWO = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
CHANGES = (
    OpsetChange(_OF_TWO, 7, broadcast_by_axis),
    OpsetChange(("Affine",), ALWAYS, affine),
    OpsetChange(("BatchNormalization",), 7, batch_norm_is_test),
    OpsetChange(("BatchNormalization",), 9, to.batch_norm_spatial),
    OpsetChange(("BatchNormalization",), 14, to.batch_norm_training),
    OpsetChange(("Cast",), 6, cast_to_name),
    OpsetChange(("Clip",), 11, to.clip_bounds),
    OpsetChange(("Concat",), 4, with_defaults(axis=1)),
    OpsetChange(("Crop",), ALWAYS, crop),
    OpsetChange(("DFT",), 20, to.dft_axis),
    OpsetChange(("Dropout",), 7, dropout_is_test),
    OpsetChange(("Dropout",), 10, to.dropout_float_mask),
    OpsetChange(("Dropout",), 12, to.dropout_ratio),
    OpsetChange(("GRU", "LSTM", "RNN"), 7, without("output_sequence")),
    OpsetChange(("GlobalLpPool", "LpPool"), 2, power_of_norm),
    OpsetChange(("Gemm",), 7, without("broadcast")),
    OpsetChange(("GridSample",), 20, to.grid_sample_mode),
    OpsetChange(("GroupNormalization",), 21, to.group_norm_by_group),
    OpsetChange(("ImageScaler",), ALWAYS, image_scaler),
    OpsetChange(("PRelu",), 7, slope_of_channels),
    OpsetChange(("Pad",), 2, pad_paddings),
    OpsetChange(("Pad",), 11, to.pad_widths),
    OpsetChange(("ParametricSoftplus",), ALWAYS, of_scaled_input("Softplus")),
    OpsetChange(("ReduceSum", "Squeeze", "Unsqueeze"), 13, to.attributes_as_inputs("axes")),
    OpsetChange(_REDUCTIONS, 18, to.attributes_as_inputs("axes")),
    OpsetChange(("Reshape",), 5, reshape_shape),
    OpsetChange(("Resize",), 11, to.resize_by_corners),
    OpsetChange(("Resize",), 13, to.resize_half_pixel),
    OpsetChange(("Resize",), ALWAYS, to.resize_inputs),
    OpsetChange(("RoiAlign",), 16, to.roi_align_corners),
    OpsetChange(("ScaledTanh",), ALWAYS, of_scaled_input("Tanh")),
    OpsetChange(("Scan",), 9, to.scan_of_batches),
    OpsetChange(("Scatter",), ALWAYS, to.scatter),
    OpsetChange(("Selu",), 6, with_defaults(alpha=1.673200011253357, gamma=1.0506999492645264)),
    OpsetChange(("Slice",), 10, to.attributes_as_inputs("starts", "ends", "axes")),
    OpsetChange(("Softmax", "LogSoftmax", "Hardmax"), 13, to.softmax_of_matrix),
    OpsetChange(("Split",), 2, split_sizes_of_any_type),
    OpsetChange(("Split",), 18, to.split_sizes),
    OpsetChange(("Tile",), 6, tile_along_axis),
    OpsetChange(("TopK",), 10, to.attributes_as_inputs("k")),
    OpsetChange(("Upsample",), 7, upsample_by_two_scales),
    OpsetChange(("Upsample",), ALWAYS, to.upsample),
)
_BY_OPERATOR = {op: [c for c in CHANGES if op in c.operators] for change in CHANGES for op in change.operators}
