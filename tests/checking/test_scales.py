"""Features of very different scales: a wrong gradient of any of them fails, a right one passes, whatever their units."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import gradcheck_cli as gc
from tests.checking.small import check, model, with_rule

FEATURES, ROWS = 6, 3
SCALES = [1e-10, 1e4, 1e7, 1e10]
MODES = ["full", "nodes", "directional", "sampled"]
WHICH = {"one": [2], "two": [1, 4], "all but one": [0, 1, 2, 3, 4]}


class Scaled(NamedTuple):
    """A small network of features some of which have another scale, that of the others being 1, and values for them."""

    model: gc.Model
    x: Any


def network(which: list[int], scale: float, first: str = "Mul") -> Scaled:
    """Features brought to one scale, by the network's first node, and two layers."""
    rng = np.random.default_rng(3)
    sizes = np.ones(FEATURES)
    sizes[which] = scale
    w, v = rng.normal(size=(FEATURES, 5)), rng.normal(size=(5, 2))
    x = rng.normal(size=(ROWS, FEATURES)) * sizes
    rest = [("Tanh", "h", "a"), ("MatMul", "a V", "y")]
    if first == "MatMul":
        made = model(("MatMul", "x W", "h"), *rest, x=x.shape, constants={"W": w / sizes[:, None], "V": v})
    else:
        made = model(("Mul", "x units", "z"), ("MatMul", "z W", "h"), *rest, x=x.shape,
                     constants={"units": 1 / sizes, "W": w, "V": v})  # fmt: skip
    return Scaled(made, x)


def off(op: str, features: list[int], factor: float) -> Any:
    """The operator table in which the cotangents of some features are off by a factor, where there are so many."""
    right: Any = gc.OPS["", op].vjp
    factors = np.ones(FEATURES)
    factors[features] = factor

    def rule(ct: Any, ans: Any, a: Any, b: Any) -> tuple[Any, ...]:
        first, *others = right(ct, ans, a, b)
        return (first * factors if a.shape[-1] == FEATURES else first, *others)

    return with_rule(op, rule)


@pytest.mark.one_in(8)
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("which", WHICH)
@pytest.mark.parametrize("mode", MODES)
def test_a_wrong_gradient_of_any_feature_fails_whatever_the_scales(mode: str, which: str, scale: float):
    scaled, others = WHICH[which], [i for i in range(FEATURES) if i not in WHICH[which]]
    for first in ("Mul", "MatMul"):
        made = network(scaled, scale, first)
        assert check(made.model, value=made.x, mode=mode).status == "pass", first
        for features in (scaled, others):
            for factor in (1.001, -1.0):
                wrong = check(made.model, value=made.x, mode=mode, ops=off(first, features, factor))
                assert wrong.status == "fail", (first, features, factor)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("which", WHICH)
def test_a_feature_in_other_units_has_the_same_error(which: str, scale: float):
    """The largest relative error of a factor of 1.01 is that factor's, in whatever units the feature is."""
    made = network(WHICH[which], scale)
    record = check(made.model, value=made.x, ops=off("Mul", WHICH[which], 1.01))
    assert record.max_rel_err == pytest.approx(0.01 / 1.01, rel=1e-6)


@pytest.mark.parametrize("power", [-60, -7, 5, 60])
@pytest.mark.parametrize("which", WHICH)
def test_verdicts_do_not_depend_on_the_units_of_all_of_x(which: str, power: int):
    made = network(WHICH[which], 1e8)
    units = {"k": np.float64(2.0**power)}
    first, *nodes = made.model.graph.nodes
    moved = [("Mul", "x k", "x0"), (first.op, " ".join(["x0", *first.inputs[1:]]), first.outputs[0])]
    moved += [(node.op, " ".join(node.inputs), node.outputs[0]) for node in nodes]
    scaled = model(*moved, x=made.x.shape, constants={**made.model.graph.constants, **units})
    for features in ([], WHICH[which]):
        ops = off("Mul", features, 1.001) if features else gc.OPS
        here = check(made.model, value=made.x, ops=ops)
        there = check(scaled, value=made.x * 2.0**-power, ops=ops)
        assert (here.status, here.entries["failed"]) == (there.status, there.entries["failed"])


def test_what_is_forgiven_is_said():
    made = network([2], 1e10)
    power = check(made.model, value=made.x, mode="directional").power
    assert power["of"] == "norm of the Jacobian times the sizes of x"
    assert check(made.model, value=made.x).power == {"missed_below": 5e-7, "negligible": 1e-9}
