"""Stacks of probes that differ from one tensor, their base, in a box each: only the boxes are held.

A perturbed entry of x changes a row, a channel or a window of the tensors computed from it; elsewhere all probes have
the values of the base: those of the point, or zeros for tangents and for cotangents of single entries of y.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.lib.stride_tricks import sliding_window_view

from gradcheck_cli import native
from gradcheck_cli.graph import Array

Shape: TypeAlias = tuple[int, ...]


class Crowded(Exception):
    """Raised if more probes than memory allows would have to be made whole at once; they go on in parts."""


class Span(NamedTuple):
    """The extent of boxes along one axis: a common `length`, and one start for all or one for each, `(Q,)`."""

    start: Array | int
    length: int


Box: TypeAlias = tuple[Span, ...]  # a span for each axis


def extent(box: Box) -> Shape:
    """The shape of the boxes."""
    return tuple(span.length for span in box)


def some(box: Box, kept: Array) -> Box:
    """The boxes of the probes in the mask `kept`."""
    return tuple(Span(s.start[kept] if isinstance(s.start, np.ndarray) else s.start, s.length) for s in box)


class BoxStack(Struct, frozen=True):
    """Values `(Q, *extent(box))` in the boxes of the probes number `probes` `(Q,)`, of `count` probes.

    `base`, a tensor of shape `full`, has the values of all other entries and all other probes; None stands for zeros.
    At most `most` probes may be made whole at once, and a stack of more than `most` may hold at most `room` entries.
    """

    values: Array
    box: Box
    probes: Array
    count: int
    full: Shape
    base: Array | None = None
    most: int = 1 << 62
    room: int = 1 << 62

    def __len__(self) -> int:
        return self.count

    @property
    def shape(self) -> Shape:
        """The shape of the whole stack."""
        return self.count, *self.full

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.values.dtype

    def astype(self, dtype: np.dtype[Any], *, copy: bool = True) -> BoxStack:
        return replace(self, values=self.values.astype(dtype, copy=copy))

    def dense(self) -> Array:
        """The whole stack; Crowded if it has too many probes."""
        if self.count > self.most:
            raise Crowded
        return self.filled()

    def filled(self) -> Array:
        """The whole stack."""
        if len(self.probes) == self.count and extent(self.box) == self.full:
            return self.values
        whole = np.empty(self.shape, self.values.dtype)
        whole[...] = 0 if self.base is None else self.base
        _place(self.values, [span.start for span in self.box], whole, self.probes)
        return whole

    def window(self, need: Box) -> Array:
        """The values in other boxes, `(Q, *extent(need))`; zeros beyond the tensor if the base is zero."""
        offsets = [a.start - b.start for a, b in zip(self.box, need, strict=True)]
        if extent(need) == extent(self.box) and not any(np.any(offset) for offset in offsets):
            return self.values
        shape, dtype = (len(self.probes), *extent(need)), self.values.dtype
        around = np.zeros(shape, dtype) if self.base is None else windows(self.base, need, shape[0]).astype(dtype)
        return _overlaid(self.values, offsets, around)

    def moves(self) -> BoxStack:
        """The differences from the base."""
        if self.base is None:
            return self
        return replace(self, values=self.values - windows(self.base, self.box, len(self.probes)), base=None)

    def unmoved(self) -> BoxStack:
        """The base's values in the same boxes."""
        base = np.zeros(self.full) if self.base is None else self.base
        return replace(self, values=windows(base, self.box, len(self.probes)))

    def upon(self, base: Array) -> BoxStack:
        """The values, which are differences, added to a base."""
        return replace(self, values=self.values + windows(base, self.box, len(self.probes)), base=base)

    def of(self, probes: Array) -> BoxStack:
        """The stack with a box for each of `probes`, a superset of those that have one."""
        if len(probes) == len(self.probes):
            return self
        at = np.searchsorted(probes, self.probes)
        box = tuple(Span(_scattered(s.start, at, len(probes)), s.length) for s in self.box)
        shape, dtype = (len(probes), *extent(box)), self.values.dtype
        values = np.zeros(shape, dtype) if self.base is None else windows(self.base, box, shape[0]).astype(dtype)
        values[at] = self.values
        return replace(self, values=values, box=box, probes=probes)

    def only(self, kept: Array) -> BoxStack:
        """The stack with boxes for the probes in the mask `kept` alone; the others are like the base."""
        return replace(self, values=self.values[kept], box=some(self.box, kept), probes=self.probes[kept])

    def taken(self, rows: Array) -> BoxStack:
        """The probes number `rows`, in order, as a stack of their own."""
        here = self.only(np.isin(self.probes, rows))
        return replace(here, probes=np.searchsorted(rows, here.probes), count=len(rows))

    def places(self, marked: Array) -> tuple[Array, Array]:
        """The probes, in order, and the places in the flat tensor of marked entries of the boxes, `(Q, *extent(box))`."""
        rows, *inner = np.nonzero(marked)
        starts = (s.start[rows] if isinstance(s.start, np.ndarray) else s.start for s in self.box)
        at = [start + i for start, i in zip(starts, inner, strict=True)]
        return self.probes[rows], np.ravel_multi_index(at, self.full)

    def within(self) -> BoxStack:
        """The stack with boxes that do not reach beyond the tensor."""
        if all(_inside(span, n) for span, n in zip(self.box, self.full, strict=True)):
            return self
        lengths = [min(span.length, n) for span, n in zip(self.box, self.full, strict=True)]
        axes = zip(self.box, self.full, lengths, strict=True)
        box = tuple(Span(clipped(span.start, 0, n - m), m) for span, n, m in axes)
        return replace(self, values=self.window(box), box=box)


Stack: TypeAlias = Array | BoxStack


def as_stack(values: Any) -> Any:
    """The values as a box stack or an array."""
    return values if isinstance(values, BoxStack) else np.asarray(values)


def dense(stack: Any) -> Any:
    """The stack as an array; Crowded if a box stack has too many probes."""
    return stack.dense() if isinstance(stack, BoxStack) else stack


def part(stack: Stack, piece: range) -> Stack:
    """Consecutive probes of a stack."""
    if not isinstance(stack, BoxStack):
        return stack[piece.start : piece.stop]
    here = stack.only((stack.probes >= piece.start) & (stack.probes < piece.stop))
    return replace(here, probes=here.probes - piece.start, count=len(piece))


def filled(stack: Stack) -> Array:
    """The stack as an array, whatever its number of probes."""
    return stack.filled() if isinstance(stack, BoxStack) else stack


def joined(parts: Iterable[Sequence[Array]], count: int) -> tuple[Array, ...]:
    """Stacks of `count` probes from parts; every part is released before the next is made."""
    whole: tuple[Array, ...] = ()
    start = 0
    for part in parts:
        whole = whole or tuple(np.empty((count, *stack.shape[1:]), stack.dtype) for stack in part)
        for target, stack in zip(whole, part, strict=True):
            target[start : start + len(stack)] = stack
        start += len(part[0])
    return whole


def taken(stack: Stack, rows: Array) -> Array:
    """The probes number `rows`, in order, as an array."""
    return stack.taken(rows).dense() if isinstance(stack, BoxStack) else stack[rows]


def in_any_entry(stack: Array) -> Array:
    """Mask `(P,)` of the probes with any true entry."""
    return np.asarray(stack.any(axis=tuple(range(1, stack.ndim))))


def windows(x: Array, box: Box, count: int) -> Array:
    """The values of a tensor in each of some boxes, `(count, *extent(box))`."""
    moving = [d for d, span in enumerate(box) if isinstance(span.start, np.ndarray) and span.length < x.shape[d]]
    x = x[tuple(slice(None) if d in moving or s.length == x.shape[d] else slice(s.start, s.start + s.length)
                for d, s in enumerate(box))]  # fmt: skip
    if not moving:
        return np.broadcast_to(x, (count, *x.shape))
    starts: list[Any] = [span.start if d in moving else None for d, span in enumerate(box)]
    lengths = [span.length if d in moving else x.shape[d] for d, span in enumerate(box)]
    made = native.cut_out(x, starts, lengths)
    if made is not None:
        return made
    return np.asarray(_slid(x, [lengths[d] for d in moving], moving)[tuple(starts[d] for d in moving)])


def all_probes(stacks: Sequence[BoxStack]) -> Array:
    """The probes that have a box in any of the stacks."""
    first = stacks[0].probes
    if all(s.probes is first or np.array_equal(s.probes, first) for s in stacks):
        return first
    return reduce(np.union1d, [s.probes for s in stacks])


def _slid(x: Array, lengths: Sequence[int], axes: Sequence[int], front: int = 0, *, writeable: bool = False) -> Array:
    """Sliding windows along some axes: `front` axes, the positions along each of `axes`, then all axes of a window."""
    view = sliding_window_view(x, lengths, axis=tuple(axes), writeable=writeable)
    last = {axis: x.ndim + i for i, axis in enumerate(axes)}
    order = [*range(front), *axes, *(last.get(d, d) for d in range(front, x.ndim))]
    return view.transpose(order)


def _place(values: Array, starts: Sequence[Any], whole: Array, probes: Array) -> None:
    """Writes the values of each probe into `whole`, from the start of its box."""
    moving = [d for d, start in enumerate(starts) if isinstance(start, np.ndarray)]
    whole = whole[(slice(None), *(slice(None) if d in moving else slice(s, s + values.shape[1 + d])
                                  for d, s in enumerate(starts)))]  # fmt: skip
    every = [probes, *(starts[d] if d in moving else None for d in range(len(starts)))]
    if native.put_back(whole, every, [1, *values.shape[1:]], values):
        return
    if moving:
        lengths, axes = [values.shape[1 + d] for d in moving], [1 + d for d in moving]
        whole = _slid(whole, lengths, axes, 1, writeable=True)
    whole[(probes, *(starts[d] for d in moving))] = values


def _overlaid(values: Array, offsets: Sequence[Any], around: Array) -> Array:
    """A copy of `around` with each probe's values written at its offsets, as far as they lie inside."""
    if not len(values):
        return around
    inner, before, room = around.shape[1:], [], list(around.shape)
    starts = []
    for d, (offset, own) in enumerate(zip(offsets, values.shape[1:], strict=True)):
        offset = clipped(offset, -own, inner[d])
        before.append(max(0, -int(np.min(offset))))
        room[1 + d] += before[d] + max(0, int(np.max(offset)) + own - inner[d])
        starts.append(offset + before[d])
    part = (slice(None), *(slice(b, b + n) for b, n in zip(before, inner, strict=True)))
    whole = np.empty(room, around.dtype)
    whole[part] = around
    _place(values, starts, whole, np.arange(len(values)))
    return whole[part]


def _scattered(start: Array | int, at: Array, count: int) -> Array | int:
    if not isinstance(start, np.ndarray):
        return start
    starts = np.zeros(count, np.int64)
    starts[at] = start
    return starts


def _inside(span: Span, n: int) -> bool:
    if not isinstance(span.start, np.ndarray):
        return 0 <= span.start <= n - span.length
    return not len(span.start) or (int(span.start.min()) >= 0 and int(span.start.max()) <= n - span.length)


def clipped(start: Any, least: int, most: int) -> Any:
    """Starts of boxes, within bounds."""
    return np.clip(start, least, most) if isinstance(start, np.ndarray) else min(max(int(start), least), most)
