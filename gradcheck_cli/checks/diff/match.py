"""Matching tensors of two models: as the user says, by name, else by position, shape and dtype."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradcheck_cli.checks.diff.model_runs import PrecisionLoss
from gradcheck_cli.errors import UsageError, did_you_mean, shown
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, TensorType, is_inexact
from gradcheck_cli.points.dims import declared_shape, symbol
from gradcheck_cli.points.point import in_its_dtype
from gradcheck_cli.settings import Settings
from gradcheck_cli.verdict.rule import agree, magnitude, wide


@dataclass(frozen=True, slots=True)
class NameMatch:
    """Names in A -> names in B, of inputs and outputs; `given` are those of --map, also of inner tensors."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    given: Mapping[str, str]
    notes: tuple[str, ...] = ()

    def of(self, name: str, b: Graph) -> str | None:
        """The partner of any tensor, or None."""
        known = {**self.inputs, **self.outputs, **self.given}
        return known.get(name, name if name in b.tensors and name not in known.values() else None)


def match_names(a: Source, b: Source, given: Mapping[str, str]) -> NameMatch:
    """The partners in B of all inputs and outputs of A; UsageError if an input of B has none."""
    _require(a, b, given)
    inputs = _matched(a.graph, b.graph, a.graph.free_inputs, b.graph.free_inputs, given)
    outputs = _matched(a.graph, b.graph, a.graph.outputs, b.graph.outputs, given)
    lonely = [n for n in b.graph.free_inputs if n not in inputs.values()]
    if lonely:
        left = [n for n in a.graph.free_inputs if n not in inputs]
        hint = f" Which one is it? --map {shown(left[0])}={shown(lonely[0])}" if left else ""
        raise UsageError(f"{b.uri} has an input {_described(b.graph, lonely[0])} that {a.uri} lacks.{hint}")
    for mine, other in inputs.items():
        _require_one_kind(a.graph, mine, b.graph, other)
    return NameMatch(inputs, outputs, given, tuple(_notes(a, b, inputs, outputs, given)))


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


def handed_over(a: Source, b: Source, known: NameMatch, feeds: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The feeds of A under B's names and in B's dtypes; floating-point dtypes change only if `dtype` is "model"."""
    found = {}
    for name, value in feeds.items():
        other = known.of(name, b.graph)
        if other is not None:
            found[other] = _cast(b.graph, other, value, dtype)
        elif name not in a.graph.inputs:
            raise UsageError(
                f"{b.uri} has no tensor {shown(name)!r} to feed. Which one is it? --map {shown(name)}=NAME"
            )
    return found


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
    return agree(here, there, 4 * (by.rounding * magnitude(wide(here), wide(there)) + by.step * largest))


def _cast(b: Graph, name: str, value: Any, dtype: str) -> Any:
    declared = b.types.get(name, TensorType()).dtype
    floats = isinstance(value, np.ndarray) and is_inexact(value.dtype)
    if floats and dtype != "model" and (declared is None or is_inexact(declared)):
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
    """True if two tensors can match by their declarations."""
    here, there = a.types.get(mine, TensorType()), b.types.get(other, TensorType())
    return here.kind == there.kind and _one_kind(here, there) and not _clash(here, there)


def _one_kind(here: TensorType, there: TensorType) -> bool:
    if here.dtype is None or there.dtype is None:
        return True
    kinds = ["float" if is_inexact(d) else "whole" if d.kind in "iu" else d.kind for d in (here.dtype, there.dtype)]
    return kinds[0] == kinds[1]


def _clash(here: TensorType, there: TensorType) -> bool:
    if here.shape is None or there.shape is None:
        return False
    fixed = [(d, e) for d, e in zip(here.shape, there.shape, strict=False) if isinstance(d, int) and isinstance(e, int)]
    return len(here.shape) != len(there.shape) or any(d != e for d, e in fixed)


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


def _require_one_kind(a: Graph, mine: str, b: Graph, other: str) -> None:
    here, there = a.types.get(mine, TensorType()), b.types.get(other, TensorType())
    if here.kind != there.kind or not _one_kind(here, there) or _clash(here, there):
        raise UsageError(f"the same values do not fit both inputs: {_described(a, mine)} and {_described(b, other)}.")


def _notes(
    a: Source, b: Source, inputs: Mapping[str, str], outputs: Mapping[str, str], given: Mapping[str, str]
) -> Iterator[str]:
    for kind, found in (("input", inputs), ("output", outputs)):
        other = [f"{m!r} = {o!r}" for m, o in found.items() if m != o and m not in given]
        if other:
            yield f"{kind}{'s' * (len(other) > 1)} matched by place, shape and dtype: {', '.join(other)}"
    for name in a.graph.free_inputs:
        if name not in inputs:
            yield f"{names(a.uri, b.uri)[1]} has no input {name!r}: it cannot depend on it"
    more = [n for n in b.graph.outputs if n not in outputs.values()]
    if more:
        yield f"{names(a.uri, b.uri)[1]} has more outputs: {', '.join(map(repr, more))}"


def _described(graph: Graph, name: str) -> str:
    return f"{name!r} {graph.types.get(name, '')}".strip()
