"""Slopes of a single side: how y goes on from x in one direction, on the piece of the model that begins right there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.outcome import Decisions
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.directions import Directions, flat_stack
from gradcheck_cli.jacobian.jacobian import beside
from gradcheck_cli.verdict.differences import ALL_RUNGS, Estimate, richardson, rungs

TIE = 2.0**-36  # how far from x its other side begins, in units of the scale of x


@dataclass(frozen=True, slots=True)
class Slopes:
    """Slopes of y along some directions on one side of x, and what the model decides right behind x there.

    `guarded` are rows in which control flow would go another way: what was measured is not the model's.
    """

    estimate: Estimate
    decisions: Decisions
    crossed: dict[int, Array]
    guarded: Array


def one_sided(program: Program, directions: Directions, side: float, noise: Array, budget: Budget) -> Slopes:
    """Slopes on the `side` (1 or -1) of x, by extrapolation of differences over steps that stay on the first piece."""
    steps = np.stack([directions.representable(h, side) for h in (*rungs(ALL_RUNGS), TIE)])
    x = program.tape.values[program.probes[0]]
    here = flat_stack(program.run({program.probes[0]: x[None]}).outputs[0])
    ahead = [beside(program, directions, side * h, budget) for h in steps]
    _, crossed, decisions = ahead[-1]
    with np.errstate(invalid="ignore"):
        quotients = np.stack(
            [side * (values - here) / h[:, None] for (values, _, _), h in zip(ahead, steps, strict=True)]
        )
    alike = np.stack([kind.kind == decisions.kind for _, _, kind in ahead])
    valid = np.logical_and.accumulate(alike[::-1], axis=0)[::-1]  # and so are all nearer ones
    estimate = richardson(quotients[:-1], steps[:-1], noise, valid[:-1], order=1)
    return Slopes(estimate, decisions, crossed, _guarded(program, crossed, directions.count))


def _guarded(program: Program, crossed: dict[int, Array], count: int) -> Array:
    """Rows in which a value changes that control flow reads, or which cannot be run at all."""
    steps, guards = program.tape.steps, set(program.tape.guards)
    read = [rows for step, rows in crossed.items() if step < 0 or guards.intersection(steps[step].node.outputs)]
    return np.logical_or.reduce([np.zeros(count, bool), *read])
