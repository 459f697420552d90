"""Operators of older opsets in the form of the newest.

`CHANGES` is the whole story: which operators were called otherwise before which opset, and the adapter that
writes the old form in the new one.  An adapter gives the newest form at once, so only the first change that
applies counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_cli.formats.onnx import onnx_adapters as to
from gradcheck_cli.formats.onnx import onnx_adapters_early as early
from gradcheck_cli.formats.onnx.adapters import Adapter, Site
from gradcheck_cli.formats.onnx.opset import NEWEST, signature
from gradcheck_cli.graph import Node

ALWAYS = NEWEST + 1


@dataclass(frozen=True, slots=True)
class Change:
    """Operators whose form before opset `before` is brought to the newest by `rewrite`."""

    operators: tuple[str, ...]
    before: int
    rewrite: Adapter


_KINDS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
_REDUCTIONS = tuple(f"Reduce{kind}" for kind in _KINDS)

_OF_TWO = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")
EXPERIMENTS = ("Affine", "Crop", "ImageScaler", "ParametricSoftplus", "ScaledTanh")  # gone since opset 10

CHANGES = (
    Change(_OF_TWO, 7, early.broadcast_by_axis),
    Change(("Affine",), ALWAYS, early.affine),
    Change(("BatchNormalization",), 7, early.batch_norm_is_test),
    Change(("BatchNormalization",), 9, to.batch_norm_spatial),
    Change(("BatchNormalization",), 14, to.batch_norm_training),
    Change(("Cast",), 6, early.cast_to_name),
    Change(("Clip",), 11, to.clip_bounds),
    Change(("Concat",), 4, early.with_defaults(axis=1)),
    Change(("Crop",), ALWAYS, early.crop),
    Change(("DFT",), 20, to.dft_axis),
    Change(("Dropout",), 7, early.dropout_is_test),
    Change(("Dropout",), 10, to.dropout_float_mask),
    Change(("Dropout",), 12, to.dropout_ratio),
    Change(("GRU", "LSTM", "RNN"), 7, early.without("output_sequence")),
    Change(("GlobalLpPool", "LpPool"), 2, early.power_of_norm),
    Change(("Gemm",), 7, early.without("broadcast")),
    Change(("GridSample",), 20, to.grid_sample_mode),
    Change(("GroupNormalization",), 21, to.group_norm_by_group),
    Change(("ImageScaler",), ALWAYS, early.image_scaler),
    Change(("PRelu",), 7, early.slope_of_channels),
    Change(("Pad",), 2, early.pad_paddings),
    Change(("Pad",), 11, to.pad_widths),
    Change(("ParametricSoftplus",), ALWAYS, early.of_scaled_input("Softplus")),
    Change(("ReduceSum", "Squeeze", "Unsqueeze"), 13, to.attributes_as_inputs("axes")),
    Change(_REDUCTIONS, 18, to.attributes_as_inputs("axes")),
    Change(("Reshape",), 5, early.reshape_shape),
    Change(("Resize",), 11, to.resize_by_corners),
    Change(("Resize",), 13, to.resize_half_pixel),
    Change(("Resize",), ALWAYS, to.resize_inputs),
    Change(("RoiAlign",), 16, to.roi_align_corners),
    Change(("ScaledTanh",), ALWAYS, early.of_scaled_input("Tanh")),
    Change(("Scan",), 9, to.scan_of_batches),
    Change(("Scatter",), ALWAYS, to.scatter),
    Change(("Selu",), 6, early.with_defaults(alpha=1.673200011253357, gamma=1.0506999492645264)),
    Change(("Slice",), 10, to.attributes_as_inputs("starts", "ends", "axes")),
    Change(("Softmax", "LogSoftmax", "Hardmax"), 13, to.softmax_of_matrix),
    Change(("Split",), 2, early.split_sizes_of_any_type),
    Change(("Split",), 18, to.split_sizes),
    Change(("Tile",), 6, early.tile_along_axis),
    Change(("TopK",), 10, to.attributes_as_inputs("k")),
    Change(("Upsample",), 7, early.upsample_by_two_scales),
    Change(("Upsample",), ALWAYS, to.upsample),
)
_BY_OPERATOR = {op: [c for c in CHANGES if op in c.operators] for change in CHANGES for op in change.operators}


def adapt(node: Node, opset: int, site: Site) -> list[Node]:
    """The nodes, in the newest opset, that do what `node` does in `opset`."""
    if node.domain or (node.op not in EXPERIMENTS and signature(node.op, opset) is None):
        return [node]  # some files use an operator before its opset
    for change in _BY_OPERATOR.get(node.op, ()):
        if opset < change.before:
            return change.rewrite(node, site)
    return [node]
