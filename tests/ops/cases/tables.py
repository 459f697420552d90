"""Lookups of labels and categories."""

from typing import Any

import numpy as np

from tests.ops.case import Case, arr, case

NAN = float("nan")
NUMBERS = np.asarray([[1.0, NAN], [0.5, -0.0]])


def ml(op: str, *inputs: Any, **more: Any) -> Case:
    """A case of the domain."""
    return case(op, *inputs, domain="ai.onnx.ml", **more)


CASES = [
    ml("LabelEncoder", ["a", "c", "b"], classes_strings=("a", "b"), label="first version"),
    ml("LabelEncoder", [0, 1, 2], classes_strings=("a", "b"), default_string="none", label="first version"),
    ml("LabelEncoder", ["a", "c", "b"], keys_strings=("a", "b"), values_floats=(1.5, 2.5), default_float=0.25),
    ml("LabelEncoder", [[4, 5], [6, 4]], keys_int64s=(4, 5), values_strings=("four", "five")),
    ml("LabelEncoder", [4, 5, 6], keys_int64s=(4, 5), values_int64s=(40, 50)),
    ml("LabelEncoder", NUMBERS, keys_floats=(1.0, NAN, 0.0), values_int64s=(10, 20, 30)),
    ml("LabelEncoder", NUMBERS, keys_floats=(1.0, 0.0), values_strings=("one", "zero")),
    ml("LabelEncoder", arr(2, 3), keys_floats=(1.0, 0.0), values_floats=(1.0, 2.0), label="no key"),
    ml("LabelEncoder", np.asarray([0.1, 0.3]), keys_tensor=np.asarray([0.1, 0.2]),
       values_tensor=np.asarray([7, 8], np.int16), default_tensor=np.asarray([3], np.int16), label="tensors"),
    ml("LabelEncoder", ["a", "b"], keys_tensor=np.asarray(["b", "b"], object),
       values_tensor=np.asarray([1.5, 2.5], np.float32), label="tensors, a key twice"),
    ml("LabelEncoder", np.asarray([1, 2], np.int32), keys_tensor=np.asarray([2], np.int32),
       values_tensor=np.asarray(["two"], object), label="tensor of strings"),
    ml("CategoryMapper", ["q", "z"], cats_strings=("q", "b"), cats_int64s=(4, 5)),
    ml("CategoryMapper", [[5, 6]], cats_strings=("q", "b"), cats_int64s=(4, 5), default_string="none"),
    ml("OneHotEncoder", ["q", "z"], cats_strings=("q", "b")),
    ml("OneHotEncoder", [[1, 2], [0, 5]], cats_int64s=(0, 1, 2)),
    ml("OneHotEncoder", np.asarray([[1.9, 2.3], [-0.5, 3.1]]), cats_int64s=(0, 1, 2), label="whole parts"),
    ml("OneHotEncoder", [1, 0], cats_int64s=(0, 1), zeros=0),
]  # fmt: skip
