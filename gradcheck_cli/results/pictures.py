"""What pictures are drawn from, as far as a record holds it; shapes and sizes are looked at before they are believed."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, get_args

from gradcheck_cli.results.typed import Unfit, reader

if TYPE_CHECKING:
    from gradcheck_cli.results.picture import Curve, Picture

_LARGEST_PICTURE = 5000.0  # no severity is beyond
_TILE: Mapping[str, Any] = {
    "over": str,
    "sizes": tuple[int, ...],
    "shape": tuple[int, ...],
    "cells": tuple[float | None, ...],
}


def picture(value: Any) -> Picture:
    """The picture that a record was written with."""
    from gradcheck_cli.results.picture import Curve, Picture  # brings NumPy, which few records need

    counts = tuple[tuple[int, ...], ...]
    kinds = {"errors": counts, "noise": counts, "curve": Curve | None}
    if not isinstance(value, dict) or not isinstance(value.get("tile"), dict):
        raise Unfit("should be an object with a tile")
    tile = {name: reader(kind)(value["tile"].get(name)) for name, kind in _TILE.items()}
    found = {name: reader(kind)(value.get(name)) for name, kind in kinds.items()}
    if not (_holds(tile) and all(map(_counts, (found["errors"], found["noise"]))) and _even(found["curve"])):
        raise Unfit("holds a picture whose parts do not fit together")
    return Picture.from_json({"tile": tile, **found, "curve": value.get("curve")})


def _holds(tile: Mapping[str, Any]) -> bool:
    """Cells are as many as their shape says, and stand for something."""
    from gradcheck_cli.results.picture import PANES, SIDE, Over

    shape, cells = tile["shape"], tile["cells"]
    sides = (PANES, SIDE, SIDE) if len(shape) == 3 else (SIDE, SIDE)
    fits = len(shape) == len(tile["sizes"]) == len(sides) and prod(shape) == len(cells)
    inside = fits and all(1 <= n <= min(most, size) for n, most, size in zip(shape, sides, tile["sizes"], strict=True))
    return inside and tile["over"] in get_args(Over) and all(v is None or abs(v) <= _LARGEST_PICTURE for v in cells)


def _counts(rows: tuple[tuple[int, ...], ...]) -> bool:
    from gradcheck_cli.results.picture import Histogram, Standing

    fits = len(rows) == len(Standing) and all(len(row) == Histogram.SLOTS for row in rows)
    return fits and all(0 <= number < 1 << 60 for row in rows for number in row)


def _even(curve: Curve | None) -> bool:
    return curve is None or len(curve.steps) == len(curve.errors) == len(curve.crossed)
