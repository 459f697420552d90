"""A wrong node's worst element, and the kind of mistake its gradient looks like.

The rule's cotangents are fitted by changes of the right ones: a factor, a shift, a transposition, a missing sum.  A
change counts as the explanation if it leaves at most a thousandth of the error, so that it is not chance whatever the
size of the error is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np

from gradcheck_cli.checks.diagnose.nodes_alone import SMALL, SMALL_ENTRY, Alone, Compared, Local
from gradcheck_cli.errors import counted
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.directions import Directions, flat_stack
from gradcheck_cli.jacobian.jacobian import by_complex_step, by_ladder, forward_noise
from gradcheck_cli.verdict.differences import ALL_RUNGS
from gradcheck_cli.verdict.rule import Status, largest_by_column, magnitude

_UNEXPLAINED = 1e-3  # share of the error that an explanation may leave
_ROUNDING = 1e-13  # relative error that counts as none
_ONE_SIDED = 0.75  # mean of errors by their median, above which they are no roundings
_FEW = 3  # entries that are listed one by one
_HALVES = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}  # relative errors of one rounding
_COTANGENTS = 8  # random ones of the outputs
_WORK = 2e10  # operations that the search for the worst element may take, and measuring others
_WAYS = 4  # parts into which a step of that search divides the entries
_SAMPLE = 256  # entries of a large operand that are measured


@dataclass(frozen=True, slots=True)
class Symptom:
    """The worst element of a wrong node, and the diagnosis of its gradient if there is one."""

    operand: str = ""
    index: tuple[int, ...] | None = None
    error: float = np.inf
    diagnosis: str = ""


def symptom(local: Local) -> Symptom:
    """Worst element and diagnosis of a node that is wrong."""
    compared = local.compared
    if compared is None:
        return Symptom(diagnosis=local.reason)
    if compared.tied:
        return Symptom(compared.operand, None, compared.gap, f"the gradient {compared.tied}")
    place, error = _worst_element(compared)
    x = compared.alone.tape.values[compared.operand]
    index = None if place is None else tuple(int(i) for i in np.unravel_index(place % max(x.size, 1), x.shape))
    said = _at_a_tie(compared) or _exchange(compared) or diagnosis(_evidence(compared, place))
    return Symptom(compared.operand, index, error, said and f"the gradient {said}")


def _at_a_tie(compared: Compared) -> str:
    """Diagnosis of a node that is wrong only at ties, where two slopes exist and neither is right alone."""
    rows = np.flatnonzero((compared.comparison.status == Status.FAIL).any(axis=1))
    tied = all(int(row) in compared.comparison.slopes for row in rows)
    return "is outside of the slopes from both sides, at a tie" if tied else ""


def _exchange(compared: Compared) -> str:
    """Diagnosis of two operands that get each other's cotangents."""
    alone, first = compared.alone, compared.operand
    others = [n for n in alone.operands if n != first and alone.tape.values[n].shape == alone.tape.values[first].shape]
    if any(alone.rows(n) * alone.columns > SMALL for n in (first, *others)):
        return ""
    seen = _whole(alone, first)
    for other in others:
        if exchanged(seen, _whole(alone, other)):
            return f"is that of {other!r}: operands are exchanged"
    return ""


def exchanged(one: Evidence, other: Evidence) -> bool:
    """True if each of two operands gets the cotangent of the other."""
    if one.shape != other.shape or one.given.shape != other.given.shape:
        return False
    return _explains(one.right, one.given, other.right) and _explains(other.right, other.given, one.right)


def _worst_element(compared: Compared) -> tuple[int | None, float]:
    """The entry of the operand with the largest relative error of all failures."""
    if compared.weights is None or compared.directions.single:
        both = compared.comparison.theoretical, compared.comparison.numerical
        failed = compared.comparison.status == Status.FAIL
        with np.errstate(invalid="ignore", divide="ignore"):
            gap = np.abs(both[0] - both[1])
            ratio = gap / np.maximum(magnitude(*both), SMALL_ENTRY * largest_by_column(*both))
        ratio = np.where(failed, np.where(np.isfinite(ratio), ratio, np.inf), -1.0)
        row, column = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        return int(compared.directions.rows[row]), float(ratio[row, column])
    return _searched(compared)


def _searched(compared: Compared) -> tuple[int | None, float]:
    """The worst entry of a large operand, found by bisection with random signs, and its own relative error."""
    alone, operand = compared.alone, compared.operand
    n, program = alone.rows(operand), alone.programs[operand]
    rounds = int(np.ceil(np.log(n) / np.log(_WAYS)))
    if program.obstacle is not None or alone.work(operand) * rounds * _WAYS > _WORK:
        return None, compared.gap
    assert compared.weights is not None
    assert compared.directions.given is not None
    column = int(np.argmax(np.max(np.abs(compared.comparison.theoretical - compared.comparison.numerical), axis=0)))
    weights = compared.weights[column : column + 1]
    given = alone.backward.along(weights, alone.budget)[alone.operands.index(operand)][0]
    x, moved = alone.tape.values[operand], compared.directions.given.any(axis=0)
    signs = np.where(moved, np.random.default_rng(0).normal(size=n), 0.0)

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


@dataclass(frozen=True, slots=True)
class Evidence:
    """Cotangents of one operand for P cotangents of the outputs: by the rule, and as they should be.

    given     (P, n), by the rule
    right     (P, n), by the forward kernel; NaN for entries that were not measured
    shape     of the operand
    numbers   constants of the operator by name, one of which may be a wrong factor
    tensors   values of the operand's shape by name, one of which may be a wrong factor
    jacobians (n, m), given and right, where they are small enough
    crossed   (P, n), what the forward gives for the cotangents as tangents, where shapes allow it
    """

    given: Array
    right: Array
    shape: tuple[int, ...]
    numbers: Mapping[str, float] = field(default_factory=dict)
    tensors: Mapping[str, Array] = field(default_factory=dict)
    jacobians: tuple[Array, Array] | None = None
    crossed: Array | None = None

    @property
    def known(self) -> Array:
        """Entries of the operand that were measured, `(n,)`."""
        return np.asarray(~np.isnan(self.right).any(axis=0))


def _evidence(compared: Compared, place: int | None) -> Evidence:
    alone, operand = compared.alone, compared.operand
    small = alone.rows(operand) * alone.columns <= SMALL
    return _whole(alone, operand) if small else _sampled(alone, operand, place)


def _whole(alone: Alone, operand: str) -> Evidence:
    """Evidence from all of a small Jacobian."""
    given = alone.jacobians[alone.operands.index(operand)]
    right = _slopes(alone, operand, np.arange(alone.rows(operand)))
    weights = _weights(alone)
    crossed = weights @ right if right.shape[0] == right.shape[1] else None
    both = weights @ given.T, weights @ right.T
    return Evidence(*both, crossed=crossed, jacobians=(given, right), **_facts(alone, operand))


def _sampled(alone: Alone, operand: str, place: int | None) -> Evidence:
    """Evidence from all of the rule's cotangents, and the right ones at some entries."""
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
    """Entries to measure: those around the worst one along every axis, and random ones."""
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


def numbers_of(metadata: Mapping[str, object], shapes: Sequence[tuple[int, ...]]) -> dict[str, float]:
    """Constants of a node that a wrong factor may come from: its attributes, the sizes of its tensors."""
    plain = {
        k: float(v) for k, v in metadata.items() if isinstance(v, int | float) and v not in (0, 1, -1, True, False)
    }
    sizes = {f"the size of axis {i}": float(d) for shape in shapes for i, d in enumerate(shape) if d > 2}
    whole = {f"the number of entries, {d}": float(d) for d in (int(np.prod(shape)) for shape in shapes) if d > 2}
    return {k: v for k, v in {**plain, **sizes, **whole}.items() if np.isfinite(v) and v}


def diagnosis(evidence: Evidence) -> str:
    """The mistake in a gradient, as a clause that follows "the gradient ..."; "" if none is recognized."""
    known = evidence.known
    given, right = evidence.given[:, known], evidence.right[:, known]
    if not np.isfinite(given).all():
        return "is not finite"
    if not known.any() or np.array_equal(given, right):
        return ""
    if not given.any():
        return "is missing: it is zero everywhere"
    found = (each for test in FAULTS for each in test(evidence, given, right))
    return next(found, "")


def _explains(right: Array, given: Array, model: Array) -> bool:
    """True if `model` is what the rule gives, except for a small part of its error."""
    gap = float(np.linalg.norm(given - right))
    rest = float(np.linalg.norm(given - model))
    return rest <= _UNEXPLAINED * gap + _ROUNDING * float(np.linalg.norm(right))


def _factor(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    if (c := _common_factor(given, right)) is not None:
        yield _scaled(c, evidence)


def _common_factor(given: Array, right: Array) -> float | None:
    """The factor between two gradients, if there is one that is not 1 as far as it is shown."""
    c = _ratio(given, right)
    return c if c is not None and _shown(c) != "1" and _explains(right, given, c * right) else None


def _ratio(given: Array, right: Array) -> float | None:
    ground = float(np.sum(right * right))
    return float(np.sum(given * right)) / ground if ground > 0 and np.isfinite(ground) else None


def _shown(c: float) -> str:
    return f"{c:.7g}"


def _scaled(c: float, evidence: Evidence) -> str:
    """A factor in words, with the constant of the node it may come from."""
    if abs(c + 1) < 1e-9:
        return "has the wrong sign"
    times = f"{_shown(c)} times" if abs(c) >= 0.9 or abs(round(1 / c) * c - 1) > 1e-9 else f"1/{round(1 / c)} of"
    source = next((name for name, number in evidence.numbers.items() if _same(c, number)), "")
    source = source or next((f"1/{name}" for name, number in evidence.numbers.items() if _same(c * number, 1)), "")
    return f"is {times} what it should be{f' ({source})' if source and abs(c) != 1 else ''}"


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * abs(b)


def _rounded(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """All errors are as large as the rounding of a shorter dtype, and of both signs."""
    size = np.abs(right)
    large = size > 1e-3 * size.max()
    signed = (given - right)[large] / right[large]
    errors = np.abs(signed)
    if not errors.size or abs(float(np.mean(signed))) > _ONE_SIDED * float(np.median(errors)):
        return
    for dtype, unit in _HALVES.items():
        if len(errors) > _FEW and unit / 64 < float(np.median(errors)) and float(errors.max()) <= 8 * unit:
            yield f"is as rough as {dtype}"


def _dropped(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """Entries that are used several times get the cotangents of some uses only."""
    if evidence.jacobians is None:
        return
    one, other = evidence.jacobians
    missing = (one == 0) & (other != 0)
    same = np.abs(one - other) <= 1e-9 * np.abs(other)
    rows = missing.any(axis=1)
    if rows.any() and (missing | same).all() and ((one != 0).any(axis=1) | ~rows).all():
        uses = int((other[rows] != 0).sum(axis=1).max())
        yield f"counts not all of up to {uses} uses of an entry: they are not summed"


def _few_entries(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """Only some entries are wrong: zero, not zero, or off by one factor."""
    wrong = _wrong(given, right)
    count, every = int(wrong.sum()), len(wrong)
    if not 0 < count < every:
        return
    nothing, spurious = ~given[:, wrong].any(axis=0), ~right[:, wrong].any(axis=0)
    where = _places(evidence, wrong)
    c = _common_factor(given[:, wrong], right[:, wrong])
    if nothing.all():
        yield f"is zero {where}, where it should not be"
    elif spurious.all():
        yield f"is not zero {where}, where it should be"
    elif c is not None:
        yield f"{_scaled(c, evidence)} {where}, and right elsewhere"


def _places(evidence: Evidence, wrong: Array) -> str:
    """The wrong entries, or their number if they are many."""
    count, every = int(wrong.sum()), len(wrong)
    if count > _FEW or every < 2 * count:
        return f"at {count} of {counted(every, 'entry')}"
    flat = np.flatnonzero(evidence.known)[wrong] % max(int(np.prod(evidence.shape)), 1)
    names = [f"[{','.join(map(str, np.unravel_index(i, evidence.shape)))}]" for i in flat]
    return f"at {', '.join(names)} only"


def _wrong(given: Array, right: Array) -> Array:
    """Entries that are off by more than a small part of the largest error, `(n,)`."""
    gap = np.abs(given - right).max(axis=0)
    size = np.maximum(np.abs(given), np.abs(right)).max(axis=0)
    return np.asarray(gap > 1e-12 * size + 1e-6 * gap.max() * (size < 1e-9 * size.max()))


def _moved(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """The right numbers are in the wrong places."""
    shape, known = evidence.shape, evidence.known
    if evidence.given.shape[1] != int(np.prod(shape)):  # complex numbers
        return
    whole = evidence.given.reshape(-1, *shape)
    for name, moved in _moves(whole):
        if _explains(given, right, moved.reshape(len(whole), -1)[:, known]):
            yield name


def _moves(whole: Array) -> Iterator[tuple[str, Array]]:
    rank = whole.ndim - 1
    for axis in range(rank):
        length = whole.shape[axis + 1]
        for step in (s for s in (1, -1, 2, -2) if abs(s) < length):
            rolled = np.roll(whole, step, axis + 1)
            yield f"is shifted by {-step} along axis {axis}", rolled
            edge = slice(0, step) if step > 0 else slice(step, None)
            rolled = rolled.copy()
            rolled[(slice(None),) * (axis + 1) + (edge,)] = 0
            yield f"is shifted by {-step} along axis {axis}", rolled
        if length > 1:
            yield f"is flipped along axis {axis}", np.flip(whole, axis + 1)
    if rank > 1:
        yield "is flipped along its last two axes", np.flip(whole, (-2, -1))
    for order in permutations(range(rank)) if rank <= 4 else ():
        moved = np.transpose(whole, (0, *(i + 1 for i in order)))
        if order != tuple(range(rank)) and moved.shape == whole.shape:
            yield f"looks transposed: its axes are in the order {list(order)}", moved


def _transposed(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """The rule applies the Jacobian instead of its transpose."""
    crossed = evidence.crossed
    same = crossed is not None and crossed.shape == evidence.given.shape
    if crossed is not None and same and _explains(right, given, crossed[:, evidence.known]):
        yield "looks transposed"


def _by_tensor(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """A tensor of the node is missing among the factors, or there once too often."""
    known = evidence.known
    for name, tensor in evidence.tensors.items():
        z = tensor.reshape(-1)
        if len(z) != len(known) or not np.isfinite(z).all():
            continue
        z = z[known]
        if _explains(given, right, given * z):
            yield f"lacks the factor {name}"
        elif _explains(right, given, right * z):
            yield f"has the factor {name} once too often"


def _without_sum(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """The error is one pattern along some axes, times a number: a mean or a sum over them is missing."""
    if not evidence.known.all() or evidence.given.shape[1] != int(np.prod(evidence.shape)):
        return
    gap = (evidence.given - evidence.right).reshape(-1, *evidence.shape)
    for axes in _axis_sets(len(evidence.shape)):
        slices = np.moveaxis(gap, [a + 1 for a in axes], range(-len(axes), 0))
        slices = slices.reshape(len(gap), -1, int(np.prod([evidence.shape[a] for a in axes])))
        off = np.abs(slices) > _UNEXPLAINED * np.abs(slices).max()
        if np.minimum(off.any(axis=2).sum(axis=0), off.any(axis=0).sum(axis=1)).max() < 3:
            continue  # errors in a row or two have a pattern by themselves
        values = np.linalg.svd(np.moveaxis(slices, 1, 0), compute_uv=False)
        if (values[:, 1] <= _UNEXPLAINED * values[:, 0].max()).all():
            level = np.ptp(slices, axis=2).max() <= _UNEXPLAINED * np.abs(slices).max()
            term = "a mean or a sum" if level else "a term that sums"
            yield f"lacks {term} over {'axis' if len(axes) == 1 else 'axes'} {', '.join(map(str, axes))}"


def _axis_sets(rank: int) -> Iterator[tuple[int, ...]]:
    yield from ((axis,) for axis in range(rank - 1, -1, -1))
    yield from (tuple(range(rank - count, rank)) for count in range(2, rank + 1))
    if rank > 2:
        yield (0, *range(2, rank))


def _by_axis(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """Each index of one axis is off by a factor of its own."""
    size = int(np.prod(evidence.shape))
    if evidence.given.shape[1] != size:
        return
    places = np.flatnonzero(evidence.known)
    for axis, length in enumerate(evidence.shape if len(evidence.shape) > 1 else ()):
        index = np.unravel_index(places, evidence.shape)[axis]
        ground = np.bincount(index, (right * right).sum(axis=0), length)
        factors = np.bincount(index, (given * right).sum(axis=0), length) / np.where(ground > 0, ground, 1)
        if length > 1 and _explains(right, given, factors[index] * right):
            seen = factors[ground > 0]
            yield f"is off by a factor for each index of axis {axis}, {seen.min():.3g} to {seen.max():.3g}"


def _remaining_entries(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """A few entries are wrong in no way that has a name."""
    wrong = _wrong(given, right)
    if 0 < wrong.sum() <= _FEW and len(wrong) >= 2 * wrong.sum():
        yield f"is wrong {_places(evidence, wrong)}"


FAULTS = (
    _factor, _rounded, _dropped, _few_entries, _moved, _transposed, _by_tensor, _without_sum, _by_axis, _remaining_entries,
)  # fmt: skip
