"""Operators that sort and choose."""

import numpy as np

from tests.ops.case import arr, case, ints

BOXES = np.float64([[[0, 0, 10, 10], [0.5, 0, 10.5, 10], [20, 20, 40, 40], [21, 42, 41, 22], [90, 90, 70, 70]]])
SCORES = np.float64([[[0.9, 0.7, 0.3, 0.5, 1.2], [0.1, 0.3, 0.9, 0.7, 0.5]]])

CASES = [
    case("TopK", arr(3, 5), [2], n_outputs=2),
    case("TopK", arr(3, 5), [3], n_outputs=1, largest=0),
    case("TopK", arr(4, 3), [2], n_outputs=2, axis=0, sorted=0),
    case("TopK", ints(2, 6), [4], n_outputs=2, axis=-1),
    case("TopK", arr(4), [0], n_outputs=2, label="none"),
    case("TopK", arr(2, 3, 4), [3], n_outputs=2, axis=1),
    case("Hardmax", arr(3, 4)),
    case("Hardmax", arr(2, 3, 2), axis=1),
    case("Hardmax", arr(2, 0), label="no entries"),
    case("Unique", [2, 1, 1, 3, 4, 3], n_outputs=4, label="duplicates"),
    case("Unique", [2, 1, 1, 3, 4, 3], n_outputs=4, sorted=0, label="duplicates"),
    case("Unique", [[1, 2], [0, 3], [1, 2]], n_outputs=4, axis=0, sorted=0, label="duplicates"),
    case("Unique", arr(2, 3), n_outputs=1),
    case("Unique", arr(4, 2), n_outputs=4, axis=0, sorted=0),
    case("Unique", arr(2, 3), n_outputs=2, axis=-1),
    case("NonMaxSuppression", BOXES, SCORES, [3], [0.3]),
    case("NonMaxSuppression", BOXES, SCORES, 6, 0.4, 0.2, center_point_box=1),
    case("NonMaxSuppression", BOXES, SCORES),
    case("NonMaxSuppression", BOXES, SCORES.round(), [5], [0.3], label="ties"),
    case("NonMaxSuppression", BOXES, np.where(SCORES == 0.9, np.nan, SCORES), [5], [0.3], [0.2], label="not a number"),
    case("NonMaxSuppression", BOXES * [1, 1, 1, 0], SCORES, [5], [0.0], label="no areas"),
    case("NonMaxSuppression", np.concatenate([BOXES, BOXES[:, ::-1]]), np.concatenate([SCORES, SCORES]), [5], [0.3]),
    case("NonMaxSuppression", BOXES[:, :0], SCORES[..., :0], [5], [0.3], label="no boxes"),
]
