"""Support vector machines (domain `ai.onnx.ml`): a regressor, and a classifier by pairs of classes.

The classifier's probabilities come from libsvm's iteration, which stops at a tolerance: it is unrolled as
often as it ran, so that its derivative is that of the numbers it gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, composite, counting
from gradcheck_cli.ops.ml.classic import (
    DOMAIN,
    as_matrix,
    as_number,
    class_labels,
    fixed,
    named,
    single,
    transformed,
    winner,
)

_SURE = 1e-7  # probabilities of a pair of classes are at least this far from 0 and 1


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


SVM: list[Op] = [
    composite("SVMRegressor", svm_regressor, domain=DOMAIN),
    composite("SVMClassifier", svm_classifier, domain=DOMAIN, cuts=counting(0)),
]
