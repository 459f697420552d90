"""Windows and crops of com.microsoft: maxima under a mask, boxes cut out, transposed convolution, words as images."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.op import Op, as_given, deciding
from gradcheck_cli.ops.onnxruntime.fused import fused
from gradcheck_cli.ops.sampling import LINEAR, Taps, extended, meet, sample
from gradcheck_cli.ops.shape import checked
from gradcheck_cli.ops.windows import padded, settled

Ints = tuple[int, ...]
LOWEST = float(np.finfo(np.float32).min)  # of a window without entries


def maxpool_with_mask(
    x: Var, mask: Var, *, auto_pad: str = "NOTSET", kernel_shape: Ints, pads: Ints = (), storage_order: int = 0,
    strides: Ints = (),
) -> Var:  # fmt: skip
    """The maximum of each window, where a row of it ends at its first entry with a mask of 0.

    This is what onnxruntime's kernel does, which lets the first entry of an image or volume count in any case, and
    begins to read the mask of channel c at entry c * size modulo the number of masks: mostly all read the first one.
    """
    space, rank = x.shape[2:], x.ndim - 2
    if len(kernel_shape) != rank or mask.ndim != x.ndim or mask.shape[2:] != space:
        raise ValueError(f"windows {list(kernel_shape)} or a mask {list(mask.shape)} do not fit {list(x.shape)}")
    window = settled({"auto_pad": auto_pad, "pads": pads, "strides": strides}, space, kernel_shape)
    counts = [(n - k) // s + 1 for n, k, s in zip(padded(space, window), kernel_shape, window["strides"], strict=True)]
    checked((*x.shape[:2], *counts, *kernel_shape))
    free = _unmasked(mask.tape.guard(mask), x.shape)
    inside = np.ones((), bool)
    for axis in range(rank):
        start = np.arange(counts[axis]) * window["strides"][axis] - window["pads"][axis]
        place = start[:, None] + np.arange(kernel_shape[axis])
        shape = [1] * (2 * rank)
        shape[2 * axis : 2 * axis + 2] = place.shape
        inside = inside & ((place >= 0) & (place < space[axis])).reshape(shape)
        at = np.clip(place, 0, space[axis] - 1)
        x = x.tape.apply("Gather", x, at, axis=2 + 2 * axis)
        free = np.take(free, at, axis=2 + 2 * axis)
    counted = inside & np.logical_and.accumulate(free | ~inside, axis=-1)
    shown = sym.where(x.tape.constant(counted), x, LOWEST)
    return sym.max(shown, [3 + 2 * axis for axis in range(rank)], keepdims=False)


def _unmasked(mask: np.ndarray, shape: Ints) -> np.ndarray:
    """Which entries of x a mask lets count."""
    size, masks = math.prod(shape[2:]), max(math.prod(mask.shape[:2]), 1)
    first = np.arange(math.prod(shape[:2])) * size % masks
    free = (mask.ravel()[first[:, None] + np.arange(size)] != 0).reshape(shape)
    if len(shape) > 3:
        free[(..., *(0,) * (len(shape) - 2))] = True
    return free


def crop_and_resize(
    x: Var, rois: Var, batch_indices: Var, *, crop_size: Sequence[int], extrapolation_value: float = 0.0,
    mode: str = "bilinear",
) -> Var:  # fmt: skip
    """Boxes y1, x1, y2, x2 of images, in shares of their sides, each in one size; corners meet corners."""
    if mode not in ("bilinear", "nearest") or len(crop_size) != 2 or min(crop_size) < 1:
        raise ValueError(f"mode is {mode!r}, crop_size {list(crop_size)}; known are bilinear and nearest, of two sizes")
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 4 or batch_indices.shape != rois.shape[:1]:
        raise ValueError(f"rois {list(rois.shape)} and batch_indices do not fit an input of shape {list(x.shape)}")
    if rois.size and not 0 <= batch_indices.value.min() <= batch_indices.value.max() < x.shape[0]:
        raise ValueError(f"there is a region of an image that is none of the {x.shape[0]}")
    checked((*rois.shape[:1], x.shape[1], *crop_size))
    places = [_places(rois, side, crop_size[side], x.shape[2 + side]) for side in range(2)]
    seen = [sym.and_(p >= 0, p <= float(n - 1)) for p, n in zip(places, x.shape[2:], strict=True)]
    bounded = [sym.clip(p, 0, n - 1) for p, n in zip(places, x.shape[2:], strict=True)]
    images = sym.reshape(sym.cast(batch_indices, np.int64), (-1, 1, 1))
    taps = [
        extended(_met(sym.unsqueeze(p, (gap,)), mode), n, "border")
        for p, gap, n in zip(bounded, (2, 1), x.shape[2:], strict=True)
    ]
    y = sample(x, images, taps)
    both = sym.and_(sym.unsqueeze(seen[0], (2,)), sym.unsqueeze(seen[1], (1,)))
    return sym.transpose(sym.where(sym.unsqueeze(both, (3,)), y, extrapolation_value), (0, 3, 1, 2))


def _places(rois: Var, side: int, count: int, length: int) -> Var:
    """Positions of the rows or columns of each box, `(R, count)`; the middle where there is one alone."""
    first, last = (sym.reshape(sym.take(rois, side + shift, 1), (-1, 1)) * float(length - 1) for shift in (0, 2))
    if count == 1:
        return (first + last) * 0.5
    return first + rois.tape.constant(np.arange(count) / (count - 1), rois.dtype) * (last - first)


def _met(places: Var, mode: str) -> Taps:
    """The entries around positions, or the nearest one, halves upwards."""
    if mode == "bilinear":
        return meet(places, LINEAR)
    return Taps(sym.unsqueeze(sym.cast(sym.floor(places + 0.5), np.int64), (-1,)))


def conv_transpose_with_dynamic_pads(
    x: Var, w: Var, b: Var | None = None, *, auto_pad: str = "NOTSET", dilations: Ints = (), group: int = 1,
    kernel_shape: Ints = (), output_padding: Ints = (), pads: Ints | int = (), strides: Ints = (),
) -> Var:  # fmt: skip
    """ConvTranspose whose pads are an input."""
    lists = {"dilations": dilations, "kernel_shape": kernel_shape, "output_padding": output_padding, "pads": pads,
             "strides": strides}  # fmt: skip
    given = {name: value for name, value in lists.items() if value}
    return x.tape.apply("ConvTranspose", x, w, b, auto_pad=auto_pad, group=group, **given)


def word_conv_embedding(
    words: Var, w: Var, b: Var, table: Var, *, char_embedding_size: int | None = None,
    conv_window_size: int | None = None, embedding_size: int | None = None,
) -> Var:  # fmt: skip
    """For each word, a row of characters that zeros end, the largest tanh of filters over windows of its characters."""
    filters, _, width, features = w.shape
    for name, given, known in (
        ("char_embedding_size", char_embedding_size, features), ("conv_window_size", conv_window_size, width),
        ("embedding_size", embedding_size, filters),
    ):  # fmt: skip
        if given not in (None, known):
            raise ValueError(f"{name} is {given}; that of the filters is {known}")
    if words.ndim != 2 or words.shape[1] < width or table.shape[1:] != (features,):
        raise ValueError(
            f"words {list(words.shape)}, characters {list(table.shape)} and filters {list(w.shape)} do not fit"
        )
    letters = sym.unsqueeze(table.tape.apply("Gather", table, words), (1,))
    y = sym.tanh(sym.squeeze(letters.tape.apply("Conv", letters, w, b), (3,)))
    lengths = sym.sum(sym.cast(words > 0, np.int64), (1,))
    windows = sym.unsqueeze(sym.maximum(lengths - (width - 1), 1), (2,))
    best = sym.max(sym.where(sym.arange(y.tape, y.shape[2]) < windows, y, -math.inf), (2,), keepdims=False)
    return sym.where(sym.slice(words, (0,), (1,), (1,)) > 0, best, 0)


FUSED_IMAGES: list[Op] = [
    fused("ConvTransposeWithDynamicPads", conv_transpose_with_dynamic_pads, static={"pads": 2}),
    fused("CropAndResize", crop_and_resize, bind=as_given, static={"crop_size": 3}, cuts=deciding(2)),
    fused("MaxpoolWithMask", maxpool_with_mask, cuts=deciding(1)),
    fused("WordConvEmbedding", word_conv_embedding, cuts=deciding(0)),
]
