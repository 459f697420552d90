"""RNN, GRU and LSTM with settings drawn at random, against onnxruntime; layouts and outputs left out."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.rounding import Moves, RandomRounding
from gradcheck_cli.graph import Array, Graph
from gradcheck_cli.ops import OPS
from gradcheck_cli.ops.recurrent_whole import pushforward
from tests.ops.case import Case
from tests.ops.cases.recurrent import GATES, TAKES, layer

ACTIVATIONS = {"RNN": 1, "GRU": 2, "LSTM": 3}


def drawn(seed: int) -> Case:
    """A layer with any direction, activations, optional inputs and attributes."""
    chance = random.Random(seed)
    op, d = chance.choice([*GATES]), chance.choice([1, 2])
    attrs: dict[str, Any] = {} if d == 2 else {"direction": chance.choice(["forward", "reverse"])}
    if chance.random() < 0.7:
        names = [chance.choice([*TAKES]) for _ in range(d * ACTIVATIONS[op])]
        attrs["activations"] = tuple(names)
        for key in ("activation_alpha", "activation_beta"):
            attrs[key] = tuple(value for name in names for value in TAKES[name].get(key, ()))
    if op == "GRU":
        attrs["linear_before_reset"] = chance.choice([0, 1])
    elif op == "LSTM":
        attrs["input_forget"] = chance.choice([0, 1])
    if op != "LSTM" and chance.random() < 0.4:  # onnxruntime does not clip all that an LSTM has
        attrs["clip"] = 0.4
    lengths = chance.choice([None, np.array([2, 3], np.int32), np.array([1, 1], np.int32)])
    given = {name: chance.random() < 0.5 for name in ("bias", "h", "c", "peepholes")}
    return layer(op, d=d, lengths=lengths, **given, **attrs)


@pytest.mark.parametrize("seed", range(80))
def test_a_layer_drawn_at_random_is_that_of_onnxruntime(seed: int) -> None:
    pytest.importorskip("onnxruntime")
    from tests.ops.test_onnxruntime import compare

    compare(drawn(seed))


@pytest.mark.parametrize("seed", range(12))
def test_a_layout_with_the_batch_in_front_exchanges_axes_and_nothing_else(seed: int) -> None:
    case = drawn(seed)
    turned = [x.swapaxes(0, 1) if i in (0, 5, 6) and x is not None else x for i, x in enumerate(case.inputs)]
    y, *last = outputs(case)
    y_1, *last_1 = outputs(replace(case, inputs=tuple(turned), attrs={**case.attrs, "layout": 1}))
    np.testing.assert_array_equal(y_1, y.transpose(2, 0, 1, 3))
    for state_1, state in zip(last_1, last, strict=True):
        np.testing.assert_array_equal(state_1, state.swapaxes(0, 1))


@pytest.mark.parametrize("op", GATES)
def test_outputs_left_out_change_nothing_of_the_others(op: str) -> None:
    case = layer(op, h=True)
    expected = outputs(case)
    for kept in range(len(expected)):
        (node,) = case.graph.nodes
        names = tuple(name if i == kept else "" for i, name in enumerate(node.outputs[: kept + 1]))
        graph = Graph(case.graph.inputs, names[-1:], (replace(node, outputs=names),))
        np.testing.assert_array_equal(trace(graph, case.feeds, ops=OPS).named[names[-1]].value, expected[kept])


def outputs(case: Case) -> list[np.ndarray[Any, Any]]:
    """The values of a case's outputs."""
    tape = case.tape()
    return [tape.named[name].value for name in case.outputs]


@pytest.mark.parametrize("op", GATES)
def test_roundings_of_a_probe_are_those_that_it_has_alone(op: str) -> None:
    """Else the noise of a check would follow from how its probes are cut into chunks."""
    rng, count = np.random.default_rng(0), 6
    x, w, r = (rng.normal(size=s) for s in ((4, 2, 3), (1, GATES[op] * 5, 3), (1, GATES[op] * 5, 5)))
    along = rng.normal(size=(count, *x.shape)) * (rng.random((count, 4, 1, 1)) < 0.5)

    def moved(some: Array) -> Array:
        move = Moves(RandomRounding.seeded(0))
        wanted = [True, *[False] * (2 if op == "LSTM" else 1)]
        made = pushforward(
            op, [x, w, r], [some, None, None], wanted, lambda f, z: np.imag(f(z + 1e-30j)) / 1e-30, move
        )[0]
        assert made is not None
        return made

    whole = moved(along)
    for probe in range(count):
        np.testing.assert_array_almost_equal_nulp(moved(along[probe : probe + 1])[0], whole[probe], 4)
