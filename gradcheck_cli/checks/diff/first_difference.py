"""The place where two models begin to differ: the first inner result that does, or the last cotangent that agrees.

A tensor of one model matches the one of the same name in the other; where tools have renamed it, the one tensor that
holds the same numbers, if there is only one.  Tensors between matches, such as those of a fused operator, are skipped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gradcheck_cli.checks.diff.model_runs import BothRuns, ModelRun
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array, Graph, describe, is_inexact
from gradcheck_cli.results.record import Suspect
from gradcheck_cli.verdict.rule import agree, farthest, ground_of

_SHARE = 1e-2  # of the difference at the output: the least one inside


def first_difference(both: BothRuns, y: str, error: float, rtol: float) -> Suspect | None:
    """The suspect for a difference of y: the node of B that computes the first tensor that differs."""
    a, b = both.a, both.b
    found = match_values(both, _least(error, rtol))
    graph, way = a.source.graph, a.source.graph.needed_for([y], found.same.keys() - {y})
    apart = {**found.apart, y: both.ys[y] or y}
    first = next((n for n in _in_order(graph, way) if n in apart), y)
    node = b.source.graph.producer(apart[first])
    before = [n for n in _reads(graph, first) if n in found.same and n not in graph.constants]
    far, where = f"max rel err {_apart(a, first, b, apart[first]):.1e}", "is the first result that differs"
    if node is None:
        where, node = "has other values", _reader(b.source.graph, apart[first])
    if node is None:
        return None
    own = f"; {both.names[0]} has {_node(graph, first)} there" if graph.producer(first) is not None else ""
    verb = "is" if len(before) == 1 else "are"
    same = f"; {', '.join(map(repr, before[:3]))} before it {verb} the same" if before else ""
    return _suspect(b.source.graph, node, f"{first!r} {where}: {far}{own}{same}")


def last_agreement(both: BothRuns, y: str, x: str, weights: Array, error: float, rtol: float) -> Suspect | None:
    """The suspect for a different gradient: the node of B that reads the last tensor whose cotangent differs."""
    a, b = both.a, both.b
    same = {**match_values(both, max(rtol, 1e-5)).same, **{n: o for n, o in ((x, both.xs[x]), (y, both.ys[y])) if o}}
    names = [n for n in same if a.floating(n) and b.floating(same[n])]
    try:
        mine = dict(zip(names, a.cotangents(y, names, weights), strict=True))
        theirs = dict(zip(names, b.cotangents(same[y], [same[n] for n in names], weights), strict=True))
    except GradcheckError:
        return None
    graph, least = a.source.graph, _least(error, rtol)
    agreed = {n for n in names if mine[n].shape == theirs[n].shape
              and agree(mine[n].T, theirs[n].T, least * ground_of(mine[n].T, theirs[n].T).largest)}  # fmt: skip
    way = _on_to_what_is_same(graph, x, agreed, graph.needed_for([y]))
    last = [n for n in _in_order(graph, way) if n in same and n not in agreed]
    if not last:
        return None
    node = _reader(b.source.graph, same[last[-1]], b.source.graph.needed_for([same[y]]))
    ends = [n for n in _made_from(graph, way) if n in agreed]
    if node is None:
        return None
    until = f"the gradient of {', '.join(map(repr, ends[:3]))} is the same, that" if ends else "the gradient"
    reader = _reader(graph, last[-1], graph.needed_for([y]))
    own = f"; {both.names[0]} has {describe(reader, graph.nodes[reader])} there" if reader is not None else ""
    return _suspect(b.source.graph, node, f"{until} of {last[-1]!r} is not{own}")


def _least(error: float, rtol: float) -> float:
    """The relative difference that counts for inner tensors, by that of the output."""
    return max(rtol, min(_SHARE * error, 1e-3))


@dataclass(frozen=True)
class ValueMatch:
    """Tensors of A that B has as well, with names there: those that agree (`same`) and those that differ (`apart`)."""

    same: Mapping[str, str]
    apart: Mapping[str, str]


def match_values(both: BothRuns, rtol: float) -> ValueMatch:
    """The tensors of both models that match."""
    a, b = both.a, both.b
    known = {n: o for n, o in (*both.ys.items(), *both.xs.items()) if o}
    same, apart = dict[str, str](), dict[str, str]()
    for name in a.tape.named:
        other = known.get(name, name)
        if other in b.tape.named and _alike(a, name, b, other):
            into = same if _apart(a, name, b, other) <= rtol else apart
            into[name] = other
    left = {n: None for n in a.tape.named if n not in same and n not in apart}
    taken = {*same.values(), *apart.values()}
    same.update(_by_values(a, left, b, [n for n in b.tape.named if n not in taken], rtol))
    return ValueMatch(same, apart)


def _by_values(
    a: ModelRun, mine: Iterable[str], b: ModelRun, theirs: Iterable[str], rtol: float
) -> Iterator[tuple[str, str]]:
    """Tensors that hold the same numbers as exactly one of the other model."""
    groups = defaultdict[tuple[int, ...], list[str]](list)
    for name in theirs:
        groups[b.tape.named[name].shape].append(name)
    found = {n: [o for o in groups.get(a.tape.named[n].shape, ()) if _alike(a, n, b, o) and _apart(a, n, b, o) <= rtol]
             for n in mine if a.tape.named[n].size > 1}  # fmt: skip
    claims = defaultdict[str, list[str]](list)
    for name, others in found.items():
        for other in others:
            claims[other].append(name)
    yield from ((n, others[0]) for n, others in found.items() if len(others) == 1 and len(claims[others[0]]) == 1)


def _alike(a: ModelRun, name: str, b: ModelRun, other: str) -> bool:
    one, two = a.tape.named[name], b.tape.named[other]
    return one.shape == two.shape and one.size > 0 and is_inexact(one.dtype) and is_inexact(two.dtype)


def _apart(a: ModelRun, name: str, b: ModelRun, other: str) -> float:
    """The largest difference of two tensors, relative to the largest entry."""
    one, two = a.tape.named[name].value, b.tape.named[other].value
    if one.shape != two.shape or object in (one.dtype, two.dtype):
        return float("inf")
    largest, few = max(_largest(one), _largest(two)) or 1.0, slice(None, None, one.size // 16)
    if one.size > 64 and not agree(one.reshape(-1)[few], two.reshape(-1)[few], largest / 2):
        return 1.0  # a few entries suffice for most
    return farthest(one, two, largest)[1]


def _largest(value: Array) -> float:
    size = np.abs(value)
    return float(np.max(size, initial=0.0, where=np.isfinite(size)))


def _on_to_what_is_same(graph: Graph, x: str, agreed: set[str], needed: set[str]) -> set[str]:
    """x and the needed tensors computed from it, up to those whose cotangent agrees."""
    way = {x}
    for node in graph.nodes:
        if not way.isdisjoint(node.reads):
            way.update(n for n in node.outputs if n in needed and n not in agreed)
    return way


def _made_from(graph: Graph, way: set[str]) -> list[str]:
    """Outputs of the nodes that read some of these tensors."""
    return [n for node in graph.nodes if not way.isdisjoint(node.reads) for n in node.outputs if n]


def _in_order(graph: Graph, names: set[str]) -> list[str]:
    """Tensors in the order of their first appearance in the graph."""
    order = dict.fromkeys(n for node in graph.nodes for n in (*node.reads, *node.outputs) if n in names)
    return [*order, *(n for n in names if n not in order)]


def _reads(graph: Graph, name: str) -> tuple[str, ...]:
    index = graph.producer(name)
    return () if index is None else graph.nodes[index].reads


def _reader(graph: Graph, name: str, needed: set[str] | None = None) -> int | None:
    """The first node that reads a tensor on the way to the needed ones."""
    reading = (i for i, node in enumerate(graph.nodes) if name in node.reads)
    return next((i for i in reading if needed is None or needed.intersection(graph.nodes[i].outputs)), None)


def _node(graph: Graph, name: str) -> str:
    index = graph.producer(name)
    assert index is not None
    return describe(index, graph.nodes[index])


def _suspect(graph: Graph, index: int, diagnosis: str) -> Suspect:
    node = graph.nodes[index]
    outputs = tuple(n for n in node.outputs if n)
    reads = tuple(n for n in node.reads if n not in graph.constants)
    return Suspect(index, node.op, node.name, outputs, reads, diagnosis=diagnosis)
