"""Jacobians of complex operators: real and imaginary parts as two reals, by the pairing Re(ct dy)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.engine.program import Program
from gradcheck_cli.ops import OPS
from tests.rounding import assert_rounded

Function = Callable[[Var], Var]
rng = np.random.default_rng(0)
Z = rng.normal(size=(2, 3)) + 1j * rng.normal(size=(2, 3))
X = rng.normal(size=(2, 3))

H = 1e-6
GRID = rng.uniform(-1.2, 1.2, (1, 2, 2, 2))


def own(op: str, **attrs: object) -> Function:
    """An operator of the domain `gradcheck`."""
    return lambda x: x.tape.emit(op, (x,), attrs, domain="gradcheck")[0]


def plain(op: str) -> Function:
    """An operator of ONNX."""
    return lambda x: x.tape.apply(op, x)


FUNCTIONS: dict[str, Function] = {
    "real": own("Real"),
    "imag": own("Imag"),
    "conj": own("Conj"),
    "angle": own("Angle"),
    "fft": own("FFT"),
    "fft over rows": own("FFT", axis=0),
    "fft padded": own("FFT", n=5),
    "fft cut": own("FFT", n=2),
    "ifft": own("IFFT"),
    "ifft padded": own("IFFT", n=4),
    "abs": plain("Abs"),
    "exp": plain("Exp"),
    "reciprocal": plain("Reciprocal"),
    "tanh": plain("Tanh"),
    "|z|^2": lambda z: z * own("Conj")(z),
    "conj(z) / z": lambda z: own("Conj")(z) / z,
    "z (2 - 3i)": lambda z: z * (2 - 3j),
    "samples": lambda z: z.tape.apply("GridSample", z.tape.apply("Reshape", z, np.array([1, 1, 2, 3])), GRID),
    "determinants": lambda z: z.tape.apply("Det", z.tape.apply("Gather", z, np.array([[0, 1], [1, 2]]), axis=1)),
    "complex of its parts, swapped": lambda z: z.tape.emit(
        "Complex", (own("Imag")(z), own("Real")(z)), {}, domain="gradcheck"
    )[0],
}

every_function = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())


def parts(values: np.ndarray) -> np.ndarray:
    """Rows of real parts, then of imaginary parts where there are such."""
    flat = values.reshape(len(values), -1)
    return np.hstack([flat.real, flat.imag]) if np.iscomplexobj(values) else flat


def directions(value: np.ndarray) -> np.ndarray:
    """A tangent for every part of every entry."""
    unit = np.eye(value.size).reshape(value.size, *value.shape)
    return np.concatenate([unit, 1j * unit]) if np.iscomplexobj(value) else unit


def by_differences(function: Function, x: np.ndarray) -> np.ndarray:
    """The Jacobian with a row for each part of x and a column for each part of y."""
    tape = Tape(OPS)
    y = function(tape.hold("x", x))
    program = Program(tape, ["x"], [y.name])
    steps = H * directions(x)
    ahead, behind = (program.run({"x": x + s * steps}).outputs[0] for s in (1, -1))
    return (parts(ahead) - parts(behind)) / (2 * H)


def by_rule(function: Function, x: np.ndarray) -> np.ndarray:
    """The same by the backward pass: a seed of 1 gives the gradient of Re y, a seed of -i that of Im y."""
    tape = Tape(OPS)
    y = function(tape.hold("x", x))
    seed = tape.hold("seed", np.ones(y.shape, y.dtype))
    (ct,) = gradients(tape, {y.name: seed}, ["x"])
    seeds = np.conj(directions(y.value))
    if ct is None:
        return np.zeros((len(directions(x)), len(seeds)))
    (columns,) = Program(tape, ["seed"], [ct.name]).run({"seed": seeds}).outputs
    flat = columns.reshape(len(seeds), -1)
    return np.hstack([flat.real, -flat.imag]).T if np.iscomplexobj(x) else flat.real.T


@every_function
@pytest.mark.parametrize("x", [Z, X], ids=["complex", "real"])
def test_the_jacobian_by_parts_is_that_of_differences(function: Function, x: np.ndarray) -> None:
    np.testing.assert_allclose(by_rule(function, x), by_differences(function, x), rtol=1e-7, atol=1e-8)


def test_the_angle_of_zero_has_the_gradient_zero() -> None:
    assert not by_rule(own("Angle"), np.zeros(2, complex)).any()


def test_the_seeds_of_a_stack_of_transforms_run_at_once() -> None:
    tape = Tape(OPS)
    y = own("FFT", axis=0)(tape.hold("x", Z))
    stack = np.stack([Z, 2 * Z, Z - 1])
    (outputs,) = Program(tape, ["x"], [y.name]).run({"x": stack}).outputs
    assert_rounded(outputs, np.fft.fft(stack, axis=1), roundings=Z.size, of=np.abs(stack).sum())
