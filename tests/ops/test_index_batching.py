"""Operators whose indices are probed, as those of a sampler are by its grid, run all probes at once like one by one."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from gradcheck_cli.op.batching import loop
from tests.ops.case import Case, arr, case, ints
from tests.rounding import assert_rounded

CASES = [
    case("Gather", arr(4, 3, 2), ints(2, 3, low=-4, high=3)),
    case("Gather", arr(4, 3, 2), ints(2, low=-3, high=2), axis=1),
    case("Gather", arr(4, 3, 2), np.array(1), axis=2),
    case("GatherElements", arr(4, 3), ints(4, 2, low=-3, high=2), axis=1),
    case("GatherND", arr(3, 2, 4), ints(5, 2, low=-2, high=1)),
    case("GatherND", arr(3, 2, 4), ints(3, 5, 1, low=-2, high=1), batch_dims=1),
    *(case("ScatterND", arr(3, 2), ints(4, 1, low=-3, high=2), arr(4, 2), reduction=how)
      for how in ("none", "add", "mul", "max", "min")),
    case("ScatterND", arr(3, 2), ints(2, 3, 2, low=-2, high=1), arr(2, 3), reduction="add"),
    *(case("ScatterElements", arr(3, 2), ints(4, 2, low=-3, high=2), arr(4, 2), reduction=how)
      for how in ("none", "add", "mul", "max", "min")),
    case("ScatterElements", arr(3, 2, 2), ints(3, 1, 2, low=-2, high=1), arr(3, 1, 2), axis=1),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_batching_rule_with_probed_indices_equals_the_loop(case: Case, count: int) -> None:
    (step,) = case.tape().steps
    rng = np.random.default_rng(count)
    stacks = [stack(x, count, rng) for x in case.inputs]
    kernels = [step.op.forward, *([step.op.branch] if step.op.branch else [])]
    for kernel, probed in itertools.product(kernels, itertools.product([False, True], repeat=len(stacks))):
        if any(probed):
            operands = [s if p else x for s, x, p in zip(stacks, case.inputs, probed, strict=True)]
            batched = step.op.batching(kernel, operands, probed, step.metadata)
            expected = loop(kernel, operands, probed, step.metadata)
            assert_rounded(np.broadcast_to(batched, expected.shape), expected, roundings=expected.size)


def stack(x: np.ndarray[Any, Any], count: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Probes of an operand: other numbers, or the same indices in another order."""
    return np.stack([rng.permutation(x.ravel()).reshape(x.shape) for _ in range(count)])
