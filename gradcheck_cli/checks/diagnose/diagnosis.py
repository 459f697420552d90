"""What kind of mistake a wrong gradient looks like: what a rule gives is fitted by changes of what it should give.

Arrays only.  A change counts as the explanation if it takes all but a thousandth of the error away, so that it is told
from chance whatever the size of the error is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import numpy as np

from gradcheck_cli.graph import Array

_UNEXPLAINED = 1e-3  # of the error: what an explanation may leave
_ROUNDING = 1e-13
_FEW = 3  # entries that are listed one by one
_HALVES = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}  # relative errors of one rounding


@dataclass(frozen=True, slots=True)
class Evidence:
    """Cotangents of one operand for P cotangents of the outputs, as a rule gives them and as they should be.

    given     (P, n), by the rule
    right     (P, n), by the forward kernel; NaN for entries that were not measured
    shape     of the operand
    numbers   constants of the operator by name, of which a factor may be one
    tensors   values of the operand's shape by name, of which one may be a factor
    jacobians (n, m) of both sides, given and right, where they are small enough to be had
    crossed   what the forward gives for the cotangents as tangents, (P, n), where the shapes allow for it
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


def diagnosis(evidence: Evidence) -> str:
    """What is wrong with a gradient, in a clause that goes on "the gradient ..."; nothing if that cannot be told."""
    known = evidence.known
    given, right = evidence.given[:, known], evidence.right[:, known]
    if not np.isfinite(given).all():
        return "is not finite"
    if not known.any() or np.array_equal(given, right):
        return ""
    if not given.any():
        return "is missing: it is zero everywhere"
    found = (each for test in _TESTS for each in test(evidence, given, right))
    return next(found, "")


def exchanged(one: Evidence, other: Evidence) -> bool:
    """Each of two operands gets the cotangent of the other."""
    if one.shape != other.shape or one.given.shape != other.given.shape:
        return False
    return _explains(one.right, one.given, other.right) and _explains(other.right, other.given, one.right)


def _explains(right: Array, given: Array, model: Array) -> bool:
    """`model` is what the rule gives, but for a trifle of its error."""
    gap = float(np.linalg.norm(given - right))
    rest = float(np.linalg.norm(given - model))
    return rest <= _UNEXPLAINED * gap + _ROUNDING * float(np.linalg.norm(right))


def _factor(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    c = _ratio(given, right)
    if c is not None and _explains(right, given, c * right):
        yield _scaled(c, evidence)


def _ratio(given: Array, right: Array) -> float | None:
    ground = float(np.sum(right * right))
    return float(np.sum(given * right)) / ground if ground > 0 and np.isfinite(ground) else None


def _scaled(c: float, evidence: Evidence) -> str:
    """A factor in words, with what in the node it may come from."""
    if abs(c + 1) < 1e-9:
        return "has the wrong sign"
    times = f"{c:.7g} times" if abs(c) >= 0.9 or abs(round(1 / c) * c - 1) > 1e-9 else f"1/{round(1 / c)} of"
    source = next((name for name, number in evidence.numbers.items() if _same(c, number)), "")
    source = source or next((f"1/{name}" for name, number in evidence.numbers.items() if _same(c * number, 1)), "")
    return f"is {times} what it should be{f' ({source})' if source and abs(c) != 1 else ''}"


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * abs(b)


def _few_entries(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """Wrong in some entries only: in one, where it is zero, where it is not, or by one factor."""
    wrong = _wrong(given, right)
    count, every = int(wrong.sum()), len(wrong)
    if not 0 < count < every:
        return
    nothing, spurious = ~given[:, wrong].any(axis=0), ~right[:, wrong].any(axis=0)
    where = _places(evidence, wrong)
    c = _ratio(given[:, wrong], right[:, wrong])
    if nothing.all():
        yield f"is zero {where}, where it should not be"
    elif spurious.all():
        yield f"is not zero {where}, where it should be"
    elif c is not None and _explains(right[:, wrong], given[:, wrong], c * right[:, wrong]):
        yield f"{_scaled(c, evidence)} {where}, and right elsewhere"


def _places(evidence: Evidence, wrong: Array) -> str:
    """Where it is wrong: the entries where they are few, else how many."""
    count, every = int(wrong.sum()), len(wrong)
    if count > _FEW or every < 2 * count:
        return f"at {count} of {every} entries"
    flat = np.flatnonzero(evidence.known)[wrong] % max(int(np.prod(evidence.shape)), 1)
    names = [f"[{','.join(map(str, np.unravel_index(i, evidence.shape)))}]" for i in flat]
    return f"at {', '.join(names)} only"


def _wrong(given: Array, right: Array) -> Array:
    """Entries with more than a trifle of the largest error, `(n,)`."""
    gap = np.abs(given - right).max(axis=0)
    size = np.maximum(np.abs(given), np.abs(right)).max(axis=0)
    return np.asarray(gap > 1e-12 * size + 1e-6 * gap.max() * (size < 1e-9 * size.max()))


def _remaining_entries(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """Wrong in a few entries in no way that has a name."""
    wrong = _wrong(given, right)
    if 0 < wrong.sum() <= _FEW and len(wrong) >= 2 * wrong.sum():
        yield f"is wrong {_places(evidence, wrong)}"


def _rounded(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """Errors as large throughout as those of a shorter number format."""
    size = np.abs(right)
    large = size > 1e-3 * size.max()
    errors = np.abs(given - right)[large] / size[large]
    for dtype, unit in _HALVES.items():
        if len(errors) > _FEW and unit / 64 < float(np.median(errors)) and float(errors.max()) <= 8 * unit:
            yield f"is as rough as {dtype}"


def _moved(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """The right numbers in the wrong places."""
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
    """The Jacobian instead of its transpose."""
    crossed = evidence.crossed
    same = crossed is not None and crossed.shape == evidence.given.shape
    if crossed is not None and same and _explains(right, given, crossed[:, evidence.known]):
        yield "looks transposed"


def _dropped(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """Entries that are used several times get the cotangent of some uses only."""
    if evidence.jacobians is None:
        return
    one, other = evidence.jacobians
    missing = (one == 0) & (other != 0)
    same = np.abs(one - other) <= 1e-9 * np.abs(other)
    rows = missing.any(axis=1)
    if rows.any() and (missing | same).all() and ((one != 0).any(axis=1) | ~rows).all():
        uses = int((other[rows] != 0).sum(axis=1).max())
        yield f"counts not all of up to {uses} uses of an entry: they are not summed"


def _without_sum(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """The error is one and the same pattern along some axes, times a number: a mean or a sum over them is missing."""
    if not evidence.known.all() or evidence.given.shape[1] != int(np.prod(evidence.shape)):
        return
    gap = (evidence.given - evidence.right).reshape(-1, *evidence.shape)
    for axes in _axis_sets(len(evidence.shape)):
        slices = np.moveaxis(gap, [a + 1 for a in axes], range(-len(axes), 0))
        slices = slices.reshape(len(gap), -1, int(np.prod([evidence.shape[a] for a in axes])))
        if min(slices.shape[0], slices.shape[2]) < 3:
            continue
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
    """A factor for each index of one axis."""
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


def _by_tensor(evidence: Evidence, given: Array, right: Array) -> Iterator[str]:
    """A tensor of the node too many or too few among the factors."""
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


_TESTS = (
    _factor, _rounded, _dropped, _few_entries, _moved, _transposed, _by_tensor, _without_sum, _by_axis, _remaining_entries,
)  # fmt: skip


def numbers_of(metadata: Mapping[str, object], shapes: Sequence[tuple[int, ...]]) -> dict[str, float]:
    """Constants of a node of which a wrong factor may be one: its attributes, the sizes of its tensors."""
    plain = {
        k: float(v) for k, v in metadata.items() if isinstance(v, int | float) and v not in (0, 1, -1, True, False)
    }
    sizes = {f"the size of axis {i}": float(d) for shape in shapes for i, d in enumerate(shape) if d > 2}
    whole = {f"the number of entries, {d}": float(d) for d in (int(np.prod(shape)) for shape in shapes) if d > 2}
    return {k: v for k, v in {**plain, **sizes, **whole}.items() if np.isfinite(v) and v}
