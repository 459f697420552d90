"""Kinks: points at which a decision of the model hangs in the balance, so that y may have no derivative there.

Whatever method made the numerical side and whatever number it happened to give, at a tie the slopes from both sides
are measured; an entry counts only where they agree with each other and with the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian import Directions, by_differences, own_rounding
from gradcheck_cli.program import Program
from gradcheck_cli.stack import Budget
from gradcheck_cli.stencil import CENTRAL, FORWARD, Stencil, scales
from gradcheck_cli.verdict import Comparison, Status, magnitude

BACKWARD = Stencil((0.0, -1.0), (1.0, -1.0), 1)
_TIE, _SIDE = 2.0**-36, 2.0**-20  # perturbations, in units of the scale of x: to find ties, to measure slopes
_NEARER = 16.0  # how much closer to x slopes are measured a second time
_STEEPER = 1.5  # a slope that grows by more than this on the way has no limit
_LOOKS = 2  # random directions, there and back, that a tie somewhere in x is looked for along


def with_ties(
    program: Program,
    directions: Directions,
    weights: Array | None,
    comparison: Comparison,
    noise: Callable[[], Array],
    budget: Budget,
) -> Comparison:
    """The comparison with what lies at a tie inconclusive, unless y is smooth there and the gradient is its slope."""
    if not _near_a_branch(program, directions, budget):
        return comparison
    _, crossed = by_differences(program, directions, CENTRAL, directions.representable(_TIE), budget)
    tied = np.flatnonzero(np.logical_or.reduce([np.zeros(directions.count, bool), *crossed.values()]))
    if not len(tied):
        return comparison
    kinked = _kinked(program, directions.part(tied), weights, comparison.theoretical[tied], noise(), budget)
    status, rows = comparison.status.copy(), np.zeros(directions.count, bool)
    smooth = np.where(status[tied] == Status.KINK, Status.NOISE, status[tied])  # too rough where y has a derivative
    status[tied], rows[tied] = np.where(kinked, Status.KINK, smooth), kinked.any(axis=1)
    return replace(comparison, status=status, ties=among(rows, crossed), crossed=among(~rows, comparison.crossed))


def among(rows: Array, by_step: Mapping[int, Array]) -> dict[int, Array]:
    """Those of some rows that crossed a branch, by step of the tape."""
    return {step: crossed & rows for step, crossed in by_step.items() if (crossed & rows).any()}


def kink_notes(program: Program, comparison: Comparison) -> tuple[str, ...]:
    """A sentence for each node at whose tie some rows lie, or whose branch their perturbation crosses."""
    tied, across = "at a tie of {}: the slopes from both sides differ", "perturbed across a branch of {}"
    kinds = ((comparison.ties, tied), (comparison.crossed, f"{across}: a smaller --delta may stay on one side"))
    return tuple(dict.fromkeys(text for by_step, kind in kinds for text in _sentences(program, by_step, kind)))


def _sentences(program: Program, by_step: Mapping[int, Array], text: str) -> Iterator[str]:
    for step, rows in by_step.items():
        if step >= 0:
            count = int(rows.sum())
            yield f"{count} row{'s'[: count != 1]} {text.format(program.tape.steps[step].where)}"


def _near_a_branch(program: Program, directions: Directions, budget: Budget) -> bool:
    """Some decision of the model changes when all of x moves by next to nothing, there or back."""
    x, here = program.tape.values[program.probes[0]], directions.here
    rng = np.random.default_rng(0)
    moves = rng.uniform(0.5, 1.5, (_LOOKS, here.size)) * rng.choice([-1.0, 1.0], (_LOOKS, here.size))
    _, crossed = by_differences(program, Directions(x, moves * scales(here)), CENTRAL, np.full(_LOOKS, _TIE), budget)
    return bool(crossed)


def _kinked(
    program: Program, part: Directions, weights: Array | None, theoretical: Array, noise: Array, budget: Budget
) -> Array:
    """Entries of some rows at which y has no derivative, or another one than the gradient says."""

    def slopes(stencil: Stencil, h: float) -> Array:
        values = by_differences(program, part, stencil, part.representable(h), budget)[0]
        return values if weights is None else values @ weights.T

    up, down = slopes(FORWARD, _SIDE), slopes(BACKWARD, _SIDE)
    nearer = slopes(FORWARD, _SIDE / _NEARER), slopes(BACKWARD, _SIDE / _NEARER)
    pairs = list(zip((up, down), nearer, strict=True))
    bend = np.max([np.abs(far - near) for far, near in pairs], axis=0)
    rounding, blur = (_seen(part.representable(_SIDE), own, weights) for own in (own_rounding(program), noise))
    ground = 1e-3 * np.maximum(magnitude(up, down), rounding) + 2 * bend
    jump = np.abs(up - down) > ground
    other = ~(np.abs(theoretical - up) <= ground)  # smooth here, but the rule gives something else, perhaps NaN
    steep = [(np.abs(n) > _STEEPER * np.abs(f)) & (np.abs(n) > _NEARER * blur) for f, n in pairs]
    return np.logical_or.reduce([jump, other, *steep])


def _seen(steps: Array, noise: Array, weights: Array | None) -> Array:
    """The least slopes that stand out of the rounding of y, `(rows, y_size)` or `(rows, len(weights))`."""
    spread = noise if weights is None else np.sqrt(weights**2 @ noise**2)
    return 16 * spread[None, :] / steps[:, None]
