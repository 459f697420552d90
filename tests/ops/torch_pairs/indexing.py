"""Gather, scatter, padding, resizing and the operators that move entries."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from tests.ops.case import arr, case, ints
from tests.ops.torch_pairs.pair import Pair

ROWS = np.array([[0, 2, -1], [2, 2, 1]])
REDUCED = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def take(x: Any, indices: Any, axis: int) -> Any:
    """Gather by torch, negative indices counted from the end."""
    flat = indices.remainder(x.shape[axis]).reshape(-1)
    return x.index_select(axis, flat).unflatten(axis, indices.shape) if indices.ndim else x.select(axis, int(indices))


def scatter(x: Any, indices: Any, updates: Any, axis: int, reduction: str) -> Any:
    """ScatterElements by torch."""
    places = indices.remainder(x.shape[axis])
    if reduction == "none":
        return x.scatter(axis, places, updates)
    return x.scatter_reduce(axis, places, updates, REDUCED[reduction])


def gather_nd(x: Any, indices: Any, batch: int) -> Any:
    """GatherND by torch's indexing."""
    if batch:
        return torch.stack([gather_nd(a, i, batch - 1) for a, i in zip(x, indices, strict=True)])
    return x[tuple(indices.unbind(-1))]


def scatter_nd(x: Any, indices: Any, updates: Any, accumulate: bool) -> Any:
    """ScatterND by torch's indexing."""
    return x.index_put(tuple(indices.unbind(-1)), updates, accumulate=accumulate)


def scatter_pair(axis: int, reduction: str, indices: Any) -> Pair:
    """ScatterElements; only sums and products may meet an index twice."""
    one = case(
        "ScatterElements",
        arr(3, 4),
        indices,
        arr(*np.shape(indices), seed=1, low=0.3),
        axis=axis,
        reduction=reduction,
    )
    return Pair(one, lambda x, i, u: scatter(x, i, u, axis, reduction))


def pad_pair(mode: str, torch_mode: str, shape: tuple[int, ...], pads: tuple[int, ...], axes: tuple[int, ...]) -> Pair:
    """Pad over the last axes."""
    half = len(pads) // 2
    flat = [width for axis in reversed(range(half)) for width in (pads[axis], pads[axis + half])]
    value = [np.array(0.5)] if mode == "constant" else [None]
    one = case("Pad", arr(*shape), list(pads), *value, list(axes), mode=mode)
    more = {"value": 0.5} if mode == "constant" else {}
    return Pair(one, lambda x, *_: F.pad(x, flat, torch_mode, **more), ignore=("x2",))


def resize_pair(shape: tuple[int, ...], sizes: tuple[int, ...], torch_mode: str, **attrs: Any) -> Pair:
    """Resize to sizes of the space."""
    one = case("Resize", arr(*shape), None, None, [*shape[:2], *sizes], label=f"to {sizes}", **attrs)
    aligned = attrs.get("coordinate_transformation_mode") == "align_corners"
    more: dict[str, Any] = {} if "nearest" in torch_mode else {"align_corners": aligned}
    more |= {"antialias": True} if attrs.get("antialias") else {}
    return Pair(one, lambda x, *_: F.interpolate(x, sizes, mode=torch_mode, **more), relative=1e-10)


LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
SIZES = [
    ((2, 2, 5), (8,)),
    ((2, 2, 5), (3,)),
    ((1, 2, 4, 5), (7, 9)),
    ((1, 2, 6, 7), (3, 4)),
    ((1, 2, 4, 5), (8, 3)),
]
VOLUMES = [((1, 1, 3, 4, 2), (5, 3, 4))]
CORNERS = ("half_pixel", "align_corners")
FLOORED = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor", "mode": "nearest"}

RESIZES = [
    *[resize_pair(shape, sizes, "nearest", **FLOORED) for shape, sizes in [*SIZES, *VOLUMES]],
    *[
        resize_pair(shape, sizes, LINEAR[len(sizes)], mode="linear", coordinate_transformation_mode=corners)
        for shape, sizes in [*SIZES, *VOLUMES]
        for corners in CORNERS
    ],
    *[
        resize_pair(shape, sizes, "bicubic", mode="cubic", cubic_coeff_a=-0.75, coordinate_transformation_mode=corners)
        for shape, sizes in SIZES[2:]
        for corners in CORNERS
    ],
    *[
        resize_pair(shape, sizes, "bilinear", mode="linear", antialias=1, exclude_outside=1)
        for shape, sizes in SIZES[2:]
    ],
    *[
        resize_pair(shape, sizes, "bicubic", mode="cubic", cubic_coeff_a=-0.5, antialias=1, exclude_outside=1)
        for shape, sizes in SIZES[2:]
    ],
]

PADDINGS = ("zeros", "border", "reflection")
SAMPLINGS = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


def sample_pair(mode: str, padding: str, corners: int, *space: int) -> Pair:
    """GridSample at points inside and outside."""
    grid = arr(2, *[n + 1 for n in space], len(space), low=-1.3, high=1.3)
    one = case("GridSample", arr(2, 3, *space), grid, mode=mode, padding_mode=padding, align_corners=corners)
    return Pair(one, lambda x, g: F.grid_sample(x, g, SAMPLINGS[mode], padding, bool(corners)), relative=1e-10)


def affine_pair(corners: int, *size: int) -> Pair:
    """AffineGrid."""
    axes = len(size) - 2
    one = case("AffineGrid", arr(size[0], axes, axes + 1), list(size), align_corners=corners)
    return Pair(one, lambda theta, _: F.affine_grid(theta, list(size), bool(corners)))


GRIDS = [
    *[sample_pair(m, p, corners, 4, 5) for m in SAMPLINGS for p in PADDINGS for corners in (0, 1)],
    *[sample_pair(m, p, 1, 1, 3) for m in SAMPLINGS for p in PADDINGS],
    *[sample_pair(m, p, corners, 3, 4, 2) for m in ("linear", "nearest") for p in PADDINGS for corners in (0, 1)],
    *[affine_pair(corners, *size) for size in [(2, 3, 4, 5), (1, 2, 3, 2, 4)] for corners in (0, 1)],
    affine_pair(0, 2, 1, 1, 3),
]

UNIQUE = np.array([[2, 0, 1, -1], [0, 1, 2, 0]])  # along axis 0
DISTINCT = np.array([[2, 0, 1, -1], [0, 1, 2, 3]])  # along axis 1
REPEATED = np.array([[2, 0, 2, -1], [2, 1, 2, -1]])
MOVES = [
    (case("Transpose", arr(2, 3, 4), perm=(2, 0, 1)), lambda x: x.permute(2, 0, 1)),
    (case("Transpose", arr(2, 3)), lambda x: x.T),
    (case("Reshape", arr(2, 3, 4), [0, -1]), lambda x, _: x.reshape(2, 12)),
    (case("Flatten", arr(2, 3, 4), axis=2), lambda x: x.reshape(6, 4)),
    (case("Squeeze", arr(2, 1, 3, 1), [1, -1]), lambda x, _: x.reshape(2, 3)),
    (case("Unsqueeze", arr(2, 3), [0, -1]), lambda x, _: x[None, :, :, None]),
    (case("Expand", arr(2, 1, 3), [4, 1, 2, 1]), lambda x, _: x.expand(4, 2, 2, 3)),
    (case("Tile", arr(2, 3), [2, 3]), lambda x, _: x.tile(2, 3)),
    (case("Concat", arr(2, 3), arr(2, 1), arr(2, 2), axis=1), lambda *x: torch.cat(x, 1)),
    (case("Split", arr(2, 6), [1, 2, 3], axis=1, n_outputs=3), lambda x, _: x.split([1, 2, 3], 1)),
    (case("Slice", arr(4, 7), [1, 6], [4, 0], [0, 1], [2, -2]), lambda x, *_: x[1:4:2].flip(1)[:, :6:2]),
    (case("Trilu", arr(2, 4, 5), 1, upper=1), lambda x, _: x.triu(1)),
    (case("Trilu", arr(4, 3), -1, upper=0), lambda x, _: x.tril(-1)),
    (case("DepthToSpace", arr(2, 8, 2, 3), blocksize=2, mode="CRD"), lambda x: F.pixel_shuffle(x, 2)),
    (
        case("DepthToSpace", arr(2, 8, 2, 3), blocksize=2),
        lambda x: x.reshape(2, 2, 2, 2, 2, 3).permute(0, 3, 4, 1, 5, 2).reshape(2, 2, 4, 6),
    ),
    (
        case("SpaceToDepth", arr(2, 2, 4, 6), blocksize=2),
        lambda x: x.reshape(2, 2, 2, 2, 3, 2).permute(0, 3, 5, 1, 2, 4).reshape(2, 8, 2, 3),
    ),
    (case("Gather", arr(4, 3, 2), ROWS, axis=1), lambda x, i: take(x, i, 1)),
    (case("Gather", arr(4, 3), ROWS, axis=0), lambda x, i: take(x, i, 0)),
    (case("Gather", arr(4, 3), -1, axis=1), lambda x, i: take(x, i, 1)),
    (case("GatherElements", arr(3, 4), REPEATED, axis=1), lambda x, i: x.gather(1, i.remainder(4))),
    (case("GatherElements", arr(3, 4), UNIQUE, axis=0), lambda x, i: x.gather(0, i.remainder(3))),
    (case("GatherND", arr(3, 4, 2), ints(2, 3, 2, high=2)), lambda x, i: gather_nd(x, i, 0)),
    (case("GatherND", arr(3, 4), ints(5, 1, low=-3, high=2)), lambda x, i: gather_nd(x, i, 0)),
    (case("GatherND", arr(3, 4, 2), ints(3, 2, 1, high=3), batch_dims=1), lambda x, i: gather_nd(x, i, 1)),
    (
        case("ScatterND", arr(4, 3), [[2], [0]], arr(2, 3, seed=1)),
        lambda x, i, u: scatter_nd(x, i, u, accumulate=False),
    ),
    (
        case("ScatterND", arr(4, 3), [[2, 1], [0, -1], [2, 1]], arr(3), reduction="add"),
        lambda x, i, u: scatter_nd(x, i, u, accumulate=True),
    ),
]

PAIRS = [
    *[Pair(one, function) for one, function in MOVES],
    scatter_pair(1, "none", DISTINCT),
    scatter_pair(0, "none", UNIQUE),
    *[scatter_pair(1, reduction, DISTINCT) for reduction in REDUCED],
    *[scatter_pair(axis, "add", REPEATED) for axis in (0, 1)],
    scatter_pair(0, "mul", REPEATED),
    pad_pair("constant", "constant", (2, 3, 4), (1, 0, 2, 3), (1, 2)),
    pad_pair("constant", "constant", (2, 3, 4), (-1, 1, 0, -2), (-2, -1)),
    *[
        pad_pair(mode, torch_mode, shape, pads, axes)
        for mode, torch_mode in [("reflect", "reflect"), ("edge", "replicate"), ("wrap", "circular")]
        for shape, pads, axes in [
            ((2, 3, 5), (2, 3), (2,)),
            ((1, 2, 4, 5), (1, 0, 2, 3), (2, 3)),
            ((1, 1, 3, 4, 5), (1, 2, 3, 2, 0, 1), (-3, -2, -1)),
        ]
    ],
    *RESIZES,
    *GRIDS,
]
