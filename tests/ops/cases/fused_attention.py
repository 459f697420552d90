"""Attention of com.microsoft: masks of every form, caches, packed operands, rotary positions, shared heads."""

from typing import Any

import numpy as np

from tests.ops.case import Case, arr, chain, ints, node
from tests.ops.cases.fused import ms

X, WEIGHTS, BIAS = arr(2, 3, 4), arr(4, 12), arr(12)
PAST = arr(2, 2, 2, 2, 2, seed=4)
Q, K, V = arr(2, 3, 4), arr(2, 5, 4, seed=1), arr(2, 5, 6, seed=2)
KEY_PAST, VALUE_PAST = arr(2, 2, 2, 2, seed=5), arr(2, 2, 2, 2, seed=6)
COS, SIN = arr(8, 2), arr(8, 2, seed=1)
WIDE = arr(8, 8), arr(8, 8, seed=1)
GROUPED = arr(2, 3, 32), arr(2, 3, 16, seed=1), arr(2, 3, 16, seed=2)  # 2 heads of 16, 1 of keys
ONE = arr(2, 1, 32), arr(2, 1, 16, seed=1), arr(2, 1, 16, seed=2)
CACHE = arr(2, 1, 4, 16, seed=3), arr(2, 1, 4, 16, seed=4)


def i32(*values: object) -> np.ndarray:
    return np.asarray(values if len(values) > 1 else values[0], np.int32)


RAW = i32([[1, 1, 0], [1, 0, 1]])
SQUARE = i32([[[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[1, 1, 1], [0, 1, 1], [0, 0, 1]]])
TOTAL = i32(3)
SIX = {"num_heads": 2, "kv_num_heads": 1}

CODES, WHOLE = ints(2, 3, 4, high=255).astype(np.uint8), ints(4, 12, low=-50, high=50).astype(np.int8)
X_QUANTUM, W_QUANTUM = (np.array(0.02), np.array(120, np.uint8)), (np.array(0.03), np.array(0, np.int8))


def quantized(
    mask: object = None, past: object = None, codes: np.ndarray = WHOLE, w: tuple[object, object] = W_QUANTUM,
    **more: object,
) -> Case:  # fmt: skip
    """QAttention of two heads."""
    operands = CODES, codes, BIAS, X_QUANTUM[0], w[0], mask, X_QUANTUM[1], w[1], past
    return ms("QAttention", *operands, num_heads=2, **more)


WIDE_CACHE = arr(64, 8), arr(64, 8, seed=1)
STREAMS = np.stack([ints(2, 3, high=7, seed=i) for i in range(3)])
ROOM = arr(2, 2, 4, 4, seed=3), arr(2, 2, 4, 4, seed=4)
ALONE = arr(2, 1, 8), arr(2, 1, 8, seed=1), arr(2, 1, 8, seed=2)


def decoded(*more: object, past: int = 2, n_outputs: int = 3, label: str = "", **attrs: object) -> Case:
    """DecoderMaskedMultiHeadAttention behind a cache with room for four."""
    mask, bias, *beams = *more, *(None,) * (2 - len(more))
    operands = *ALONE, mask, bias, *ROOM, i32([past]), *beams
    return ms("DecoderMaskedMultiHeadAttention", *operands, num_heads=2, past_present_share_buffer=1,
              n_outputs=n_outputs, label=label, **attrs)  # fmt: skip


BLOCKED = {"num_heads": 2, "kv_num_heads": 1, "sparse_block_size": 16}
LAYOUTS = (
    i32([[0, 1, 3, 5], [0, 1, 2, 4]]),
    i32([[0, 0, 1, 1, 2], [0, 1, 0, 2, -1]]),
)  # rows of blocks; every other head


def sparse(
    steps: int, lengths: list[int], total: int, layouts: object = LAYOUTS, *more: object, packed: bool = False,
    size: int = 8, **attrs: object,
) -> Case:  # fmt: skip
    """SparseAttention of heads of 8 behind a cache with room for three blocks."""
    parts = [arr(2, steps, n, seed=i) for i, n in enumerate((2 * size, size, size))]
    operands = [np.concatenate(parts, -1), None, None] if packed else parts
    cache = arr(2, 1, 48, size, seed=3), arr(2, 1, 48, size, seed=4)
    return ms("SparseAttention", *operands, *cache, *layouts, i32(total), i32(lengths), *more, n_outputs=3,
              **BLOCKED, **attrs)  # fmt: skip


def padded_chunks(ends: np.ndarray, taken: np.ndarray, places: np.ndarray, **more: Any) -> Case:
    """Chunks of three tokens, of which so many count: what these give, without the padding, of which nothing is said."""
    inputs = *GROUPED, *CACHE, ends, i32(4), *WIDE, taken
    names = "x0 x1 x2 x3 x4 x5 x6 x7 x8 - - - - - - - x9"
    nodes = [
        node("GroupQueryAttention", names, "y k v", "com.microsoft", do_rotary=1, **SIX, **more),
        node("Reshape", "y flat", "rows"),
        node("Gather", "rows places", "y0"),
    ]
    return chain("GroupQueryAttention", nodes, *inputs, domain="com.microsoft", label=f"chunks of {taken.tolist()}",
                 flat=np.array([-1, 32]), places=places)  # fmt: skip


CASES = [
    sparse(3, [3, 3], 3, label="prompt"),
    sparse(20, [20, 20], 20, packed=True, scale=0.3, label="packed prompt of two blocks"),
    sparse(1, [40, 40], 40, label="one behind the cache"),
    sparse(1, [40, 19], 40, label="caches of two lengths"),
    sparse(1, [18, 18], 18, [x[:1] for x in LAYOUTS], *WIDE_CACHE, size=16, do_rotary=1, label="rotary"),
    sparse(2, [2, 2], 2, LAYOUTS, *WIDE_CACHE, size=16, do_rotary=1, rotary_interleaved=1, label="rotary prompt"),
    decoded(),
    decoded(past=3, scale=0.3),
    decoded(past=0, label="nothing cached"),
    decoded(i32([[1, 0, 1], [1, 1, 1]]), label="mask"),
    decoded(i32([[1, 0, 1], [1, 1, 1]]), mask_filter_value=-2.0, label="soft mask"),
    decoded(None, arr(1, 2, 1, 3), label="attention bias"),
    decoded(None, None, None, None, arr(24), label="bias"),
    decoded(None, None, i32([2]), i32([[[0, 1, 0, 0], [1, 0, 0, 0]]]), label="beams"),
    ms("DecoderMaskedMultiHeadAttention", ALONE[0], arr(2, 2, 5, 4), arr(2, 2, 5, 4, seed=1), num_heads=2, label="cross"),
    ms("DecoderMaskedMultiHeadAttention", ALONE[0], arr(2, 2, 5, 4), arr(2, 2, 5, 4, seed=1),
       i32([[1, 0, 1, 1, 1], [1, 1, 1, 0, 0]]), *(None,) * 6, arr(24), num_heads=2, label="cross with bias"),
    ms("MRotaryEmbedding", arr(2, 3, 8), STREAMS, arr(8, 4), arr(8, 4, seed=1), mrope_section=[2, 1, 1], num_heads=1),
    ms("MRotaryEmbedding", arr(2, 2, 3, 8), STREAMS, arr(8, 4), arr(8, 4, seed=1), mrope_section=[1, 1, 2], interleaved=1),
    ms("MRotaryEmbedding", arr(2, 2, 3, 16), STREAMS, *WIDE_CACHE, mrope_section=[4, 2, 2], mrope_layout=1),
    ms("MRotaryEmbedding", arr(2, 3, 24), STREAMS, arr(8, 4), arr(8, 4, seed=1), mrope_section=[1, 2, 1], num_heads=2,
       rotary_embedding_dim=8, scale=2.0),
    quantized(),
    quantized(n_outputs=2, unidirectional=1, scale=0.3),
    quantized(RAW, label="raw mask"),
    quantized(RAW, mask_filter_value=-2.0, label="soft mask"),
    quantized(i32(2, 3), label="lengths"),
    quantized(SQUARE, unidirectional=1, label="square mask"),
    quantized(None, PAST, n_outputs=2, label="past"),
    quantized(codes=(WHOLE.astype(int) + 60).astype(np.uint8), w=(np.array(0.03), np.array(60, np.uint8)), label="uint8"),
    quantized(w=(arr(12, low=0.01, high=0.03), np.zeros(12, np.int8)), label="columns"),
    ms("QAttention", CODES, WHOLE, BIAS, X_QUANTUM[0], W_QUANTUM[0], num_heads=2, label="no zero points"),
    ms("Attention", X, WEIGHTS, BIAS, num_heads=2),
    ms("Attention", X, WEIGHTS, num_heads=1, n_outputs=2),
    ms("Attention", X, WEIGHTS, BIAS, num_heads=2, unidirectional=1, scale=0.3),
    ms("Attention", X, WEIGHTS, BIAS, RAW, num_heads=2, label="raw mask"),
    ms("Attention", X, WEIGHTS, BIAS, RAW, num_heads=2, mask_filter_value=-2.0, label="soft mask"),
    ms("Attention", X, WEIGHTS, BIAS, SQUARE, num_heads=2, unidirectional=1, label="square mask"),
    ms("Attention", X, WEIGHTS, BIAS, i32(2, 3), num_heads=2, label="lengths"),
    ms("Attention", X, WEIGHTS, BIAS, i32(2, 3, 0, 1), num_heads=2, label="both ends"),
    ms("Attention", X, WEIGHTS, BIAS, None, PAST, num_heads=2, n_outputs=2, label="past"),
    ms("Attention", X, WEIGHTS, BIAS, None, PAST, arr(1, 2, 3, 5), num_heads=2, unidirectional=1, n_outputs=2),
    ms("Attention", X, arr(4, 10), arr(10), num_heads=2, qkv_hidden_sizes=[4, 4, 2]),
    ms("MultiHeadAttention", Q, K, V, num_heads=2),
    ms("MultiHeadAttention", Q, K, V, arr(14), num_heads=2, scale=0.4, label="bias"),
    ms("MultiHeadAttention", Q, K, V, None, i32(2, 5), num_heads=2, label="lengths"),
    ms("MultiHeadAttention", Q, K, V, None, i32([[1, 1, 0, 1, 1], [1, 0, 0, 1, 1]]), num_heads=2, label="raw mask"),
    ms("MultiHeadAttention", Q, K, V, None, None, arr(2, 1, 3, 5), num_heads=2, label="attention bias"),
    ms("MultiHeadAttention", arr(2, 5, 4), K, V, num_heads=2, unidirectional=1),
    ms(
        "MultiHeadAttention", Q, K[:, :3], K[:, 2:], None, None, None, KEY_PAST, VALUE_PAST, num_heads=2, n_outputs=3,
        label="past",
    ),
    ms("MultiHeadAttention", Q, arr(2, 2, 5, 2), arr(2, 2, 5, 2, seed=1), num_heads=2, label="by heads"),
    ms("MultiHeadAttention", Q, arr(2, 2, 5, 2), arr(2, 2, 5, 2, seed=1), arr(12), num_heads=2, label="by heads with bias"),
    ms("MultiHeadAttention", Q, arr(2, 5, 2, 2, 2), num_heads=2, label="packed keys"),
    ms("MultiHeadAttention", arr(2, 3, 2, 3, 2), num_heads=2, label="packed"),
    ms("RotaryEmbedding", arr(2, 3, 8), np.array([[0, 3, 1], [2, 2, 7]]), COS, SIN),
    ms("RotaryEmbedding", arr(2, 3, 8), np.array([2]), COS, SIN, interleaved=1),
    ms("RotaryEmbedding", arr(2, 2, 3, 4), np.array([[0, 3, 1], [2, 2, 7]]), COS, SIN),
    ms("RotaryEmbedding", arr(2, 3, 12), np.array([1]), COS, SIN, num_heads=2, rotary_embedding_dim=4),
    ms("GroupQueryAttention", *GROUPED, None, None, i32(2, 2), TOTAL, **SIX),
    ms("GroupQueryAttention", *GROUPED, None, None, i32(2, 2), TOTAL, **SIX, n_outputs=3, scale=0.3),
    ms("GroupQueryAttention", *GROUPED, None, None, i32(2, 2), TOTAL, *WIDE, do_rotary=1, **SIX, n_outputs=3),
    ms(
        "GroupQueryAttention", *GROUPED, None, None, i32(2, 2), TOTAL, *WIDE, do_rotary=1, rotary_interleaved=1,
        **SIX,
    ),
    ms("GroupQueryAttention", arr(2, 3, 64), None, None, None, None, i32(2, 2), TOTAL, **SIX, label="packed"),
    ms("GroupQueryAttention", *GROUPED, None, None, i32(2, 2), TOTAL, **SIX, local_window_size=2, softcap=1.5),
    ms("GroupQueryAttention", *GROUPED, None, None, i32(2, 2), TOTAL, **SIX, smooth_softmax=1),
    ms("GroupQueryAttention", *GROUPED, None, None, i32(2, 2), TOTAL, **SIX, causal=0),
    ms(
        "GroupQueryAttention", *GROUPED, None, None, i32(2, 2), TOTAL, None, None, None, arr(1, 2, 3, 3), arr(2), **SIX,
        label="bias and sink",
    ),
    ms("GroupQueryAttention", *ONE, *CACHE, i32(4, 4), i32(5), **SIX, n_outputs=3, label="one behind the past"),
    ms("GroupQueryAttention", *ONE, *CACHE, i32(2, 4), i32(5), **SIX, n_outputs=3, label="pasts of two lengths"),
    ms(
        "GroupQueryAttention", *ONE, *CACHE, i32(2, 4), i32(5), *WIDE, do_rotary=1, local_window_size=3,
        n_outputs=3, **SIX,
        label="rotary behind the past",
    ),
    ms(
        "GroupQueryAttention", *GROUPED, None, None, i32(2, 2), TOTAL, *WIDE, None, None, None, None, None, arr(16),
        arr(16, seed=1), do_rotary=1, **SIX, label="norms",
    ),
    ms(
        "GroupQueryAttention", *GROUPED, None, None, i32(2, 2), TOTAL, *WIDE, None, None, None, None, None, arr(16),
        arr(16, seed=1), q_norm_epsilon=0.1, k_norm_epsilon=0.2, **SIX, label="norms",
    ),
    ms(
        "GroupQueryAttention", *GROUPED, *CACHE, i32(3, 3), i32(4), *WIDE, *(None,) * 7, i32(3, 3), do_rotary=1,
        n_outputs=3, **SIX, label="whole chunks",
    ),
    *(
        ms("GroupQueryAttention", *ONE, *CACHE, i32(2, 4), i32(5), **SIX, n_outputs=4, local_window_size=3, **more)
        for more in ({"qk_output": 2}, {"qk_output": 1, "softcap": 1.5})
    ),
    ms("GroupQueryAttention", *GROUPED, None, None, i32(2, 2), TOTAL, **SIX, qk_output=1, n_outputs=4),
    padded_chunks(i32(1, 3), i32(2, 3), np.array([0, 1, 3, 4, 5])),
    padded_chunks(i32(0, 1), i32(0, 2), np.array([3, 4]), local_window_size=2, softcap=1.5),
]  # fmt: skip
