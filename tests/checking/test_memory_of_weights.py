"""Checks of large tensors keep little beside them: not what was compared, nor what it was compared along."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.compare import partial
from gradcheck_cli.jacobian.directions import Directions, Redrawn
from tests.checking.small import model

COUNT, WIDTH = 6, 1024
RNG = np.random.default_rng(0)
WEIGHTS = {f"w{i}": RNG.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 32 for i in range(COUNT)}


def _deep(last: str) -> gc.Model:
    products = (("MatMul", f"{f'h{i}' if i else 'x'} w{i}", f"h{i + 1}") for i in range(COUNT))
    return model(*products, (last, f"h{COUNT}", "y"), x=(2, 3, WIDTH), constants=WEIGHTS)


DEEP = _deep("Tanh")


@pytest.mark.parametrize("last", ["Tanh", "Relu"])  # of a Relu, ties are looked for among all weights
@pytest.mark.parametrize("mode", ["directional", "nodes"])
def test_a_check_by_all_weights_takes_a_few_times_their_memory(mode: str, last: str) -> None:
    """Cotangents of all, once as they are compared and once as the laws add them up, the weights, and what one takes."""
    peak = _peak(_deep(last), [*WEIGHTS], mode=mode)
    assert peak < 12 * 8 * COUNT * WIDTH**2  # it was 15 to 18 times


def test_directions_that_keep_ties_stay_within_the_memory_limit() -> None:
    """A few entries of the larger of two weights are equal: to find what keeps them so takes 20 directions of both."""
    a = RNG.normal(size=1 << 18).astype(np.float32)
    tied = model(("Max", "a b", "m"), ("ReduceSum", "m", "s"), ("Mul", "s x", "y"),
                 x=(2, 1), constants={"a": a, "b": np.concatenate([a[:8], a[:7:-1]])})  # fmt: skip
    limit = 96 << 20
    assert _peak(tied, ["a", "b"], mode="directional", memory_limit=limit) < limit  # it was 360 MiB


def _peak(checked: gc.Model, xs: list[str], **settings: Any) -> int:
    """The most memory that a check takes, which passes."""
    tracemalloc.start()
    try:
        report = gc.check(checked, xs, "y", **settings)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert {record.status for record in report.checks} == {"pass"}
    return peak


def test_directions_that_are_drawn_anew_are_those_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    [anew] = gc.check(DEEP, "w1", "y", mode="directional").checks
    monkeypatch.setattr(partial, "_REDRAWN", 1 << 40)
    [kept] = gc.check(DEEP, "w1", "y", mode="directional").checks
    assert anew.status == "pass"
    told = [replace(each, duration_s=0.0, peak_rss_mb=0.0) for each in (anew, kept)]  # those are of the machine
    assert told[0] == told[1]


def test_directions_that_are_drawn_anew_behave_as_given_ones() -> None:
    x, v = RNG.normal(size=(5, 4)), RNG.normal(size=(3, 20))
    given, drawn = Directions(x, v), Redrawn(x, 3, lambda: v.copy())
    some, cotangents = range(1, 3), RNG.normal(size=(2, 20))
    for one, other in (
        (given.block(some), drawn.block(some)),
        (given.slopes(cotangents), drawn.slopes(cotangents)),
        (given.representable(0.1), drawn.representable(0.1)),
        (given.fixed(0.1), drawn.fixed(0.1)),
        (given.part(np.array([2])).given, drawn.part(np.array([2])).given),
    ):
        np.testing.assert_array_equal(one, other)
    assert (drawn.entries(some), drawn.sizes, drawn.count) == (None, None, 3)
