"""Classical models (domain `ai.onnx.ml`): scalers, normalizers, linear models, support vector machines.

The standard makes most outputs float32: `single` casts to it, unless the run computes in a wider dtype.
The probabilities of a classifier by pairs of classes come from libsvm's iteration, which stops at a tolerance: it is
unrolled as often as it ran, so that its derivative is that of the numbers it gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Along, Op, composite, counting, require_known, stepping
from gradcheck_cli.op.batching import Kernel

DOMAIN = "ai.onnx.ml"
_SURE = 1e-7  # probabilities of a pair of classes are at least this far from 0 and 1
_ROOTS_OF_QUANTILE = 4.0  # of a rounding: as far as a quantile may be off near 0


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
    require_known("post_transform", post_transform, _TRANSFORMS)
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
    """The quantile of the normal distribution, by Winitzki's formula for the inverse of erf; `of` is np for arrays.

    Written as x sqrt(w), in which nothing cancels near p = 0.5, so that the slope there is that of the formula.
    """
    x = p * 2.0 - 1.0
    square = x * x
    curve = _curve(x, square, of)
    log = curve * square
    v = 2.0 / (np.pi * 0.147) - log * 0.5
    root, rises = of.sqrt(v * v + log / 0.147), v > 0
    by_quotient = curve / 0.147 / of.where(rises, root + v, 1)
    return x * of.sqrt(of.where(rises, by_quotient, (root - v) / of.where(rises, 1, square))) * 1.41421356


def probit_off(unit: float, *arrays: Any, post_transform: Any = "NONE", **attrs: Any) -> float:
    """The error of onnxruntime's quantile: it is the root of a difference, of which none may be left."""
    return _ROOTS_OF_QUANTILE * unit**0.5 if post_transform in ("PROBIT", 4) else 0.0


def _curve(x: Any, square: Any, of: Any) -> Any:
    """-log(1 - x^2) / x^2 of x and its square, which is 1 at 0; runtimes take 0 for the logarithm where x is -1 or 1.

    Near 0, where the logarithm would lose digits, it is 2 atanh(t) / x^2 of t = x^2 / (2 - x^2).
    """
    near = square < 0.5
    small = of.where(near, square, 0.25)
    t = small / (2.0 - small)
    at_zero = of.equal(t, 0)
    some = of.where(at_zero, 1e-3, t)
    by_atanh = of.where(at_zero, 1, of.arctanh(some) / some) * 2.0 / (2.0 - small)
    rest = of.where(near, 0.5, (1.0 - x) * (1.0 + x))
    return of.where(near, by_atanh, of.log(of.where(of.equal(rest, 0), 1, rest)) / -of.where(near, 1, square))


_TRANSFORMS: dict[str, Kernel] = {
    "NONE": lambda x: x,
    "SOFTMAX": lambda x: x.tape.apply("Softmax", x, axis=-1),
    "LOGISTIC": sym.sigmoid,
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": probit,
}


def _second_class(score: Var, post_transform: str) -> Var:
    """The scores of two classes from the second one's: runtimes complete it to 1, whatever the transformation."""
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


def svm_regressor(
    x: Var, *, coefficients: tuple[float, ...] = (), kernel_params: tuple[float, ...] = (),
    kernel_type: str = "LINEAR", n_supports: int = 0, one_class: int = 0, post_transform: str = "NONE",
    rho: tuple[float, ...] = (0.0,), support_vectors: tuple[float, ...] = (),
) -> Var:  # fmt: skip
    """The kernel of x with the support vectors, weighted, plus rho; or its sign for one class."""
    x = as_number(as_matrix(x))
    features = likeness(x, support_vectors, n_supports, kernel_type, kernel_params) if n_supports else x
    y = sym.matmul(features, fixed(x, np.reshape(coefficients, (-1, 1)))) + rho[0]
    if one_class:
        return single(sym.where(y > 0.0, sym.ones_like(y), -1.0))
    return single(transformed(y, post_transform))


def svm_classifier(
    x: Var, *, classlabels_ints: tuple[int, ...] = (), classlabels_strings: tuple[str, ...] = (),
    coefficients: tuple[float, ...] = (), kernel_params: tuple[float, ...] = (),
    kernel_type: str = "LINEAR", post_transform: str = "NONE", prob_a: tuple[float, ...] = (),
    prob_b: tuple[float, ...] = (), rho: tuple[float, ...] = (0.0,),
    support_vectors: tuple[float, ...] = (), vectors_per_class: tuple[int, ...] = (),
) -> tuple[Var, Var]:  # fmt: skip
    """The label of the class that wins most duels, and probabilities, or the scores of the duels."""
    x = as_number(as_matrix(x))
    labels = class_labels(classlabels_ints, classlabels_strings)
    count = sum(vectors_per_class)
    if not count:
        scores = sym.matmul(x, fixed(x, np.reshape(coefficients, (len(labels), -1)).T)) + rho[0]
        return named(winner(scores), labels), single(transformed(scores, post_transform))
    features = likeness(x, support_vectors, count, kernel_type, kernel_params)
    duels = sym.matmul(features, fixed(x, duel_weights(coefficients, vectors_per_class))) + fixed(x, rho)
    best = winner(votes(duels, len(labels)))
    if prob_a:
        chances = sym.sigmoid(-(duels * fixed(x, prob_a) + fixed(x, prob_b)))
        scores = coupled(sym.clip(chances, _SURE, 1 - _SURE), len(labels))
    else:
        scores = sym.concat([-duels, duels], 1) if len(rho) == 1 else duels
    return named(best, labels), single(transformed(scores, post_transform))


def likeness(x: Var, vectors: tuple[float, ...], count: int, kernel: str, params: tuple[float, ...]) -> Var:
    """The kernel between rows of x and support vectors, `(N, count)`."""
    support = np.reshape(vectors, (count, -1))
    gamma, coef0, degree = params or (0.0, 0.0, 0.0)
    product = sym.matmul(x, fixed(x, support.T))
    if kernel == "LINEAR":
        return product
    if kernel == "RBF":
        distance = sym.sum(x * x, (1,)) - product * 2.0 + fixed(x, (support * support).sum(axis=1))
        return sym.exp(distance * -gamma)
    scaled = product * gamma + coef0
    if kernel == "SIGMOID":
        return sym.tanh(scaled)
    if kernel == "POLY":
        return x.tape.apply("Pow", scaled, np.int64(degree))
    raise ValueError(f"kernel_type is {kernel!r}; known are LINEAR, POLY, RBF, SIGMOID")


def duel_weights(coefficients: Sequence[float], vectors_per_class: Sequence[int]) -> Array:
    """Weights of the support vectors in the duel of each pair of classes, `(vectors, pairs)`."""
    ends = np.cumsum(vectors_per_class)
    dual = np.reshape(coefficients, (-1, ends[-1]))
    spans = [slice(end - size, end) for end, size in zip(ends, vectors_per_class, strict=True)]
    columns = []
    for i, j in combinations(range(len(spans)), 2):
        column = np.zeros(ends[-1])
        column[spans[i]] = dual[j - 1, spans[i]]
        column[spans[j]] = dual[i, spans[j]]
        columns.append(column)
    return np.stack(columns, axis=1)


def votes(duels: Var, classes: int) -> Var:
    """The number of duels that each class wins, `(N, classes)`."""
    pairs = list(combinations(range(classes), 2))
    first, second = np.zeros((2, len(pairs), classes))
    for pair, (i, j) in enumerate(pairs):
        first[pair, i] = second[pair, j] = 1
    won = sym.cast(duels > 0.0, duels.dtype)
    return sym.matmul(won, fixed(duels, first)) + sym.matmul(1.0 - won, fixed(duels, second))


def coupled(chances: Var, classes: int) -> Var:
    """Probabilities of classes from the probabilities of duels, by libsvm's `multiclass_probability`."""
    rows = quadratic(chances, classes)
    diagonal = [sym.slice(row, (t,), (t + 1,), (1,)) for t, row in enumerate(rows)]
    p = sym.full(chances.tape, (chances.shape[0], classes), 1 / classes, chances.dtype)
    for _ in range(max(100, classes)):
        gradient = sym.concat([sym.sum(row * p, (1,)) for row in rows], 1)
        slope = sym.sum(gradient * p, (1,))
        open_ = sym.max(sym.abs(gradient - slope), (1,)) >= 0.005 / classes
        if not chances.tape.guard(open_).any():
            break
        p = sym.where(open_, swept(p, gradient, slope, rows, diagonal), p)
    return p


def quadratic(chances: Var, classes: int) -> list[Var]:
    """Rows of the quadratic form that the probabilities minimize, `(N, classes)` each."""
    entries: dict[tuple[int, int], Var] = {}
    columns = sym.split(chances, (1,) * chances.shape[1], 1)
    for (i, j), chance in zip(combinations(range(classes), 2), columns, strict=True):
        entries[i, j], entries[j, i] = chance, 1.0 - chance
    rows = []
    for t in range(classes):
        others = [entries[j, t] for j in range(classes) if j != t]
        square = sym.sum(sym.concat([r * r for r in others], 1), (1,))
        rows.append(sym.concat([square if j == t else -entries[j, t] * entries[t, j] for j in range(classes)], 1))
    return rows


def swept(p: Var, gradient: Var, slope: Var, rows: Sequence[Var], diagonal: Sequence[Var]) -> Var:
    """The probabilities after each class in turn has moved to its minimum."""
    for t, (row, own) in enumerate(zip(rows, diagonal, strict=True)):
        here = sym.slice(gradient, (t,), (t + 1,), (1,))
        move = (slope - here) / own
        scale = 1.0 + move
        slope = (slope + move * (move * own + here * 2.0)) / (scale * scale)
        gradient = (gradient + move * row) / scale
        p = (p + move * fixed(p, np.eye(len(rows))[t])) / scale
    return p


CLASSIC: list[Op] = [
    _own("Scaler", scaler),
    _own("Normalizer", normalizer),
    _own("LinearRegressor", linear_regressor, elsewhere_off=probit_off),
    _own("LinearClassifier", linear_classifier, cuts=counting(0), elsewhere_off=probit_off),
    _own("ArrayFeatureExtractor", array_feature_extractor, integers={1: Along(-1)}),
    _own("Binarizer", lambda x, *, threshold=0.0: sym.cast(as_number(x) > threshold, x.dtype), cuts=stepping,
         does="1 above the threshold, else 0."),
    _own("Imputer", imputer),
    _own("FeatureVectorizer", feature_vectorizer),
    _own("SVMRegressor", svm_regressor, elsewhere_off=probit_off),
    _own("SVMClassifier", svm_classifier, cuts=counting(0), elsewhere_off=probit_off),
]  # fmt: skip
