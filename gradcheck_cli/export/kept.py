"""Nodes with graphs inside as single steps of a tape, whose operands are their inputs and what the graphs capture."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gradcheck_cli.autodiff.evaluation import run
from gradcheck_cli.autodiff.tape import Step, Tape, Var
from gradcheck_cli.autodiff.trace import run_node
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.export.inner import captured, taken
from gradcheck_cli.graph import Array, Node, TensorType
from gradcheck_cli.graph.containers import described
from gradcheck_cli.op import Op, Ops, table
from gradcheck_cli.ops.recurrent import RECURRENT
from gradcheck_cli.ops.subgraphs import CONTROL_FLOW

_SCANNED = ("scan_output_axes", "scan_output_directions")


@dataclass(frozen=True, slots=True)
class Kept:
    """A node with graphs inside, and how it is run: on a tape of its own, on which it dissolves as in a check.

    The first outputs have the shapes of `like`.  Of others the numbers are in `ragged` whose shapes follow from values of
    what is `counted`: from how often a loop goes round, from which of two branches of different shapes is taken; and in
    `loose` whose shapes follow from those of what it reads.
    """

    node: Node
    ops: Ops
    dtype: str
    seed: int
    ragged: Collection[int] = ()
    counted: tuple[str, ...] = ()
    like: tuple[str, ...] = ()
    loose: Collection[int] = range(sys.maxsize)

    @property
    def reads(self) -> tuple[str, ...]:
        """Its inputs, those left out among them, and what the graphs capture."""
        return (*self.node.inputs, *captured(*self.node.subgraphs))

    @property
    def states(self) -> tuple[str, ...]:
        """What the states of a loop start with."""
        match self.node.op:
            case "Loop":
                return self.node.inputs[2:]
            case "Scan":
                return self.node.inputs[: -self.node.attrs["num_scan_inputs"]]
            case _:
                return ()

    def run(self, *arrays: Array | None) -> tuple[Array, ...]:
        """What it gives for values of all that it reads."""
        tape = Tape(self.ops, dtype=self.dtype, seed=self.seed)
        given = zip(self.reads, arrays, strict=True)
        scope: dict[str, Any] = {name: tape.hold(name, value) for name, value in given if value is not None}
        run_node(tape, self.node, scope, outputs=())
        made = [scope[name] if name else tape.constant(0) for name in self.node.outputs]
        other = next((y for y in made if not isinstance(y, Var)), None)
        if other is not None:
            raise UnsupportedError(f"{self.node.op} gives {described(other)}; a file of derivatives holds tensors")
        return tuple(y.value for y in made)


def alone(*arrays: Array | None, kept: Kept) -> tuple[Array, ...]:
    """The kernel of a node with graphs inside."""
    return kept.run(*arrays)


def keep(
    tape: Tape,
    op: Op,
    inputs: Sequence[Var | None],
    attrs: Mapping[str, Any],
    *,
    count: int,
    outputs: Sequence[str] = (),
    ragged: Collection[int] = (),
    counted: Sequence[Var | None] | None = None,
    like: Sequence[Var] = (),
    loose: Collection[int] = range(sys.maxsize),
    values: Sequence[Array] | None = None,
) -> tuple[Var, ...]:
    """Add a node with graphs inside and evaluate it; gives a `Var` for each of `count` outputs.

    `Kept` says what `ragged`, `like` and `loose` outputs are; `counted` is by default all that it reads.  `values` are
    those of the outputs, where they are known.
    """
    names = tuple(outputs or (tape.fresh(f"{op.name}_out{i}" if i else op.name) for i in range(count)))
    given = tuple("" if x is None else x.name for x in inputs)
    name = tape.place.label if outputs else names[0]  # other nodes of bodies may be there many times
    node = Node(op.name, given, names, attrs, name=name, metadata=tape.place.metadata)
    kept = Kept(node, {**tape.ops, **table(CONTROL_FLOW, RECURRENT)}, tape.dtype, tape.seed, ragged)
    counts = kept.reads if counted is None else tuple(x.name for x in counted if x is not None)
    kept = replace(kept, counted=counts, like=kept.states or tuple(x.name for x in like), loose=loose)
    step = Step(node, op, kept.reads, (), {"kept": kept}, tape.place)
    return tape.recorded(lambda: step, evaluated(tape, step) if values is None else values)


def evaluated(tape: Tape, step: Step) -> Sequence[Array]:
    """What a step gives at the point."""
    arrays = [tape.values[name] if name else None for name in step.operands]
    where = partial(step.place.of, step.op.name, step.label)
    return list(run(step.op, arrays, step.metadata, where=where, widen=tape.widen))


def starts(tape: Tape, made: str, names: Sequence[str]) -> list[Var]:
    """What inputs of the body of a loop were in each iteration, one behind the other: outputs that the loop gets.

    `made` is an output of a loop that is on the tape already.
    """
    index = next(i for i, step in enumerate(tape.steps) if made in step.outputs)
    missing = [name for name in names if name not in _stacked(tape.steps[index])]
    if missing:
        tape.steps[index] = step = _stacking(tape, tape.steps[index], missing)
        pairs = zip(step.outputs, evaluated(tape, step), strict=True)
        tape.values.update((name, y) for name, y in pairs if name and name not in tape.values)
    found = _stacked(tape.steps[index])
    return [tape.var(found[name]) for name in names]


def _stacked(step: Step) -> dict[str, str]:
    """Inputs of the body that the loop gives one behind the other already, with the name of that output."""
    body, attrs = step.node.attrs["body"], step.node.attrs
    outputs = body.outputs[1:] if step.op.name == "Loop" else body.outputs
    first = len(step.metadata["kept"].states)
    turned = {i for key in _SCANNED for i, value in enumerate(attrs.get(key, ())) if value}
    collected = enumerate(zip(outputs[first:], step.outputs[first:], strict=False))
    plain = {name: y for i, (name, y) in collected if y and i not in turned}
    copies = {node.outputs[0]: node.inputs[0] for node in body.nodes if node.op == "Identity"}
    return {copies[name]: y for name, y in plain.items() if copies.get(name) in body.inputs}


def _stacking(tape: Tape, step: Step, names: Sequence[str]) -> Step:
    """A loop that also gives some inputs of its body."""
    node, body = step.node, step.node.attrs["body"]
    copies = {name: taken(tape, f"{name}/before") for name in names}
    nodes = (*body.nodes, *(Node("Identity", (name,), (copy,)) for name, copy in copies.items()))
    types = {**body.types, **{copy: body.types.get(name, TensorType()) for name, copy in copies.items()}}
    left_out = len(body.outputs) - int(step.op.name == "Loop") - len(node.outputs)
    outputs = (*node.outputs, *[""] * left_out, *(tape.fresh(f"{step.label}/{name}") for name in names))
    body = replace(body, nodes=nodes, outputs=(*body.outputs, *copies.values()), types=types)
    turned = {k: (*node.attrs[k], *[0] * len(names)) for k in _SCANNED if k in node.attrs}
    node = replace(node, outputs=outputs, attrs={**node.attrs, **turned, "body": body})
    return replace(step, node=node, metadata={"kept": replace(step.metadata["kept"], node=node)})
