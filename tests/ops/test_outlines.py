"""Outline rules: shapes and dtypes without numbers are those of the numbers, for every operator in every case."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import gradients, inexact
from gradcheck_cli.autodiff.outlined import OutlinedTape
from gradcheck_cli.autodiff.tape import Tape, Var, quietly
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.errors import GradcheckError, ModelError
from gradcheck_cli.graph import Graph, Node
from gradcheck_cli.op.batching import blank, shape_only
from gradcheck_cli.ops import OPS
from tests.ops.case import Case
from tests.ops.cases import CASES


def outlined(x: Any) -> Any:
    return x if x is None else blank(x.shape, x.dtype)


@pytest.mark.one_in(8, of="op")
@pytest.mark.parametrize("dtype", ["float64", "model"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_an_outline_has_the_shape_and_the_dtype_of_the_result(case: Case, dtype: str) -> None:
    tape = case.tape(dtype=dtype)
    for step in tape.steps:
        if step.op.outlined is not None:
            operands = [outlined(tape.values[n]) if n else None for n in step.operands]
            with quietly():
                made = step.op.outlined.forward(*operands, **step.metadata)
            for y, name in zip(made if step.op.many else (made,), step.outputs, strict=False):
                if name:
                    wanted = tape.values[name]
                    assert (y.shape, tape.widen(y.dtype)) == (wanted.shape, wanted.dtype), step.op.name


def shown(tape: Tape) -> list[Any]:
    """Steps, shapes and dtypes of a tape."""
    return [
        (s.node, [(tape.values.like(n).shape, tape.values.like(n).dtype) for n in s.outputs if n]) for s in tape.steps
    ]


def differentiate(tape: Tape, case: Case) -> None:
    """Adds the gradient of all outputs that are numbers by all such inputs."""
    ys = [y for n in case.outputs if isinstance(y := tape.named.get(n), Var) and inexact(y)]
    xs = [x.name for n in case.floats() if isinstance(x := tape.named.get(n), Var)]
    gradients(tape, {y.name: sym.ones_like(y) for y in ys}, xs)


@pytest.mark.one_in(8, of="op")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_numbers_that_are_left_for_later_are_those_that_are_computed_at_once(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradcheck_cli.autodiff.outlined._SMALL", -1)
    at_once, later, passing = case.tape(), case.tape(on=OutlinedTape), case.tape(on=OutlinedTape)
    for tape in (at_once, later, passing):
        with suppress(GradcheckError):  # without a rule, or none for numbers like these
            differentiate(tape, case)
    assert shown(later) == shown(at_once)
    numbers = passing.numbers(at_once.values)
    for name in at_once.values:
        np.testing.assert_array_equal(numbers[name], at_once.values[name])
        np.testing.assert_array_equal(later.values[name], at_once.values[name])


# Operators whose numbers have to be computed before it is known what shape they have, or if there are any.
WITHOUT = {
    "the shape follows from values": "Compress NonZero Range Unique NonMaxSuppression ConstantOfShape StringSplit "
    "Tokenizer TfIdfVectorizer ImageDecoder NGramHashMapping VarlenNGramHashMapping GatherPacked BifurcationDetector "
    "OneHotEncoder",
    "values may be refused": "Inverse Cofactors MaxUnpool MelWeightMatrix DynamicTimeWarping",
    "drawn, or made of attributes": "RandomNormal RandomUniform Bernoulli Multinomial HannWindow HammingWindow "
    "BlackmanWindow",
    "for text and classes, which have no derivative": "StringConcat StringNormalizer RegexFullMatch LabelEncoder "
    "CategoryMapper MurmurHash3 TreeEnsemble TreeEnsembleRegressor TreeEnsembleClassifier",
}


def test_all_operators_but_these_have_an_outline() -> None:
    plain = [op for op in OPS.values() if not op.composed and op.batching is not shape_only]
    assert {op.name for op in plain if op.outlined is None} == {
        name for names in WITHOUT.values() for name in names.split()
    }


@pytest.mark.parametrize("op", ["Gather", "GatherElements", "GatherND", "ScatterElements"])
@pytest.mark.parametrize("place", [4, -5])
def test_places_beyond_an_axis_are_refused_without_numbers(op: str, place: int) -> None:
    x, at = np.ones((4, 2)), np.full((3, 1), place)
    more = (np.ones((3, 1)),) if op == "ScatterElements" else ()
    for tape in (Tape(OPS), OutlinedTape(OPS)):
        given = [tape.constant(each) for each in (x, at, *more)]
        with pytest.raises(ModelError, match=f"{op}.* out of bounds for"):
            tape.apply(op, *given)


def chain(length: int, size: int) -> OutlinedTape:
    """A tape of many steps, none of them computed."""
    nodes = [Node("Tanh", (f"y{i}",), (f"y{i + 1}",)) for i in range(length)]
    graph = Graph(("y0",), (f"y{length}",), tuple(nodes))
    tape = trace(graph, {"y0": np.full(size, 0.5)}, ops=OPS, on=OutlinedTape)
    assert isinstance(tape, OutlinedTape)
    return tape


def test_numbers_in_between_are_freed() -> None:
    tape, size = chain(40, 1 << 17), 1 << 20  # bytes of each
    tracemalloc.start()
    try:
        [y] = tape.numbers([tape.named["y40"].name]).values()
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size <= taken < 4 * size
    np.testing.assert_array_equal(y, tape.named["y40"].value)


def test_an_outline_that_was_not_that_of_the_numbers_is_an_error() -> None:
    wrong = replace(OPS["", "Tanh"], outline=lambda kernel, xs, how: blank(xs[0].shape[:-1], xs[0].dtype))
    graph = Graph(("x",), ("y",), (Node("Tanh", ("x",), ("y",)),))
    tape = trace(graph, {"x": np.ones((100, 100))}, ops={**OPS, ("", "Tanh"): wrong}, on=OutlinedTape)
    assert isinstance(tape, OutlinedTape)
    with pytest.raises(ValueError, match=r"node 0 Tanh 'y': \[100, 100\] float64 where \[100\] float64 was foretold"):
        tape.numbers(["y"])
