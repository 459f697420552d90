"""BitCast refuses bits that are not known in float64, and gradients between two kinds of floats."""

from __future__ import annotations

import numpy as np
import pytest

from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.errors import NoGradientError, UnsupportedError
from tests.ops.case import arr, case
from tests.ops.cases.bits import F16, U16

HALVES = case("BitCast", arr(3).astype(np.float16), to=U16)


def test_sixteen_bits_of_a_float_are_known_in_the_dtype_of_the_model_only() -> None:
    with pytest.raises(UnsupportedError, match="float16 and bfloat16") as raised:
        HALVES.tape()
    assert raised.value.code == "GC503"
    y = HALVES.tape(dtype="model").named["y0"].value
    np.testing.assert_array_equal(y, HALVES.inputs[0].view(np.uint16))


def test_bits_that_become_a_float_are_those_of_the_dtype_that_is_named() -> None:
    bits = np.array([0x3C00, 0xC100], np.uint16)
    for number, expected in ((F16, [1.0, -2.5]), (16, [0.0078125, -8.0])):
        np.testing.assert_array_equal(case("BitCast", bits, to=number).tape().named["y0"].value, expected)


def test_between_two_kinds_of_floats_there_is_no_gradient() -> None:
    tape = case("BitCast", arr(2, low=0.5).astype(np.complex64), to=11).tape(dtype="model")
    y = tape.named["y0"]
    with pytest.raises(NoGradientError, match="complex64 to float64"):
        gradients(tape, {y.name: tape.hold("seed", np.ones(2))}, ["x0"])
