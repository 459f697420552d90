"""Sampling between entries."""

from typing import Any

import numpy as np

from tests.ops.case import Case, arr, case, ints

MODES, PADDINGS = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")


def sampled(*space: int, points: tuple[int, ...], reach: float = 1.5, n: int = 1, c: int = 2, **attrs: Any) -> Case:
    """GridSample of an image at random points up to `reach`, those beyond 1 lying outside."""
    grid = arr(n, *points, len(space), low=-reach, high=reach)
    return case("GridSample", arr(n, c, *space), grid, **attrs)


ON_ENTRIES = np.array([[[[-1.0, -1.0], [0.5, 1.0], [0.3, -0.4], [0.77, 0.15], [-0.2, 0.61]]]])  # two of five
HALF_WAY = np.array([[[[-0.5, 0.1], [0.25, 0.4], [0.6, -0.2]]]])  # one of six

CASES = [
    *(
        sampled(4, 5, points=(2, 3), mode=m, padding_mode=p, align_corners=corners)
        for m in MODES
        for p in PADDINGS
        for corners in (0, 1)
    ),
    *(sampled(3, 2, 4, points=(2, 1, 3), mode=m, padding_mode=p) for m in ("linear", "nearest") for p in PADDINGS),
    sampled(3, 2, 4, points=(1, 2, 2), padding_mode="border", align_corners=1),
    *(sampled(3, 2, 4, points=(1, 1, 2), c=1, mode="cubic", padding_mode=p) for p in PADDINGS),
    *(sampled(6, points=(4,), mode=m, padding_mode=p) for m in MODES for p in PADDINGS),
    sampled(2, 3, 2, 3, points=(1, 2, 1, 2), c=1, padding_mode="reflection", align_corners=1),
    *(sampled(3, 4, points=(3, 2), reach=6.0, mode=m, padding_mode=p) for m in MODES for p in PADDINGS[1:]),
    *(sampled(1, 4, points=(2, 2), padding_mode=p, align_corners=corners) for p in PADDINGS for corners in (0, 1)),
    *(sampled(1, 1, points=(1, 3), mode="cubic", padding_mode=p, align_corners=1) for p in PADDINGS),
    sampled(4, 3, points=(2, 2), n=3),
    case("GridSample", arr(1, 2, 3, 5), ON_ENTRIES, align_corners=1, label="on entries"),
    case("GridSample", arr(1, 2, 3, 5), ON_ENTRIES, align_corners=1, mode="cubic", label="on entries"),
    case("GridSample", arr(1, 1, 4, 4), HALF_WAY, mode="nearest", label="half way"),
    sampled(3, 3, points=(0, 2), label="no points"),
    case("GridSample", arr(0, 2, 3, 3), arr(0, 2, 2, 2), label="empty"),
    case("GridSample", arr(1, 0, 3, 3), arr(1, 2, 2, 2), label="no channels"),
    case("GridSample", arr(1, 2, 0, 3), arr(1, 2, 2, 2), label="no entries"),
    case("GridSample", ints(1, 2, 3, 4, low=-9, high=9), arr(1, 2, 3, 2), label="integers"),
    case("GridSample", ints(1, 2, 3, 4, low=-9, high=9), arr(1, 2, 3, 2), mode="nearest", label="integers"),
    case("GridSample", np.array([[[["a", "b"]]]], object), arr(1, 2, 2, 2), mode="nearest", label="strings"),
    *(
        case("AffineGrid", arr(size[0], r, r + 1), list(size), align_corners=corners, label=label)
        for r, size, label in [
            (2, (2, 3, 4, 5), ""),
            (3, (1, 2, 3, 2, 4), ""),
            (2, (1, 1, 1, 3), "one row"),
            (2, (2, 1, 2, 1), "one column"),
        ]
        for corners in (0, 1)
    ),
    case("AffineGrid", arr(0, 2, 3), [0, 1, 2, 2], label="empty"),
]
