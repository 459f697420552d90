"""ONNX operators on complex numbers: each has the gradient of its differences, or says that it has no meaning there.

Real and imaginary parts are two reals, paired by Re(ct dy).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.ops import OPS
from tests.ops.case import Case
from tests.ops.cases import CASES
from tests.rounding import FUNCTION, assert_rounded

# Operators that compare values, round them or tell their sign.
ORDERED = {
    "ArgMax", "ArgMin", "Ceil", "Celu", "Clip", "Elu", "Floor", "Greater", "GreaterOrEqual", "Hardmax", "LeakyRelu",
    "Less", "LessOrEqual", "LpPool", "Max", "MaxPool", "MelWeightMatrix", "Min", "Mod", "Multinomial", "PRelu",
    "Range", "ReduceMax", "ReduceMin", "Relu", "Round", "Selu", "Shrink", "Sign", "TopK",
}  # fmt: skip
# a mask, draws and scales are compared as real numbers
BY_REAL_PARTS = {"Attention", "Dropout", "QLinearConv", "QLinearMatMul"}
H = 1e-5


def complex_feeds(case: Case) -> dict[str, np.ndarray[Any, Any]]:
    """The case's inputs, operands in float64 with imaginary parts."""
    rng = np.random.default_rng(0)
    names = {*case.floats(), *(name for name, x in case.feeds.items() if not x.size)}
    return {
        name: x + 1j * rng.uniform(-0.4, 0.4, x.shape) if name in names and x.dtype == np.float64 else x
        for name, x in case.feeds.items()
    }


def takes_complex(case: Case) -> bool:
    """A case of an ONNX operator with finite operands in float64 that are not made into text."""
    doubles = [name for name in case.floats() if case.feeds[name].dtype == np.float64]
    finite = all(np.isfinite(case.feeds[name]).all() for name in doubles)
    return not case.domain and bool(doubles) and finite and case.label != "there and back"


def meaningless(case: Case) -> bool:
    """The case compares floating-point numbers somewhere."""
    tape = case.tape()
    compared = (n for step in tape.steps if step.node.op in ORDERED for n in step.operands if n)
    return case.op not in BY_REAL_PARTS and any(tape.values[n].dtype.kind == "f" for n in compared)


@pytest.mark.one_in(10, of="op")
@pytest.mark.parametrize("case", [c for c in CASES if takes_complex(c)], ids=lambda c: c.id)
def test_complex_operands_have_the_gradient_of_differences(case: Case) -> None:
    feeds = complex_feeds(case)
    with pytest.raises(UnsupportedError, match="no meaning for complex") if meaningless(case) else nullcontext():
        tape = trace(case.graph, feeds, ops=OPS)
        xs = [name for name, x in feeds.items() if x.dtype.kind == "c" and x.size]
        for y in [tape.named[name].name for name in case.outputs]:
            if tape.values[y].dtype.kind in "fc" and tape.values[y].size:
                check(tape, y, xs)


def check(tape: Tape, y: str, xs: list[str]) -> None:
    """Re(ct dy) is Re(ct_x dx) along a random direction."""
    rng = np.random.default_rng(1)
    along = {x: rng.normal(size=(2, *tape.values[x].shape)) for x in xs}
    v = {x: parts[0] + 1j * parts[1] for x, parts in along.items()}
    ct = rng.normal(size=tape.values[y].shape)
    ct = ct + 1j * rng.normal(size=ct.shape) if tape.values[y].dtype.kind == "c" else ct
    found = gradients(tape, {y: tape.hold(tape.fresh("seed"), ct)}, xs)
    pairs = zip(xs, found, strict=True)
    terms = [np.real(np.sum(each.value * v[x])) for x, each in pairs if each is not None]
    numerical = np.real(np.sum(ct * derivative(tape, y, v)))
    scale = max([1.0, abs(numerical), *map(abs, terms)])
    assert abs(sum(terms) - numerical) <= 1e-7 * scale


def derivative(tape: Tape, y: str, v: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """The change of y along v by a five-point rule."""
    program = Program(tape, list(v), [y])
    offsets = np.array([1, -1, 2, -2]) * H
    stacks = {x: np.stack([tape.values[x] + h * d for h in offsets]) for x, d in v.items()}
    ahead, behind, far, back = program.run(stacks).outputs[0]
    return np.asarray((8 * (ahead - behind) - (far - back)) / (12 * H))


def test_operators_without_a_meaning_are_those_that_compare() -> None:
    assert {op.name for op in OPS.values() if op.ordered and not op.domain} == ORDERED


def test_the_norm_of_complex_numbers_is_that_of_their_magnitudes() -> None:
    z = np.array([[3 + 4j, 0], [1j, 2 - 2j]])
    for op, expected in [("ReduceL1", [[5.0], [1 + 8**0.5]]), ("ReduceL2", [[5.0], [3.0]])]:
        tape = Tape(OPS)
        y = tape.apply(op, tape.hold("z", z), np.array([1]))
        np.testing.assert_allclose(y.value, expected)
        assert y.dtype == np.float64


def test_softplus_keeps_the_real_part_of_a_small_complex_result() -> None:
    z = np.array([-40 + 1j, -300 - 2j])
    tape = Tape(OPS)
    y = tape.apply("Softplus", tape.hold("z", z)).value
    assert_rounded(y, np.exp(z), roundings=4 * FUNCTION, of=np.abs(np.exp(z)))


def test_erf_has_all_digits_everywhere_in_the_plane() -> None:
    rng = np.random.default_rng(0)
    z = rng.uniform(-3, 3, 200) + 1j * rng.uniform(-3, 3, 200)
    tape = Tape(OPS)
    found = tape.apply("Erf", tape.hold("z", z)).value
    expected = [erf_by_quadrature(point) for point in z]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def erf_by_quadrature(z: complex) -> complex:
    """The integral from 0 to z along a straight line."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    t = z * (nodes + 1) / 2
    return complex(np.sum(weights * np.exp(-t * t)) * z / np.sqrt(np.pi))
