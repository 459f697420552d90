"""Digits of a gradient that the model's own dtype keeps; the verdict on the gradient is that of float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.checks.half_precision import compared
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.results.measures import DIGITS, Precision
from gradcheck_cli.results.record import Check
from tests.checking.small import MUTANTS, Mutant, check, model, names, scaled, with_rule

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
DIGITS_OF = {"float32": 7.22, "float16": 3.31, "bfloat16": 2.41}


def narrow(*nodes: tuple[Any, ...], dtype: str = "float32", x: tuple[int, ...] = (4,), **constants: Any) -> gc.Model:
    """A model all in one dtype; the last output is y."""
    kind = np.dtype(DTYPES[dtype])
    made = tuple(Node(op, tuple(reads.split()), (out,), *rest) for op, reads, out, *rest in nodes)
    arrays = {name: np.asarray(value).astype(kind) for name, value in constants.items()}
    graph = Graph(("x",), (made[-1].outputs[0],), made, arrays, {"x": TensorType(kind, x)})
    return gc.Model(Source(graph, "narrow", nodes=len(made)), gc.OPS)


def measured(tested: gc.Model, value: Any = None, **more: Any) -> tuple[Check, Precision]:
    record = check(tested, value, dtype="model", **more)
    return record, record.gradient["precision"]


# The verdict


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mutant", **names([m for m in MUTANTS if m.code == "GC101" and not m.model.graph.constants]))
def test_the_verdict_is_that_of_float64_whatever_the_dtype(mutant: Mutant, dtype: str):
    graph = mutant.model.graph
    types = {n: TensorType(np.dtype(DTYPES[dtype]), t.shape) for n, t in graph.types.items()}
    tested = gc.Model(Source(Graph(graph.inputs, graph.outputs, graph.nodes, {}, types), "narrow"), gc.OPS)
    assert check(tested, dtype="model").status == "pass"
    wrong = check(tested, dtype="model", ops=with_rule(mutant.op, mutant.rule))
    assert (wrong.status, wrong.suspect and wrong.suspect.op) == ("fail", mutant.op)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_small_error_fails_in_every_dtype(dtype: str):
    record = check(narrow(("Exp", "x", "y"), dtype=dtype), dtype="model", ops=with_rule("Exp", scaled("Exp", 1 + 1e-6)))
    assert record.status == "fail"


HOSTILE = {
    "large terms that cancel": narrow(("Mul", "x a", "p"), ("Mul", "p c", "t"), ("Mul", "x a", "q"), ("Mul", "q d", "u"),
                                      ("Sub", "t u", "y"), a=1e7 / 3, c=1 / 3, d=1 / 3 - 3e-8),
    "overflow on the way": narrow(("Mul", "x big", "b"), ("Mul", "b big", "c"), ("Div", "c big", "d"),
                                  ("Div", "d big", "y"), big=1e30),
    "underflow on the way": narrow(("Mul", "x small", "b"), ("Mul", "b small", "c"), ("Div", "c small", "d"),
                                   ("Div", "d small", "y"), small=1e-30),
    "y that overflows": narrow(("Mul", "x big", "b"), ("Exp", "b", "y"), big=100.0),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_float32_cannot_hold_is_no_failure_but_imprecise(name: str):
    record, found = measured(HOSTILE[name], [0.9, 0.95, 1.0, 1.05])
    assert (record.status, record.code, found.dtype) == ("pass", "", "float32")
    assert found.lost
    assert record.gradient["health"].shows[-1:] == ("precision",)


@pytest.mark.parametrize(
    ("found", "lost"),
    [
        ({"entries": 3, "worst": 0.9}, True),
        ({"entries": 3, "worst": 1.0}, False),
        ({"entries": 0, "worst": 0.0}, False),  # of a gradient that is zero nothing can be lost
        ({"entries": 0, "worst": 3.0, "nonfinite": 1}, True),  # but it may be infinity times zero in the narrow dtype
        ({"entries": 3, "worst": 0.0, "nonfinite": 1, "note": "rounding decides on the shape of 'y'"}, False),
    ],
    ids=str,
)
def test_less_than_a_digit_or_no_number_at_all_is_lost(found: dict[str, Any], lost: bool):
    assert Precision("float16", 3.3, **found).lost == lost


@pytest.mark.parametrize("name", HOSTILE)
def test_in_float64_alone_there_is_nothing_to_say_of_it(name: str):
    record = check(HOSTILE[name], [0.9, 0.95, 1.0, 1.05])
    assert record.status == "pass"
    assert "precision" not in record.gradient
    assert record.gradient["health"].shows == ()


# Digits


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["full", "directional"])
def test_what_is_exact_keeps_all_digits(dtype: str, mode: str):
    _, found = measured(narrow(("Mul", "x w", "y"), dtype=dtype, w=[1.0, 2.0, -4.0, 0.5]), mode=mode)
    assert found.digits == pytest.approx(DIGITS_OF[dtype], abs=0.01)
    assert (found.median, found.worst, found.entries, found.lost) == (found.digits, found.digits, 4, False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_model_is_as_precise_as_the_fewest_bits_between_x_and_y(dtype: str, inside: bool):
    """Copies in half precision often take and give float32; what x does not go through costs it nothing."""
    half = {"to": np.dtype(DTYPES[dtype])}
    way = [("Cast", "x", "h", half), ("Exp", "h", "e"), ("Cast", "e", "t", {"to": np.dtype(np.float32)})]
    beside = [("Cast", "w", "h", half), ("Cast", "h", "b", {"to": np.dtype(np.float32)}), ("Exp", "x", "e"),
              ("Mul", "e b", "t")]  # fmt: skip
    tested = narrow(*(way if inside else beside), ("Tanh", "t", "y"), w=[0.5] * 4)
    _, found = measured(tested, [0.3, -0.7, 1.1, -1.3])
    expected = dtype if inside else "float32"
    assert (found.dtype, found.digits) == (expected, pytest.approx(DIGITS_OF[expected], abs=0.01))
    assert found.digits - 1 < found.median <= found.digits


@pytest.mark.parametrize("dtype", DTYPES)
def test_digits_are_those_that_numpy_finds(dtype: str):
    """d exp(x)/dx = exp(x): the rounding of one exponential."""
    x = np.array([0.3, -0.7, 1.1, -1.3]).astype(DTYPES[dtype])
    _, found = measured(narrow(("Exp", "x", "y"), dtype=dtype), x.astype(np.float64))
    wide, small = np.exp(x.astype(np.float64)), np.exp(x).astype(np.float64)
    with np.errstate(divide="ignore"):
        digits = np.minimum(-np.log10(np.abs(small - wide) / wide), found.digits)
    assert found.median == pytest.approx(np.median(digits))
    assert found.worst == pytest.approx(np.min(digits))
    at = int(np.argmin(digits))
    assert (found.x, found.y) == ((at,), (at,))
    assert (found.wide, found.narrow) == (pytest.approx(wide[at]), pytest.approx(small[at]))


def test_cancellation_costs_the_digits_that_it_cancels():
    """a c x - a d x, the closer c and d are."""
    lost, a = [], np.linspace(0.1, 0.9, 32)
    for power in (1, 3, 5):
        tested = narrow(("Mul", "x a", "p"), ("Mul", "p c", "t"), ("Mul", "x a", "q"), ("Mul", "q d", "u"),
                        ("Sub", "t u", "y"), x=(32,), a=a, c=1 / 3, d=1 / 3 - 10.0**-power)  # fmt: skip
        _, found = measured(tested)
        lost.append(found.digits - found.worst)
    assert lost[0] + 1 < lost[1]
    assert lost[1] + 1 < lost[2] < lost[0] + 5


def test_a_gradient_computed_in_fewer_bits_on_purpose_shows():
    right = gc.OPS["", "Exp"].vjp
    assert right is not None

    def halved(ct: Any, y: Any, x: Any) -> Any:
        return (sym.cast(sym.cast(ct, np.float16) * sym.cast(y, np.float16), np.float32),)

    tested = narrow(("Mul", "x w", "h"), ("Exp", "h", "y"), w=1.1)
    _, plain = measured(tested)
    record, found = measured(tested, ops=with_rule("Exp", halved))
    assert record.status == "pass"
    assert plain.worst > 6
    assert 2.5 < found.worst < 4.5


def test_entries_that_are_small_beside_others_of_their_column_do_not_matter():
    _, found = measured(narrow(("MatMul", "x w", "y"), x=(1, 4), w=[[1.0], [0.5], [1e-3], [1e-9]]))
    assert found.entries == 2


def test_a_column_that_no_loss_hears_of_does_not_matter():
    wide = np.array([[1.0, 2.0], [1e-100, 2e-100]])
    found = compared(wide, np.float32(wide), np.array([0, 1]), ((2,), (2,)), np.dtype(np.float32))
    assert (found.entries, found.underflow, found.worst > 6) == (2, 2, True)


# Where it is lost


LOST: dict[str, tuple[gc.Model, list[float], tuple[str, str, str]]] = {
    "forwards, too large": (
        narrow(("Mul", "x a", "h"), ("Exp", "h", "y"), dtype="float16", a=12.0), [1.0, 0.9, 0.1, 0.1],
        ("overflow", "forward", "Exp")),
    "backwards, too large": (
        narrow(("Mul", "x a", "h"), ("Tanh", "h", "t"), ("Mul", "t b", "y"), dtype="float16", a=300.0, b=300.0),
        [0.0, 1e-4, 1e-4, 1e-4], ("overflow", "backward", "Mul")),
    "backwards, too small": (
        narrow(("Mul", "x a", "h"), ("Sin", "h", "t"), ("Mul", "t b", "y"), dtype="float16", a=1e-4, b=1e-4),
        [1e4, 1e4, 1e4, 1e4], ("underflow", "backward", "Mul")),
    "forwards, too small": (
        narrow(("Mul", "x a", "h"), ("Exp", "h", "y"), dtype="float16", a=-30.0), [1.0, 0.9, 1.0, 0.9],
        ("underflow", "forward", "Exp")),
    "forwards, a mask that is added twice": (
        narrow(("Add", "x a", "h"), ("Add", "h a", "m"), ("Softmax", "m", "y"), dtype="float16", a=-65504.0),
        [1.0, 0.9, 1.0, 0.8], ("overflow", "forward", "Add")),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_the_first_node_that_loses_is_named(name: str):
    tested, value, wanted = LOST[name]
    record, found = measured(tested, value)
    assert record.status == "pass"
    assert found.first is not None
    assert (found.first.what, found.first.way, found.first.spot.op) == wanted
    assert found.lost


def test_what_merely_rounds_names_no_node():
    _, found = measured(narrow(("Exp", "x", "h"), ("Tanh", "h", "y")))
    assert (found.first, found.nonfinite, found.underflow, found.lost) == (None, 0, 0, False)


def test_a_shape_that_rounding_decides_on_is_said_and_stops_nothing():
    """NonZero of 1e8 + 1 - 1e8, which float32 takes for 0."""
    nodes = (("Add", "one big", "s"), ("Sub", "s big", "d"), ("NonZero", "d", "i"), ("Transpose", "i", "t"),
             ("GatherND", "x t", "y"))  # fmt: skip
    record, found = measured(narrow(*nodes, one=[1.0, 0.0, 0.0, 0.0], big=1e8))
    assert record.status == "pass"
    assert (found.note, found.lost) == ("rounding decides on the shape of 'y'", False)


def test_the_worst_of_several_points_counts():
    tested = narrow(("Exp", "x", "h"), ("Tanh", "h", "y"))
    each = [measured(tested, point=i)[1] for i in range(4)]
    _, found = measured(tested, points=4)
    worst = min(each, key=lambda p: p.worst)
    assert (found.worst, found.point, found.x) == (worst.worst, each.index(worst), worst.x)
    assert found.entries == sum(p.entries for p in each)


def test_sane_models_keep_more_than_the_gate_asks():
    w, v = (np.random.default_rng(0).normal(size=(16, n)) for n in (16, 4))
    tested = narrow(("MatMul", "x w", "h"), ("Relu", "h", "r"), ("MatMul", "r v", "y"), x=(8, 16), w=w, v=v)
    for seed in range(3):
        _, found = measured(tested, seed=seed)
        assert found.worst > 3 * DIGITS


# In half precision, although nobody asked


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_gradient_that_is_not_finite_in_half_precision_is_said_to_be_so(dtype: str):
    """Forwards a small number comes first, backwards two large ones, whose product is too large."""
    small, large = {"float16": (1e-3, 6e2), "bfloat16": (1e-30, 1e30)}[dtype]
    tested = narrow(("Mul", "x k", "h"), ("Mul", "h d", "s"), ("Mul", "s d", "y"), dtype=dtype, k=small, d=large)
    record = check(tested, value=[1.0, 2.0, -3.0, 0.5])
    assert record.status == "pass"
    precision = record.gradient["precision"]
    assert precision.dtype == dtype
    assert precision.nonfinite > 0
    assert "nonfinite" in record.gradient["health"].shows


@pytest.mark.parametrize(("loss", "told"), [(1e-6, True), (1e-3, False)])
def test_a_gradient_that_is_zero_in_half_precision_is_said_to_be_so(loss: float, told: bool):
    """A loss that is scaled down, of small weights: what comes back is below the least number of float16."""
    tested = narrow(("Mul", "x k", "h"), ("Mul", "h h", "s"), ("Mul", "s c", "y"), dtype="float16", k=0.01, c=loss)
    record = check(tested, value=[1.0, 2.0, -3.0, 0.5])
    assert (record.status, "precision" in record.gradient) == ("pass", told)
    if told:
        precision = record.gradient["precision"]
        assert (precision.underflow, precision.narrow, precision.median) == (4, 0.0, 0.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_result_that_is_no_number_in_half_precision_has_no_gradient_there(dtype: str):
    """A mask of the largest number, added twice, is infinite there, and the softmax of such a row NaN."""
    most = float(ml_dtypes.finfo(DTYPES[dtype]).max)
    tested = narrow(("Add", "x m", "h"), ("Add", "h m", "a"), ("Softmax", "a", "y"), dtype=dtype, m=-most)
    record = check(tested, value=[1.0, 2.0, -3.0, 0.5])
    assert record.status == "pass"
    assert np.isnan(record.gradient["precision"].narrow)
    assert record.gradient["health"].shows == ("nonfinite", "precision")


def test_what_a_result_that_is_no_number_in_half_precision_does_not_depend_on_has_its_gradient():
    most = np.float16(np.finfo(np.float16).max)
    nodes = (
        ("Add", "z m", "h"), ("Add", "h m", "a"), ("Softmax", "a", "s"), ("Sin", "x", "t"),
        ("Concat", "t s", "y", {"axis": 0}),
    )  # fmt: skip
    tested = model(*nodes, dtype=np.float16, inputs={"z": (4,)}, constants={"m": -most})
    records = gc.check(tested, ["x", "z"], "y", dtype="model").checks
    assert [bool(np.isnan(record.gradient["precision"].narrow)) for record in records] == [False, True]


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_is_said_of_the_precision_of_a_gradient_that_is_finite(dtype: str):
    record = check(narrow(("Mul", "x k", "h"), ("Mul", "h h", "y"), dtype=dtype, k=3.0), value=[1.0, 2.0, -3.0, 0.5])
    assert "precision" not in record.gradient
    assert "nonfinite" not in record.gradient["health"].shows
