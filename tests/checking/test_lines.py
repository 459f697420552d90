"""Parts that work line by line: found where they are, and Jacobians as by all of their steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import is_inexact
from gradcheck_cli.jacobian import coloring, jacobian
from gradcheck_cli.jacobian.coloring import line_parts
from gradcheck_cli.jacobian.directions import Directions
from gradcheck_cli.jacobian.jacobian import Backward, by_complex_step
from tests.checking.small import check, model, scaled, with_rule
from tests.ops.case import Case
from tests.ops.cases import CASES

RNG = np.random.default_rng(3)
SHAPES = {"q": (6, 6), "k": (6, 6), "up": (6, 24), "gate": (6, 24), "down": (24, 6), "own": (5, 6), "mix": (5, 5)}
W: dict[str, Any] = {
    **{name: RNG.normal(size=shape) / 3 for name, shape in SHAPES.items()},
    "one": np.ones(6), "last": [-1], "tiny": 1e-5, "back": [4], "end": [-6], "first": [0], "step": [-1],
}  # fmt: skip
SWAPPED = {"perm": (1, 0)}
MANY = 1 << 20  # probes


def attention(x: str, y: str, perm: tuple[int, ...] = (1, 0)) -> list[tuple[Any, ...]]:
    q, k, t, s, p = (f"{y}_{name}" for name in "qktsp")
    return [("MatMul", f"{x} q", q), ("MatMul", f"{x} k", k), ("Transpose", k, t, {"perm": perm}),
            ("MatMul", f"{q} {t}", s), ("Softmax", s, p), ("MatMul", f"{p} {x}", y)]  # fmt: skip


def forward(x: str, y: str, act: str = "Tanh") -> list[tuple[Any, ...]]:
    return [("MatMul", f"{x} up", f"{y}_u"), (act, f"{y}_u", f"{y}_t"), ("MatMul", f"{y}_t down", y)]


def root_mean_square(x: str, y: str) -> list[tuple[Any, ...]]:
    return [("Mul", f"{x} {x}", "s"), ("ReduceMean", "s last", "m"), ("Add", "m tiny", "e"), ("Sqrt", "e", "l"),
            ("Div", f"{x} l", y)]  # fmt: skip


GATED = [("MatMul", "n up", "u"), ("MatMul", "n gate", "g"), ("Sigmoid", "g", "h"), ("Mul", "u h", "i"),
         ("MatMul", "i down", "d")]  # fmt: skip
NETS: dict[str, tuple[list[tuple[Any, ...]], list[tuple[str, str]]]] = {  # with what each part reads and makes
    "norm behind": (
        [*attention("x", "a"), ("Add", "x a", "b"), ("LayerNormalization", "b one", "n"), *forward("n", "d"),
         ("Add", "n d", "f"), ("LayerNormalization", "f one", "y")], [("b", "y")]),
    "norm before, gated": (
        [*attention("x", "a"), ("Add", "x a", "r"), *root_mean_square("r", "n"), *GATED, ("Add", "r d", "y")],
        [("r", "y")]),
    "beside attention": (
        [("LayerNormalization", "x one", "n"), *forward("n", "d"), *attention("n", "a"), ("Add", "d a", "b"),
         ("Add", "b x", "y")], [("n", "d")]),
    "one after another": (
        [*attention("x", "a"), *forward("a", "b"), *attention("b", "c"), *forward("c", "y")], [("a", "b"), ("c", "y")]),
    "each line by its own factors": (
        [*attention("x", "a"), ("Mul", "a own", "n"), *forward("n", "d"), ("Mul", "d own", "y")], [("a", "y")]),
    "elsewhere and back": (
        [*attention("x", "a"), *forward("a", "d"), ("Transpose", "d", "s", SWAPPED), ("Tanh", "s", "t"),
         ("Transpose", "t", "y", SWAPPED)], [("a", "y")]),
    "lines that change places": (
        [*attention("x", "a"), *forward("a", "d"), ("Slice", "d back end first step", "y")], [("a", "d")]),
    "lines that meet behind": ([*attention("x", "a"), *forward("a", "d"), ("MatMul", "mix d", "y")], [("a", "d")]),
    "lines that meet inside": (
        [*attention("x", "a"), ("MatMul", "a up", "u"), ("Softmax", "u", "t", {"axis": 0}), ("MatMul", "t down", "y")],
        []),
    "two results": ([*attention("x", "a"), *forward("a", "d"), ("MatMul", "mix d_t", "e"), ("MatMul", "e down", "f"),
                     ("Add", "d f", "y")], []),
    "Relu": ([*attention("x", "a"), *forward("a", "y", "Relu")], [("a", "y")]),
}  # fmt: skip


def net(name: str) -> gc.Model:
    return model(*NETS[name][0], x=(5, 6), constants=W)


def traced(tested: gc.Model) -> tuple[Tape, str, str]:
    graph = tested.graph
    tape = trace(graph, {"x": np.random.default_rng(1).normal(size=graph.types["x"].shape)}, ops=tested.ops)
    return tape, tape.named["x"].name, tape.named[graph.outputs[0]].name


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are taken wherever there are some, however little they spare."""
    monkeypatch.setattr(coloring, "_LINES_WORTH", 0)


@pytest.fixture
def _all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coloring, "_SPARED", -np.inf)


def without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jacobian, "line_parts", lambda *_, **__: ())


@pytest.mark.parametrize("name", NETS)
def test_parts_are_those_between_what_mixes_lines(name: str) -> None:
    tape, x, y = traced(net(name))
    found = line_parts(Program(tape, [x], [y]), MANY)
    own = {var.name: name for name, var in tape.named.items()}
    assert [(own[part.read], own[part.made]) for part in found] == NETS[name][1]


def test_parts_hold_so_much_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coloring, "_LINES_ROOM", 2 * 8 * 5 * 6 * 6 - 1)
    tape, x, y = traced(net("one after another"))
    assert len(line_parts(Program(tape, [x], [y]), MANY)) == 1


class Counted(dict[str, int]):
    """A table that counts how often it is looked into."""

    looks = 0

    def get(self, *given: Any) -> Any:
        self.looks += 1
        return super().get(*given)

    def __getitem__(self, name: str) -> int:
        self.looks += 1
        return super().__getitem__(name)


def test_results_that_are_left_are_not_looked_at_again_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fan: many steps read one tensor, and a last one reads all of their results."""
    made, search = list[Counted](), coloring._LineSearch.__init__

    def counting(self: Any, *given: Any) -> None:
        search(self, *given)
        self.last = Counted(self.last)
        made.append(self.last)

    monkeypatch.setattr(coloring._LineSearch, "__init__", counting)
    names = [f"h{i}" for i in range(64)]
    nodes = [*(("Tanh", "x", name) for name in names), ("Sum", " ".join(names), "y")]
    tape, x, y = traced(model(*nodes, x=(5, 6)))
    line_parts(Program(tape, [x], [y]), MANY)
    assert 0 < made[0].looks <= 4 * len(names)


def test_a_batch_of_lines_and_a_single_line() -> None:
    nodes = [*attention("x", "a", (0, 2, 1)), ("Add", "x a", "n"), *forward("n", "d"), ("Add", "d n", "y")]
    for shape, parts in [((2, 5, 6), 1), ((1, 5, 6), 1), ((1, 1, 6), 0)]:
        tape, x, y = traced(model(*nodes, x=shape, constants=W))
        assert len(line_parts(Program(tape, [x], [y]), MANY)) == parts


def test_where_it_does_not_repay_the_steps_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    tape, x, y = traced(net("norm behind"))
    program = Program(tape, [x], [y])
    assert line_parts(program, MANY)
    assert not line_parts(program, 12)  # of which a half would be for the Jacobians
    for name, value in [("_LINES_HELD", 8 * 5 * 6 * 6 - 1), ("_LINES_ROOM", 8 * 5 * 6 * 6 - 1), ("_LINES_WORTH", 1e15)]:
        with monkeypatch.context() as context:
            context.setattr(coloring, name, value)
            assert not line_parts(program, MANY)
    monkeypatch.setattr(coloring, "_SPARED", -np.inf)
    read = [{part.read for part in line_parts(program, count)} for count in (12, 11)]
    assert [tape.named["b"].name in names for names in read] == [True, False]  # two for each entry of a line, or fewer


@pytest.mark.parametrize("name", NETS)
@pytest.mark.usefixtures("_all")
def test_tangents_by_lines_are_those_by_steps(name: str) -> None:
    tape, x, y = traced(net(name))
    program = Program(tape, [x], [y])
    parts = line_parts(program, MANY)
    assert parts
    stack = np.random.default_rng(2).normal(size=(40, *tape.values[x].shape))
    for made, expected in zip(program.jvp({x: stack}, parts=parts), program.jvp({x: stack}), strict=True):
        np.testing.assert_allclose(made, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.usefixtures("_all")
def test_cotangents_by_lines_are_those_by_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tape, x, y = traced(net(name))
    backward = Backward(tape, y, [x])
    assert line_parts(backward.program, MANY, linear=True)
    [made] = backward.jacobians(Budget())
    without(monkeypatch)
    [expected] = backward.jacobians(Budget())
    np.testing.assert_allclose(made, expected, rtol=1e-11, atol=1e-13)
    assert not np.array_equal(made, expected)  # it was another way


@pytest.mark.one_in(20)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
@pytest.mark.usefixtures("_all")
def test_every_operator_in_lines(case: Case) -> None:
    tape, rng = case.tape(), np.random.default_rng(4)
    floats = [tape.named[y].name for y in case.outputs if is_inexact(tape.named[y].dtype)]
    for x in case.floats() if floats else []:
        program, here = Program(tape, [x], floats), tape.values[x]
        parts = line_parts(program, MANY)
        if program.analytic and parts:
            stack = rng.normal(size=(3, *here.shape))
            for made, expected in zip(program.jvp({x: stack}, parts=parts), program.jvp({x: stack}), strict=True):
                np.testing.assert_allclose(made, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.usefixtures("_all")
def test_lines_without_entries_are_no_part() -> None:
    nodes = [*attention("x", "a"), ("Tanh", "a", "t"), ("MatMul", "t none", "y")]
    tape, x, y = traced(model(*nodes, x=(5, 6), constants={**W, "none": np.zeros((6, 0))}))
    parts = line_parts(Program(tape, [x], [y]), MANY)
    assert y not in {part.made for part in parts}
    assert Program(tape, [x], [y]).jvp({x: np.ones((20, 5, 6))}, parts=parts)[0].shape == (20, 5, 0)


def test_what_carries_no_tangent_is_no_part_of_its_own() -> None:
    nodes = [*attention("x", "a"), ("Cast", "a", "i", {"to": 7}), ("Cast", "i", "f", {"to": 11}), *forward("f", "d"),
             ("Add", "d a", "y")]  # fmt: skip
    tape, x, y = traced(model(*nodes, x=(5, 6), constants=W))
    program = Program(tape, [x], [y])
    stack = np.random.default_rng(2).normal(size=(20, 5, 6))
    parts = line_parts(program, MANY)
    assert parts
    np.testing.assert_allclose(program.jvp({x: stack}, parts=parts)[0], program.jvp({x: stack})[0], rtol=1e-12)


def test_jacobians_that_are_not_finite_are_not_multiplied() -> None:
    weights = {**W, "down": np.where(np.arange(24) == 3, np.inf, 1.0)[:, None] * W["down"]}
    tape, x, y = traced(model(*attention("x", "a"), *forward("a", "y"), x=(5, 6), constants=weights))
    program = Program(tape, [x], [y])
    stack = np.eye(30).reshape(30, 5, 6)
    np.testing.assert_array_equal(
        program.jvp({x: stack}, parts=line_parts(program, MANY))[0], program.jvp({x: stack})[0]
    )


def test_the_number_of_threads_does_not_change_a_bit() -> None:
    tape, x, y = traced(net("norm behind"))
    assert line_parts(Program(tape, [x], [y]), 30)
    rows = [by_complex_step(Program(tape, [x], [y]), Directions(tape.values[x], range(30)), Budget(1 << 16, jobs=jobs))
            for jobs in (1, 2)]  # fmt: skip
    np.testing.assert_array_equal(*rows)


def test_a_foreign_kernel_is_in_no_part() -> None:
    tape, x, y = traced(net("Relu"))
    tried: Any = object()
    tape.steps[:] = [structs.replace(s, trial=tried) if s.node.op == "Relu" else s for s in tape.steps]
    assert not line_parts(Program(tape, [x], [y]), MANY)


def mixed(ct: Any, ans: Any, x: Any) -> tuple[Any]:
    """The rule of Tanh, with a part of the cotangents of all lines added to each."""
    return ((ct + sym.sum(ct, (0,)) * 1e-3) * (1 - ans * ans),)


def sized(ct: Any, ans: Any, x: Any) -> tuple[Any]:
    """The rule of Tanh for the magnitude of the cotangent, in which it is not linear."""
    return (ct.tape.apply("Abs", ct) * (1 - ans * ans),)


WRONG = {"scaled": scaled("Tanh", 1.001), "lines mixed": mixed, "not linear": sized}


@pytest.mark.parametrize("rule", WRONG.values(), ids=WRONG)
@pytest.mark.usefixtures("_all")
def test_wrong_rules_fail_in_as_many_entries_as_by_steps(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [*attention("x", "a"), ("Tanh", "a", "b"), *forward("b", "d", "Sigmoid"), ("Add", "b d", "y")]
    tested, ops = model(*nodes, x=(5, 6), constants=W), with_rule("Tanh", rule)
    made = check(tested, mode="full", ops=ops)
    without(monkeypatch)
    expected = check(tested, mode="full", ops=ops)
    assert made.status == expected.status == "fail"
    assert made.entries == expected.entries
    assert made.code == expected.code
