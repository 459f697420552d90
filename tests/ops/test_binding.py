"""Nodes are bound to their operators with all that they may and must give; errors say which part is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import NodePlace, Tape, Var
from gradcheck_cli.errors import GradcheckError, ModelError, UnsupportedError
from gradcheck_cli.ops import OPS

X = np.arange(6.0).reshape(2, 3)
REFUSED: list[tuple[str, int, dict[str, Any], type[GradcheckError], str]] = [
    ("Relu", 1, {"slope": 1.0}, UnsupportedError, "node 3 Relu 'n': Relu has no attribute 'slope'. It takes none."),
    ("Elu", 1, {"alpa": 1.0}, UnsupportedError, "node 3 Elu 'n': Elu has no attribute 'alpa'. Did you mean 'alpha'?"),
    ("Cast", 1, {}, ModelError, "node 3 Cast 'n': Cast needs 'to', which is missing"),
    ("Cast", 1, {"to": 99}, UnsupportedError, "node 3 Cast 'n': dtype number 99 is not known"),
    ("MatMul", 1, {}, ModelError, "node 3 MatMul 'n': MatMul needs its input 1, which is left out"),
    ("Softmax", 1, {"axis": 2}, ModelError, "node 3 Softmax 'n': axis 2 is out of range for 2 dimensions"),
    ("Split", 1, {"n_outputs": 2}, UnsupportedError, "node 3 Split 'n': Split has no attribute 'n_outputs'. Did you mean"),
    ("Reshape", 2, {}, ModelError, "node 3 Reshape 'n'"),
    ("MatMul", 2, {}, ModelError, "node 3 MatMul 'n' cannot be computed from [2, 3] float64, [2, 3] float64: "),
]  # fmt: skip


def held() -> tuple[Tape, Var]:
    tape = Tape(OPS)
    return tape, tape.hold("x", X)


@pytest.mark.parametrize("op, count, attrs, kind, message", REFUSED, ids=lambda v: str(v)[:24])
def test_a_node_that_does_not_fit_its_operator_is_named(
    op: str, count: int, attrs: dict[str, Any], kind: type[GradcheckError], message: str
) -> None:
    tape, x = held()
    with tape.within(place=NodePlace(3, 3)), pytest.raises(kind) as caught:
        tape.emit(op, [x] * count, attrs, name="n")
    assert str(caught.value).startswith(message)
    assert tape.steps == []


def test_what_is_inside_of_a_place_ends_with_it_even_after_an_error() -> None:
    tape, x = held()
    within = tape.within(scope="inner", place=NodePlace(5, 5), spared=frozenset("x"))
    with pytest.raises(ModelError, match="node 5 MatMul"), within:
        sym.matmul(x, x)
    with within:
        assert (tape.place.index, tape.fresh("a"), sym.wanted(x)) == (5, "inner/a", False)
    assert (tape.place.index, tape.fresh("a"), sym.wanted(x)) == (-1, "a", True)


def test_equal_scalars_and_lists_of_integers_are_one_constant_each_of_its_dtype_shape_and_sign() -> None:
    tape, x = held()
    sym.reshape(sym.reshape(x, (3, 2)) * 2.0, (2, 3))
    sym.reshape(sym.reshape(x, (3, 2)) * 2.0, (2, 3))
    assert len(tape.constants) == 3
    zeros = [
        tape.constant(v, dtype) for v, dtype in ((0.0, None), (-0.0, None), (0, np.int32), (0, np.int64), (False, bool))
    ]
    zeros.append(tape.constant([0], np.int64))
    assert len({zero.name for zero in zeros}) == len(zeros)
    assert np.signbit(zeros[1].value)


def test_an_operator_given_otherwise_binds_by_its_own_kernel() -> None:
    from dataclasses import replace

    tape = Tape({**OPS, ("", "Relu"): replace(OPS["", "Relu"], forward=lambda x, *, slope: x * slope)})
    assert tape.emit("Relu", [tape.hold("x", X)], {"slope": 3.0})[0].value.tolist() == (3 * X).tolist()
    with pytest.raises(ModelError, match="Relu needs 'slope', which is missing"):
        tape.emit("Relu", [tape.var("x")], {})
