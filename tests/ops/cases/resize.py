"""Resizing."""

from typing import Any

import numpy as np

from tests.ops.case import Case, arr, case


def scaled(x: Any, *scales: float, **attrs: Any) -> Case:
    """Resize by scales."""
    return case("Resize", x, None, np.asarray(scales, np.float32), **attrs)


def sized(x: Any, *sizes: int, **attrs: Any) -> Case:
    """Resize to sizes."""
    return case("Resize", x, None, None, np.asarray(sizes, np.int64), **attrs)


TRANSFORMATIONS = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
ROI = np.asarray([0, 0, 0.2, -0.3, 1, 1, 0.7, 1.2], np.float32)

CASES = [
    scaled(arr(1, 2, 3, 2), 1, 1, 2, 3),
    scaled(arr(1, 1, 4, 5), 1, 1, 0.6, 0.5),
    *(
        scaled(arr(1, 1, 5, 4), 1, 1, 1.7, 0.6, nearest_mode=m)
        for m in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    ),
    *(
        sized(arr(1, 1, 3, 4), 1, 1, 5, 3, mode=m, coordinate_transformation_mode=t)
        for m in ("nearest", "linear", "cubic")
        for t in TRANSFORMATIONS
    ),
    *(
        scaled(arr(1, 1, 5, 4), 1, 1, 0.5, 1.6, mode="linear", coordinate_transformation_mode=t)
        for t in TRANSFORMATIONS
    ),
    sized(arr(1, 1, 3, 4), 1, 1, 1, 1, mode="linear", coordinate_transformation_mode="align_corners"),
    sized(arr(1, 1, 3, 4), 1, 1, 1, 1, mode="cubic", coordinate_transformation_mode="pytorch_half_pixel"),
    scaled(arr(1, 1, 4, 3), 1, 1, 1.5, 2, mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1),
    scaled(arr(1, 1, 6, 5), 1, 1, 0.4, 0.6, mode="linear", antialias=1),
    scaled(arr(1, 1, 6, 5), 1, 1, 0.4, 1.6, mode="cubic", antialias=1, exclude_outside=1),
    sized(arr(2, 3, 4, 2), 4, 6, axes=(3, 1), mode="linear"),
    sized(arr(1, 1, 4, 2), 7, 8, axes=(-2, -1), keep_aspect_ratio_policy="not_larger", mode="linear"),
    sized(arr(1, 1, 4, 2), 7, 3, axes=(2, 3), keep_aspect_ratio_policy="not_smaller", mode="linear"),
    case(
        "Resize",
        arr(1, 1, 4, 5),
        ROI,
        None,
        np.asarray([1, 1, 3, 4]),
        mode="linear",
        extrapolation_value=10.0,
        coordinate_transformation_mode="tf_crop_and_resize",
    ),
    case(
        "Resize",
        arr(1, 1, 4, 5),
        ROI[[2, 3, 6, 7]],
        None,
        np.asarray([3, 1]),
        mode="cubic",
        axes=(2, 3),
        coordinate_transformation_mode="tf_crop_and_resize",
    ),
    scaled(arr(2, 5), 2, 1.2, mode="linear"),
    scaled(arr(4), 2.5, mode="cubic"),
    scaled(arr(1, 2, 2, 3, 2), 1, 1, 2, 1, 1.5, mode="linear"),
    scaled(arr(1, 2, 3, 3), 1, 1, 1, 1, mode="linear", label="nothing to do"),
    scaled(arr(0, 2, 3, 3), 1, 1, 2, 2, mode="linear", label="empty"),
    scaled(arr(1, 1, 1, 1), 1, 1, 3, 3, mode="cubic"),
]
