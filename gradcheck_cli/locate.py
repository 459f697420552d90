"""Which node is at fault: every rule on the way is held against its own forward kernel, alone, at its own values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradcheck_cli.backward import Unit, inexact, pull_back, units_between
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array
from gradcheck_cli.program import Program
from gradcheck_cli.tape import Tape

_PROBES = 4
_THRESHOLD = 1e-8


@dataclass(frozen=True, slots=True)
class Local:
    """How far a unit's rule is from its forward: relative error, and the operand for which it is worst."""

    unit: Unit
    error: float
    operand: str = ""


def suspects(tape: Tape, xs: list[str], ys: list[str], seed: int = 0) -> tuple[list[Local], int]:
    """Units between xs and ys whose rule is wrong on its own, in order, and how many were tried."""
    units = units_between(tape, xs, ys)
    tried = [local for unit in units if (local := check_unit(tape, unit, seed)) is not None]
    return [local for local in tried if local.error > _THRESHOLD], len(tried)


def check_unit(tape: Tape, unit: Unit, seed: int) -> Local | None:
    """A unit's rule against tangents of its forward, with random cotangents; None where tangents do not go through."""
    operands = list(dict.fromkeys(n for n in unit.operands if n and inexact(tape.var(n)) and tape.values[n].size))
    outputs = [n for n in unit.outputs if n in tape.values and inexact(tape.var(n))]
    program = Program(tape, operands, outputs)
    if not operands or not program.analytic:
        return None
    found = list(_probe(tape, unit, program, np.random.default_rng(seed)))
    return max(found, key=lambda local: local.error, default=None)


def _probe(tape: Tape, unit: Unit, program: Program, rng: np.random.Generator) -> Iterator[Local]:
    """The inner products of random cotangents with random tangents of each operand, taken both ways."""
    cts = {n: tape.hold(tape.fresh("probe"), rng.normal(size=tape.values[n].shape)) for n in program.outputs}
    try:
        flows = pull_back(tape, unit, [cts.get(n) for n in unit.outputs])
    except (GradcheckError, ValueError, TypeError, IndexError):
        yield Local(unit, np.inf)
        return
    for name in program.probes:
        here = tape.values[name]
        total: Array = sum((ct.value for n, ct in flows if n == name), np.zeros(here.shape))
        directions = rng.normal(size=(_PROBES, *here.shape))
        tangents = program.tangents({name: directions})
        numerical = sum(_dot(t, cts[n].value) for n, t in zip(program.outputs, tangents, strict=True))
        yield _compare(unit, name, total, directions, np.asarray(numerical))


def _compare(unit: Unit, name: str, total: Array, directions: Array, numerical: Array) -> Local:
    by_rule = _dot(directions, total)
    size = np.max(np.abs([by_rule, numerical]), initial=0.0)
    ground = max(float(size), 1e-9 * float(np.sqrt(np.sum(total**2))), np.finfo(float).tiny)
    error = float(np.max(np.abs(by_rule - numerical), initial=0.0)) / ground
    return Local(unit, error if np.isfinite(error) else np.inf, name)


def _dot(stack: Array, array: Array) -> Array:
    return np.asarray((stack * array).reshape(stack.shape[0], -1).sum(axis=1))
