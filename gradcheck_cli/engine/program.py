"""A program runs the part of a tape below some probed tensors for a whole stack of probes at once.

A probe on x gives values for the numerical Jacobian, a probe on the seed of the backward pass a column of the
theoretical one, a tangent at x its image by the complex step.  Tensors that no probe reaches were computed once, by the
tape.  A stack may be a `BoxStack`: values that differ in a box for each probe from those of the point, or from zero.
Steps with a box rule compute on the boxes alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from itertools import accumulate
from threading import Lock
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradcheck_cli.autodiff.reach import steps_between
from gradcheck_cli.autodiff.tape import Step, Tape
from gradcheck_cli.autodiff.weights import TapeValues
from gradcheck_cli.engine.chunks import Decisions, StackResult, branch_in_boxes, deviating, gathered
from gradcheck_cli.engine.complex_step import Pushforward, Stage, batched, later, linear_groups, staged
from gradcheck_cli.engine.lines import ByLines, LinePart, pieces
from gradcheck_cli.engine.rounding import Moves, RandomRounding, coarsened, factors, rounded, rounded_tangents
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.op import bind, boxes
from gradcheck_cli.op.batching import Kernel, Ragged, elementwise, loop, takes_stacks
from gradcheck_cli.op.box_rules import VALUES
from gradcheck_cli.op.boxes import BoxStack, Crowded, Stack, as_stack, dense, extent, filled, part, taken
from gradcheck_cli.op.fusion import Formula, FusedSteps, expressed, segments

_CHAINED = (np.dtype(np.float32), np.dtype(np.float64))
_FEWEST = 2  # steps that are fused: NumPy runs a single step as fast


class Ready(Struct, frozen=True):
    """A part of a program that runs at once.

    results  name, dtype and rank of each result
    dies     names of the tensors that nothing reads after this part
    """

    results: tuple[tuple[str, np.dtype[Any], int], ...]
    dies: tuple[str, ...]

    def keep(self, live: dict[str, Any], made: Sequence[Any]) -> bool:
        """Adds results to the live stacks, in their dtypes; True if each has its rank and the axis of probes."""
        even = True
        for (name, dtype, rank), value in zip(self.results, made, strict=False):
            if name:
                stack = value if type(value) is np.ndarray else as_stack(value)
                live[name] = stack if stack.dtype == dtype else stack.astype(dtype)
                even = even and len(stack.shape) == rank + 1
        _drop(live, self.dies)
        return even


class Planned(Ready, frozen=True):
    """Step number `index` of the tape, which lies between probes and outputs.

    operands  names, each with a flag: a probe reaches it
    direct    the kernel takes stacks as they are, without a batching rule
    rebound   a probe reaches the step's metadata
    decides   the step takes a branch, and the outputs are computed with its result, or has a discrete result
    """

    index: int
    step: Step
    operands: tuple[tuple[str, bool], ...]
    direct: bool
    rebound: bool
    decides: bool

    def run(self, live: Mapping[str, Array], values: TapeValues, *, even: bool) -> Sequence[Any]:
        """Results of the kernel for whole stacks; `even` if each has the rank of its tensor and the axis of probes."""
        step = self.step
        operands = [
            live[n] if probed else None if not n else values.operand(step.op, n) if step.op.widens else values[n]
            for n, probed in self.operands
        ]
        if self.direct and even:
            made = step.op.forward(*operands, **step.metadata)
        else:
            made = step.op.batching(step.op.forward, operands, [probed for _, probed in self.operands], step.metadata)
        return made if step.op.many else (made,)


class Fused(Ready, frozen=True):
    """Steps that run as one fused kernel."""

    steps: Sequence[Planned]
    fused: FusedSteps

    def run(self, live: Mapping[str, Array], values: TapeValues, *, even: bool) -> Sequence[Any]:
        """Results of the fused kernel for whole stacks."""
        made = self.fused.run(live)
        if made is None:
            made = dict(live)
            for step in self.steps:
                even = step.keep(made, step.run(made, values, even=even)) and even
        return [made[name] for name, _, _ in self.results]


def fused(steps: Sequence[Planned], outputs: Collection[str], values: TapeValues) -> list[Planned | Fused]:
    """The same steps, with elementwise ones that follow one another fused."""
    nodes = [ready.step.node for ready in steps]
    formulas = [_formula(ready, values) for ready in steps]
    found: list[Planned | Fused] = []
    for segment in segments(nodes, formulas, outputs, lambda n: values.like(n).shape, _FEWEST):
        mine = [steps[s] for s in segment.steps]
        if segment.fused is None:
            found.append(replace(mine[0], dies=tuple(segment.dies)))
        else:
            results = {each[0]: each for ready in mine for each in ready.results}
            wanted = tuple(results[name] for name in segment.fused.results)
            alone = [replace(ready, dies=()) for ready in mine]  # later segments may still read these
            found.append(Fused(wanted, tuple(segment.dies), alone, segment.fused))
    return found


class Lines(Ready, frozen=True):
    """Steps that work line by line, and are linear in `read`."""

    read: str
    by_lines: ByLines

    def run(self, live: Mapping[str, Array], values: TapeValues, *, even: bool) -> Sequence[Any]:
        return [self.by_lines(live[self.read])]


def lines(part: LinePart, steps: Sequence[Planned | Fused], values: TapeValues, dies: tuple[str, ...]) -> Lines:
    """A part as one step."""

    def run(stack: Array) -> Array:
        live: dict[str, Any] = {part.read: stack}
        for ready in steps:
            ready.keep(live, ready.run(live, values, even=True))
        return np.asarray(live[part.made])

    like = values.like(part.made)
    return Lines(((part.made, like.dtype, like.ndim),), dies, part.read, ByLines(values[part.read], run))


def _formula(ready: Planned, values: TapeValues) -> Formula | None:
    """The expression of an elementwise step of exact operations on floating-point numbers of one dtype; else None."""
    step, (name, dtype, _) = ready.step, ready.results[0]
    if step.op.batching is not elementwise or step.op.many or ready.decides or ready.rebound or step.metadata:
        return None
    plain = dtype in _CHAINED and all(n and n not in values.recipes and values[n].dtype == dtype for n in step.operands)
    reads = [n if probed else values[n] for n, probed in ready.operands] if plain else []
    expression = expressed(step.op.forward, reads) if plain else None
    return None if expression is None else Formula(name, values.like(name).shape, dtype, expression, reads)


def planned(
    steps: Sequence[tuple[int, Step]],
    reached: Collection[str],
    dies: Mapping[int, Sequence[str]],
    values: TapeValues,
    outputs: Collection[str],
) -> list[Planned]:
    """The steps, prepared in order; `dies` has, by position, the tensors that nothing reads after a step."""
    computed = computed_with(steps, outputs)
    return [
        _ready(index, step, reached, tuple(dies.get(i, ())), values, not computed.isdisjoint(step.node.outputs))
        for i, (index, step) in enumerate(steps)
    ]


def computed_with(steps: Sequence[tuple[int, Step]], outputs: Collection[str]) -> set[str]:
    """Tensors whose numbers the outputs are computed with; those of all others only decide, index or size."""
    found = {*outputs}
    for _, step in reversed(steps):
        positions = [i for i, name in enumerate(step.node.outputs) if name in found]
        for operand, name in enumerate(step.operands if positions else ()):
            if name and any(step.op.cut(step.node.attrs, operand, i) not in ("decides", "sizes") for i in positions):
                found.add(name)
    return found


def _ready(
    index: int, step: Step, reached: Collection[str], dies: tuple[str, ...], values: TapeValues, computed: bool
) -> Planned:
    like = {n: values.like(n) for n in (*step.node.outputs, *step.operands) if n}
    results = tuple((n, like[n].dtype, like[n].ndim) if n else ("", np.dtype(float), 0) for n in step.node.outputs)
    # a tie of what only decides further on is none, unless that decision, which is discrete, changes
    discrete = any(not is_inexact(dtype) for name, dtype, _ in results if name)
    decides = (computed and step.op.branch is not None) or discrete
    operands = tuple((n, n in reached) for n in step.operands)
    ranks = [like[n].ndim if n else 0 for n in step.operands]
    direct = takes_stacks(step.op.batching, ranks, [probed for _, probed in operands])
    return Planned(results, dies, index, step, operands, direct, any(n in reached for n in step.statics), decides)


# a kernel that cannot be run on what it is given
FAILURES = (Ragged, GradcheckError, ValueError, LookupError, TypeError, ArithmeticError, RuntimeError)
BUSY = 512 << 10  # bytes: computing a result of this size takes far longer than calling the kernel


class Program:
    """The steps of `tape` between tensors `probes` and `outputs`, ready for stacks; `slopes` of its steps can be shared."""

    def __init__(
        self, tape: Tape, probes: Sequence[str], outputs: Sequence[str], slopes: Pushforward | None = None
    ) -> None:  # fmt: skip
        self.tape, self.probes, self.outputs = tape, tuple(probes), tuple(outputs)
        self.steps = [(n, tape.steps[n]) for n in steps_between(tape, self.probes, {*self.outputs, *tape.guards})]
        self.reached = {*self.probes, *(n for _, step in self.steps for n in step.node.outputs if n)}
        self.dies = self._last_uses()
        self.evaluations: Counter[str] = Counter()  # probes run, by "real" and "complex"
        self._pushforward = slopes or Pushforward(tape)
        self._counting, self._preparing = Lock(), Lock()
        self._branches: dict[int, Array] = {}
        self._stages: dict[Any, list[Stage]] = {}  # by the first step, the tensors that carry tangents there, and parts
        self._fused: dict[Any, list[Planned | Fused | Lines]] = {}

    @cached_property
    def _plan(self) -> list[Planned]:
        return planned(self.steps, self.reached, self.dies, self.tape.values, self.outputs)

    @cached_property
    def _read(self) -> frozenset[str]:
        """Tensors that its steps read, or that it gives."""
        return frozenset(later(self.steps, 0, self.outputs))

    @property
    def x(self) -> Array:
        """Value at the point of the probed tensor, of several the first."""
        return self.tape.values[self.probes[0]]

    @property
    def y(self) -> Array:
        """Value at the point of the output, of several the first."""
        return self.tape.values[self.outputs[0]]

    def upon(self, tape: Tape) -> Program:
        """The same steps on another tape that has them; evaluations count for both."""
        made = Program(tape, self.probes, self.outputs)
        made.evaluations, made._counting = self.evaluations, self._counting
        return made

    @property
    def analytic(self) -> bool:
        """True if every step can be evaluated at complex numbers (complex step)."""
        return self.obstacle is None

    @property
    def obstacle(self) -> Step | None:
        """The first step that has no complex kernel, or works on complex numbers already."""
        for _, step in self.steps:
            complex_valued = any(self.tape.values.like(n).dtype.kind == "c" for n in step.operands if n)
            if complex_valued or not (step.op.analytic or linear_groups(step)):
                return step
        return None

    def bytes_per_probe(self) -> int:
        """Peak memory of one probe."""
        return self._bytes[0]

    @cached_property
    def _bytes(self) -> list[int]:
        """Peak memory of one probe from each step on."""
        size = {name: self.tape.values[name].nbytes for name in self.reached if name in self.tape.values}
        live, found = sum(size[name] for name in self.probes), []
        for position, (_, step) in enumerate(self.steps):
            live += sum(size[n] for n in step.node.outputs if n)
            found.append(live)
            live -= sum(size[n] for n in self.dies.get(position, ()))
        peaks = list(accumulate((found or [live])[::-1], max))[::-1]
        return [max(2 * peak, 1) for peak in peaks]

    def _more(self, position: int) -> float:
        """Ratio of the probes that fit into memory from a step on to those that fit for the whole run."""
        return self._bytes[0] / self._bytes[position]

    @cached_property
    def worth(self) -> int:
        """Number of probes from which on computing a step takes far longer than calling it from Python."""
        made = sum(self.tape.values[n].nbytes for _, step in self.steps for n in step.node.outputs if n)
        return max(1, BUSY * len(self.steps) // max(made, 1))

    def run(
        self, stacks: Mapping[str, Stack], *, branches: bool = False, rounding: RandomRounding | None = None,
        parts: tuple[LinePart, ...] = (),
    ) -> StackResult:  # fmt: skip
        """Outputs for probed values `stacks` of shape `(P, *shape)`, and the branches crossed if asked for.

        A box stack has the values of the point as its base, or none, for a program of zeros at zeros.  With `rounding`
        every result is moved by some `ROUNDINGS`, so that outputs move as far as rounding may carry them.  `parts` are run
        line by line: they are linear, and the stacks are of a program of zeros at zeros.
        """
        count = next(iter(stacks.values())).shape[0]
        if rounding is not None:  # bases are rounded too
            stacks = {n: s if isinstance(s, BoxStack) and s.base is None else filled(s) for n, s in stacks.items()}
        before = deepcopy(rounding)  # a probe that has to run alone is rounded as in the stack
        try:
            with np.errstate(all="ignore"):
                made = self._run(dict(stacks), count, branches, rounding, parts=parts)
        except FAILURES:
            if any(isinstance(s, BoxStack) for s in stacks.values()):
                few = _pieces(stacks, count)
                return gathered([self.run(some, branches=branches, rounding=rounding, parts=parts) for _, some in few])
            if count > 1:
                alone = ({n: filled(s)[p : p + 1] for n, s in stacks.items()} for p in range(count))
                own = (deepcopy(before and before.of_probe(p)) for p in range(count))
                return gathered([self.run(s, branches=branches, rounding=r) for s, r in zip(alone, own, strict=True)])
            made = self._failed()
        self._count("real", count)
        return made

    def jvp(
        self, stacks: Mapping[str, Stack], rounding: RandomRounding | None = None, start: int | None = None,
        parts: tuple[LinePart, ...] = (),
    ) -> tuple[Array, ...]:  # fmt: skip
        """Derivatives of the outputs along tangents `(P, *shape)` of the probed tensors; `rounding` as in `run`.

        Every discrete decision is that of the point.  With `start` the tangents are those of all tensors before that
        step, of an evaluation that counts already.  `parts` are run line by line.
        """
        live: dict[str, Any] = dict(stacks)
        count = next(iter(stacks.values())).shape[0]
        self._count("complex", count if start is None else 0)
        with np.errstate(all="ignore"):
            for position in range(start or 0, len(self.steps)):
                if rounding is None and not any(isinstance(stack, BoxStack) for stack in live.values()):
                    for stage in self.staged(live, position, parts):
                        made = stage.make(live)
                        live.update(stage.alone(live) if made is None else made)
                        _drop(live, stage.dies)
                    break
                index, step = self.steps[position]
                try:
                    made = self._pushforward.through(index, step, live, rounding, self._read)
                    made = made if rounding is None else rounded_tangents(made, step, rounding)
                except Crowded:
                    few = _pieces(live, count, self._more(position))
                    rest = (self.jvp(some, deepcopy(rounding), position, parts) for _, some in few)
                    return boxes.joined(rest, count)
                live.update(made)
                _drop(live, self.dies.get(position, ()))
            return tuple(self._spread(live, name, count, zero=True) for name in self.outputs)

    def staged(self, live: Collection[str], start: int = 0, parts: tuple[LinePart, ...] = ()) -> Sequence[Stage]:
        """The steps from `start` on, prepared for whole stacks of tangents `live`."""
        key = start, frozenset(live), parts
        with self._preparing:
            if key not in self._stages:
                self._stages[key] = staged(self._pushforward, self.steps, live, self.outputs, start, parts)
        return self._stages[key]

    def _run(
        self, live: dict[str, Any], count: int, branches: bool, rounding: RandomRounding | None, start: int = 0,
        parts: tuple[LinePart, ...] = (),
    ) -> StackResult:  # fmt: skip
        """Outputs and decisions from step `start` on, where `live` holds the values of all tensors before it."""
        values, decisions = self.tape.values, Decisions.none(count)
        for position in range(start, len(self.steps)):
            if rounding is None and not any(isinstance(stack, BoxStack) for stack in live.values()):
                even = all(live[n].ndim == values.like(n).ndim + 1 for n in live)
                for ready in self._segments(position, parts):
                    if isinstance(ready, Planned) and ready.rebound:
                        results = self._results(ready.step, live, None)
                    else:
                        results = ready.run(live, values, even=even)
                    if branches and isinstance(ready, Planned) and ready.decides:
                        self._compare(ready, live, results, decisions)
                    even = ready.keep(live, results) and even
                break
            planned = self._plan[position]
            try:
                results = self._results(planned.step, live, rounding)
                if branches and planned.decides:
                    self._compare(planned, live, results, decisions)
            except Crowded:
                few = _pieces(live, count, self._more(position))
                rest = gathered([self._run(some, n, branches, deepcopy(rounding), position, parts) for n, some in few])
                decisions.add(slice(None), rest.decisions)
                return StackResult(rest.outputs, decisions)
            planned.keep(live, results)
        return StackResult(tuple(self._spread(live, name, count) for name in self.outputs), decisions)

    def _segments(self, start: int, parts: tuple[LinePart, ...]) -> Sequence[Planned | Fused | Lines]:
        key = start, parts
        with self._preparing:
            if key not in self._fused:
                self._fused[key] = [each for some, part in pieces(start, len(self.steps), parts)
                                    for each in self._piece(some, part)]  # fmt: skip
        return self._fused[key]

    def _piece(self, some: range, part: LinePart | None) -> Sequence[Planned | Fused | Lines]:
        """Some steps that follow one another, fused or as one that works line by line."""
        mine, values = self._plan[some.start : some.stop], self.tape.values
        kept = later(self.steps, some.stop, self.outputs)
        if part is None:
            return fused(mine, kept, values)
        return [lines(part, fused(mine, [part.made], values), values, () if part.read in kept else (part.read,))]

    def _results(self, step: Step, live: dict[str, Any], rounding: RandomRounding | None) -> Sequence[Any]:
        """Results of a step for live values, computed on their boxes where it has a box rule.

        With `rounding` results are moved by some roundings of the step's kernel; its probed operands are moved instead
        where the operator's rounding is that of its operands (backward stable).
        """
        made = _on_boxes(self._pushforward, step, live, rounded=rounding is not None) if _carries(step, live) else None
        if made is None:
            live.update({n: dense(live[n]) for n in step.node.inputs if n in live})
            given: Mapping[str, Array] = live
            if rounding is not None and step.op.backward_stable:
                given = {n: live[n] * factors(live[n], rounding) for n in step.operands if n in live}
            made = self._inside(step, given, rounding) if rounding is not None else None
            made = self._batched(step, step.op.forward, given) if made is None else made
        results = made if step.op.many else (made,)
        if rounding is None:
            return results
        moved = (rounded(as_stack(y), step, rounding) for y in results)
        return tuple(coarsened(y, step, i, rounding) for i, y in enumerate(moved))

    def _inside(self, step: Step, live: Mapping[str, Any], rounding: RandomRounding) -> Any:
        """Results of a step inside of which every result is moved by roundings; None where it has no results inside."""
        if step.op.inside is None:
            return None
        values = self.tape.values
        operands = [None if not n else live[n] if n in live else values[n] for n in step.operands]
        probed = [bool(n) and n in live for n in step.operands]
        return step.op.inside.rounded(Moves(rounding), operands, probed, step.metadata)

    def _batched(self, step: Step, kernel: Any, live: Mapping[str, Any]) -> Any:
        if any(n in live for n in step.statics):
            return self._rebound(step, kernel, live)
        values = self.tape.values
        operands = [None if not n else live[n] if n in live else values.operand(step.op, n) for n in step.operands]
        return step.op.batching(kernel, operands, [bool(n) and n in live for n in step.operands], step.metadata)

    def _rebound(self, step: Step, kernel: Any, live: Mapping[str, Array]) -> Any:
        """Results of a step whose metadata depends on the probe: it is bound and run for each probe."""
        values = self.tape.values
        inputs = [live.get(n, values[n]) if n else None for n in step.node.inputs]
        probed = [bool(n) and n in live for n in step.node.inputs]

        def bound(*arrays: Array | None) -> Any:
            positions, metadata = bind(step.op, step.node.attrs, arrays, cast=self.tape.widen, supplied=step.metadata)
            return kernel(*[arrays[i] for i in positions], **metadata)

        return loop(bound, inputs, probed, {})

    def _compare(
        self, planned: Planned, live: Mapping[str, Stack], results: Sequence[Any], decisions: Decisions
    ) -> None:
        """Notes the decisions of a step that differ from those at the point.

        Those of an elementwise operator are known from the boxes of its operands.  Of other box stacks the probes that may
        decide differently are made whole and compared.
        """
        values, step = self.tape.values, planned.step
        if _carries(step, live) or any(isinstance(y, BoxStack) for y in results):
            boxed = branch_in_boxes(self._pushforward, step, live)
            if boxed is not None and self._note_in_boxes(planned, *boxed, decisions):
                return
            if len(rows := deviating(self._pushforward, step, live, results, boxed)):
                few, own = {n: taken(live[n], rows) for n in step.node.inputs if n in live}, Decisions.none(len(rows))
                self._compare(planned, few, [taken(y, rows) for y in results], own)
                decisions.add(rows, own)
            return
        made = ((y, values[name]) for name, y in zip(step.node.outputs, results, strict=False) if name)
        decided = [(np.asarray(y), here, True) for y, here in made if not is_inexact(here.dtype)]
        if step.op.branch is not None:
            here = self._branch(planned.index, step, step.op.branch)
            decided.append((np.asarray(self._batched(step, step.op.branch, live)), here, False))
        for stack, here, discrete in decided:
            changed = np.asarray(stack != here).reshape(stack.shape[0], -1)
            if changed.any():
                decisions.note(planned.index, stack.reshape(changed.shape), changed, discrete)

    def _note_in_boxes(self, planned: Planned, stack: BoxStack, changed: Array, decisions: Decisions) -> bool:
        """Notes the decisions of a step by the boxes of its branch; False where these do not tell all of them."""
        values, step = self.tape.values, planned.step
        if step.op.batching is not elementwise or not all(is_inexact(values[n].dtype) for n in step.node.outputs if n):
            return False
        if changed.any():
            here = self._branch(planned.index, step, step.op.branch) if step.op.branch else None
            if here is None or here.shape != stack.full or changed.shape[1:] != extent(stack.box):
                return False
            decisions.note_at(planned.index, *stack.places(changed), stack.values[changed], discrete=False)
        return True

    def _branch(self, index: int, step: Step, branch: Kernel) -> Array:
        """The branch that a step takes at the point; kept unless finding it is a mere comparison."""
        values, kept = self.tape.values, self._branches if step.op.batching is not elementwise else {}
        if index not in kept:
            kept[index] = np.asarray(branch(*[values[n] if n else None for n in step.operands], **step.metadata))
        return kept[index]

    def _spread(self, live: Mapping[str, Stack], name: str, count: int, *, zero: bool = False) -> Array:
        value = self.tape.values[name]
        if name in live:
            stack = filled(live[name])
            if stack.shape[1:] != value.shape:
                raise Ragged
            return np.asarray(stack)
        return np.broadcast_to(np.zeros_like(value) if zero else value, (count, *value.shape))

    def _failed(self) -> StackResult:
        """The outcome of a single probe at which the graph cannot be evaluated as at the point."""
        values = [self.tape.values[n] for n in self.outputs]
        lost = (np.full((1, *y.shape), complex(np.nan, np.nan) if y.dtype.kind == "c" else np.nan) for y in values)
        decisions = Decisions.none(1)
        decisions.crossed[-1] = np.ones(1, bool)
        return StackResult(tuple(lost), decisions)

    def _count(self, kind: str, probes: int) -> None:
        with self._counting:
            self.evaluations[kind] += probes

    def _last_uses(self) -> dict[int, list[str]]:
        last: dict[str, int] = {}
        for position, (_, step) in enumerate(self.steps):
            last.update((n, position) for n in (*step.node.inputs, *step.node.outputs) if n in self.reached)
        dies: dict[int, list[str]] = {}
        for name, position in last.items():
            if name not in self.outputs:
                dies.setdefault(position, []).append(name)
        return dies


def _drop(live: dict[str, Any], names: Sequence[str]) -> None:
    for name in names:
        live.pop(name, None)


def _carries(step: Step, live: Mapping[str, Stack]) -> bool:
    """True if an operand of the step is a box stack."""
    return any(isinstance(live.get(n), BoxStack) for n in step.operands)


def _pieces(live: Mapping[str, Stack], count: int, more: float = 1.0) -> Iterator[tuple[int, dict[str, Any]]]:
    """The live stacks as whole arrays, in parts of as many probes as memory allows, each with its number of probes.

    A box stack knows this number for the whole run; it is `more` times as large for the steps that are left.
    """
    most = min([count, *(max(1, int(x.most * more)) for x in live.values() if isinstance(x, BoxStack))])
    for start in range(0, count, most):
        piece = range(start, min(start + most, count))
        yield len(piece), {n: filled(part(x, piece)) for n, x in live.items()}


def _on_boxes(pushforward: Pushforward, step: Step, live: Mapping[str, Stack], *, rounded: bool) -> Any:
    """Results of a step computed on the boxes of its operands; None where it has to run on whole stacks.

    A linear step adds its result for the differences to its result at the point, which rounds no worse than computing all
    anew.  `rounded`: rounding errors are measured; those of a backward stable operator come from whole operands.
    """
    stacks = {n: live[n] for n in step.operands if n in live}
    box_stacks = [x for x in stacks.values() if isinstance(x, BoxStack)]
    if rounded and step.op.backward_stable:
        return None
    if step.op.box_rule is None or len(box_stacks) < len(stacks) or not live.keys().isdisjoint(step.statics):
        return None
    bases = None if any(p.base is None for p in box_stacks) else pushforward.tape.values
    if linear_groups(step) and step.op.box_rule not in VALUES:
        moves = {n: p.moves() for n, p in stacks.items() if isinstance(p, BoxStack)}
        return _linear_on_boxes(pushforward, step, moves, bases)
    operands = [stacks.get(n, pushforward.tape.values[n]) if n else None for n in step.operands]
    probed = [n in stacks for n in step.operands]
    known = [] if bases is None else [bases[n] if n else None for n in step.node.outputs]
    return batched(step, step.op.forward, operands, probed, pushforward.shapes(step), known)


def _linear_on_boxes(
    pushforward: Pushforward, step: Step, moves: Mapping[str, Any], bases: Mapping[str, Array] | None
) -> Any:
    """Results of a linear step, from the differences `moves`; None unless it is linear in all of them together."""
    live = [[step.operands[i] in moves for i in group if i < len(step.operands)] for group in linear_groups(step)]
    if step.op.many or any(sum(found) > 1 for found in live) or sum(map(sum, live)) < len(moves):
        return None
    if not pushforward.finite([*step.operands, *step.node.outputs]):
        return None
    made = pushforward.linear(step, moves)
    if bases is None:
        return made
    base = bases[step.node.outputs[0]]
    return made.upon(base) if isinstance(made, BoxStack) else base + made
