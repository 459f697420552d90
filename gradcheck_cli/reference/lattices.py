"""Lattices: the shapes, attributes and operands over which the rule of each operator is proven, as tables.

A function makes the use of an operator from one value of each axis: the size of a dimension, an attribute, the presence
of an operand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct

from gradcheck_cli.graph import Array
from gradcheck_cli.reference.exact import Floats, Input, Lattice, Shape, Use, Values

SIZES = (1, 2, 3, 4, 7)  # every size from 1 to 4, and one larger
GRID = 1 << 25  # lies between two numbers that are compared with each other


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


# Elementwise operators

SHAPES: Values = {"shape": ((), (1,), (2,), (3,), (4,), (7,), (1, 1), (2, 3), (3, 1), (1, 4), (2, 1, 3))}
PAIRS = (
    ((), ()), ((1,), (1,)), ((3,), (3,)), ((2, 3), (2, 3)), ((2, 3), (3,)), ((3,), (2, 3)), ((2, 3), (2, 1)),
    ((2, 1), (1, 3)), ((1, 3), (2, 3)), ((4,), ()), ((), (4,)), ((1,), (4,)), ((7, 1), (1,)), ((2, 1, 3), (4, 1)),
    ((1, 1), (2, 2)),
)  # fmt: skip
ASKED = (None, 0, 1)


def unary(shape: Shape, **attrs: Any) -> Use:
    return Use((Floats(shape),), attrs)


def binary(shapes: tuple[Shape, Shape], **attrs: Any) -> Use:
    return Use(tuple(map(Floats, shapes)), attrs)


def several(count: int, shapes: tuple[Shape, Shape]) -> Use:
    """An operator of any number of operands, whose shapes take turns."""
    return Use(tuple(Floats(shapes[i % 2]) for i in range(count)), multiple=12)


def where(shapes: tuple[Shape, Shape], condition: Shape) -> Use | None:
    held = np.asarray(np.arange(prod(condition)).reshape(condition) % 2 == 0)
    return None if not _broadcast(condition, *shapes) else Use((held, *map(Floats, shapes)))


def _broadcast(*shapes: Shape) -> bool:
    try:
        return np.broadcast_shapes(*shapes) is not None
    except ValueError:
        return False


def clip(shape: Shape, low: bool, high: bool) -> Use:
    bounds: list[Input] = [Floats() if low else None, Floats() if high else None]
    return Use((Floats(shape), *bounds[: 2 if high else 1 if low else 0]))


def _unary(**attrs: Sequence[Any]) -> Values:
    return {**SHAPES, **attrs}


def _binary(**attrs: Sequence[Any]) -> Values:
    return {"shapes": PAIRS, "asked": ASKED, **attrs}


# Products

EQUATIONS = (
    "ij,jk->ik", "ij,jk", "ij->ji", "ij->i", "ij->", "ii", "ii->i", "iii->i", "bii,ic->bc", "bij,bjk->bik", "...j,j",
    "...ij,jk->...ik", "...ii->...i", "i,j", "i,i", "i,i->i", "a,ab,b->", "ab,bc,ad->dc", "ab,cd->ad", "ab,ab,ab->b",
    "bqhd,bkhd->bhqk",
)  # fmt: skip


def einsum(equation: str, first: int, second: int, other: int, batch: int) -> Use:
    """Operands whose letters have sizes in turn; an ellipsis is one axis."""
    letters = sorted({c for c in equation if c.isalpha()})
    sizes = dict(zip(letters, (first, second, other, batch) * 2, strict=False))
    terms = equation.split("->")[0].replace("...", "*").split(",")
    shapes = [tuple(batch if c == "*" else sizes[c] for c in term) for term in terms]
    return Use(tuple(map(Floats, shapes)), {"equation": equation}, degree=len(shapes))


def matmul(n: int, k: int, m: int, batch: tuple[Shape | None, Shape | None]) -> Use:
    left, right = batch
    a = (k,) if left is None else (*left, n, k)
    return Use((Floats(a), Floats((k,) if right is None else (*right, k, m))))


BATCHES = (((), ()), (None, ()), ((), None), (None, None), ((2,), ()), ((2,), (2,)), ((1,), (3,)), ((2, 1), (3,)),
           ((2,), None), (None, (3,)))  # fmt: skip

# Windows

WINDOW: Values = {
    "rank": (1, 2), "size": SIZES, "width": (1, 3, 5), "kernel": (1, 2, 3), "kernel_width": (1, 2),
    "pads": ((0, 0), (1, 1), (1, 0), (0, 2), (2, 1), "SAME_UPPER", "SAME_LOWER", "VALID"),
    "pads_width": ((0, 0), (0, 1), (2, 0)),
    "stride": (1, 2, 3), "stride_width": (1, 2), "dilation": (1, 2, 3), "dilation_width": (1, 2),
}  # fmt: skip


class Window(Struct, frozen=True):
    """A window along one or two axes: sizes, taps, strides, dilations, and zeros before and behind, or a word for them."""

    size: Shape
    kernel: Shape
    strides: Shape
    dilations: Shape
    before: Shape
    behind: Shape
    auto_pad: str = ""

    @property
    def spans(self) -> list[int]:
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    @property
    def counts(self) -> list[int]:
        """The number of places of the window along each axis."""
        axes = zip(self.size, self.before, self.behind, self.spans, self.strides, strict=True)
        return [(n + p + q - span) // s + 1 for n, p, q, span, s in axes]

    @property
    def reaches_all(self) -> bool:
        """True if the window contains an entry of the input wherever it is, and at one more place of each axis."""
        axes = zip(self.size, self.counts, self.strides, self.before, self.kernel, self.dilations, strict=True)
        return all(
            any(0 <= place * s - p + tap * d < n for tap in range(k))
            for n, count, s, p, k, d in axes
            for place in range(count + ((count * s - p) < n))
        )

    def attrs(self, *, kernel: bool = True, **more: Any) -> dict[str, Any]:
        shape = {"kernel_shape": self.kernel} if kernel else {}
        pads = {"auto_pad": self.auto_pad} if self.auto_pad else {"pads": (*self.before, *self.behind)}
        return {**shape, "strides": self.strides, "dilations": self.dilations, **pads, **more}


def window(
    rank: int, size: int, width: int, kernel: int, kernel_width: int, pads: Shape | str, pads_width: Shape,
    stride: int, stride_width: int, dilation: int, dilation_width: int,
) -> Window | None:  # fmt: skip
    """The window; None if there are values for a second axis, or its pads, that do not exist."""
    second = (width, kernel_width, stride_width, dilation_width)
    word = pads if isinstance(pads, str) else ""
    if (rank == 1 and second != (1, 1, 1, 1)) or ((rank == 1 or word) and pads_width != (0, 0)):
        return None
    sizes, taps, steps, gaps = (
        (size, width),
        (kernel, kernel_width),
        (stride, stride_width),
        (dilation, dilation_width),
    )
    ends = zip((0, 0) if isinstance(pads, str) else pads, pads_width, strict=True)
    before, behind = (end[:rank] for end in ends)
    return Window(sizes[:rank], taps[:rank], steps[:rank], gaps[:rank], before, behind, word)


def conv(channels: int, filters: int, group: int, bias: bool, batch: int, **how: Any) -> Use | None:
    w = window(**how)
    if w is None or (min(w.counts) < 1 and not w.auto_pad.startswith("SAME")):
        return None
    x, k = Floats((batch, channels * group, *w.size)), Floats((filters * group, channels, *w.kernel))
    more: list[Input] = [Floats((filters * group,))] if bias else []
    return Use((x, k, *more), w.attrs(group=group))


def conv_transpose(
    channels: int, filters: int, group: int, bias: bool, extra: int, batch: int, **how: Any
) -> Use | None:
    w = window(**how)
    if w is None:
        return None
    sides = zip(w.size, w.strides, w.spans, w.before, w.behind, strict=True)
    if min((n - 1) * s + span - p - q for n, s, span, p, q in sides) < 1:
        return None
    if extra >= min(map(max, zip(w.strides, w.dilations, strict=True))):
        return None
    x, k = Floats((batch, channels * group, *w.size)), Floats((channels * group, filters, *w.kernel))
    more: list[Input] = [Floats((filters * group,))] if bias else []
    return Use((x, k, *more), w.attrs(group=group, output_padding=(extra,) * len(w.size)))


LAYER: Values = {
    **WINDOW, "channels": (1, 2), "filters": (1, 2), "group": (1, 2, 3), "bias": (False, True),
    "batch": (1, 2), "asked": (None, 0, 1, 2),
}  # fmt: skip


def pool(channels: int, batch: int, ceil_mode: int, count: int = 1, **how: Any) -> Use | None:
    own = {key: value for key, value in how.items() if key not in WINDOW}
    w = window(**{key: value for key, value in how.items() if key in WINDOW})
    if w is None or min(w.counts) < 1 or not w.reaches_all:
        return None
    attrs = w.attrs(ceil_mode=ceil_mode, **own)
    return Use((Floats((batch, channels, *w.size)),), attrs, count, multiple=12)


POOL: Values = {**WINDOW, "channels": (1, 2), "batch": (1, 2), "ceil_mode": (0, 1)}


def col2im(channels: int, batch: int, **how: Any) -> Use | None:
    w = window(**how)
    if w is None or w.auto_pad or min(w.counts) < 1:
        return None
    attrs = w.attrs(kernel=False)
    columns = Floats((batch, channels * prod(w.kernel), prod(w.counts)))
    return Use((columns, ints(*w.size), ints(*w.kernel)), attrs)


def max_unpool(size: int, kernel: int, stride: int, pads: Shape, channels: int, given: bool, twice: bool) -> Use | None:
    long = (size - 1) * stride + kernel - sum(pads)
    if long < size:
        return None
    place = np.stack([c * long + np.arange(size) * (long // size) for c in range(channels)])[None]
    place = place if not twice or size < 2 else place.clip(None, place[..., -2:-1])
    more = [ints(1, channels, long + 2)] if given else []
    attrs = {"kernel_shape": (kernel,), "strides": (stride,), "pads": pads}
    return Use((Floats((1, channels, size)), place.astype(np.int64), *more), attrs)


# Entries picked, written and moved


def gather(size: int, inner: int, axis: int, index: Shape, back: bool) -> Use:
    """Positions that repeat, as they stand or counted from the end."""
    shape = (2, size, inner)
    place = (np.arange(prod(index)) * 2 % shape[axis]).reshape(index)
    return Use((Floats(shape), np.asarray(place - shape[axis] * back)), {"axis": axis})


def gather_elements(size: int, inner: int, axis: int, length: int) -> Use:
    shape = (size, inner)
    index = (length, inner) if axis in (0, -2) else (size, length)
    return Use((Floats(shape), (np.arange(prod(index)) * 3 % shape[axis]).reshape(index)), {"axis": axis})


def gather_nd(size: int, inner: int, width: int, rows: int, batch: bool) -> Use:
    shape = (2, size, inner) if batch else (size, inner, 2)
    limits = shape[1 if batch else 0 :][:width]
    index = np.stack([np.arange(rows) * (i + 1) % n for i, n in enumerate(limits)], axis=-1)
    index = np.stack([index, index[::-1]]) if batch else index
    return Use((Floats(shape), index), {"batch_dims": 1} if batch else {})


def compress(size: int, inner: int, axis: int | None, share: int) -> Use | None:
    count = size * inner if axis is None else (size, inner)[axis]
    keep = np.arange(max(count - (share > 2), 1)) % share == 0
    return Use((Floats((size, inner)), keep), {} if axis is None else {"axis": axis})


def one_hot(count: int, depth: int, axis: int, rank: int) -> Use:
    shape = (count, 2)[:rank]
    place = (np.arange(prod(shape)).reshape(shape) * 2 - 1) % (depth + 1)
    return Use((np.asarray(place), ints(depth), Floats((2,))), {"axis": axis})


def reverse(size: int, batch: int, inner: int, time: int) -> Use:
    shape = (size, batch, inner) if time == 0 else (batch, size, inner)
    lengths = np.arange(batch) * 2 % size + 1
    return Use((Floats(shape), lengths), {"time_axis": time, "batch_axis": 1 - time})


def scatter_elements(size: int, inner: int, axis: int, length: int, reduction: str) -> Use | None:
    shape = (size, inner)
    index = (length, inner) if axis in (0, -2) else (size, length)
    if reduction == "mul" and length > 3:
        return None
    place = np.arange(prod(index)).reshape(index) * 3 % shape[axis]
    return Use(
        (Floats(shape), place, Floats(index)), _reduced(reduction, axis=axis), degree=_factors(reduction, length)
    )


def scatter_nd(size: int, inner: int, rows: int, width: int, reduction: str) -> Use | None:
    shape = (size, inner)
    if reduction == "mul" and rows > 3:
        return None
    index = np.stack([np.arange(rows) * 3 % n for n in shape[:width]], axis=-1)
    updates = Floats((rows, *shape[width:]))
    return Use((Floats(shape), index, updates), _reduced(reduction), degree=_factors(reduction, rows))


def _reduced(reduction: str, **more: int) -> dict[str, Any]:
    return {**more, "reduction": reduction}


def _factors(reduction: str, count: int) -> int:
    return count + 1 if reduction == "mul" else 1


SCATTERED: Values = {"size": SIZES, "inner": (1, 2, 3), "asked": ASKED}
REDUCTIONS = ("none", "add", "max", "min")


def slices(size: int, start: int, end: int, step: int, axis: int, both: bool) -> Use:
    shape = (size, 4) if axis == 0 else (4, size)
    ends = [ints(*(v,) * (1 + both)) for v in (start, end)]
    axes, steps = (ints(0, 1), ints(step, 1)) if both else (ints(axis), ints(step))
    return Use((Floats(shape), *ends, axes, steps))


def padded(size: int, inner: int, pads: Shape, mode: str, value: bool, axes: bool) -> Use | None:
    before, behind = pads
    if value and mode != "constant":
        return None
    limit = {"reflect": size - 1, "wrap": size}.get(mode, 9)
    if max(pads) > limit or size + min(before, 0) + min(behind, 0) < 1 or (min(pads) < 0 and mode != "constant"):
        return None
    widths = ints(before, behind) if axes else ints(before, 1 if mode == "constant" else 0, behind, 0)
    more: list[Input] = [Floats() if value else None, ints(0) if axes else None]
    while more and more[-1] is None:
        more.pop()
    return Use((Floats((size, inner)), widths, *more), {"mode": mode})


def trilu(size: int, width: int, batch: Shape, k: int | None, upper: int) -> Use:
    return Use((Floats((*batch, size, width)), *([] if k is None else [np.array(k)])), {"upper": upper})


def reshape(shape: Shape, to: Shape) -> Use | None:
    known = prod(n for n in to if n > 0)
    if (-1 in to and prod(shape) % known) or (-1 not in to and known != prod(shape)):
        return None
    return Use((Floats(shape), ints(*to)))


def flatten(shape: Shape, axis: int) -> Use | None:
    return Use((Floats(shape),), {"axis": axis}) if -len(shape) <= axis <= len(shape) else None


def squeeze(shape: Shape, axes: Shape | None) -> Use | None:
    if axes is None:
        return Use((Floats(shape),))
    fits = all(-len(shape) <= a < len(shape) and shape[a] == 1 for a in axes)
    return Use((Floats(shape), ints(*axes))) if fits else None


def unsqueeze(shape: Shape, axes: Shape) -> Use | None:
    rank = len(shape) + len(axes)
    fits = all(-rank <= a < rank for a in axes) and len({a % rank for a in axes}) == len(axes)
    return Use((Floats(shape), ints(*axes))) if fits else None


def transpose(shape: Shape, perm: int | None) -> Use:
    attrs = {} if perm is None else {"perm": tuple((i * 2 + perm) % 3 for i in range(3))}
    return Use((Floats(shape),), attrs)


def expand(shapes: tuple[Shape, Shape]) -> Use:
    return Use((Floats(shapes[0]), ints(*shapes[1])))


def split(size: int, inner: int, axis: int, how: str) -> Use | None:
    shape = (size, inner) if axis in (0, -2) else (inner, size)
    if how == "sizes":
        return Use((Floats(shape), ints(1, size - 1)), {"axis": axis}, 2)
    if how == "equal" and size % 2:
        return None
    return Use((Floats(shape),), {"axis": axis, "num_outputs": 2}, 2) if size > 1 else None


def concat(size: int, inner: int, axis: int, count: int) -> Use:
    lengths = [size * (i + 1) % 8 for i in range(count)]
    return Use(tuple(Floats((n, inner) if axis in (0, -2) else (inner, n)) for n in lengths), {"axis": axis})


def cast_like(shape: Shape, like: str) -> Use:
    return Use((Floats(shape), np.ones(2, like)))


def range_(draw: int) -> Use:
    """Start, limit and step, which decide on the length of the result."""
    return Use((Floats(), Floats(), Floats()))


# Reductions


def reduction(shape: Shape, axes: Shape | None, **attrs: Any) -> Use | None:
    if len({a % len(shape) for a in axes or () if -len(shape) <= a < len(shape)}) < len(axes or ()):
        return None
    count = prod(shape if not axes else (shape[a] for a in axes)) or 1
    attrs.setdefault("noop_with_empty_axes", 0)
    return Use((Floats(shape), *([] if axes is None else [ints(*axes)])), attrs, multiple=count)


REDUCED: Values = {
    "shape": ((), (1,), (2,), (3,), (4,), (7,), (2, 3), (3, 1), (1, 4), (2, 3, 2), (4, 1, 2)),
    "axes": (None, (), (0,), (-1,), (1,), (0, 1), (-2,), (0, -1), (2, 0)), "keepdims": (0, 1),
    "noop_with_empty_axes": (0, 1),
}  # fmt: skip


def cumsum(size: int, inner: int, axis: int, exclusive: int, reverse: int) -> Use:
    shape = (size, inner) if axis in (0, -2) else (inner, size)
    return Use((Floats(shape), np.array(axis)), {"exclusive": exclusive, "reverse": reverse})


RESIZED: Values = {
    "size": (1, 2, 3, 4, 6), "ratio": (0.5, 1, 2, 4), "ratio_width": (1, 2), "mode": ("nearest", "linear", "cubic"),
    "transformation": ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
                       "tf_crop_and_resize"),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"), "sizes": (False, True),
    "antialias": (0, 1), "exclude_outside": (0, 1),
}  # fmt: skip


def resize(
    size: int, ratio: float, ratio_width: int, mode: str, transformation: str, nearest_mode: str, sizes: bool,
    antialias: int, exclude_outside: int,
) -> Use | None:  # fmt: skip
    """Sizes with ratios that are powers of 2, so that weights are exact."""
    long = size * ratio
    whole = transformation not in ("align_corners", "tf_crop_and_resize") or long == 1 or (size, long) in _ALIGNED
    if mode != "nearest" and nearest_mode != "round_prefer_floor":
        return None  # it has no meaning there
    if long != int(long) or (mode == "nearest" and antialias) or not (whole or mode == "nearest"):
        return None
    if mode != "nearest" and (exclude_outside or antialias) and (ratio < 1 or mode == "cubic"):
        return None  # weights are divided by their sum
    crop = transformation == "tf_crop_and_resize"
    more = [ints(int(long), 2 * ratio_width)] if sizes else []
    scales = None if sizes else np.array([ratio, ratio_width], np.float32)
    attrs = {"mode": mode, "coordinate_transformation_mode": transformation, "nearest_mode": nearest_mode,
             "antialias": antialias, "exclude_outside": exclude_outside, "axes": (2, 3)}  # fmt: skip
    roi = np.array([0, 0, 1, 1], np.float32) if crop else None
    if transformation in ("align_corners", "tf_crop_and_resize") and ratio_width > 1 and mode != "nearest":
        return None
    return Use((Floats((1, 2, size, 2)), roi, scales, *more), attrs)


_ALIGNED = {(1, 2), (1, 4), (2, 2), (3, 3), (4, 4), (6, 6), (2, 1), (4, 2), (6, 3)}  # whole steps between entries


def top_k(size: int, inner: int, axis: int, k: int, largest: int, sorted_: int, count: int) -> Use | None:
    shape = (size, inner) if axis in (0, -2) else (inner, size)
    if k > size:
        return None
    return Use((Floats(shape), ints(k)), {"axis": axis, "largest": largest, "sorted": sorted_}, count)


def unique(size: int, inner: int, axis: int | None, sorted_: int, count: int) -> Use:
    attrs = {"sorted": sorted_} if axis is None else {"sorted": sorted_, "axis": axis}
    return Use((Floats((size, inner)),), attrs, count)


def square(size: int, batch: Shape) -> Use:
    return Use((Floats((*batch, size, size)),))


def softmax(shape: Shape, axis: int | None) -> Use | None:
    if axis is not None and not -len(shape) <= axis < len(shape):
        return None
    return Use((Floats(shape),), {} if axis is None else {"axis": axis})


def normalized(shape: Shape, axis: int, scale: bool, bias: bool, epsilon: float) -> Use | None:
    if not -len(shape) <= axis < len(shape):
        return None
    inner = shape[axis:] if scale else (1,)
    more: list[Input] = [Floats(inner)] if bias else []
    return Use((Floats(shape), Floats(inner), *more), {"axis": axis, "epsilon": epsilon}, 3)


def rms_normalized(shape: Shape, axis: int, scale: bool, epsilon: float) -> Use | None:
    use = normalized(shape, axis, scale, False, epsilon)
    return use and Use(use.inputs, use.attrs)


NORMALIZED: Values = {
    "shape": ((1,), (2,), (3,), (4,), (2, 3), (3, 2), (1, 4), (2, 1), (2, 1, 3), (7,)), "axis": (-1, 0, 1, -2),
    "scale": (True, False), "epsilon": (2.0**-10, 9.999999747378752e-06),
}  # fmt: skip
SQUARES: Values = {"size": (1, 2, 3, 4, 5), "batch": ((), (1,), (2,), (2, 1))}


def _apart(axes: Values, use: Callable[..., Use | None], **more: Any) -> Lattice:
    return Lattice(axes, use, apart=True, **more)


def _field(axes: Values, use: Callable[..., Use | None]) -> Lattice:
    return Lattice(axes, use, by="residues")


_ALPHA = (0.25, 0.009999999776482582, 1.5)
_SOFTMAX: Values = {"shape": ((1,), (2,), (3,), (4,), (7,), (2, 3), (3, 1), (2, 3, 2)), "axis": (None, 0, 1, -1, -2)}
_FEW: Values = {"shape": ((), (1,), (2,), (3,), (4,), (5,), (2, 2), (1, 3))}  # each entry has two roots
_COUNTED: Values = {"count": (1, 2, 3, 4), "shapes": PAIRS, "asked": (None, 0, 1, 2, 3)}
_WINDOWED: Values = {**POOL, "stride_width": (1,), "dilation_width": (1,), "batch": (1,)}
_GATHER: Values = {
    "size": SIZES, "inner": (1, 2, 3), "axis": (0, 1, 2, -1, -2), "index": ((), (1,), (4,), (2, 3), (0,)),
    "back": (False, True),
}  # fmt: skip
_GATHER_ND: Values = {"size": SIZES, "inner": (1, 2), "width": (1, 2), "rows": (1, 2, 5), "batch": (False, True)}
_PADS = ((0, 0), (1, 0), (0, 2), (2, 1), (3, 3), (-1, 0), (0, -1), (2, -2))
_PADDED: Values = {"size": SIZES, "inner": (1, 3), "pads": _PADS, "mode": ("constant", "reflect", "edge", "wrap"),
                   "value": (False, True), "asked": ASKED}  # fmt: skip
_TRILU: Values = {"size": SIZES, "width": (1, 2, 4), "batch": ((), (2,)), "k": (None, 0, 1, -1, 3, -9),
                  "upper": (0, 1)}  # fmt: skip
_ELEMENTS: Values = {**SCATTERED, "axis": (0, 1, -1), "length": (1, 2, 3, 5)}
_SLICES: Values = {**SCATTERED, "rows": (1, 2, 3, 5), "width": (1, 2)}
_MOVED = ((1,), (4,), (6,), (2, 3), (3, 1, 2), (1, 6), (2, 1, 3), (1, 1), (7,), ())
_SUMMED = Lattice(_unary(), unary)

LATTICES: Mapping[str, tuple[Lattice, ...]] = {
    "Relu": (_apart(_unary(), unary),),
    "LeakyRelu": (_apart(_unary(alpha=(0.25, -0.5, 2.0, 0.0)), unary),),
    "PRelu": (_apart(_binary(), binary, degree=2),),
    "Shrink": (_apart(_unary(lambd=(0.5, 3.5 * GRID), bias=(0.0, 3.0)), unary),),
    "Clip": (_apart(_unary(low=(False, True), high=(False, True), asked=(None, 0, 1, 2)), clip),),
    "Abs": (_apart(_unary(), unary),),
    **dict.fromkeys(("Neg", "Identity"), (_SUMMED,)),
    "BitCast": (Lattice(_unary(to=(11,)), unary),),
    **dict.fromkeys(("Add", "Sub"), (Lattice(_binary(), binary),)),
    "Mul": (Lattice(_binary(), binary, degree=2),),
    "Mod": (_apart(_binary(fmod=(0, 1)), binary),),
    **dict.fromkeys(("Sum", "Mean"), (Lattice(_COUNTED, several),)),
    **dict.fromkeys(("Max", "Min"), (_apart(_COUNTED, several),)),
    "Where": (Lattice(_binary(condition=((), (1,), (3,), (2, 1), (2, 3), (4,))), where),),
    "MatMul": (Lattice({"n": SIZES, "k": SIZES, "m": SIZES, "batch": BATCHES, "asked": ASKED}, matmul, degree=2),),
    "Einsum": (Lattice({"equation": EQUATIONS, "first": SIZES, "second": SIZES, "other": (1, 2, 3), "batch": (1, 2),
                        "asked": (None, 0, 1, 2)}, einsum),),
    "Conv": (Lattice(LAYER, conv, degree=2, strength=3),),
    "ConvTranspose": (Lattice({**LAYER, "extra": (0, 1)}, conv_transpose, degree=2, strength=3),),
    "MaxPool": (_apart({**POOL, "storage_order": (0, 1), "count": (1, 2)}, pool, strength=3),),
    "AveragePool": (Lattice({**POOL, "count_include_pad": (0, 1)}, pool, strength=3),),
    "LpPool": (_apart({**POOL, "p": (1,)}, pool, strength=3), _field({**_WINDOWED, "p": (2, 3, 4)}, pool)),
    "MaxUnpool": (Lattice({"size": SIZES, "kernel": (1, 2, 3), "stride": (1, 2, 3), "channels": (1, 2),
                           "pads": ((0, 0), (1, 0), (0, 1)), "given": (False, True), "twice": (False, True)}, max_unpool),),
    "Col2Im": (Lattice({**WINDOW, "channels": (1, 2), "batch": (1, 2)}, col2im, strength=3),),
    "Gather": (Lattice(_GATHER, gather),),
    "GatherElements": (Lattice({"size": SIZES, "inner": (1, 2, 3), "axis": (0, 1, -1, -2), "length": (1, 2, 5)},
                               gather_elements),),
    "GatherND": (Lattice(_GATHER_ND, gather_nd),),
    "com.microsoft.GatherND": (Lattice({**_GATHER_ND, "batch": (False,)}, gather_nd),),
    "Compress": (Lattice({"size": SIZES, "inner": (1, 3), "axis": (None, 0, 1, -1), "share": (1, 2, 3)}, compress),),
    "OneHot": (Lattice({"count": SIZES, "depth": (1, 2, 4), "axis": (-1, 0), "rank": (0, 1, 2)}, one_hot),),
    "ReverseSequence": (Lattice({"size": SIZES, "batch": (1, 2, 3), "inner": (1, 2), "time": (0, 1)}, reverse),),
    "Range": (_apart({"draw": range(24), "asked": (None, 0, 1, 2)}, range_),),
    "ScatterElements": (_apart({**_ELEMENTS, "reduction": REDUCTIONS}, scatter_elements),
                        Lattice({**_ELEMENTS, "reduction": ("mul",)}, scatter_elements, factors=5)),
    "ScatterND": (_apart({**_SLICES, "reduction": REDUCTIONS}, scatter_nd),
                  Lattice({**_SLICES, "reduction": ("mul",)}, scatter_nd, factors=5)),
    "Slice": (Lattice({"size": SIZES, "start": (0, 1, -1, -9), "end": (9, 2, -1, -9), "step": (1, 2, -1, -2),
                       "axis": (0, 1), "both": (False, True)}, slices),),
    "Pad": (Lattice({**_PADDED, "axes": (False, True)}, padded),),
    "com.microsoft.Pad": (Lattice({**_PADDED, "mode": ("constant", "reflect", "edge")}, partial(padded, axes=False)),),
    "Tile": (Lattice({"size": SIZES, "inner": (1, 3), "times": ((1, 1), (2, 1), (1, 3), (3, 2), (0, 1))},
                     lambda size, inner, times: Use((Floats((size, inner)), ints(*times)))),),
    **dict.fromkeys(("Trilu", "com.microsoft.Trilu"), (Lattice(_TRILU, trilu),)),
    "Reshape": (Lattice({"shape": _MOVED, "to": ((-1,), (6,), (3, 2), (1, -1), (-1, 2), (2, 1, 3), (1,), ())}, reshape),),
    "Flatten": (Lattice({"shape": _MOVED, "axis": (0, 1, 2, 3, -1, -2)}, flatten),),
    "Squeeze": (Lattice({"shape": _MOVED, "axes": (None, (0,), (-1,), (1,), (0, 1))}, squeeze),),
    "Unsqueeze": (Lattice({"shape": _MOVED, "axes": ((0,), (-1,), (1,), (0, 1), (0, -1), (2,))}, unsqueeze),),
    "Transpose": (Lattice({"shape": ((1, 2, 3), (4, 1, 7), (2, 2, 2), (3, 4, 1)), "perm": (None, 0, 1, 2)}, transpose),),
    "Expand": (Lattice({"shapes": PAIRS}, expand),),
    "Split": (Lattice({"size": SIZES, "inner": (1, 2, 3), "axis": (0, 1, -1), "how": ("sizes", "equal", "number")},
                      split),),
    "Concat": (Lattice({"size": SIZES, "inner": (1, 2, 3), "axis": (0, 1, -1), "count": (1, 2, 3, 4),
                        "asked": (None, 0, 1, 2, 3)}, concat),),
    "Cast": (Lattice(_unary(to=(1, 11)), unary),),
    "CastLike": (Lattice(_unary(like=("float32", "float64")), cast_like),),
    **dict.fromkeys(("ReduceSum", "ReduceMean"), (Lattice(REDUCED, reduction),)),
    **dict.fromkeys(("ReduceMax", "ReduceMin"), (_apart(REDUCED, reduction),)),
    **dict.fromkeys(("ReduceProd", "ReduceL2", "ReduceLogSumExp"), (_field(REDUCED, reduction),)),
    "CumSum": (Lattice({"size": SIZES, "inner": (1, 2, 3), "axis": (0, 1, -1), "exclusive": (0, 1), "reverse": (0, 1)},
                       cumsum),),
    "Resize": (Lattice(RESIZED, resize, strength=3),),
    "TopK": (_apart({"size": SIZES, "inner": (1, 2, 3), "axis": (0, 1, -1), "k": (0, 1, 2, 4), "largest": (0, 1),
                     "sorted_": (0, 1), "count": (1, 2)}, top_k),),
    "Unique": (_apart({"size": SIZES, "inner": (1, 2, 3), "axis": (None, 0, 1, -1), "sorted_": (0, 1),
                       "count": (1, 4)}, unique),),
    "gradcheck.Complex": (Lattice(_binary(), binary),),
    **dict.fromkeys(("gradcheck.Real", "gradcheck.Imag", "gradcheck.Conj"),
                    (Lattice(SHAPES, lambda shape: Use((Floats(shape, True),))), _SUMMED)),
    **dict.fromkeys(("Sigmoid", "Softplus", "Softsign", "Reciprocal", "Sqrt", "Exp", "Log", "Erf", "Sin", "Cos", "Tan",
                     "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Atanh"), (_field(_unary(), unary),)),
    "Acosh": (_field(_FEW, unary),),
    **dict.fromkeys(("Elu", "Celu"), (_field(_unary(alpha=_ALPHA), unary),)),
    "Selu": (_field(_unary(alpha=_ALPHA, gamma=(0.5, 1.0507010221481323)), unary),),
    **dict.fromkeys(("Div", "Pow"), (_field(_binary(), binary),)),
    **dict.fromkeys(("Softmax", "LogSoftmax"), (_field(_SOFTMAX, softmax),)),
    **dict.fromkeys(("Det", "gradcheck.Cofactors", "com.microsoft.Inverse"), (_field(SQUARES, square),)),
    "LayerNormalization": (_field({**NORMALIZED, "bias": (False, True), "asked": (None, 0, 1, 2)}, normalized),),
    "RMSNormalization": (_field({**NORMALIZED, "asked": ASKED}, rms_normalized),),
}  # fmt: skip
