"""Box stacks go through every operator, and through whole graphs, as whole stacks do: values, tangents and branches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

import gradcheck_cli as gc
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.program import Program
from gradcheck_cli.engine.rounding import RandomRounding
from gradcheck_cli.graph import is_inexact
from gradcheck_cli.jacobian import directions as units
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.op.boxes import BoxStack, Span
from gradcheck_cli.ops import OPS
from tests.checking.small import model
from tests.ops.case import Case
from tests.ops.cases import CASES
from tests.rounding import FUNCTION, assert_rounded

every_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
PROBES = 5
ROOMS = [units.Room(2, 1 << 20), units.Room(PROBES, 1 << 20)]  # too little for all to be whole at once, and enough


def box_stack(rng: np.random.Generator, full: tuple[int, ...], base: np.ndarray | None, dtype: np.dtype) -> BoxStack:
    """Boxes of one random shape, for some of the probes, with values near the base."""
    probes = np.flatnonzero(rng.random(PROBES) < 0.8)
    lengths = [int(rng.integers(1, max(n // 2, 1) + 1)) if n else 0 for n in full]
    starts = [rng.integers(0, n - m + 1, len(probes)) for n, m in zip(full, lengths, strict=True)]
    box = tuple(Span(start, m) for start, m in zip(starts, lengths, strict=True))
    room = ROOMS[int(rng.integers(len(ROOMS) + 1)) % len(ROOMS)]
    found = BoxStack(np.zeros((len(probes), *lengths), dtype), box, probes, PROBES, full, base, *room)
    moves = rng.normal(size=found.values.shape).astype(dtype)
    return structs.replace(
        found, values=moves if base is None else (found.unmoved().values * (1 + 1e-3 * moves)).astype(dtype)
    )


def same(a: np.ndarray, b: np.ndarray, rtol: float) -> None:
    if b.dtype.kind in "fc":
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-13)
    else:
        assert (a == b).all()


@pytest.mark.one_in(20)
@every_case
@pytest.mark.parametrize("seed", range(2))
def test_values_in_boxes_are_those_of_whole_stacks(case: Case, seed: int) -> None:
    tape, rng = case.tape(), np.random.default_rng(seed)
    for x in case.floats():
        program, here = Program(tape, [x], [tape.named[y].name for y in case.outputs]), tape.values[x]
        moved = box_stack(rng, here.shape, here, here.dtype)
        mine, whole = (program.run({x: each}, branches=True) for each in (moved, moved.filled()))
        for a, b in zip(mine.outputs, whole.outputs, strict=True):
            same(a, b, 1e-12)
        if any(name in case.id for name in ROUNDED):
            continue
        np.testing.assert_array_equal(mine.any_crossed(PROBES), whole.any_crossed(PROBES))
        for name in ("kind", "places", "where"):
            np.testing.assert_array_equal(getattr(mine.decisions, name), getattr(whole.decisions, name))


ROUNDED = ("SVMClassifier",)  # decides on what rounding leaves of a difference of equal numbers


@pytest.mark.one_in(20)
@every_case
@pytest.mark.parametrize("seed", range(2))
def test_tangents_in_boxes_are_those_of_whole_stacks(case: Case, seed: int) -> None:
    tape, rng = case.tape(), np.random.default_rng(seed)
    floats = [tape.named[y].name for y in case.outputs if is_inexact(tape.named[y].dtype)]
    for x in case.floats():
        program, here = Program(tape, [x], floats), tape.values[x]
        if program.analytic and floats:
            tangent = box_stack(rng, here.shape, None, here.dtype)
            for a, b in zip(*(program.jvp({x: each}) for each in (tangent, tangent.filled())), strict=True):
                same(a, b, 1e-11)
            moved = (program.jvp({x: each}, RandomRounding.seeded(seed)) for each in (tangent, tangent.filled()))
            for a, b in zip(*moved, strict=True):
                same(a, b, 1e-11)


RNG = np.random.default_rng(5)
W = {
    f"w{n}": RNG.normal(size=shape) / 3
    for n, shape in enumerate([(40, 30), (30, 6), (3, 2, 3, 3), (2, 3, 3, 3), (8, 8)])
}
ENDLESS = "an entry that is infinite"
GRAPHS = {
    "layers": model(
        ("MatMul", "x w0", "a"), ("Tanh", "a", "b"), ("MatMul", "b w1", "c"), ("LogSoftmax", "c", "y"),
        x=(2, 40), constants=W,
    ),
    "residual": model(
        ("Conv", "x w2", "a", {"pads": (1, 1, 1, 1)}), ("Relu", "a", "b"), ("Conv", "b w3", "c", {"pads": (1, 1, 1, 1)}),
        ("Add", "x c", "d"), ("MaxPool", "d", "e", {"kernel_shape": (2, 2), "strides": (2, 2)}), ("Tanh", "e", "f"),
        ("AveragePool", "f", "g", {"kernel_shape": (2, 2)}), ("Concat", "g g", "h", {"axis": 1}),
        ("GlobalAveragePool", "h", "y"), x=(1, 2, 12, 12), constants=W,
    ),
    "transposed": model(
        ("ConvTranspose", "x w2", "a", {"strides": (2, 2)}), ("Slice", "a from to", "b"), ("Pad", "b around", "c"),
        ("Mul", "c c", "d"), ("ReduceSum", "d axes", "y"), x=(1, 3, 6, 6),
        constants={**W, "from": [0, 0, 1, 2], "to": [1, 2, 12, 11], "around": [0, 0, 1, 0, 0, 0, 0, 2], "axes": [3]},
    ),
    "attention": model(
        ("MatMul", "x w4", "q"), ("Transpose", "q", "k", {"perm": (1, 0)}), ("MatMul", "q k", "s"), ("Softmax", "s", "p"),
        ("MatMul", "p x", "o"), ("Add", "o x", "r"), ("LayerNormalization", "r one", "n"), ("Reshape", "n flat", "y"),
        x=(6, 8), constants={**W, "one": np.ones(8), "flat": [3, 16]},
    ),
    ENDLESS: model(
        ("MatMul", "x endless", "a"), ("Sigmoid", "a", "b"), ("Reshape", "b flat", "y"), x=(4, 4),
        constants={"endless": np.where(np.arange(16) == 5, np.inf, 2.0).reshape(4, 4), "flat": [16]},
    ),
}  # fmt: skip


def traced(name: str) -> tuple[Tape, str, str]:
    graph = GRAPHS[name].graph
    x = np.random.default_rng(2).normal(size=graph.types["x"].shape)
    tape = trace(graph, {"x": x}, ops=OPS)
    return tape, tape.named["x"].name, tape.named["y"].name


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("room", [units.Room(7, 1 << 22), units.Room(1 << 20, 1 << 22), units.Room(3, 1 << 10)])
def test_single_entries_go_through_a_graph_as_whole_stacks_do(name: str, room: units.Room) -> None:
    tape, x, y = traced(name)
    program, here = Program(tape, [x], [y]), tape.values[x]
    rows = np.arange(here.size)
    tangents = units.unit_tangents(here, rows, room)
    values = units.moved_entries(here, rows, np.linspace(1e-3, 2e-3, len(rows)), room)
    for a, b in zip(*(program.jvp({x: each}) for each in (tangents, tangents.filled())), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)
    mine, whole = (program.run({x: each}, branches=True) for each in (values, values.filled()))
    np.testing.assert_allclose(mine.outputs[0], whole.outputs[0], rtol=1e-13, atol=1e-14)
    np.testing.assert_array_equal(mine.decisions.kind, whole.decisions.kind)


@pytest.mark.parametrize("name", [name for name in GRAPHS if name != ENDLESS])
def test_cotangents_of_single_entries_go_back_as_whole_stacks_do(name: str) -> None:
    tape, x, y = traced(name)
    backward = Backward(tape, y, [x])
    columns, seed = np.arange(backward.seed.size), backward.seed.name
    seeds = units.unit_cotangents(backward.seed.value, columns, units.Room(2, 1 << 22))
    mine, whole = (backward.program.run({seed: each}).outputs[0] for each in (seeds, seeds.filled()))
    np.testing.assert_allclose(mine, whole, rtol=1e-10, atol=1e-14)


def test_an_entry_alone_is_computed_where_an_entry_alone_moves() -> None:
    computed = []

    def exp(x: np.ndarray) -> np.ndarray:
        computed.append(x.size)
        return np.exp(x)

    ops = {**OPS, ("", "Exp"): replace(OPS["", "Exp"], forward=exp)}
    graph = model(("Exp", "x", "a"), ("ReduceSum", "a", "y", {"keepdims": 0}), x=(500,)).graph
    tape = trace(graph, {"x": np.linspace(0, 1, 500)}, ops=ops)
    x, y = tape.named["x"].name, tape.named["y"].name
    computed.clear()
    values = units.moved_entries(tape.values[x], np.arange(500), np.full(500, 1e-3), units.Room(1, 1 << 20))
    (found,) = Program(tape, [x], [y]).run({x: values}).outputs
    assert sum(computed) == 500
    assert_rounded(found, np.exp(values.filled()).sum(axis=1), roundings=FUNCTION + 500)


def test_what_is_not_zero_for_a_cotangent_of_zero_is_computed_for_whole_stacks() -> None:
    def wrong(ct, y, x):
        return (ct * y + 1.0,)

    tested = GRAPHS["layers"]
    [record] = gc.check(tested, "x", "y", ops={**OPS, ("", "Tanh"): replace(OPS["", "Tanh"], vjp=wrong)}).checks
    assert record.status == "fail"
    assert not Backward(*_shifted(tested, wrong)).silent
    tape, x, y = traced(ENDLESS)
    assert not Backward(tape, y, [x]).silent


def _shifted(tested, wrong):
    ops = {**OPS, ("", "Tanh"): replace(OPS["", "Tanh"], vjp=wrong)}
    tape = trace(tested.graph, {"x": np.zeros((2, 40))}, ops=ops)
    return tape, tape.named["y"].name, [tape.named["x"].name]
