"""Laws that hold for every gradient: what breaks one fails, with the law and the node named; what is right breaks none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.checks.diagnose.laws import Laws
from gradcheck_cli.engine.complex_step import Pushforward
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, zero
from gradcheck_cli.results.record import Check
from tests.checking.small import check, model, with_rule

WIDE = {"wide": np.float64(1.5)}
VECTOR = model(("Mul", "x wide", "h"), ("Tanh", "h", "a"), ("Sin", "a", "y"), constants=WIDE)
SCALAR = model(
    ("Mul", "x wide", "h"), ("Tanh", "h", "a"), ("Sin", "a", "b"), ("ReduceSum", "b", "y", {"keepdims": 0}),
    constants=WIDE,
)  # fmt: skip
Table = Mapping[tuple[str, str], Op]


def right(ct: Any, y: Any, x: Any) -> Any:
    return ct * (1 - y * y)


def tanh(**changes: Any) -> Table:
    """The operator table with another Tanh."""
    return {**gc.OPS, ("", "Tanh"): dataclasses.replace(gc.OPS["", "Tanh"], **changes)}


def drawing() -> Table:
    rng = np.random.default_rng(5)
    return with_rule("Tanh", lambda ct, y, x: (right(ct, y, x) * float(1 + 1e-3 * rng.normal()),))


def noisy() -> Table:
    rng = np.random.default_rng(5)
    return tanh(forward=lambda x: np.tanh(x) + 1e-5 * rng.normal(size=x.shape))


def swapped_in_the_rule() -> Table:
    """The rule of Tanh by a multiplication that swaps probes, which no forward run has."""
    swapping = dataclasses.replace(gc.OPS["", "Mul"], name="Swapped", batching=backwards)
    rule = lambda ct, y, x: (ct.tape.apply("Swapped", ct, 1.0 - y * y),)  # noqa: E731
    return {**with_rule("Tanh", rule), ("", "Swapped"): swapping}


def backwards(kernel: Any, operands: Any, probed: Any, metadata: Any) -> Any:
    return kernel(*operands, **metadata)[::-1]


def leaking(kernel: Any, operands: Any, probed: Any, metadata: Any) -> Any:
    made = kernel(*operands, **metadata)
    return made + 1e-3 * made.mean(axis=0, keepdims=True)


class Breach(NamedTuple):
    """A wrong table, and what is said of it."""

    ops: Callable[[], Table]
    code: str
    law: str


BREACHES = {
    "a constant": Breach(
        lambda: with_rule("Tanh", lambda ct, y, x: (right(ct, y, x) + 1e-3,)), "GC101",
        "a cotangent of zero does not give zero: the rule of node 1 Tanh 'a' adds something of its own"),
    "a tiny constant": Breach(
        lambda: with_rule("Tanh", lambda ct, y, x: (right(ct, y, x) + 1e-13,)), "GC101",
        "a cotangent of zero does not give zero: the rule of node 1 Tanh 'a' adds something of its own"),
    "a square": Breach(
        lambda: with_rule("Tanh", lambda ct, y, x: (right(ct * ct, y, x),)), "GC101",
        "the rule of node 1 Tanh 'a' is not linear in the cotangent: J^T (2 u - 3 w) is not 2 J^T u - 3 J^T w"),
    "a magnitude": Breach(
        lambda: with_rule("Tanh", lambda ct, y, x: (right(sym.abs(ct), y, x),)), "GC101",
        "the rule of node 1 Tanh 'a' is not linear in the cotangent: J^T (2 u - 3 w) is not 2 J^T u - 3 J^T w"),
    "a clipped cotangent": Breach(
        lambda: with_rule("Tanh", lambda ct, y, x: (right(sym.clip(ct, -1.0, 1.0), y, x),)), "GC101",
        "the rule of node 1 Tanh 'a' is not linear in the cotangent: J^T (2 u - 3 w) is not 2 J^T u - 3 J^T w"),
    "a rule that draws": Breach(
        drawing, "GC106",
        "two identical backward passes give different gradients: the rule of node 1 Tanh 'a' gives others each time"),
    "a kernel that draws": Breach(
        noisy, "GC106", "two identical forward runs give different results, from node 1 Tanh 'a' on"),
    "a batching rule of the rule that swaps": Breach(
        swapped_in_the_rule, "GC101",
        "a probe's result depends on the probes beside it, "
        "from Swapped 'a_grad/Swapped' in the gradient of node 1 Tanh 'a' on"),
    "a wrong zero": Breach(
        lambda: tanh(vjp=zero), "GC101",
        "node 1 Tanh 'a' declares that it has no derivative, but it moves smoothly with 'h'"),
    "a wrong zero on both sides": Breach(
        lambda: tanh(vjp=zero, step=lambda x: np.tanh(x.real) + 0 * x), "GC101",
        "node 1 Tanh 'a' declares that it has no derivative, but it moves smoothly with 'h'"),
}  # fmt: skip


def said(record: Check) -> tuple[str, ...]:
    return (record.message, *record.notes)


@pytest.mark.parametrize("tested", [VECTOR, SCALAR], ids=["vector", "scalar"])
@pytest.mark.parametrize("name", BREACHES)
def test_a_law_that_does_not_hold_fails_with_its_name_and_its_node(name: str, tested: gc.Model):
    record = check(tested, ops=BREACHES[name].ops())
    assert (record.status, record.code) == ("fail", BREACHES[name].code), said(record)
    assert BREACHES[name].law in said(record)
    assert record.suspect is not None
    assert record.suspect.node in (1, 2)


@pytest.mark.parametrize("rule, status", [(right, "pass"), (lambda ct, y, x: 1.001 * right(ct, y, x), "fail")])
@pytest.mark.parametrize("batching", [backwards, leaking])
def test_a_wrong_batching_rule_is_taken_back_and_the_verdict_is_that_on_the_rule(batching: Any, rule: Any, status: str):
    table = tanh(batching=batching, vjp=lambda ct, y, x: (rule(ct, y, x),))
    record = check(VECTOR, ops=table)
    assert record.status == status
    assert "node 1 Tanh 'a' runs probe by probe: its kernel gives something else for a stack" in " ".join(record.notes)


@pytest.mark.parametrize("mode", ["full", "directional", "nodes", "sampled"])
@pytest.mark.parametrize("name", ["a tiny constant", "a magnitude", "a rule that draws", "a wrong zero on both sides"])
@pytest.mark.parametrize("large", [False, True], ids=["small", "as of large tensors"])
def test_laws_hold_in_every_mode(name: str, mode: str, large: bool, monkeypatch: pytest.MonkeyPatch):
    if large:  # cotangents one after the other, none of them kept, and directions drawn anew
        for place, size in (("checks.diagnose.laws._STACKED", 0), ("checks.diagnose.laws._KEPT", 0),
                            ("compare.partial._REDRAWN", -1)):  # fmt: skip
            monkeypatch.setattr(f"gradcheck_cli.{place}", size)
    record = check(VECTOR, ops=BREACHES[name].ops(), mode=mode)
    assert (record.status, record.code) == ("fail", BREACHES[name].code), said(record)
    assert BREACHES[name].law in said(record)
    assert check(VECTOR, mode=mode).status == "pass"


PARAMETERS = model(
    ("Mul", "x V", "h"), ("Sin", "h", "s"), ("Mul", "s W", "g"), ("Tanh", "g", "a"), ("Exp", "a", "y"),
    constants={"V": np.array([0.5, 1.5, -1.0, 0.8]), "W": np.array([1.0, -0.5, 2.0, 0.7])},
)  # fmt: skip


def test_forward_runs_from_a_parameter_keep_the_laws_as_far_as_no_other_x_has_shown(monkeypatch: pytest.MonkeyPatch):
    ends = list[Any]()
    ran = Laws._ran
    monkeypatch.setattr(
        Laws, "_ran", lambda laws, program, *rest: ends.append(program.outputs) or ran(laws, program, *rest)
    )
    report = gc.check(PARAMETERS, ["x", "V", "W"], "y")
    assert [record.status for record in report.checks] == ["pass"] * 3
    assert ends == [("y",), ("h",), ("g",)]


def test_a_kernel_that_draws_fails_by_each_x_in_front_of_it():
    report = gc.check(PARAMETERS, ["W", "V", "x"], "y", ops=noisy())
    assert [(record.status, record.code) for record in report.checks] == [("fail", "GC106")] * 3


def test_slopes_are_computed_once_for_all_xs(monkeypatch: pytest.MonkeyPatch):
    found = list[str]()
    slope = Pushforward.slope

    def seen(self: Pushforward, index: int, step: Any, i: int) -> Array:
        if (index, i) not in self._slopes:
            found.append(step.node.op)
        return slope(self, index, step, i)

    monkeypatch.setattr(Pushforward, "slope", seen)
    report = gc.check(PARAMETERS, ["x", "V", "W"], "y", mode="directional", method="complex-step")
    assert [record.status for record in report.checks] == ["pass"] * 3
    assert {op: found.count(op) for op in ("Sin", "Tanh", "Exp")} == {"Sin": 1, "Tanh": 1, "Exp": 1}


@pytest.mark.parametrize("mode", ["full", "directional"])
def test_a_check_that_passes_applies_each_rule_twice(mode: str):
    """Once for what is compared, and once anew: for the health of the gradient, held against the first."""
    calls: list[int] = []
    rule = lambda ct, y, x: (calls.append(1), (right(ct, y, x),))[1]  # noqa: E731
    assert check(VECTOR, ops=with_rule("Tanh", rule), mode=mode).status == "pass"
    assert len(calls) == 2


@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("tested", [VECTOR, SCALAR], ids=["vector", "scalar"])
def test_a_rule_that_is_right_when_it_is_compared_and_wrong_anew_fails(tested: gc.Model, mode: str):
    calls: list[int] = []

    def rule(ct: Any, y: Any, x: Any) -> tuple[Any]:
        calls.append(1)
        return (right(ct, y, x) * (1.0 if len(calls) == 2 else 1 + 1e-6),)

    record = check(tested, ops=with_rule("Tanh", rule), mode=mode)
    assert (record.status, record.code) == ("fail", "GC106"), said(record)


def test_what_no_entry_shows_fails_by_its_law_alone():
    """Cotangents of unit vectors are as positive as their magnitudes."""
    tested = model(("Tanh", "x", "a"), ("Identity", "a", "y"))
    record = check(tested, ops=with_rule("Tanh", lambda ct, y, x: (right(sym.abs(ct), y, x),)))
    assert (record.status, record.code, record.entries["failed"]) == ("fail", "GC101", 0)
    assert record.message.startswith("the rule of node 0 Tanh 'a' is not linear in the cotangent")


STEPPED = {
    "Floor": {}, "Ceil": {}, "Round": {}, "Sign": {}, "Hardmax": {},
    "Floor of huge numbers": {"value": np.array([1e18, -3e22, 5e15, 1e300])},
    "Round of tiny numbers": {"value": np.array([1e-300, -1e-200, 1e-30, 0.0])},
}  # fmt: skip


@pytest.mark.parametrize("name", STEPPED)
def test_what_moves_in_steps_or_not_at_all_may_say_that_it_has_no_derivative(name: str):
    tested = model((name.split()[0], "x", "h"), ("Mul", "h x", "y"))
    record = check(tested, value=STEPPED[name].get("value"))
    assert record.status in ("pass", "inconclusive"), said(record)


def ill_conditioned() -> dict[str, gc.Model]:
    big = 1e9 * np.random.default_rng(0).normal(size=(6, 6))
    scale = {"a": big, "b": -big * (1 + 1e-13)}
    return {
        "products that cancel": model(
            ("MatMul", "a x", "p"), ("MatMul", "b x", "q"), ("Add", "p q", "y"), x=(6,), constants=scale),
        "a near-singular inverse": model(
            ("Mul", "x tiny", "s"), ("Add", "s near", "m"), ("Inverse", "m", "y", {}), x=(2, 2),
            constants={"tiny": np.float64(1e-9), "near": np.array([[1.0, 1.0], [1.0, 1.0 + 1e-7]])}),
        "a long chain": model(*[("Softmax", "x" if i == 0 else f"h{i - 1}", f"h{i}") for i in range(40)], x=(3, 5)),
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("name", ["products that cancel", "a long chain"])
def test_rounding_breaks_no_law(name: str, mode: str):
    for seed in range(5):
        record = check(ill_conditioned()[name], mode=mode, seed=seed)
        assert record.status in ("pass", "inconclusive"), said(record)


def test_laws_do_not_change_what_is_compared():
    """Probes of laws leave nothing on the tape that a later pair would see."""
    tested = model(("Tanh", "x", "h"), ("Mul", "h w", "y"), constants={"w": np.array([2.0, -1.0, 0.5, 3.0])})
    records = gc.check(tested, ["x", "w"], "y").checks
    assert [r.status for r in records] == ["pass", "pass"]
    assert records[0].gradient["norm"] == check(tested).gradient["norm"]


def test_random_operators_are_seeded_and_no_law_is_broken():
    types: Array = np.array([True])
    tested = model(
        ("Dropout", "x ratio train", "h"), ("RandomNormalLike", "h", "n"), ("Add", "h n", "y"), x=(8,),
        constants={"ratio": np.float32(0.5), "train": types[0]},
    )  # fmt: skip
    assert check(tested).status == "pass"


def test_what_is_right_along_every_axis_and_wrong_between_them_fails_the_dot_test():
    """A kernel that calls itself linear and is not: unit tangents are positive, a dense one is not.

    It takes a generator, so that nobody tries it before: its draws are its own.
    """
    forward, rule = lambda x, *, rng=None: np.maximum(x, 0), gc.OPS["", "Relu"].batching
    ramp = gc.Op("Ramp", forward, lambda ct, y, x, *, rng=None: (ct,), rule, linear=((0,),))
    tested = model(("Ramp", "x", "h"), ("Mul", "h h", "y"))
    record = check(tested, value=[0.5, 1.0, 1.5, 2.0], ops={**gc.OPS, ("", "Ramp"): ramp})
    assert (record.status, record.code, record.entries["failed"]) == ("fail", "GC101", 0)
    assert record.message.startswith("the dot test fails: <u, J v> is ")
