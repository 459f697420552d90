"""Which wrong rules make a failure: with the numerical derivative of such a node in place of its rule it goes away.

A failing entry is <u, J v>.  Kernels carry v from x on, rules carry u back from y.  At each node both meet: what leaves
it by its kernel less what enters it, weighed by the cotangents that the rules give there, is what the entry changes by
where the node's own derivative takes the place of its rule.  Over all nodes that adds up to the whole failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TypeAlias

import numpy as np

from gradcheck_cli.autodiff.backward import Unit, inexact
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.checks.diagnose.nodes_alone import pulled
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.directions import flat, shaped
from gradcheck_cli.verdict.differences import rms, scales

Node: TypeAlias = tuple[int, int, str]  # its units are those of all turns of a loop
Entry: TypeAlias = tuple[Array, Array]  # a direction of x `(x_size,)` and a weighted sum of y `(y_size,)`
_NEAR, _NEARER = 2.0**-7, 2.0**-9  # steps of differences, in units of the scale of x
_SHARE = 4  # of the memory: what slopes of all tensors may take
_SLIGHT = 1e-3  # of the failure: less is no part of it


class Standing(IntEnum):
    """How a node stands to a failing entry."""

    MENDS = 0  # with its numerical derivative in place of its rule the failure goes away
    SHARES = 1  # what is left then is another failure: there are more wrong rules
    ASIDE = 2  # nothing changes
    SINGULAR = 3  # its kernel has no slope there either


def standings(
    tape: Tape, nodes: Mapping[Node, Sequence[Unit]], x: str, y: str, entry: Entry, budget: Budget
) -> dict[Node, Standing]:
    """How each node between x and y, with all its units, stands to a failing entry; alike where that cannot be told."""
    units = sorted((unit for each in nodes.values() for unit in each), key=lambda unit: unit.steps.start)
    slopes = _slopes(tape, units, x, entry[0], budget)
    by_unit = {} if slopes is None else _gains(tape, units, y, entry[1], slopes)
    gains = {node: sum(by_unit.get(unit.steps, 0.0) for unit in each) for node, each in nodes.items()}
    finite = [gain for gain in gains.values() if np.isfinite(gain)]
    total, least = sum(finite), _SLIGHT * max(map(abs, finite), default=0.0)
    whole = not any(map(np.isinf, gains.values()))

    def standing(gain: float) -> Standing:
        if np.isnan(gain):
            return Standing.SINGULAR
        if np.isinf(gain) or (whole and gain and abs(total - gain) <= _SLIGHT * abs(total)):
            return Standing.MENDS
        return Standing.SHARES if abs(gain) > least else Standing.ASIDE

    return {node: standing(gain) for node, gain in gains.items()}


def _slopes(tape: Tape, units: Sequence[Unit], x: str, v: Array, budget: Budget) -> dict[str, Array] | None:
    """Derivatives of all tensors on the way along a direction of x, by the kernels alone; None of too many."""
    every = dict.fromkeys(n for unit in units for n in (*unit.operands, *unit.outputs) if n and n in tape.values)
    names = [n for n in every if inexact(tape.var(n))]
    if _SHARE * sum(tape.values[n].nbytes for n in names) > budget.memory:
        return None
    program, here = Program(tape, [x], names), tape.values[x]
    if program.analytic:
        made: Sequence[Array] = program.tangents({x: shaped(v[None], here)})
        return {n: np.asarray(t)[0] for n, t in zip(names, made, strict=True)}
    size = rms(scales(flat(here))) or 1.0
    steps = size * np.array([_NEAR, -_NEAR, _NEARER, -_NEARER])
    outputs = program.run({x: shaped(flat(here) + steps[:, None] * v, here)}).outputs
    with np.errstate(all="ignore"):
        near, nearer = ([(t[i] - t[i + 1]) / (2 * steps[i]) for t in outputs] for i in (0, 2))
        ratio = (_NEAR / _NEARER) ** 2
        return {n: (ratio * b - a) / (ratio - 1) for n, a, b in zip(names, near, nearer, strict=True)}


def _gains(tape: Tape, units: Sequence[Unit], y: str, u: Array, slopes: Mapping[str, Array]) -> dict[range, float]:
    """What each unit's derivative in place of its rule adds: infinite for a rule without a number, NaN without a slope.

    Rules behind one that gives no number get some number instead, which tells as well whether they are off.
    """
    pending = {y: shaped(u[None], tape.values[y])[0].conj()}
    gains: dict[range, float] = {}
    for unit in reversed(units):
        given = {n: pending[n] for n in unit.outputs if n in pending}
        made = pulled(tape, unit, given) if given else []
        if made is None:  # its rule cannot be run
            return {**gains, unit.steps: np.inf}
        leaves = sum(_met(ct, slopes[n]) for n, ct in given.items() if n in slopes)
        enters = sum(_met(ct, slopes[n]) for n, ct in made if n in slopes)
        gains[unit.steps] = np.nan if not np.isfinite(leaves) else leaves - enters if np.isfinite(enters) else np.inf
        for name, ct in made:
            known = np.where(np.isfinite(ct), ct, 1.0)
            pending[name] = pending[name] + known if name in pending else known
    return gains


def _met(ct: Array, slope: Array) -> float:
    """A cotangent on a slope; where either is zero the other is of no matter."""
    with np.errstate(all="ignore"):
        return float(np.sum(np.where((ct == 0) | (slope == 0), 0.0, ct * slope)).real)
