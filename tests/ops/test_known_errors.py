"""Gradients that other implementations are known to get wrong: ours are right, and theirs would be found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.ops.conv import conv_vjp
from tests.checking.small import model, with_rule
from tests.ops.case import arr

Rule = Callable[..., Any]
Ops = dict[tuple[str, str], gc.Op]


def status(tested: gc.Model, x: str, ops: Ops | None = None, values: dict[str, Any] | None = None) -> str:
    """The outcome of a check of y by x at given values."""
    more: dict[str, Any] = {} if values is None else {"x_init_value": values}
    if ops is not None:
        more["ops"] = ops
    [record] = gc.check(tested, x, tested.graph.outputs[0], **more).checks
    return record.status


def composed_otherwise(op: str, **changed: Any) -> Ops:
    """The operator table with the gradient of a composed operator taken at other settings."""
    record = gc.OPS["", op]

    def rule(ct: Var, ans: Var, *primals: Var | None, **metadata: Any) -> list[Var | None]:
        y = record.forward(*primals, **{**metadata, **changed})[0]
        found = gradients(y.tape, {y.name: ct}, [x.name for x in primals if x is not None])
        return [None if x is None else found.pop(0) for x in primals]

    return {**gc.OPS, ("", op): dataclasses.replace(record, vjp=lambda ct, *rest, **m: rule(first(ct), *rest, **m))}


def without(op: str, *dropped: int) -> Ops:
    """The operator table with a rule that gives some operands nothing."""
    record = gc.OPS["", op]

    def rule(ct: Var, ans: Var, *primals: Var, **metadata: Any) -> list[Var | None]:
        right: Any = record.vjp
        if right is None:
            right = composed_otherwise(op)["", op].vjp
        cts = right(ct, ans, *primals, **metadata)
        return [None if i in dropped else each for i, each in enumerate(cts)]

    return with_rule(op, rule)


def first(ct: Any) -> Any:
    """The cotangent of the first output, of one or of several."""
    return ct[0] if isinstance(ct, tuple) else ct


def gru(linear_before_reset: int, *, bias: bool) -> gc.Model:
    """A GRU of two steps, whose weights are inputs."""
    attrs = {"hidden_size": 2, "linear_before_reset": linear_before_reset}
    shapes = {"x": (2, 2, 3), "W": (1, 6, 3), "R": (1, 6, 2), "h": (1, 2, 2)}
    node = Node("GRU", ("x", "W", "R", "b" if bias else "", "", "h"), ("y",), attrs)
    types = {name: TensorType(np.dtype(np.float64), shape) for name, shape in shapes.items()}
    graph = Graph(tuple(shapes), ("y",), (node,), {"b": arr(1, 12)} if bias else {}, types)
    return gc.Model(Source(graph, "gru", nodes=1), gc.OPS)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("x", ["x", "W", "R", "h"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_gru_applies_its_reset_gate_where_it_is_told_to_with_and_without_bias(x: str, bias: bool) -> None:
    for setting in (0, 1):
        tested = gru(setting, bias=bias)
        assert status(tested, x) == "pass"
        assert status(tested, x, composed_otherwise("GRU", linear_before_reset=1 - setting)) == "fail"


@pytest.mark.parametrize("zeros", [[1], [0, 3], []], ids=["one", "two", "none"])
def test_a_product_has_a_gradient_where_factors_are_zero(zeros: list[int]) -> None:
    value = np.array([1.5, -2.0, 0.5, 3.0])
    value[zeros] = 0.0
    tested = model(("ReduceProd", "x", "y", {"keepdims": 0}))
    by_quotient = with_rule("ReduceProd", lambda ct, y, x, **_: (ct * y / x,))
    by_guarded_quotient = with_rule("ReduceProd", lambda ct, y, x, **_: (ct * y / sym.where(sym.equal(x, 0), 1, x),))
    assert status(tested, "x", None, {"x": value}) == "pass"
    assert status(tested, "x", by_quotient, {"x": value}) == ("fail" if zeros else "pass")
    assert status(tested, "x", by_guarded_quotient, {"x": value}) == ("fail" if len(zeros) == 1 else "pass")


def test_both_values_of_one_hot_get_their_share() -> None:
    tested = model(
        ("OneHot", "indices depth x", "codes", {"axis": 0}),
        ("Sin", "codes", "y"),
        x=(2,),
        constants={"indices": np.array([2, 0, -1, 5]), "depth": np.array(3)},
    )
    right: Any = gc.OPS["", "OneHot"].vjp
    turned = with_rule("OneHot", lambda *args, **m: (None, sym.slice(right(*args, **m)[1], (1,), (-3,), (0,), (-1,))))
    assert status(tested, "x") == "pass"
    assert status(tested, "x", without("OneHot", 1)) == "fail"
    assert status(tested, "x", turned) == "fail"


@pytest.mark.parametrize("x", ["scale", "b", "mean", "var"])
def test_all_statistics_of_a_batch_normalization_have_gradients(x: str) -> None:
    inputs = {"scale": (3,), "b": (3,), "mean": (3,), "var": (3,)}
    tested = model(("BatchNormalization", "x scale b mean var", "n"), ("Sin", "n", "y"), x=(2, 3, 4), inputs=inputs)
    values = {"x": arr(2, 3, 4), "var": arr(3, low=0.5, high=2.0), "mean": arr(3)}
    assert status(tested, x, values=values) == "pass"
    assert status(tested, x, without("BatchNormalization", 1 + list(inputs).index(x)), values=values) == "fail"


def test_a_batch_normalization_in_training_is_not_one_by_fixed_statistics() -> None:
    inputs = {"scale": (3,), "b": (3,), "mean": (3,), "var": (3,)}
    node = ("BatchNormalization", "x scale b mean var", "n", {"training_mode": 1})
    tested = model(node, ("Sin", "n", "y"), x=(2, 3, 4), inputs=inputs)
    values = {"var": arr(3, low=0.5, high=2.0)}
    assert status(tested, "x", values=values) == "pass"
    assert status(tested, "x", composed_otherwise("BatchNormalization", training_mode=0), values=values) == "fail"


@pytest.mark.parametrize("x", ["x", "w"])
@pytest.mark.parametrize("pads", [(0, 1, 2, 0), (2, 0, 0, 1), (1, 0, 0, 0)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
def test_a_convolution_pads_each_end_by_its_own_width(x: str, pads: tuple[int, ...], strides: tuple[int, ...]) -> None:
    attrs = {"pads": pads, "strides": strides}
    tested = model(("Conv", "x w", "c", attrs), ("Sin", "c", "y"), x=(1, 2, 5, 4), inputs={"w": (2, 2, 3, 2)})
    swapped = with_rule("Conv", lambda *args, pads, **m: conv_vjp(*args, pads=(*pads[2:], *pads[:2]), **m))
    assert status(tested, x) == "pass"
    assert status(tested, x, swapped) == "fail"


def test_a_convolution_with_automatic_padding_puts_the_odd_entry_where_the_standard_has_it() -> None:
    for mode in ("SAME_UPPER", "SAME_LOWER"):
        tested = model(
            ("Conv", "x w", "c", {"auto_pad": mode}), ("Sin", "c", "y"), x=(1, 1, 5), inputs={"w": (1, 1, 2)}
        )
        swapped = with_rule("Conv", lambda *args, pads, **m: conv_vjp(*args, pads=pads[::-1], **m))
        assert status(tested, "w") == "pass"
        assert status(tested, "w", swapped) == "fail"


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose"])
def test_a_bias_whose_tangents_are_all_zero_is_a_stack_of_them(op: str) -> None:
    nodes = Node("Sub", ("b", "b"), ("none",)), Node(op, ("image", "filters", "none"), ("y",))
    types = {"b": TensorType(np.dtype(np.float64), (2,))}
    constants = {"image": arr(1, 2, 3), "filters": arr(2, 2, 2)}
    tested = gc.Model(Source(Graph(("b",), ("y",), nodes, constants, types), op, nodes=2), gc.OPS)
    assert status(tested, "b") == "pass"


@pytest.mark.parametrize("at", [0.0, 2.0, -0.5])
@pytest.mark.parametrize("power", [0, 1, 2, 3])
def test_a_power_with_a_whole_exponent_has_derivatives_of_every_order(power: int, at: float) -> None:
    """The k-th is p (p - 1) ... (p - k + 1) x^(p - k), a number also where the last factors are 0 times infinity."""
    tested = model(("Pow", "x p", "y"), x=(1,), inputs={"p": (1,)})
    derivative: Any = tested["y"]
    feeds = {"x": np.array([at]), "p": np.array([float(power)])}
    for order in range(1, 5):
        [derivative] = gc.gradients(derivative, tested["x"])
        [found] = gc.run(derivative, feeds)
        whole = float(np.prod([power - i for i in range(order)]))
        assert found.tolist() == [whole and whole * at ** (power - order)]


def test_the_slope_of_a_power_moves_with_its_exponent_where_that_is_0() -> None:
    """d/dp d/dx of x^p is 1/x at p = 0, and d/dx d/dp is the same."""
    tested = model(("Pow", "x p", "y"), x=(2,), inputs={"p": (2,)})
    x, p = tested["x"], tested["p"]
    [by_x, by_p] = gc.gradients(tested["y"], [x, p])
    there, back = gc.run(
        [*gc.gradients(by_x, p), *gc.gradients(by_p, x)], {"x": np.array([2.0, 0.25]), "p": np.zeros(2)}
    )
    assert there.tolist() == back.tolist() == [0.5, 4.0]
