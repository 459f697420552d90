"""Normalizations of com.microsoft: with skip connections, embeddings, channels last and gates."""

import numpy as np

from tests.ops.case import Case, arr, case, ints
from tests.ops.cases.fused import ms

X, SKIP = arr(2, 3, 4), arr(2, 3, 4, seed=1)
IDS, WORDS, PLACES, SEGMENTS = ints(2, 3, high=4), arr(5, 4), arr(6, 4, seed=2), arr(2, 4, seed=3)
IMAGE = arr(2, 3, 2, 4)
NARROW = [x.astype(np.int32) for x in (IDS, ints(2, 3, high=1), np.array([[1, 1, 0], [1, 1, 1]]), ints(2, 3, high=5))]

CODES = [ints(n, 4, high=255, seed=i).astype(np.uint8) for i, n in enumerate((5, 6, 2))]
ROWS = [ints(4, low=-100, high=100, seed=i).astype(np.int8) for i in (1, 2)]


def embedded(segments: bool, mask: np.ndarray | None = None, dtype: type = np.uint8, **more: object) -> Case:
    """Words, places and perhaps segments by tables in integers."""
    words, places, kinds = (code.astype(dtype) for code in CODES)
    scale, shift = (row.astype(dtype) for row in ROWS)
    scales = [np.array(s) for s in (0.02, 0.01, 0.03, 0.015, 0.025)]
    zeros = [np.array(z, dtype) for z in (120, 100, 90, 3, 7)]
    if not segments:
        scales[2] = zeros[2] = None  # type: ignore[call-overload]
    tables = [words, places, kinds if segments else None, scale, shift]
    return ms("QEmbedLayerNormalization", NARROW[0], NARROW[1] if segments else None, *tables, mask, *scales, *zeros,
              n_outputs=2, **more)  # fmt: skip


CASES = [
    embedded(True),
    embedded(True, NARROW[2], epsilon=0.01),
    embedded(False, NARROW[2], label="no segments"),
    embedded(True, dtype=np.int8, label="int8"),
    case("SimplifiedLayerNormalization", X, arr(4)),
    case("SimplifiedLayerNormalization", X, arr(3, 4), axis=1, epsilon=0.1),
    ms("SkipLayerNormalization", X, SKIP, arr(4)),
    ms("SkipLayerNormalization", X, SKIP, arr(4), arr(4, seed=1), arr(4, seed=2), epsilon=0.01),
    ms("SkipLayerNormalization", X, arr(1, 3, 4), arr(4), arr(4, seed=1)),
    ms("SkipLayerNormalization", X, arr(3, 4), arr(4), None, arr(4, seed=2)),
    ms("SkipLayerNormalization", X, SKIP, arr(4), n_outputs=4),
    ms("SkipSimplifiedLayerNormalization", X, SKIP, arr(4)),
    ms("SkipSimplifiedLayerNormalization", X, SKIP, arr(4), arr(4, seed=2), epsilon=0.01),
    ms("SkipSimplifiedLayerNormalization", X, SKIP, arr(4), n_outputs=4),
    ms("EmbedLayerNormalization", NARROW[0], None, WORDS, PLACES, None, arr(4), arr(4, seed=1), n_outputs=2),
    ms(
        "EmbedLayerNormalization", NARROW[0], NARROW[1], WORDS, PLACES, SEGMENTS, arr(4), arr(4, seed=1), NARROW[2],
        n_outputs=2, epsilon=0.01,
    ),
    ms(
        "EmbedLayerNormalization", NARROW[0], NARROW[1], WORDS, PLACES, SEGMENTS, arr(4), arr(4, seed=1), NARROW[2],
        NARROW[3], n_outputs=3, mask_index_type=1,
    ),
    ms("GroupNorm", IMAGE, arr(4), arr(4, seed=1), groups=2, activation=0),
    ms("GroupNorm", IMAGE, arr(4), arr(4, seed=1), groups=2, activation=1, epsilon=0.1),
    ms("GroupNorm", IMAGE, arr(3), arr(3, seed=1), groups=1, activation=1, channels_last=0),
    ms("SkipGroupNorm", IMAGE, arr(4), arr(4, seed=1), arr(2, 3, 2, 4, seed=2), groups=2, activation=1, n_outputs=2),
    ms("SkipGroupNorm", IMAGE, arr(4), arr(4, seed=1), arr(2, 4), arr(4, seed=3), groups=2, activation=0, n_outputs=2),
    ms("SkipGroupNorm", IMAGE, arr(4), arr(4, seed=1), arr(2, 1, 1, 4), groups=2, activation=0),
    ms(
        "SkipGroupNorm", IMAGE, arr(3), arr(3, seed=1), arr(2, 3), arr(3, seed=3), groups=1, activation=0,
        channels_last=0,
    ),
    ms("GatedRMSNorm", X, arr(4), SKIP),
    ms("GatedRMSNorm", X, arr(2), SKIP, activation="sigmoid", epsilon=0.1),
    ms("GatedRMSNorm", X, arr(4), SKIP, activation="swish"),
]  # fmt: skip
