"""Steps of optimizers, for one tensor and for two, at the first step and later."""

from typing import Any

from tests.ops.case import Case, arr, case

SHAPES = ((2,), (2, 3))


def step(op: str, count: int, *, kinds: int, tensors: int = 1, **attrs: Any) -> Case:
    """A case after `count` steps; what is accumulated is positive."""
    bounds = [(-2.0, 2.0), (-2.0, 2.0), (0.5, 2.0), (0.5, 2.0)][:kinds]
    values = [arr(*s, low=low, high=high, seed=i) for i, (low, high) in enumerate(bounds) for s in SHAPES[:tensors]]
    outputs = tensors * (kinds - 1)
    return case(op, 0.1, count, *values, domain="ai.onnx.preview.training", n_outputs=outputs, **attrs)


CASES = [
    step("Adagrad", 0, kinds=3),
    step("Adagrad", 3, kinds=3, tensors=2, decay_factor=0.1, epsilon=1e-3, norm_coefficient=0.2),
    step("Adam", 0, kinds=4),
    step("Adam", 2, kinds=4, tensors=2, alpha=0.8, beta=0.7, epsilon=1e-2, norm_coefficient=0.2,
         norm_coefficient_post=0.1),
    step("Momentum", 0, kinds=3, alpha=0.9, beta=0.5, norm_coefficient=0.1, mode="standard"),
    step("Momentum", 2, kinds=3, tensors=2, alpha=0.9, beta=0.5, norm_coefficient=0.1, mode="standard"),
    step("Momentum", 2, kinds=3, alpha=0.9, beta=0.5, norm_coefficient=0.1, mode="nesterov"),
]  # fmt: skip
