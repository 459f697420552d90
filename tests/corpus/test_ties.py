"""At a tie a gradient between the slopes from both sides passes, and says so; one that is not between them fails."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.ops import OPS
from tests.checking.small import check, model, with_rule


class Tie(NamedTuple):
    """A model, an x with entries at a tie, and slopes there: those between both sides, and others."""

    model: gc.Model
    x: Any
    at: float  # where x is tied
    between: tuple[float, ...]
    outside: tuple[float, ...]


HERE = [0.0, 0.5, -0.5, 1.0]
ONE, UNIT = {"one": 1.0}, {"low": 0.0, "high": 1.0}
TIES = {
    "Relu": Tie(model(("Relu", "x", "y")), HERE, 0, (0.0, 0.5, 1.0), (1.5, -0.5, 2.0)),
    "Abs": Tie(model(("Abs", "x", "y")), HERE, 0, (0.0, -1.0, 1.0, 0.3), (1.5, -2.0)),
    "LeakyRelu": Tie(model(("LeakyRelu", "x", "y", {"alpha": 0.25})), HERE, 0, (0.25, 0.5, 1.0), (0.0, 1.5, -0.5)),
    "Elu": Tie(model(("Elu", "x", "y", {"alpha": 2.0})), HERE, 0, (1.0, 2.0, 1.5), (0.5, 2.5)),
    "Selu": Tie(model(("Selu", "x", "y")), HERE, 0, (1.06, 1.7), (1.0, 2.0)),
    "Clip": Tie(model(("Clip", "x low high", "y"), constants=UNIT), [0, 0.5, 0.3, -0.2], 0, (0.0, 1.0, 0.5), (1.5,
         -0.5)),
    "Max": Tie(model(("Max", "x one", "y"), constants=ONE), [1, 0.5, -0.5, 2], 1, (0.0, 0.5, 1.0), (1.5, -0.5)),
    "Min": Tie(model(("Min", "x one", "y"), constants=ONE), [1, 0.5, -0.5, 2], 1, (0.0, 0.5, 1.0), (1.5, -0.5)),
    "PRelu": Tie(model(("PRelu", "x two", "y"), constants={"two": 2.0}), HERE, 0, (1.0, 1.5, 2.0), (0.5, 2.5)),
}  # fmt: skip


def at_tie(op: str, where: float, slope: float) -> dict[tuple[str, str], gc.Op]:
    """The operator table with another slope of an operator where its first operand is tied."""
    right: Any = OPS["", op].vjp

    def rule(ct: Any, y: Any, x: Any, *others: Any, **metadata: Any) -> Any:
        first, *rest = right(ct, y, x, *others, **metadata)
        return (sym.where(sym.equal(x, where), ct * slope, first), *rest)

    return with_rule(op, rule)


def noted(record: Any) -> bool:
    return any("KINK-OK" in note for note in record.notes)


@pytest.mark.parametrize("op", TIES)
def test_our_convention_at_a_tie_passes_and_says_so(op: str) -> None:
    record = check(TIES[op].model, value=TIES[op].x)
    assert (record.status, record.code, noted(record)) == ("pass", "", True)
    assert record.entries["failed"] == record.entries["inconclusive"] == 0


@pytest.mark.parametrize(("op", "slope"), [(op, s) for op, tie in TIES.items() for s in tie.between])
def test_every_slope_between_both_sides_passes(op: str, slope: float) -> None:
    record = check(TIES[op].model, value=TIES[op].x, ops=at_tie(op, TIES[op].at, slope))
    assert (record.status, record.code, noted(record)) == ("pass", "", True)


@pytest.mark.parametrize(("op", "slope"), [(op, s) for op, tie in TIES.items() for s in tie.outside])
def test_a_slope_outside_of_both_sides_is_no_subgradient(op: str, slope: float) -> None:
    record = check(TIES[op].model, value=TIES[op].x, ops=at_tie(op, TIES[op].at, slope))
    assert (record.status, record.code, record.entries["failed"]) == ("fail", "GC104", 1)


@pytest.mark.parametrize("op", TIES)
def test_a_gradient_of_nan_at_a_tie_fails(op: str) -> None:
    record = check(TIES[op].model, value=TIES[op].x, ops=at_tie(op, TIES[op].at, np.nan))
    assert (record.status, record.code) == ("fail", "GC103")


@pytest.mark.parametrize("op", TIES)
def test_a_wrong_slope_beside_a_tie_fails_as_everywhere(op: str) -> None:
    right: Any = OPS["", op].vjp
    wrong = with_rule(op, lambda ct, y, x, *rest, **m: (right(ct, y, x, *rest, **m)[0] * 3.0, *[None for _ in rest]))
    record = check(TIES[op].model, value=TIES[op].x, ops=wrong)
    assert record.status == "fail"


ROWS = {"keepdims": 0}
POOL = {"kernel_shape": (2,)}
SELECTIONS: dict[str, tuple[gc.Model, Any]] = {  # ties between entries of x, of which a rule picks one
    "ReduceMax": (model(("ReduceMax", "x", "y", ROWS)), [1, 1, -0.5, 0.2]),
    "ReduceMin": (model(("ReduceMin", "x", "y", ROWS)), [1, 1, -0.5, -0.5]),
    "MaxPool": (model(("MaxPool", "x", "y", POOL), x=(1, 1, 4)), [[[1, 1, 0.2, 0.1]]]),
    "GlobalMaxPool": (model(("GlobalMaxPool", "x", "y"), x=(1, 1, 4)), [[[1, 1, 0.2, 0.1]]]),
    "TopK": (model(("TopK", "x k", "y"), constants={"k": np.array([2])}), [1, 1, 0.5, 0.1]),
    "ReduceL1": (model(("ReduceL1", "x", "y", ROWS)), [0, 1, -0.5, -0.5]),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_selection_among_equals_passes_and_says_so(name: str) -> None:
    tested, x = SELECTIONS[name]
    record = check(tested, value=x)
    assert (record.status, record.code, noted(record)) == ("pass", "", True)


NO_SLOPES: dict[str, tuple[gc.Model, Any]] = {  # no one-sided slopes, or none that a rule could know
    "a step": (model(("Floor", "x", "y")), [1, 0.5, -0.5, 0.2]),
    "a rounding": (model(("Round", "x", "y")), [0.5, 0.4, -0.3, 0.2]),
    "a sign": (model(("Sign", "x", "y")), [0, 0.4, -0.3, 0.2]),
    "a remainder": (model(("Mod", "x one", "y", {"fmod": 1}), constants=ONE), [1, 0.5, -0.5, 0.2]),
    "an infinite slope": (model(("Abs", "x", "a"), ("Sqrt", "a", "y"), x=(1,)), [0]),
    "a threshold": (model(("ThresholdedRelu", "x", "y", {"alpha": 1.0})), [1, 0.5, -0.5, 2]),
    "a selection among three": (model(("TopK", "x k", "y"), constants={"k": np.array([2])}), [1, 1, 1, 0.1]),
    "relu(x) - relu(-x)": (
        model(("Relu", "x", "a"), ("Neg", "x", "n"), ("Relu", "n", "b"), ("Sub", "a b", "y")), HERE),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_SLOPES)
def test_where_no_rule_can_be_right_nothing_passes_or_fails(name: str) -> None:
    tested, x = NO_SLOPES[name]
    record = check(tested, value=x, max_inconclusive=0.0)
    by_nature = name in ("a step", "a rounding", "a sign")
    expected = ("severed", "GC107", 0) if by_nature else ("inconclusive", "GC301", 0)
    assert (record.status, record.code, record.entries["failed"]) == expected


SMOOTH: dict[str, tuple[gc.Model, Any]] = {
    "x |x|": (model(("Abs", "x", "a"), ("Mul", "a x", "y")), HERE),
    "relu squared": (model(("Relu", "x", "a"), ("Mul", "a a", "y")), HERE),
    "Celu": (model(("Celu", "x", "y")), HERE),
    "all of a selection": (
        model(("TopK", "x k", "t"), ("ReduceSum", "t", "y", ROWS), constants={"k": np.array([4])}), [1, 1, 1, 1]),
    "a maximum of equals": (model(("Max", "x x", "y")), HERE),
}  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_a_tie_at_which_y_is_smooth_passes_as_any_point(name: str) -> None:
    tested, x = SMOOTH[name]
    record = check(tested, value=x)
    assert (record.status, record.code) == ("pass", "")


@pytest.mark.parametrize("distance", [1e-3, 1e-6, 1e-9])
@pytest.mark.parametrize("op", TIES)
def test_beside_a_tie_the_slope_of_the_other_side_fails(op: str, distance: float) -> None:
    tie = TIES[op]
    here = np.array(tie.x, float)
    for side in (-1.0, 1.0):
        here[0] = tie.at + side * distance
        assert check(tie.model, value=here).status == "pass"
        slopes = [
            check(tie.model, value=here, ops=at_tie(op, here[0], s)).status for s in tie.between[:1] + tie.between[-1:]
        ]
        assert "fail" in slopes, "both sides have one slope"
