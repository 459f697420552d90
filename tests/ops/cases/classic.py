"""Scalers, linear models and support vector machines of `ai.onnx.ml`."""

from typing import Any

import numpy as np

from tests.ops.case import Case, arr, case, ints

X = arr(3, 4)
POSITIVE = arr(3, 4, low=0.3, high=2.0)


def ml(op: str, *inputs: Any, **more: Any) -> Case:
    """A case of the domain."""
    return case(op, *inputs, domain="ai.onnx.ml", **more)


def numbers(count: int, seed: int = 0) -> tuple[float, ...]:
    """Values for an attribute, which float32 holds exactly."""
    return tuple((np.round(arr(count, low=-1.0, high=1.0, seed=seed) * 64) / 64).tolist())


def classifier(rows: int, labels: int, post_transform: str = "NONE", x: Any = X, **more: Any) -> Case:
    """A linear classifier with integer labels."""
    return ml(
        "LinearClassifier",
        x,
        n_outputs=2,
        coefficients=numbers(rows * 4),
        intercepts=numbers(rows, seed=1),
        classlabels_ints=tuple(range(10, 10 + labels)),
        post_transform=post_transform,
        **more,
    )


def regressor(kernel: str, *params: float, **more: Any) -> Case:
    """A support vector machine of five vectors."""
    return ml(
        "SVMRegressor",
        X,
        coefficients=numbers(5),
        support_vectors=numbers(20),
        n_supports=5,
        rho=(0.25,),
        kernel_type=kernel,
        kernel_params=params,
        **more,
    )


def machine(classes: int, kernel: str, probabilities: bool = False, **more: Any) -> Case:
    """A classifier with two support vectors of each class."""
    pairs = classes * (classes - 1) // 2
    platt = {"prob_a": numbers(pairs, seed=3), "prob_b": numbers(pairs, seed=4)} if probabilities else {}
    return ml(
        "SVMClassifier",
        X,
        n_outputs=2,
        label="probabilities" if probabilities else "",
        **platt,
        coefficients=numbers((classes - 1) * 2 * classes),
        support_vectors=numbers(8 * classes),
        vectors_per_class=(2,) * classes,
        rho=numbers(pairs, seed=2),
        kernel_type=kernel,
        kernel_params=(0.5, 0.25, 2.0),
        classlabels_ints=tuple(range(classes)),
        **more,
    )


CASES = [
    ml("Scaler", X, offset=numbers(4), scale=numbers(4, seed=1)),
    ml("Scaler", X, offset=(0.5,), scale=(2.0,)),
    ml("Scaler", arr(4), offset=(0.5,), scale=(2.0,)),
    ml("Scaler", ints(3, 4), offset=numbers(4), scale=numbers(4, seed=1)),
    *[ml("Normalizer", x, norm=norm) for x in (X, POSITIVE) for norm in ("MAX", "L1", "L2")],
    ml("LinearRegressor", X, coefficients=numbers(4), intercepts=(0.5,)),
    ml("LinearRegressor", X, coefficients=numbers(8), targets=2),
    ml(
        "LinearRegressor",
        X,
        coefficients=numbers(12),
        intercepts=numbers(3),
        targets=3,
        post_transform="SOFTMAX",
    ),
    ml(
        "LinearRegressor",
        X,
        coefficients=numbers(8),
        intercepts=numbers(2),
        targets=2,
        post_transform="LOGISTIC",
    ),
    *[classifier(3, 3, t) for t in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")],
    classifier(2, 2, "SOFTMAX", multi_class=1),
    ml(
        "LinearClassifier",
        arr(3, 2, low=0.25, high=1.0),
        n_outputs=2,
        coefficients=(0.25, 0.125, 0.125, 0.25, 0.125, 0.25),
        intercepts=(0.0, 0.5, 0.5625),
        classlabels_ints=(10, 11, 12),
        post_transform="PROBIT",
    ),
    ml(
        "LinearClassifier",
        np.asarray([[0.5, 1.0], [0.25, 0.5], [0.5001, 0.75]]),
        n_outputs=2,
        coefficients=(0.5, 0.25, 0.125, 0.25, 0.25, 0.5),
        intercepts=(0.0, 0.1875, 0.0),
        classlabels_ints=(10, 11, 12),
        post_transform="PROBIT",
        label="scores of a half, and near it",
    ),
    *[classifier(1, 2, t) for t in ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO")],
    *[classifier(1, 2, t, x=X / 8, label="scores near 0") for t in ("NONE", "LOGISTIC", "SOFTMAX")],
    ml(
        "LinearClassifier",
        X,
        n_outputs=2,
        coefficients=numbers(8),
        intercepts=numbers(2),
        classlabels_strings=("a", "b"),
    ),
    ml(
        "LinearClassifier",
        ints(3, 4),
        n_outputs=2,
        coefficients=numbers(8),
        intercepts=numbers(2),
        classlabels_ints=(0, 1),
    ),
    ml("ArrayFeatureExtractor", X, np.array([[2, 0]])),
    ml("ArrayFeatureExtractor", X, np.array([1])),
    ml("ArrayFeatureExtractor", arr(4), np.array([1, 3])),
    ml("Binarizer", X, threshold=0.25),
    ml(
        "Imputer",
        np.where(X > 1, np.nan, X),
        imputed_value_floats=numbers(4),
        replaced_value_float=float("nan"),
    ),
    ml("Imputer", np.round(X), imputed_value_floats=(7.0,), replaced_value_float=1.0),
    ml("Imputer", ints(3, 4), imputed_value_int64s=(7,), replaced_value_int64=1),
    ml("FeatureVectorizer", X, arr(3, 2), inputdimensions=(4, 2)),
    ml("FeatureVectorizer", X, arr(3, 2), inputdimensions=(3, 4), label="cut and padded"),
    ml("ArrayFeatureExtractor", [["a", "b", "c"]], np.array([2, 0]), label="strings"),
    regressor("LINEAR", 0.0, 0.0, 0.0),
    regressor("RBF", 0.5, 0.0, 0.0),
    regressor("POLY", 0.5, 0.25, 3.0),
    regressor("SIGMOID", 0.5, 0.25, 0.0),
    regressor("RBF", 0.5, 0.0, 0.0, one_class=1),
    *[machine(classes, kernel) for classes in (2, 3) for kernel in ("LINEAR", "RBF")],
    machine(2, "RBF", probabilities=True),
    machine(3, "RBF", probabilities=True),
    machine(4, "POLY", probabilities=True),
    machine(3, "LINEAR", post_transform="SOFTMAX"),
    ml(
        "SVMClassifier",
        X,
        n_outputs=2,
        coefficients=numbers(12),
        rho=(0.25,),
        classlabels_ints=(5, 6, 7),
        kernel_params=(0.0, 0.0, 0.0),
        kernel_type="LINEAR",
    ),
    ml(
        "SVMRegressor",
        X,
        coefficients=numbers(4),
        rho=(0.25,),
        kernel_params=(0.0, 0.0, 0.0),
        kernel_type="LINEAR",
    ),
]
