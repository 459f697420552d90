"""How a step of a tape carries tangents: derivatives along directions in which some tensors move, for a stack of probes.

Every discrete decision is that of the point, and only forward kernels take part: linear steps run on the tangents,
elementwise ones contribute their local slope once for all probes, those that work line by line the Jacobian of each
line where that is less work, the others run at `x + i h t`.

Tangents of whole stacks: the steps of a program made ready once, for all chunks of probes.

Elementwise steps that follow one another become chains: slopes are known, so that nothing but products and sums is
left.  What no stage here is for goes through the pushforward, which stays the reference for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli import native
from gradcheck_cli.autodiff.tape import Step, Tape
from gradcheck_cli.engine.rounding import factors
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.op.batching import Kernel, elementwise
from gradcheck_cli.op.box_rules import Restricted, same_place
from gradcheck_cli.op.boxes import Patch, Shape, Stack, dense
from gradcheck_cli.op.fusion import Chain, Formula, expressed, parts, total
from gradcheck_cli.op.sparsity import lines

_HELD = 4 << 20  # bytes: larger local Jacobians are not kept
_FLOOR = 1e-150  # sizes of x below this count as this
_STEP = 2.0**-100  # of the complex step, relative to the scale of x: far below any rounding, far above underflow


class Pushforward:
    """The derivative of each step of a tape at its point; local slopes are computed once."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._slopes: dict[tuple[int, int], Array] = {}
        self._finite: dict[str, bool] = {}

    def through(
        self, index: int, step: Step, tangents: Mapping[str, Stack], jitter: np.random.Generator | None
    ) -> dict[str, Stack]:
        """Tangents of a step's outputs that hold numbers with a derivative."""
        if not self.finite(step.operands):  # what is multiplied by zero need not be zero
            tangents = {n: dense(tangents[n]) for n in step.operands if n in tangents}
        live = [bool(n) and n in tangents for n in step.operands]
        outputs = [n for n in step.node.outputs if n and is_inexact(self.tape.values[n].dtype)]
        if not any(live) or not outputs:
            return {}
        if step.op.linear:
            made = self.linear(step, tangents)
            if made is None:  # only operands that select carry a tangent
                return {}
        elif step.op.lift is elementwise and not step.op.many:
            made = self._slope_tangent(index, step, tangents, live)
        elif (local := self._lines(index, step, tangents, live)) is not None:
            made = _along_lines(local, np.asarray(tangents[step.operands[0]]), step.metadata["axis"])
        else:
            made = self._complex_tangent(step, tangents, live, jitter)
        pairs = zip(step.node.outputs, made if step.op.many else (made,), strict=False)
        return {name: value for name, value in pairs if name in outputs}

    def finite(self, names: Sequence[str]) -> bool:
        """No tensor of these holds anything but finite numbers."""
        for name in names:
            if name and name not in self._finite:
                value = self.tape.values.narrowest(name)
                self._finite[name] = not is_inexact(value.dtype) or bool(np.isfinite(value).all())
        return all(self._finite[name] for name in names if name)

    def linear(self, step: Step, tangents: Mapping[str, Stack]) -> Any:
        """The kernel on the tangents themselves, operands of the other groups being zero."""
        live = [bool(n) and n in tangents for n in step.operands]
        groups = [(i,) for i in range(len(live))] if step.op.linear == "each" else step.op.linear
        turns = [[i for i in group if i < len(live) and live[i]] for group in groups]
        total: Any = None
        for turn in range(max(len(t) for t in turns)):
            chosen = {t[turn] for t in turns if turn < len(t)}
            operands = [self._part(step, i, chosen, groups, tangents) for i in range(len(live))]
            probed = [i in chosen for i in range(len(live))]
            made = lifted(step, step.op.forward, operands, probed, self.shapes(step))
            total = made if total is None else _plus(total, made)
        return total

    def shapes(self, step: Step) -> list[Shape]:
        """Those of a step's outputs."""
        return [self.tape.values[n].shape if n else () for n in step.node.outputs]

    def _part(
        self,
        step: Step,
        i: int,
        chosen: set[int],
        groups: Sequence[Sequence[int]],
        tangents: Mapping[str, Stack],
    ) -> Stack | None:
        """Operand i: its tangent if chosen, its value if it goes with a chosen one or selects, else zero."""
        name = step.operands[i]
        if not name:
            return None
        if i in chosen:
            return tangents[name]
        group = next((g for g in groups if i in g), None)
        if group is None or chosen.intersection(group):
            return self.tape.values.operand(step.op, name)
        return np.zeros_like(self.tape.values.like(name))

    def _slope_tangent(self, index: int, step: Step, tangents: Mapping[str, Stack], live: Sequence[bool]) -> Stack:
        """The sum over operands of local slope times tangent."""
        (shape,) = self.shapes(step)
        total: Any = None
        for i, probed in enumerate(live):
            if probed:
                term = _through(
                    _product, [self.slope(index, step, i), tangents[step.operands[i]]], [False, True], shape
                )
                total = term if total is None else _through(np.add, [total, term], [True, True], shape)
        if isinstance(total, Patch) or total.shape[1:] == shape:
            return total
        return np.broadcast_to(total, (total.shape[0], *shape))

    def slope(self, index: int, step: Step, i: int) -> Array:
        """The derivative of an elementwise step by its operand i, at the point."""
        if (index, i) not in self._slopes:
            operands: list[Any] = [self.tape.values[n] if n else None for n in step.operands]
            x = operands[i]
            h = _STEP * np.where(x == 0, 1.0, np.minimum(np.maximum(np.abs(x), _FLOOR), 1.0))
            operands[i] = x + 1j * h
            rank = self.tape.values[step.node.outputs[0]].ndim
            h = h.reshape((1,) * (rank - h.ndim) + h.shape)
            self._slopes[index, i] = np.imag(_continued(step)(*operands, **step.metadata)) / h
        return self._slopes[index, i]

    def _lines(self, index: int, step: Step, tangents: Mapping[str, Stack], live: Sequence[bool]) -> Array | None:
        """For a step that works on lines along an axis, the Jacobian of each, `(lines, n, n)`: once for all probes.

        None where running each probe costs less, or no finite numbers tell it.
        """
        if step.op.reads is not lines or len(live) != 1 or isinstance(tangents[step.operands[0]], Patch):
            return None
        x, axis = self.tape.values[step.operands[0]], step.metadata["axis"]
        n = x.shape[axis] if x.ndim else 0
        if not 0 < 2 * n <= len(tangents[step.operands[0]]) or n * x.nbytes > _HELD:
            return None
        if (index, 0) not in self._slopes:
            units = np.moveaxis(
                np.broadcast_to(np.eye(n, dtype=x.dtype).reshape(n, *(1,) * (x.ndim - 1), n), (n, *_last(x, axis))),
                -1,
                axis,
            )
            made = np.moveaxis(self._complex_tangent(step, {step.operands[0]: units}, live, None), axis, -1)
            self._slopes[index, 0] = made.reshape(n, -1, n).swapaxes(0, 1)
        found = self._slopes[index, 0]
        return found if np.isfinite(found).all() else None

    def _complex_tangent(
        self, step: Step, tangents: Mapping[str, Stack], live: Sequence[bool], jitter: np.random.Generator | None
    ) -> Any:
        """The kernel at `x + i h t`, h for each probe by the sizes of x and t."""
        values: Mapping[str, Array] = self.tape.values
        if jitter is not None and step.op.backward_stable:
            values = {n: values[n] * factors(values[n][None], jitter)[0] for n in step.operands if n}
        pairs = [(values[n], tangents[n]) for n, p in zip(step.operands, live, strict=True) if p]
        h = _STEP * min(_smallest(x) for x, _ in pairs) / np.maximum.reduce([_size_by_probe(t) for _, t in pairs])
        operands = [
            (_moved(values[n], tangents[n], h) if p else values[n]) if n else None
            for n, p in zip(step.operands, live, strict=True)
        ]
        bases = [self.tape.values[n] if n else None for n in step.node.outputs]
        made = lifted(step, _continued(step), operands, live, self.shapes(step), bases)
        results = [_slope_of(y, h) for y in (made if step.op.many else (made,))]
        return tuple(results) if step.op.many else results[0]


def _last(x: Array, axis: int) -> Shape:
    """The shape with an axis moved behind all others."""
    return np.moveaxis(x, axis, -1).shape


def _along_lines(local: Array, tangent: Array, axis: int) -> Array:
    """Tangents `(P, *shape)` through the Jacobians `(lines, n, n)` of all lines along an axis."""
    moved = np.moveaxis(tangent, axis, -1)
    made = native.matmul(moved.reshape(len(moved), *local.shape[:2]).swapaxes(0, 1), local).swapaxes(0, 1)
    return np.moveaxis(made.reshape(moved.shape), -1, axis)


def lifted(
    step: Step,
    kernel: Kernel,
    operands: Sequence[Stack | None],
    probed: Sequence[bool],
    shapes: Sequence[Shape],
    bases: Sequence[Array | None] = (),
) -> Any:
    """What a kernel makes of stacks, on their boxes alone where the step knows a way for them.

    `shapes` and `bases` are those of its results; without bases they differ from zero in boxes.
    """
    if any(isinstance(x, Patch) for x in operands):
        made = None
        if step.op.way is not None and all(isinstance(x, Patch) for x, p in zip(operands, probed, strict=True) if p):
            restricted = Restricted(step.op.way, kernel, step.op.lift, step.metadata, shapes)
            made = restricted(operands, bases or [None] * len(shapes))
        if made is not None:
            return made if step.op.many else made[0]
    return step.op.lift(kernel, [dense(x) for x in operands], probed, step.metadata)


def _through(kernel: Kernel, operands: Sequence[Stack], probed: Sequence[bool], shape: Shape) -> Stack:
    """A function of entries at the same place, of tangents that are zero for most of them."""
    if all(isinstance(x, Patch) == p for x, p in zip(operands, probed, strict=True)):
        made = Restricted(same_place, kernel, elementwise, {}, [shape])(operands, [None])
        if made is not None:
            return made[0]
    return elementwise(kernel, [dense(x) for x in operands], probed, {})


def _moved(x: Array, tangent: Stack, h: Array) -> Stack:
    """x moved by `i h` times a tangent."""
    if isinstance(tangent, Patch):
        along = replace(tangent, values=1j * (_behind(h[tangent.probes], tangent.values.ndim) * tangent.values))
        return along.upon(x)
    return x + 1j * (_behind(h, tangent.ndim) * tangent)


def _slope_of(y: Stack, h: Array) -> Stack:
    """The imaginary part by h."""
    if isinstance(y, Patch):
        return replace(y, values=np.imag(y.values) / _behind(h[y.probes], y.values.ndim), base=None)
    return np.imag(y) / _behind(h, np.ndim(y))


def _continued(step: Step) -> Kernel:
    return step.op.step or step.op.forward


def _smallest(x: Array) -> float:
    """The magnitude that a perturbation of x must stay below: its smallest entry, if not a trifle of the largest.

    At most 1, since functions such as exp change on that scale however large x is.
    """
    size = np.abs(x[x != 0])
    if not size.size or not np.isfinite(size).all():
        return 1.0
    return min(max(float(size.min()), _STEP * float(size.max()), _FLOOR), 1.0)


def _size_by_probe(tangent: Stack) -> Array:
    """The largest entry of each probe's tangent, 1 where it is zero, `(P,)`."""
    values = tangent.values if isinstance(tangent, Patch) else tangent
    size = np.abs(values).max(axis=tuple(range(1, values.ndim)), initial=0.0)
    size = np.where((size > 0) & np.isfinite(size), size, 1.0)
    if not isinstance(tangent, Patch):
        return size
    sizes = np.ones(tangent.count)
    sizes[tangent.probes] = size
    return sizes


def _behind(h: Array, rank: int) -> Array:
    """A number for each probe, ready to multiply a stack of this rank."""
    return h.reshape(-1, *(1,) * (rank - 1))


def _product(slope: Array, tangent: Array) -> Array:
    """Their product, where a tangent of zero stays zero whatever the slope is."""
    product = slope * tangent
    return product if np.isfinite(slope).all() else np.where(tangent == 0, 0.0, product)


def _plus(a: Any, b: Any) -> Any:
    if isinstance(a, tuple):
        return tuple(_plus(x, y) for x, y in zip(a, b, strict=True))
    return _through(np.add, [a, b], [True, True], a.full if isinstance(a, Patch) else a.shape[1:])


_FLOAT64 = np.dtype(np.float64)

Numbered: TypeAlias = tuple[int, Step]  # a step of the tape and its number
Tangents: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Through:
    """A step as the pushforward knows it."""

    pushforward: Pushforward
    steps: Sequence[Numbered]

    def make(self, live: Tangents) -> Tangents:
        """The tangents that it makes."""
        made: dict[str, Any] = {}
        for index, step in self.steps:
            made.update(self.pushforward.through(index, step, {**live, **made} if made else live, None))
        return made


@dataclass(frozen=True, slots=True)
class Chained(Through):
    """Steps that are one chain."""

    chain: Chain

    def make(self, live: Tangents) -> Tangents:
        """The tangents that others read."""
        made = self.chain.run(live)
        return Through.make(self, live) if made is None else made


@dataclass(frozen=True, slots=True)
class Linear(Through):
    """A step that is linear in what moves: its kernel, on tangents, what they are multiplied by, and zeros."""

    moving: Sequence[bool]
    zeros: Sequence[bool]
    outputs: frozenset[str]

    def make(self, live: Tangents) -> Tangents:
        """The tangents that it makes."""
        ((_, step),) = self.steps
        operands = [self._operand(step, i, live) for i in range(len(self.moving))]
        made = step.op.lift(step.op.forward, operands, self.moving, step.metadata)
        pairs = zip(step.node.outputs, made if step.op.many else (made,), strict=False)
        return {name: value for name, value in pairs if name in self.outputs}

    def _operand(self, step: Step, i: int, live: Tangents) -> Array | None:
        name, values = step.operands[i], self.pushforward.tape.values
        if self.moving[i] or not name:
            return live[name] if name else None
        return np.zeros_like(values.like(name)) if self.zeros[i] else values.operand(step.op, name)


@dataclass(frozen=True, slots=True)
class Stage:
    """What runs at once, and what nobody reads after it."""

    part: Through
    dies: Sequence[str]

    def run(self, live: dict[str, Any]) -> None:
        """Put the tangents that it makes among the live ones."""
        live.update(self.part.make(live))
        for name in self.dies:
            live.pop(name, None)


def staged(
    pushforward: Pushforward, steps: Sequence[Numbered], live: Collection[str], outputs: Collection[str]
) -> list[Stage]:
    """The steps as stages that begin with the tangents `live`."""
    planner, values = _Planner(pushforward, set(live)), pushforward.tape.values
    drafts = [planner.draft(*numbered) for numbered in steps]
    formulas = [draft if isinstance(draft, Formula) else None for draft in drafts]
    stages = []
    for part in parts([step.node for _, step in steps], formulas, outputs, lambda n: values.like(n).shape, 1):
        draft, mine = drafts[part.steps[0]], [steps[s] for s in part.steps]
        if part.chain is not None:
            draft = Chained(pushforward, mine, part.chain)
        stages.append(Stage(draft if isinstance(draft, Through) else Through(pushforward, mine), part.dies))
    return stages


class _Planner:
    """Finds out, step by step, which tensors have tangents, and how a step makes its own."""

    def __init__(self, pushforward: Pushforward, live: set[str]) -> None:
        self.pushforward, self.live = pushforward, live
        self.values = pushforward.tape.values

    def draft(self, index: int, step: Step) -> Formula | Through:
        """A link of a chain, or a part of its own."""
        moving = [i for i, n in enumerate(step.operands) if n and n in self.live]
        outputs = [n for n in step.node.outputs if n and is_inexact(self.values.like(n).dtype)]
        through = Through(self.pushforward, [(index, step)])
        groups = self._groups(step)
        if not moving or not outputs or (groups and not any(i in g for g in groups for i in moving)):
            return through  # no tangent comes out
        self.live.update(outputs)
        if step.op.lift is elementwise and not step.op.many and self._plain(step, moving):
            terms = self._linear(step, moving) if step.op.linear else self._slopes(index, step, moving)
            if terms is not None:
                return Formula(outputs[0], self.values.like(outputs[0]).shape, _FLOAT64, *terms)
        return self._ready(step, moving, groups, through) if groups else through

    def _groups(self, step: Step) -> Sequence[Sequence[int]]:
        if step.op.linear == "each":
            return [(i,) for i in range(len(step.operands))]
        return step.op.linear

    def _ready(self, step: Step, moving: Sequence[int], groups: Sequence[Sequence[int]], through: Through) -> Through:
        """A linear step that runs once: no two of what moves are multiplied."""
        grouped_in = {i: g for g in groups for i in g}
        chosen = [i for i in moving if i in grouped_in]
        if any(sum(i in g for i in chosen) > 1 for g in groups):
            return through
        count = range(len(step.operands))
        zeros = [i in grouped_in and not any(j in grouped_in[i] for j in chosen) for i in count]
        outputs = frozenset(n for n in step.node.outputs if n in self.live)
        return Linear(through.pushforward, through.steps, [i in chosen for i in count], zeros, outputs)

    def _plain(self, step: Step, moving: Sequence[int]) -> bool:
        tensors = [*(step.operands[i] for i in moving), step.node.outputs[0]]
        return all(self.values.like(n).dtype == _FLOAT64 for n in tensors)

    def _linear(self, step: Step, moving: Sequence[int]) -> Any:
        """The kernel itself, on zeros for what does not move."""
        operands: list[Any] = [n if i in moving else 0.0 for i, n in enumerate(step.operands)]
        expression = expressed(step.op.forward, operands) if step.op.linear == "each" else None
        return None if expression is None else (expression, operands)

    def _slopes(self, index: int, step: Step, moving: Sequence[int]) -> Any:
        """The sum of slopes times tangents, where all slopes are finite."""
        slopes = [self._slope(index, step, i) for i in moving]
        if not all(s is not None and s.dtype == _FLOAT64 for s in slopes):
            return None
        products = [("multiply", s, step.operands[i]) for s, i in zip(slopes, moving, strict=True)]
        return total(*products), [leaf for _, *factors in products for leaf in factors]

    def _slope(self, index: int, step: Step, i: int) -> Array | None:
        """The slope by operand i as the pushforward has it, whose rounding is measured; None where it is not finite."""
        slope = self.pushforward.slope(index, step, i)
        return slope if np.isfinite(slope).all() else None
