"""Mixtures of experts of com.microsoft: a router chooses a few for each token, whose outputs are added up by weight.

All experts run on all tokens, and those that were not chosen weigh nothing: which ones count is a branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import UnsupportedError
from gradcheck_cli.op import Cut, Metadata, Op
from gradcheck_cli.ops.onnxruntime.fused import fused
from gradcheck_cli.ops.onnxruntime.fused_quantize import unpacked

_ACTIVATIONS: dict[str, Callable[[Var], Var]] = {
    "relu": sym.relu,
    "gelu": lambda x: x.tape.apply("Gelu", x, approximate="tanh"),
    "silu": lambda x: x * sym.sigmoid(x),
    "identity": lambda x: x,
}
_LEAST_SHARE = 1e-20  # whose logarithm is taken


@dataclass(frozen=True, slots=True)
class Expert:
    """One layer of all experts: weights `(experts, out, in)`, and a bias `(experts, out)`."""

    weights: Var
    bias: Var | None

    def __call__(self, x: Var) -> Var:
        """Of tokens `(experts or 1, tokens, in)`."""
        y = sym.matmul(x, sym.swap(self.weights))
        return y if self.bias is None else y + sym.unsqueeze(self.bias, (1,))


@dataclass(frozen=True, slots=True)
class Gate:
    """An activation of two halves: swiglu, and how the halves are told apart."""

    kind: str
    fusion: int
    alpha: float
    beta: float
    limit: float
    late: int  # the limit is one of the activated gate

    def __post_init__(self) -> None:
        known = (*_ACTIVATIONS, "swiglu")
        if self.kind not in known or self.fusion not in (0, 1, 2):
            raise ValueError(f"activation_type is {self.kind!r}, swiglu_fusion {self.fusion}; known are "
                             f"{', '.join(known)}, and 0 to 2")  # fmt: skip

    def __call__(self, first: Expert, third: Expert | None, x: Var) -> Var:
        """What the first layer, and the third where there is one, make of tokens."""
        y, other = first(x), None if third is None else third(x)
        if self.kind != "swiglu":
            done = _ACTIVATIONS[self.kind](y)
            return done if other is None else done * other
        gate, linear = (y, other) if self.fusion == 0 else self._halves(y)
        if linear is None:
            raise ValueError("swiglu of layers that are not fused needs fc3_experts_weights")
        limited = bool(np.isfinite(self.limit))
        if limited:
            linear = sym.clip(linear, -self.limit, self.limit)
        if limited and not self.late:
            gate = sym.minimum(gate, self.limit)
        active = gate * sym.sigmoid(gate * self.alpha)
        return (sym.minimum(active, self.limit) if limited and self.late else active) * (linear + self.beta)

    def _halves(self, y: Var) -> tuple[Var, ...]:
        size = y.shape[-1] // 2
        if self.fusion == 2:
            return sym.split(y, (size, size), -1)
        pairs = sym.reshape(y, (*y.shape[:-1], size, 2))
        return tuple(sym.squeeze(half, (-1,)) for half in sym.split(pairs, (1, 1), -1))


def moe(
    x: Var, router: Var, fc1: Var, fc1_bias: Var | None, fc2: Var, fc2_bias: Var | None = None,
    fc3: Var | None = None, fc3_bias: Var | None = None, *, activation_alpha: float = 1.0,
    activation_beta: float = 0.0, activation_type: str = "relu", k: int = 1, normalize_routing_weights: int = 0,
    swiglu_fusion: int = 0, swiglu_limit: float = np.inf, swiglu_limit_after_activation: int = 0,
    use_sparse_mixer: int = 0,
) -> Var:  # fmt: skip
    """The k experts that the router finds best, each a layer, an activation and a layer, added up by their weights.

    A sparse mixer makes no difference, as on onnxruntime's CPU.
    """
    gate = Gate(
        activation_type, swiglu_fusion, activation_alpha, activation_beta, swiglu_limit, swiglu_limit_after_activation
    )
    third = None if fc3 is None else Expert(fc3, fc3_bias)
    _check(router, k)
    best, places = _best(router.tape.apply("Softmax", router, axis=-1), k)
    chosen = _spread(router, places, _normalized(best) if normalize_routing_weights else best)
    return _mixed(x, chosen, gate, Expert(fc1, fc1_bias), Expert(fc2, fc2_bias), third)


def qmoe(
    x: Var, router: Var, fc1: Var, fc1_scales: Var | None, fc1_bias: Var | None, fc2: Var, fc2_scales: Var | None,
    fc2_bias: Var | None = None, fc3: Var | None = None, fc3_scales: Var | None = None, fc3_bias: Var | None = None,
    fc1_zero: Var | None = None, fc2_zero: Var | None = None, fc3_zero: Var | None = None,
    router_weights: Var | None = None, *more: Var | None, accuracy_level: int = 0, activation_alpha: float = 1.0,
    activation_beta: float = 0.0, activation_type: str = "relu", block_size: int = 0, expert_weight_bits: int = 4,
    fc1_expert_weight_bits: int | None = None, fc2_expert_weight_bits: int | None = None,
    fc3_expert_weight_bits: int | None = None, k: int = 1, normalize_routing_weights: int = 0,
    quant_type: str = "int", swiglu_fusion: int = 0, swiglu_limit: float = np.inf,
    swiglu_limit_after_activation: int = 0, use_sparse_mixer: int = 0, weights_prepacked: int = -1,
) -> Var:  # fmt: skip
    """MoE with weights in 2, 4 or 8 bits, with a scale for each row or for each block of it."""
    if quant_type != "int" or weights_prepacked > 0 or any(part is not None for part in more):
        raise UnsupportedError("QMoE with weights as integers, not packed for a processor, is known", code="GC502")
    gate = Gate(
        activation_type, swiglu_fusion, activation_alpha, activation_beta, swiglu_limit, swiglu_limit_after_activation
    )
    layers: list[Any] = []
    for codes, scales, bias, zero, bits in (
        (fc1, fc1_scales, fc1_bias, fc1_zero, fc1_expert_weight_bits),
        (fc2, fc2_scales, fc2_bias, fc2_zero, fc2_expert_weight_bits),
        (fc3, fc3_scales, fc3_bias, fc3_zero, fc3_expert_weight_bits),
    ):
        weights = codes and _decoded(codes, scales, zero, bits or expert_weight_bits, block_size)
        layers.append(weights and Expert(weights, bias))
    _check(router, k)
    best, places = _best(router, k)
    if router_weights is None:
        shares = router.tape.apply("Softmax", best, axis=-1)
    else:
        given = router.tape.apply("GatherElements", router_weights, places, axis=1)
        shares = _normalized(given) if normalize_routing_weights else given
    chosen = _spread(router, places, shares)
    return _mixed(x, chosen, gate, *layers)


def moe_group_router(
    logits: Var, expert_bias: Var, projection_weight: Var | None = None, *, group_topk: int = 2, n_group: int = 1,
    router_sentinel: float = -10000.0, top_k: int, topk_group: int = 1, outputs: Sequence[str],
) -> tuple[Var, ...]:  # fmt: skip
    """Logarithms of the sigmoids of the best experts, a sentinel for others; or the sigmoids, with a bias and without.

    The best ones are those of the best groups, and a group is as good as its few best experts; a bias only decides.
    """
    every = any(outputs[1:])
    if every == (not outputs or bool(outputs[0])) or (every and len([name for name in outputs if name]) < 2):
        raise ValueError("the outputs are router_probs, or selection_scores and router_weights instead")
    experts = expert_bias.size
    if min(top_k, n_group, topk_group, group_topk) < 1 or top_k > experts or topk_group > n_group or experts % n_group:
        raise ValueError(f"{experts} experts in {n_group} groups: {topk_group} of these, and {top_k} experts with "
                         f"{group_topk} that say how good a group is, cannot be chosen")  # fmt: skip
    if projection_weight is not None and (not every or logits.ndim != 2 or logits.shape[1] % 256):
        raise ValueError("a projection is of rows whose width is a multiple of 256, to scores of all experts")
    wide = _wide(logits)
    if projection_weight is not None:
        wide = sym.matmul(wide, sym.swap(_wide(projection_weight)))
    if wide.ndim < 2 or wide.shape[-1] != experts or (every and max(n_group, topk_group) > 1):
        raise ValueError(f"logits {list(wide.shape)} are not for {experts} experts, or scores of all are not one group")
    shares = sym.sigmoid(sym.reshape(wide, (-1, experts)))
    scores = shares + sym.cast(expert_bias, shares.dtype)
    if every:
        return sym.full(shares.tape, (0,), 0, shares.dtype), scores, shares
    places = _of_best_groups(scores, n_group, topk_group, group_topk, top_k)
    found = sym.log(sym.maximum(shares.tape.apply("GatherElements", shares, places, axis=1), _LEAST_SHARE))
    others = sym.full(shares.tape, shares.shape, router_sentinel, shares.dtype)
    return (sym.cast(shares.tape.apply("ScatterElements", others, places, found, axis=1), logits.dtype),)


def _of_best_groups(scores: Var, groups: int, best: int, few: int, k: int) -> Var:
    """Places of the k best experts of each row, in the best of its groups."""
    rows, experts = scores.shape
    if best < groups:
        size = experts // groups
        apart = sym.reshape(scores, (rows, groups, size))
        _, chosen = _best(sym.sum(_best(apart, min(few, size))[0], (-1,), keepdims=False), best)
        outside = sym.full(scores.tape, (rows, groups), -np.inf, scores.dtype)
        inside = sym.full(scores.tape, (rows, best), 0, scores.dtype)
        barred = scores.tape.apply("ScatterElements", outside, chosen, inside, axis=1)
        scores, k = sym.reshape(apart + sym.unsqueeze(barred, (-1,)), (rows, experts)), min(k, best * size)
    return _best(scores, k)[1]


def _wide(x: Var) -> Var:
    return sym.cast(x, np.float32) if x.dtype.itemsize < 4 else x


def _deciding_bias(attrs: Metadata, operand: int, output: int) -> Cut:
    return "decides" if (operand, output) == (1, 0) else ""


def _check(router: Var, k: int) -> None:
    if router.ndim != 2 or not 1 <= k <= router.shape[1]:
        raise ValueError(f"k is {k}; router_probs {list(router.shape)} holds a row of experts for each token")


def _best(x: Var, k: int) -> tuple[Var, ...]:
    """The k largest entries of each row, and their places."""
    return x.tape.emit("TopK", (x, sym.ints(x.tape, (k,))), {"axis": -1}, n_outputs=2)


def _normalized(shares: Var) -> Var:
    return shares / sym.sum(shares, (-1,))


def _spread(router: Var, places: Var, shares: Var) -> Var:
    """How much each expert counts for each token, `(tokens, experts)`: nothing but for the best."""
    return router.tape.apply("ScatterElements", sym.zeros_like(router), places, shares, axis=1)


def _mixed(x: Var, routes: Var, gate: Gate, first: Expert, second: Expert, third: Expert | None) -> Var:
    """Outputs of the experts for each token, added up by weight."""
    tokens = sym.reshape(x, (1, routes.shape[0], x.shape[-1]))
    each = sym.transpose(second(gate(first, third, tokens)), (1, 0, 2))
    return sym.reshape(sym.matmul(sym.unsqueeze(routes, (1,)), each), x.shape)


def _decoded(codes: Var, scales: Var | None, zero: Var | None, bits: int, block: int) -> Var:
    """(codes - zero point) scale, with one scale for each row `(experts, out)` or block `(experts, out, blocks)`."""
    if scales is None or bits not in (2, 4, 8):
        raise ValueError(f"weights of {bits} bits without scales; known are 2, 4 and 8 bits, with scales")
    numbers = sym.cast(unpacked(codes, bits), scales.dtype)
    experts, rows, columns = numbers.shape
    blocks = columns // block if block > 0 else 1
    shape = experts, rows, blocks, columns // blocks
    if blocks * shape[3] != columns or scales.size != experts * rows * blocks:
        raise ValueError(f"scales {list(scales.shape)} do not fit {[experts, rows]} rows of {blocks} blocks")
    lifted = sym.reshape(numbers, shape) - _zeros(zero, bits, shape, scales.dtype)
    return sym.reshape(lifted * sym.reshape(scales, (experts, rows, blocks, 1)), (experts, rows, columns))


def _zeros(zero: Var | None, bits: int, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Zero points, which are packed along their last axis; by default the middle of the range."""
    if zero is None:
        return 2.0 ** (bits - 1)
    experts, rows, blocks, _ = shape
    every = unpacked(zero, bits)
    count = blocks if zero.ndim == 3 else rows
    cut = sym.slice(every, (0,), (count,), (every.ndim - 1,))
    return sym.cast(sym.reshape(cut, (experts, rows, blocks, 1)), dtype)


FUSED_EXPERTS: list[Op] = [
    fused("MoE", moe),
    fused("MoEGroupRouter", moe_group_router, cuts=_deciding_bias),
    fused("QMoE", qmoe),
]
