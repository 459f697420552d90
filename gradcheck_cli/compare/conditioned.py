"""Slopes of compositions that one rule covers, as far as rounding inside of them carries them.

The rule of a normalization takes for granted that what is centered sums to zero.  Where the mean is a million times the
deviation it does not, by the rounding of the mean: neither side is wrong by more than that moves the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradcheck_cli.autodiff.step import Region
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array, is_inexact


def moved_inside(program: Program, count: int) -> Iterator[Program]:
    """The program at values that some roundings move inside of each composition on its way, `count` times.

    What lies between compositions stays: both sides have it in common.  Where nothing is moved there is none.
    """
    regions = [r for r in program.tape.regions if r.op.vjp is not None and _on(program, r)]
    for seed in range(count if regions else 0):
        rng = np.random.default_rng([seed, 5])
        values: dict[str, Array] = {}
        for region in regions:
            values |= _moved(program.tape, region, rng)
        if values:
            yield Program(_with(program.tape, values), program.probes, program.outputs)


def _on(program: Program, region: Region) -> bool:
    return any(region.start <= index < region.stop for index, _ in program.steps)


def _moved(tape: Tape, region: Region, rng: np.random.Generator) -> dict[str, Array]:
    """What a composition makes, moved; nothing where that changes a decision."""
    probes = list(dict.fromkeys(n for n in region.operands if n and is_inexact(tape.values[n].dtype)))
    made = {n for step in tape.steps[region.start : region.stop] for n in step.node.outputs if n}
    within = Program(tape, probes, list(made))
    names = [n for n in made if n in within.reached and is_inexact(tape.values[n].dtype)]
    run = Program(tape, probes, names).run({n: tape.values[n][None] for n in probes}, branches=True, jitter=rng)
    if run.any_crossed(1).any():
        return {}
    return {n: y[0].astype(tape.values[n].dtype) for n, y in zip(names, run.outputs, strict=True)}


def _with(tape: Tape, values: dict[str, Array]) -> Tape:
    """The tape with other values of some tensors."""
    part = Tape(tape.ops, dtype=tape.dtype, seed=tape.seed)
    part.steps, part.guards, part.values = tape.steps, tape.guards, tape.values.copy()
    part.values.update(values)
    return part
