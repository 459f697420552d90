"""Runs a graph once at a point, on a tape: `If` follows the branch taken, `Loop` and `Scan` unroll.

`Dependence` tells what of a run differs for other values that are fed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from gradcheck_cli.autodiff.tape import Step, Tape, Where, quietly
from gradcheck_cli.errors import GradcheckError, ModelError, UnsupportedError, counted
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.graph.containers import CONTAINERS, mapped, placed, typed
from gradcheck_cli.op import Ops
from gradcheck_cli.op.batching import shape_only


class GraphFunction:
    """A subgraph as a control-flow operator calls it: a function of `Var`s that adds the graph's nodes to the tape.

    It sees the values of the graph around it as they were when its node was reached.  `part` is its name in messages:
    "body of node 3 Loop 'y'".
    """

    def __init__(self, tape: Tape, graph: Graph, around: Mapping[str, Any], part: str) -> None:
        self.tape, self.graph, self.around, self.part = tape, graph, around, part
        self.constants = {name: tape.constant(value) for name, value in graph.constants.items()}

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Results of the graph for arguments in the order of its inputs."""
        scope: dict[str, Any] = {**self.around, **self.constants}
        scope.update(zip(self.graph.inputs, arguments, strict=False))
        for index, node in enumerate(self.graph.nodes):
            with self.tape.within(place=self.tape.place.into(self.part, index)):
                run_node(self.tape, node, scope, outputs=())
        return tuple(_lookup(scope, name, lambda: f"the {self.part}") for name in self.graph.outputs)

    def on(self, tape: Tape) -> GraphFunction:
        """The subgraph as a function on another tape, where the values around it are constants."""
        around = {name: self.around[name] for name in self.graph.captures if name in self.around}
        held = {name: mapped(lambda x: tape.constant(x.value), value) for name, value in around.items()}
        return GraphFunction(tape, self.graph, held, self.part)


def trace(
    graph: Graph,
    feeds: Mapping[str, Any],
    *,
    ops: Ops,
    dtype: str = "float64",
    seed: int = 0,
    targets: Iterable[str] | None = None,
    lenient: bool = False,
    halting: bool = False,
    on: type[Tape] = Tape,
) -> Tape:
    """The tape of `graph` at `feeds`, which may fix any tensor, inner ones included; `on` is the kind of tape.

    Only nodes that `targets` (default: all outputs) need are run.  If `lenient`, an operator that cannot be run blocks
    the tensors that depend on it (`Tape.blocked`) instead of raising; if `halting` too, nothing is run behind
    one that fails at this point, and not everywhere.
    """
    tape = on(ops, dtype=dtype, seed=seed)
    tape.reserved = set(graph.all_tensors)
    needed = graph.needed_for(graph.outputs if targets is None else targets, feeds)
    scope: dict[str, Any] = {}
    for name in graph.tensors:
        if name in feeds:
            scope[name] = _held(tape, name, feeds[name], graph.types.get(name))
        elif name in graph.constants:
            scope[name] = tape.weight(name, graph.constants[name])
    _keep(tape, scope)
    with quietly():
        for index, node in enumerate(graph.nodes):
            if needed.isdisjoint(node.outputs):
                continue
            with tape.from_node(index, node.metadata):
                _step(tape, node, scope, feeds, lenient)
            if halting and any(_is_failure(tape.blocked.get(name)) for name in node.outputs):
                break
    return tape


def _is_failure(error: GradcheckError | None) -> bool:
    return error is not None and not isinstance(error, UnsupportedError)


def result(tape: Tape, name: str) -> Any:
    """The value of a traced tensor: an array, or a record of arrays for a sequence, an optional or a map."""
    if name in tape.blocked:
        raise tape.blocked[name]
    return mapped(lambda x: x.value, tape.containers[name] if name in tape.containers else tape.named[name])


def run_node(tape: Tape, node: Node, scope: dict[str, Any], outputs: Sequence[str]) -> None:
    """Adds one node of a graph to the tape; reads values from `scope` and puts its outputs there."""
    label = node.name or next((n for n in node.outputs if n), node.op)
    where = partial(tape.place.of, node.op, label)
    inputs = [_lookup(scope, name, where) for name in node.inputs]
    attrs = {
        k: GraphFunction(tape, v, dict(scope), f"{k} of {where()}") if isinstance(v, Graph) else v
        for k, v in node.attrs.items()
    }
    count = len(node.outputs)
    with tape.within(place=tape.place.named(node, label)):
        made = tape.emit(node.op, inputs, attrs, domain=node.domain, n_outputs=count, outputs=outputs, name=label)
    if len(made) < len([n for n in node.outputs if n]):
        raise ModelError(f"{where()} has {counted(len(made), 'output')}, not {count}")
    scope.update((n, v) for n, v in zip(node.outputs, made, strict=False) if n)


def _held(tape: Tape, name: str, value: Any, declared: TensorType | None) -> Any:
    """A fed value as a `Var`, or as a record with a `Var` for each tensor inside."""
    record = typed(value, declared, repr(name))
    return placed(name, record, lambda n, x: tape.hold(n if n == name else tape.fresh(n), x))


def _keep(tape: Tape, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, CONTAINERS):
            tape.containers[name] = value
        else:
            tape.named[name] = value


def _step(tape: Tape, node: Node, scope: dict[str, Any], feeds: Mapping[str, Any], lenient: bool) -> None:
    blocked = next((tape.blocked[name] for name in node.reads if name in tape.blocked), None) if tape.blocked else None
    fed = {name: scope[name] for name in node.outputs if name in feeds}
    names = [tape.fresh(f"{name}/computed") if name in fed else name for name in node.outputs]
    try:
        if blocked is not None:
            raise blocked
        run_node(tape, node, scope, names)
    except GradcheckError as error:
        if not lenient:
            raise
        tape.blocked.update((name, error) for name in node.outputs if name)
    scope.update(fed)
    _keep(tape, {name: scope[name] for name in node.outputs if name in scope})


def _lookup(scope: Mapping[str, Any], name: str, where: Where) -> Any:
    if not name:
        return None
    if name not in scope:
        raise ModelError(f"{where()} reads {name!r}, which has no value")
    return scope[name]


class Dependence(Struct, frozen=True):
    """Names of the tensors whose values, and of those whose shapes, depend on fed values."""

    values: frozenset[str]
    shapes: frozenset[str]

    @staticmethod
    def on(fed: Iterable[str], tape: Tape, graph: Graph, shaped: Iterable[str] = ()) -> Dependence:
        """The tensors that depend on the values of `fed`, on the tape of a graph.

        The shapes of `fed` are given; those of `shaped` are known to depend on values.
        """
        values, shapes = set(fed), set(shaped)
        for step in tape.steps:
            _spread(step, values, shapes)
        if not values.isdisjoint(tape.guards):  # then earlier steps, which the way through a graph chose, depend too
            choosing = {index: node for index, node in enumerate(graph.nodes) if any(node.subgraphs)}
            made = {tape.named[n].name for node in choosing.values() for n in node.outputs if n in tape.named}
            made.update(n for step in tape.steps if step.origin in choosing for n in step.node.outputs)
            values, shapes = values | made, shapes | made
            for step in tape.steps:
                _spread(step, values, shapes)
        return Dependence(frozenset(values), frozenset(shapes))


def _spread(step: Step, values: set[str], shapes: set[str]) -> None:
    """Adds the outputs of a step to `values` and `shapes` if they depend on them."""
    given = step.operands + step.statics
    if values.isdisjoint(given) and shapes.isdisjoint(given) and "kept" not in step.metadata:
        return
    read = () if step.op.batching is shape_only else step.operands
    by, shaping = step.op.sized_by, step.operands
    if by == "first":
        by, shaping = (), step.operands[:1]
    counted = {step.operands[i] for i in by or () if i < len(step.operands)}
    moved = not shapes.isdisjoint(step.operands)
    if "kept" in step.metadata:
        shapes.update(_shaped_by(step, values, shapes))
    elif by is not None and not (shapes.isdisjoint(shaping) and values.isdisjoint(counted.union(step.statics))):
        shapes.update(step.node.outputs)
    if moved or not values.isdisjoint([*read, *step.statics]):
        values.update(step.node.outputs)


def _shaped_by(step: Step, values: set[str], shapes: set[str]) -> set[str]:
    """Outputs of a node with subgraphs whose shapes depend on values, by what is known of it (`export.inner.KeptNode`)."""
    kept, read = step.metadata["kept"], set(step.operands)
    moved, fed = not shapes.isdisjoint(read), not values.isdisjoint(kept.counted)
    followed = {i: x in shapes for i, x in enumerate(kept.like)}

    def depends(i: int) -> bool:
        return followed.get(i, (moved and i in kept.loose) or (fed and i in kept.ragged))

    return {y for i, y in enumerate(step.outputs) if y and depends(i)}
