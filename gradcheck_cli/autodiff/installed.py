"""Operators that other installed packages add, by the entry point `gradcheck.operators`.

A package names an `Op`, several of them, or a function that returns either:

    [project.entry-points."gradcheck.operators"]
    acme = "acme.gradients:OPERATORS"

Packages are asked only where a model has an operator that gradcheck does not know.  Its own come first: a rule for one
of those is handed over as `check(..., ops=...)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from gradcheck_cli.errors import UsageError
from gradcheck_cli.graph import Graph
from gradcheck_cli.op import Op, Ops

GROUP = "gradcheck.operators"


def with_installed(ops: Ops, graph: Graph) -> Ops:
    """The operator table, with what installed packages add to it where the graph has an operator that it lacks."""
    if all(key in ops for key in _keys(graph)):
        return ops
    added = installed()
    return {**added, **ops} if added else ops


@cache
def installed() -> Mapping[tuple[str, str], Op]:
    """The operators of all installed packages; UsageError where one cannot be had, or two claim the same."""
    found: dict[tuple[str, str], Op] = {}
    origin: dict[tuple[str, str], str] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.value)):
        for op in _operators(entry):
            if op.key in found:
                raise UsageError(f"{_called(op)} is defined by {origin[op.key]} and by {_described(entry)}")
            found[op.key], origin[op.key] = op, _described(entry)
    return found


def _keys(graph: Graph) -> Iterator[tuple[str, str]]:
    for node in graph.nodes:
        yield node.key
        for subgraph in node.subgraphs:
            yield from _keys(subgraph)


def _operators(entry: EntryPoint) -> Iterable[Op]:
    try:
        value = entry.load()
        value = value() if callable(value) and not isinstance(value, Op) else value
    except Exception as error:  # somebody else's code: anything may go wrong in it
        raise UsageError(f"{_described(entry)} cannot be loaded: {type(error).__name__}: {error}") from error
    values = [value] if isinstance(value, Op) else list(value) if isinstance(value, Iterable) else [value]
    wrong = next((v for v in values if not isinstance(v, Op)), None)
    if wrong is not None:
        raise UsageError(f"{_described(entry)} gives {type(wrong).__name__} {wrong!r}, which is no gradcheck_cli.Op")
    return values


def _described(entry: EntryPoint) -> str:
    package = f" of {entry.dist.name}" if entry.dist is not None else ""
    return f"{GROUP} '{entry.name} = {entry.value}'{package}"


def _called(op: Op) -> str:
    return f"{op.domain}.{op.name}" if op.domain else op.name
