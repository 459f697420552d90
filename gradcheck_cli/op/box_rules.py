"""Box rules: the box of an operator's result that a perturbation in a box of an operand reaches (`op/boxes.py`).

A rule also says which box of each operand the kernel needs for that; `Restricted` runs the kernel on these alone, for
all probes at once.  For a linear operator the operands are differences from the base, zero outside of their boxes; for
all others, and for the rules in `VALUES`, they are values, and a rule has to ask for every entry that the result
depends on.  A rule that does not know gives None: then stacks are made whole, which is always right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from gradcheck_cli.graph import Array
from gradcheck_cli.op.batching import BatchingRule, Kernel
from gradcheck_cli.op.boxes import (
    Box,
    BoxStack,
    Shape,
    Span,
    Stack,
    all_probes,
    clipped,
    extent,
    some,
    windows,
)
from gradcheck_cli.op.sparsity import named_axes

Boxes: TypeAlias = Sequence[Any]  # a `Box` for each operand, None for one that no probe reaches
BoxRule: TypeAlias = "Callable[[Boxes, NodeShapes], Sequence[OutputBoxes] | None]"  # gives one for each output
_COPY = 16  # copying an entry of an operand for a probe takes as long as this many products
_PAYS = 0.5  # share of a whole stack: larger boxes are made whole
_WORTH = 1 << 18  # entries that boxes must save: fewer are computed sooner than cut out
_SUMMED = 8  # products that are added in the time of one entry of another result


class NodeShapes(Struct, frozen=True):
    """One evaluated node: shapes of its operands and outputs, its metadata."""

    operands: Sequence[Any]  # None for one that is left out
    metadata: Mapping[str, Any]
    outputs: tuple[Shape, ...]


class OutputBoxes(Struct, frozen=True):
    """One output's boxes, as a rule gives them.

    out       the boxes of the result; they may reach beyond it, where nothing is
    needs     the box of each operand that the kernel needs; None: all of it
    metadata  the kernel's metadata for these boxes
    reached   mask of the boxes that meet the result, `(Q,)`, or one boolean for all
    share     a factor for the result
    terms     number of products that an entry of a whole result sums, and `summed` of an entry here
    """

    out: Box
    needs: Sequence[Box | None]
    metadata: Mapping[str, Any]
    reached: Any = True
    share: float = 1.0
    terms: int = 1
    summed: int = 1


class Restricted(Struct, frozen=True):
    """A kernel with its batching rule and box rule, and the shapes of its outputs."""

    rule: BoxRule
    kernel: Kernel
    batching: BatchingRule
    metadata: Mapping[str, Any]
    shapes: Sequence[Shape]

    def __call__(
        self, operands: Sequence[Array | BoxStack | None], bases: Sequence[Array | None]
    ) -> tuple[Stack, ...] | None:
        """Results for operands of which some are box stacks, upon `bases`; None if it has to run on whole stacks."""
        operands, probes = _together(operands)
        outputs = self._by_rule(operands, len(probes))
        if outputs is None:
            return None
        first = next(x for x in operands if isinstance(x, BoxStack))
        made = []
        for number, (output, full, base) in enumerate(zip(outputs, self.shapes, bases, strict=True)):
            kept = np.broadcast_to(output.reached, len(probes))
            values = self._values(number, output, operands, kept)
            own = first.count, full, base, first.most, first.room
            stack = BoxStack(values, some(output.out, kept), probes[kept], *own).within()
            small = stack.values.size <= _PAYS * first.count * math.prod(full)
            made.append(stack if small or first.count > first.most else stack.dense())
        return tuple(made)

    def differing(self, operands: Sequence[Array | BoxStack | None]) -> tuple[BoxStack, Array] | None:
        """The boxes of the result, and a mask of the entries in them that differ from those for the bases of operands.

        None if it has to run on whole stacks.
        """
        operands, probes = _together(operands)
        outputs = self._by_rule(operands, len(probes))
        if outputs is None:
            return None
        here = [x.unmoved() if isinstance(x, BoxStack) else x for x in operands]
        every = np.ones(len(probes), bool)
        mine, bare = (self._values(0, outputs[0], each, every) for each in (operands, here))
        count = next(x.count for x in operands if isinstance(x, BoxStack))
        return BoxStack(mine, outputs[0].out, probes, count, self.shapes[0]), np.asarray(mine != bare)

    def _by_rule(self, operands: Sequence[Array | BoxStack | None], count: int) -> Sequence[OutputBoxes] | None:
        """The boxes of each output; None if they are not known or do not pay."""
        boxes = [x.box if isinstance(x, BoxStack) else None for x in operands]
        shapes = tuple(None if x is None else x.full if isinstance(x, BoxStack) else x.shape for x in operands)
        outputs = self.rule(boxes, NodeShapes(shapes, self.metadata, tuple(self.shapes)))
        pairs = zip(outputs or (), self.shapes, strict=False)
        return outputs if all(self._pays(*pair, operands, count) for pair in pairs) else None

    def _pays(self, output: OutputBoxes, full: Shape, operands: Sequence[Any], count: int) -> bool:
        """True if results or operands are far smaller than whole stacks, and fit into memory where those do not."""
        box_stacks = [(x, need) for x, need in zip(operands, output.needs, strict=True) if isinstance(x, BoxStack)]
        first, reached = box_stacks[0][0], int(np.count_nonzero(np.broadcast_to(output.reached, count)))
        made, whole = reached * math.prod(extent(output.out)), first.count * math.prod(full)
        if first.count > first.most:
            if made > first.room:
                return False
        elif whole * max(output.terms, _SUMMED) - made * max(output.summed, _SUMMED) < _WORTH * _SUMMED:
            return False
        if made <= _PAYS * whole:
            return True
        read = sum(reached * math.prod(extent(need or x.box)) for x, need in box_stacks)
        return read <= _PAYS * sum(first.count * math.prod(x.full) for x, _ in box_stacks)

    def _values(self, number: int, output: OutputBoxes, operands: Sequence[Any], kept: Array) -> Array:
        """One output, in the boxes of some probes."""
        needs = output.needs
        if not kept.all():
            operands = [x.only(kept) if isinstance(x, BoxStack) else x for x in operands]
            needs = [need and some(need, kept) for need in needs]
        count = int(np.count_nonzero(kept))
        parts = [_part(x, need, count) for x, need in zip(operands, needs, strict=True)]
        probed = [part is not x for part, x in zip(parts, operands, strict=True)]
        if not count:
            return np.zeros((0, *extent(output.out)))
        made = self.batching(self.kernel, parts, probed, output.metadata)
        values = np.asarray(made[number] if isinstance(made, tuple) else made)
        return values if output.share == 1 else output.share * values


def _together(operands: Sequence[Any]) -> tuple[list[Any], Array]:
    """Operands whose box stacks all have boxes for the same probes, and these probes."""
    probes = all_probes([x for x in operands if isinstance(x, BoxStack)])
    return [x.of(probes) if isinstance(x, BoxStack) else x for x in operands], probes


def _part(x: Any, need: Box | None, count: int) -> Any:
    """The part of one operand that a kernel gets."""
    if isinstance(x, BoxStack):
        return x.window(tuple(Span(0, n) for n in x.full) if need is None else need)
    if x is None or need is None or extent(need) == x.shape:
        return x
    return windows(x, need, count)


def same_place(boxes: Boxes, node: NodeShapes) -> Sequence[OutputBoxes] | None:
    """Elementwise: the box that holds those of all operands, which broadcast."""
    (y,) = node.outputs
    pairs = zip(boxes, node.operands, strict=True)
    out = _union([_raised(box, x, y) for box, x in pairs if box is not None and x is not None], y)
    return [OutputBoxes(out, [None if x is None else _lowered(out, x) for x in node.operands], node.metadata)]


def along(*axes: int | str) -> BoxRule:
    """The box of the first operand, extended to all of some axes, counted from the end or named by metadata."""

    def rule(boxes: Boxes, node: NodeShapes) -> Sequence[OutputBoxes] | None:
        if boxes[0] is None or any(box is not None for box in boxes[1:]):
            return None
        box, chosen = list(boxes[0]), _chosen(axes, node)
        for axis in chosen:
            box[axis] = Span(0, node.operands[0][axis])
        needs = [tuple(box), *(None for _ in boxes[1:])]
        return [OutputBoxes(_reduced(box, chosen, y), needs, node.metadata) for y in node.outputs]

    return rule


def summed(boxes: Boxes, node: NodeShapes) -> Sequence[OutputBoxes] | None:
    """A sum along `axes`, of differences: only the box counts."""
    box, _, y = _first(boxes, node)
    return [OutputBoxes(_reduced(box, _chosen(("axes",), node), y), [box], node.metadata)]


def averaged(boxes: Boxes, node: NodeShapes) -> Sequence[OutputBoxes] | None:
    """A mean along `axes`, of differences: the mean over the box, times its share of the axes."""
    box, x, y = _first(boxes, node)
    chosen = _chosen(("axes",), node)
    share = float(np.prod([box[a].length / x[a] for a in chosen]))
    return [OutputBoxes(_reduced(box, chosen, y), [box], node.metadata, share=share)]


def products(boxes: Boxes, node: NodeShapes) -> Sequence[OutputBoxes] | None:
    """A matrix product: rows of the box by all columns, or all rows by columns; sums are cut to the box if it is narrow."""
    (a, b), (y,) = node.operands, node.outputs
    if a is None or b is None or min(len(a), len(b)) < 2 or None not in boxes:
        return None
    left = boxes[1] is None
    box, mine, other = (boxes[0], a, b) if left else (boxes[1], b, a)
    *lead, row, column = box
    inner, free = (column, row) if left else (row, column)
    length, across = (mine[-1], other[-1]) if left else (mine[-2], other[-2])
    if (free.length + _COPY) * inner.length > free.length * length:
        inner = Span(0, length)
    front = _raised(tuple(lead), mine[:-2], y[:-2])
    beside, whole = _lowered(front, other[:-2]), Span(0, across)
    if left:
        out, needs = (*front, free, whole), [(*lead, free, inner), (*beside, inner, whole)]
    else:
        out, needs = (*front, whole, free), [(*beside, whole, inner), (*lead, inner, free)]
    return [OutputBoxes(out, needs, node.metadata, terms=length, summed=inner.length)]


def transposed(boxes: Boxes, node: NodeShapes) -> Sequence[OutputBoxes] | None:
    """Transpose: axes in another order."""
    box, _, _ = _first(boxes, node)
    return [OutputBoxes(tuple(box[p] for p in node.metadata["perm"]), [box], node.metadata)]


def expanded(boxes: Boxes, node: NodeShapes) -> Sequence[OutputBoxes] | None:
    """Expand: all along the axes that are repeated."""
    box, x, y = _first(boxes, node)
    out = _raised(box, x, y)
    return [OutputBoxes(out, [box], {**node.metadata, "shape": extent(out)})]


def joined(boxes: Boxes, node: NodeShapes) -> Sequence[OutputBoxes] | None:
    """Concat: the box that holds those of all operands, and all of the axis."""
    axis, (y,) = node.metadata["axis"], node.outputs
    found = [[*box[:axis], Span(0, y[axis]), *box[len(box) + axis + 1 :]] for box in boxes if box is not None]
    out = _union([tuple(box) for box in found], y)
    needs = [None if x is None else (*out[:axis], Span(0, x[axis]), *out[len(out) + axis + 1 :]) for x in node.operands]
    return [OutputBoxes(out, needs, node.metadata)]


def sliced(boxes: Boxes, node: NodeShapes) -> Sequence[OutputBoxes] | None:
    """Slice: the part of the box that lies in the slice; `starts`, `ends` and `steps` are relative to it."""
    box, metadata, (y,) = boxes[0], node.metadata, node.outputs
    if box is None or min(metadata["steps"], default=1) < 1:
        return None
    need, out, reached, ends = list(box), list(box), np.True_, []
    for axis, start, step in zip(metadata["axes"], metadata["starts"], metadata["steps"], strict=True):
        first, length, meets = _taken(box[axis], start, step, y[axis])
        out[axis], need[axis] = Span(first, length), Span(start + first * step, (length - 1) * step + 1)
        reached = reached & meets
        ends.append(need[axis].length)
    own = {**metadata, "starts": (0,) * len(ends), "ends": tuple(ends)}
    return [OutputBoxes(tuple(out), [tuple(need)], own, reached=reached)]


def cut(boxes: Boxes, node: NodeShapes) -> Sequence[OutputBoxes] | None:
    """Split: the part of the box that lies in each piece."""
    (box, _, _), axis, start, found = _first(boxes, node), node.metadata["axis"], 0, []
    for number, length in enumerate(node.metadata["split"][: len(node.outputs)]):
        need, out = list(box), list(box)
        first, taken, meets = _taken(box[axis], start, 1, length)
        need[axis], out[axis] = Span(first + start, taken), Span(first, taken)
        sizes = tuple(taken if i == number else 0 for i in range(len(node.outputs)))
        found.append(OutputBoxes(tuple(out), [tuple(need)], {**node.metadata, "split": sizes}, reached=meets))
        start += length
    return found


def reshaped(boxes: Boxes, node: NodeShapes) -> Sequence[OutputBoxes] | None:
    """Reshape: a box that is one run of entries along all axes that are joined or split."""
    box, x, y = _first(boxes, node)
    need: list[Span] = []
    out: list[Span] = []
    for before, behind in _matched(x, y):
        part, run = _run(box[before.start : before.stop], x[before.start : before.stop])
        spans = _spread(run, y[behind.start : behind.stop])
        if spans is None:
            return None
        need, out = [*need, *part], [*out, *spans]
    return [OutputBoxes(tuple(out), [tuple(need)], {**node.metadata, "shape": extent(tuple(out))})]


# Rules that work on values as on differences.
VALUES: frozenset[BoxRule] = frozenset({same_place, transposed, expanded, joined, sliced, cut, reshaped})


def _first(boxes: Boxes, node: NodeShapes) -> tuple[Box, Shape, Shape]:
    """The box and the shape of the first operand, and the shape of the first output."""
    return boxes[0], node.operands[0], node.outputs[0]


def _matched(x: Shape, y: Shape) -> list[tuple[range, range]]:
    """Ranges of axes of x and of y that hold the same entries, as small as possible."""
    i = j = 0
    found = []
    while i < len(x) or j < len(y):
        start, begin, n, m = i, j, 1, 1
        while True:
            if n == m and (i > start or j > begin) and (n > 1 or not (i < len(x) and j < len(y))):
                break
            if n <= m and i < len(x):
                n, i = n * x[i], i + 1
            elif j < len(y):
                m, j = m * y[j], j + 1
            else:
                break
        found.append((range(start, i), range(begin, j)))
    return found


def _run(box: Box, shape: Shape) -> tuple[list[Span], Span]:
    """A box widened until it is one run of entries, and that run."""
    wide = next((d for d, span in enumerate(box) if span.length > 1), len(box))
    part = [span if d <= wide else Span(0, n) for d, (span, n) in enumerate(zip(box, shape, strict=True))]
    strides = _strides(shape)
    start = sum((span.start * stride for span, stride in zip(part, strides, strict=True)), 0)
    return part, Span(start, int(np.prod([span.length for span in part])))


def _spread(run: Span, shape: Shape) -> list[Span] | None:
    """The box that a run of entries is; None if it is none."""
    strides, first, last = _strides(shape), run.start, run.start + (run.length - 1)
    for d in range(len(shape))[::-1]:  # the axis of the run: axes behind it are whole, those before it of length 1
        outer = strides[d] * shape[d]
        if run.length <= outer and np.all(np.asarray(first) // outer == np.asarray(last) // outer):
            break
    else:
        d = 0
    if not shape:
        return []
    if run.length % strides[d] or np.any(np.asarray(first) % strides[d]):
        return None
    before = [Span(first // stride % n, 1) for stride, n in zip(strides[:d], shape[:d], strict=True)]
    here = Span(first // strides[d] % shape[d], run.length // strides[d])
    return [*before, here, *(Span(0, n) for n in shape[d + 1 :])]


def _strides(shape: Shape) -> list[int]:
    """The number of entries that a step along each axis passes."""
    return list(accumulate(shape[:0:-1], mul, initial=1))[::-1] if shape else []


def _taken(span: Span, start: int, step: int, length: int) -> tuple[Any, int, Any]:
    """Along an axis of a slice: the starts of boxes in it, their length, and a mask of those that meet it."""
    first, last = -((start - span.start) // step), (span.start + span.length - 1 - start) // step
    taken = min((span.length - 1) // step + 1, length)
    return clipped(first, 0, length - taken), taken, (first <= last) & (last >= 0) & (first < length)


def _union(boxes: Sequence[Box], shape: Shape) -> Box:
    """Boxes of one size, each of which holds one of each of `boxes`."""
    if len(boxes) == 1:
        return boxes[0]
    found = []
    for spans, n in zip(zip(*boxes, strict=True), shape, strict=True):
        first, last = spans[0].start, spans[0].start + spans[0].length
        for span in spans[1:]:
            first, last = np.minimum(first, span.start), np.maximum(last, span.start + span.length)
        length = int(np.max(last - first, initial=0))
        found.append(Span(clipped(first, 0, n - length), length))
    return tuple(found)


def _raised(box: Box, x: Shape, y: Shape) -> Box:
    """The box of a result that a box of x is broadcast to."""
    spans = [Span(0, n) if m == 1 else span for span, m, n in zip(box, x, y[len(y) - len(x) :], strict=True)]
    return (*(Span(0, n) for n in y[: len(y) - len(x)]), *spans)


def _lowered(out: Box, x: Shape) -> Box:
    """The box of an operand of shape x that a box of the result needs."""
    return tuple(Span(0, 1) if n == 1 else span for span, n in zip(out[len(out) - len(x) :], x, strict=True))


def _reduced(box: Sequence[Span], axes: Sequence[int], y: Shape) -> Box:
    """The box of a result that has all of some axes, or one entry along them, or lacks them."""
    gone = len(box) > len(y)
    kept = [(span, d - len(box) in axes) for d, span in enumerate(box)]
    spans = [span for span, chosen in kept if not (gone and chosen)]
    chosen = [False] * len(y) if gone else [chosen for _, chosen in kept]
    return tuple(Span(0, n) if whole else span for span, whole, n in zip(spans, chosen, y, strict=True))


def _chosen(axes: Sequence[int | str], node: NodeShapes) -> list[int]:
    """Axes of the first operand, counted from the end: given, or named by metadata."""
    rank = len(node.operands[0])
    return [axis - rank if axis >= 0 else axis for axis in named_axes(axes, node.metadata) or ()]
