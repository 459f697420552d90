"""Classical models (domain `ai.onnx.ml`): scalers, normalizers, linear models.

The standard makes most outputs float32: `single` casts to it, unless the run computes in a wider dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Along, Op, composite, counting, stepping
from gradcheck_cli.op.batching import Kernel

DOMAIN = "ai.onnx.ml"


def scaler(x: Var, *, offset: tuple[float, ...] = (0.0,), scale: tuple[float, ...] = (1.0,)) -> Var:
    """(x - offset) scale, by feature."""
    x = as_number(x)
    return single((x - fixed(x, offset)) * fixed(x, scale))


def normalizer(x: Var, *, norm: str = "MAX") -> Var:
    """Rows divided by their maximum, sum of magnitudes or length; a row of zeros stays."""
    x = as_number(x)
    if norm == "MAX":
        size = sym.max(x, (-1,))
    elif norm == "L1":
        size = sym.sum(sym.abs(x), (-1,))
    elif norm == "L2":
        square = sym.sum(x * x, (-1,))
        size = sym.sqrt(sym.where(sym.equal(square, 0), 1, square))
    else:
        raise ValueError(f"norm is {norm!r}; known are MAX, L1, L2")
    return single(x / sym.where(sym.equal(size, 0), 1, size))


def linear_regressor(
    x: Var, *, coefficients: tuple[float, ...] = (), intercepts: tuple[float, ...] = (),
    post_transform: str = "NONE", targets: int = 1,
) -> Var:  # fmt: skip
    """Coefficients times features plus intercepts, transformed."""
    return single(transformed(_linear(x, coefficients, intercepts, targets), post_transform))


def linear_classifier(
    x: Var, *, classlabels_ints: tuple[int, ...] = (), classlabels_strings: tuple[str, ...] = (),
    coefficients: tuple[float, ...] = (), intercepts: tuple[float, ...] = (), multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Var, Var]:  # fmt: skip
    """The label of the highest linear score, and all scores."""
    labels = class_labels(classlabels_ints, classlabels_strings)
    rows = len(coefficients) // as_matrix(x).shape[1]
    raw = _linear(x, coefficients, intercepts, rows)
    if rows > 1 or len(labels) != 2:
        scores = transformed(raw, post_transform)
        best = winner(scores) if rows > 1 else _is_positive(raw)
        return named(best, labels), single(scores)
    return named(_is_positive(raw), labels), single(_second_class(raw, post_transform))


def _is_positive(raw: Var) -> Var:
    """The number of the class that a single score means, whatever its transformation."""
    return sym.cast(sym.squeeze(raw > 0.0, (1,)), np.int64)


def array_feature_extractor(x: Var, indices: Var) -> Var:
    """The features of the given numbers."""
    if x.ndim == 0 or not indices.size:
        raise ValueError("needs an input with at least one axis, and at least one index")
    return x.tape.apply("Gather", as_matrix(x), sym.reshape(indices, (-1,)), axis=-1)


def imputer(
    x: Var, *, imputed_value_floats: tuple[float, ...] = (), imputed_value_int64s: tuple[int, ...] = (),
    replaced_value_float: float = 0.0, replaced_value_int64: int = 0,
) -> Var:  # fmt: skip
    """x, with one value replaced by others."""
    floats = x.dtype.kind == "f"
    values: Sequence[float] = imputed_value_floats if floats else imputed_value_int64s
    if len(values) not in (1, x.shape[-1]):
        raise ValueError(f"{len(values)} values are given to impute {x.shape[-1]} features")
    lost = sym.is_nan(x) if floats and np.isnan(replaced_value_float) else sym.equal(
        x, replaced_value_float if floats else replaced_value_int64)  # fmt: skip
    return sym.where(lost, fixed(x, values), x)


def feature_vectorizer(*xs: Var, inputdimensions: tuple[int, ...] = ()) -> Var:
    """Features of all operands in one row, each cut or padded to its declared size."""
    parts = [as_number(as_matrix(x)) for x in xs]
    sizes = inputdimensions or [x.shape[1] for x in parts]
    pairs = zip(parts, sizes, strict=True)
    return single(sym.concat([sym.pad(x, (0, 0, 0, size - x.shape[1])) for x, size in pairs], 1))


def transformed(scores: Var, post_transform: str) -> Var:
    """Scores transformed as the attribute `post_transform` says."""
    if post_transform not in _TRANSFORMS:
        raise ValueError(f"post_transform is {post_transform!r}; known are {', '.join(_TRANSFORMS)}")
    result: Var = _TRANSFORMS[post_transform](scores)
    return result


def _softmax_zero(x: Var) -> Var:
    """Softmax in which scores that are nearly 0 stay so."""
    high = sym.max(x, (-1,))
    grown = sym.where(sym.abs(x) > 1e-7, sym.exp(x - high), x * sym.exp(-high))
    total = sym.sum(grown, (-1,))
    empty = sym.equal(total, 0)
    return sym.where(empty, 0.5, grown / sym.where(empty, 1, total))


def probit(p: Any, of: Any = sym) -> Any:
    """The quantile of the normal distribution, by Winitzki's formula for the inverse of erf; `of` is np for arrays."""
    x = p * 2.0 - 1.0
    inside = (1.0 - x) * (1.0 + x)
    log = of.log(of.where(of.equal(inside, 0), 1, inside))
    v = log * 0.5 + 2.0 / (np.pi * 0.147)
    return of.sign(x) * of.sqrt(of.sqrt(v * v - log / 0.147) - v) * 1.41421356


_TRANSFORMS: dict[str, Kernel] = {
    "NONE": lambda x: x,
    "SOFTMAX": lambda x: x.tape.apply("Softmax", x, axis=-1),
    "LOGISTIC": sym.sigmoid,
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": probit,
}


def _second_class(score: Var, post_transform: str) -> Var:
    """Two scores from that of the second class: runtimes complete it to 1 whatever the transform."""
    score = transformed(score, post_transform) if post_transform in ("LOGISTIC", "PROBIT") else score
    return sym.concat([1.0 - score, score], 1)


def _linear(x: Var, coefficients: tuple[float, ...], intercepts: tuple[float, ...], rows: int) -> Var:
    x = as_number(as_matrix(x))
    if rows < 1 or len(coefficients) != rows * x.shape[1] or len(intercepts) not in (0, rows):
        raise ValueError(f"{len(coefficients)} coefficients and {len(intercepts)} intercepts do not fit {rows} scores")
    y = sym.matmul(x, fixed(x, np.reshape(coefficients, (rows, -1)).T))
    return y + fixed(x, intercepts) if intercepts else y


def class_labels(ints: tuple[int, ...], strings: tuple[str, ...]) -> Array:
    """The labels that an operator declares, integers or strings."""
    return np.asarray(strings, object) if strings else np.asarray(ints, np.int64)


def winner(scores: Var) -> Var:
    """The number of the highest score of each sample."""
    return scores.tape.apply("ArgMax", scores, axis=1, keepdims=0)


def named(best: Var, labels: Array) -> Var:
    """Labels of classes by number; the number itself without labels."""
    return best.tape.apply("Gather", best.tape.constant(labels), best, axis=0) if labels.size else best


def as_matrix(x: Var) -> Var:
    """x with a row for each sample; a vector is one sample."""
    return sym.reshape(x, (1, -1)) if x.ndim == 1 else x


def as_number(x: Var) -> Var:
    """Integers as floating-point numbers."""
    return x if x.dtype.kind == "f" else sym.cast(x, np.float32)


def single(x: Var) -> Var:
    """x in float32, or in the wider dtype of the run."""
    return sym.cast(x, x.tape.widen(np.float32))


def fixed(x: Var, values: Any) -> Var:
    """Numbers of an attribute in the dtype of x."""
    return x.tape.constant(np.asarray(values, x.dtype))


def _own(name: str, forward: Kernel, **more: Any) -> Op:
    return composite(name, forward, domain=DOMAIN, **more)


CLASSIC: list[Op] = [
    _own("Scaler", scaler),
    _own("Normalizer", normalizer),
    _own("LinearRegressor", linear_regressor),
    _own("LinearClassifier", linear_classifier, cuts=counting(0)),
    _own("ArrayFeatureExtractor", array_feature_extractor, integers={1: Along(-1)}),
    _own("Binarizer", lambda x, *, threshold=0.0: sym.cast(as_number(x) > threshold, x.dtype), cuts=stepping,
         does="1 above the threshold, else 0."),
    _own("Imputer", imputer),
    _own("FeatureVectorizer", feature_vectorizer),
]  # fmt: skip
