"""Rewrites nodes of older opsets in the newest opset, so that the rest of the program knows only that one.

`CHANGES` at the end lists the operators that changed, the opset of the change, and the adapter that rewrites the old
form.  An adapter takes a node in an old form and its `Site`, which knows the tensors around it, and gives nodes in the
newest form at once, so of several changes only the first that applies is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import DTypeLike
from onnx import TensorProto

from gradcheck_cli.errors import ModelError, UnsupportedError
from gradcheck_cli.formats.onnx.opset import NEWEST, signature
from gradcheck_cli.graph import Array, Graph, Node, TensorType, is_inexact

ALWAYS = NEWEST + 1  # in place of an opset: rewrites the operator in every opset
EXPERIMENTS = ("Affine", "Crop", "ImageScaler", "ParametricSoftplus", "ScaledTanh")  # gone since opset 10
_NONE: Mapping[str, Any] = MappingProxyType({})
_EPSILON = float(np.float32(1e-5))  # of normalizations, by default


class Site(Struct, frozen=True):
    """The surroundings of a node: tells facts about tensors, gives new names and constants."""

    where: str  # the node's name in messages
    output: str  # names of constants begin with it
    fresh: Callable[[str], str]  # gives an unused tensor name that resembles a hint
    constants: dict[str, Array]  # of the graph
    types: Mapping[str, TensorType]  # declared ones
    value: Callable[[str], Array | None]  # gives the value of a constant, None for other tensors
    is_read: Callable[[str], bool] = bool  # tells if a node or an output of the file reads a tensor
    usual_dtype: Callable[[], np.dtype[Any] | None] = lambda: None  # that of all float tensors, if there is one
    usual_rank: Callable[[str], int | None] = lambda name: None  # as far as it follows without a declared shape

    def constant(self, hint: str, value: Any, dtype: DTypeLike = np.int64) -> str:
        """Adds a constant; gives its name."""
        name = self.fresh(f"{self.output}/{hint}")
        with np.errstate(over="ignore"):
            self.constants[name] = np.asarray(value, dtype)
        return name

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """The float dtype of a tensor; None where it is not certain."""
        value, declared = self.value(name), self.types.get(name, TensorType()).dtype
        dtype = value.dtype if value is not None else declared
        if dtype is None:
            return self.usual_dtype()
        return dtype if is_inexact(dtype) else None

    def rank(self, name: str) -> int | None:
        """The number of dimensions; None where it is not certain."""
        value, shape = self.value(name), self.types.get(name, TensorType()).shape
        if value is not None:
            return value.ndim
        return self.usual_rank(name) if shape is None else len(shape)


Adapter: TypeAlias = Callable[[Node, Site], list[Node]]


def changed(
    node: Node, *, inputs: tuple[str, ...] | None = None, outputs: tuple[str, ...] | None = None,
    attrs: Mapping[str, Any] = _NONE, drop: tuple[str, ...] = (),
) -> Node:  # fmt: skip
    """The node with other inputs, outputs or attributes, and without the attributes in `drop`."""
    return replace(
        node,
        inputs=node.inputs if inputs is None else inputs,
        outputs=node.outputs if outputs is None else outputs,
        attrs={**{name: value for name, value in node.attrs.items() if name not in drop}, **attrs},
    )


class Replacement:
    """The nodes that take the place of one: a call adds a node, and gives the name of its output."""

    def __init__(self, node: Node, site: Site) -> None:
        self.node, self.site = node, site
        self.nodes: list[Node] = []

    def __call__(self, op: str, *inputs: str, output: str = "", **attrs: Any) -> str:
        output = output or self.site.fresh(f"{self.node.outputs[0]}/{op}")
        name = f"{self.node.name}/{op}" if self.node.name else ""
        self.nodes.append(Node(op, inputs, (output,), attrs, "", name, self.node.metadata))
        return output

    def ended(self, op: str, *inputs: str, **attrs: Any) -> list[Node]:
        """All nodes, the last of which computes the first output of the replaced node."""
        self(op, *inputs, output=self.node.outputs[0], **attrs)
        return self.nodes

    def number(self, name: str, default: float | None = None, like: str = "") -> str:
        """A float attribute as a constant of the dtype of `like`, else of the first input; "" where it is absent."""
        value = self.node.attrs.get(name, default)
        if value is None:
            return ""
        like = like or self.node.inputs[0]
        dtype = self.site.dtype(like)
        constant = self.site.constant(name, value, dtype or np.float32)
        return constant if dtype is not None else self("CastLike", constant, like)


def int_input(node: Node, name: str, site: Site) -> str:
    """An integer attribute as a constant; "" where it is absent or empty."""
    value = node.attrs.get(name, ())
    return "" if value == () else site.constant(name, np.atleast_1d(np.asarray(value, np.int64)))


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


class OpsetChange(Struct, frozen=True):
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


def split_sizes(node: Node, site: Site) -> list[Node]:
    """Split before 18: without sizes, each output gets an equal part."""
    if node.attrs.get("split") or len(trimmed(node.inputs)) > 1:
        sizes = node.inputs[1:] or (int_input(node, "split", site),)
        return [changed(node, inputs=(node.inputs[0], *sizes), drop=("split",))]
    return [changed(node, inputs=node.inputs[:1], attrs={"num_outputs": len(node.outputs)}, drop=("split",))]


def split_in_parts(node: Node, site: Site) -> list[Node]:
    """Split from 18 on: without sizes and a number of parts, which ONNX asks for, there is one for each output."""
    told = "num_outputs" in node.attrs or len(trimmed(node.inputs)) > 1
    return [node] if told else split_sizes(node, site)


def clip_bounds(node: Node, site: Site) -> list[Node]:
    """Clip before 11: bounds are attributes."""
    make = Replacement(node, site)
    bounds = [make.number(name) for name in ("min", "max")]
    return [*make.nodes, changed(node, inputs=trimmed((*node.inputs, *bounds)), drop=("min", "max"))]


def pad_widths(node: Node, site: Site) -> list[Node]:
    """Pad before 11: widths and value are attributes."""
    make = Replacement(node, site)
    value = make.number("value") if node.attrs.get("value") else ""
    inputs = (node.inputs[0], int_input(node, "pads", site), value)
    return [*make.nodes, changed(node, inputs=trimmed(inputs), drop=("pads", "value"))]


def dropout_ratio(node: Node, site: Site) -> list[Node]:
    """Dropout before 12: always the identity, with a ratio that only training would use."""
    ratio = site.constant("ratio", node.attrs["ratio"], np.float32) if "ratio" in node.attrs else ""
    return [changed(node, inputs=trimmed((*node.inputs, ratio)), drop=("ratio",))]


def dropout_float_mask(node: Node, site: Site) -> list[Node]:
    """Dropout before 10: the mask has the dtype of the data."""
    [dropout] = dropout_ratio(node, site)
    if len(trimmed(node.outputs)) < 2:
        return [dropout]
    make, mask = Replacement(node, site), site.fresh(f"{node.outputs[1]}/bool")
    make("CastLike", mask, node.inputs[0], output=node.outputs[1])
    return [replace(dropout, outputs=(node.outputs[0], mask)), *make.nodes]


def softmax_of_matrix(node: Node, site: Site) -> list[Node]:
    """Softmax, LogSoftmax and Hardmax before 13: over all axes from `axis` on, flattened into one."""
    axis, rank = node.attrs.get("axis", 1), site.rank(node.inputs[0])
    if axis == -1 or (rank is not None and axis == rank - 1):
        return [changed(node, attrs={"axis": -1})]
    make, x = Replacement(node, site), node.inputs[0]
    result = make(node.op, make("Flatten", x, axis=axis), axis=-1)
    return make.ended("Reshape", result, make("Shape", x), allowzero=1)


def batch_norm_training(node: Node, site: Site) -> list[Node]:
    """BatchNormalization before 14: several outputs mean training."""
    if read := [name for name in node.outputs[3:] if name and site.is_read(name)]:
        raise UnsupportedError(f"{site.where}: its saved statistics ({read[0]!r}) are not supported.")
    if len(trimmed(node.outputs)) == 1:
        return [changed(node, outputs=node.outputs[:1], drop=("spatial",))]
    return [changed(node, outputs=node.outputs[:3], attrs={"training_mode": 1}, drop=("spatial",))]


def batch_norm_spatial(node: Node, site: Site) -> list[Node]:
    """BatchNormalization before 9: with spatial=0 the statistics have the shape of one sample."""
    if node.attrs.get("spatial", 1):
        return batch_norm_training(node, site)
    if len(trimmed(node.outputs)) > 1:
        raise UnsupportedError(f"{site.where}: training with spatial=0 is not supported.")
    make = Replacement(node, site)
    x, scale, bias, mean, var = node.inputs
    std = make("Sqrt", make("Add", var, make.number("epsilon", _EPSILON, like=var)))
    unit = make("Div", make("Sub", x, mean), std)
    return make.ended("Add", make("Mul", unit, scale), bias)


def upsample(node: Node, site: Site) -> list[Node]:
    """Upsample: Resize with corner coordinates that are rounded down."""
    scales = node.inputs[1] if len(node.inputs) > 1 else site.constant("scales", node.attrs["scales"], np.float32)
    return resize_by_corners(changed(node, inputs=(node.inputs[0], scales), drop=("scales",)), site)


def resize_by_corners(node: Node, site: Site) -> list[Node]:
    """Resize 10: corner coordinates; mode nearest rounds them down when it enlarges and up when it shrinks.

    The standard leaves the rounding open; this is the one of ONNX's own test case and of onnxruntime.
    """
    x, scales = node.inputs
    corners = {**node.attrs, "coordinate_transformation_mode": "asymmetric"}
    make, known = Replacement(node, site), site.value(scales)
    if node.attrs.get("mode", "nearest") != "nearest":
        return make.ended("Resize", x, "", scales, **corners)
    if known is not None and (np.all(known >= 1) or np.all(known <= 1)):
        rounding = "floor" if np.all(known >= 1) else "ceil"
        return make.ended("Resize", x, "", scales, **{**corners, "nearest_mode": rounding})
    one = site.constant("one", 1, np.float32)
    up, down = make("Max", scales, one), make("Min", scales, one)
    larger = make("Resize", x, "", up, **{**corners, "nearest_mode": "floor"})
    return make.ended("Resize", larger, "", down, **{**corners, "nearest_mode": "ceil"})


def resize_half_pixel(node: Node, site: Site) -> list[Node]:
    """Resize from 11 on: 'tf_half_pixel_for_nn', of 11 and 12, which converters write and runtimes take later too."""
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
    """Resize from 11 on: an empty constant means the same as an input left out."""
    empty = [name for name in node.inputs if name and (value := site.value(name)) is not None and not value.size]
    return [changed(node, inputs=trimmed("" if name in empty else name for name in node.inputs))]


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
    make, one, zero = Replacement(scan, site), site.constant("one", [1]), site.constant("zero", [0])
    end = make("Reshape", length, one)
    cut = [make("Slice", x, zero, end, zero) for x in scan.inputs[states:]]
    short = [site.fresh(f"{name}/short") if name else "" for name in scan.outputs[states:]]
    inputs, outputs = (*scan.inputs[:states], *cut), (*scan.outputs[:states], *short)
    make.nodes.append(changed(scan, inputs=inputs, outputs=outputs))
    missing = make("Sub", make("Shape", scan.inputs[-1], start=0, end=1), end)
    pads = make("Concat", zero, missing, axis=0)
    for x, y in zip(short, scan.outputs[states:], strict=True):
        if y:
            make("Pad", x, pads, "", zero, output=y)
    return make.nodes


def dft_axis(node: Node, site: Site) -> list[Node]:
    """DFT 17: the axis is an attribute, 1 where absent."""
    length = node.inputs[1] if len(node.inputs) > 1 else ""
    axis = site.constant("axis", node.attrs.get("axis", 1))
    return [changed(node, inputs=(node.inputs[0], length, axis), drop=("axis",))]


def group_norm_by_group(node: Node, site: Site) -> list[Node]:
    """GroupNormalization 18: one scale and bias for each group; an InstanceNormalization over the groups."""
    make, (x, scale, bias) = Replacement(node, site), node.inputs
    grouped = make("Reshape", x, site.constant("by_group", (0, node.attrs["num_groups"], -1)))
    epsilon = float(node.attrs.get("epsilon", _EPSILON))
    result = make("InstanceNormalization", grouped, scale, bias, epsilon=epsilon)
    return make.ended("Reshape", result, make("Shape", x), allowzero=1)


def grid_sample_mode(node: Node, site: Site) -> list[Node]:
    """GridSample before 20: the modes linear and cubic were called bilinear and bicubic."""
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = node.attrs.get("mode", "bilinear")
    return [changed(node, attrs={"mode": names.get(mode, mode)})]


def without(*names: str) -> Adapter:
    """Drops attributes that say nothing."""
    return lambda node, site: [changed(node, drop=names)]


def with_defaults(**attrs: object) -> Adapter:
    """Writes out defaults of attributes that have changed since."""
    return lambda node, site: [changed(node, attrs={k: v for k, v in attrs.items() if k not in node.attrs})]


def broadcast_by_axis(node: Node, site: Site) -> list[Node]:
    """Arithmetic, comparisons and logic before 7: with `axis`, the first dimension of B is that dimension of A."""
    bare, axis = changed(node, drop=("axis", "broadcast")), node.attrs.get("axis")
    return [bare] if axis is None or not node.attrs.get("broadcast") else _aligned(bare, axis, site)


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
    make = Replacement(node, site)
    sizes = make("Cast", node.inputs[1], to=TensorProto.INT64)
    return [*make.nodes, *split_sizes(changed(node, inputs=(node.inputs[0], sizes), drop=("split",)), site)]


def tile_along_axis(node: Node, site: Site) -> list[Node]:
    """Tile before 6: a number of copies along one axis; number and axis are tensors."""
    make, (x, *numbers) = Replacement(node, site), node.inputs
    one, flat = site.constant("one", [1]), site.constant("flat", [-1])
    tiles, axis = (make("Reshape", make("Cast", name, to=TensorProto.INT64), flat) for name in numbers)
    rank, values = make("Size", make("Shape", x)), make("Concat", one, tiles, axis=0)
    repeats = make("Reshape", make("OneHot", axis, rank, values), flat)
    return [*make.nodes, changed(node, inputs=(x, repeats))]


def upsample_by_two_scales(node: Node, site: Site) -> list[Node]:
    """Upsample before 7: images only, with a scale for each side; bilinear was linear."""
    scales = (1.0, 1.0, node.attrs["height_scale"], node.attrs["width_scale"])
    mode = {"bilinear": "linear"}.get(node.attrs.get("mode", "nearest"), node.attrs.get("mode", "nearest"))
    return upsample(changed(node, attrs={"scales": scales, "mode": mode}, drop=("height_scale", "width_scale")), site)


def affine(node: Node, site: Site, scale: str = "alpha", shift: str = "beta") -> list[Node]:
    """Affine: alpha * x + beta."""
    make = Replacement(node, site)
    scaled = make("Mul", node.inputs[0], make.number(scale, 1.0))
    return make.ended("Add", scaled, make.number(shift, 0.0))


def image_scaler(node: Node, site: Site) -> list[Node]:
    """ImageScaler: scale * x, and a bias for each channel of images."""
    channels = np.reshape(node.attrs.get("bias", (0.0,)), (-1, 1, 1))
    return affine(changed(node, attrs={"bias": channels}), site, "scale", "bias")


def of_scaled_input(op: str) -> Adapter:
    """ScaledTanh and ParametricSoftplus: alpha * f(beta * x)."""

    def to(node: Node, site: Site) -> list[Node]:
        make = Replacement(node, site)
        inner = make(op, make("Mul", node.inputs[0], make.number("beta", 1.0)))
        return make.ended("Mul", inner, make.number("alpha", 1.0))

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


def _aligned(node: Node, axis: int, site: Site) -> list[Node]:
    """Appends dimensions of size 1 to input B until its first dimension lines up with dimension `axis` of A."""
    make, (a, b) = Replacement(node, site), node.inputs
    rank_a, rank_b = site.rank(a), site.rank(b)
    if rank_a is None or rank_b is None:
        b = _aligned_at_run_time(make, axis)
    elif (behind := rank_a - axis % max(rank_a, 1) - rank_b) > 0:
        b = make("Unsqueeze", b, site.constant("axes", range(rank_b, rank_b + behind)))
    return [*make.nodes, changed(node, inputs=(a, b))]


def _aligned_at_run_time(make: Replacement, axis: int) -> str:
    """Input B, aligned by nodes that compute the ranks, which the file does not declare."""
    constant, (a, b) = make.site.constant, make.node.inputs
    zero, one, flat, start = constant("zero", 0), constant("one", 1), constant("flat", [1]), constant("axis", abs(axis))
    shape = make("Shape", b)
    left = make("Sub", make("Size", make("Shape", a)), start) if axis >= 0 else start
    behind = make("Max", make("Sub", left, make("Size", shape)), zero)
    ones = make("Expand", one, make("Reshape", behind, flat))
    return make("Reshape", b, make("Concat", shape, ones, axis=0), allowzero=1)


_REDUCED_TO = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
_REDUCTIONS = tuple(f"Reduce{kind}" for kind in _REDUCED_TO)
_OF_TWO = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
CHANGES = (
    OpsetChange(_OF_TWO, 7, broadcast_by_axis),
    OpsetChange(("Affine",), ALWAYS, affine),
    OpsetChange(("BatchNormalization",), 7, batch_norm_is_test),
    OpsetChange(("BatchNormalization",), 9, batch_norm_spatial),
    OpsetChange(("BatchNormalization",), 14, batch_norm_training),
    OpsetChange(("Cast",), 6, cast_to_name),
    OpsetChange(("Clip",), 11, clip_bounds),
    OpsetChange(("Concat",), 4, with_defaults(axis=1)),
    OpsetChange(("Crop",), ALWAYS, crop),
    OpsetChange(("DFT",), 20, dft_axis),
    OpsetChange(("Dropout",), 7, dropout_is_test),
    OpsetChange(("Dropout",), 10, dropout_float_mask),
    OpsetChange(("Dropout",), 12, dropout_ratio),
    OpsetChange(("GRU", "LSTM", "RNN"), 7, without("output_sequence")),
    OpsetChange(("GlobalLpPool", "LpPool"), 2, power_of_norm),
    OpsetChange(("Gemm",), 7, without("broadcast")),
    OpsetChange(("GridSample",), 20, grid_sample_mode),
    OpsetChange(("GroupNormalization",), 21, group_norm_by_group),
    OpsetChange(("ImageScaler",), ALWAYS, image_scaler),
    OpsetChange(("PRelu",), 7, lambda node, site: _aligned(node, 1, site)),  # a slope for each channel, which is axis 1
    OpsetChange(("Pad",), 2, pad_paddings),
    OpsetChange(("Pad",), 11, pad_widths),
    OpsetChange(("ParametricSoftplus",), ALWAYS, of_scaled_input("Softplus")),
    OpsetChange(("ReduceSum", "Squeeze", "Unsqueeze"), 13, attributes_as_inputs("axes")),
    OpsetChange(_REDUCTIONS, 18, attributes_as_inputs("axes")),
    OpsetChange(("Reshape",), 5, reshape_shape),
    OpsetChange(("Resize",), 11, resize_by_corners),
    OpsetChange(("Resize",), ALWAYS, resize_half_pixel),
    OpsetChange(("RoiAlign",), 16, with_defaults(coordinate_transformation_mode="output_half_pixel")),
    OpsetChange(("ScaledTanh",), ALWAYS, of_scaled_input("Tanh")),
    OpsetChange(("Scan",), 9, scan_of_batches),
    OpsetChange(("Scatter",), ALWAYS, lambda node, site: [replace(node, op="ScatterElements")]),  # its name since 11
    OpsetChange(("Selu",), 6, with_defaults(alpha=1.673200011253357, gamma=1.0506999492645264)),
    OpsetChange(("Slice",), 10, attributes_as_inputs("starts", "ends", "axes")),
    OpsetChange(("Softmax", "LogSoftmax", "Hardmax"), 13, softmax_of_matrix),
    OpsetChange(("Split",), 2, split_sizes_of_any_type),
    OpsetChange(("Split",), 18, split_sizes),
    OpsetChange(("Split",), ALWAYS, split_in_parts),
    OpsetChange(("Tile",), 6, tile_along_axis),
    OpsetChange(("TopK",), 10, attributes_as_inputs("k")),
    OpsetChange(("Upsample",), 7, upsample_by_two_scales),
    OpsetChange(("Upsample",), ALWAYS, upsample),
)
_BY_OPERATOR = {op: [c for c in CHANGES if op in c.operators] for change in CHANGES for op in change.operators}
