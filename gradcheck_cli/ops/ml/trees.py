"""Ensembles of decision trees (domain `ai.onnx.ml`): piecewise constant, so that nothing flows through them.

Attributes become a `Forest` when a node is bound: all trees in one table of nodes, in which a leaf points
to itself. All samples walk down all trees at once.  The leaves they reach are the branch of the operator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradcheck_cli.errors import ModelError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, stepping, zero
from gradcheck_cli.op.batching import Kernel, trailing
from gradcheck_cli.ops.ml.classic import probit, probit_off
from gradcheck_cli.ops.shape import checked

DOMAIN = "ai.onnx.ml"
_MODES = (*(f"BRANCH_{test}" for test in ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")), "LEAF")
_TESTS: tuple[Kernel, ...] = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
_MEMBER, _LEAF = 6, 7
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@dataclass(frozen=True, eq=False)
class Forest:
    """All nodes of all trees; `votes` are `(nodes, targets)`, NaN if a leaf has no vote for a target."""

    roots: Array
    mode: Array
    feature: Array
    value: Array
    yes: Array
    no: Array
    missing: Array
    votes: Array
    base: Array
    aggregate: str = "SUM"
    post_transform: str = "NONE"
    labels: Any = None  # of a classifier: an array
    only_second: bool = False
    members: dict[int, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.post_transform not in _TRANSFORMS or self.aggregate not in _AGGREGATES:
            raise ModelError(f"post_transform {self.post_transform!r} or aggregate {self.aggregate!r} is not known")
        count, walks = len(self.mode), np.concatenate([self.roots, self.yes, self.no])
        if not count or walks.min() < 0 or walks.max() >= count:
            raise ModelError("a tree leads to a node that does not exist")
        if self.feature.min() < 0:
            raise ModelError("a node tests a feature of negative number")

    def leaves(self, x: Array) -> Array:
        """The node at which each sample `(N, F)` ends in each tree, `(N, trees)`."""
        at = np.broadcast_to(self.roots, (len(x), len(self.roots)))
        inner = self.mode != _LEAF
        if inner.any() and self.feature[inner].max() >= x.shape[1]:
            raise ValueError(f"a tree tests feature {self.feature[inner].max()} of {x.shape[1]}")
        for _ in range(len(self.mode) + 1):
            if not inner[at].any():
                return at
            seen = np.take_along_axis(x, np.where(inner[at], self.feature[at], 0), axis=1)
            at = np.where(self._holds(at, seen), self.yes[at], self.no[at])
        raise ValueError("a tree leads back to itself")

    def _holds(self, at: Array, seen: Array) -> Array:
        holds, mode, value = np.zeros(at.shape, bool), self.mode[at], self.value[at]
        for code, test in enumerate(_TESTS):
            holds |= (mode == code) & test(seen, value)
        for node, members in self.members.items():
            holds |= (at == node) & np.isin(seen, members)
        return holds | (np.isnan(seen) & self.missing[at])

    def scores(self, leaves: Array, dtype: Any) -> Array:
        """Votes of all leaves reached, aggregated, `(N, targets)`."""
        total = np.full((len(leaves), self.votes.shape[1]), np.nan)
        combine: Kernel = {"MIN": np.fmin, "MAX": np.fmax}.get(self.aggregate, _add)
        for tree in range(leaves.shape[1]):
            total = combine(total, self.votes[leaves[:, tree]])
        total = np.where(np.isnan(total), 0.0, total)
        if self.aggregate == "AVERAGE":
            total = total / leaves.shape[1]
        return np.asarray((total + self.base).astype(dtype))


def _add(a: Array, b: Array) -> Array:
    return np.where(np.isnan(a), b, np.where(np.isnan(b), a, a + b))


def classifier_forest(
    *, base_values: Sequence[float] = (), base_values_as_tensor: Array | None = None,
    class_ids: Sequence[int], class_nodeids: Sequence[int], class_treeids: Sequence[int],
    class_weights: Sequence[float] = (), class_weights_as_tensor: Array | None = None,
    classlabels_int64s: Sequence[int] = (), classlabels_strings: Sequence[str] = (),
    post_transform: str = "NONE", **nodes: Any,
) -> Forest:  # fmt: skip
    """A forest with labels; runtimes count votes for only the first class of two as votes for the second."""
    labels = np.asarray(classlabels_strings, object) if classlabels_strings else np.asarray(classlabels_int64s)
    weights = _values(class_weights, class_weights_as_tensor)
    only_second = len(labels) == 2 and set(class_ids) == {0}
    votes = class_treeids, class_nodeids, class_ids, weights
    base = _values(base_values, base_values_as_tensor)
    return _forest(nodes, votes, 1 if only_second else len(labels), base[-1:] if only_second else base,
                   post_transform=post_transform, labels=labels, only_second=only_second)  # fmt: skip


def regressor_forest(
    *, aggregate_function: str = "SUM", base_values: Sequence[float] = (),
    base_values_as_tensor: Array | None = None, n_targets: int = 1, post_transform: str = "NONE",
    target_ids: Sequence[int], target_nodeids: Sequence[int], target_treeids: Sequence[int],
    target_weights: Sequence[float] = (), target_weights_as_tensor: Array | None = None, **nodes: Any,
) -> Forest:  # fmt: skip
    """A forest with targets."""
    votes = target_treeids, target_nodeids, target_ids, _values(target_weights, target_weights_as_tensor)
    base = _values(base_values, base_values_as_tensor)
    return _forest(nodes, votes, n_targets, base, aggregate=aggregate_function, post_transform=post_transform)


def _nodes(
    *, nodes_falsenodeids: Sequence[int], nodes_featureids: Sequence[int], nodes_hitrates: Any = None,
    nodes_hitrates_as_tensor: Any = None, nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_modes: Sequence[str], nodes_nodeids: Sequence[int], nodes_treeids: Sequence[int],
    nodes_truenodeids: Sequence[int], nodes_values: Sequence[float] = (),
    nodes_values_as_tensor: Array | None = None,
) -> tuple[dict[tuple[int, int], int], dict[str, Any]]:  # fmt: skip
    """The position of each tree's nodes in the table, and the table's columns."""
    places = {key: i for i, key in enumerate(zip(nodes_treeids, nodes_nodeids, strict=True))}
    known = {name: code for code, name in enumerate(_MODES)}
    if unknown := set(nodes_modes) - set(known):
        raise ModelError(f"nodes_modes holds {min(unknown)!r}; known are {', '.join(_MODES)}")
    mode = np.asarray([known[m] for m in nodes_modes])
    here = np.arange(len(mode))
    first: dict[int, int] = {}
    for place, tree in enumerate(nodes_treeids):
        first.setdefault(tree, place)
    yes, no = (
        np.asarray([places.get((t, n), -1) for t, n in zip(nodes_treeids, ids, strict=True)])
        for ids in (nodes_truenodeids, nodes_falsenodeids)
    )
    columns = {
        "roots": np.asarray([*first.values()], np.int64),
        "mode": mode,
        "feature": np.asarray(nodes_featureids),
        "value": _values(nodes_values, nodes_values_as_tensor),
        "yes": np.where(mode == _LEAF, here, yes),
        "no": np.where(mode == _LEAF, here, no),
        "missing": _flags(nodes_missing_value_tracks_true, len(mode)),
    }
    return places, columns


def _forest(nodes: dict[str, Any], votes: tuple[Any, ...], targets: int, base: Array, **more: Any) -> Forest:
    places, columns = _nodes(**nodes)
    table = np.full(checked((len(places), targets)), np.nan)
    for tree, node, target, weight in zip(*votes, strict=True):
        if (tree, node) not in places or not 0 <= target < targets:
            raise ModelError(f"a vote is for target {target} at node {node} of tree {tree}; there is no such thing")
        row = table[places[tree, node]]
        row[target] = weight if np.isnan(row[target]) else row[target] + weight
    return Forest(**columns, votes=table, base=base if base.size else np.zeros(targets), **more)


def modern_forest(
    *, aggregate_function: int = 1, leaf_targetids: Sequence[int], leaf_weights: Array,
    membership_values: Array | None = None, n_targets: int = 1, nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int], nodes_featureids: Sequence[int], nodes_hitrates: Any = None,
    nodes_missing_value_tracks_true: Sequence[int] = (), nodes_modes: Array, nodes_splits: Array,
    nodes_trueleafs: Sequence[int], nodes_truenodeids: Sequence[int], post_transform: int = 0,
    tree_roots: Sequence[int],
) -> Forest:  # fmt: skip
    """A forest whose leaves stand behind the inner nodes."""
    inner, leaves = len(nodes_modes), len(leaf_targetids)
    behind = np.arange(inner, inner + leaves)
    yes = np.asarray(nodes_truenodeids) + inner * np.asarray(nodes_trueleafs)
    no = np.asarray(nodes_falsenodeids) + inner * np.asarray(nodes_falseleafs)
    table = np.full(checked((inner + leaves, n_targets)), np.nan)
    table[behind, np.asarray(leaf_targetids)] = np.asarray(leaf_weights, np.float64)
    mode = np.concatenate([np.asarray(nodes_modes, np.int64), np.full(leaves, _LEAF)])
    nothing = np.zeros(leaves)
    return Forest(
        roots=np.asarray(tree_roots),
        mode=mode,
        feature=np.concatenate([np.asarray(nodes_featureids), nothing.astype(np.int64)]),
        value=np.concatenate([np.asarray(nodes_splits, np.float64), nothing]),
        yes=np.concatenate([yes, behind]),
        no=np.concatenate([no, behind]),
        missing=np.concatenate([_flags(nodes_missing_value_tracks_true, inner), nothing.astype(bool)]),
        votes=table,
        base=np.zeros(n_targets),
        members=_members(mode, membership_values),
        aggregate=_named(_AGGREGATES, aggregate_function),
        post_transform=_named(_TRANSFORMS, post_transform),
    )


def _members(mode: Array, values: Array | None) -> dict[int, Array]:
    """The set of each node that tests membership: lists in one vector, each ended by NaN."""
    nodes = np.flatnonzero(mode == _MEMBER)
    flat = np.asarray([] if values is None else values, np.float64)
    sets = np.split(flat, np.flatnonzero(np.isnan(flat)) + 1)[: len(nodes)]
    if len(sets) < len(nodes) or (len(nodes) and np.isnan(flat).sum() < len(nodes)):
        raise ModelError("membership_values does not hold a set for each node that tests membership")
    return {int(node): members[:-1] for node, members in zip(nodes, sets, strict=True)}


def _named(names: Sequence[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else str(number)


def _values(floats: Sequence[float], tensor: Array | None) -> Array:
    return np.asarray(floats if tensor is None else tensor, np.float64)


def _flags(values: Sequence[int], count: int) -> Array:
    return np.asarray(values, bool) if len(values) else np.zeros(count, bool)


def regress(x: Array, *, forest: Forest) -> Array:
    """Scores of the targets, transformed."""
    rows = _rows(x)
    scores = forest.scores(forest.leaves(rows), rows.dtype)
    return _transform(scores, forest.post_transform).reshape(*x.shape[:-1], -1)


def classify(x: Array, *, forest: Forest) -> tuple[Array, Array]:
    """The label of the highest score, and all scores, transformed."""
    rows = _rows(x)
    raw = forest.scores(forest.leaves(rows), rows.dtype)
    if forest.only_second:
        best, scores = _of_two(raw, forest)
    else:
        best, scores = np.argmax(raw, axis=1), _transform(raw, forest.post_transform)
    labels = forest.labels[best] if forest.labels.size else best
    return labels.reshape(x.shape[:-1]), scores.reshape(*x.shape[:-1], -1)


def _of_two(raw: Array, forest: Forest) -> tuple[Array, Array]:
    """Scores of two classes: probabilities if no vote is negative, else a margin, as runtimes decide by the weights."""
    probabilities = np.nanmin(forest.votes) >= 0
    best = (raw[:, 0] > (0.5 if probabilities else 0.0)).astype(np.int64)
    if forest.post_transform == "PROBIT":
        return best, _transform(raw, "PROBIT")
    if forest.post_transform == "LOGISTIC":
        return best, _transform(np.concatenate([-raw, raw], axis=1), "LOGISTIC")
    return best, np.concatenate([1 - raw if probabilities else -raw, raw], axis=1)


def _transform(scores: Array, name: str) -> Array:
    """Scores transformed as the attribute `post_transform` says."""
    if name == "LOGISTIC":
        return np.asarray(1 / (1 + np.exp(-scores)))
    if name == "PROBIT":
        return np.asarray(probit(scores, np))
    if name not in ("SOFTMAX", "SOFTMAX_ZERO"):
        return scores
    high = scores.max(axis=1, keepdims=True)
    grown = np.exp(scores - high)
    if name == "SOFTMAX_ZERO":
        grown = np.where(np.abs(scores) > 1e-7, grown, scores * np.exp(-high))
    total = grown.sum(axis=1, keepdims=True)
    return np.where(total == 0, 0.5, grown / np.where(total == 0, 1, total))


def leaves(x: Array, *, forest: Forest) -> Array:
    """The leaf that each sample reaches in each tree."""
    return forest.leaves(_rows(x)).reshape(*x.shape[:-1], -1)


def _rows(x: Array) -> Array:
    if x.ndim < 2:
        raise ValueError("samples are the rows of a matrix")
    real = x.real if x.dtype.kind in "fc" else x.astype(np.float32)
    return real.reshape(-1, x.shape[-1])


def _planted(name: str, kernel: Kernel, plant: Callable[..., Forest], *more: Kernel, many: bool = False) -> Op:
    """An operator whose attributes become its forest."""

    def forward(x: Array, *, forest: Forest) -> Any:
        return kernel(x, forest=forest)

    def bind(metadata: dict[str, Any], x: Array) -> dict[str, Any]:
        return {"forest": plant(**metadata)}

    taken = [p for f in (plant, *more) for p in inspect.signature(f).parameters.values() if p.kind is p.KEYWORD_ONLY]
    forward.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    return Op(name, forward, zero, trailing, DOMAIN, cuts=stepping, branch=leaves, bind=bind, many=many,
              elsewhere_off=probit_off)  # fmt: skip


TREES: list[Op] = [
    _planted("TreeEnsemble", regress, modern_forest),
    _planted("TreeEnsembleRegressor", regress, regressor_forest, _nodes),
    _planted("TreeEnsembleClassifier", classify, classifier_forest, _nodes, many=True),
]
