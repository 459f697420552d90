"""Every method and mode, complex models, the model's own dtype: the same verdicts."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.report.concise import section as concise
from gradcheck_cli.report.full import section
from gradcheck_cli.report.text import Style
from tests.checking.small import MUTANTS, Mutant, between, check, model, names, scaled, with_rule

# Methods and modes


@pytest.mark.parametrize("method", ["complex-step", "richardson", "central", "forward"])
def test_every_method_passes_right_rules_and_fails_wrong_ones(method: str):
    loose = {"rtol": 1e-4} if method in ("central", "forward") else {}
    for mutant in (m for m in MUTANTS if m.name in ("the sign", "a factor of 2", "relative 1e-3")):
        right = check(mutant.model, method=method, **loose)
        wrong = check(mutant.model, method=method, ops=with_rule(mutant.op, mutant.rule), **loose)
        assert (right.status, wrong.status) == ("pass", "fail"), mutant.name
        assert right.method == wrong.method == method


@pytest.mark.parametrize("method", ["richardson", "central", "forward"])
@pytest.mark.parametrize("mutant", **names(MUTANTS))
def test_no_method_fails_a_right_rule_or_passes_a_wrong_one(mutant: Mutant, method: str):
    assert check(mutant.model, method=method).status != "fail"
    assert check(mutant.model, method=method, ops=with_rule(mutant.op, mutant.rule)).status != "pass"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("mutant", **names(MUTANTS))
def test_random_directions_pass_right_gradients_and_catch_wrong_ones(mutant: Mutant, seed: int):
    assert check(mutant.model, mode="directional", seed=seed).status == "pass"
    record = check(mutant.model, mode="directional", seed=seed, ops=with_rule(mutant.op, mutant.rule))
    assert (record.mode, record.status) == ("directional", "fail")


def test_a_directional_check_says_what_it_may_miss():
    record = check(between("Exp"), mode="directional")
    assert record.power["of"] == "norm"
    assert record.power["probability"] == 0.01
    assert 1e-7 < record.power["missed_below"] < 1e-4


def test_a_given_delta_is_the_step_of_a_plain_difference():
    tested = model(("Mul", "x x", "h"), ("Mul", "h x", "y"), x=(1,))
    record = check(tested, value=[2.0], method="central", delta=0.5)
    assert record.max_abs_err == pytest.approx(0.25, rel=1e-9)


# Complex models, and the model's own dtype


def complex_model() -> gc.Model:
    """Re(z^2 conj(z)): not holomorphic."""
    nodes = (
        Node("Conj", ("x",), ("c",), domain="gradcheck"),
        Node("Mul", ("x", "x"), ("s",)),
        Node("Mul", ("s", "c"), ("y",)),
    )
    types = {"x": TensorType(np.dtype(np.complex128), (3,))}
    return gc.Model(Source(Graph(("x",), ("y",), nodes, {}, types), "graph"), gc.OPS)


def test_complex_models_are_checked_by_the_ladder():
    record = check(complex_model())
    assert (record.status, record.method) == ("pass", "richardson")
    assert record.entries["total"] == 6 * 6


def test_a_conjugate_too_many_fails():
    key = ("gradcheck", "Conj")
    ops = {**gc.OPS, key: dataclasses.replace(gc.OPS[key], vjp=lambda ct, y, x: (ct,))}
    record = check(complex_model(), ops=ops)
    assert record.status == "fail"
    assert record.worst[0].part


@pytest.mark.parametrize("mutant", **names([m for m in MUTANTS if m.name in ("the sign", "a factor of 2")]))
def test_the_models_own_dtype_gives_the_same_verdicts(mutant: Mutant):
    graph = dataclasses.replace(
        mutant.model.graph,
        types={n: TensorType(np.dtype(np.float32), t.shape) for n, t in mutant.model.graph.types.items()},
        constants={n: v.astype(np.float32) for n, v in mutant.model.graph.constants.items()},
    )
    narrow = gc.Model(Source(graph, "graph"), gc.OPS)
    assert check(narrow, dtype="model").status == "pass"
    assert check(narrow, dtype="model", ops=with_rule(mutant.op, mutant.rule)).status == "fail"


def test_asking_for_the_models_own_dtype_leaves_the_verdict_to_float64():
    narrow = model(("Exp", "x", "h"), ("Tanh", "h", "y"), dtype=np.float32)
    record = check(narrow, dtype="model")
    assert (record.dtype, record.max_rel_err < 1e-14) == ("model", True)


SIZES = [((1,), 1), ((3,), 3), ((2, 3), 6), ((9,), 5), ((40,), 5)]


@pytest.mark.parametrize(("shape", "directions"), SIZES)
def test_a_directional_check_counts_no_more_projections_than_there_are_entries(shape: tuple[int, ...], directions: int):
    record = check(between("Exp", x=shape), mode="directional")
    size = int(np.prod(shape))
    assert (record.entries["total"], record.entries["checked"]) == (size**2, directions**2)
    record = check(between("Exp", x=shape), mode="directional", ops=with_rule("Exp", scaled("Exp", 2.0)))
    assert record.entries["failed"]
    line = "of 1 projection differs" if directions == 1 else f"of {directions**2} projections differ"
    assert line in section((record,), Style())
    assert line.replace("of ", "/") in concise((record,), Style())


@pytest.mark.parametrize("entry", range(6))
def test_projections_of_few_entries_miss_none_of_them(entry: int):
    off = np.where(np.arange(6) == entry, 1 + 1e-5, 1.0)
    for seed in range(10):
        ops = with_rule("Exp", scaled("Exp", off))
        assert check(between("Exp", x=(6,)), mode="directional", ops=ops, seed=seed).status == "fail"


def chain(count: int) -> gc.Model:
    """The logistic map, which doubles errors at every step."""
    nodes: list[tuple[Any, ...]] = []
    for i in range(count):
        h = f"h{i}" if i else "x"
        nodes += [("Sub", f"one {h}", f"a{i}"), ("Mul", f"{h} a{i}", f"b{i}"), ("Mul", f"b{i} r", f"h{i + 1}")]
    return model(*nodes, constants={"one": 1.0, "r": 3.9}, x=(3,))


HILBERT = 1 / (np.arange(8)[:, None] + np.arange(8) + 1)
HARD: dict[str, tuple[gc.Model, str]] = {  # numerically hard models, and an operator whose rule is to be made wrong
    "large numbers that cancel": (
        model(("Add", "x big", "a"), ("Sub", "a big", "y"), constants={"big": 1e12}), "Add"),
    "digits that are lost": (
        model(("Exp", "x", "e"), ("Add", "e big", "a"), ("Sub", "a big", "y"), constants={"big": 1e15}), "Exp"),
    "a difference of nearly equal numbers": (
        model(("Mul", "x tiny", "s"), ("Exp", "s", "e"), ("Sub", "e one", "y"),
              constants={"tiny": 1e-10, "one": 1.0}), "Exp"),
    "a variance far from zero": (
        model(("Add", "x big", "a"), ("Mul", "a a", "q"), ("ReduceMean", "q", "s", {"keepdims": 0}),
              ("ReduceMean", "a", "m", {"keepdims": 0}), ("Mul", "m m", "n"), ("Sub", "s n", "y"),
              constants={"big": 1e4}), "Mul"),
    "a matrix and its inverse": (
        model(("MatMul", "x H", "a"), ("Tanh", "a", "b"), ("MatMul", "b I", "y"),
              constants={"H": HILBERT, "I": np.linalg.inv(HILBERT)}, x=(8,)), "Tanh"),
    "a chaotic map": (chain(25), "Mul"),
    "a fast wave": (model(("Mul", "x k", "h"), ("Sin", "h", "y"), constants={"k": 1e9}), "Sin"),
    "a steep tangent": (model(("Mul", "x k", "h"), ("Tan", "h", "y"), constants={"k": 1.5707}), "Tan"),
    "nearly the end of the domain": (
        model(("Tanh", "x", "t"), ("Mul", "t k", "h"), ("Acos", "h", "y"), constants={"k": 1 - 1e-12}), "Acos"),
    "a quotient of tiny numbers": (
        model(("Add", "x e", "d"), ("Sub", "d x", "z"), ("Div", "x z", "y"), constants={"e": 1e-6}), "Div"),
}  # fmt: skip
ROUGH = [{}, {"mode": "directional"}, {"method": "richardson"}, {"method": "central"}, {"method": "forward"},
         {"method": "central", "delta": 1e-3}]  # fmt: skip


@pytest.mark.one_in(10)
@pytest.mark.parametrize("way", ROUGH, ids=str)
@pytest.mark.parametrize("name", HARD)
def test_where_numbers_are_hard_right_rules_do_not_fail_and_wrong_ones_do_not_pass(name: str, way: dict[str, Any]):
    tested, op = HARD[name]
    for seed in range(3):
        value = np.random.default_rng(seed).uniform(0.1, 0.9, tested.graph.types["x"].shape)
        assert check(tested, value=value, seed=seed, **way).status in (
            ("pass",) if not way else ("pass", "inconclusive")
        )
        for factor in (2.0, 0.0):
            wrong = check(tested, value=value, seed=seed, ops=with_rule(op, scaled(op, factor)), **way)
            assert wrong.status != "pass", factor


# Both numerical sides


def with_step(op: str, error: float, vjp: Any = None) -> dict[tuple[str, str], gc.Op]:
    """The operator table with a complex kernel whose slopes are off by a factor, and a rule if one is given."""
    right = gc.OPS["", op]

    def wrong(x: Any) -> Any:
        y = (right.step or right.forward)(x)
        return y.real + 1j * (1 + error) * y.imag

    return {**gc.OPS, ("", op): dataclasses.replace(right, step=wrong, vjp=vjp or right.vjp)}


@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("error", [1e-5, 1e-3, 1.0, -2.0])
@pytest.mark.parametrize("op", ["Softplus", "Sigmoid", "Erf"])
def test_a_wrong_complex_kernel_fails_no_right_rule_and_is_named(op: str, error: float, mode: str):
    for x in ((4,), (30,)):
        record = check(between(op, x=x), mode=mode, ops=with_step(op, error))
        assert (record.status, record.code) == ("inconclusive", "GC303")
        assert any("contradict each other in" in note and f"first at node 1 {op} 'a'" in note for note in record.notes)


@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("error", [2e-6, 1e-5, 1e-3, 1.0])
def test_a_rule_and_a_complex_kernel_that_are_wrong_alike_do_not_pass(error: float, mode: str):
    for x in ((4,), (30,)):
        table = with_step("Softplus", error, scaled("Softplus", 1 + error))
        record = check(between("Softplus", x=x), mode=mode, ops=table)
        assert record.status == "inconclusive"
        assert record.entries["inconclusive"] > 0.1 * record.entries["checked"] ** 0.5


@pytest.mark.parametrize("error", [1e-3, 1.0])
def test_node_by_node_a_contradiction_is_no_pass(error: float):
    table = with_step("Softplus", error, scaled("Softplus", 1 + error))
    assert check(between("Softplus"), mode="nodes", ops=table).status != "pass"


@pytest.mark.parametrize("mode", ["full", "directional", "nodes"])
@pytest.mark.parametrize("error", [1e-5, 1e-3, 1.0])
@pytest.mark.parametrize("op", ["Exp", "Tanh"])
def test_a_complex_kernel_of_others_that_is_wrong_is_not_asked(op: str, error: float, mode: str):
    """NumPy's own functions with a continuation that is none of gradcheck's are tried, and judged by differences."""
    right = check(between(op), mode=mode, ops=with_step(op, error))
    assert right.status == "pass"
    assert f"node 1 {op} 'a' is not taken as analytic" in " ".join(right.notes)
    assert check(between(op), mode=mode, ops=with_step(op, error, scaled(op, 1 + error))).status == "fail"


@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("big", [0.0, 1e3])
def test_an_audit_that_a_few_differences_settle_takes_no_ladder(big: float, mode: str):
    """Beside a large constant a fine difference alone is mostly rounding."""
    tested = model(("Tanh", "x", "h"), ("Add", "h big", "y"), x=(30,), constants={"big": big})
    record = check(tested, mode=mode, coloring=False)
    there_and_back = 6 if mode == "directional" else 12  # at three distances
    assert (record.status, record.evaluations["real"]) == ("pass", there_and_back)


def deep(layers: int) -> gc.Model:
    """Many layers, whose rounding hides small errors from real differences."""
    nodes: list[tuple[Any, ...]] = []
    rng = np.random.default_rng(2)
    for i in range(layers):
        nodes += [("MatMul", f"{f'h{i}' if i else 'x'} W{i}", f"m{i}"), ("Sin", f"m{i}", f"h{i + 1}")]
    weights = {f"W{i}": 1.6 * np.linalg.qr(rng.normal(size=(6, 6)))[0] for i in range(layers)}
    return model(*nodes, ("Tanh", f"h{layers}", "y"), x=(6,), constants=weights)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "factor"), [(0, 1 + 1e-6), (1, 1 + 1e-5), (2, 1 - 1e-4), (3, 1 + 1e-6)])
def test_in_a_deep_model_an_error_of_a_millionth_fails_though_differences_cannot_see_it(seed: int, factor: float):
    """The complex step is exact to rounding, and differences do not say otherwise."""
    tested, wrong = deep(100), with_rule("Tanh", scaled("Tanh", factor))
    assert check(tested, seed=seed).status == "pass"
    assert check(tested, seed=seed, ops=wrong).status == "fail"
    assert check(tested, seed=seed, ops=wrong, method="richardson").status != "pass"


# What it takes


@pytest.mark.parametrize("size", [8, 64, 200])
def test_a_check_that_passes_takes_one_complex_run_a_row_and_a_few_real_ones(size: int):
    record = check(between("Exp", x=(size,)), coloring=False)
    assert record.status == "pass"
    assert record.evaluations["complex"] == size
    assert record.evaluations["real"] <= 24


@pytest.mark.parametrize("size", [8, 64, 200])
def test_the_ladder_takes_nine_runs_a_row(size: int):
    record = check(between("Exp", x=(size,)), method="richardson", coloring=False)
    assert record.status == "pass"
    assert record.evaluations["complex"] == 0
    assert 8 * size <= record.evaluations["real"] <= 9 * size


@pytest.mark.parametrize("method", ["auto", "richardson"])
@pytest.mark.parametrize("mode", ["full", "directional"])
def test_nothing_depends_on_the_number_of_threads_or_on_the_memory(mode: str, method: str):
    weights = np.random.default_rng(1).normal(size=(40, 40))
    tested = model(("MatMul", "x W", "h"), ("Mul", "h gain", "g"), ("Softmax", "g", "s"), ("MatMul", "s V", "y"),
                   x=(40,), constants={"W": weights, "V": weights.T, "gain": 30.0})  # fmt: skip
    records = [check(tested, mode=mode, method=method, jobs=jobs, memory_limit=memory, max_inconclusive=1.0)
               for jobs, memory in ((1, 2**30), (1, 2**18), (3, 2**30), (2, 2**17))]  # fmt: skip
    for record in records[1:]:
        assert (record.status, record.entries) == (records[0].status, records[0].entries)
        assert record.noise == pytest.approx(records[0].noise, rel=0.2)
        assert [e.x for e in record.worst] == [e.x for e in records[0].worst]
