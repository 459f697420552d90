"""Facts about single models that tests need; patterns are those of `fnmatch`."""

from __future__ import annotations

from typing import Any

import numpy as np

TOLERANCES: dict[str, float] = {
    "fp16_own_cnn_ts_op17": 2e-3,  # two units of float16, in which onnxruntime does not round in between
    "q_cnn_qdq": 1e-2,  # a quantum, where a value lies half way between two
}

INNER: dict[str, tuple[str, ...]] = {
    # Its outputs are near 1e-5, where onnxruntime's Sigmoid has a digit or two; what it is the Sigmoid of has all.
    "ch_PP-OCRv4_det_infer": ("p2o.Add.281",),
}

SHAPES: dict[tuple[str, str], tuple[int, ...]] = {
    ("ch_PP-OCRv4_det_infer", "x"): (1, 3, 64, 32),
    ("ch_ppocr_mobile_v2.0_cls_infer", "x"): (1, 3, 48, 64),
    ("silero_vad", "input"): (2, 512),
    ("silero_vad_16k_op15", "input"): (2, 512),
}

FEEDS: dict[tuple[str, str], np.ndarray[Any, Any]] = {
    ("magika", "bytes"): np.random.default_rng(0).integers(0, 257, (2, 2048), np.int32),
    ("silero_vad", "sr"): np.asarray(16000),
    ("silero_vad_16k_op15", "sr"): np.asarray(16000),
}

_TIE = "x lies at a tie or a jump, where there is no derivative"
_INFINITE = "an input is not finite, or a mask of -infinity is given out"
_EMPTY = "x or y has no entries"
_OUTSIDE = "the inputs that came with it lie where y is not a number"

# What checks of ONNX's own models may give instead of a pass, at the inputs that came with them: the code, and why.
OUTCOMES: dict[str, tuple[str, str]] = {
    "test_acosh_example": ("GC103", "at 1, where the slope is infinite and infinity times zero is NaN, as in PyTorch"),
    "test_ai_onnx_ml_tree_ensemble_*": ("GC301", _TIE),
    "test_attention_4d_with_past_and_present_qk_matmul_bias_?d_mask_causal*": ("GC302", _INFINITE),
    "test_cast_*": ("GC302", _INFINITE),
    "test_castlike_*INT?_to_FLOAT*": ("GC701", _EMPTY),
    "test_castlike_FLOAT4E2M1_to_FLOAT*": ("GC701", _EMPTY),
    "test_castlike_*": ("GC302", _INFINITE),
    "test_causal_conv_with_state_kernel_size_one*": ("GC701", _EMPTY),
    "test_floor_example": ("GC301", _TIE),
    "test_gridsample_*": ("GC301", _TIE),
    "test_hardmax_one_hot": ("GC301", _TIE),
    "test_melweightmatrix": ("GC301", _TIE),
    "test_mod_float_edge_cases_*": ("GC302", _INFINITE),
    "test_onehot_*": ("GC301", _TIE),
    "test_operator_pow": ("GC302", _OUTSIDE),
    "test_operator_sqrt": ("GC302", _OUTSIDE),
    "test_range_*_type_positive_delta*": ("GC301", _TIE),
    "test_reduce_*_empty_set*": ("GC701", _EMPTY),
    "test_reduce_log_sum_*empty_set*": ("GC302", "of nothing, whose logarithm is -infinity"),
    "test_reduce_m??_empty_set": ("GC302", "of nothing, which is infinite"),
    "test_reshape_allowzero_reordered": ("GC701", _EMPTY),
    "test_round": ("GC301", _TIE),
    "test_sign_model": ("GC301", _TIE),
    "test_slice_start_out_of_bounds": ("GC701", _EMPTY),
    "test_split_zero_size_splits_*": ("GC701", _EMPTY),
    "test_thresholdedrelu_example*": ("GC301", _TIE),
    "test_unique_*": ("GC301", _TIE),
}

# Models without a gradient by nature, and the operator that cuts it.
CUT = {
    "q_cnn_qdq": "QuantizeLinear", "skl_knn": "TopK", "skl_rf": "TreeEnsembleClassifier",
    "k_neighbors_classifier.validity": "TreeEnsembleClassifier",
}  # fmt: skip

# Nodes of ONNX some of whose pairs have none: they round, or one is read for its shape, its type or its length alone.
SEVERED = (
    "test_ai_onnx_ml_binarizer", "test_ai_onnx_ml_tree_ensemble_*", "test_attention_*_with_past_and_present*_expanded",
    "test_bernoulli*", "test_castlike_FLOAT8*", "test_causal_conv_with_state_*_expanded", "test_ceil*", "test_floor*",
    "test_hardmax_*", "test_linear_attention_*_expanded", "test_melweightmatrix",
    "test_range_*_type_positive_delta_expanded", "test_round", "test_sequence_map_identity_*_expanded", "test_sign*",
)  # fmt: skip
