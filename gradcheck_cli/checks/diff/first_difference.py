"""Where two models part: the first result inside of them that differs, the last cotangent that is still the same.

A tensor of one model belongs to the one of the same name in the other.  Where tools have given new names it belongs to
the one tensor that holds the same numbers, if no other does.  What lies between tensors that are the same, a fused
operator and what it was made of, is of no interest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gradcheck_cli.checks.diff.meeting import Meeting
from gradcheck_cli.checks.diff.run import Run
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array, Graph, describe, is_inexact
from gradcheck_cli.points.test_data import gaps
from gradcheck_cli.results.record import Suspect

_SHARE = 1e-2  # of the difference at the end: what counts as one inside


@dataclass(frozen=True)
class Matched:
    """Tensors of A that B has as well, by its names: those that are `same` there, and those that are `apart`."""

    same: Mapping[str, str]
    apart: Mapping[str, str]


def first_difference(meeting: Meeting, y: str, error: float, rtol: float) -> Suspect | None:
    """Where y begins to differ: the first tensor on the way to it that does; None where no node of B computes it."""
    a, b = meeting.a, meeting.b
    found = matched(meeting, _least(error, rtol))
    graph, way = a.source.graph, _back_to_what_is_same(a.source.graph, y, found.same)
    apart = {**found.apart, y: meeting.ys[y] or y}
    first = next((n for n in _in_order(graph, way) if n in apart), y)
    node = b.source.graph.producer(apart[first])
    before = [n for n in _reads(graph, first) if n in found.same and n not in graph.constants]
    far, where = f"max rel err {_apart(a, first, b, apart[first]):.1e}", "is the first result that differs"
    if node is None:
        where, node = "has other values", _reader(b.source.graph, apart[first])
    if node is None:
        return None
    own = f"; {meeting.names[0]} has {_node(graph, first)} there" if graph.producer(first) is not None else ""
    verb = "is" if len(before) == 1 else "are"
    same = f"; {', '.join(map(repr, before[:3]))} before it {verb} the same" if before else ""
    return _suspect(b.source.graph, node, f"{first!r} {where}: {far}{own}{same}")


def last_agreement(meeting: Meeting, y: str, x: str, weights: Array, error: float, rtol: float) -> Suspect | None:
    """Where the gradient begins to differ on the way from y to x: what reads the last tensor whose cotangent differs."""
    a, b = meeting.a, meeting.b
    same = {
        **matched(meeting, max(rtol, 1e-5)).same,
        **{n: o for n, o in ((x, meeting.xs[x]), (y, meeting.ys[y])) if o},
    }
    names = [n for n in same if a.floating(n) and b.floating(same[n])]
    try:
        mine = dict(zip(names, a.cotangents(y, names, weights), strict=True))
        theirs = dict(zip(names, b.cotangents(same[y], [same[n] for n in names], weights), strict=True))
    except GradcheckError:
        return None
    agreed = {n for n in names if mine[n].shape == theirs[n].shape and _near(mine[n], theirs[n], _least(error, rtol))}
    graph = a.source.graph
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
    own = f"; {meeting.names[0]} has {describe(reader, graph.nodes[reader])} there" if reader is not None else ""
    return _suspect(b.source.graph, node, f"{until} of {last[-1]!r} is not{own}")


def _least(error: float, rtol: float) -> float:
    """The relative difference inside that counts as one, given that at the end."""
    return max(rtol, min(_SHARE * error, 1e-3))


def matched(meeting: Meeting, rtol: float) -> Matched:
    """The tensors of both models that belong together."""
    a, b = meeting.a, meeting.b
    known = {**{n: o for n, o in (*meeting.ys.items(), *meeting.xs.items()) if o}}
    same, apart = dict[str, str](), dict[str, str]()
    for name in a.tape.named:
        other = known.get(name, name)
        if other in b.tape.named and _alike(a, name, b, other):
            into = same if _apart(a, name, b, other) <= rtol else apart
            into[name] = other
    left = {n: None for n in a.tape.named if n not in same and n not in apart}
    taken = {*same.values(), *apart.values()}
    same.update(_by_values(a, left, b, [n for n in b.tape.named if n not in taken], rtol))
    return Matched(same, apart)


def _by_values(a: Run, mine: Iterable[str], b: Run, theirs: Iterable[str], rtol: float) -> Iterator[tuple[str, str]]:
    """Tensors that hold the same numbers as one of the other model, and as no other one."""
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


def _alike(a: Run, name: str, b: Run, other: str) -> bool:
    one, two = a.tape.named[name], b.tape.named[other]
    return one.shape == two.shape and one.size > 0 and is_inexact(one.dtype) and is_inexact(two.dtype)


def _apart(a: Run, name: str, b: Run, other: str) -> float:
    """How far two tensors are apart, relative to the largest entry."""
    one, two = a.tape.named[name].value, b.tape.named[other].value
    if one.shape != two.shape or one.dtype == object or two.dtype == object:
        return float("inf")
    if one.size > 64 and _clearly_apart(one, two):  # by a few entries, which is what most are told by
        return 1.0
    largest = max(_largest(one), _largest(two))
    gap = float(np.max(gaps(one, two), initial=0.0))
    return gap / largest if largest else gap


def _clearly_apart(one: Array, two: Array) -> bool:
    few = slice(None, None, one.size // 16)
    here, there = one.reshape(-1)[few], two.reshape(-1)[few]
    gap = gaps(here, there)
    return bool((gap > 0.5 * max(_largest(one), _largest(two))).any())


def _near(one: Array, two: Array, rtol: float) -> bool:
    largest = np.maximum(np.max(np.abs(one), axis=1, initial=0.0), np.max(np.abs(two), axis=1, initial=0.0))
    return bool((gaps(one, two) <= rtol * largest[:, None]).all())


def _largest(value: Array) -> float:
    with np.errstate(invalid="ignore"):
        size = np.abs(value)
    return float(np.max(size, initial=0.0, where=np.isfinite(size)))


def _back_to_what_is_same(graph: Graph, y: str, same: Mapping[str, str]) -> set[str]:
    """y and what it is computed from, as far back as to tensors that are the same."""
    way = {y}
    for node in reversed(graph.nodes):
        if not way.isdisjoint(node.outputs):
            way.update(name for name in node.reads if name not in same)
    return way


def _on_to_what_is_same(graph: Graph, x: str, agreed: set[str], needed: set[str]) -> set[str]:
    """x and what is computed from it on the way to what is needed, as far as to tensors whose cotangent is the same."""
    way = {x}
    for node in graph.nodes:
        if not way.isdisjoint(node.reads):
            way.update(n for n in node.outputs if n in needed and n not in agreed)
    return way


def _made_from(graph: Graph, way: set[str]) -> list[str]:
    """What the nodes that read some tensors compute."""
    return [n for node in graph.nodes if not way.isdisjoint(node.reads) for n in node.outputs if n]


def _in_order(graph: Graph, names: set[str]) -> list[str]:
    """Tensors in the order in which they come up: those that nothing computes where they are read first."""
    order = dict.fromkeys(n for node in graph.nodes for n in (*node.reads, *node.outputs) if n in names)
    return [*order, *(n for n in names if n not in order)]


def _reads(graph: Graph, name: str) -> tuple[str, ...]:
    index = graph.producer(name)
    return () if index is None else graph.nodes[index].reads


def _reader(graph: Graph, name: str, needed: set[str] | None = None) -> int | None:
    """The first node that reads a tensor, on the way to what is needed."""
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
