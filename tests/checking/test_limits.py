"""Budgets of time and memory, what cannot be checked, and who hears of progress."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from msgspec import structs

import gradcheck_cli as gc
from gradcheck_cli.checks.assemble import Pair
from gradcheck_cli.checks.estimates import Forecast
from gradcheck_cli.checks.procedure import Procedure, Together
from gradcheck_cli.errors import LimitError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.results.record import Check
from gradcheck_cli.settings import Settings
from tests.checking.small import MUTANTS, between, check, model, with_rule
from tests.rounding import assert_rounded

# Budgets


def plain(record: Check) -> Check:
    """A record without what a clock or the machine put in."""
    return dataclasses.replace(record, duration_s=0.0, peak_rss_mb=0.0)


@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("method", ["auto", "richardson"])
@pytest.mark.parametrize("name", ["a weight that is not transposed", "softmax without its sum"])
def test_results_do_not_depend_on_threads_and_memory(name: str, method: str, mode: str):
    mutant = next(m for m in MUTANTS if m.name == name)
    for ops in (gc.OPS, with_rule(mutant.op, mutant.rule)):
        one, two, tiny = (
            plain(check(mutant.model, method=method, mode=mode, ops=ops, **budget))
            for budget in ({"jobs": 1}, {"jobs": 2}, {"jobs": 2, "memory_limit": 4096})
        )
        assert one == two
        assert one.status == tiny.status
        assert one.entries == tiny.entries
        assert_rounded(one.gradient["norm"], tiny.gradient["norm"], roundings=one.entries["total"])


def test_a_full_check_that_memory_cannot_hold_is_refused_with_what_to_do():
    tested = model(("Exp", "x", "y"), x=(200,))
    with pytest.raises(ValueError, match=r"the full Jacobian of 'y' .* --mode directional"):
        check(tested, mode="full", memory_limit=1000)
    assert check(tested, memory_limit=1000).mode == "nodes"


PEAK = """
import resource, sys
import numpy as np
import gradcheck_cli as gc
from tests.checking.small import check, model, scaled, with_rule
from tests.rounding import assert_rounded

rows, columns, limit, method, factor = *map(int, sys.argv[1:4]), sys.argv[4], float(sys.argv[5])
rng = np.random.default_rng(0)
tested = model(("MatMul", "x a", "h"), ("Tanh", "h", "t"), ("MatMul", "t b", "y"), x=(1, rows),
               constants={"a": rng.normal(size=(rows, 4)) / rows ** 0.5, "b": rng.normal(size=(4, columns))})
ops = with_rule("Tanh", scaled("Tanh", factor))
check(model(("Exp", "x", "y"), x=(30,)), mode="full", ops=with_rule("Exp", scaled("Exp", 2.0)))  # loads what it takes
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
record = check(tested, mode="full", method=method, memory_limit=limit, ops=ops, jobs=2)
print(record.status, record.entries["checked"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rows, columns, method, factor", [
    (400, 1000, "auto", 1.0), (400, 1000, "auto", 1.001), (400, 1000, "richardson", 1.0),
    (2, 100_000, "auto", 1.0), (2, 100_000, "auto", 1.001),
    (150_528, 2, "auto", 1.0),
])  # fmt: skip
def test_a_full_check_stays_within_the_memory_limit(rows: int, columns: int, method: str, factor: float):
    limit = 128 << 20
    options = [str(rows), str(columns), str(limit), method, str(factor)]
    done = subprocess.run([sys.executable, "-c", PEAK, *options], capture_output=True, text=True, check=True)
    status, checked, grown = done.stdout.split()
    assert (status, int(checked)) == ("fail" if factor != 1 else "pass", rows * columns)
    assert int(grown) << 10 <= limit


def test_a_time_limit_ends_a_check():
    with pytest.raises(LimitError, match="took more than 0 s"):
        check(model(("Exp", "x", "y"), x=(50,)), timeout=0.0)


@pytest.mark.parametrize("points, left, said", [
    (1, 1, "1 of 2 derivatives were compared, d z/d x was next"),
    (2, 3, "1 of 2 derivatives were compared at point 2, d z/d x was next"),
])  # fmt: skip
def test_a_time_limit_says_how_far_the_check_came(
    points: int, left: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[Pair] = []

    def ended(self: Procedure, together: Together) -> None:
        end(self, together)
        compared.extend(together.pairs)
        self.deadline = 0.0 if len(compared) == left else self.deadline

    end = Procedure._end
    monkeypatch.setattr(Procedure, "_end", ended)
    tested = model(("Exp", "x", "y"), ("Sin", "x", "z"), x=(50,))
    graph = dataclasses.replace(tested.graph, outputs=("y", "z"))
    tested = gc.Model(structs.replace(tested.source, graph=graph), gc.OPS)
    with pytest.raises(LimitError, match=f"took more than 1000 s: {said}"):
        gc.check(tested, "x", points=points, timeout=1000)


# What cannot be checked


def test_an_operator_without_a_gradient_is_unsupported_and_says_how_far_one_can_check():
    tested = model(("Exp", "x", "h"), ("Sin", "h", "a"), ("Cos", "a", "y"))
    record = check(tested, ops=with_rule("Sin", None))
    assert (record.status, record.code, record.exit_code) == ("unsupported", "GC501", 5)
    assert "no gradient for 'Sin' (node 1 'a')" in record.message
    assert "Check up to it: --y h" in record.message


@pytest.mark.parametrize("dtype", ["model", "float64"])
def test_an_operator_that_is_not_known_is_unsupported_in_every_dtype(dtype: str):
    tested = model(("Nothing", "x", "h"), ("Exp", "h", "y"))
    record = gc.check(tested, "x", "y", dtype=dtype).checks[0]
    assert (record.status, record.code, record.exit_code) == ("unsupported", "GC502", 5)


def test_one_unsupported_pair_does_not_stop_the_others():
    tested = model(("Sin", "x", "s"), ("Exp", "v", "e"), ("Add", "s e", "y"), inputs={"v": (4,)})
    report = gc.check(tested, ["x", "v"], "y", ops=with_rule("Sin", None))
    assert [(c.x, c.status) for c in report.checks] == [("x", "unsupported"), ("v", "pass")]
    assert report.exit_code == 5


def test_an_x_that_does_not_reach_y_is_an_error_before_anything_runs():
    tested = model(("Exp", "v", "h"), ("Neg", "h", "y"), inputs={"v": (4,)})
    with pytest.raises(ValueError, match="'y' does not depend on 'x'"):
        check(tested)


def test_a_listener_hears_of_progress():
    from gradcheck_cli.checks.procedure import Procedure

    heard: list[str] = []

    class Listener:
        def expect(self, forecasts: Iterator[Forecast]) -> None:
            heard.extend(each.title for each in forecasts if each.seconds > 0)

        def start(self, title: str, total: int) -> None:
            heard.append(title)

        def advance(self, done: int, total: int) -> None:
            heard.append(f"{done}/{total}")

        def done(self) -> None:
            heard.append("done")

    Procedure(between("Exp").source, Settings(), listen=Listener()).run("m")
    assert heard[0] == "d y/d x"
    assert "4/4" in heard
    assert heard[-1] == "done"


CUT = model(("Exp", "x", "h"), ("Sin", "h", "y"), ("Mul", "x v", "z"), inputs={"v": (4,)})


@pytest.mark.parametrize("fed", ["h", "y"])
def test_a_tensor_that_is_fed_cuts_y_from_x(fed: str):
    with pytest.raises(ValueError, match=f"'y' does not depend on 'x' while {fed!r} is fed"):
        gc.check(CUT, "x", "y", extra_feed_dict={fed: np.ones(4)})


def test_pairs_that_a_fed_tensor_cuts_are_left_out():
    nodes = ("Exp", "x", "h"), ("Mul", "x v", "w"), ("Add", "h w", "y")
    tested = model(*nodes, inputs={"v": (4,)})
    report = gc.check(tested, y="y", extra_feed_dict={"w": np.ones(4)})
    assert [(c.x, c.status) for c in report.checks] == [("x", "pass")]
    assert gc.check(tested, "h", "y", extra_feed_dict={"h": np.ones(4)}).checks[0].status == "pass"


def test_an_input_that_y_does_not_need_may_be_of_any_type():
    nodes = (Node("Exp", ("x",), ("y",)), Node("StringNormalizer", ("s",), ("t",)))
    types = {"x": TensorType(np.dtype(np.float32), (2,)), "s": TensorType(np.dtype(object), (2,)),
             "t": TensorType(np.dtype(object), (2,))}  # fmt: skip
    tested = gc.Model(Source(Graph(("s", "x"), ("y", "t"), nodes, {}, types), "net", nodes=2), gc.OPS)
    [record] = gc.check(tested).checks
    assert (record.x, record.y, record.status) == ("x", "y", "pass")
