"""Gradients of which only rounding is left: they cancel to zero, saturate, or are not finite on either side."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from tests.checking.small import check, model, scaled, with_rule

EQUAL = np.repeat(np.random.default_rng(0).normal(size=(6, 1)), 50, axis=1)  # columns that are all the same
POINT = [0.3, -0.7, 0.2, -1.1, 0.6, 0.9]


@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gain", [1.0, 1e6, 1e12, 1e18])
def test_large_terms_that_cancel_are_no_failure(gain: float, seed: int, mode: str):
    """Softmax of equal logits does not depend on x, but each logit does, and steeply so."""
    nodes = ("MatMul", "x w", "h"), ("Mul", "h gain", "g"), ("MatMul", "g v", "a"), ("Softmax", "a", "y")
    constants = {"w": EQUAL, "gain": gain, "v": np.ones((50, 40))}
    status = check(model(*nodes, x=(6,), constants=constants), value=POINT, mode=mode, seed=seed).status
    assert status == "pass" or (status == "inconclusive" and mode == "directional")  # sums may hide more


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("at", [0.04946228, 0.7, 1.3])
def test_the_rounding_of_what_a_rule_computes_of_values_alone_is_no_failure(at: float, size: int):
    """The minors of a matrix of equal entries, which the rule of Det takes, are roundings of zero."""
    indices = np.zeros((size, size), np.int64)
    tested = model(("Gather", "x i", "m"), ("Det", "m", "y"), x=(1,), constants={"i": indices})
    assert check(tested, value=[at], mode="full").status == "pass"


@pytest.mark.parametrize("factor", [-1.0, 1 + 1e-5])
def test_a_wrong_rule_of_det_fails_beside_that(factor: float):
    tested = model(("Det", "x", "y"), x=(3, 3))
    assert check(tested, mode="full", ops=with_rule("Det", scaled("Det", factor))).status == "fail"


@pytest.mark.parametrize("method", ["auto", "richardson", "central", "forward"])
@pytest.mark.parametrize("factor, failed", [(1.0, 0), (1.001, 60)])
def test_a_sign_that_is_computed_by_a_norm_is_zero_whatever_the_method(method: Any, factor: float, failed: int):
    """x / |x| has the slope 0, of which the rule gives a rounding divided by x; beside it a wrong rule fails."""
    nodes = ("Cos", "x", "c"), ("LpNormalization", "c", "n", {"axis": 1}), ("Sin", "n", "s")
    tested = model(*nodes, ("Exp", "x", "e"), ("Concat", "s e", "y", {"axis": 1}), x=(60, 1))
    values, ops = np.pi / 2 + 10.0 ** -np.linspace(1, 6, 60)[:, None], with_rule("Exp", scaled("Exp", factor))
    assert check(tested, value=values, method=method, mode="full", ops=ops).entries["failed"] == failed


@pytest.mark.parametrize("dtype", ["float64", "model"])
def test_zero_in_the_models_own_dtype_passes(dtype: str):
    """A mean weighted by numbers that are all scaled by x does not depend on x."""
    nodes = (
        ("Mul", "a x", "b"), ("Mul", "x c", "d"), ("ReduceSum", "b", "e", {"keepdims": 0}),
        ("ReduceSum", "d", "f", {"keepdims": 0}), ("Div", "e f", "y"),
    )  # fmt: skip
    constants = {"a": np.float32([0.3, 0.5, 0.7]), "c": np.float32([0.1, 0.9, 0.7])}
    tested = model(*nodes, x=(1,), dtype=np.float32, constants=constants)
    for seed in range(20):
        assert check(tested, seed=seed, dtype=dtype).status == "pass"


@pytest.mark.parametrize("factor", [-1.0, 0.5, 1 + 1e-4])
def test_beside_large_terms_that_cancel_a_wrong_rule_fails(factor: float):
    nodes = ("MatMul", "x w", "h"), ("Softmax", "h", "s"), ("Exp", "x", "e"), ("Concat", "s e", "y", {"axis": 0})
    tested = model(*nodes, x=(6,), constants={"w": 1e6 * EQUAL})
    right = gc.OPS["", "Exp"]
    wrong = {**gc.OPS, ("", "Exp"): gc.Op("Exp", right.forward, lambda ct, y, x: (ct * y * factor,), right.batching)}
    assert check(tested, value=POINT).status == "pass"
    assert check(tested, value=POINT, ops=wrong).status == "fail"


def test_a_saturated_hyperbolic_tangent_passes():
    """1 - y^2 has no digits left there."""
    record = check(model(("Tanh", "x", "y")), value=[18.5, -17.9, 17.2, 40.0])
    assert record.status == "pass"
    assert record.max_rel_err < 1e-14


@pytest.mark.parametrize("mode", ["full", "directional"])
@pytest.mark.parametrize("op, at", [("Sqrt", 0.0), ("Acosh", 1.0)])
def test_what_is_not_finite_on_either_side_is_no_pass(op: str, at: float, mode: str):
    record = check(model((op, "x", "y")), value=[at, 2.0, 3.0, 4.0], mode=mode)
    assert record.status != "pass"
    assert record.entries["inconclusive"] >= 1


def test_a_masked_softmax_of_nothing_passes():
    """A row of -infinity has NaN for a softmax; where the model puts zeros in its place nothing flows."""
    nodes = (
        ("Add", "x mask", "h"), ("Softmax", "h", "s"), ("IsNaN", "s", "none"), ("Where", "none zero s", "y"),
    )  # fmt: skip
    mask = np.array([[0.0, -np.inf, 0.0], [-np.inf, -np.inf, -np.inf]])
    record = check(model(*nodes, x=(2, 3), constants={"mask": mask, "zero": 0.0}), value=np.ones((2, 3)) * [1, 2, 3])
    assert (record.status, record.gradient["finite"]) == ("pass", True)


NOTHING, REST = ("IsNaN", "s", "none"), ("Where", "none zero s", "y")
MASKED = {  # nodes that mask a softmax; True if NaN comes back to x in PyTorch and JAX
    "by a sum": ((("Add", "x mask", "h"), ("Softmax", "h", "s"), NOTHING, REST), True),
    "by a sum, of what a weight gives": (
        (("Mul", "x w", "g"), ("Add", "g mask", "h"), ("Softmax", "h", "s"), NOTHING, REST), True),
    "by a choice": ((("Where", "off mask x", "h"), ("Softmax", "h", "s"), NOTHING, REST), False),
    "in part": ((("Add", "x part", "h"), ("Softmax", "h", "s"), NOTHING, REST), False),
    "behind x": ((("Softmax", "mask", "s"), NOTHING, ("Where", "none zero s", "p"), ("Mul", "p x", "y")), False),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["full", "nodes", "directional", "sampled"])
@pytest.mark.parametrize("name", MASKED)
def test_a_softmax_of_nothing_that_other_frameworks_make_nan_of_is_told(name: str, mode: Any):
    nodes, told = MASKED[name]
    mask = np.array([[0.0, -np.inf, 0.0], [-np.inf, -np.inf, -np.inf]])
    constants = {"mask": mask, "part": mask[:1], "off": np.isinf(mask), "zero": 0.0, "w": 2.0}
    record = check(model(*nodes, x=(2, 3), constants=constants), value=np.ones((2, 3)) * [1, 2, 3], mode=mode)
    assert (record.status, record.gradient["finite"]) == ("pass", True)
    assert [" Softmax 's' is NaN along lines of -infinity alone" in note for note in record.notes] == [True] * told


def test_a_softmax_of_infinity_is_not_told_as_one_that_is_masked():
    nodes = (("Add", "x most", "h"), ("Softmax", "h", "s"), NOTHING, REST)
    record = check(model(*nodes, x=(3,), constants={"most": np.array([0.0, np.inf, 0.0]), "zero": 0.0}))
    assert not [note for note in record.notes if "is NaN along lines" in note]


def test_each_x_is_told_of_the_masked_softmax_behind_it():
    nodes = [node for x in ("x", "z") for node in (
        ("Add", f"{x} mask", f"h{x}"), ("Softmax", f"h{x}", f"s{x}"), ("IsNaN", f"s{x}", f"none{x}"),
        ("Where", f"none{x} zero s{x}", f"y{x}"))]  # fmt: skip
    constants = {"mask": np.array([[0.0, -np.inf], [-np.inf, -np.inf]]), "zero": 0.0}
    tested = model(*nodes, ("Add", "yx yz", "y"), x=(2, 2), inputs={"z": (2, 2)}, constants=constants)
    for record in gc.check(tested, ["x", "z"], "y").checks:
        told = [note for note in record.notes if "is NaN along lines" in note]
        assert [f"Softmax 's{record.x}'" in note for note in told] == [True], told


@pytest.mark.parametrize("method", ["complex-step", "richardson", "central", "forward"])
@pytest.mark.parametrize("mode", ["full", "directional"])
def test_numbers_at_the_edge_of_the_range_raise_no_warning(mode: str, method: str):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for node, value in [(("Exp", "x", "y"), [1.0, 2.0, 3.0, 709.7]), (("Mul", "x x", "y"), [1e154, 1e-154, 1, 0])]:
            assert check(model(node), value=value, mode=mode, method=method).status != "fail"


QUANTIZED = ["int8", "uint8", "int4", "uint4", "int2", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]


@pytest.mark.parametrize("dtype", ["float64", "model"])
@pytest.mark.parametrize("method", ["auto", "richardson"])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_nothing_flows_through_quantized_numbers(kind: str, method: str, dtype: str):
    """y = dequantize(quantize(x)) + x has the derivative of x alone, by the rules and by differences."""
    zero = np.zeros((), getattr(ml_dtypes, kind, kind))
    nodes = (
        Node("QuantizeLinear", ("x", "scale", "zero"), ("q",)),
        Node("DequantizeLinear", ("q", "scale", "zero"), ("d",)),
        Node("Add", ("d", "x"), ("y",)),
    )
    types = {"x": TensorType(np.dtype(np.float32), (5,))}
    graph = Graph(("x",), ("y",), nodes, {"scale": np.float32(0.25).reshape(()), "zero": zero}, types)
    [record] = gc.check(gc.Model(Source(graph, "quantized", nodes=3), gc.OPS), method=method, dtype=dtype).checks
    assert (record.status, record.gradient["norm"]) == ("pass", pytest.approx(np.sqrt(5)))


# Reasons


BIG = {"big": 1e12}
REASONS: dict[str, tuple[gc.Model, list[float], dict[str, Any]]] = {  # why an entry is open: a model, x, a way
    "noise": (model(("Add", "x big", "a"), ("Sub", "a big", "y"), constants=BIG), [0.3, -0.7, 0.2, 1.1],
              {"method": "richardson"}),
    "curvature": (model(("Exp", "x", "y")), [0.3, -0.7, 0.2, 1.1], {"method": "central", "delta": 0.1}),
    "domain": (model(("Sqrt", "x", "y"), x=(1,)), [0.0], {}),
    "jump": (model(("Floor", "x", "f"), ("Add", "f x", "y")), [1.0, -0.7, 0.2, 1.1], {}),
    "underflow": (model(("Add", "x big", "a"), ("Sub", "a big", "d"), ("Mul", "d tiny", "y"), x=(1,),
                        constants={**BIG, "tiny": 1e-260}), [0.3], {"method": "richardson"}),
    "nonderivative": (
        model(("Relu", "x", "a"), ("Neg", "x", "n"), ("Relu", "n", "b"), ("Sub", "a b", "y")), [0, 0.5, -0.5, 0.2], {}),
}  # fmt: skip
CODES = {"domain": "GC304", "jump": "GC301", "nonderivative": "GC301"}


@pytest.mark.parametrize("reason", REASONS)
def test_an_open_entry_says_why_and_how_large_an_error_would_have_been_seen(reason: str):
    tested, value, way = REASONS[reason]
    record = check(tested, value=value, max_inconclusive=0.0, **way)
    assert (record.status, record.code) == ("inconclusive", CODES.get(reason, "GC303"))
    open_ = [entry for entry in record.worst if entry.status == "inconclusive"]
    assert {entry.reason for entry in open_} == {reason}
    assert all(entry.unseen is not None for entry in open_)
    measured = reason in ("noise", "curvature")
    assert all((entry.unseen < np.inf) == measured for entry in open_)  # type: ignore[operator]
    assert any(f"not judged because of {reason}: an error below " in note for note in record.notes) == measured


@pytest.mark.parametrize("reason", ["noise", "curvature"])
def test_an_error_larger_than_the_one_named_fails(reason: str):
    tested, value, way = REASONS[reason]
    op = "Add" if reason == "noise" else "Exp"
    entry = check(tested, value=value, **way).worst[0]
    assert entry.unseen is not None
    for sign in (1.0, -1.0):
        factor = 1 + sign * 1.01 * entry.unseen / abs(entry.theoretical)
        off = np.where(np.arange(4) == entry.x[0], factor, 1.0)
        record = check(tested, value=value, ops=with_rule(op, scaled(op, off)), **way)
        assert [e.x for e in record.worst if e.status == "fail"] == [entry.x]
