"""The share of a Jacobian that is compared, the reason, and the errors that each mode would miss."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.checks import modes
from gradcheck_cli.checks.assemble import bad_share, missed, missed_size
from gradcheck_cli.compare import partial as parts
from gradcheck_cli.graph import Node
from gradcheck_cli.jacobian.directions import gaussian, spread
from gradcheck_cli.report import render
from gradcheck_cli.results.record import Check, Report
from gradcheck_cli.verdict.rule import RTOL
from tests.checking.small import MUTANTS, Mutant, between, check, model, names, scaled, with_rule

MODES = ["full", "nodes", "directional", "sampled"]


def page(record: Check) -> str:
    """The report of one check, on one line."""
    return " ".join(render("full", Report((record,))).split())


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mutant", **names(MUTANTS))
def test_every_mode_passes_right_rules_and_fails_wrong_ones(mutant: Mutant, mode: str):
    record = check(mutant.model, mode=mode)
    assert (record.status, record.mode, record.code) == ("pass", mode, "")
    wrong = check(mutant.model, mode=mode, ops=with_rule(mutant.op, mutant.rule))
    assert (wrong.status, wrong.mode, wrong.code) == ("fail", mode, mutant.code)


# auto


def large(rows: int = 300) -> gc.Model:
    nodes = ("Exp", "x", "h"), ("MatMul", "h W", "m"), ("Tanh", "m", "y")
    return model(*nodes, x=(rows, 40), constants={"W": np.random.default_rng(0).normal(size=(40, 30)) / 40})


def test_auto_compares_everything_while_that_is_cheap_and_says_nothing_of_it():
    record = check(between("Exp"))
    assert (record.mode, record.chosen, record.nodes) == ("full", "", {})


def long(steps: int = 200) -> gc.Model:
    """A chain of few entries, whose nodes take longer than all of its Jacobian."""
    return model(*(("Sin", "x" if i == 0 else f"h{i}", f"h{i + 1}") for i in range(steps)), x=(2,))


def test_auto_compares_everything_where_all_nodes_would_take_longer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(modes, "work_for", lambda *_: 0.0)
    wide = model(("MatMul", "x W", "m"), ("Tanh", "m", "y"), x=(1, 1200), constants={"W": np.ones((1200, 800)) / 1200})
    assert [(r.mode, r.chosen) for r in (check(long()), check(wide))] == [
        ("full", ""), ("nodes", "all 960,000 entries would take about 1 s"),
    ]  # fmt: skip


def test_auto_goes_node_by_node_where_everything_is_too_much_and_says_why():
    record = check(large(), memory_limit=1 << 24)
    assert (record.status, record.mode) == ("pass", "nodes")
    assert record.nodes == {"total": 3, "checked": 3, "failed": 0}
    assert record.chosen == "all 108,000,000 entries would take more than the memory limit"
    assert "node by node, since all 108,000,000 entries would take more than the memory limit:" in page(record)
    assert "3/3 nodes" in page(record)


@pytest.mark.parametrize("mode", ["nodes", "directional", "sampled"])
def test_a_mode_that_was_asked_for_is_kept(mode: str):
    record = check(between("Exp"), mode=mode)
    assert (record.mode, record.chosen) == (mode, "")


# Node by node


def test_a_wrong_node_fails_although_another_error_undoes_it_further_on():
    """Two signs too many give the right gradient; the rule is wrong all the same."""
    tested = model(("Exp", "x", "h"), ("Exp", "h", "y"))
    wrong = with_rule("Exp", scaled("Exp", -1.0))
    assert check(tested, mode="full", ops=wrong).status == "pass"
    record = check(tested, mode="nodes", ops=wrong)
    assert (record.status, record.nodes) == ("fail", {"total": 2, "checked": 2, "failed": 2})
    assert "2 of 2 nodes fail on their own" in page(record)


def test_what_fails_on_its_own_is_counted_and_no_tolerance_is_offered():
    record = check(large(), mode="nodes", ops=with_rule("Tanh", scaled("Tanh", 1 + 1e-6)))
    assert record.nodes == {"total": 3, "checked": 3, "failed": 1}
    assert record.max_rel_err == pytest.approx(1e-6, rel=1e-3)
    assert "d y / d x: 1 of 3 nodes fails on its own" in page(record)
    assert "would pass" not in page(record)


def test_nodes_that_several_x_lead_through_are_counted_for_each():
    nodes = ("Mul", "x v", "p"), ("Exp", "p", "h"), ("Sin", "h", "y")
    tested = model(*nodes, inputs={"v": (4,)})
    records = gc.check(tested, ["x", "v"], "y", mode="nodes").checks
    assert [c.nodes["total"] for c in records] == [3, 3]


def test_a_wrong_operand_fails_only_the_x_that_leads_through_it():
    def rule(ct: Any, y: Any, a: Any, b: Any) -> tuple[Any, Any]:
        return ct * b, ct * a * 3.0

    tested = model(("Mul", "x v", "p"), ("Exp", "p", "y"), inputs={"v": (4,)})
    records = gc.check(tested, ["x", "v"], "y", mode="nodes", ops=with_rule("Mul", rule)).checks
    assert [c.status for c in records] == ["pass", "fail"]


def test_nodes_of_a_loops_body_count_once_however_often_it_runs():
    from tests.checking import test_bodies as bodies

    tested = bodies.loop(Node("Sin", ("h",), ("s",)), Node("Exp", ("s",), ("out",)))
    record = bodies.check(tested, mode="nodes")
    assert (record.status, record.nodes["total"]) == ("pass", 3)  # that of the loop itself is the third
    wrong = bodies.check(tested, mode="nodes", ops=with_rule("Exp", scaled("Exp", 2.0)))
    assert wrong.suspect is not None
    assert (wrong.suspect.op, wrong.suspect.before + wrong.suspect.after) == ("Exp", 2)


def test_a_dot_test_that_rounding_hides_passes_by_its_nodes_and_says_so():
    """exp(60) of a softmax's tail: what reaches x is less than the rounding of what it is made from."""
    nodes = ("Mul", "x k", "h"), ("Softmax", "h", "s"), ("ReduceSum", "s", "t", {"keepdims": 1}), ("Mul", "t big", "y")
    tested = model(*nodes, constants={"k": 30.0, "big": 1e12}, x=(20,))
    assert check(tested, mode="nodes").status == "pass"


# Random projections


def largest(rng: np.random.Generator, runs: int, count: int | None, size: int = 4) -> np.ndarray:
    """The largest of so many random directions at one entry, in units of its spread; None: of an orthonormal basis."""
    if count is not None:
        return np.abs(rng.normal(size=(runs, count))).max(axis=1)
    return np.abs(np.linalg.qr(rng.normal(size=(runs, size, size)))[0][:, 0]).max(axis=1) * math.sqrt(size)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 2), (5, 5), (5, 2), (2, 5), (8, 8)])
@pytest.mark.parametrize("t", [0.5, 0.1])
def test_the_probability_that_projections_miss_an_error_is_what_chance_gives(t: float, rows: int, columns: int):
    rng = np.random.default_rng(0)
    product = largest(rng, 300_000, rows) * largest(rng, 300_000, columns)
    assert float(np.mean(product < t)) == pytest.approx(missed(t, rows, columns), rel=0.15, abs=2e-4)


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (2, 2), (4, 4), (5, 5), (3, 5), (5, 1), (None, 5), (5, None), (None, None)]
)
def test_an_error_of_the_size_that_is_said_is_missed_with_at_most_one_percent(rows: int | None, columns: int | None):
    """An error in a single entry, in units of what the tolerance allows for."""
    rng, runs = np.random.default_rng(1), 100_000
    size = missed_size(rows, columns) * (1 + 1e-9)
    of_x, of_y = (largest(rng, runs, count) for count in (rows, columns))
    assert float(np.mean(of_x * of_y * size < 1)) <= 0.0105


def test_a_check_in_random_directions_misses_less_than_twice_its_tolerance_at_any_shape():
    """The number of directions is chosen for this."""
    shapes = (60, 60), (60, 1), (60, 4), (4, 4)
    for rows, columns in shapes:
        tested = model(("MatMul", "x W", "y"), constants={"W": np.ones((rows, columns))}, x=(rows,))
        power = check(tested, mode="directional").power["missed_below"]
        assert power < 2 * RTOL


def test_a_directional_check_misses_no_error_of_the_size_that_it_says():
    """One entry of 60 x 60 is wrong by several times what would be missed in one of a hundred checks."""
    tested, missed_runs = between("Exp", x=(60,)), 0
    size = float(check(tested, mode="directional").power["missed_below"])
    for seed in range(20):
        off = np.ones(60)
        off[seed] += 4 * size * math.sqrt(60)  # of the norm, which 60 entries share
        missed_runs += (
            check(tested, mode="directional", seed=seed, ops=with_rule("Exp", scaled("Exp", off))).status == "pass"
        )
    assert missed_runs <= 2


def test_a_directional_check_prints_what_it_may_miss():
    record = check(between("Exp", x=(40,)), mode="directional")
    assert record.power["probability"] == 0.01
    size = f"{record.power['missed_below']:.0e}"
    assert f"an error of {size} of the Jacobian's norm is missed with a probability of at most 1%" in page(record)


def test_fewer_projections_are_taken_where_memory_is_short_and_the_power_says_so():
    tested = between("Exp", x=(2000,))
    many, few = (check(tested, mode="directional", memory_limit=limit) for limit in (1 << 30, 1 << 18))
    assert few.entries["checked"] < many.entries["checked"]
    assert few.power["missed_below"] > many.power["missed_below"]


def test_projections_that_rounding_hides_are_no_pass():
    """The sum is a rounding of numbers of 1e12, and so is the gradient that a wrong rule gives."""
    nodes = ("Exp", "x", "e"), ("Add", "e huge", "a"), ("Sub", "a huge", "b"), ("Mul", "b b", "c"), ("Sub", "c c", "z")
    tested = model(*nodes, ("Mul", "z huge", "y"), constants={"huge": 1e12})
    record = check(tested, mode="directional")
    assert record.status in ("pass", "inconclusive")
    assert record.status == "pass" or record.code == "GC303"


# Drawn entries


@pytest.mark.parametrize("entries", [1, 7, 100, 4096])
@pytest.mark.parametrize(("x", "y"), [((3,), (3,)), ((50,), (50,)), ((40, 5), ())])
def test_at_most_so_many_entries_are_drawn(entries: int, x: tuple[int, ...], y: tuple[int, ...]):
    nodes: list[tuple[Any, ...]] = [("Exp", "x", "h")]
    nodes += [("ReduceSum", "h", "y", {"keepdims": 0})] if not y else [("Sin", "h", "y")]
    record = check(model(*nodes, x=x), mode="sampled", max_entries=entries)
    total = math.prod(x) * math.prod(y)
    assert (record.status, record.entries["total"]) == ("pass", total)
    assert min(entries, total) / 2 < record.entries["checked"] <= min(entries, total)


def test_the_table_says_how_many_entries_were_drawn():
    record = check(between("Exp", x=(200,)), mode="sampled", max_entries=512)
    assert f"{record.entries['checked']}/40000" in page(record)
    assert record.entries["checked"] == 512


def test_drawn_entries_are_spread_over_all_of_a_tensor():
    drawn = spread(np.random.default_rng(0), 1000, 10)
    assert [int(i) // 100 for i in drawn] == list(range(10))
    assert spread(np.random.default_rng(0), 5, 10).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size", [1, 20_000, 300_000, 1_048_573, 2_500_000])
def test_directions_are_normal_and_no_two_are_alike(size: int):
    drawn, again = (gaussian(np.random.default_rng(seed), 4, size) for seed in (5, 5))
    assert drawn.shape == (4, size)
    assert np.array_equal(drawn, again)
    assert len(np.unique(drawn[:, 0])) == len(np.unique(drawn[:, -1])) == 4
    if size > 1:
        close = 5 / math.sqrt(size)
        assert np.abs(np.mean(drawn, axis=1)).max() < close
        assert np.abs(np.cov(drawn) - np.eye(4)).max() < 2 * close


@pytest.mark.parametrize("mode", ["nodes", "directional"])
def test_wrong_rules_of_large_tensors_fail(mode: str):
    large = between("Exp", x=(100_000,))
    assert check(large, mode=mode).status == "pass"
    assert check(large, mode=mode, ops=with_rule("Exp", scaled("Exp", 1 + 1e-4))).status == "fail"


def test_what_is_tied_is_looked_for_once_for_each_x(monkeypatch: pytest.MonkeyPatch):
    seen, keeping = [], parts._keeping_ties

    def counted(backward: Any, position: int, *rest: Any) -> Any:
        seen.append(backward.xs[position])
        return keeping(backward, position, *rest)

    monkeypatch.setattr(parts, "_keeping_ties", counted)
    nodes = ("MatMul", "x b", "p"), ("Relu", "p", "q"), ("Mul", "q c", "y")
    three = model(*nodes, x=(3, 4), inputs={"b": (4, 5), "c": (3, 5)})
    found = gc.check(three, ["x", "b", "c"], "y", mode="directional", forward="internal").checks
    assert [each.status for each in found] == ["pass"] * 3
    assert sorted(seen) == ["b", "c", "x"]


def test_equal_seeds_draw_equal_entries_and_others_do_not():
    wrong = with_rule("Exp", scaled("Exp", 2.0))
    places = [
        [e.x for e in check(between("Exp", x=(90,)), mode="sampled", max_entries=300, seed=s, ops=wrong).worst]
        for s in (3, 3, 4)
    ]
    assert places[0] == places[1] != places[2]


def test_entries_that_differ_are_named_by_their_places_in_x_and_y():
    """Exp is wrong in one entry; the entries of the Jacobian that it makes wrong are on the diagonal."""
    off = np.where(np.arange(30) == 17, 1.5, 1.0)
    tested, ops = between("Exp", x=(30,)), with_rule("Exp", scaled("Exp", off))
    record = check(tested, mode="sampled", max_entries=30 * 30, ops=ops)
    assert [(e.x, e.y) for e in record.worst] == [((17,), (17,))]


def test_what_was_not_drawn_shows_in_the_projection_of_everything():
    off = np.where(np.arange(400) == 123, 1.5, 1.0)
    ops = with_rule("Exp", scaled("Exp", off))
    records = [check(between("Exp", x=(400,)), mode="sampled", max_entries=50, ops=ops, seed=s) for s in range(5)]
    missing = [r for r in records if not r.entries["failed"]]
    assert missing
    assert {r.status for r in records} == {"fail"}
    assert all("entries that were not drawn" in r.message for r in missing)
    assert all(r.suspect is not None and r.suspect.index == (123,) for r in records)


@pytest.mark.parametrize("count", [1, 10, 100, 4096])
def test_the_share_of_wrong_entries_that_a_sample_leaves_possible(count: int):
    share = bad_share(count)
    assert (1 - share) ** count == pytest.approx(0.05)
    assert count < 100 or share == pytest.approx(3 / count, rel=0.02)


def test_a_sample_prints_its_bound():
    record = check(between("Exp", x=(200,)), mode="sampled", max_entries=512)
    assert record.power["bad_fraction"] == pytest.approx(bad_share(512))
    assert (
        "if none of 512 is wrong, at most 0.6% of all are (95% confidence; 17.1% where errors fill whole rows or columns)"
        in page(record)
    )


@pytest.mark.parametrize("mode", MODES)
def test_complex_models_are_checked_in_every_mode(mode: str):
    from tests.checking.test_methods import complex_model

    assert check(complex_model(), mode=mode, max_entries=20).status == "pass"


@pytest.mark.parametrize("mode", MODES)
def test_several_points_add_up(mode: str):
    record = check(between("Exp", x=(20,)), mode=mode, points=3, max_entries=40)
    assert record.status == "pass"
    assert record.entries["total"] == 3 * 400
    rule = lambda ct, y, x: (sym.where(x > 0, ct * y * 2.0, ct * y),)  # noqa: E731
    assert (
        check(between("Exp", x=(20,)), mode=mode, points=3, max_entries=40, ops=with_rule("Exp", rule)).status == "fail"
    )


@pytest.mark.parametrize("form", ["full", "concise", "markdown", "html", "json", "jsonl", "junit", "github", "gitlab"])
def test_every_report_counts_nodes(form: str):
    right = check(large(), mode="nodes")
    wrong = check(large(), mode="nodes", ops=with_rule("Tanh", scaled("Tanh", 2.0)))
    text = render(form, Report((right, wrong)))
    if form in ("full", "concise", "markdown", "html"):
        assert "3/3 nodes" in text
    if form in ("full", "concise", "junit", "github"):
        assert "1 of 3 nodes fails on its own" in text


def test_a_time_limit_ends_a_survey_of_nodes():
    from gradcheck_cli.errors import LimitError

    with pytest.raises(LimitError, match="took more than 0 s"):
        check(large(), mode="nodes", timeout=0.0)
