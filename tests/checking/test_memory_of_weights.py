"""Checks of large tensors keep little beside them: not what was compared, nor what it was compared along."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.compare import partial
from gradcheck_cli.jacobian.directions import Directions, Redrawn
from tests.checking.small import model

COUNT, WIDTH = 6, 1024
RNG = np.random.default_rng(0)
DEEP = model(
    *(("MatMul", f"{f'h{i}' if i else 'x'} w{i}", f"h{i + 1}") for i in range(COUNT)), ("Tanh", f"h{COUNT}", "y"),
    x=(2, 3, WIDTH), constants={f"w{i}": RNG.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 32 for i in range(COUNT)},
)  # fmt: skip


@pytest.mark.parametrize("mode", ["directional", "nodes"])
def test_a_check_by_all_weights_takes_a_few_times_their_memory(mode: str) -> None:
    """Cotangents of all, once as they are compared and once as the laws add them up, the weights, and what one takes."""
    tracemalloc.start()
    try:
        report = gc.check(DEEP, [f"w{i}" for i in range(COUNT)], "y", mode=mode)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert {record.status for record in report.checks} == {"pass"}
    assert peak < 12 * 8 * COUNT * WIDTH**2  # it was 15 and 18 times


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
