"""Adapters of operators from opset 8 on, one function for each change, and the tools they are written with.

An adapter takes a node in an old form and its `Site`, which knows the tensors around it, and gives nodes in the
newest form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.graph import Array, Graph, Node

_NONE: Mapping[str, Any] = MappingProxyType({})


class Site(Protocol):
    """The surroundings of a node: tells facts about tensors, gives new names and constants."""

    @property
    def where(self) -> str:
        """The node's name in messages."""

    def fresh(self, hint: str) -> str:
        """A new tensor name."""

    def constant(self, hint: str, value: Any, dtype: DTypeLike = np.int64) -> str:
        """The name of a new constant."""

    def value(self, name: str) -> Array | None:
        """The value of a constant; None for other tensors."""

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """The float dtype of a tensor; None where it is not certain."""

    def rank(self, name: str) -> int | None:
        """The number of dimensions; None where it is not certain."""

    def is_read(self, name: str) -> bool:
        """True if a node or an output of the file reads the tensor."""


Adapter: TypeAlias = Callable[[Node, Site], list[Node]]


def changed(
    node: Node,
    *,
    inputs: tuple[str, ...] | None = None,
    outputs: tuple[str, ...] | None = None,
    attrs: Mapping[str, Any] = _NONE,
    drop: tuple[str, ...] = (),
) -> Node:
    """The node with other inputs, outputs or attributes, and without the attributes in `drop`."""
    return replace(
        node,
        inputs=node.inputs if inputs is None else inputs,
        outputs=node.outputs if outputs is None else outputs,
        attrs={**{name: value for name, value in node.attrs.items() if name not in drop}, **attrs},
    )


def new(node: Node, op: str, inputs: tuple[str, ...], output: str, **attrs: Any) -> Node:
    """A node that takes the place of `node` together with others."""
    name = f"{node.name}/{op}" if node.name else ""
    return Node(op, inputs, (output,), attrs, "", name, node.metadata)


def int_input(node: Node, name: str, site: Site) -> str:
    """An integer attribute as a constant; "" where it is absent or empty."""
    value = node.attrs.get(name, ())
    return "" if value == () else site.constant(name, np.atleast_1d(np.asarray(value, np.int64)))


def float_like(node: Node, name: str, site: Site, before: list[Node]) -> str:
    """A float attribute as a constant of the first input's dtype; "" where it is absent."""
    if name not in node.attrs:
        return ""
    dtype = site.dtype(node.inputs[0])
    constant = site.constant(name, node.attrs[name], dtype or np.float32)
    if dtype is not None:
        return constant
    cast = site.fresh(f"{constant}/cast")
    before.append(new(node, "CastLike", (constant, node.inputs[0]), cast))
    return cast


def trimmed(names: Iterable[str]) -> tuple[str, ...]:
    """The names without empty ones at the end."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return tuple(kept)


def attributes_as_inputs(*names: str) -> Adapter:
    """Turns integer attributes into inputs, in this order after the first input."""

    def to(node: Node, site: Site) -> list[Node]:
        added = [int_input(node, name, site) for name in names]
        return [changed(node, inputs=trimmed((*node.inputs[:1], *added)), drop=names)]

    return to


def split_sizes(node: Node, site: Site) -> list[Node]:
    """Split before 18: without sizes, each output gets an equal part."""
    if node.attrs.get("split") or len(trimmed(node.inputs)) > 1:
        sizes = node.inputs[1:] or (int_input(node, "split", site),)
        return [changed(node, inputs=(node.inputs[0], *sizes), drop=("split",))]
    return [changed(node, inputs=node.inputs[:1], attrs={"num_outputs": len(node.outputs)}, drop=("split",))]


def clip_bounds(node: Node, site: Site) -> list[Node]:
    """Clip before 11: bounds are attributes."""
    before: list[Node] = []
    bounds = [float_like(node, name, site, before) for name in ("min", "max")]
    return [*before, changed(node, inputs=trimmed((*node.inputs, *bounds)), drop=("min", "max"))]


def pad_widths(node: Node, site: Site) -> list[Node]:
    """Pad before 11: widths and value are attributes."""
    before: list[Node] = []
    value = float_like(node, "value", site, before) if node.attrs.get("value") else ""
    inputs = (node.inputs[0], int_input(node, "pads", site), value)
    return [*before, changed(node, inputs=trimmed(inputs), drop=("pads", "value"))]


def dropout_ratio(node: Node, site: Site) -> list[Node]:
    """Dropout before 12: always the identity, with a ratio that only training would use."""
    ratio = site.constant("ratio", node.attrs["ratio"], np.float32) if "ratio" in node.attrs else ""
    return [changed(node, inputs=trimmed((*node.inputs, ratio)), drop=("ratio",))]


def dropout_float_mask(node: Node, site: Site) -> list[Node]:
    """Dropout before 10: the mask has the dtype of the data."""
    [dropout] = dropout_ratio(node, site)
    if len(trimmed(node.outputs)) < 2:
        return [dropout]
    mask = site.fresh(f"{node.outputs[1]}/bool")
    outputs = (node.outputs[0], mask)
    return [
        replace(dropout, outputs=outputs),
        new(node, "CastLike", (mask, node.inputs[0]), node.outputs[1]),
    ]


def softmax_of_matrix(node: Node, site: Site) -> list[Node]:
    """Softmax, LogSoftmax and Hardmax before 13: over all axes from `axis` on, flattened into one."""
    axis, rank = node.attrs.get("axis", 1), site.rank(node.inputs[0])
    if axis == -1 or (rank is not None and axis == rank - 1):
        return [changed(node, attrs={"axis": -1})]
    x, y = node.inputs[0], node.outputs[0]
    matrix, result, shape = (site.fresh(f"{y}/{hint}") for hint in ("matrix", "result", "shape"))
    return [
        new(node, "Flatten", (x,), matrix, axis=axis),
        new(node, node.op, (matrix,), result, axis=-1),
        new(node, "Shape", (x,), shape),
        new(node, "Reshape", (result, shape), y, allowzero=1),
    ]


def batch_norm_training(node: Node, site: Site) -> list[Node]:
    """BatchNormalization before 14: several outputs mean training."""
    _refuse_saved_statistics(node, site)
    if len(trimmed(node.outputs)) == 1:
        return [changed(node, outputs=node.outputs[:1], drop=("spatial",))]
    return [changed(node, outputs=node.outputs[:3], attrs={"training_mode": 1}, drop=("spatial",))]


def batch_norm_spatial(node: Node, site: Site) -> list[Node]:
    """BatchNormalization before 9: with spatial=0 the statistics have the shape of one sample."""
    if node.attrs.get("spatial", 1):
        return batch_norm_training(node, site)
    if len(trimmed(node.outputs)) > 1:
        raise UnsupportedError(f"{site.where}: training with spatial=0 is not supported.")
    before: list[Node] = []
    x, scale, bias, mean, var = node.inputs
    eps = float_like(changed(node, inputs=(var,), attrs={"epsilon": _epsilon(node)}), "epsilon", site, before)
    steps = [site.fresh(f"{node.outputs[0]}/{hint}") for hint in ("centered", "shifted", "std", "unit", "scaled")]
    centered, shifted, std, unit, scaled = steps
    return [
        *before,
        new(node, "Sub", (x, mean), centered),
        new(node, "Add", (var, eps), shifted),
        new(node, "Sqrt", (shifted,), std),
        new(node, "Div", (centered, std), unit),
        new(node, "Mul", (unit, scale), scaled),
        new(node, "Add", (scaled, bias), node.outputs[0]),
    ]


def upsample(node: Node, site: Site) -> list[Node]:
    """Upsample: Resize with corner coordinates that are rounded down."""
    scales = node.inputs[1] if len(node.inputs) > 1 else site.constant("scales", node.attrs["scales"], np.float32)
    return resize_by_corners(changed(node, inputs=(node.inputs[0], scales), drop=("scales",)), site)


def resize_by_corners(node: Node, site: Site) -> list[Node]:
    """Resize 10: corner coordinates; mode nearest rounds them down when it enlarges and up when it shrinks.

    The standard leaves the rounding open; this is the one of ONNX's own test case and of onnxruntime.
    """
    x, scales = node.inputs
    corners = {"coordinate_transformation_mode": "asymmetric"}
    known = site.value(scales)
    if node.attrs.get("mode", "nearest") != "nearest" or (known is not None and np.all(known >= 1)):
        return [_resize(node, x, scales, node.outputs[0], **corners, **_rounding(node, "floor"))]
    if known is not None and np.all(known <= 1):
        return [_resize(node, x, scales, node.outputs[0], **corners, nearest_mode="ceil")]
    up, down, larger = (site.fresh(f"{node.outputs[0]}/{hint}") for hint in ("up", "down", "larger"))
    one = site.constant("one", 1, np.float32)
    return [
        new(node, "Max", (scales, one), up),
        new(node, "Min", (scales, one), down),
        _resize(node, x, up, larger, **corners, nearest_mode="floor"),
        _resize(node, larger, down, node.outputs[0], **corners, nearest_mode="ceil"),
    ]


def resize_half_pixel(node: Node, site: Site) -> list[Node]:
    """Resize 11 and 12: had the coordinate mode 'tf_half_pixel_for_nn', which the newest opset lacks."""
    if node.attrs.get("coordinate_transformation_mode") != "tf_half_pixel_for_nn":
        return resize_inputs(node, site)
    if node.attrs.get("mode", "nearest") != "nearest" or node.attrs.get("nearest_mode") != "floor":
        raise UnsupportedError(
            f"{site.where}: 'tf_half_pixel_for_nn' is known for mode nearest that rounds with floor only."
        )
    # floor(x + 1/2) in its coordinates is rounding half up in the half-pixel ones.
    attrs = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
    return resize_inputs(changed(node, attrs=attrs), site)


def resize_inputs(node: Node, site: Site) -> list[Node]:
    """Resize from 13 on: an empty constant means the same as an input left out."""
    return [changed(node, inputs=trimmed(["" if _is_empty(name, site) else name for name in node.inputs]))]


def scatter(node: Node, site: Site) -> list[Node]:
    """Scatter: called ScatterElements since 11."""
    return [replace(node, op="ScatterElements")]


def scan_of_batches(node: Node, site: Site) -> list[Node]:
    """Scan 8: also runs over a batch axis; becomes a Scan over the batch whose body is the Scan over time."""
    lengths, *values = node.inputs
    body, count = node.attrs["body"], node.attrs["num_scan_inputs"]
    inputs = [site.fresh(f"{name or 'scan'}/sample") for name in values]
    outputs = [site.fresh(f"{name or 'scan'}/sample") for name in node.outputs]
    attrs = {"body": body, "num_scan_inputs": count}
    if "directions" in node.attrs:
        attrs["scan_input_directions"] = node.attrs["directions"]
    inner = changed(node, inputs=tuple(inputs), outputs=tuple(outputs), attrs=attrs, drop=("directions",))
    nodes = [inner]
    if lengths:
        values, inputs = [lengths, *values], [site.fresh(f"{lengths}/sample"), *inputs]
        nodes = _of_length(inner, inputs[0], len(values) - 1 - count, site)
    sample = Graph(tuple(inputs), tuple(outputs), tuple(nodes), opset=body.opset, name=f"{body.name}_of_sample")
    outer = {"body": sample, "num_scan_inputs": len(values)}
    return [changed(node, inputs=tuple(values), attrs=outer, drop=("directions",))]


def _of_length(scan: Node, length: str, states: int, site: Site) -> list[Node]:
    """Makes a Scan run over the first `length` entries only, with its outputs padded with zeros."""
    one, zero = (site.constant(hint, [value]) for hint, value in (("one", 1), ("zero", 0)))
    end, whole, missing, pads = (site.fresh(f"{length}/{hint}") for hint in ("end", "whole", "missing", "pads"))
    nodes = [new(scan, "Reshape", (length, one), end)]
    cut = [site.fresh(f"{name}/cut") for name in scan.inputs[states:]]
    nodes += [new(scan, "Slice", (x, zero, end, zero), y) for x, y in zip(scan.inputs[states:], cut, strict=True)]
    short = [site.fresh(f"{name}/short") if name else "" for name in scan.outputs[states:]]
    edges = (*scan.inputs[:states], *cut), (*scan.outputs[:states], *short)
    nodes.append(changed(scan, inputs=edges[0], outputs=edges[1]))
    nodes.append(new(scan, "Shape", scan.inputs[-1:], whole, start=0, end=1))
    nodes.append(new(scan, "Sub", (whole, end), missing))
    nodes.append(new(scan, "Concat", (zero, missing), pads, axis=0))
    pairs = zip(short, scan.outputs[states:], strict=True)
    return [*nodes, *(new(scan, "Pad", (x, pads, "", zero), y) for x, y in pairs if y)]


def dft_axis(node: Node, site: Site) -> list[Node]:
    """DFT 17: the axis is an attribute, 1 where absent."""
    length = node.inputs[1] if len(node.inputs) > 1 else ""
    axis = site.constant("axis", node.attrs.get("axis", 1))
    return [changed(node, inputs=(node.inputs[0], length, axis), drop=("axis",))]


def group_norm_by_group(node: Node, site: Site) -> list[Node]:
    """GroupNormalization 18: one scale and bias for each group; an InstanceNormalization over the groups."""
    x, scale, bias = node.inputs
    y, groups = node.outputs[0], node.attrs["num_groups"]
    grouped, result, shape = (site.fresh(f"{y}/{hint}") for hint in ("grouped", "result", "shape"))
    form = site.constant("by_group", (0, groups, -1))
    return [
        new(node, "Reshape", (x, form), grouped),
        new(node, "InstanceNormalization", (grouped, scale, bias), result, epsilon=_epsilon(node)),
        new(node, "Shape", (x,), shape),
        new(node, "Reshape", (result, shape), y, allowzero=1),
    ]


def grid_sample_mode(node: Node, site: Site) -> list[Node]:
    """GridSample before 20: the modes linear and cubic were called bilinear and bicubic."""
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = node.attrs.get("mode", "bilinear")
    return [changed(node, attrs={"mode": names.get(mode, mode)})]


def roi_align_corners(node: Node, site: Site) -> list[Node]:
    """RoiAlign before 16: no half-pixel shift."""
    return [changed(node, attrs={"coordinate_transformation_mode": "output_half_pixel"})]


def _resize(node: Node, x: str, scales: str, y: str, **attrs: Any) -> Node:
    return new(node, "Resize", (x, "", scales), y, **{**node.attrs, **attrs})


def _epsilon(node: Node) -> float:
    return float(node.attrs.get("epsilon", np.float32(1e-5)))


def _rounding(node: Node, mode: str) -> dict[str, str]:
    return {"nearest_mode": mode} if node.attrs.get("mode", "nearest") == "nearest" else {}


def _is_empty(name: str, site: Site) -> bool:
    value = site.value(name) if name else None
    return value is not None and value.size == 0


def _refuse_saved_statistics(node: Node, site: Site) -> None:
    read = [name for name in node.outputs[3:] if name and site.is_read(name)]
    if read:
        raise UnsupportedError(f"{site.where}: its saved statistics ({read[0]!r}) are not supported.")
