"""What the tests need to know of single models; patterns are those of `fnmatch`."""

from __future__ import annotations

from typing import Any

import numpy as np

SKIPS: dict[str, str] = {}

TOLERANCES: dict[str, float] = {}

SHAPES: dict[tuple[str, str], tuple[int, ...]] = {
    ("ch_PP-OCRv4_det_infer", "x"): (1, 3, 64, 32),
    ("ch_ppocr_mobile_v2.0_cls_infer", "x"): (1, 3, 48, 64),
    ("silero_vad", "input"): (2, 512),
    ("silero_vad_16k_op15", "input"): (2, 512),
}

FEEDS: dict[tuple[str, str], np.ndarray[Any, Any]] = {
    ("silero_vad", "sr"): np.asarray(16000),
    ("silero_vad_16k_op15", "sr"): np.asarray(16000),
}
