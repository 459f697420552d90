"""Properties that hold for every operator in every case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradcheck_cli.autodiff.backward import gradients, inexact
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.engine.program import Program
from gradcheck_cli.ops import OPS
from tests.ops.case import Case, subsets
from tests.ops.cases import CASES

every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)


def float_outputs(tape: Tape, case: Case) -> list[str]:
    """Names on the tape of the outputs that hold floating-point numbers."""
    return [tape.named[y].name for y in case.outputs if inexact(tape.named[y])]


def unit_stack(shape: tuple[int, ...]) -> np.ndarray:
    """One probe for each entry."""
    size = int(np.prod(shape))
    return np.eye(size).reshape(size, *shape)


def theoretical(tape: Tape, y: str, xs: list[str]) -> list[np.ndarray]:
    """Jacobians `(y.size, *x.shape)` by the gradient rules."""
    seed = tape.hold(tape.fresh("seed"), np.ones(tape.values[y].shape))
    cts = gradients(tape, {y: seed}, xs)
    stack = unit_stack(seed.shape)
    zeros = [np.zeros((len(stack), *tape.values[x].shape)) for x in xs]
    live = [ct.name for ct in cts if ct is not None]
    if not live or not len(stack):
        return zeros
    found = iter(Program(tape, [seed.name], live).run({seed.name: stack}).outputs)
    return [zero if ct is None else next(found) for ct, zero in zip(cts, zeros, strict=True)]


def by_differences(tape: Tape, y: str, x: str, h: float = 1e-5) -> tuple[np.ndarray, np.ndarray]:
    """The Jacobian `(x.size, *y.shape)` by a five-point rule, and which rows crossed a branch."""
    program, here = Program(tape, [x], [y]), tape.values[x]
    unit = unit_stack(here.shape)
    total, crossed = 0.0, np.zeros(len(unit), bool)
    for weight, offset in [(8 / 12, h), (-8 / 12, -h), (-1 / 12, 2 * h), (1 / 12, -2 * h)]:
        outcome = program.run({x: here + offset * unit}, branches=True)
        total = total + weight * outcome.outputs[0] / h
        crossed |= outcome.any_crossed(len(unit))
    return np.asarray(total), crossed


@pytest.mark.one_in(3, of="op")
@every_case
def test_the_vjp_is_the_transposed_jacobian(case: Case) -> None:
    tape = case.tape()
    for y in float_outputs(tape, case):
        for x, by_rule in zip(case.floats(), theoretical(tape, y, case.floats()), strict=True):
            numerical, crossed = by_differences(tape, y, x)
            rows = by_rule.reshape(by_rule.shape[0], tape.values[x].size).T.reshape(numerical.shape)
            np.testing.assert_allclose(rows[~crossed], numerical[~crossed], rtol=1e-6, atol=1e-8)
            assert crossed.mean() < 0.5, "the case lies on a kink"


@pytest.mark.one_in(20)
@every_case
def test_the_complex_step_agrees_with_the_vjp(case: Case) -> None:
    tape = case.tape()
    for y in float_outputs(tape, case):
        for x, by_rule in zip(case.floats(), theoretical(tape, y, case.floats()), strict=True):
            program = Program(tape, [x], [y])
            if not program.analytic:
                continue
            (numerical,) = program.jvp({x: unit_stack(tape.values[x].shape)})
            rows = by_rule.reshape(by_rule.shape[0], tape.values[x].size).T.reshape(numerical.shape)
            np.testing.assert_allclose(rows, numerical, rtol=1e-11, atol=1e-13)


@pytest.mark.one_in(20, of="op")
@every_case
def test_tangents_of_several_operands_add_up(case: Case) -> None:
    tape, xs = case.tape(), case.floats()
    for y in float_outputs(tape, case):
        program = Program(tape, xs, [y])
        if len(xs) < 2 or not program.analytic:
            continue
        rng = np.random.default_rng(0)
        stacks = {x: rng.normal(size=(3, *tape.values[x].shape)) for x in xs}
        (together,) = program.jvp(stacks)
        alone = [Program(tape, [x], [y]).jvp({x: stacks[x]})[0] for x in xs]
        np.testing.assert_allclose(together, np.sum(alone, axis=0), rtol=1e-11, atol=1e-13)


@pytest.mark.one_in(8, of="op")
@every_case
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_batching_rule_equals_the_loop(case: Case, count: int) -> None:
    tape = case.tape()
    rng = np.random.default_rng(count)
    for xs in subsets(case.floats()):
        stacks = {x: tape.values[x] * rng.uniform(0.9, 1.1, (count, *tape.values[x].shape)) for x in xs}
        for array in (*tape.values.values(), *stacks.values()):
            array.flags.writeable = False  # nobody's to write to
        program = Program(tape, list(xs), [tape.named[y].name for y in case.outputs])
        batched, looped = program.run(stacks), looped_run(program, stacks)
        for stack, expected in zip(batched.outputs, looped, strict=True):
            if expected.dtype == object:
                assert (stack == expected).all()
            else:
                np.testing.assert_allclose(stack, expected, rtol=1e-12, atol=1e-13)


def looped_run(program: Program, stacks: dict[str, np.ndarray]) -> list[Any]:
    """The program on one probe after the other, every kernel called for itself."""
    outputs = []
    for p in range(len(next(iter(stacks.values())))):
        live = {x: s[p] for x, s in stacks.items()}
        for _, step in program.steps:
            operands = [live.get(n, program.tape.values[n]) if n else None for n in step.operands]
            made = step.op.forward(*operands, **step.metadata)
            live.update(zip(step.node.outputs, made if step.op.many else (made,), strict=False))
        outputs.append([live.get(n, program.tape.values[n]) for n in program.outputs])
    return [np.stack(column) for column in zip(*outputs, strict=True)]


@pytest.mark.one_in(30)
@every_case
def test_the_vjp_can_be_differentiated(case: Case) -> None:
    tape, xs = case.tape(), case.floats()
    for y in float_outputs(tape, case):
        if not xs or not tape.values[y].size:
            continue
        rng = np.random.default_rng(0)
        seed = tape.hold(tape.fresh("seed"), drawn(rng, tape.values[y]))
        first = [ct for ct in gradients(tape, {y: seed}, xs) if ct is not None]
        for ct in first:
            again = tape.hold(tape.fresh("seed"), drawn(rng, ct.value))
            tape.regions.clear()
            second = gradients(tape, {ct.name: again}, xs)
            check_directional(tape, ct.name, again.value, xs, second)


def drawn(rng: np.random.Generator, like: np.ndarray) -> np.ndarray:
    """Normal numbers in the shape and dtype of an array."""
    return rng.normal(size=like.shape).astype(like.dtype)


def check_directional(tape: Tape, y: str, seed: np.ndarray, xs: list[str], cts: list[Any]) -> None:
    """The gradients `cts` of `<seed, y>` against a difference along a random direction."""
    rng = np.random.default_rng(1)
    program = Program(tape, xs, [y])
    v = {x: rng.normal(size=tape.values[x].shape) for x in xs}
    h = 1e-5
    sides = [program.run({x: (tape.values[x] + s * h * v[x])[None] for x in xs}, branches=True) for s in (1, -1, 2, -2)]
    if any(o.any_crossed(1)[0] for o in sides):
        return
    f = [np.sum(seed * o.outputs[0][0]) for o in sides]
    numerical = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h)
    by_rule = sum(np.sum(ct.value * v[x]) for x, ct in zip(xs, cts, strict=True) if ct is not None)
    scale = max((abs(float(np.sum(np.abs(ct.value * v[x])))) for x, ct in zip(xs, cts, strict=True) if ct is not None),
                default=0.0)  # fmt: skip
    assert abs(numerical - by_rule) <= 1e-6 * max(scale, abs(numerical), 1e-2)


def test_every_operator_has_a_case() -> None:
    covered = {(c.domain, c.op) for c in CASES}
    assert not sorted(set(OPS) - covered)


@pytest.mark.parametrize("name", ["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Sum", "Mean"])
@pytest.mark.parametrize("order", [1, -1])
def test_an_integer_beside_floats_is_taken_for_a_float(name: str, order: int) -> None:
    attrs, floats = {"fmod": 1} if name == "Mod" else {}, np.array([0.5, 1.5, 2.2])
    mixed, right = (OPS["", name].forward(*[three, floats][::order], **attrs) for three in (np.array(3), np.array(3.0)))
    assert (mixed.dtype, mixed.tolist()) == (np.float64, right.tolist())
