"""Kernels that others hand in: no rule that is right fails, none that is wrong passes, whatever the kernel does inside."""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.errors import ModelError
from gradcheck_cli.op.batching import elementwise, trailing, watched
from gradcheck_cli.results.record import Check
from tests.checking.kernels import KERNELS, Kernel, narrow, wrong
from tests.checking.small import model, scaled, with_rule

SHORT = ("float32", "float16", "rounding to", "beside a large")


@pytest.fixture(autouse=True)
def discarded() -> Any:
    """Kernels of others may drop imaginary parts, with a warning of NumPy's that is none of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        yield


def checked(kernel: Kernel, rule: Any = None, **more: Any) -> Check:
    """The record of y by x."""
    table = kernel.table(rule)
    [record] = gc.check(kernel.model(), "x", "y", x_init_value={"x": kernel.x}, ops=table, **more).checks
    return record


@pytest.mark.one_in(24)
@pytest.mark.parametrize("mode", ["full", "nodes"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name.replace(" ", "-"))
def test_right_rules_do_not_fail_and_wrong_ones_do_not_pass(kernel: Kernel, mode: Any):
    right = checked(kernel, mode=mode)
    assert right.status in ("pass", "inconclusive"), right.notes
    exact = not any(word in kernel.name for word in SHORT)
    assert not exact or right.status == "pass", right.notes
    found = {name: checked(kernel, rule, mode=mode) for name, rule in wrong(kernel)}
    assert "pass" not in {record.status for record in found.values()}, found
    for name, record in found.items():
        assert not exact or record.status == "fail", name
        if record.status == "fail":
            assert record.suspect is not None, name
            assert record.suspect.node == 1, name


def test_there_are_sixty_of_them():
    assert len({kernel.name for kernel in KERNELS}) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["directional", "sampled"])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name.replace(" ", "-"))
def test_the_same_for_parts_of_a_jacobian(kernel: Kernel, mode: Any):
    assert checked(kernel, mode=mode).status != "fail"
    assert "pass" not in {checked(kernel, rule, mode=mode).status for _, rule in wrong(kernel)}


SAID = {
    "np.abs": "node 1 K 'k' is not taken as analytic: its kernel gives other slopes on complex numbers than on real ones",
    "np.cbrt": "node 1 K 'k' is not taken as analytic: its kernel does not take complex numbers",
    "beside a large number": "node 1 K 'k' is not taken as analytic: differences see nothing of its slopes",
    "sin in float32": "node 1 K 'k' computes with fewer digits than float64: its result is accurate to",
    "a square, declared linear": "node 1 K 'k' is not linear as its operator says",
    "running sums, declared elementwise": "node 1 K 'k' may read all of its operands",
    "a norm, declared trailing": "node 1 K 'k' runs probe by probe",
    "neighbours, declared to read one place": "node 1 K 'k' may read all of its operands",
}


@pytest.mark.parametrize("name", SAID)
def test_a_note_says_what_of_a_declaration_does_not_hold(name: str):
    [kernel] = [kernel for kernel in KERNELS if kernel.name == name]
    assert any(note.startswith(SAID[name]) for note in checked(kernel).notes)


def test_a_kernel_that_is_as_declared_keeps_the_complex_step_and_no_note():
    right = lambda ct, y, x: (ct * sym.cos(x),)  # noqa: E731
    table = {**gc.OPS, ("acme", "Sine"): gc.Op("Sine", np.sin, right, elementwise, domain="acme")}
    [record] = gc.check(model(("Sine", "x", "y", {}, "acme")), "x", "y", ops=table).checks
    assert (record.status, record.method, record.notes) == ("pass", "complex-step", ())


def test_noise_of_a_kernel_goes_on_through_the_nodes_behind_it():
    """Exp makes the absolute noise of its operand a relative one; a rule that is right does not fail there."""
    table = {**gc.OPS, ("acme", "K"): gc.Op("K", narrow(np.sin), lambda ct, y, x: (ct * sym.cos(x),), domain="acme")}
    tested = model(("Mul", "x k", "h"), ("K", "h", "s", {}, "acme"), ("Mul", "s w", "t"), ("Exp", "t", "y"),
                   constants={"k": 1.5, "w": 20.0})  # fmt: skip
    for mode in ("full", "nodes", "directional"):
        [record] = gc.check(tested, "x", "y", ops=table, mode=mode).checks
        assert record.status == "inconclusive", (mode, record.notes)


def test_noise_of_a_kernel_at_many_nodes_is_as_small_as_its_results():
    """Some of the nodes are tried, the others are taken to be like them."""
    table = {**gc.OPS, ("acme", "K"): gc.Op("K", narrow(np.sin), lambda ct, y, x: (ct * sym.cos(x),), domain="acme")}
    chain = [("K", f"h{i}", f"h{i + 1}", {}, "acme") for i in range(9)]
    noise = []
    for k in (1.0, 1e-4):
        tested = model(("Mul", "x k", "h0"), *chain, ("Mul", "h9 w", "y"), x=(1,), constants={"k": k, "w": 1 / k})
        [record] = gc.check(tested, "x", "y", ops=table).checks
        noise.append(record.noise)
    assert noise[1] < 4 * noise[0]


def hidden(factor: float, mode: Any) -> str:
    """The status of sin(x) + 1e17 by differences, with the rule of Sin off by a factor."""
    tested = model(("Sin", "x", "s"), ("Add", "s far", "y"), constants={"far": 1e17})
    table = with_rule("Sin", scaled("Sin", factor))
    [record] = gc.check(tested, "x", "y", ops=table, mode=mode, method="richardson").checks
    return record.status


@pytest.mark.parametrize("factor", [1.0, 2.0, -1.0])
@pytest.mark.parametrize("mode", ["full", "directional", "sampled"])
def test_what_rounding_hides_altogether_is_no_pass_by_differences(mode: Any, factor: float):
    assert hidden(factor, mode) == "inconclusive"


def test_nodes_on_their_own_see_what_rounding_hides_at_the_end():
    assert [hidden(factor, "nodes") for factor in (1.0, -1.0)] == ["pass", "fail"]


# Kernels and rules with mistakes of their own


def raising(error: BaseException) -> Any:
    def function(*operands: Any, **metadata: Any) -> Any:
        raise error

    return function


def zeroed(x: Any) -> Any:
    x[...] = 0
    return np.tanh(x)


def right(ct: Any, y: Any, x: Any) -> Any:
    return (ct * (1.0 - y * y),)


COMPUTED = "node 0 Tanh 'y' cannot be computed from [4] float64: "
RULE = "node 0 Tanh 'y': the rule of Tanh "
NO_FLOATS = (
    "its kernel gives {} from float64, of which no rule gives a derivative; let it give floating-point numbers, "
    "or say integral=(0,)"
)
MISTAKES = [
    (raising(KeyError("saved")), right, COMPUTED + "KeyError: 'saved'"),
    (raising(AssertionError()), right, COMPUTED + "AssertionError"),
    (raising(SystemExit(0)), right, COMPUTED + "SystemExit: 0"),
    (lambda x: x.tan(), right, COMPUTED + "AttributeError: 'numpy.ndarray' object has no attribute 'tan'"),
    (zeroed, right, COMPUTED + "its kernel writes into its operand 0, which others read; let it work on a copy"),
    (lambda x: np.tanh(x, out=x), right, COMPUTED + "its kernel writes into its operand 0, which others read; let it "
     "work on a copy"),
    (lambda x: None, right, COMPUTED + "its kernel gives a value of type NoneType, no array of numbers"),
    (lambda x: {"y": x}, right, COMPUTED + "its kernel gives a value of type dict, no array of numbers"),
    (lambda x: (each for each in x), right, COMPUTED + "its kernel gives a value of type generator, no array of numbers"),
    (lambda x: np.array([None] * 4), right, COMPUTED + "its kernel gives an array of object, no array of numbers"),
    (lambda x: (100 * np.tanh(x)).astype(np.int64), right, COMPUTED + NO_FLOATS.format("int64")),
    (lambda x: x > 0, right, COMPUTED + NO_FLOATS.format("bool")),
    (lambda x: (np.tanh(x),), right, COMPUTED + "its kernel gives a tuple of 1, where its operator, many=False, has one "
     "array"),
    (np.tanh, raising(KeyError("saved")), RULE + "raises KeyError: 'saved'"),
    (np.tanh, raising(SystemExit(0)), RULE + "raises SystemExit: 0"),
    (np.tanh, lambda ct, x: (ct,), RULE + "raises TypeError: <lambda>() takes 2 positional arguments but 3 were given"),
    (np.tanh, lambda ct, y, x: ct, RULE + "gives one tensor, no tuple of cotangents"),
    (np.tanh, lambda ct, y, x: None, RULE + "gives a value of type NoneType, no tuple of cotangents"),
    (np.tanh, lambda ct, y, x: (ct, ct), RULE + "gives 2 cotangents for 1 operand"),
    (np.tanh, lambda ct, y, x: ("dx",), RULE + "gives a value of type str for operand 0, where a cotangent is a tensor "
     "(Var) or None"),
    (np.tanh, lambda ct, y, x: (np.ones(4),), RULE + "gives a value of type ndarray for operand 0, where a cotangent is "
     "a tensor (Var) or None"),
]  # fmt: skip


@pytest.mark.parametrize("kernel, rule, message", MISTAKES, ids=range(len(MISTAKES)))
def test_a_kernel_or_a_rule_with_a_mistake_is_named_with_its_node(kernel: Any, rule: Any, message: str):
    ops = {**gc.OPS, ("", "Tanh"): gc.Op("Tanh", kernel, rule)}
    with pytest.raises(ModelError) as caught:
        gc.check(model(("Tanh", "x", "y")), "x", "y", ops=ops)
    assert (str(caught.value), caught.value.code, caught.value.exit_code) == (message, "GC401", 4)


class Outside(Exception):
    """An exception that gradcheck does not know."""


@pytest.mark.parametrize(
    "error", [ValueError("x > 1"), AssertionError("x > 1"), Outside("x > 1"), SystemExit(0)], ids=repr
)
@pytest.mark.parametrize("mode", ["full", "nodes"])
@pytest.mark.parametrize("factor, status", [(1.0, "pass"), (2.0, "fail")])
def test_a_kernel_may_refuse_values_beyond_its_domain(error: BaseException, mode: Any, factor: float, status: str):
    def bounded(x: Any) -> Any:
        if (x.real > 1).any():
            raise error
        return x * x

    ops = {**gc.OPS, ("", "Tanh"): gc.Op("Tanh", bounded, lambda ct, y, x: (ct * (2.0 * factor) * x,))}
    at = {"x": np.array([0.1, 0.4, 0.7, 1.0])}  # the last entry lies on the edge
    [record] = gc.check(model(("Tanh", "x", "y")), "x", "y", ops=ops, x_init_value=at, mode=mode).checks
    assert record.status == status, record.message


@pytest.mark.parametrize("error", [RuntimeError("at times"), Outside("at times"), SystemExit(0)], ids=repr)
def test_a_kernel_that_raises_at_times_is_named_with_its_node_or_does_no_harm(error: BaseException):
    def unsteady(last: int) -> Any:
        calls = itertools.count(1)

        def kernel(x: Any) -> Any:
            if next(calls) == last:
                raise error
            return np.tanh(x)

        return kernel

    def said(last: int) -> str:
        ops = {**gc.OPS, ("", "Tanh"): gc.Op("Tanh", unsteady(last), right)}
        try:
            return gc.check(model(("Tanh", "x", "y")), "x", "y", ops=ops).checks[0].status
        except ModelError as raised:
            return f"{raised.code} {str(raised).partition(' cannot')[0]}"

    assert {said(last) for last in range(1, 120, 3)} == {"GC401 node 0 Tanh 'y'", "pass"}


@pytest.mark.parametrize("both, status", [(0.0, "pass"), (1.0, "fail")])
def test_a_kernel_without_complex_numbers_may_be_tied_for_several_x(both: float, status: str):
    """Its operands are equal: one of them gets the gradient, or `both`."""

    def rule(ct: Any, y: Any, a: Any, b: Any) -> Any:
        tied = sym.equal(a, b)
        return ct * sym.where(a >= b, 1.0, 0.0), ct * sym.where(tied, both, sym.where(a >= b, 0.0, 1.0))

    op = gc.Op("Max", lambda a, b: np.maximum(a.real, b.real), rule, branch=lambda a, b: np.sign(a.real - b.real))
    tested = model(("Max", "a b", "h"), ("Exp", "h", "y"), x=(1,), inputs={"a": (3,), "b": (3,)})
    values = {"a": np.array([0.1, 0.5, -0.3]), "b": np.array([0.1, 0.2, -0.3])}
    checks = gc.check(tested, ["a", "b"], "y", ops={**gc.OPS, ("", "Max"): op}, x_init_value=values).checks
    assert [record.status for record in checks] == [status] * 2, [record.notes for record in checks]


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_a_kernel_and_its_rule_read_the_axis_that_the_model_says(axis: int):
    """Also one that is none of the operand's: a stack has one more."""

    def stacked(x: Any, *, axis: int) -> Any:
        told.add(axis)
        return np.stack([x, 3 * x], axis)

    def summed(ct: Any, y: Any, x: Any, *, axis: int) -> Any:
        told.add(axis)
        factors = np.moveaxis(np.reshape([1.0, 3.0], (2, 1, 1)), 0, axis)
        return (sym.reshape(sym.sum(ct * factors, (axis,)), (3, 4)),)

    told: set[int] = set()
    ops = {**gc.OPS, ("acme", "Stack"): gc.Op("Stack", stacked, summed, domain="acme")}
    tested = model(("Stack", "x", "h", {"axis": axis}, "acme"), ("Exp", "h", "y"), x=(3, 4))
    [record] = gc.check(tested, "x", "y", ops=ops).checks
    assert (record.status, told) == ("pass", {axis}), record.message


def test_a_kernel_that_takes_leading_axes_reads_axes_from_the_end():
    def summed(x: Any, *, axes: tuple[int, ...]) -> Any:
        told.add(axes)
        return np.sum(x, axes, keepdims=True)

    def spread(ct: Any, y: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
        return (ct * sym.ones_like(x),)

    told: set[tuple[int, ...]] = set()
    sums = gc.Op("Sums", summed, spread, domain="acme", batching=trailing)
    tested = model(("Sums", "x", "h", {"axes": (0, 2)}, "acme"), ("Exp", "h", "y"), x=(2, 3, 4))
    [record] = gc.check(tested, "x", "y", ops={**gc.OPS, ("acme", "Sums"): sums}).checks
    assert (record.status, told) == ("pass", {(-3, -1)}), record.message


def swapped(x: Any) -> Any:
    return x.astype(x.dtype.newbyteorder("S"))


def lengthened(x: Any) -> Any:
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


@pytest.mark.parametrize("stored", [swapped, lengthened])
@pytest.mark.parametrize("mode", ["full", "nodes", "directional"])
@pytest.mark.parametrize("factor, status", [(1.0, "pass"), (1.5, "fail")])
def test_a_kernel_may_give_numbers_that_onnx_has_not(stored: Any, mode: Any, factor: float, status: str):
    """Numbers in the other order of bytes, or longer than float64."""
    op = gc.Op("Tanh", lambda x: stored(x * x), lambda ct, y, x: (ct * (2.0 * factor) * x,))
    tested = model(("Tanh", "x", "y"), ("Exp", "y", "z"))
    [record] = gc.check(tested, "x", "z", ops={**gc.OPS, ("", "Tanh"): op}, mode=mode).checks
    assert record.status == status, record.message


@pytest.mark.parametrize("mode", ["full", "nodes", "directional"])
@pytest.mark.parametrize("factor, status", [(1.0, "pass"), (1.5, "fail")])
def test_a_kernel_may_give_its_results_in_one_buffer_of_its_own(mode: Any, factor: float, status: str):
    buffers: dict[Any, Any] = {}

    def squares(x: Any) -> Any:
        return np.multiply(x, x, out=buffers.setdefault(x.dtype, np.empty_like(x)))

    op = gc.Op("Tanh", squares, lambda ct, y, x: (ct * (2.0 * factor) * x,))
    tested = model(("Tanh", "x", "y"), ("Tanh", "y", "z"), ("Add", "y z", "s"))
    [record] = gc.check(tested, "x", "s", ops={**gc.OPS, ("", "Tanh"): op}, mode=mode).checks
    assert record.status == status, record.message


@pytest.mark.parametrize("results, said", [
    (lambda x: None, "a value of type NoneType, where its operator, many=True, has a tuple of arrays"),
    (lambda x: np.array([x, x]), "an array of float64, where its operator, many=True, has a tuple of arrays"),
    (lambda x: (x, None), "a value of type NoneType, no array of numbers"),
])  # fmt: skip
def test_a_kernel_of_many_results_gives_a_tuple_of_arrays(results: Any, said: str):
    ops = {**gc.OPS, ("", "Tanh"): gc.Op("Tanh", results, right, many=True)}
    with pytest.raises(ModelError, match=re.escape(f"{COMPUTED}its kernel gives {said}")):
        gc.check(model(("Tanh", "x", "y")), "x", "y", ops=ops)


@pytest.mark.parametrize("several", [tuple, list])
def test_a_kernel_may_give_many_results_as_a_tuple_or_a_list(several: Callable[[list[Any]], Any]):
    assert len(watched(lambda x: several([x, 2 * x]), many=True)(np.ones(3))) == 2


@pytest.mark.parametrize("said", [{"vjp": gc.OPS["", "Greater"].vjp}, {"vjp": right, "integral": (0,)}])
def test_a_kernel_may_give_integers_where_its_operator_says_so(said: Any):
    ops = {**gc.OPS, ("", "Tanh"): gc.Op("Tanh", lambda x: x > 0, **said)}
    gc.check(model(("Tanh", "x", "y"), ("Where", "y x x", "z")), "x", "z", ops=ops)


def sine_and_cosine(ct: Any, y: Any, x: Any) -> Any:
    return (ct[0] * y[1] - ct[1] * y[0],)


def added(ct: Any, y: Any, x: Any) -> Any:
    return (ct[0] * y[1] + ct[1] * y[0],)


@pytest.mark.parametrize("rule, status", [(sine_and_cosine, "pass"), (added, "fail")])
@pytest.mark.parametrize("y", ["y", "z", "both"])
def test_a_rule_gets_zeros_for_the_results_that_y_does_not_depend_on(y: str, rule: Any, status: str):
    ops = {**gc.OPS, ("", "Tanh"): gc.Op("Tanh", lambda x: (np.sin(x), np.cos(x)), rule, many=True)}
    tested = model(("Tanh", "x", "s c"), ("Exp", "s", "y"), ("Exp", "c", "z"), ("Add", "y z", "both"))
    [record] = gc.check(tested, "x", y, ops=ops).checks
    assert record.status == ("pass" if y == "y" else status)


@pytest.mark.parametrize("rule, status", [(sine_and_cosine, "pass"), (added, "fail")])
@pytest.mark.parametrize("results", ["s", "s _", "_ c"])
def test_a_rule_gets_the_results_that_the_node_leaves_out(results: str, rule: Any, status: str):
    ops = {**gc.OPS, ("", "Tanh"): gc.Op("Tanh", lambda x: (np.sin(x), np.cos(x)), rule, many=True)}
    tested = model(("Tanh", "x", results), ("Exp", results.strip(" _"), "y"))
    [record] = gc.check(tested, "x", "y", ops=ops).checks
    assert record.status == ("pass" if "s" in results else status)


def test_an_interrupt_of_a_kernel_or_a_rule_stays_one():
    for kernel, rule in ((raising(KeyboardInterrupt()), right), (np.tanh, raising(KeyboardInterrupt()))):
        ops = {**gc.OPS, ("", "Tanh"): gc.Op("Tanh", kernel, rule)}
        with pytest.raises(KeyboardInterrupt):
            gc.check(model(("Tanh", "x", "y")), "x", "y", ops=ops)


def test_a_bug_of_a_kernel_or_a_rule_of_gradcheck_s_own_stays_one():
    ours = raising(AttributeError("no attribute"))
    ours.__module__ = "gradcheck_cli.ops.unary"
    for kernel, rule in ((ours, right), (np.tanh, ours), (np.tanh, functools.partial(ours))):
        ops = {**gc.OPS, ("", "Tanh"): gc.Op("Tanh", kernel, rule)}
        with pytest.raises(AttributeError, match="no attribute"):
            gc.check(model(("Tanh", "x", "y")), "x", "y", ops=ops)
