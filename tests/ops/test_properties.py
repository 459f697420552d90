"""Operators with shapes and attributes that nobody wrote down: forward mode, reverse mode and stacks agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradcheck_cli.autodiff.backward import gradients
from gradcheck_cli.engine.program import Program
from gradcheck_cli.ops import OPS
from tests.ops.case import Case, case
from tests.ops.cases import CASES
from tests.ops.test_ops import float_outputs, looped_run

Draw = Callable[[st.SearchStrategy[Any]], Any]
sizes = st.integers(0, 3)
some = st.integers(1, 3)


def values(draw: Draw, *shape: int) -> np.ndarray:
    return np.random.default_rng(draw(st.integers(0, 99))).uniform(0.2, 2.0, shape)


def shape_of(draw: Draw, rank: int | None = None, size: st.SearchStrategy[int] = sizes) -> list[int]:
    return draw(st.lists(size, min_size=rank or 0, max_size=4 if rank is None else rank))


def axes_of(draw: Draw, rank: int) -> np.ndarray:
    chosen = draw(st.sets(st.integers(0, rank - 1), min_size=1)) if rank else set()
    return np.array([a - rank if draw(st.booleans()) else a for a in chosen], np.int64)


def broadcasting(draw: Draw) -> Case:
    shape = shape_of(draw)
    other = [1 if draw(st.booleans()) else d for d in shape][draw(st.integers(0, len(shape))) :]
    pair = [values(draw, *shape), values(draw, *other)]
    return case(
        draw(st.sampled_from(["Add", "Sub", "Mul", "Div", "Pow"])), *(pair if draw(st.booleans()) else pair[::-1])
    )


def reducing(draw: Draw) -> Case:
    shape = shape_of(draw, size=some)
    op = draw(st.sampled_from(["Sum", "Mean", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare", "Max", "Min"]))
    axes = axes_of(draw, len(shape))
    given_axes = [axes] if len(axes) else []
    return case(f"Reduce{op}", values(draw, *shape), *given_axes, keepdims=draw(st.integers(0, 1)))


def product(draw: Draw) -> Case:
    n, k, m = (draw(sizes) for _ in range(3))
    batch = shape_of(draw, 2)
    left = [1 if draw(st.booleans()) else d for d in batch][draw(st.integers(0, 2)) :]
    right = [1 if draw(st.booleans()) else d for d in batch][draw(st.integers(0, 2)) :]
    return case("MatMul", values(draw, *left, n, k), values(draw, *right, k, m))


def windows(draw: Draw) -> dict[str, Any]:
    rank = draw(st.integers(1, 2))
    return {
        "kernel_shape": [draw(some) for _ in range(rank)],
        "strides": [draw(some) for _ in range(rank)],
        "dilations": [draw(some) for _ in range(rank)],
        "pads": [draw(st.integers(0, 1)) for _ in range(2 * rank)],
    }


def convolution(draw: Draw) -> Case:
    attrs = windows(draw)
    kernel, group = attrs["kernel_shape"], draw(st.integers(1, 2))
    ins, outs = group * draw(some), group * draw(some)
    space = [(k - 1) * d + 1 + draw(sizes) for k, d in zip(kernel, attrs["dilations"], strict=True)]
    transposed = draw(st.booleans())
    attrs["pads"] = [p if k > 1 else 0 for p, k in zip(attrs["pads"], kernel * 2, strict=True)]
    weights = (ins, outs // group) if transposed else (outs, ins // group)
    bias = [values(draw, outs)] if draw(st.booleans()) else []
    op = "ConvTranspose" if transposed else "Conv"
    return case(op, values(draw, draw(some), ins, *space), values(draw, *weights, *kernel), *bias, group=group, **attrs)


def pooling(draw: Draw) -> Case:
    attrs = windows(draw)
    kernel = attrs["kernel_shape"]
    attrs["pads"] = [p if k > 1 else 0 for p, k in zip(attrs["pads"], kernel * 2, strict=True)]
    space = [(k - 1) * d + 1 + draw(sizes) for k, d in zip(kernel, attrs["dilations"], strict=True)]
    op = draw(st.sampled_from(["AveragePool", "LpPool", "MaxPool"]))
    more = {"count_include_pad": draw(st.integers(0, 1))} if op == "AveragePool" else {}
    return case(op, values(draw, 1, 2, *space), ceil_mode=draw(st.integers(0, 1)), **attrs, **more)


def slicing(draw: Draw) -> Case:
    shape = shape_of(draw, 3, st.integers(1, 4))
    axes = axes_of(draw, 3)
    steps = [draw(st.sampled_from([-2, -1, 1, 2])) for _ in axes]
    low, high = st.sampled_from([0, 1, -9, -4]), st.sampled_from([-1, 2, 4, 9])  # most slices hold something
    starts, ends = ([draw(low if first == (step > 0) else high) for step in steps] for first in (True, False))
    return case("Slice", values(draw, *shape), *(np.array(v, np.int64) for v in (starts, ends, axes, steps)))


def padding(draw: Draw) -> Case:
    shape = shape_of(draw, 2, some)
    mode = draw(st.sampled_from(["constant", "edge", "reflect", "wrap"]))
    most = min(shape) - 1 if mode == "reflect" else min(shape)
    pads = np.array([draw(st.integers(0, most)) for _ in range(4)], np.int64)
    return case("Pad", values(draw, *shape), pads, mode=mode)


def gathering(draw: Draw) -> Case:
    shape, axis = shape_of(draw, 3, some), draw(st.integers(-3, 2))
    count = shape[axis]
    ids = np.array(draw(st.lists(st.integers(-count, count - 1), max_size=5)), np.int64)
    return case("Gather", values(draw, *shape), ids, axis=axis)


def normalizing(draw: Draw) -> Case:
    shape = shape_of(draw, 3, st.integers(2, 3))
    axis = draw(st.integers(-3, 2))
    scale = values(draw, *shape[axis:])
    op = draw(st.sampled_from(["LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax"]))
    return case(op, values(draw, *shape), *([] if "Softmax" in op else [scale]), axis=axis)


FAMILIES = [
    broadcasting, reducing, product, convolution, pooling, slicing, padding, gathering, normalizing,
]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_forward_mode_reverse_mode_and_stacks_agree(family: Callable[[Draw], Case], data: st.DataObject) -> None:
    """<u, J v> is <J^T u, v>, and a stack of probes gives what they give one by one."""
    each = family(data.draw)
    tape, xs, rng = each.tape(), each.floats(), np.random.default_rng(0)
    for y in float_outputs(tape, each):
        program = Program(tape, xs, [y]) if xs else None
        if program is None or not program.analytic:
            continue
        u = tape.hold(tape.fresh("u"), rng.normal(size=tape.values[y].shape))
        vs = {x: rng.normal(size=(1, *tape.values[x].shape)) for x in xs}
        (forward,) = program.jvp(vs)
        cts = gradients(tape, {y: u}, xs)
        back = [0.0 if ct is None else float(np.sum(ct.value * vs[x][0])) for ct, x in zip(cts, xs, strict=True)]
        size = sum(abs(b) for b in back) + float(np.sum(np.abs(u.value * forward[0])))
        assert abs(np.sum(u.value * forward[0]) - sum(back)) <= 1e-11 * size + 1e-13
    stacks = {x: tape.values[x] * rng.uniform(0.9, 1.1, (3, *tape.values[x].shape)) for x in xs}
    if xs:
        together = Program(tape, xs, [tape.named[y].name for y in each.outputs])
        for stack, expected in zip(together.run(stacks).outputs, looped_run(together, stacks), strict=True):
            np.testing.assert_allclose(stack, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.slow
def test_every_operator_that_a_rule_emits_has_a_rule() -> None:
    emitted: dict[tuple[str, str], str] = {}
    for each in CASES:
        tape = each.tape()
        before = len(tape.steps)
        for y in float_outputs(tape, each):
            seed = tape.hold(tape.fresh("seed"), np.ones(tape.values[y].shape))
            gradients(tape, {y: seed}, each.floats())
        emitted.update({step.op.key: each.id for step in tape.steps[before:]})
    assert emitted.keys() <= OPS.keys()
    assert {key: by for key, by in emitted.items() if not OPS[key].differentiable} == {}
