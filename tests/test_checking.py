"""The check procedure as properties of its verdicts, on small graphs built in code."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli import symbolic as sym
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.record import Check
from gradcheck_cli.settings import Settings

RNG = np.random.default_rng(7)
SQUARE = RNG.normal(size=(3, 3))


def model(
    *nodes: tuple[Any, ...],
    x: tuple[int, ...] = (4,),
    dtype: Any = np.float64,
    constants: Mapping[str, Any] | None = None,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
) -> gc.Model:
    """A model of nodes `(op, inputs, output)` or `(op, inputs, output, attrs)`; the last output is y."""
    shapes = {"x": x, **(inputs or {})}
    made = tuple(Node(op, tuple(reads.split()), (out,), *rest) for op, reads, out, *rest in nodes)
    arrays = {name: np.asarray(value) for name, value in (constants or {}).items()}
    types = {name: TensorType(np.dtype(dtype), shape) for name, shape in shapes.items()}
    graph = Graph(tuple(shapes), (made[-1].outputs[-1],), made, arrays, types)
    return gc.Model(Source(graph, "graph", nodes=len(made)), gc.OPS)


def with_rule(op: str, vjp: Any) -> dict[tuple[str, str], gc.Op]:
    """The operator table with one rule replaced."""
    return {**gc.OPS, ("", op): dataclasses.replace(gc.OPS["", op], vjp=vjp)}


def scaled(op: str, factor: Any) -> Any:
    """The rule of an operator with its first cotangent off by a factor."""
    right = gc.OPS["", op].vjp
    assert right is not None

    def rule(ct: Any, ans: Any, *primals: Any, **metadata: Any) -> tuple[Any, ...]:
        first, *others = right(ct, ans, *primals, **metadata)
        return (first * factor, *others)

    return rule


def check(tested: gc.Model, value: Any = None, **more: Any) -> Check:
    """The record of y by x."""
    given = {} if value is None else {"x_init_value": {"x": np.asarray(value)}}
    [record] = gc.check(tested, "x", tested.graph.outputs[0], **given, **more).checks
    return record


class Mutant(NamedTuple):
    """An operator with a rule that is wrong in one way, and a model that has it between two other nodes."""

    name: str
    op: str
    rule: Any
    model: gc.Model
    code: str = "GC101"


def between(op: str, attrs: Mapping[str, Any] | None = None, x: tuple[int, ...] = (4,), **more: Any) -> gc.Model:
    """sin(op(1.5 x, ...)): the operator at work between two others."""
    reads = " ".join(["h", *(more.get("constants") or {})])
    more["constants"] = {**(more.get("constants") or {}), "wide": np.float64(1.5)}
    return model(("Mul", "x wide", "h"), (op, reads, "a", attrs or {}), ("Sin", "a", "y"), x=x, **more)


def off_in_one_entry(ct: Any, y: Any, x: Any) -> tuple[Any]:
    return (ct * y * np.array([1.0, 1.0, 1.1, 1.0]),)


def fanned() -> gc.Model:
    return model(("Tanh", "x", "h"), ("Mul", "h h", "a"), ("Sin", "a", "y"))


MUTANTS = [
    Mutant("the sign", "Tanh", scaled("Tanh", -1.0), between("Tanh")),
    Mutant("a factor of 2", "Exp", scaled("Exp", 2.0), between("Exp")),
    Mutant("relative 1e-3", "Exp", scaled("Exp", 1 + 1e-3), between("Exp")),
    Mutant("relative 1e-4", "Exp", scaled("Exp", 1 + 1e-4), between("Exp")),
    Mutant("relative 1e-5", "Exp", scaled("Exp", 1 + 1e-5), between("Exp")),
    Mutant("relative 1e-6", "Exp", scaled("Exp", 1 + 1e-6), between("Exp")),
    Mutant("one entry 10 % off", "Exp", off_in_one_entry, between("Exp")),
    Mutant("a missing term", "Tanh", lambda ct, y, x: (ct * (1 - y),), between("Tanh")),
    Mutant("a weight that is not transposed", "MatMul", lambda ct, y, a, b: (sym.matmul(ct, b), None),
           between("MatMul", x=(2, 3), constants={"W": SQUARE})),
    Mutant("fan-out of which one way counts", "Mul", lambda ct, y, a, b: (ct * b, None), fanned()),
    Mutant("a quotient without its second term", "Div", lambda ct, y, a, b: (ct / b, None),
           model(("Tanh", "x", "h"), ("Cosh", "x", "c"), ("Div", "h c", "a"), ("Sin", "a", "y"))),
    Mutant("a power without ln a", "Pow", lambda ct, y, a, b: (ct * b * y / a, ct * y),
           model(("Cosh", "x", "c"), ("Pow", "c x", "a"), ("Sin", "a", "y"))),
    Mutant("softmax without its sum", "Softmax", lambda ct, y, x, *, axis=-1: (ct * y,), between("Softmax")),
    Mutant("log-softmax on the wrong axis", "LogSoftmax",
           lambda ct, y, x, *, axis: gc.OPS["", "LogSoftmax"].vjp(ct, y, x, axis=-3 - axis),  # type: ignore[misc]
           between("LogSoftmax", {"axis": 0}, x=(2, 3))),
    Mutant("a sum for a mean", "ReduceMean", scaled("ReduceMean", 4.0),
           between("ReduceMean", {"keepdims": 0})),
    Mutant("a permutation that is not inverted", "Transpose",
           lambda ct, y, x, *, perm=None: (sym.transpose(ct, (1, 2, 0)),),
           between("Transpose", {"perm": (1, 2, 0)}, x=(3, 3, 3))),
    Mutant("operands of a concatenation swapped", "Concat",
           lambda ct, y, *xs, **metadata: gc.OPS["", "Concat"].vjp(ct, y, *xs, **metadata)[::-1],  # type: ignore[misc]
           model(("Tanh", "x", "h"), ("Exp", "x", "e"), ("Concat", "h e", "a", {"axis": 0}),
                 ("Sin", "a", "y"))),
    Mutant("a leak that is lost", "LeakyRelu", lambda ct, y, x, *, alpha=0.01: (sym.where(x > 0, ct, 0),),
           between("LeakyRelu", {"alpha": 0.25}, x=(8,))),
    Mutant("a clip that lets everything through", "Clip",
           lambda ct, y, x, *bounds: (ct, *[None] * len(bounds)),
           between("Clip", x=(8,), constants={"low": -0.5, "high": 0.5})),
    Mutant("a gradient of NaN", "Exp", scaled("Exp", np.nan), between("Exp"), "GC103"),
]  # fmt: skip


LOCATED = MUTANTS


def names(mutants: list[Mutant]) -> Any:
    return {"argvalues": mutants, "ids": [m.name.replace(" ", "-") for m in mutants]}


# Right rules pass, wrong ones fail


@pytest.mark.parametrize("mutant", **names(MUTANTS))
def test_the_right_rule_passes(mutant: Mutant):
    record = check(mutant.model)
    assert (record.status, record.code, record.suspect) == ("pass", "", None)
    assert record.max_rel_err < 1e-12


@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("mutant", **names(LOCATED))
def test_a_wrong_rule_fails_and_its_operator_is_the_suspect(mutant: Mutant, mode: str):
    record = check(mutant.model, mode=mode, ops=with_rule(mutant.op, mutant.rule))
    assert (record.status, record.code, record.mode) == ("fail", mutant.code, mode)
    assert record.suspect is not None
    assert record.suspect.op == mutant.op
    assert record.suspect.passed == record.suspect.tried - 1


@pytest.mark.parametrize("mutant", **names(MUTANTS))
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_the_verdict_does_not_depend_on_the_seed(mutant: Mutant, seed: int):
    assert check(mutant.model, seed=seed).status == "pass"
    assert check(mutant.model, seed=seed, ops=with_rule(mutant.op, mutant.rule)).status == "fail"


def test_an_error_of_a_millionth_is_located():
    [mutant] = [m for m in MUTANTS if m.name == "relative 1e-6"]
    record = check(mutant.model, ops=with_rule(mutant.op, mutant.rule))
    assert record.suspect is not None
    assert record.suspect.op == mutant.op


def test_the_first_of_two_wrong_nodes_is_the_suspect():
    tested = model(("Exp", "x", "a"), ("Tanh", "a", "b"), ("Exp", "b", "y"))
    record = check(tested, ops=with_rule("Exp", scaled("Exp", 2.0)))
    assert record.suspect is not None
    assert (record.suspect.node, record.suspect.passed, record.suspect.tried) == (0, 1, 3)


def test_a_failure_says_how_far_off_which_entries_are():
    tested = model(("Exp", "x", "y"), x=(2, 2))
    record = check(tested, ops=with_rule("Exp", scaled("Exp", 3.0)), value=np.zeros((2, 2)))
    assert record.entries == {"total": 16, "checked": 16, "failed": 4, "inconclusive": 0}
    assert [(e.x, e.y) for e in record.worst] == [((i, j), (i, j)) for i in (0, 1) for j in (0, 1)]
    assert all((e.theoretical, round(e.numerical, 12), e.status) == (3.0, 1.0, "fail") for e in record.worst)
    assert (record.max_abs_err, record.needed["atol"]) == (pytest.approx(2.0), pytest.approx(2.0))
    assert record.needed["rtol"] == pytest.approx(2 / 3)


def test_it_would_pass_with_the_tolerance_that_it_names():
    tested = between("Exp")
    ops = with_rule("Exp", scaled("Exp", 1 + 1e-4))
    needed = check(tested, ops=ops).needed
    assert check(tested, ops=ops, rtol=needed["rtol"] * 1.01).status == "pass"
    assert check(tested, ops=ops, rtol=needed["rtol"] * 0.9).status == "fail"
    assert check(tested, ops=ops, atol=needed["atol"] * 1.01).status == "pass"


# Kinks


KINKS = {
    "Relu": model(("Relu", "x", "a"), ("Mul", "a two", "y"), constants={"two": 2.0}),
    "Abs": model(("Abs", "x", "y")),
    "Max": model(("Max", "x zero", "y"), constants={"zero": 0.0}),
    "LeakyRelu": model(("LeakyRelu", "x", "y", {"alpha": 0.5})),
    "Clip": model(("Clip", "x zero one", "y"), constants={"zero": 0.0, "one": 1.0}),
}


@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("name", KINKS)
def test_at_a_kink_the_status_is_inconclusive(name: str, mode: str):
    record = check(KINKS[name], value=np.zeros(4), mode=mode)
    assert (record.status, record.code) == ("inconclusive", "GC301")


@pytest.mark.parametrize("method", ["complex-step", "richardson", "central", "forward"])
@pytest.mark.parametrize("name", KINKS)
def test_at_a_kink_no_method_fails(name: str, method: str):
    assert check(KINKS[name], value=np.zeros(4), method=method).status in ("pass", "inconclusive")


@pytest.mark.parametrize("name", KINKS)
def test_at_a_kink_a_note_names_the_node(name: str):
    assert any(f"node 0 {name}" in note for note in check(KINKS[name], value=np.zeros(4)).notes)


@pytest.mark.parametrize("name", KINKS)
def test_one_kink_leaves_the_other_rows_checked(name: str):
    record = check(KINKS[name], value=[0.0, 0.5, 0.7, -0.5], max_inconclusive=0.5)
    assert record.status == "pass"
    assert 0 < record.entries["inconclusive"] <= 4


@pytest.mark.parametrize("distance", [1e-2, 1e-6, 1e-9])
@pytest.mark.parametrize("name", KINKS)
def test_near_a_kink_there_is_a_derivative_which_passes(name: str, distance: float):
    value = np.array([distance, -distance, 2 * distance, 0.5])
    assert check(KINKS[name], value=value).status == "pass"


@pytest.mark.parametrize("distance", [1e-2, 1e-6, 1e-9])
def test_near_a_kink_a_wrong_mask_fails(distance: float):
    wrong = with_rule("Relu", lambda ct, y, x: (ct,))
    record = check(KINKS["Relu"], value=[distance, -distance, 0.3, -0.5], ops=wrong)
    assert record.status == "fail"
    assert record.suspect is not None
    assert record.suspect.op == "Relu"


def test_equal_values_are_a_kink_of_a_maximum():
    tested = model(("Max", "x v", "y"), inputs={"v": (4,)})
    record = check(tested, value=np.ones(4), extra_feed_dict={"v": np.ones(4)})
    assert (record.status, record.code) == ("inconclusive", "GC301")


def test_a_wrong_rule_beside_a_kink_fails_all_the_same():
    record = check(KINKS["Relu"], value=[0.0, 0.5, 0.7, -0.5], ops=with_rule("Relu", scaled("Relu", 2.0)))
    assert record.status == "fail"


def test_a_branch_without_a_jump_is_no_kink():
    """x |x| is differentiable at 0."""
    tested = model(("Abs", "x", "a"), ("Mul", "a x", "y"))
    assert check(tested, value=[0.0, 0.0, 1.0, -1.0]).status == "pass"


# Points without a finite value


def test_a_forward_that_is_not_finite_is_gc302_and_names_the_node():
    tested = model(("Neg", "x", "h"), ("Log", "h", "a"), ("Exp", "a", "y"))
    record = check(tested, value=[1.0, 2.0, 3.0, 4.0])
    assert (record.status, record.code) == ("inconclusive", "GC302")
    assert "first NaN at node 1 Log 'a' (input min -4)" in record.message


def test_a_forward_that_overflows_is_gc302():
    record = check(model(("Exp", "x", "a"), ("Exp", "a", "y")), value=[1.0, 2.0, 3.0, 700.0])
    assert (record.status, record.code) == ("inconclusive", "GC302")
    assert "first infinity at node 1 Exp 'y'" in record.message


def test_a_gradient_that_is_not_finite_where_y_is_fails():
    """sqrt at 0: its rule gives 0 * infinity for the other entries."""
    record = check(model(("Sqrt", "x", "y")), value=[1.0, 4.0, 9.0, 0.0])
    assert (record.status, record.code, record.gradient["finite"]) == ("fail", "GC103", False)


# Scales


SCALES = [-100, -60, 60, 100]  # powers of two: 1e-30 to 1e30


def rescaled(outer: int, inner: int) -> gc.Model:
    """2^outer f(2^-inner x): the same function in other units."""
    constants = {"unit": 2.0**-inner, "scale": 2.0**outer}
    nodes = ("Mul", "x unit", "u"), ("Exp", "u", "e"), ("Tanh", "e", "t"), ("Mul", "t scale", "y")
    return model(*nodes, constants=constants)


@pytest.mark.parametrize("inner", [0, *SCALES])
@pytest.mark.parametrize("outer", [0, *SCALES])
def test_scales_of_x_and_y_do_not_change_verdicts(outer: int, inner: int):
    tested, here = rescaled(outer, inner), 2.0**inner * np.array([0.3, -0.7, 0.1, -1.1])
    right = check(tested, value=here)
    assert (right.status, right.max_rel_err < 1e-12) == ("pass", True)
    for factor in (2.0, 1 + 1e-5, 1 + 1e-6):
        wrong = check(tested, value=here, ops=with_rule("Exp", scaled("Exp", factor)))
        assert wrong.status == "fail", factor
        assert factor < 1 + 1e-5 or (wrong.suspect is not None and wrong.suspect.op == "Exp")


def test_entries_of_very_different_sizes_are_all_checked():
    tested = model(("Mul", "x w", "h"), ("Sin", "h", "y"), constants={"w": [1e-12, 1e-6, 1.0, 10.0]})
    assert check(tested).status == "pass"
    for entry in range(4):
        off = np.where(np.arange(4) == entry, 2.0, 1.0)
        record = check(tested, ops=with_rule("Sin", scaled("Sin", off)))
        assert (record.status, [e.x for e in record.worst]) == ("fail", [(entry,)])


# Zero gradients


ZEROS = {
    "a product with zero": model(("Mul", "x zero", "y"), constants={"zero": 0.0}),
    "a step function": model(("Floor", "x", "y")),
    "a shift of softmax": model(
        ("ReduceSum", "x", "s", {"keepdims": 1}),
        ("Add", "v s", "h"),
        ("Softmax", "h", "y"),
        inputs={"v": (4,)},
    ),
    "saturated": model(("Mul", "x big", "h"), ("Tanh", "h", "y"), constants={"big": 1e6}),
}


@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("name", ZEROS)
def test_gradients_that_are_zero_pass(name: str, mode: str):
    assert check(ZEROS[name], value=[0.3, -0.7, 0.2, -1.1], mode=mode).status == "pass"


def test_a_zero_that_should_not_be_fails():
    record = check(between("Exp"), ops=with_rule("Exp", lambda ct, y, x: (None,)))
    assert (record.status, record.worst[0].pattern) == ("fail", "missing")


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


# Points, seeds, thresholds


def test_every_point_counts():
    record = check(between("Exp"), points=5)
    assert record.entries["checked"] == 5 * 16
    assert record.points == 5


def test_points_differ_and_one_of_them_can_be_had_alone():
    norms = [check(between("Exp"), points=3, point=k).gradient["norm"] for k in range(3)]
    assert len(set(norms)) == 3
    assert check(between("Exp"), points=1).gradient["norm"] == norms[0]


def test_a_rule_that_is_wrong_at_one_point_only_fails_there():
    """Wrong for x > 0: the sign of the first entry decides, point by point."""
    tested = model(("Exp", "x", "y"), x=(1,))
    wrong = with_rule("Exp", lambda ct, y, x: (sym.where(x > 0, ct * y * 2.0, ct * y),))
    each = [check(tested, point=k, ops=wrong).status for k in range(6)]
    assert set(each) == {"pass", "fail"}
    record = check(tested, points=6, ops=wrong)
    assert record.status == "fail"
    assert sorted({e.point for e in record.worst}) == [k for k, status in enumerate(each) if status == "fail"]


def test_equal_seeds_give_equal_records_and_others_do_not():
    first, again, other = (check(between("Exp"), seed=s).gradient for s in (5, 5, 6))
    assert first == again != other


@pytest.mark.parametrize(("fraction", "status"), [(0.0, "inconclusive"), (0.02, "inconclusive"), (0.25, "pass")])
def test_max_inconclusive_is_the_share_of_entries_that_may_stay_open(fraction: float, status: str):
    record = check(KINKS["Abs"], value=[0.0, 0.5, 0.7, -0.5], max_inconclusive=fraction)
    assert record.status == status


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


def test_in_the_models_own_dtype_the_theoretical_side_is_rounded():
    narrow = model(("Exp", "x", "h"), ("Tanh", "h", "y"), dtype=np.float32)
    record = check(narrow, dtype="model")
    assert 1e-9 < record.max_rel_err < 1e-5


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
        np.testing.assert_allclose(one.gradient["norm"], tiny.gradient["norm"], rtol=1e-14)


def test_a_full_check_that_memory_cannot_hold_is_refused_with_what_to_do():
    tested = model(("Exp", "x", "y"), x=(200,))
    with pytest.raises(ValueError, match=r"the full Jacobian of 'y' .* --mode directional"):
        check(tested, mode="full", memory_limit=1000)
    assert check(tested, memory_limit=1000).mode == "directional"


def test_a_time_limit_ends_a_check():
    from gradcheck_cli.errors import LimitError

    with pytest.raises(LimitError, match="took more than 0 s"):
        check(model(("Exp", "x", "y"), x=(50,)), timeout=0.0)


# What cannot be checked


def test_an_operator_without_a_gradient_is_unsupported_and_says_how_far_one_can_check():
    tested = model(("Exp", "x", "h"), ("Sin", "h", "a"), ("Cos", "a", "y"))
    record = check(tested, ops=with_rule("Sin", None))
    assert (record.status, record.code, record.exit_code) == ("unsupported", "GC501", 5)
    assert "no gradient for 'Sin' (node 1 'a')" in record.message
    assert "Check up to it: --y h" in record.message


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
    from gradcheck_cli.checking import check as check_source

    heard: list[str] = []

    class Listener:
        def start(self, title: str, total: int) -> None:
            heard.append(title)

        def advance(self, done: int, total: int) -> None:
            heard.append(f"{done}/{total}")

        def done(self) -> None:
            heard.append("done")

    check_source(between("Exp").source, Settings(), name="m", listen=Listener())
    assert heard[0] == "d y/d x"
    assert "4/4" in heard
    assert heard[-1] == "done"
