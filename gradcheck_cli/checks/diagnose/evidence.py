"""What a wrong node gets wrong: its worst element, and what it gives there and around against what it should."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcheck_cli.checks.diagnose.alone import Alone
from gradcheck_cli.checks.diagnose.diagnosis import Evidence, diagnosis, exchanged, numbers_of
from gradcheck_cli.checks.diagnose.nodes_alone import SMALL, Compared, Local
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.directions import Directions, flat_stack
from gradcheck_cli.jacobian.jacobian import by_complex_step, by_ladder, forward_noise
from gradcheck_cli.verdict.differences import ALL_RUNGS
from gradcheck_cli.verdict.rule import Status, largest_by_column, magnitude

_COTANGENTS = 8
_GROUND = 1e-2  # of the largest entry of a column: errors of smaller ones are relative to this
_WORK = 2e10  # operations that looking for the worst element of a large node, or at others, may take
_WAYS = 4  # parts that entries are divided into while the worst one is looked for
_SAMPLE = 256  # entries of a large operand that a diagnosis looks at


@dataclass(frozen=True, slots=True)
class Symptom:
    """The worst element of a wrong node, and what is wrong with its gradient as far as that can be told."""

    operand: str = ""
    index: tuple[int, ...] | None = None
    error: float = np.inf
    diagnosis: str = ""


def symptom(local: Local) -> Symptom:
    """What there is to say of a node that is wrong."""
    compared = local.compared
    if compared is None:
        return Symptom(diagnosis=local.reason)
    if compared.tied:
        return Symptom(compared.operand, None, compared.gap, f"the gradient {compared.tied}")
    place, error = _worst_element(compared)
    said = _at_a_tie(compared) or _exchange(local) or diagnosis(_evidence(compared, place))
    return Symptom(compared.operand, _index(compared, place), error, said and f"the gradient {said}")


def _at_a_tie(compared: Compared) -> str:
    """What is wrong only where the node has two slopes, so that nothing is right to compare it with."""
    rows = np.flatnonzero((compared.comparison.status == Status.FAIL).any(axis=1))
    tied = all(int(row) in compared.comparison.slopes for row in rows)
    return "is outside of the slopes from both sides, at a tie" if tied else ""


def _worst_element(compared: Compared) -> tuple[int | None, float]:
    """The entry of the operand with the largest relative error of all that failed."""
    if compared.weights is None or compared.directions.given is None:
        both = compared.comparison.theoretical, compared.comparison.numerical
        failed = compared.comparison.status == Status.FAIL
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = np.abs(both[0] - both[1])
            ratio = gap / np.maximum(magnitude(*both), _GROUND * largest_by_column(*both))
        ratio = np.where(failed, np.where(np.isfinite(ratio), ratio, np.inf), -1.0)
        row, column = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        return int(compared.directions.rows[row]), float(ratio[row, column])
    return _searched(compared)


def _searched(compared: Compared) -> tuple[int | None, float]:
    """The worst entry of a large operand, found by halving; its own error, not that of the sums that led there."""
    alone, operand = compared.alone, compared.operand
    n, program = alone.rows(operand), alone.programs[operand]
    rounds = int(np.ceil(np.log(n) / np.log(_WAYS)))
    if program.obstacle is not None or alone.work(operand) * rounds * _WAYS > _WORK:
        return None, compared.gap
    assert compared.weights is not None
    column = int(np.argmax(np.max(np.abs(compared.comparison.theoretical - compared.comparison.numerical), axis=0)))
    weights = compared.weights[column : column + 1]
    given = alone.backward.along(weights, alone.budget)[alone.operands.index(operand)][0]
    x, signs = alone.tape.values[operand], np.random.default_rng(0).normal(size=n)

    def gaps(parts: Array) -> Array:
        right = by_complex_step(program, Directions(x, parts), alone.budget) @ weights[0]
        return np.asarray(np.abs(parts @ given - right))

    low, high = 0, n
    while high - low > 1:
        edges = np.unique(np.linspace(low, high, _WAYS + 1).astype(int))
        parts = np.zeros((len(edges) - 1, n))
        for part, start, stop in zip(parts, edges[:-1], edges[1:], strict=True):
            part[start:stop] = signs[start:stop]
        best = int(np.argmax(gaps(parts)))
        low, high = int(edges[best]), int(edges[best + 1])
    [right] = by_complex_step(program, Directions(x, [low]), alone.budget) @ weights[0]
    size = max(abs(float(right)), abs(float(given[low])))
    return low, abs(float(given[low] - right)) / size if size else compared.gap


def _index(compared: Compared, place: int | None) -> tuple[int, ...] | None:
    x = compared.alone.tape.values[compared.operand]
    return None if place is None else tuple(int(i) for i in np.unravel_index(place % max(x.size, 1), x.shape))


def _evidence(compared: Compared, place: int | None) -> Evidence:
    alone, operand = compared.alone, compared.operand
    if alone.rows(operand) * alone.columns <= SMALL:
        return _whole(alone, operand)
    return _sampled(alone, operand, place)


def _whole(alone: Alone, operand: str) -> Evidence:
    """All of a small Jacobian."""
    given = alone.jacobians[alone.operands.index(operand)]
    right = _slopes(alone, operand, np.arange(alone.rows(operand)))
    weights = _weights(alone)
    crossed = weights @ right if right.shape[0] == right.shape[1] else None
    both = weights @ given.T, weights @ right.T
    return Evidence(*both, crossed=crossed, jacobians=(given, right), **_facts(alone, operand))


def _sampled(alone: Alone, operand: str, place: int | None) -> Evidence:
    """The rule's cotangents in whole, the right ones at some entries."""
    weights = _weights(alone)
    given = alone.backward.along(weights, alone.budget)[alone.operands.index(operand)]
    right = np.full(given.shape, np.nan)
    rows = np.unique([*_neighbours(alone, operand, place)])
    if len(rows):
        right[:, rows] = weights @ _slopes(alone, operand, rows).T
    crossed, program = None, alone.programs[operand]
    if given.shape == weights.shape and program.obstacle is None:
        crossed = by_complex_step(program, Directions(alone.tape.values[operand], weights), alone.budget)
    return Evidence(given, right, crossed=crossed, **_facts(alone, operand))


def _neighbours(alone: Alone, operand: str, place: int | None) -> Iterator[int]:
    """Entries to look at: those around the worst one along every axis, and some anywhere."""
    x, n = alone.tape.values[operand], alone.rows(operand)
    count = int(min(_SAMPLE, n, _WORK / alone.work(operand)))
    rng = np.random.default_rng(0)
    yield from rng.choice(n, size=count // 2, replace=False).tolist()
    if place is None:
        return
    at = np.unravel_index(place % x.size, x.shape)
    for axis, length in enumerate(x.shape):
        reach = max(1, count // (4 * x.ndim))
        for i in range(max(0, int(at[axis]) - reach), min(length, int(at[axis]) + reach + 1)):
            yield int(np.ravel_multi_index((*at[:axis], i, *at[axis + 1 :]), x.shape))


def _weights(alone: Alone) -> Array:
    m = alone.columns
    count = _COTANGENTS if m * _COTANGENTS <= 1e7 else 1
    return np.random.default_rng(0).normal(size=(count, m))


def _slopes(alone: Alone, operand: str, rows: Array) -> Array:
    """Rows of the Jacobian by the forward kernel."""
    program, directions = alone.programs[operand], Directions(alone.tape.values[operand], rows)
    if program.obstacle is None:
        return by_complex_step(program, directions, alone.budget)
    return by_ladder(program, directions, ALL_RUNGS, forward_noise(program), alone.budget).estimate.value


def _facts(alone: Alone, operand: str) -> dict[str, Any]:
    values, unit = alone.tape.values, alone.unit
    x = values[operand]
    names = [*((n, "its result") for n in unit.outputs), *((n, f"operand {i}") for i, n in enumerate(unit.operands))]
    tensors = {what: flat_stack(values[n][None])[0] for n, what in names if n and values[n].shape == x.shape}
    shapes = [x.shape, *(values[n].shape for n in unit.outputs if n in values)]
    return {"shape": x.shape, "numbers": numbers_of(unit.metadata, shapes), "tensors": tensors}


def _exchange(local: Local) -> str:
    """Two operands that get each other's cotangents."""
    assert local.compared is not None
    alone, first = local.compared.alone, local.compared.operand
    others = [n for n in alone.operands if n != first and alone.tape.values[n].shape == alone.tape.values[first].shape]
    if any(alone.rows(n) * alone.columns > SMALL for n in (first, *others)):
        return ""
    seen = _whole(alone, first)
    for other in others:
        if exchanged(seen, _whole(alone, other)):
            return f"is that of {other!r}: operands are exchanged"
    return ""
