"""Samplers where they are awkward: on entries, at ties, far outside, and where an image is not finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import gradcheck_cli as gc
from tests.ops.case import Case, arr, case
from tests.ops.test_onnxruntime import model, narrow

ON_ENTRIES = np.array([[[[-1.0, 0.5], [0.0, 0.3]]]])
BETWEEN = np.array([[[[-0.8, 0.6], [0.2, 0.3]]]])
EVEN = np.zeros((1, 1, 4, 4))
BOX = np.array([[0.3, 0.4, 3.1, 3.3]])


def statuses(case: Case, tmp_path: Path) -> dict[str, str]:
    """Status of the gradient by each float input; "kink" where it passes at ties, as one of the slopes."""
    feeds = {name: narrow(value) for name, value in case.feeds.items()}
    onnx.save(model(case, feeds), tmp_path / "model.onnx")
    loaded = gc.load(tmp_path / "model.onnx")
    others = {name: value for name, value in feeds.items() if name not in case.floats()}
    report = gc.check(loaded, case.floats(), x_init_value={n: feeds[n] for n in case.floats()}, extra_feed_dict=others)
    return {one.x: "kink" if one.entries["kink_ok"] and one.status == "pass" else one.status for one in report.checks}


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (case("GridSample", arr(1, 2, 5, 5), ON_ENTRIES, align_corners=1), ("pass", "kink")),
        (case("GridSample", arr(1, 2, 5, 5), BETWEEN, align_corners=1), ("pass", "pass")),
        (case("GridSample", arr(1, 2, 5, 5), ON_ENTRIES, align_corners=1, mode="cubic"), ("pass", "pass")),
        (case("GridSample", arr(1, 2, 5, 5), ON_ENTRIES, align_corners=1, padding_mode="reflection"),
         ("pass", "kink")),
        (case("DeformConv", arr(1, 1, 3, 3), arr(1, 1, 2, 2), np.zeros((1, 8, 2, 2))), ("pass", "pass", "kink")),
        (case("RoiAlign", arr(1, 1, 4, 4), BOX, [0], mode="max", sampling_ratio=2), ("pass", "pass")),
        (case("RoiAlign", EVEN, BOX, [0], mode="max", sampling_ratio=2), ("kink", "pass")),
        (case("MaxRoiPool", arr(1, 1, 4, 4), [[0, 0.1, 0.2, 2.9, 3.2]], pooled_shape=(2, 1)), ("pass", "severed")),
        (case("MaxRoiPool", EVEN, [[0, 0.1, 0.2, 2.9, 3.2]], pooled_shape=(2, 1)), ("kink", "severed")),
        (case("Det", np.arange(9.0).reshape(3, 3)), ("pass",)),
    ],
    ids=lambda v: v.id if isinstance(v, Case) else "",
)  # fmt: skip
def test_at_a_tie_a_gradient_is_one_of_the_slopes_and_elsewhere_the_slope(
    case: Case, expected: tuple[str, ...], tmp_path: Path
) -> None:
    assert tuple(statuses(case, tmp_path).values()) == expected


def sampled(x: Any, grid: Any, **attrs: Any) -> list[Any]:
    """The samples of an image, in a row."""
    return case("GridSample", x, grid, **attrs).tape().named["y0"].value.ravel().tolist()


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_beyond_the_edge_lie_zeros_whatever_the_entry_at_the_edge_is(mode: str) -> None:
    image = np.array([[[[np.inf, 1.0, 2.0, np.nan]]]])
    assert sampled(image, [[[[-3.5, 0.0], [4.0, 9.0], [0.1, -7.0]]]], mode=mode) == [0, 0, 0]


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("far", [1e5, 1e18, 1e30, 1e300, np.inf])
def test_however_far_outside_a_sample_is_zero_or_the_entry_at_the_edge(mode: str, far: float) -> None:
    image, grid = np.array([[[[3.0, 1.0, 2.0, 7.0]]]]), [[[[-far, 0.0], [far, 0.0]]]]
    assert sampled(image, grid, mode=mode, align_corners=1) == [0, 0]
    assert sampled(image, grid, mode=mode, align_corners=1, padding_mode="border") == [3, 7]


def test_what_is_no_number_has_no_sample() -> None:
    assert np.isnan(sampled(np.ones((1, 1, 2, 2)), [[[[np.nan, 0.0]]]])).all()


def test_a_region_without_width_has_no_samples() -> None:
    y = case("RoiAlign", arr(1, 2, 4, 4), [[2.0, 1.0, 2.0, 3.0], [3.0, 1.0, 1.0, 3.0]], [0, 0]).tape().named["y0"]
    assert not y.value.any()


def test_the_images_of_regions_are_drawn_among_those_that_exist(tmp_path: Path) -> None:
    regions = case("RoiAlign", arr(1, 1, 4, 4), BOX, [0], sampling_ratio=1)
    onnx.save(model(regions, {name: narrow(value) for name, value in regions.feeds.items()}), tmp_path / "model.onnx")
    assert gc.check(gc.load(tmp_path / "model.onnx")).exit_code == 0
