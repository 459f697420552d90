"""Pools over regions of interest."""

from typing import Any

import numpy as np

from tests.ops.case import Case, arr, case

REGIONS = np.array([[0.6, 0.8, 4.3, 3.1], [1.7, 0.2, 5.9, 6.6], [2.1, 2.3, 2.8, 2.6]])
OUTSIDE = np.array([[-3.2, -0.7, 2.4, 3.3], [3.6, 2.9, 9.4, 8.3], [-9.1, 1.2, -4.3, 3.9], [3.3, 4.6, 1.2, 2.2]])
INSIDE = np.array([[0, 1, 1, 4, 3], [1, 0, 0, 5, 5], [0, 2, 3, 2, 3]]) * 1.0
BEYOND = np.array([[1, 4, 2, 9, 9], [0, -6, 1, -3, 2], [1, 3, 4, 1, 2]]) * 1.0

SIZE = {"output_height": 2, "output_width": 3}
CORNERS = ("half_pixel", "output_half_pixel")


def aligned(regions: np.ndarray, *batch: int, c: int = 2, **attrs: Any) -> Case:
    """RoiAlign of two images of 6 x 7 entries."""
    return case("RoiAlign", arr(2, c, 6, 7), regions, np.array(batch, np.int64), **attrs)


CASES = [
    *(
        aligned(REGIONS, 0, 1, 1, mode=mode, sampling_ratio=ratio, coordinate_transformation_mode=corners, **SIZE)
        for mode in ("avg", "max")
        for ratio in (0, 1, 2)
        for corners in CORNERS
    ),
    *(
        aligned(OUTSIDE, 0, 1, 0, 1, mode=mode, sampling_ratio=ratio, coordinate_transformation_mode=corners)
        for mode in ("avg", "max")
        for ratio in (0, 2)
        for corners in CORNERS
    ),
    aligned(4 * REGIONS, 1, 0, 1, spatial_scale=0.25, output_height=3, output_width=2),
    aligned(REGIONS, 1, 1, 1),
    aligned(REGIONS[:0], label="no regions"),
    case("RoiAlign", arr(1, 1, 1, 1), REGIONS[:1], [0], output_height=2, label="one entry"),
    case("RoiAlign", arr(1, 0, 3, 3), REGIONS[:1], [0], label="no channels"),
    *(case("MaxRoiPool", arr(2, 2, 6, 7), INSIDE, pooled_shape=shape) for shape in [(2, 2), (3, 1), (7, 7)]),
    *(case("MaxRoiPool", arr(2, 2, 6, 7), BEYOND, pooled_shape=shape) for shape in [(2, 3), (7, 7)]),
    case("MaxRoiPool", arr(2, 1, 6, 7), INSIDE * [1, 3, 3, 3, 3], pooled_shape=(2, 2), spatial_scale=0.4),
    case("MaxRoiPool", arr(1, 1, 4, 4), [[0, 0.5, 1.5, 2.4, 2.6]], pooled_shape=(2, 1), label="halves"),
    case("MaxRoiPool", arr(1, 2, 4, 4), np.zeros((0, 5)), pooled_shape=(2, 1), label="no regions"),
    case("MaxRoiPool", arr(1, 1, 4, 5) - 50.0, INSIDE[:1], pooled_shape=(2, 2), label="all negative"),
]
