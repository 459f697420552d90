"""Rows of a numerical Jacobian by one difference formula, whose error a second step tells."""

from __future__ import annotations

from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.directions import Directions
from gradcheck_cli.jacobian.jacobian import EPS, each_difference
from gradcheck_cli.jacobian.rows import Rows
from gradcheck_cli.verdict.differences import Stencil, two_steps


def default_steps(directions: Directions, stencil: Stencil, delta: float | None) -> Array:
    """Steps of a difference formula: as given, or those that balance truncation and rounding by the scale of x."""
    return directions.representable(EPS ** (1 / (stencil.order + 1))) if delta is None else directions.fixed(delta)


def by_stencil(
    program: Program,
    directions: Directions,
    stencil: Stencil,
    delta: float | None,
    noise: Array,
    budget: Budget,
) -> Rows:
    """Rows by one difference formula, its error read off a second run with twice the step.

    delta None: `default_steps`.
    """
    steps = default_steps(directions, stencil, delta)
    moves = [(directions, steps), (directions, 2 * steps)]
    (fine, crossed), (coarse, _) = each_difference(program, moves, stencil, budget)
    weight = sum(abs(w) for w in stencil.weights)
    return Rows(two_steps(coarse, fine, stencil.order, weight * noise / steps[:, None]), crossed)
