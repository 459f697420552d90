"""Mixtures of experts: how many count, activations, weights in few bits."""

import numpy as np

from tests.ops.case import Case, arr, chain, node
from tests.ops.cases.fused import ms
from tests.ops.cases.fused_quantize import u8

X, ROUTER = arr(3, 4), arr(3, 5)
EXPERTS, SIZE, INNER = 5, 4, 6
FC1, FC2, FC3 = (arr(EXPERTS, *shape, seed=i) for i, shape in enumerate(((INNER, SIZE), (SIZE, INNER), (INNER, SIZE))))
B1, B2, B3 = arr(EXPERTS, INNER), arr(EXPERTS, SIZE), arr(EXPERTS, INNER, seed=2)
TWICE = arr(EXPERTS, 2 * INNER, SIZE), arr(EXPERTS, 2 * INNER)
SWIGLU = {"activation_type": "swiglu", "activation_alpha": 1.702, "activation_beta": 1.0}
BLOCKED = {"block_size": 16, "expert_weight_bits": 4}


def packed(
    bits: int = 4, block: int = 0, zero: bool = False, fusion: int = 1, router: np.ndarray | None = None, size: int = 32,
    **more: object,
) -> Case:  # fmt: skip
    """QMoE of three experts with a layer of 16 or 32 features and back."""
    inner, per = 32, 8 // bits
    codes = u8(3, fusion * inner, size // per), u8(3, size, inner // per)
    blocks = [(columns // block,) if block else () for columns in (size, inner)]
    rows = fusion * inner, size
    scales = [arr(3, row, *more_, low=0.001, high=0.003, seed=row) for row, more_ in zip(rows, blocks, strict=True)]
    packs = [u8(3, row, -(-b[0] // per)) if b else u8(3, row // per) for row, b in zip(rows, blocks, strict=True)]
    zeros = packs if zero else [None, None]
    biases = [arr(3, row, seed=row) for row in rows]
    operands = [arr(3, size), ROUTER[:, :3], codes[0], scales[0], biases[0], codes[1], scales[1], biases[1]]
    last = [None, None, None, *zeros, None, router] if zero or router is not None else []
    attrs = {"block_size": block} if block else {}
    return ms("QMoE", *operands, *last, expert_weight_bits=bits, **attrs, **more)


def scored(*inputs: np.ndarray) -> Case:
    """Scores of all experts, and their weights, in place of what is chosen."""
    names = " ".join(f"x{i}" for i in range(len(inputs)))
    label = f"scores of {inputs[0].shape[-1]} features"
    return chain("MoEGroupRouter", [node("MoEGroupRouter", names, "- y0 y1", "com.microsoft", top_k=2)], *inputs,
                 n_outputs=2, domain="com.microsoft", label=label)  # fmt: skip


CASES = [
    ms("MoE", X, ROUTER, FC1, B1, FC2, B2),
    ms("MoE", X, ROUTER, FC1, None, FC2, k=2),
    ms("MoE", arr(1, 3, 4), ROUTER, FC1, B1, FC2, B2, k=3, normalize_routing_weights=1),
    ms("MoE", X, ROUTER, FC1, B1, FC2, B2, k=2, activation_type="gelu"),
    ms("MoE", X, ROUTER, FC1, B1, FC2, B2, k=2, activation_type="silu"),
    ms("MoE", X, ROUTER, FC1, B1, FC2, B2, k=2, use_sparse_mixer=1),
    ms("MoE", X, ROUTER, FC1, B1, FC2, B2, k=5, activation_type="identity"),
    ms("MoE", X, ROUTER, *TWICE, FC2, B2, k=2, swiglu_fusion=1, **SWIGLU),
    ms("MoE", X, ROUTER, *TWICE, FC2, B2, k=2, swiglu_fusion=1, swiglu_limit=1.5, **SWIGLU),
    ms(
        "MoE",
        X,
        ROUTER,
        *TWICE,
        FC2,
        B2,
        k=2,
        swiglu_fusion=1,
        swiglu_limit=0.7,
        swiglu_limit_after_activation=1,
        **SWIGLU,
    ),
    ms("MoE", X, ROUTER, *TWICE, FC2, B2, k=2, swiglu_fusion=2, **SWIGLU),
    ms("MoE", X, ROUTER, FC1, B1, FC2, B2, FC3, B3, k=2, **SWIGLU),
    ms("MoE", X, ROUTER, FC1, B1, FC2, B2, FC3, k=2, activation_type="silu", label="gated"),
    ms("MoEGroupRouter", arr(3, 8), arr(8, low=-0.3, high=0.3), top_k=2),
    ms("MoEGroupRouter", arr(2, 2, 8), arr(8, low=-0.3, high=0.3), top_k=3, n_group=4, topk_group=2),
    ms("MoEGroupRouter", arr(3, 8), arr(8, low=-0.3, high=0.3), top_k=3, n_group=2, group_topk=9, router_sentinel=-3.0),
    ms("MoEGroupRouter", arr(3, 8), arr(8, low=-0.3, high=0.3), top_k=5, n_group=4, topk_group=2, group_topk=1),
    scored(arr(3, 8), arr(8)),
    scored(arr(2, 256, low=-0.2, high=0.2), arr(4), arr(4, 256, low=-0.2, high=0.2)),
    packed(fusion=1),
    packed(8, fusion=1, k=2),
    packed(2, fusion=1, k=2, activation_type="silu"),
    packed(4, zero=True, label="zero points"),
    packed(8, zero=True, label="zero points"),
    packed(8, fusion=1, k=2, normalize_routing_weights=1),
    packed(4, 16, k=2),
    packed(4, 16, True, label="zero points"),
    packed(8, 16, True, label="zero points"),
    packed(4, fusion=2, swiglu_fusion=1, **SWIGLU),
    packed(4, fusion=2, swiglu_fusion=2, **SWIGLU),
    packed(4, router=arr(3, 3, low=0.1), k=2, label="weights of their own"),
    packed(4, router=arr(3, 3, low=0.1), k=2, normalize_routing_weights=1, label="weights of their own"),
]
