"""Operators on images: RoiAlign and MaxRoiPool pool over regions of interest, ImageDecoder reads compressed files.

RoiAlign samples between entries, MaxRoiPool rounds regions to whole entries.  The number of samples of an adaptive
RoiAlign depends on the regions.  It is read once, as control flow reads a condition: a probe that changes it crosses a
branch.
"""

from __future__ import annotations

import io
import math
import warnings

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import LimitError, UnsupportedError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Along, Op, composite, deciding, require_known, zero
from gradcheck_cli.ops.sampling import LINEAR, Taps, entries, extended, meet, weighted
from gradcheck_cli.ops.shape import checked

CORNERS = ("half_pixel", "output_half_pixel")
_FORMATS = ("BMP", "DIB", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")
_PIXELS = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}  # pixel format -> Pillow's mode


def roi_align(
    x: Var, rois: Var, batch_indices: Var, *, coordinate_transformation_mode: str = "half_pixel", mode: str = "avg",
    output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0, spatial_scale: float = 1.0,
) -> Var:  # fmt: skip
    """The mean or maximum of samples in each bin of the regions x1, y1, x2, y2 of some images, `(R, C, *output)`.

    The maximum is one of the entries around the samples, each times its weight.
    """
    if mode not in ("avg", "max") or coordinate_transformation_mode not in CORNERS:
        named = f"mode {mode!r} with {coordinate_transformation_mode!r}"
        raise ValueError(f"{named}; known are avg and max, with {' and '.join(CORNERS)}")
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 4 or batch_indices.shape != rois.shape[:1]:
        shapes = f"rois {list(rois.shape)} and batch_indices {list(batch_indices.shape)}"
        raise ValueError(f"{shapes} do not fit an input of shape {list(x.shape)}")
    if min(output_height, output_width) < 1 or sampling_ratio < 0:
        raise ValueError("output_height and output_width are positive, and sampling_ratio is not negative")
    check_images(batch_indices, x.shape[0])
    half = coordinate_transformation_mode == "half_pixel"
    corners = sym.cast(rois, np.result_type(rois.dtype, np.float32)) * spatial_scale - (0.5 if half else 0.0)
    left, top, right, bottom = (sym.reshape(sym.take(corners, i, 1), (rois.shape[0], 1, 1)) for i in range(4))
    width, height = (v if half else sym.maximum(v, 1.0) for v in (right - left, bottom - top))
    rows = _taps(top, height / float(output_height), output_height, x.shape[2], sampling_ratio, mode)
    columns = _taps(left, width / float(output_width), output_width, x.shape[3], sampling_ratio, mode)
    taps = [Taps(*(sym.unsqueeze(v, (gap,)) for v in axis)) for axis, gap in ((rows, 2), (columns, 1))]
    found, weight = entries(x, sym.reshape(batch_indices, (-1, 1, 1)), taps)
    assert weight is not None
    if mode == "avg":
        y = weighted(found, weight)
    else:
        y = sym.max(found * sym.cast(sym.unsqueeze(weight, (-1,)), x.dtype), (-2,), keepdims=False)
    return sym.transpose(y, (0, 3, 1, 2))


def _taps(start: Var, width: Var, bins: int, length: int, ratio: int, mode: str) -> tuple[Var, Var]:
    """The entries that the samples of each bin meet, `(R, bins, taps)`: indices and weights.

    `start` is the start of each region, `width` the width of its bins.
    """
    tape = start.tape
    if ratio:
        most, count = ratio, sym.full(tape, width.shape, ratio, np.int64)
    else:
        count = sym.maximum(sym.cast(sym.ceil(width), np.int64), 0)
        most = int(np.max(tape.guard(count), initial=0))
    checked((*start.shape, bins, most))
    number, parts = sym.arange(tape, most), sym.maximum(count, 1)
    share = (sym.cast(sym.minimum(number, parts - 1), width.dtype) + 0.5) / sym.cast(parts, width.dtype)
    bin_number = tape.constant(np.arange(bins).reshape(bins, 1), width.dtype)
    position = start + (bin_number + share) * width  # samples beyond a region's own number repeat its last one
    taps = extended(meet(sym.clip(position, 0, length - 1), LINEAR), length, "border")
    seen = sym.and_(position >= -1, position <= length)
    factor = sym.where(seen, _factor(number, count, mode, width), 0)
    assert taps.weight is not None
    shape = (*position.shape[:2], math.prod(taps.index.shape[2:]))
    weight = sym.reshape(taps.weight * sym.unsqueeze(factor, (-1,)), shape)
    return sym.reshape(taps.index, shape), weight


def _factor(number: Var, count: Var, mode: str, like: Var) -> Var:
    """The weight of each sample, in the dtype of `like`."""
    one = sym.ones_like(like)
    share = one / sym.cast(sym.maximum(count, 1), like.dtype) if mode == "avg" else one
    return sym.where(number < count if mode == "avg" else count > 0, share, 0)


def max_roi_pool(x: Var, rois: Var, *, pooled_shape: tuple[int, ...], spatial_scale: float = 1.0) -> Var:
    """The maximum in each bin of the regions n, x1, y1, x2, y2, rounded to whole entries, `(R, C, *pooled)`."""
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 5 or len(pooled_shape) != 2 or min(pooled_shape) < 1:
        shapes = f"rois {list(rois.shape)} and pooled_shape {list(pooled_shape)}"
        raise ValueError(f"{shapes} do not fit an input of shape {list(x.shape)}")
    number, left, top, right, bottom = (sym.take(rois, i, 1) for i in range(5))
    image = sym.cast(number, np.int64)
    check_images(image, x.shape[0])
    regions = x.tape.apply("Gather", x, image, axis=0)
    bins = [(left, right, pooled_shape[1], x.shape[3]), (top, bottom, pooled_shape[0], x.shape[2])]
    empty = []
    for start, end, count, length in bins:  # along rows first, so that the first row wins a tie
        low, high = _window(_rounded(start, spatial_scale), _rounded(end, spatial_scale), count, length)
        checked((*regions.shape[:3], count, length))
        place = sym.arange(x.tape, length)
        inside = sym.unsqueeze(sym.and_(place >= low, place < high), (1, 2))
        best = sym.max(sym.where(inside, sym.unsqueeze(regions, (3,)), -math.inf), (-1,), keepdims=False)
        regions = sym.swap(best)
        empty.append(sym.squeeze(low >= high, (-1,)))
    nothing = sym.or_(sym.unsqueeze(empty[1], (2,)), sym.unsqueeze(empty[0], (1,)))
    return sym.where(sym.unsqueeze(nothing, (1,)), 0, regions)


def check_images(images: Var, count: int) -> None:
    """Raises ValueError if a region lies on an image that does not exist; negative numbers are refused."""
    if images.size and not 0 <= images.value.min() <= images.value.max() < count:
        raise ValueError(f"a region names an image outside of the {count} of the input")


def _rounded(corner: Var, scale: float) -> Var:
    """Corners in whole entries, `(R, 1)`, rounded half away from zero."""
    scaled = sym.reshape(corner, (-1, 1)) * scale
    return sym.cast(sym.sign(scaled) * sym.floor(sym.abs(scaled) + 0.5), np.int64)


def _window(start: Var, end: Var, bins: int, length: int) -> tuple[Var, Var]:
    """The first entry of each bin and the end behind its last, both `(R, bins, 1)`."""
    size, number = sym.maximum(end - start + 1, 1), sym.arange(start.tape, bins)
    bounds = number * size / bins, (number * size + size + (bins - 1)) / bins  # rounded down, and up
    low, high = (sym.clip(bound + start, 0, length) for bound in bounds)
    return sym.unsqueeze(low, (2,)), sym.unsqueeze(high, (2,))


def image_decoder(stream: Array, *, pixel_format: str = "RGB") -> Array:
    """Pixels (height, width, channels) of an image file, given as a vector of bytes; no pixels if it is no image."""
    require_known("pixel_format", pixel_format, _PIXELS)
    try:
        from PIL import Image
    except ImportError:
        text = "ImageDecoder needs Pillow: python -m pip install pillow"
        raise UnsupportedError(text, code="GC502") from None
    mode = _PIXELS[pixel_format]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.filterwarnings("ignore", category=UserWarning)  # warnings of damaged metadata
            with Image.open(io.BytesIO(stream.astype(np.uint8).tobytes()), formats=_FORMATS) as image:
                pixels = np.asarray(image.convert(mode))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise LimitError(f"an image is too large: {error}", code="GC602") from None
    except (OSError, ValueError, SyntaxError, EOFError):
        return np.zeros((0, 0, len(mode)), np.uint8)
    return pixels.reshape(*pixels.shape[:2], -1)[:, :, :: -1 if pixel_format == "BGR" else 1]


IMAGES: list[Op] = [
    composite("RoiAlign", roi_align, cuts=deciding(2), integers={2: Along(least=1)}, space="windows",
              elsewhere="rough"),
    composite("MaxRoiPool", max_roi_pool, cuts=deciding(1), space="windows"),
    Op("ImageDecoder", image_decoder, zero),
]  # fmt: skip
