"""ONNX's node cases that are left out, each with its reason.  Patterns are those of `fnmatch`."""

from __future__ import annotations

_HALF_WAY = "a value lies half way between two quanta but for the rounding of float32"
_LATER = "an operator of a later stage"
_ML = "an operator of ai.onnx.ml, of a later stage"
_OPTIONAL = "optional values are of a later stage"
_SEQUENCE = "sequences are of a later stage"
_STRING = "works on strings"
_TRAINING = "a step of an optimizer, no model"

OPERATORS: dict[str, str] = {
    "AffineGrid": _LATER,
    "BitCast": _LATER,
    "BlackmanWindow": _LATER,
    "CausalConvWithState": _LATER,
    "Col2Im": _LATER,
    "DFT": _LATER,
    "DeformConv": _LATER,
    "Det": _LATER,
    "GridSample": _LATER,
    "HammingWindow": _LATER,
    "HannWindow": _LATER,
    "ImageDecoder": "decodes compressed images",
    "LinearAttention": _LATER,
    "MelWeightMatrix": _LATER,
    "OptionalGetElement": _OPTIONAL,
    "OptionalHasElement": _OPTIONAL,
    "RegexFullMatch": _STRING,
    "RoiAlign": _LATER,
    "STFT": _LATER,
    "SequenceConstruct": _SEQUENCE,
    "SequenceEmpty": _SEQUENCE,
    "SequenceInsert": _SEQUENCE,
    "SequenceMap": _SEQUENCE,
    "SplitToSequence": _SEQUENCE,
    "StringConcat": _STRING,
    "StringNormalizer": _STRING,
    "StringSplit": _STRING,
    "TfIdfVectorizer": _LATER,
    "ai.onnx.ml.LabelEncoder": _ML,
    "ai.onnx.preview.FlexAttention": _LATER,
    "ai.onnx.preview.training.Adagrad": _TRAINING,
    "ai.onnx.preview.training.Adam": _TRAINING,
    "ai.onnx.preview.training.Momentum": _TRAINING,
}

CASES: dict[str, str] = {
    "test_identity_opt": _OPTIONAL,
    "test_identity_sequence": _SEQUENCE,
    "test_if_opt": _OPTIONAL,
    "test_loop13_seq": _SEQUENCE,
    "test_loop16_seq_none": _SEQUENCE,
}

FLOAT64: dict[str, str] = {
    "test_dynamicquantizelinear": _HALF_WAY,
    "test_dynamicquantizelinear_expanded": _HALF_WAY,
}

ARBITRARY: dict[str, str] = {
    "test_bernoulli*": "drawn",
    "test_training_dropout": "drawn",
    "test_training_dropout_default": "drawn",
    "test_training_dropout_default_mask": "drawn",
    "test_training_dropout_mask": "drawn",
}
