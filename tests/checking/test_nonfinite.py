"""Points at which y is not finite: nothing is said of them, and of the rest of y all there is to say."""

from __future__ import annotations

import numpy as np
import pytest

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from tests.checking.small import check, model, scaled, with_rule


def test_a_forward_that_is_not_finite_is_gc302_and_names_the_node():
    tested = model(("Neg", "x", "h"), ("Log", "h", "a"), ("Exp", "a", "y"))
    record = check(tested, value=[1.0, 2.0, 3.0, 4.0])
    assert (record.status, record.code) == ("inconclusive", "GC302")
    assert "first NaN at node 1 Log 'a' (input min -4)" in record.message


def test_a_forward_that_overflows_is_gc302():
    record = check(model(("Exp", "x", "a"), ("Exp", "a", "y")), value=[1.0, 2.0, 3.0, 700.0])
    assert (record.status, record.code) == ("inconclusive", "GC302")
    assert "first infinity at node 1 Exp 'y'" in record.message


@pytest.mark.parametrize("mode", ["full", "directional", "sampled"])
@pytest.mark.parametrize("lost", [np.inf, -np.inf, np.nan])
def test_where_few_entries_of_y_are_not_finite_the_others_are_compared(lost: float, mode: str):
    mask = np.where(np.arange(60) == 11, lost, 0.0)
    tested = model(("Sin", "x", "s"), ("Add", "s mask", "y"), x=(60,), constants={"mask": mask})
    record = check(tested, mode=mode)
    assert (record.status, record.gradient["finite"]) == ("pass", True)
    assert "1 of 60 entries of y is not finite and left out" in record.notes
    if mode == "full":
        assert (record.entries["total"], record.entries["checked"]) == (3600, 3540)
    assert check(tested, mode=mode, ops=with_rule("Sin", scaled("Sin", 1.001))).status == "fail"
    assert check(tested, mode=mode, max_inconclusive=0.01).code == "GC302"


def test_how_many_entries_of_y_may_be_left_out_is_up_to_the_user():
    tested = model(("Exp", "x", "e"), ("Add", "e mask", "y"), constants={"mask": [0.0, -np.inf, -np.inf, 0.0]})
    assert check(tested, max_inconclusive=0.5).status == "pass"
    assert check(tested, max_inconclusive=0.4).code == "GC302"
    nothing = model(("Exp", "x", "e"), ("Add", "e mask", "y"), constants={"mask": [-np.inf] * 4})
    assert check(nothing, max_inconclusive=1.0).code == "GC302"


def test_a_gradient_that_is_not_finite_where_y_is_fails():
    """sqrt at 0: its rule gives 0 * infinity for the other entries."""
    for nodes in ([("Sqrt", "x", "y")], [("Abs", "x", "a"), ("Sqrt", "a", "y")]):
        record = check(model(*nodes), value=[1.0, 4.0, 9.0, 0.0])
        assert (record.status, record.code, record.gradient["finite"]) == ("fail", "GC103", False)


@pytest.mark.parametrize("method", ["auto", "richardson", "central"])
@pytest.mark.parametrize(("factor", "failed"), [(0.5, []), (0.75, [1, 2, 3])])
def test_where_y_is_infinitely_steep_in_one_entry_the_others_are_judged_as_ever(
    method: str, factor: float, failed: list[int]
):
    """The complex step gives a huge number there, beside which every other entry would be negligible."""

    def rule(ct: Var, y: Var, x: Var) -> tuple[Var]:
        zero = sym.equal(y, 0)
        return (sym.where(zero, 0.0, ct * factor / sym.where(zero, 1.0, y)),)

    tested = model(("Sqrt", "x", "q"), ("ReduceSum", "q", "y", {"keepdims": 0}))
    record = check(tested, [0.0, 1.0, 2.0, 3.0], ops=with_rule("Sqrt", rule), method=method)
    assert sorted(entry.x[0] for entry in record.worst if entry.status == "fail") == failed
    assert [entry.x[0] for entry in record.worst if entry.status == "inconclusive"] == [0]
