"""Nodes with subgraphs as single steps of a tape: operands are the node's inputs and what its subgraphs read outside."""

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
class KeptNode:
    """A node with subgraphs, which is run on a tape of its own, where it is unrolled as in a check.

    Shapes of outputs: the first are those of `like`.  Outputs with an index in `ragged` have shapes that depend on the
    values of `counted` tensors, such as the number of iterations or the condition of an If; those with an index in
    `loose` have shapes that depend on the shapes of operands.
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
        """The inputs, with "" for those left out, and the tensors that the subgraphs read from outside."""
        return (*self.node.inputs, *captured(*self.node.subgraphs))

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the initial states of a loop."""
        match self.node.op:
            case "Loop":
                return self.node.inputs[2:]
            case "Scan":
                return self.node.inputs[: -self.node.attrs["num_scan_inputs"]]
            case _:
                return ()

    def run(self, *arrays: Array | None) -> tuple[Array, ...]:
        """The outputs for values of `reads`."""
        tape = Tape(self.ops, dtype=self.dtype, seed=self.seed)
        given = zip(self.reads, arrays, strict=True)
        scope: dict[str, Any] = {name: tape.hold(name, value) for name, value in given if value is not None}
        run_node(tape, self.node, scope, outputs=())
        made = [scope[name] if name else tape.constant(0) for name in self.node.outputs]
        other = next((y for y in made if not isinstance(y, Var)), None)
        if other is not None:
            raise UnsupportedError(f"{self.node.op} gives {described(other)}; a file of derivatives holds tensors")
        return tuple(y.value for y in made)


def run_kept(*arrays: Array | None, kept: KeptNode) -> tuple[Array, ...]:
    """The kernel of a node with subgraphs."""
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
    """Adds a node with subgraphs to a tape and evaluates it; gives a `Var` for each of `count` outputs.

    `KeptNode` explains `ragged`, `like`, `loose` and `counted`, which is by default all that the node reads.  `values`
    are those of the outputs, if they are known already.
    """
    names = tuple(outputs or (tape.fresh(f"{op.name}_out{i}" if i else op.name) for i in range(count)))
    given = tuple("" if x is None else x.name for x in inputs)
    name = tape.place.label if outputs else names[0]  # the node of a body may be added many times
    node = Node(op.name, given, names, attrs, name=name, metadata=tape.place.metadata)
    kept = KeptNode(node, {**tape.ops, **table(CONTROL_FLOW, RECURRENT)}, tape.dtype, tape.seed, ragged)
    counts = kept.reads if counted is None else tuple(x.name for x in counted if x is not None)
    kept = replace(kept, counted=counts, like=kept.states or tuple(x.name for x in like), loose=loose)
    step = Step(node, op, kept.reads, (), {"kept": kept}, tape.place)
    return tape.recorded(lambda: step, evaluated(tape, step) if values is None else values)


def evaluated(tape: Tape, step: Step) -> Sequence[Array]:
    """The outputs of a step at the point."""
    arrays = [tape.values[name] if name else None for name in step.operands]
    where = partial(step.place.of, step.op.name, step.label)
    return list(run(step.op, arrays, step.metadata, where=where, widen=tape.widen))


def starts(tape: Tape, made: str, names: Sequence[str]) -> list[Var]:
    """The values of inputs of a loop's body in each iteration, stacked, as new outputs of the loop.

    `made` is an output of the loop, which is on the tape already.
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
    """Inputs of the body that the loop outputs already in a stack, with the names of these outputs."""
    body, attrs = step.node.attrs["body"], step.node.attrs
    outputs = body.outputs[1:] if step.op.name == "Loop" else body.outputs
    first = len(step.metadata["kept"].states)
    turned = {i for key in _SCANNED for i, value in enumerate(attrs.get(key, ())) if value}
    collected = enumerate(zip(outputs[first:], step.outputs[first:], strict=False))
    plain = {name: y for i, (name, y) in collected if y and i not in turned}
    copies = {node.outputs[0]: node.inputs[0] for node in body.nodes if node.op == "Identity"}
    return {copies[name]: y for name, y in plain.items() if copies.get(name) in body.inputs}


def _stacking(tape: Tape, step: Step, names: Sequence[str]) -> Step:
    """The loop with some inputs of its body as further outputs, stacked."""
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
