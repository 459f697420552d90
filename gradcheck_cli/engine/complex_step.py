"""Jacobian-vector products of the steps of a tape: derivatives along tangents `(P, *x.shape)`, for a stack of probes.

Only forward kernels take part, and every discrete decision is that of the point: linear steps run on the tangents,
elementwise ones multiply by a slope that is computed once for all probes, steps that work line by line (Softmax) may
multiply by the Jacobian of each line, all others run at `x + i h t` (the complex step).

`Pushforward` does this for one step and is the reference.  For whole stacks `staged` prepares all steps of a program
once: elementwise steps that follow one another are fused into one pass of products and sums.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradcheck_cli import native
from gradcheck_cli.autodiff.tape import Step, Tape
from gradcheck_cli.autodiff.weights import TapeValues
from gradcheck_cli.engine.lines import ByLines, LinePart, of_lines, pieces, units
from gradcheck_cli.engine.rounding import Moves, RandomRounding, factors
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.op.batching import Kernel, elementwise, linearity, takes_stacks
from gradcheck_cli.op.box_rules import Restricted, same_place
from gradcheck_cli.op.boxes import BoxStack, Shape, Stack, dense
from gradcheck_cli.op.fusion import Formula, expressed, segments, total
from gradcheck_cli.op.sparsity import lines

Numbered: TypeAlias = tuple[int, Step]  # a step of the tape and its number
Tangents: TypeAlias = Mapping[str, Any]
Make: TypeAlias = Callable[[Tangents], Tangents]
_FLOAT64 = np.dtype(np.float64)
_HELD = 4 << 20  # bytes: larger Jacobians of lines are not computed and kept
_FLOOR = 2.0**-900  # smallest magnitude of x that the step h is scaled by: h and products with it are normal numbers
_STEP = 2.0**-100  # of the complex step, relative to the scale of x: far below any rounding, far above underflow


class Pushforward:
    """The derivative of each step of a tape at its point; slopes are computed once and kept."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._slopes: dict[tuple[int, int], Array] = {}
        self._finite: dict[str, bool] = {}
        self._tamed: dict[tuple[int, int], bool] = {}

    def through(
        self, index: int, step: Step, tangents: Mapping[str, Stack], rounding: RandomRounding | None = None,
        wanted: Collection[str] | None = None,
    ) -> dict[str, Stack]:  # fmt: skip
        """Tangents of the step's floating-point outputs, by name, from those of its operands.

        An operator with a rule of its own may leave out those that are not `wanted`; None: all are.
        """
        if not self.finite(step.operands):  # 0 * inf: entries outside of a box may be NaN
            tangents = {n: dense(tangents[n]) for n in step.operands if n in tangents}
        live = [bool(n) and n in tangents for n in step.operands]
        outputs = [n for n in step.node.outputs if n and is_inexact(self.tape.values[n].dtype)]
        if not any(live) or not outputs:
            return {}
        if linear_groups(step):
            made = self.linear(step, tangents)
            if made is None:  # only operands that select carry a tangent
                return {}
        elif step.op.batching is elementwise and not step.op.many:
            made = self._slope_tangent(index, step, tangents, live)
        elif (rule := _rule_inside(step)) is not None:
            made = self._pushed(rule, step, tangents, wanted, rounding)
        elif (local := self._lines(index, step, tangents, live)) is not None:
            made = native.along_lines(np.asarray(tangents[step.operands[0]]), local, step.metadata["axis"])
        else:
            made = self._complex_tangent(step, tangents, live, rounding)
        pairs = zip(step.node.outputs, made if step.op.many else (made,), strict=False)
        return {name: value for name, value in pairs if name in outputs and value is not None}

    def finite(self, names: Sequence[str]) -> bool:
        """True if all of these tensors hold finite numbers only."""
        for name in names:
            if name and name not in self._finite:
                value = self.tape.values.narrowest(name)
                self._finite[name] = not is_inexact(value.dtype) or bool(np.isfinite(value).all())
        return all(self._finite[name] for name in names if name)

    def linear(self, step: Step, tangents: Mapping[str, Stack]) -> Any:
        """The kernel on the tangents themselves, with zeros for operands of other groups.

        By the product rule it runs once for each operand of a group that carries a tangent, and the results are added.
        None if no operand of a group carries a tangent.
        """
        live = [bool(n) and n in tangents for n in step.operands]
        groups = linear_groups(step)
        turns = [[i for i in group if i < len(live) and live[i]] for group in groups]
        total: Any = None
        for turn in range(max(len(t) for t in turns)):
            chosen = {t[turn] for t in turns if turn < len(t)}
            operands = [self._part(step, i, chosen, groups, tangents) for i in range(len(live))]
            probed = [i in chosen for i in range(len(live))]
            made = batched(step, step.op.forward, operands, probed, self.shapes(step))
            total = made if total is None else _plus(total, made)
        return total

    def shapes(self, step: Step) -> list[Shape]:
        """Shapes of the step's outputs."""
        return [self.tape.values[n].shape if n else () for n in step.node.outputs]

    def _part(
        self,
        step: Step,
        i: int,
        chosen: set[int],
        groups: Sequence[Sequence[int]],
        tangents: Mapping[str, Stack],
    ) -> Stack | None:
        """Operand i: its tangent if chosen, its value if it shares a group with a chosen one or selects, else zero."""
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
        """The sum over operands of slope times tangent."""
        (shape,) = self.shapes(step)
        total: Any = None
        for i, probed in enumerate(live):
            if probed:
                slope = self.slope(index, step, i)
                product = np.multiply if self._tame(index, i) else _product
                term = _through(product, [slope, tangents[step.operands[i]]], [False, True], shape)
                total = term if total is None else _through(np.add, [total, term], [True, True], shape)
        if isinstance(total, BoxStack) or total.shape[1:] == shape:
            return total
        return np.broadcast_to(total, (total.shape[0], *shape))

    def _pushed(
        self, rule: Kernel, step: Step, tangents: Mapping[str, Stack], wanted: Collection[str] | None,
        rounding: RandomRounding | None,
    ) -> Any:  # fmt: skip
        """Tangents by the rule of an operator that is many steps inside."""
        operands = [self.tape.values[n] if n else None for n in step.operands]
        moving = [dense(tangents[n]) if n in tangents and is_inexact(self.tape.values.like(n).dtype) else None
                  for n in step.operands]  # fmt: skip
        asked = [wanted is None or n in wanted for n in step.node.outputs]
        move = None if rounding is None else Moves(rounding)
        return rule(operands, moving, asked, _slope, move, **step.metadata)

    def slope(self, index: int, step: Step, i: int) -> Array:
        """The derivative of an elementwise step by its operand i, at the point."""
        if (index, i) not in self._slopes:
            operands: list[Any] = [self.tape.values[n] if n else None for n in step.operands]

            def by_one(x: Array) -> Any:
                return _continued(step)(*operands[:i], x, *operands[i + 1 :], **step.metadata)

            self._slopes[index, i] = _derivative(by_one, operands[i])
        return self._slopes[index, i]

    def _tame(self, index: int, i: int) -> bool:
        """True if a slope is finite everywhere, once it is known."""
        if (index, i) not in self._tamed:
            self._tamed[index, i] = bool(np.isfinite(self._slopes[index, i]).all())
        return self._tamed[index, i]

    def _lines(self, index: int, step: Step, tangents: Mapping[str, Stack], live: Sequence[bool]) -> Array | None:
        """Jacobians `(lines, n, n)` of all lines of a step that works along an axis, kept for all probes.

        None where running the kernel for each probe costs less, or where they are not finite.
        """
        if step.op.sparsity is not lines or len(live) != 1 or isinstance(tangents[step.operands[0]], BoxStack):
            return None
        x, axis = self.tape.values[step.operands[0]], step.metadata["axis"]
        if not repays(x, axis, len(tangents[step.operands[0]])):
            return None
        if (index, 0) not in self._slopes:
            made = self._complex_tangent(step, {step.operands[0]: units(x, axis)}, live, None)
            self._slopes[index, 0] = of_lines(made, axis)
        found = self._slopes[index, 0]
        return found if np.isfinite(found).all() else None

    def _complex_tangent(
        self, step: Step, tangents: Mapping[str, Stack], live: Sequence[bool], rounding: RandomRounding | None
    ) -> Any:
        """The imaginary part of the kernel at `x + i h t` by h, which fits the sizes of x and t for each probe."""
        values: Mapping[str, Array] = self.tape.values
        if rounding is not None and step.op.backward_stable:
            values = {n: values[n] * factors(values[n][None], rounding)[0] for n in step.operands if n}
        pairs = [(values[n], tangents[n]) for n, p in zip(step.operands, live, strict=True) if p]
        h = _STEP * min(_smallest(x) for x, _ in pairs) / np.maximum.reduce([_size_by_probe(t) for _, t in pairs])
        operands = [
            (_moved(values[n], tangents[n], h) if p else values[n]) if n else None
            for n, p in zip(step.operands, live, strict=True)
        ]
        bases = [self.tape.values[n] if n else None for n in step.node.outputs]
        made = batched(step, _continued(step), operands, live, self.shapes(step), bases)
        results = [_slope_of(y, h) for y in (made if step.op.many else (made,))]
        return tuple(results) if step.op.many else results[0]


def _rule_inside(step: Step) -> Callable[..., Sequence[Any]] | None:
    """The rule for tangents of a kernel that is many steps inside; None: they are made as those of any kernel."""
    return None if step.op.inside is None else step.op.inside.pushforward


def _derivative(function: Kernel, x: Array) -> Array:
    """The derivative of an elementwise function by the complex step, which fits each entry by itself."""
    h = _STEP * np.where(x == 0, 1.0, np.minimum(np.maximum(np.abs(x), _FLOOR), 1.0))
    return np.asarray(np.imag(function(x + 1j * h)) / h)


def _slope(function: Kernel, x: Array) -> Array:
    """The same in the dtype of x."""
    return _derivative(function, x).astype(x.dtype, copy=False)


def linear_groups(step: Step) -> Sequence[Sequence[int]]:
    """Groups of operands, by position: a step is linear in the operands of one group at a time."""
    linear = linearity(step.op.linear, step.metadata)
    return [(i,) for i in range(len(step.operands))] if linear == "each" else linear


def selecting(step: Step) -> tuple[bool, ...]:
    """Operands in which the kernel is not linear choose among the entries of the others."""
    data = {i for group in linear_groups(step) for i in group}
    return tuple(i not in data for i in range(len(step.operands)))


def batched(
    step: Step,
    kernel: Kernel,
    operands: Sequence[Stack | None],
    probed: Sequence[bool],
    shapes: Sequence[Shape],
    bases: Sequence[Array | None] = (),
) -> Any:
    """The results of a kernel for stacks, computed on their boxes alone where the operator has a box rule.

    `shapes` and `bases` belong to the results; without bases they are zero outside of their boxes.
    """
    if any(isinstance(x, BoxStack) for x in operands):
        made = None
        if step.op.box_rule is not None and all(
            isinstance(x, BoxStack) for x, p in zip(operands, probed, strict=True) if p
        ):
            restricted = Restricted(step.op.box_rule, kernel, step.op.batching, step.metadata, shapes)
            made = restricted(operands, bases or [None] * len(shapes))
        if made is not None:
            return made if step.op.many else made[0]
    return step.op.batching(kernel, [dense(x) for x in operands], probed, step.metadata)


def repays(x: Array, axis: int, probes: int) -> bool:
    """True if the Jacobians of all lines of x along an axis cost less than running the kernel for so many probes."""
    n = x.shape[axis] if x.ndim else 0
    return 0 < 2 * n <= probes and n * x.nbytes <= _HELD


def _through(kernel: Kernel, operands: Sequence[Stack], probed: Sequence[bool], shape: Shape) -> Stack:
    """The results of an elementwise function for stacks of tangents, on their boxes where all are box stacks."""
    if all(isinstance(x, BoxStack) == p for x, p in zip(operands, probed, strict=True)):
        made = Restricted(same_place, kernel, elementwise, {}, [shape])(operands, [None])
        if made is not None:
            return made[0]
    return elementwise(kernel, [dense(x) for x in operands], probed, {})


def _moved(x: Array, tangent: Stack, h: Array) -> Stack:
    """The stack `x + i h t`."""
    if isinstance(tangent, BoxStack):
        along = replace(tangent, values=1j * (_behind(h[tangent.probes], tangent.values.ndim) * tangent.values))
        return along.upon(x)
    return x + 1j * (_behind(h, tangent.ndim) * tangent)


def _slope_of(y: Stack, h: Array) -> Stack:
    """The imaginary part by h."""
    if isinstance(y, BoxStack):
        return replace(y, values=np.imag(y.values) / _behind(h[y.probes], y.values.ndim), base=None)
    return np.imag(y) / _behind(h, np.ndim(y))


def _continued(step: Step) -> Kernel:
    return step.op.step or step.op.forward


def _smallest(x: Array) -> float:
    """The scale that a perturbation of x must stay below: its smallest entry, or 2^-100 of its largest.

    At most 1, since functions such as exp change on that scale however large x is.
    """
    size = np.abs(x[x != 0])
    if not size.size or not np.isfinite(size).all():
        return 1.0
    return min(max(float(size.min()), _STEP * float(size.max()), _FLOOR), 1.0)


def _size_by_probe(tangent: Stack) -> Array:
    """The largest magnitude in each probe's tangent, 1 where it is zero or not finite, `(P,)`."""
    values = tangent.values if isinstance(tangent, BoxStack) else tangent
    size = np.abs(values).max(axis=tuple(range(1, values.ndim)), initial=0.0)
    size = np.where((size > 0) & np.isfinite(size), size, 1.0)
    if not isinstance(tangent, BoxStack):
        return size
    sizes = np.ones(tangent.count)
    sizes[tangent.probes] = size
    return sizes


def _behind(h: Array, rank: int) -> Array:
    """Numbers `(P,)` in the shape that multiplies a stack of this rank."""
    return h.reshape(-1, *(1,) * (rank - 1))


def _product(slope: Array, tangent: Array) -> Array:
    """Slope times tangent; where the tangent is zero the product is zero even if the slope is infinite."""
    return np.where(tangent == 0, 0.0, slope * tangent)


def _plus(a: Any, b: Any) -> Any:
    if isinstance(a, tuple):
        return tuple(_plus(x, y) for x, y in zip(a, b, strict=True))
    return _through(np.add, [a, b], [True, True], a.full if isinstance(a, BoxStack) else a.shape[1:])


def staged(
    pushforward: Pushforward, steps: Sequence[Numbered], live: Collection[str], outputs: Collection[str],
    start: int = 0, parts: Sequence[LinePart] = (),
) -> list[Stage]:  # fmt: skip
    """The steps from `start` on as stages, for the case that the tensors `live` carry tangents there."""
    planner, stages = _Planner(pushforward, set(live), later(steps, start, outputs)), list[Stage]()
    for some, part in pieces(start, len(steps), parts):
        mine, kept = steps[some.start : some.stop], later(steps, some.stop, outputs)
        stages += planner.stages(mine, kept) if part is None else _in_lines(part, planner, mine, kept)
    return stages


def later(steps: Sequence[Numbered], position: int, outputs: Collection[str]) -> set[str]:
    """Tensors that steps from a position on read, or that are wanted in the end."""
    return {*outputs, *(n for _, step in steps[position:] for n in step.operands)}


def _in_lines(part: LinePart, planner: _Planner, steps: Sequence[Numbered], kept: set[str]) -> Sequence[Stage]:
    """A part that works line by line, as one stage; its steps if what it reads or makes carries no tangent."""
    carried = part.read in planner.live
    stages = planner.stages(steps, {part.made, *kept.intersection([part.read])})
    if not (carried and part.made in planner.live):
        return stages

    def run(tangents: Array) -> Array:
        live: dict[str, Any] = {part.read: tangents}
        for stage in stages:
            made = stage.make(live)
            live.update(stage.alone(live) if made is None else made)
            for name in stage.dies:
                live.pop(name, None)
        return np.asarray(live[part.made])

    by_lines = ByLines(planner.values[part.read], run)

    def make(live: Tangents) -> Tangents:
        return {part.made: by_lines(live[part.read])}

    return [Stage(make, make, () if part.read in kept else (part.read,))]


class Stage(Struct, frozen=True):
    """Steps that run at once.

    make   the tangents that they make of those before; None where a fused kernel cannot run
    alone  the same, one step after the other
    dies   tangents that nothing reads after them
    """

    make: Callable[[Tangents], Tangents | None]
    alone: Make
    dies: Sequence[str]


def _alone(pushforward: Pushforward, steps: Sequence[Numbered], live: Tangents) -> Tangents:
    """Tangents that steps make one by one."""
    each: dict[str, Any] = {}
    for index, step in steps:
        each.update(pushforward.through(index, step, {**live, **each}))
    return each


class Prepared:
    """A step whose kernel runs once for whole stacks of tangents; `moving` says which operands carry one.

    The kernel takes the stacks as they are where its batching rule would do no more than that.
    """

    def __init__(self, values: TapeValues, step: Step, moving: Sequence[bool], outputs: Collection[str]) -> None:
        self.values, self.step, self.moving, self.outputs = values, step, moving, frozenset(outputs)
        self.direct = takes_stacks(step.op.batching, [values.like(n).ndim if n else 0 for n in step.operands], moving)

    def named(self, made: Any) -> dict[str, Any]:
        """The results that carry tangents, by name."""
        pairs = zip(self.step.node.outputs, made if self.step.op.many else (made,), strict=False)
        return {name: value for name, value in pairs if name in self.outputs}


class Linear(Prepared):
    """A step that is linear in the operands that carry tangents; `zeros` says which others are replaced by zeros."""

    def __init__(
        self, values: TapeValues, step: Step, moving: Sequence[bool], outputs: Collection[str], zeros: Sequence[bool]
    ) -> None:
        super().__init__(values, step, moving, outputs)
        likes = [values.like(n) if n and zero else None for n, zero in zip(step.operands, zeros, strict=True)]
        self.zeros = [None if x is None else _zeros(x.shape, x.dtype) for x in likes]

    def make(self, live: Tangents) -> Tangents:
        """The tangents that the step makes, by name."""
        step, values = self.step, self.values
        operands: list[Any] = []
        for name, moving, zero in zip(step.operands, self.moving, self.zeros, strict=True):
            if moving or not name:
                operands.append(live[name] if name else None)
            else:
                operands.append(values.operand(step.op, name) if zero is None else zero)
        if self.direct:
            return self.named(step.op.forward(*operands, **step.metadata))
        return self.named(step.op.batching(step.op.forward, operands, self.moving, step.metadata))


@lru_cache(maxsize=256)
def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Zeros that take no memory, the same array for all steps: of many operands a few carry tangents."""
    return np.broadcast_to(np.zeros((), dtype), shape)


class Curved(Prepared):
    """A step that runs at `x + i h t`, with an h that fits the sizes of x and t for each probe.

    If it works line by line along an axis, many probes are multiplied by the Jacobians of all lines, which are kept.
    """

    def __init__(self, values: TapeValues, step: Step, moving: Sequence[bool], outputs: Collection[str]) -> None:
        super().__init__(values, step, moving, outputs)
        self.moved = [n for n, moves in zip(step.operands, moving, strict=True) if moves]
        self.size = min(_smallest(values[n]) for n in self.moved)
        self.by_lines = step.op.sparsity is lines and len(step.operands) == 1
        self.local: Array | None = None  # `(lines, n, n)`

    def make(self, live: Tangents) -> Tangents:
        """The tangents that the step makes, by name."""
        step, values, whole, first = self.step, self.values, live, self.moved[0]
        if self.by_lines and repays(values[first], step.metadata["axis"], len(live[first])):
            if self.local is not None:
                return dict.fromkeys(self.outputs, native.along_lines(live[first], self.local, step.metadata["axis"]))
            live = {first: units(values[first], step.metadata["axis"])}
        h = _STEP * self.size / np.maximum.reduce([_size_by_probe(live[n]) for n in self.moved])
        operands: list[Any] = [
            None if not n else _moved(values[n], live[n], h) if moves else values[n]
            for n, moves in zip(step.operands, self.moving, strict=True)
        ]
        if self.direct:
            made = _continued(step)(*operands, **step.metadata)
        else:
            made = step.op.batching(_continued(step), operands, self.moving, step.metadata)
        tangents = {name: _slope_of(y, h) for name, y in self.named(made).items()}
        if live is whole:
            return tangents
        [found] = tangents.values()
        local = of_lines(np.asarray(found), step.metadata["axis"])
        self.by_lines = bool(np.isfinite(local).all())
        if not self.by_lines:
            return self.make(whole)
        self.local = local
        return dict.fromkeys(self.outputs, native.along_lines(whole[first], local, step.metadata["axis"]))


class _Planner:
    """Follows, step by step, which tensors carry tangents, and picks how each step makes its own."""

    def __init__(self, pushforward: Pushforward, live: set[str], read: set[str]) -> None:
        self.pushforward, self.live, self.read = pushforward, live, read
        self.values = pushforward.tape.values

    def stages(self, steps: Sequence[Numbered], outputs: Collection[str]) -> list[Stage]:
        """Steps that follow those before as stages; `outputs` of theirs are read later."""
        drafts, shape = [self.draft(*numbered) for numbered in steps], self._shape
        formulas = [draft if isinstance(draft, Formula) else None for draft in drafts]
        stages = []
        for segment in segments([step.node for _, step in steps], formulas, outputs, shape, 1):
            draft, mine = drafts[segment.steps[0]], [steps[s] for s in segment.steps]
            alone = partial(_alone, self.pushforward, mine)
            make = segment.fused.run if segment.fused is not None else alone if isinstance(draft, Formula) else draft
            stages.append(Stage(make, alone, segment.dies))
        return stages

    def _shape(self, name: str) -> Shape:
        return self.values.like(name).shape

    def draft(self, index: int, step: Step) -> Formula | Make:
        """The formula of a step that can be fused, or a stage of its own."""
        moving = [i for i, n in enumerate(step.operands) if n and n in self.live]
        outputs = [n for n in step.node.outputs if n and is_inexact(self.values.like(n).dtype)]
        through = partial(self.pushforward.through, index, step, wanted=self.read)
        groups = linear_groups(step)
        if not moving or not outputs or (groups and {*moving}.isdisjoint(i for g in groups for i in g)):
            return through  # it makes no tangent
        self.live.update(outputs)
        if step.op.batching is elementwise and not step.op.many and self._plain(step, moving):
            terms = self._linear(step, moving) if groups else self._slopes(index, step, moving)
            if terms is not None:
                return Formula(outputs[0], self.values.like(outputs[0]).shape, _FLOAT64, *terms)
        if groups:
            return self._ready(step, moving, groups, through)
        return self._curved(step, moving, outputs, through)

    def _ready(self, step: Step, moving: Sequence[int], groups: Sequence[Sequence[int]], through: Make) -> Make:
        """A linear step as one run of its kernel, if no two operands with tangents are multiplied by one another."""
        group = {i: number for number, members in enumerate(groups) for i in members}
        carrying = {i for i in moving if i in group}
        moved = Counter(group[i] for i in carrying)
        if any(number > 1 for number in moved.values()):
            return through
        count = range(len(step.operands))
        zeros = [i in group and group[i] not in moved for i in count]
        outputs = frozenset(n for n in step.node.outputs if n in self.live)
        return Linear(self.values, step, [i in carrying for i in count], outputs, zeros).make

    def _curved(self, step: Step, moving: Collection[int], outputs: Collection[str], through: Make) -> Make:
        """A step that is not linear as one run of its kernel; elementwise ones have slopes."""
        if _rule_inside(step) is not None or (step.op.batching is elementwise and not step.op.many):
            return through
        return Curved(self.values, step, [i in moving for i in range(len(step.operands))], outputs).make

    def _plain(self, step: Step, moving: Sequence[int]) -> bool:
        tensors = [*(step.operands[i] for i in moving), step.node.outputs[0]]
        return all(self.values.like(n).dtype == _FLOAT64 for n in tensors)

    def _linear(self, step: Step, moving: Sequence[int]) -> Any:
        """The kernel itself as an expression, with zeros for operands without a tangent."""
        operands: list[Any] = [n if i in moving else 0.0 for i, n in enumerate(step.operands)]
        expression = expressed(step.op.forward, operands) if step.op.linear == "each" else None
        return None if expression is None else (expression, operands)

    def _slopes(self, index: int, step: Step, moving: Sequence[int]) -> Any:
        """The sum of slopes times tangents as an expression; None unless all slopes are finite."""
        slopes = [self.pushforward.slope(index, step, i) for i in moving]
        if not all(s.dtype == _FLOAT64 and np.isfinite(s).all() for s in slopes):
            return None
        products = [("multiply", s, step.operands[i]) for s, i in zip(slopes, moving, strict=True)]
        return total(*products), [leaf for _, *factors in products for leaf in factors]
