"""Our gradient rules against torch.autograd in float64, for the operators that torch has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradcheck_cli.autodiff.backward import gradients, inexact
from gradcheck_cli.ops import OPS
from tests.ops.comparison import assert_near

torch = pytest.importorskip("torch")

from tests.ops.torch_pairs import PAIRS  # noqa: E402
from tests.ops.torch_pairs.pair import Pair  # noqa: E402


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.case.id)
def test_outputs_and_gradients_are_those_of_torch(pair: Pair) -> None:
    case, tape = pair.case, pair.case.tape()
    xs = [x for x in case.floats() if x not in pair.ignore]
    ours = [tape.named[y] for y in case.outputs]
    theirs = reference(pair)
    cts: dict[str, np.ndarray[Any, Any]] = {}
    rng = np.random.default_rng(0)
    for y, expected in zip(ours, theirs, strict=False):
        assert_near(y.value, expected.detach().numpy(), relative=pair.relative, label=y.name)
        if inexact(y) and expected.requires_grad:
            cts[y.name] = rng.normal(size=y.shape)
    found = gradients(tape, {y: tape.hold(tape.fresh("seed"), ct) for y, ct in cts.items()}, xs)
    wanted = by_autograd(pair, list(cts.values()), [y for y in theirs if y.requires_grad], xs)
    for x, ct, expected in zip(xs, found, wanted, strict=True):
        actual = np.zeros_like(expected) if ct is None else ct.value
        assert_near(actual, expected, relative=pair.relative, label=f"gradient of {x}")


def test_what_torch_judges_exists() -> None:
    assert not sorted({pair.case.op for pair in PAIRS} - {op for _, op in OPS})


def reference(pair: Pair) -> list[Any]:
    """The outputs of torch, with the graph behind them; `pair.leaves` are its inputs."""
    outputs = pair.function(*pair.leaves.values())
    return list(outputs) if isinstance(outputs, tuple | list) else [outputs]


def by_autograd(pair: Pair, cts: list[Any], outputs: list[Any], xs: list[str]) -> list[np.ndarray[Any, Any]]:
    """Gradients of torch; zeros where nothing flows."""
    leaves = [pair.leaves[x] for x in xs]
    seeds = [torch.as_tensor(ct) for ct in cts]
    if not leaves or not seeds:
        return [np.zeros(leaf.shape) for leaf in leaves]
    found = torch.autograd.grad(outputs, leaves, seeds, allow_unused=True)
    pairs = zip(found, leaves, strict=True)
    return [(torch.zeros_like(leaf) if ct is None else ct).detach().numpy() for ct, leaf in pairs]
