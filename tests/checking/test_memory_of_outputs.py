"""The memory of a check is that of its largest output: no backward pass outlives the comparison of its y."""

from __future__ import annotations

import tracemalloc

import numpy as np

import gradcheck_cli as gc
from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.ops import OPS
from tests.checking.small import model

DEPTH, ROWS, WIDTH = 12, 500, 64


def heads(count: int) -> gc.Model:
    """A deep net with a number of outputs, each of which depends on all of it."""
    return model(
        *(("Tanh", f"h{i}" if i else "x", f"h{i + 1}") for i in range(DEPTH)),
        *(("Sin", f"h{DEPTH}", f"s{i}") for i in range(count)), *(("ReduceSum", f"s{i}", f"y{i}") for i in range(count)),
        x=(ROWS, WIDTH),
    )  # fmt: skip


def peak(count: int) -> int:
    """Bytes that a check of so many outputs takes at most."""
    net, ys = heads(count), [f"y{i}" for i in range(count)]
    tracemalloc.start()
    try:
        report = gc.check(net, "x", ys, mode="nodes", forward="internal", jobs=1)
        found = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [record.status for record in report.checks] == ["pass"] * count
    return found


def test_a_check_of_many_outputs_takes_hardly_more_memory_than_one_of_few() -> None:
    few, many, each = peak(2), peak(10), 8 * ROWS * WIDTH
    assert many < few + 8 * 8 * each  # of another output: its own two values, slopes and programs, not those of the net


def test_values_put_aside_are_gone_from_whoever_holds_the_values_of_a_tape() -> None:
    tape = Tape(OPS)
    x = tape.hold("x", np.linspace(-1, 1, 5))
    y = tape.apply("Tanh", x)
    values, before = tape.values, dict(tape.values)
    with tape.aside():
        gradients(tape, {y.name: tape.hold("seed", np.ones(5))}, [x.name])
        assert len(values) > len(before)
    assert tape.values is values
    assert values.keys() == before.keys()
    assert all(values[name] is before[name] for name in before)
