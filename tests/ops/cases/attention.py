"""Attention with masks, caches, shared heads and windows; rotary embedding."""

from typing import Any

import numpy as np

from gradcheck_cli.graph import Graph, Node
from tests.ops.case import Case, arr, case, ints

Q, K, V = arr(2, 2, 3, 4), arr(2, 2, 5, 4), arr(2, 2, 5, 2)
FLAT = arr(2, 3, 8), arr(2, 5, 4), arr(2, 5, 6)
PAST = arr(2, 2, 2, 4, seed=1), arr(2, 2, 2, 2, seed=1)
VISIBLE = ints(3, 5, high=1).astype(bool)
BLIND = np.array([[True, False, True, True, False], [False] * 5, [False, True, False, True, True]])
HIDDEN = np.where(BLIND, 0.0, -np.inf)
COS, SIN = arr(6, 2), arr(6, 2, seed=1)

CAPPED = Graph(
    ("s",), ("t",), (Node("Div", ("s", "cap"), ("u",)), Node("Tanh", ("u",), ("t",))), {"cap": np.asarray(2.0)}
)
BIASED = Graph(("s",), ("t",), (Node("Add", ("s", "bias"), ("t",)),), {"bias": np.where(VISIBLE, 0.0, -9.0)})
CAUSAL = Graph(
    ("s",),
    ("t",),
    (Node("Where", ("seen", "s", "no"), ("t",)),),
    {"seen": np.tri(3, 5, 1) > 0, "no": np.asarray(-np.inf)},
)
SQUARED = Graph(("p",), ("t",), (Node("Mul", ("p", "p"), ("t",)),))


def flex(*inputs: np.ndarray, **attrs: Any) -> Case:
    """A case of FlexAttention; subgraphs are named by their attributes in the label."""
    label = " ".join(k for k, v in attrs.items() if isinstance(v, Graph))
    return case("FlexAttention", *inputs, domain="ai.onnx.preview", label=label, **attrs)


CASES = [
    flex(Q, K, V),
    flex(Q, K, V, scale=0.3, softmax_precision=11),
    flex(arr(1, 4, 2, 3), arr(1, 2, 3, 3), arr(1, 2, 3, 2)),
    flex(Q, K, V, score_mod=CAPPED),
    flex(Q, K, V, score_mod=CAUSAL),
    flex(Q, K, V, prob_mod=SQUARED),
    flex(arr(1, 4, 3, 2), arr(1, 2, 5, 2), arr(1, 2, 5, 3), score_mod=BIASED, prob_mod=SQUARED, scale=1.5),
    case("Attention", Q, K, V),
    case("Attention", Q, K, V, scale=0.3, n_outputs=4),
    case("Attention", Q, K, V, arr(3, 5), n_outputs=4, qk_matmul_output_mode=2),
    case("Attention", Q, K, V, arr(2, 1, 3, 5)),
    case("Attention", Q, K, V, VISIBLE, label="bool mask"),
    case("Attention", Q, K, V, BLIND, n_outputs=4, qk_matmul_output_mode=3, label="blind query"),
    case("Attention", Q, K, V, HIDDEN, label="infinite mask"),
    case("Attention", Q, K, V, arr(3, 4), label="short mask"),
    case("Attention", Q, K, V, VISIBLE[:, :4], label="short bool mask"),
    case("Attention", Q, K, V, is_causal=1),
    case("Attention", Q, K, V, VISIBLE, is_causal=1, label="bool mask"),
    case("Attention", Q, K, V, arr(3, 5), is_causal=1, softcap=1.5, n_outputs=4, qk_matmul_output_mode=1),
    case("Attention", Q, K, V, softcap=0.7, n_outputs=4),
    case("Attention", Q, K, V, None, *PAST, is_causal=1, n_outputs=3, label="past"),
    case("Attention", Q, K, V, arr(3, 7), *PAST, n_outputs=4, label="past"),
    case("Attention", Q, K, V, None, None, None, np.array([2, 5]), is_causal=1, label="lengths"),
    case("Attention", Q, K, V, VISIBLE, None, None, np.array([2, 5]), label="lengths"),
    case("Attention", Q, K, V, left_window_size=1, right_window_size=1),
    case("Attention", Q, K, V, None, *PAST, is_causal=1, left_window_size=2, label="past"),
    case("Attention", arr(1, 4, 2, 3), arr(1, 2, 3, 3), arr(1, 2, 3, 2), is_causal=1, label="shared heads"),
    case("Attention", arr(1, 4, 2, 3), arr(1, 1, 3, 3), arr(1, 1, 3, 2), arr(4, 2, 3), label="one head of keys"),
    case("Attention", *FLAT, q_num_heads=2, kv_num_heads=1),
    case(
        "Attention",
        arr(2, 3, 4),
        arr(2, 3, 4, seed=1),
        arr(2, 3, 6),
        q_num_heads=2,
        kv_num_heads=2,
        is_causal=1,
        n_outputs=4,
        qk_matmul_output_mode=3,
    ),
    case("RotaryEmbedding", arr(2, 3, 2, 4), COS, SIN, ints(2, 2, high=5)),
    case("RotaryEmbedding", arr(2, 3, 2, 4), COS, SIN, ints(2, 2, high=5), interleaved=1),
    case("RotaryEmbedding", arr(2, 3, 2, 4), arr(2, 2, 2), arr(2, 2, 2, seed=1)),
    case("RotaryEmbedding", arr(2, 3, 2, 6), COS, SIN, ints(2, 2, high=5), rotary_embedding_dim=4),
    case(
        "RotaryEmbedding",
        arr(2, 3, 2, 6),
        COS,
        SIN,
        ints(2, 2, high=5),
        rotary_embedding_dim=4,
        interleaved=1,
    ),
    case("RotaryEmbedding", arr(2, 3, 8), COS, SIN, ints(2, 3, high=5), num_heads=2),
    case("RotaryEmbedding", arr(2, 3, 8), COS, SIN, ints(2, 3, high=5), num_heads=2, interleaved=1),
]
