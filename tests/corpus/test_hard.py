"""Right gradients that are numerically hard never fail, and become what the table says; wrong ones fail there as well."""

from __future__ import annotations

import numpy as np
import pytest

from gradcheck_cli.ops import OPS
from tests.corpus.faults import all_operands, scaled
from tests.corpus.hard import HARD, Hard, became
from tests.corpus.hosts import Host
from tests.corpus.score import jacobian

each = pytest.mark.parametrize("hard", HARD, ids=lambda hard: hard.name.replace(" ", "-"))


@each
def test_a_right_gradient_does_not_fail_however_hard_it_is(hard: Hard, seed: int) -> None:
    assert became(hard, np.random.default_rng(seed), seed) in hard.expected.split(" | ")


@pytest.mark.slow
@each
@pytest.mark.parametrize("method", ["complex-step", "richardson", "central", "forward"])
def test_no_method_fails_a_right_gradient(hard: Hard, method: str, seed: int) -> None:
    assert not became(hard, np.random.default_rng(seed), seed, method=method).startswith("fail")


@pytest.mark.one_in(3)
@each
def test_node_by_node_a_right_gradient_does_not_fail(hard: Hard, seed: int) -> None:
    assert not became(hard, np.random.default_rng(seed), seed, mode="nodes").startswith("fail")


@pytest.mark.slow
@each
def test_no_drawn_entry_fails_a_right_gradient(hard: Hard, seed: int) -> None:
    assert not became(hard, np.random.default_rng(seed), seed, mode="sampled").startswith("fail")


@pytest.mark.slow
@each
def test_no_random_projection_fails_a_right_gradient(hard: Hard, seed: int) -> None:
    assert not became(hard, np.random.default_rng(seed), seed, mode="directional").startswith("fail")


ROUNDING = {"a gradient that cancels to zero", "a shift that softmax does not see"}
SMOOTH = [
    "Exp",
    "Sigmoid",
    "Tanh",
    "Sin",
    "Erf",
    "Log",
    "Softmax",
    "ReduceProd",
    "ReduceL2",
    "LayerNormalization",
    "Det",
]
AT_HAND = [(hard, next(n.op for n in hard.model.graph.nodes if n.op in SMOOTH)) for hard in HARD
           if any(n.op in SMOOTH for n in hard.model.graph.nodes)]  # fmt: skip


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("hard", "op"), AT_HAND, ids=lambda v: v.name.replace(" ", "-") if isinstance(v, Hard) else v)
def test_where_it_is_hard_a_wrong_gradient_does_not_pass(hard: Hard, op: str, seed: int) -> None:
    """Off by a factor of two, unless the gradient is nothing but rounding."""
    right, wrong = OPS, all_operands(("", op), scaled(2.0), seed)
    x = np.asarray(hard.x(np.random.default_rng(seed)))
    made = Host(hard.name, hard.model, x, seed)
    y = hard.model.graph.outputs[0]
    if np.abs(jacobian(made, right, y)).max() > 0 and hard.name not in ROUNDING:
        assert became(hard, np.random.default_rng(seed), seed, ops=wrong) != "pass"
