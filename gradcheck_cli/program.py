"""A program runs the part of a tape below some probed tensors for a whole stack of probes at once.

A probe on x gives values for the numerical Jacobian, a probe on the seed of the backward pass a column of the
theoretical one, a tangent at x its image by the complex step.  What no probe reaches was computed once, by the tape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jitter import factors, jittered
from gradcheck_cli.lift import Kernel, Ragged, elementwise, loop, shape_only
from gradcheck_cli.op import SUPPLIED, bind
from gradcheck_cli.outcome import Decisions, Outcome, gathered
from gradcheck_cli.step import Step
from gradcheck_cli.tape import Tape

_FLOOR = 1e-150  # sizes of x below this count as this
_STEP = 2.0**-100  # of the complex step, relative to the scale of x: far below any rounding, far above underflow


class Program:
    """The steps of `tape` that lie between tensors `probes` and `outputs`, ready to be run for stacks."""

    def __init__(self, tape: Tape, probes: Sequence[str], outputs: Sequence[str]) -> None:
        self.tape, self.probes, self.outputs = tape, tuple(probes), tuple(outputs)
        self.steps = _between(tape, self.probes, {*self.outputs, *tape.guards})
        self.reached = {*self.probes, *(n for _, step in self.steps for n in step.node.outputs)}
        self.dies = self._last_uses()
        self.evaluations: Counter[str] = Counter()  # probes that were run, on "real" and on "complex" numbers
        self._slopes: dict[tuple[int, int], Array] = {}
        self._counting = Lock()

    @property
    def analytic(self) -> bool:
        """Every step lets a complex step through."""
        return self.obstacle is None

    @property
    def obstacle(self) -> Step | None:
        """The first step that has no complex kernel, or works on complex numbers already."""
        for _, step in self.steps:
            complex_valued = any(self.tape.values[n].dtype.kind == "c" for n in step.operands if n)
            if complex_valued or not (step.op.analytic or step.op.linear):
                return step
        return None

    def bytes_per_probe(self) -> int:
        """Memory that one probe needs at the fullest moment."""
        live = {name: self.tape.values[name].nbytes for name in self.probes}
        peak = sum(live.values())
        for position, (_, step) in enumerate(self.steps):
            live.update((n, self.tape.values[n].nbytes) for n in step.node.outputs if n)
            peak = max(peak, sum(live.values()))
            for name in self.dies.get(position, ()):
                live.pop(name, None)
        return max(2 * peak, 1)

    def run(
        self, stacks: Mapping[str, Array], *, branches: bool = False, jitter: np.random.Generator | None = None
    ) -> Outcome:
        """Outputs for probed values `stacks` of shape `(P, *shape)`; with the branches crossed if asked for.

        With `jitter` every result is moved by some `ROUNDINGS`, in all probes alike: outputs move as far as rounding
        may carry them.
        """
        count = next(iter(stacks.values())).shape[0]
        try:
            made = self._run(dict(stacks), count, branches, jitter)
        except (Ragged, GradcheckError, ValueError, LookupError, TypeError, ArithmeticError, RuntimeError):
            if count > 1:
                each = ({n: s[p : p + 1] for n, s in stacks.items()} for p in range(count))
                return gathered([self.run(stack, branches=branches, jitter=jitter) for stack in each])
            made = self._failed()
        self._count("real", count)
        return made

    def tangents(self, stacks: Mapping[str, Array], jitter: np.random.Generator | None = None) -> tuple[Array, ...]:
        """Derivatives of the outputs along tangents `(P, *shape)` of the probed tensors; `jitter` as in `run`.

        Every discrete decision is that of the point.  Linear steps run on the tangents, elementwise ones contribute
        their local slope once for all probes, the others run at `x + i h t`: only forward kernels take part.
        """
        count = next(iter(stacks.values())).shape[0]
        tangents: dict[str, Array] = dict(stacks)
        self._count("complex", count)
        with np.errstate(all="ignore"):
            for position, (index, step) in enumerate(self.steps):
                made = self._tangent(index, step, tangents, jitter)
                tangents.update(made if jitter is None else {n: jittered(t, step, jitter) for n, t in made.items()})
                for name in self.dies.get(position, ()):
                    tangents.pop(name, None)
        return tuple(self._spread(tangents, name, count, zero=True) for name in self.outputs)

    def _run(self, live: dict[str, Array], count: int, branches: bool, jitter: np.random.Generator | None) -> Outcome:
        crossed: dict[int, Array] = {}
        decisions = Decisions.none(count)
        with np.errstate(all="ignore"):
            for position, (index, step) in enumerate(self.steps):
                made = self._lifted(step, step.op.forward, self._rounded(step, live, jitter))
                results = made if step.op.many else (made,)
                if jitter is not None:
                    results = tuple(jittered(np.asarray(y), step, jitter) for y in results)
                if branches:
                    self._compare(index, step, live, results, crossed, decisions)
                for name, value in zip(step.node.outputs, results, strict=False):
                    live[name] = np.asarray(value).astype(self.tape.values[name].dtype, copy=False) if name else value
                for name in self.dies.get(position, ()):
                    live.pop(name, None)
        return Outcome(tuple(self._spread(live, name, count) for name in self.outputs), crossed, decisions)

    def _rounded(
        self, step: Step, live: Mapping[str, Array], jitter: np.random.Generator | None
    ) -> Mapping[str, Array]:
        """Probed operands, moved by some roundings where that is what the operator's own rounding is like."""
        if jitter is None or not step.op.backward_stable:
            return live
        return {n: live[n] * factors(live[n], jitter) for n in step.operands if n in live}

    def _lifted(self, step: Step, kernel: Any, live: Mapping[str, Array]) -> Any:
        values = self.tape.values
        operands = [live.get(n, values[n]) if n else None for n in step.operands]
        probed = [bool(n) and n in live for n in step.operands]
        if any(n in live for n in step.statics):
            return self._rebound(step, kernel, live)
        return step.op.lift(kernel, operands, probed, step.metadata)

    def _rebound(self, step: Step, kernel: Any, live: Mapping[str, Array]) -> Any:
        """A probe reaches what the kernel takes as metadata: bind and run it for each probe."""
        values = self.tape.values
        inputs = [live.get(n, values[n]) if n else None for n in step.node.inputs]
        probed = [bool(n) and n in live for n in step.node.inputs]
        supplied = {k: step.metadata[k] for k in SUPPLIED if k in step.metadata}

        def bound(*arrays: Array | None) -> Any:
            positions, metadata = bind(
                step.op, step.node.attrs, arrays, where=step.node.op, cast=self.tape.widen, supplied=supplied
            )
            return kernel(*[arrays[i] for i in positions], **metadata)

        return loop(bound, inputs, probed, {})

    def _compare(
        self,
        index: int,
        step: Step,
        live: Mapping[str, Array],
        results: Sequence[Any],
        crossed: dict[int, Array],
        decisions: Decisions,
    ) -> None:
        """Enter what a step decided otherwise than at the point."""
        values = self.tape.values
        decided = [
            (np.asarray(result), values[name], True)
            for name, result in zip(step.node.outputs, results, strict=False)
            if name and not is_inexact(values[name].dtype)
        ]
        if step.op.branch is not None:
            here = step.op.branch(*[values[n] if n else None for n in step.operands], **step.metadata)
            decided.append((np.asarray(self._lifted(step, step.op.branch, live)), np.asarray(here), False))
        for stack, here, discrete in decided:
            changed = np.asarray(stack != here).reshape(stack.shape[0], -1)
            if changed.any():
                crossed[index] = np.logical_or(changed.any(axis=1), crossed.get(index, False))
                decisions.note(index, stack.reshape(changed.shape), changed, discrete)

    def _tangent(
        self, index: int, step: Step, tangents: Mapping[str, Array], jitter: np.random.Generator | None
    ) -> dict[str, Array]:
        """Tangents of a step's outputs that hold numbers with a derivative."""
        live = [bool(n) and n in tangents for n in step.operands]
        outputs = [n for n in step.node.outputs if n and is_inexact(self.tape.values[n].dtype)]
        if not any(live) or not outputs:
            return {}
        if step.op.linear:
            made = self._linear_tangent(step, tangents, live)
            if made is None:  # only operands that select carry a tangent
                return {}
        elif step.op.lift is elementwise and not step.op.many:
            made = self._slope_tangent(index, step, tangents, live)
        else:
            made = self._complex_tangent(step, tangents, live, jitter)
        pairs = zip(step.node.outputs, made if step.op.many else (made,), strict=False)
        return {name: value for name, value in pairs if name in outputs}

    def _linear_tangent(self, step: Step, tangents: Mapping[str, Array], live: Sequence[bool]) -> Any:
        """The kernel on the tangents themselves, operands of the other groups being zero."""
        groups = [(i,) for i in range(len(live))] if step.op.linear == "each" else step.op.linear
        turns = [[i for i in group if i < len(live) and live[i]] for group in groups]
        total: Any = None
        for turn in range(max(len(t) for t in turns)):
            chosen = {t[turn] for t in turns if turn < len(t)}
            operands = [self._part(step, i, chosen, groups, tangents) for i in range(len(live))]
            probed = [i in chosen for i in range(len(live))]
            made = step.op.lift(step.op.forward, operands, probed, step.metadata)
            total = made if total is None else _plus(total, made)
        return total

    def _part(
        self,
        step: Step,
        i: int,
        chosen: set[int],
        groups: Sequence[Sequence[int]],
        tangents: Mapping[str, Array],
    ) -> Array | None:
        """Operand i: its tangent if chosen, its value if it goes with a chosen one or selects, else zero."""
        name = step.operands[i]
        if not name:
            return None
        if i in chosen:
            return tangents[name]
        group = next((g for g in groups if i in g), None)
        value = self.tape.values[name]
        return value if group is None or chosen.intersection(group) else np.zeros_like(value)

    def _slope_tangent(self, index: int, step: Step, tangents: Mapping[str, Array], live: Sequence[bool]) -> Array:
        """The sum over operands of local slope times tangent."""
        rank = self.tape.values[step.node.outputs[0]].ndim
        shape = self.tape.values[step.node.outputs[0]].shape
        total: Any = None
        for i, probed in enumerate(live):
            if probed:
                t = tangents[step.operands[i]]
                t = t.reshape(t.shape[0], *(1,) * (rank - t.ndim + 1), *t.shape[1:])
                term = _product(self._slope(index, step, i), t)
                total = term if total is None else total + term
        return total if total.shape[1:] == shape else np.broadcast_to(total, (total.shape[0], *shape))

    def _slope(self, index: int, step: Step, i: int) -> Array:
        """The derivative of an elementwise step by its operand i, at the point."""
        if (index, i) not in self._slopes:
            operands: list[Any] = [self.tape.values[n] if n else None for n in step.operands]
            x = operands[i]
            h = _STEP * np.where(x == 0, 1.0, np.clip(np.abs(x), _FLOOR, 1.0))
            operands[i] = x + 1j * h
            rank = self.tape.values[step.node.outputs[0]].ndim
            h = h.reshape((1,) * (rank - h.ndim) + h.shape)
            self._slopes[index, i] = np.imag(_continued(step)(*operands, **step.metadata)) / h
        return self._slopes[index, i]

    def _complex_tangent(
        self, step: Step, tangents: Mapping[str, Array], live: Sequence[bool], jitter: np.random.Generator | None
    ) -> Any:
        """The kernel at `x + i h t`, h for each probe by the sizes of x and t."""
        values = self.tape.values
        if jitter is not None and step.op.backward_stable:
            values = {n: values[n] * factors(values[n][None], jitter)[0] for n in step.operands if n}
        pairs = [(values[n], tangents[n]) for n, p in zip(step.operands, live, strict=True) if p]
        h = _STEP * min(_smallest(x) for x, _ in pairs) / np.maximum.reduce([_size_by_probe(t) for _, t in pairs])
        operands = [
            (values[n] + 1j * (_behind(h, tangents[n].ndim) * tangents[n]) if p else values[n]) if n else None
            for n, p in zip(step.operands, live, strict=True)
        ]
        made = step.op.lift(_continued(step), operands, live, step.metadata)
        results = [np.imag(y) / _behind(h, np.ndim(y)) for y in (made if step.op.many else (made,))]
        return tuple(results) if step.op.many else results[0]

    def _spread(self, live: Mapping[str, Array], name: str, count: int, *, zero: bool = False) -> Array:
        value = self.tape.values[name]
        if name in live:
            if live[name].shape[1:] != value.shape:
                raise Ragged
            return live[name]
        return np.broadcast_to(np.zeros_like(value) if zero else value, (count, *value.shape))

    def _failed(self) -> Outcome:
        """The outcome of a single probe at which the graph cannot be evaluated as at the point."""
        shapes = [self.tape.values[n].shape for n in self.outputs]
        return Outcome(tuple(np.full((1, *s), np.nan) for s in shapes), {-1: np.ones(1, bool)}, Decisions.none(1))

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


def _between(tape: Tape, probes: Sequence[str], targets: set[str]) -> list[tuple[int, Step]]:
    reached = set(probes)
    forward = []
    for index, step in enumerate(tape.steps):
        reads = {*(() if step.op.lift is shape_only else step.operands), *step.statics}
        if not reached.isdisjoint(reads) and reached.isdisjoint(step.node.outputs):
            reached.update(n for n in step.node.outputs if n)
            forward.append((index, step))
    needed, kept = set(targets), []
    for index, step in reversed(forward):
        if not needed.isdisjoint(step.node.outputs):
            needed.update(step.node.inputs)
            kept.append((index, step))
    return kept[::-1]


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


def _size_by_probe(tangent: Array) -> Array:
    """The largest entry of each probe's tangent, 1 where it is zero, `(P,)`."""
    size = np.abs(tangent).reshape(tangent.shape[0], -1).max(axis=1, initial=0.0)
    return np.where((size > 0) & np.isfinite(size), size, 1.0)


def _behind(h: Array, rank: int) -> Array:
    """A number for each probe, ready to multiply a stack of this rank."""
    return h.reshape(-1, *(1,) * (rank - 1))


def _product(slope: Array, tangent: Array) -> Array:
    """Their product, where a tangent of zero stays zero whatever the slope is."""
    product = slope * tangent
    return product if np.isfinite(slope).all() else np.where(tangent == 0, 0.0, product)


def _plus(a: Any, b: Any) -> Any:
    return tuple(x + y for x, y in zip(a, b, strict=True)) if isinstance(a, tuple) else a + b
