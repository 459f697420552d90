"""On which ways a derivative may flow through a graph, read off its nodes alone.

A run tells more: it follows one branch and knows every dtype.  The graph has to do where no run is possible without
values that only the user has, and where another branch than the one that was taken may connect two tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from gradcheck_cli.graph import Graph, Node
from gradcheck_cli.op import Ops, zero

_DECIDING = {"If": 1, "Loop": 2}  # how many leading inputs decide the way and carry no derivative


def nodes_between(
    nodes: Sequence[Node],
    xs: Iterable[str],
    ys: Iterable[str],
    ops: Ops,
    *,
    stop: Collection[str] = (),
    is_cut: Callable[[str], bool] = lambda name: False,
) -> list[int]:
    """Indices of the nodes through which a derivative of ys by xs may flow.

    `stop` are tensors that count as constants; `is_cut` says of a tensor that it holds no real numbers.
    """
    reached = {name for name in xs if not is_cut(name)}
    for node in nodes:
        reached.update(n for n in _outputs_reached(node, reached, ops) if n not in stop and not is_cut(n))
    needed, between = set(ys), []
    for index in reversed(range(len(nodes))):
        live = [n for n in nodes[index].outputs if n in reached and n in needed and n not in stop]
        if live and _outputs_reached(nodes[index], reached, ops):
            needed.update(_carriers(nodes[index]))
            between.append(index)
    return between[::-1]


def without_rule(nodes: Iterable[tuple[int, Node]], ops: Ops) -> Iterator[tuple[int, str, str, str]]:
    """Nodes without a gradient rule, those of subgraphs too, as (index, operator, domain, name)."""
    for index, node in nodes:
        record = ops.get(node.key)
        if record is None or not record.differentiable:
            yield index, node.op, node.domain, node.name or next((n for n in node.outputs if n), node.op)
        for graph in node.subgraphs:
            inner = nodes_between(graph.nodes, {*graph.inputs, *graph.captures}, graph.outputs, ops)
            yield from without_rule(((index, graph.nodes[i]) for i in inner), ops)


def only_decides(node: Node, operand: int, ops: Ops) -> bool:
    """An operand says which, how many or whether, and no result is computed with its numbers."""
    if any(node.subgraphs):
        return operand < _DECIDING.get(node.op, 0)
    op = ops.get(node.key)
    return op is not None and all(
        op.cut(node.attrs, operand, output) in ("decides", "sizes") for output in range(len(node.outputs))
    )


def _carriers(node: Node) -> tuple[str, ...]:
    """What a node reads other than what decides its way."""
    deciding = set(node.inputs[: _DECIDING.get(node.op, 0)]) if any(node.subgraphs) else set()
    kept = {*node.inputs[len(deciding) :], *(name for graph in node.subgraphs for name in graph.captures)}
    return tuple(name for name in node.reads if name not in deciding or name in kept)


def _outputs_reached(node: Node, reached: Collection[str], ops: Ops) -> list[str]:
    """Outputs to which a derivative may flow from `reached`: of an If, those that one of its branches connects."""
    arriving = [name for name in _carriers(node) if name in reached]
    record = ops.get(node.key)
    if not arriving or (record is not None and record.vjp is zero):
        return []
    if node.op != "If":
        return [name for name in node.outputs if name]
    ends = [_ends_reached(graph, arriving) for graph in node.subgraphs]
    return [name for i, name in enumerate(node.outputs) if name and any(i in end for end in ends)]


def _ends_reached(graph: Graph, names: Iterable[str]) -> set[int]:
    """Numbers of a subgraph's outputs that depend on names around it."""
    reached = graph.reached_from(names)
    return {i for i, name in enumerate(graph.outputs) if name in reached}
