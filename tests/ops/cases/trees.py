"""Ensembles of decision trees: modes, missing values, votes, aggregates, transforms."""

from typing import Any

import numpy as np

from tests.ops.case import Case, arr, case

X = arr(5, 3)
HOLED = np.where(X > 1.2, np.nan, X)
THRESHOLDS = (0.25, -0.5, 0.0, 0.5, -0.25, 0.75)
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def ml(op: str, x: np.ndarray, label: str, **attrs: Any) -> Case:
    """A case of the domain."""
    return case(op, x, domain="ai.onnx.ml", n_outputs=2 if op.endswith("Classifier") else 1, label=label, **attrs)


def nodes(trees: int, modes: tuple[str, ...] = MODES[:1], missing: bool = False) -> dict[str, Any]:
    """Trees of three tests and four leaves."""
    count = 7 * trees
    inner = [i % 7 < 3 for i in range(count)]
    return {
        "nodes_treeids": tuple(i // 7 for i in range(count)),
        "nodes_nodeids": tuple(i % 7 for i in range(count)),
        "nodes_truenodeids": tuple(2 * (i % 7) + 1 if test else 0 for i, test in enumerate(inner)),
        "nodes_falsenodeids": tuple(2 * (i % 7) + 2 if test else 0 for i, test in enumerate(inner)),
        "nodes_featureids": tuple((i + i // 7) % 3 if test else 0 for i, test in enumerate(inner)),
        "nodes_values": tuple(THRESHOLDS[i % 6] if test else 0.0 for i, test in enumerate(inner)),
        "nodes_modes": tuple(modes[i % len(modes)] if test else "LEAF" for i, test in enumerate(inner)),
        "nodes_missing_value_tracks_true": tuple(int(missing and i % 2 == 0) for i in range(count)),
    }


def votes(kind: str, trees: int, targets: int, signed: bool = True, only: int | None = None) -> dict[str, Any]:
    """A vote of every leaf for every target, or for one."""
    chosen = range(targets) if only is None else (only,)
    listed = [(t, leaf, c) for t in range(trees) for leaf in range(3, 7) for c in chosen]
    weights = np.round(arr(len(listed), low=-1.0 if signed else 0.0, high=1.0) * 64) / 64 / (1 if signed else trees)
    return {
        f"{kind}_treeids": tuple(t for t, _, _ in listed),
        f"{kind}_nodeids": tuple(leaf for _, leaf, _ in listed),
        f"{kind}_ids": tuple(c for _, _, c in listed),
        f"{kind}_weights": tuple(weights.tolist()),
    }


def regressor(
    label: str,
    x: np.ndarray = X,
    *,
    trees: int = 2,
    targets: int = 2,
    modes: tuple[str, ...] = MODES[:1],
    missing: bool = False,
    **more: Any,
) -> Case:
    """A regressor."""
    planted = {**nodes(trees, modes, missing), **votes("target", trees, targets)}
    return ml("TreeEnsembleRegressor", x, label, n_targets=targets, **planted, **more)


def classifier(label: str, *, classes: int = 3, signed: bool = True, only: int | None = None, **more: Any) -> Case:
    """A classifier with integer labels."""
    planted = {**nodes(2), **votes("class", 2, classes, signed, only)}
    names = (
        {}
        if "classlabels_strings" in more
        else {"classlabels_int64s": tuple(range(20, 20 + classes)) if classes > 2 else (0, 1)}
    )
    return ml("TreeEnsembleClassifier", X, label, **planted, **names, **more)


def modern(label: str, x: np.ndarray = X, modes: tuple[int, ...] = (0, 3), **more: Any) -> Case:
    """Two trees, of two tests and of one."""
    return ml(
        "TreeEnsemble",
        x,
        label,
        n_targets=2,
        tree_roots=(0, 2),
        nodes_featureids=(0, 1, 2),
        nodes_modes=np.array([modes[0], modes[1], modes[0]], np.uint8),
        nodes_splits=np.array([0.25, -0.5, 0.125]),
        nodes_truenodeids=(1, 0, 3),
        nodes_trueleafs=(0, 1, 1),
        nodes_falsenodeids=(2, 1, 4),
        nodes_falseleafs=(1, 1, 1),
        leaf_targetids=(0, 1, 0, 1, 0),
        leaf_weights=np.array([0.5, -1.0, 2.0, 0.25, -0.75]),
        **more,
    )


CASES = [
    regressor("one target", targets=1, trees=3),
    regressor("two targets"),
    regressor("all modes", modes=MODES),
    regressor("missing to the right", HOLED),
    regressor("missing to the left", HOLED, missing=True),
    *[regressor(a, aggregate_function=a, base_values=(0.5, -0.25)) for a in ("SUM", "AVERAGE", "MIN", "MAX")],
    *[regressor(t, post_transform=t) for t in ("SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")],
    *[classifier(t, post_transform=t) for t in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")],
    classifier("PROBIT", signed=False, post_transform="PROBIT"),
    classifier("base", base_values=(0.5, 0.25, -1.0)),
    classifier("strings", classlabels_strings=("a", "b", "c")),
    classifier("two classes", classes=2),
    classifier("the second of two", classes=2, only=1, post_transform="LOGISTIC"),
    *[classifier(f"margin {t}", classes=2, only=0, post_transform=t) for t in ("NONE", "LOGISTIC", "SOFTMAX")],
    *[
        classifier(f"probability {t}", classes=2, only=0, signed=False, post_transform=t)
        for t in ("NONE", "LOGISTIC", "SOFTMAX")
    ],
    modern("sum"),
    modern("missing", HOLED, nodes_missing_value_tracks_true=(1, 0, 1)),
    *[modern(f"aggregate {a}", aggregate_function=a) for a in (0, 2, 3)],
    modern("members", np.round(X), modes=(6, 0), membership_values=np.array([1.0, 0.0, np.nan, -1.0, np.nan])),
    modern("softmax", post_transform=1),
]
