"""Losses of class scores."""

import numpy as np

from tests.ops.case import Case, arr, case, ints

LABELS = ints(4, high=2)
SPACE = ints(2, 3, 2, high=3)
IGNORED = np.array([0, 2, -1, 1])
WEIGHTS = arr(3, low=0.5, high=2.0)


def both(scores: np.ndarray, *more: np.ndarray, label: str = "", **attrs: object) -> list[Case]:
    """A case of either loss, the second one with both outputs."""
    return [
        case("NegativeLogLikelihoodLoss", scores, *more, label=label, **attrs),
        case("SoftmaxCrossEntropyLoss", scores, *more, n_outputs=2, label=label, **attrs),
    ]


CASES = [
    *both(arr(4, 3), LABELS),
    *both(arr(4, 3), LABELS, reduction="sum"),
    *both(arr(4, 3), LABELS, reduction="none"),
    *both(arr(4, 3), LABELS, WEIGHTS),
    *both(arr(4, 3), LABELS, WEIGHTS, reduction="sum"),
    *both(arr(4, 3), LABELS, WEIGHTS, reduction="none"),
    *both(arr(4, 3), LABELS.astype(np.int32), label="int32"),
    *both(arr(4, 3), IGNORED, ignore_index=-1),
    *both(arr(4, 3), IGNORED, WEIGHTS, ignore_index=-1),
    *both(arr(4, 3), LABELS, ignore_index=2),
    *both(arr(4, 3), LABELS, WEIGHTS, ignore_index=2, reduction="none"),
    *both(arr(2, 4, 3, 2), SPACE),
    *both(arr(2, 4, 3, 2), SPACE, arr(4, low=0.5, high=2.0), ignore_index=1),
    *both(arr(2, 1, 3), ints(2, 3, high=0), reduction="none", label="one class"),
    case("SoftmaxCrossEntropyLoss", arr(4, 3) * 500, LABELS, label="wide"),
]
