"""Control flow: If, Loop and Scan dissolve into the nodes that ran.

A value that decided (a condition, a trip count) is kept on the tape as a guard: a probe that changes it
crosses a branch.  Results are new tensors even if a body only passes one through, so that each can be
asked for by name.  Sequences and optionals may be loop states as tensors are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import MAX_STEPS, Var
from gradcheck_cli.autodiff.trace import GraphFunction
from gradcheck_cli.errors import LimitError
from gradcheck_cli.graph import Array, Node, TensorType
from gradcheck_cli.graph.containers import CONTAINERS, described, mapped
from gradcheck_cli.op import Op, Ops, composite, from_end
from gradcheck_cli.op.batching import blank

_FORWARD, _REVERSE = 0, 1
_SEVERAL = 2  # iterations: one takes as long as its outline


def if_(condition: Var, *, then_branch: GraphFunction, else_branch: GraphFunction) -> tuple[Any, ...]:
    """The outputs of the branch that the condition chooses."""
    branch = then_branch if _single(condition, "a condition") else else_branch
    return tuple(_handed_on(y) for y in branch())


def loop(trips: Var | None, condition: Var | None = None, *states: Any, body: GraphFunction) -> tuple[Any, ...]:
    """Final states, and every scan output of all iterations; at most `trips`, as long as the condition holds."""
    tape, most = body.tape, np.inf if trips is None else _single(trips, "a trip count")
    going = condition is None or _single(condition, "a condition")
    flag = condition if condition is not None else tape.constant(True)
    rows: list[tuple[Any, ...]] = []
    while going and len(rows) < most:
        if len(rows) >= MAX_STEPS:
            raise LimitError(f"more than {MAX_STEPS:,} iterations; it may never end here: --feed others")
        with tape.scope(f"iteration{len(rows)}"):
            flag, *results = body(tape.constant(len(rows), np.int64), flag, *states)
        going = _single(flag, "a condition")
        states, scanned = tuple(results[: len(states)]), tuple(results[len(states) :])
        rows.append(scanned)
    outputs = body.graph.outputs[1 + len(states) :]
    scans = [_stacked(body, name, [row[i] for row in rows]) for i, name in enumerate(outputs)]
    return (*map(_handed_on, states), *scans)


def scan(
    *operands: Any,
    body: GraphFunction,
    num_scan_inputs: int,
    scan_input_axes: tuple[int, ...] | None = None,
    scan_input_directions: tuple[int, ...] | None = None,
    scan_output_axes: tuple[int, ...] | None = None,
    scan_output_directions: tuple[int, ...] | None = None,
) -> tuple[Any, ...]:
    """Final states, and every scan output of all iterations: one for each slice of the scan inputs."""
    if not 0 < num_scan_inputs <= len(operands):
        raise ValueError(f"num_scan_inputs is {num_scan_inputs} for {len(operands)} inputs")
    count = len(operands) - num_scan_inputs
    states, inputs = operands[:count], operands[count:]
    outputs = body.graph.outputs[count:]
    axes = _each(scan_input_axes, len(inputs), "scan_input_axes")
    directions = _each(scan_input_directions, len(inputs), "scan_input_directions")
    slices = [_slices(*each) for each in zip(inputs, axes, directions, strict=True)]
    if len({len(s) for s in slices}) > 1:
        raise ValueError(f"scan inputs differ in length: {[len(s) for s in slices]}")
    rows: list[tuple[Any, ...]] = []
    for i, pieces in enumerate(zip(*slices, strict=True)):
        with body.tape.scope(f"iteration{i}"):
            results = body(*states, *pieces)
        states = results[:count]
        rows.append(results[count:])
    axes = _each(scan_output_axes, len(outputs), "scan_output_axes")
    directions = _each(scan_output_directions, len(outputs), "scan_output_directions")
    scans = [_stacked(body, name, [row[i] for row in rows], axes[i], directions[i]) for i, name in enumerate(outputs)]
    return (*map(_handed_on, states), *scans)


def scan_outline(
    node: Node, ops: Ops, operands: Sequence[Array | None], run: Callable[..., Sequence[Array]]
) -> list[Array] | None:
    """Blanks like the results of a Scan, by one of its iterations, which `run` makes.

    `operands` are its inputs, of which only the shapes count, and then what its body reads from around it.  None where
    there are fewer than two iterations, or a shape in the body may follow from numbers.
    """
    attrs, own = node.attrs, len(node.inputs)
    if any(ops[each.key].outline is None for each in attrs["body"].nodes):
        return None
    count = own - attrs["num_scan_inputs"]
    axes = _each(attrs.get("scan_input_axes"), own - count, "scan_input_axes")
    rows = [np.asarray(x) for x in operands[count:own]]
    length = rows[0].shape[axes[0]]
    if length < _SEVERAL or any(x.shape[axis] != length for x, axis in zip(rows, axes, strict=True)):
        return None
    alone = [x.take([0], axis) for x, axis in zip(rows, axes, strict=True)]
    made = run(*operands[:count], *alone, *operands[own:])
    shapes = [list(y.shape) for y in made]
    axes = _each(attrs.get("scan_output_axes"), len(attrs["body"].outputs) - count, "scan_output_axes")
    for shape, axis in zip(shapes[count:], axes, strict=False):
        shape[axis] = length
    return [blank(shape, y.dtype) for shape, y in zip(shapes, made, strict=True)]


def _slices(x: Any, axis: int, direction: int) -> list[Var]:
    """x along an axis, entry by entry, in the order they are read."""
    _require_tensor(x, "a scan input")
    axis = from_end(axis, x.ndim)
    length = x.shape[axis]
    pieces = [sym.squeeze(piece, (axis,)) for piece in sym.split(x, [1] * length, axis)] if length else []
    return pieces[::-1] if direction == _REVERSE else pieces


def _stacked(body: GraphFunction, name: str, rows: Sequence[Any], axis: int = 0, direction: int = _FORWARD) -> Var:
    """Values of all iterations, stacked along a new axis."""
    if not rows:
        return _no_rows(body, name, axis)
    for row in rows:
        _require_tensor(row, f"scan output {name!r}")
    if any(row.shape != rows[0].shape for row in rows):
        raise ValueError(f"scan output {name!r} changes its shape: {sorted({row.shape for row in rows})}")
    axis = from_end(axis, rows[0].ndim + 1)
    stacked = sym.stack(rows[::-1] if direction == _REVERSE else rows, axis)
    return stacked if len(rows) > 1 else _handed_on(stacked)


def _no_rows(body: GraphFunction, name: str, axis: int) -> Var:
    """The declared scan output of no iteration; dimensions that are not fixed are 0."""
    declared = body.graph.types.get(name, TensorType())
    shape = [d if isinstance(d, int) else 0 for d in declared.shape or ()]
    shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, 0)
    return sym.identity(body.tape.constant(np.zeros(shape, declared.dtype or np.float32)))


def _require_tensor(value: Any, what: str) -> None:
    if value is None or isinstance(value, CONTAINERS):
        raise ValueError(f"{what} is {'nothing' if value is None else described(value)}; it must be a tensor")


def _each(values: tuple[int, ...] | None, count: int, what: str) -> tuple[int, ...]:
    """A list with one entry for each scan, 0 by default."""
    if values is not None and len(values) != count:
        raise ValueError(f"{what} has {len(values)} entries for {count} scans")
    return (0,) * count if values is None else tuple(values)


def _single(operand: Any, what: str) -> Any:
    """The one entry of an operand that decides; the tape keeps it as a guard."""
    _require_tensor(operand, what)
    value = operand.tape.guard(operand)
    if value.size != 1:
        raise ValueError(f"{what} has one entry, not shape {list(value.shape)}")
    return value.item()


def _handed_on(value: Any) -> Any:
    return mapped(sym.identity, value)


CONTROL_FLOW: list[Op] = [
    composite("If", if_, like=None),
    composite("Loop", loop, containers=loop, integers={0: (2, 3), 1: (1, 1)}, like=None),
    composite("Scan", scan, containers=scan),
]
