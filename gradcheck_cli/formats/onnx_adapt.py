"""Operators of older opsets in the form of the newest.

`CHANGES` is the whole story: which operators were called otherwise before which opset, and the adapter that
writes the old form in the new one.  An adapter gives the newest form at once, so only the first change that
applies counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.formats import onnx_adapters as to
from gradcheck_cli.formats.onnx_schema import NEWEST, Signature, signature
from gradcheck_cli.graph import Node

OLDEST = 7  # opset of the default domain from which on everything is adapted
ALWAYS = NEWEST + 1


@dataclass(frozen=True, slots=True)
class Change:
    """Operators whose form before opset `before` is brought to the newest by `rewrite`."""

    operators: tuple[str, ...]
    before: int
    rewrite: to.Adapter


_KINDS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
_REDUCTIONS = tuple(f"Reduce{kind}" for kind in _KINDS)

CHANGES = (
    Change(("BatchNormalization",), 9, to.batch_norm_spatial),
    Change(("BatchNormalization",), 14, to.batch_norm_training),
    Change(("Clip",), 11, to.clip_bounds),
    Change(("DFT",), 20, to.dft_axis),
    Change(("Dropout",), 10, to.dropout_float_mask),
    Change(("Dropout",), 12, to.dropout_ratio),
    Change(("GridSample",), 20, to.grid_sample_mode),
    Change(("GroupNormalization",), 21, to.group_norm_by_group),
    Change(("Pad",), 11, to.pad_widths),
    Change(("ReduceSum", "Squeeze", "Unsqueeze"), 13, to.attributes_as_inputs("axes")),
    Change(_REDUCTIONS, 18, to.attributes_as_inputs("axes")),
    Change(("Resize",), 11, to.resize_by_corners),
    Change(("Resize",), 13, to.resize_half_pixel),
    Change(("Resize",), ALWAYS, to.resize_inputs),
    Change(("RoiAlign",), 16, to.roi_align_corners),
    Change(("Scan",), 9, to.scan_of_batches),
    Change(("Scatter",), ALWAYS, to.scatter),
    Change(("Slice",), 10, to.attributes_as_inputs("starts", "ends", "axes")),
    Change(("Softmax", "LogSoftmax", "Hardmax"), 13, to.softmax_of_matrix),
    Change(("Split",), 18, to.split_sizes),
    Change(("TopK",), 10, to.attributes_as_inputs("k")),
    Change(("Upsample",), ALWAYS, to.upsample),
)
_BY_OPERATOR = {op: [c for c in CHANGES if op in c.operators] for change in CHANGES for op in change.operators}
_CHANGED_IN_SILENCE = {
    "BatchNormalization",
    "Concat",
    "Dropout",
    "PRelu",
}  # before 7, with nothing to see in a node


def adapt(node: Node, opset: int, site: to.Site) -> list[Node]:
    """The nodes, in the newest opset, that do what `node` does in `opset`."""
    if node.domain or signature(node.op, opset) is None:  # some files use an operator before its opset
        return [node]
    if opset < OLDEST:
        _refuse_forgotten(node, opset, site)
    for change in _BY_OPERATOR.get(node.op, ()):
        if opset < change.before:
            return change.rewrite(node, site)
    return [node]


def _refuse_forgotten(node: Node, opset: int, site: to.Site) -> None:
    """Before opset 7 only what means the same at 7 is known."""
    then, later = signature(node.op, opset), signature(node.op, OLDEST)
    if then is None or then == later:
        return
    if later is None or node.op in _CHANGED_IN_SILENCE or not _same_call(node, then, later):
        reason = f"it has changed, and opsets from {OLDEST} on are known"
        raise UnsupportedError(f"{site.where}: {node.op} of opset {opset} is not supported: {reason}.")


def _same_call(node: Node, then: Signature, later: Signature) -> bool:
    shared = [name for name in then.attributes if name in later.attributes]
    return (
        all(name in shared and then.attributes[name] == later.attributes[name] for name in node.attrs)
        and all(then.defaults.get(name) == later.defaults.get(name) for name in shared)
        and later.inputs[0] <= len(node.inputs) <= later.inputs[1]
        and set(later.required) <= set(node.attrs)
    )
