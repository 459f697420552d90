"""Recurrent layers as one step: values, tangents, cotangents, sparsity and rounding, all against the layer unrolled."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradcheck_cli import native
from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.engine.rounding import RandomRounding
from gradcheck_cli.errors import ModelError
from gradcheck_cli.jacobian.coloring import Structure
from gradcheck_cli.jacobian.jacobian import moved_by_rounding
from gradcheck_cli.ops import OPS
from gradcheck_cli.ops.recurrent import unrolled_in
from gradcheck_cli.ops.recurrent_steps import at_point, layer_of
from tests.checking.small import check, model
from tests.native.conftest import KINDS
from tests.ops.case import Case
from tests.ops.cases.recurrent import TAKES, layer
from tests.rounding import assert_rounded

LENGTHS = np.array([2, 3], np.int32)
VARIANTS = {"RNN": ({},), "GRU": ({}, {"linear_before_reset": 1}), "LSTM": ({}, {"input_forget": 1})}
SMOOTH = ("Tanh", "Sigmoid", "Softsign", "Softplus", "Affine", "ScaledTanh")


def smooth_cases() -> list[Case]:
    """Layers in every direction, layout and variant, with all optional inputs and with none."""
    found = []
    for op, variants in VARIANTS.items():
        ways = itertools.product(variants, ("forward", "reverse", None), (0, 1), (None, LENGTHS), (False, True))
        for more, direction, layout, lengths, given in ways:
            named = {"direction": direction} if direction else {}
            peepholes = {"c": given, "peepholes": given} if op == "LSTM" else {}
            found.append(layer(op, d=1 if direction else 2, layout=layout, lengths=lengths, bias=given, h=given,
                               label=f"{lengths is not None} {given}", **peepholes, **named, **more))  # fmt: skip
        for names in itertools.pairwise([*SMOOTH, SMOOTH[0]]):
            every = (*names, names[0])[: {"RNN": 1, "GRU": 2, "LSTM": 3}[op]]
            attrs = {
                k: tuple(v for n in every for v in TAKES[n].get(k, ())) for k in ("activation_alpha", "activation_beta")
            }
            found.append(layer(op, h=True, activations=every, **attrs))
    return found


CASES = smooth_cases()
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
by_each = pytest.mark.parametrize("kernel", KINDS)


def both(case: Case) -> tuple[Tape, Tape]:
    """The tapes of a case: with the layer as one step, and unrolled."""
    return case.tape(), trace(case.graph, case.feeds, ops=unrolled_in(OPS))


def pairs(case: Case) -> Any:
    """The names of each floating-point operand and output on both tapes."""
    whole, parts = both(case)
    for x, y in itertools.product(case.floats(), case.outputs):
        yield x, y, [(tape, tape.named[x].name, tape.named[y].name) for tape in (whole, parts)]


@pytest.mark.one_in(3)
@every_case
def test_a_smooth_layer_is_one_step_with_the_values_of_all(case: Case) -> None:
    whole, parts = both(case)
    assert [step.node.key for step in whole.steps] == [("gradcheck", case.op)]
    assert len(parts.steps) > 10
    for name in case.outputs:
        assert_rounded(whole.named[name].value, parts.named[name].value, roundings=200, of=1.0)


@pytest.mark.one_in(3)
@by_each
@every_case
def test_tangents_are_those_of_the_complex_step(case: Case, kernel: Any) -> None:
    """The layer unrolled runs at complex numbers, all of it, so that no slope is shared with what is tested."""
    softsign = OPS["", "Softsign"]
    continued = {**unrolled_in(OPS), softsign.key: replace(softsign, forward=softsign.step or softsign.forward)}
    with native.use(kernel):
        whole = case.tape()
        for x in case.floats():
            here = case.feeds[x].astype(np.float64)
            moves = np.random.default_rng(0).normal(size=(3, *here.shape))
            moves[0], moves[1].flat[1:] = 0, 0
            made = Program(whole, [whole.named[x].name], [whole.named[y].name for y in case.outputs]).jvp(
                {whole.named[x].name: moves}
            )
            assert not any(y[0].any() for y in made)
            for move, *ys in zip(moves[1:], *(y[1:] for y in made), strict=True):
                tape = trace(case.graph, {**case.feeds, x: here + 1e-30j * move}, ops=continued)
                for name, y in zip(case.outputs, ys, strict=True):
                    exact = np.imag(tape.named[name].value) / 1e-30
                    assert_rounded(y, exact, roundings=400, of=1.0, label=f"{name} by {x}")


@pytest.mark.one_in(3)
@by_each
@every_case
def test_cotangents_are_those_of_the_layer_unrolled(case: Case, kernel: Any) -> None:
    with native.use(kernel):
        for y in case.outputs:
            found = []
            for tape in both(case):
                like = tape.named[y].value
                seed = tape.hold(tape.fresh("seed"), np.ones_like(like))
                cts = gradients(tape, {tape.named[y].name: seed}, [tape.named[x].name for x in case.floats()])
                names = [ct.name for ct in cts if ct is not None]
                stack = np.random.default_rng(1).normal(size=(4, *like.shape))
                found.append(Program(tape, [seed.name], names).run({seed.name: stack}).outputs)
            for one, other in zip(*found, strict=True):
                assert_rounded(one, other, roundings=800, of=1.0, label=y)


@pytest.mark.one_in(3)
@every_case
def test_no_entry_outside_of_the_pattern_is_ever_reached(case: Case) -> None:
    for x, y, [(whole, x_name, y_name), _] in pairs(case):
        program = Program(whole, [x_name], [y_name])
        here = whole.values[x_name]
        (made,) = program.jvp({x_name: np.eye(here.size).reshape(-1, *here.shape)})
        pattern = Structure(program, Budget()).pattern
        assert pattern is not None
        allowed = np.zeros((here.size, made[0].size), bool)
        for block, rows, columns in pattern.blocks():
            allowed[rows + block.start, columns] = True
        assert not made.reshape(allowed.shape)[~allowed].any(), f"{y} by {x}"


@pytest.mark.parametrize("op", VARIANTS)
def test_later_steps_of_x_reach_no_earlier_output_and_sequences_are_apart(op: str) -> None:
    case = layer(op)
    tape = case.tape()
    pattern = Structure(Program(tape, [tape.named["x0"].name], [tape.named["y0"].name]), Budget()).pattern
    assert pattern is not None
    found = np.zeros((3, 2, 2, 3, 2, 2), bool)  # steps, batch, size; steps, batch, hidden
    for block, rows, columns in pattern.blocks():
        found.reshape(12, 12)[rows + block.start, columns] = True
    for t, n, s, m in itertools.product(range(3), range(2), range(3), range(2)):
        assert found[t, n, :, s, m].all() == (t <= s and n == m)


@pytest.mark.parametrize("op, more", [("RNN", {}), ("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("LSTM", {})])
def test_noise_of_a_layer_is_that_of_its_steps(op: str, more: dict[str, Any]) -> None:
    case = layer(op, h=True, **more)
    for x, y, ways in pairs(case):
        programs = [Program(tape, [a], [b]) for tape, a, b in ways]
        for measured in (forward_spread, tangent_spread):
            whole, parts = (measured(program) for program in programs)
            assert parts / 3 <= whole <= 3 * parts, f"{measured.__name__} of {y} by {x}"


def forward_spread(program: Program) -> float:
    """Root mean square of the movements of y by rounding."""
    y = program.y.reshape(-1)
    return float(np.std(np.concatenate([moved_by_rounding(program, seed) for seed in range(8)]) - y))


def tangent_spread(program: Program) -> float:
    """The same for a tangent of y."""
    move = np.random.default_rng(0).normal(size=(1, *program.x.shape))
    runs = [program.jvp({program.probes[0]: move}, RandomRounding.seeded(seed))[0] for seed in range(32)]
    return float(np.std(np.stack(runs) - program.jvp({program.probes[0]: move})[0]))


def test_layers_with_kinks_and_with_other_rules_are_unrolled() -> None:
    wrong = replace(OPS["", "Tanh"], vjp=lambda ct, y, x: (ct * 1.001,))
    for attrs, ops in (({"clip": 0.4}, OPS), ({"activations": ("Relu",)}, OPS), ({}, {**OPS, ("", "Tanh"): wrong})):
        case = layer("RNN", **attrs)
        assert len(trace(case.graph, case.feeds, ops=ops).steps) > 5


@pytest.mark.parametrize("change, says", [
    ({"activations": ("Sigmoid", "Tanh")}, "2 activations are given, 3 are needed"),
    ({"activations": ("Sigmoid", "Tanh", "Sine")}, "'Sine' is not known"),
    ({"inputs": {3: np.zeros((1, 9))}}, r"B is \[1, 16\], not \[1, 9\]"),
    ({"inputs": {5: np.zeros((2, 2, 2))}}, r"an initial state is \[1, 2, 2\]"),
    ({"inputs": {7: np.zeros((1, 5))}}, r"P is \[1, 6\], not \[1, 5\]"),
])  # fmt: skip
def test_a_layer_that_does_not_fit_says_where(change: dict[str, Any], says: str) -> None:
    case = layer("LSTM", h=True, c=True, peepholes=True)
    inputs, attrs = change.get("inputs", {}), {key: value for key, value in change.items() if key != "inputs"}
    case = replace(
        case, inputs=tuple(inputs.get(i, x) for i, x in enumerate(case.inputs)), attrs={**case.attrs, **attrs}
    )
    with pytest.raises(ModelError, match=says):
        case.tape()


def test_a_point_is_known_by_its_numbers_whatever_array_holds_them() -> None:
    case = layer("LSTM", h=True)
    x = case.inputs[0].copy()
    operands = [x, *case.inputs[1:]]
    first = at_point(layer_of("LSTM"), operands)
    assert at_point(layer_of("LSTM"), [x.copy(), *operands[1:]]) is first
    x[0, 0, 0] += 1
    changed = at_point(layer_of("LSTM"), operands)
    assert changed is not first
    assert first.operands[0][0, 0, 0] == x[0, 0, 0] - 1
    assert not np.array_equal(changed.steps[0].after, first.steps[0].after)


@pytest.mark.parametrize("op", VARIANTS)
def test_a_wrong_rule_of_a_whole_layer_is_found_and_named(op: str) -> None:
    case, key = layer(op), ("gradcheck", op)
    right = OPS[key].vjp
    assert right is not None

    def wrong(cts: Any, ans: Any, *primals: Any, **attrs: Any) -> Any:
        return tuple(None if ct is None else ct * 1.001 for ct in right(cts, ans, *primals, **attrs))

    weights = {name: x for name, x in case.feeds.items() if name != "x0"}
    tested = model((op, " ".join(["x", *weights]), "a", case.attrs), ("Sin", "a", "y"), x=(3, 2, 2), constants=weights)
    assert check(tested).status == "pass"
    found = check(tested, ops={**OPS, key: replace(OPS[key], vjp=wrong)})
    assert found.status == "fail"
    assert found.suspect is not None
    assert (found.suspect.node, found.suspect.op, found.suspect.part_of) == (0, op, "")
