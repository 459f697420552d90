"""Matching tensors of two models, and the place where the models begin to differ.

Inputs and outputs match as the user says, by name, else by position, shape and dtype.  An inner tensor matches the one
of the same name; where tools have renamed it, the one tensor that holds the same numbers, if there is only one.  Tensors
between matches, such as those of a fused operator, are skipped.  A difference begins at the first inner result that
differs, or at the last cotangent that agrees.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradcheck_cli.checks.diff.model_runs import BothRuns, ModelRun, PrecisionLoss
from gradcheck_cli.errors import GradcheckError, UsageError, did_you_mean, plural, quoted, shown
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, TensorType, describe, is_inexact, is_inexact_array
from gradcheck_cli.points.dims import declared_shape, symbol
from gradcheck_cli.points.point import in_its_dtype
from gradcheck_cli.results.record import Suspect
from gradcheck_cli.settings import Settings
from gradcheck_cli.verdict.agreement import agree, farthest, wide
from gradcheck_cli.verdict.rule import ground_of, magnitude

_SHARE = 1e-2  # of the difference at the output: the least one inside


@dataclass(frozen=True, slots=True)
class NameMatch:
    """Names in A -> names in B, of inputs and outputs; `given` are those of --map, also of inner tensors."""

    a: Source
    b: Source
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    given: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def of(self, name: str) -> str | None:
        """The partner of any tensor, or None."""
        known = {**self.inputs, **self.outputs, **self.given}
        return known.get(name, name if name in self.b.graph.tensors and name not in known.values() else None)

    def handed_over(self, feeds: Mapping[str, Any], dtype: str) -> dict[str, Any]:
        """The feeds of A under B's names and in B's dtypes; floating-point dtypes change only if `dtype` is "model"."""
        found = {}
        for name, value in feeds.items():
            other = self.of(name)
            if other is not None:
                found[other] = _cast(self.b.graph, other, value, dtype)
            elif name not in self.a.graph.inputs:
                raise UsageError(
                    f"{self.b.uri} has no tensor {shown(name)!r} to feed. Which one is it? --map {quoted(name)}=NAME"
                )
        return found


def match_names(a: Source, b: Source, given: Mapping[str, str]) -> NameMatch:
    """The partners in B of all inputs and outputs of A; UsageError if an input of B has none."""
    _require(a, b, given)
    inputs = _matched(a.graph, b.graph, a.graph.free_inputs, b.graph.free_inputs, given)
    outputs = _matched(a.graph, b.graph, a.graph.outputs, b.graph.outputs, given)
    lonely = [n for n in b.graph.free_inputs if n not in inputs.values()]
    if lonely:
        left = [n for n in a.graph.free_inputs if n not in inputs]
        hint = f" Which one is it? --map {quoted(left[0])}={quoted(lonely[0])}" if left else ""
        raise UsageError(f"{b.uri} has an input {_described(b.graph, lonely[0])} that {a.uri} lacks.{hint}")
    for mine, other in inputs.items():
        if not _fits(a.graph, mine, b.graph, other):
            both = f"{_described(a.graph, mine)} and {_described(b.graph, other)}"
            raise UsageError(f"the same values do not fit both inputs: {both}.")
    return NameMatch(a, b, inputs, outputs, given, tuple(_notes(a, b, inputs, outputs, given)))


def names(first: str, second: str) -> tuple[str, str]:
    """Two paths as messages name them: by their last parts, if those differ."""
    a, b = os.path.basename(first), os.path.basename(second)
    return (a, b) if a != b else (first, second)


def with_sizes_of(b: Source, a: Source, inputs: Mapping[str, str], settings: Settings) -> Settings:
    """Settings for A with the sizes that B fixes where A leaves them open."""
    dims, shapes = dict(settings.dims), dict(settings.x_shape)
    for mine, other in inputs.items():
        here, there = declared_shape(a.graph, mine), declared_shape(b.graph, other)
        if there is None or (any(not isinstance(d, int) for d in there) and here is None):
            continue
        if here is None:
            shapes.setdefault(mine, tuple(d for d in there if isinstance(d, int)))
            continue
        for axis, (d, size) in enumerate(zip(here, there, strict=True)):
            if isinstance(size, int) and not isinstance(d, int):
                key = symbol(mine, axis, d)
                if dims.setdefault(key, size) != size:
                    raise UsageError(f"{key} is {dims[key]}, but {b.uri} has an input {_described(b.graph, other)}.")
    return replace(settings, dims=dims, x_shape=shapes)


def same_parameters(
    a: Source, b: Source, weights: Sequence[str], given: Mapping[str, str], by: PrecisionLoss
) -> dict[str, str]:
    """Parameters of A and those of B with the same values: as the user says, by name, or the only ones.

    A parameter that one model stores in several tensors has no partner, since its gradient would be a sum.
    """
    mine, theirs = ([n for n in of.graph.constants if n not in {*other.graph.constants, *taken}]
                    for of, other, taken in ((a, b, given), (b, a, given.values())))  # fmt: skip
    computed, found = {*a.graph.tensors}, dict[str, str]()
    for name in weights:
        twins = [n for n in theirs if _same(a, name, b, n, by)]
        tied = any(n != name and _same(a, n, a, name, by) for n in mine)
        if name in given or (name in b.graph.constants and _same(a, name, b, name, by) and not twins and not tied):
            found[name] = given.get(name, name)
        elif name not in b.graph.tensors and len(twins) == 1 and not tied and twins[0] not in computed:
            found[name] = twins[0]
    return {name: other for name, other in found.items() if other in b.graph.constants}


def _same(a: Source, mine: str, b: Source, other: str, by: PrecisionLoss) -> bool:
    """True if two parameters differ by no more than the loss of precision."""
    here, there = a.graph.constants[mine], b.graph.constants[other]
    if here.shape != there.shape or not (is_inexact(here.dtype) and is_inexact(there.dtype)):
        return False
    few = slice(None, None, here.size // 64 or 1)
    return _near(here.reshape(-1)[few], there.reshape(-1)[few], there, by) and _near(here, there, there, by)


def _near(here: Array, there: Array, whole: Array, by: PrecisionLoss) -> bool:
    largest = float(np.max(np.abs(whole), initial=0.0, where=np.isfinite(whole))) if by.step else 0.0
    by_size = by.rounding * magnitude(wide(here), wide(there)) + by.step * largest
    return agree(here, there, 4 * by_size + 2 * by.least)


def _cast(b: Graph, name: str, value: Any, dtype: str) -> Any:
    declared = b.types.get(name, TensorType()).dtype
    if is_inexact_array(value) and dtype != "model" and (declared is None or is_inexact(declared)):
        return value
    return in_its_dtype(b, name, value)


def _matched(
    a: Graph, b: Graph, mine: Sequence[str], theirs: Sequence[str], given: Mapping[str, str]
) -> dict[str, str]:
    """Matches among inputs, or among outputs; without name or --map the next one of the same shape and dtype."""
    found = {name: given[name] for name in mine if given.get(name) in theirs}
    taken = set(given.values())
    found.update((n, n) for n in mine if n not in given and n in theirs and n not in taken)
    free = [n for n in theirs if n not in taken and n not in found.values()]
    for name in mine:
        fitting = next((n for n in free if _fits(a, name, b, n)), None)
        if fitting is not None and name not in found and name not in given:
            found[name] = fitting
            free.remove(fitting)
    return {name: found[name] for name in mine if name in found}


def _fits(a: Graph, mine: str, b: Graph, other: str) -> bool:
    """True if two tensors can have the same values by their declarations."""
    here, there = a.types.get(mine, TensorType()), b.types.get(other, TensorType())
    dtypes = (each.dtype for each in (here, there))
    kinds = {None if d is None else "float" if is_inexact(d) else "whole" if d.kind in "iu" else d.kind for d in dtypes}
    if here.kind != there.kind or len(kinds - {None}) > 1:
        return False
    if here.shape is None or there.shape is None:
        return True
    pairs = zip(here.shape, there.shape, strict=False)
    fixed = all(d == e for d, e in pairs if isinstance(d, int) and isinstance(e, int))
    return fixed and len(here.shape) == len(there.shape)


def _require(a: Source, b: Source, given: Mapping[str, str]) -> None:
    """UsageError for a --map with an unknown name, or from an input to a tensor that is none."""
    for mine, other in given.items():
        for source, name in ((a, mine), (b, other)):
            if name not in source.graph.tensors:
                hint = did_you_mean(name, source.graph.tensors)
                raise UsageError(f"--map {shown(mine)}={shown(other)}: {source.uri} has no tensor {name!r}.{hint}")
        if mine in a.graph.free_inputs and other not in b.graph.inputs:
            inputs = ", ".join(map(repr, b.graph.inputs)) or "none"
            what = f"{mine!r} is an input, and {other!r} is none of {b.uri}, which are: {inputs}"
            raise UsageError(f"--map {shown(mine)}={shown(other)}: {what}.")


def _notes(
    a: Source, b: Source, inputs: Mapping[str, str], outputs: Mapping[str, str], given: Mapping[str, str]
) -> Iterator[str]:
    for kind, found in (("input", inputs), ("output", outputs)):
        other = [f"{m!r} = {o!r}" for m, o in found.items() if m != o and m not in given]
        if other:
            yield f"{plural(len(other), kind)} matched by place, shape and dtype: {', '.join(other)}"
    for name in a.graph.free_inputs:
        if name not in inputs:
            yield f"{names(a.uri, b.uri)[1]} has no input {name!r}: it cannot depend on it"
    more = [n for n in b.graph.outputs if n not in outputs.values()]
    if more:
        what = plural(len(more), "another output", "more outputs")
        yield f"{names(a.uri, b.uri)[1]} has {what}: {', '.join(map(repr, more))}"


def _described(graph: Graph, name: str) -> str:
    return f"{name!r} {graph.types.get(name, '')}".strip()


def first_difference(both: BothRuns, y: str, error: float, rtol: float) -> Suspect | None:
    """The suspect for a difference of y: the node of B that computes the first tensor that differs."""
    a, b = both.a, both.b
    found = match_values(both, _least(error, rtol))
    graph, way = a.source.graph, a.source.graph.needed_for([y], found.same.keys() - {y})
    apart = {**found.apart, y: both.ys[y] or y}
    first = next((n for n in _in_order(graph, way) if n in apart), y)
    node = b.source.graph.producer(apart[first])
    index = graph.producer(first)
    reads = () if index is None else graph.nodes[index].reads
    before = [n for n in reads if n in found.same and n not in graph.constants]
    far, where = f"max rel err {_apart(a, first, b, apart[first]):.1e}", "is the first result that differs"
    if node is None:
        where, node = "has other values", _reader(b.source.graph, apart[first])
    if node is None:
        return None
    own = "" if index is None else f"; {both.names[0]} has {describe(index, graph.nodes[index])} there"
    verb = plural(len(before), "is", "are")
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
    ends = [n for each in graph.nodes if not way.isdisjoint(each.reads) for n in each.outputs if n in agreed]
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


def _on_to_what_is_same(graph: Graph, x: str, agreed: set[str], needed: Collection[str]) -> set[str]:
    """x and the needed tensors computed from it, up to those whose cotangent agrees."""
    way = {x}
    for node in graph.nodes:
        if not way.isdisjoint(node.reads):
            way.update(n for n in node.outputs if n in needed and n not in agreed)
    return way


def _in_order(graph: Graph, names: Collection[str]) -> list[str]:
    """Tensors in the order of their first appearance in the graph."""
    order = dict.fromkeys(n for node in graph.nodes for n in (*node.reads, *node.outputs) if n in names)
    return [*order, *(n for n in names if n not in order)]


def _reader(graph: Graph, name: str, needed: frozenset[str] | None = None) -> int | None:
    """The first node that reads a tensor on the way to the needed ones."""
    reading = (i for i, node in enumerate(graph.nodes) if name in node.reads)
    return next((i for i in reading if needed is None or needed.intersection(graph.nodes[i].outputs)), None)


def _suspect(graph: Graph, index: int, diagnosis: str) -> Suspect:
    node = graph.nodes[index]
    outputs = tuple(n for n in node.outputs if n)
    reads = tuple(n for n in node.reads if n not in graph.constants)
    return Suspect(index, node.op, node.name, outputs, reads, diagnosis=diagnosis)
