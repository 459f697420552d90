"""Run a graph once at a point, on a tape: `If` follows the branch taken, `Loop` and `Scan` unroll."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradcheck_cli.errors import GradcheckError, ModelError, UnsupportedError
from gradcheck_cli.graph import Graph, Node, describe
from gradcheck_cli.op import Ops
from gradcheck_cli.tape import Tape, Var


class Body:
    """A subgraph as a control-flow operator calls it: a function of `Var`s that adds the graph's nodes to the tape.

    It sees the tensors of the graph around it as they were when its node was reached.
    """

    def __init__(self, tape: Tape, graph: Graph, around: Mapping[str, Var]) -> None:
        self.tape, self.graph, self.around = tape, graph, around
        self.constants = {name: tape.constant(value) for name, value in graph.constants.items()}

    def __call__(self, *arguments: Var) -> tuple[Var, ...]:
        """Results of the graph for arguments in the order of its inputs."""
        scope = {**self.around, **self.constants}
        scope.update(zip(self.graph.inputs, arguments, strict=False))
        for node in self.graph.nodes:
            run_node(self.tape, node, scope, outputs=())
        return tuple(_lookup(scope, name, self.graph) for name in self.graph.outputs)


def trace(
    graph: Graph,
    feeds: Mapping[str, Any],
    *,
    ops: Ops,
    dtype: str = "float64",
    seed: int = 0,
    targets: Iterable[str] | None = None,
    lenient: bool = False,
) -> Tape:
    """The tape of `graph` at `feeds`, which may fix any tensor, inner ones included.

    Only what `targets` (default: all outputs) need is run.  If `lenient`, an operator that cannot be run blocks the
    tensors behind it (`Tape.blocked`) instead of raising.
    """
    tape = Tape(ops, dtype=dtype, seed=seed)
    tape.reserved = set(graph.tensors)
    needed = _needed(graph, graph.outputs if targets is None else targets, feeds)
    for name in graph.tensors:
        if name in feeds:
            tape.named[name] = tape.hold(name, feeds[name])
        elif name in graph.constants:
            tape.named[name] = tape.hold(name, graph.constants[name])
            tape.constants[name] = tape.values[name]
    for index, node in enumerate(graph.nodes):
        if needed.isdisjoint(node.outputs):
            continue
        with tape.from_node(index, node.metadata):
            _step(tape, index, node, feeds, lenient)
    return tape


def run_node(tape: Tape, node: Node, scope: dict[str, Var], outputs: Sequence[str]) -> None:
    """Add one node of a graph to the tape, reading tensors from `scope` and leaving its outputs there."""
    inputs = [_lookup(scope, name, node) for name in node.inputs]
    attrs = {k: Body(tape, v, dict(scope)) if isinstance(v, Graph) else v for k, v in node.attrs.items()}
    label = node.name or next((n for n in node.outputs if n), node.op)
    made = tape.emit(
        node.op,
        inputs,
        attrs,
        domain=node.domain,
        n_outputs=len(node.outputs),
        outputs=outputs,
        name=label,
    )
    if len(made) < len([n for n in node.outputs if n]):
        raise ModelError(f"{node.op} {label!r} has {len(made)} outputs, not {len(node.outputs)}")
    scope.update((n, v) for n, v in zip(node.outputs, made, strict=False) if n)


def _step(tape: Tape, index: int, node: Node, feeds: Mapping[str, Any], lenient: bool) -> None:
    blocked = next((tape.blocked[name] for name in node.reads if name in tape.blocked), None)
    fed = {name: tape.named[name] for name in node.outputs if name in feeds}
    names = [tape.fresh(f"{name}/computed") if name in fed else name for name in node.outputs]
    try:
        if blocked is not None:
            raise blocked
        run_node(tape, node, tape.named, names)
    except GradcheckError as error:
        error = _located(error, index, node)
        if not lenient:
            raise error from error.__cause__
        tape.blocked.update((name, error) for name in node.outputs if name)
    tape.named.update(fed)


def _located(error: GradcheckError, index: int, node: Node) -> GradcheckError:
    """An unknown operator is reported with the node that uses it."""
    if isinstance(error, UnsupportedError) and str(error).startswith("no operator"):
        domain = f"{node.domain}." if node.domain else ""
        return UnsupportedError(f"no forward for '{domain}{node.op}' ({describe(index, node)})", code="GC502")
    return error


def _needed(graph: Graph, targets: Iterable[str], feeds: Mapping[str, Any]) -> set[str]:
    needed = set(targets) - set(feeds)
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(name for name in node.reads if name not in feeds)
    return needed


def _lookup(scope: Mapping[str, Var], name: str, where: Graph | Node) -> Any:
    if not name:
        return None
    if name not in scope:
        label = where.name or (where.op if isinstance(where, Node) else "graph")
        raise ModelError(f"{label!r} reads {name!r}, which has no value")
    return scope[name]
