"""The health of a model's gradients: measured at each point, and summed up for each pair (x, y).

One backward pass (`Descent`) for each y and point serves all its xs and all layers.  It keeps nothing: rules run on a
tape that drops the steps they add, so that memory holds only cotangents that are still incomplete.  Where a batch shows
too few values of each unit, some more forward runs are made if they are cheap.  Gates turn findings into a failed run
(`--fail-on`).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any
from weakref import ref

import numpy as np
from msgspec import Struct, field, structs

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import Course, Descended, check_rules, inexact, pull_back, units_between
from gradcheck_cli.autodiff.tape import Held, Step, Tape, Unit, Var
from gradcheck_cli.checks.health.layers import (
    Activity,
    FlowCurve,
    Key,
    LayerDraft,
    curve,
    drafts,
    looked_at,
    spot_of,
)
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import GradcheckError, LimitError, UsageError
from gradcheck_cli.graph import Array, computing, is_inexact
from gradcheck_cli.jacobian.cost import forward_work
from gradcheck_cli.ops.activation import softmax_vjp
from gradcheck_cli.points.more import MorePoints
from gradcheck_cli.results.measures import SAMPLES, WORDS, Health, Layer, Nonfinite, Spot, assessed
from gradcheck_cli.results.record import OUTCOMES, Check, Gradient, gates_from

_CHEAP = 3e9  # operations that further forward runs may take, a fifth of a second
_STEP = 1e6  # cost of recording one step, in operations
_HELD = 1 << 26  # bytes of cotangents of xs kept for the laws of the gradient
_SMALL = 1e-280  # sums of squares below may have lost digits


class Checkups:
    """The checkups of all ys of one check."""

    def __init__(self, ys: Iterable[str], inputs: Sequence[str], seed: int, tick: Callable[[], None]) -> None:
        self.inputs = inputs
        data = Dependents()
        self.of = {y: Checkup(y, seed, tick, data) for y in ys}

    def at(self, tapes: Mapping[str, Tape], pairs: Iterable[tuple[str, str]], index: int) -> None:
        """Measures one point: the forward run for each y, and the pairs (x, y)."""
        xs: dict[str, list[str]] = {}
        for x, y in pairs:
            xs.setdefault(y, []).append(x)
        for y, by in xs.items():
            with suppress(MemoryError):  # without memory there is just no health
                self.of[y].at(tapes[y], by, self.inputs, index)

    def descended(self, y: str) -> Descended | None:
        """The backward pass from y at the last point."""
        return self.of[y].descended if y in self.of else None

    def look_on(self, further: MorePoints, first: int) -> None:
        """Makes further forward runs, from point number `first` on, as long as their inputs differ and some unit stands."""
        most = max((each.wanted for each in self.of.values()), default=0)
        programs = [each.program(further.point.tape) for each in self.of.values()] if most else []
        names = [name for program in programs if program is not None for name in looked_at(program)]
        for tape, values in further.runs(range(first, first + most), names):
            for each in self.of.values():
                each.look(tape, values)
            if not any(each.wanted for each in self.of.values()):
                break

    def record(self, record: Check) -> Check:
        """A record with the health of its gradient and, if it is partial, the figures of the whole gradient."""
        checkup = self.of[record.y]
        health = checkup.health(record.x)
        found: Gradient = {**record.gradient}
        glanced = record.status == "pass" and not record.entries.get("checked")
        if glanced or (record.gradient and record.mode != "full"):
            found.update(checkup.figures(record.x))
        notes = (*record.notes, *checkup.masked(record.x))
        return replace(record, gradient=found if health is None else {**found, "health": health}, notes=notes)


class Dependents:
    """The tensors of a tape that depend on the model's inputs, found once for all ys."""

    def __init__(self) -> None:
        self._last: tuple[ref[Tape], list[str], set[str]] | None = None

    def of(self, tape: Tape, starts: list[str]) -> set[str]:
        """Tensors that depend on some tensors of a tape."""
        if self._last is None or self._last[0]() is not tape or self._last[1] != starts:
            self._last = ref(tape), starts, _reached(tape, starts)
        return self._last[2]


class Checkup:
    """The health of d y/d x for all xs of one y, point by point; `tick` is called for every cotangent."""

    def __init__(self, y: str, seed: int, tick: Callable[[], None], data: Dependents) -> None:
        self.y, self.seed, self.tick, self.data = y, seed, tick, data
        self.activity = Activity()
        self.names: dict[str, str] = {}  # of xs, on the tapes
        self.visits: dict[str, list[Visit]] = {}
        self.spoilt: Spot | None = None
        self.finite, self.work = True, 0.0
        self.descended: Descended | None = None  # at the last point
        self._program: Program | None = None  # on the last tape

    def at(self, tape: Tape, xs: Sequence[str], inputs: Iterable[str], index: int) -> None:
        """Measures one point: the forward run on `tape`; `inputs` are those of the model."""
        self.descended = None
        y, xs = tape.named.get(self.y), [x for x in xs if x in tape.named and inexact(tape.named[x])]
        if y is None or not xs or not y.size or not inexact(y):
            return
        if not np.isfinite(y.value).all():
            self.finite, self.spoilt = False, self.spoilt or culprit(tape, y.name)
            return
        self.names.update((x, tape.named[x].name) for x in xs)
        self.descended = Descended(random_cotangent(y.value, [self.seed, index, 2]), {})
        starts = [tape.named[n].name for n in inputs if n in tape.named] or [self.names[x] for x in xs]
        data = self.data.of(tape, starts)
        if not self._visit(tape, self.descended, xs, data) and len(xs) > 1:  # a rule is missing or broken for some x
            for x in xs:
                self._visit(tape, self.descended, [x], data)
        program = self.program(tape)
        if program is not None:
            self.activity.show(tape, program, tape.values)
            self.work = forward_work(program) + _STEP * len(tape.steps)

    def _visit(self, tape: Tape, descended: Descended, xs: Sequence[str], data: set[str]) -> bool:
        """Makes a backward pass by some xs; False if it fails."""
        y, norms, ends = tape.named[self.y].name, Norms(), {tape.named[x].name: np.zeros(()) for x in xs}
        try:
            way = Descent(tape, y, [*ends], watched=False)
            for name, ct in way.cotangents(descended.start):
                self.tick()
                norms.add(name, ct, end=name in ends)
                if name in ends:
                    ends[name] = ct
            if any(norms.bad.values()):  # another pass finds the rule
                way = Descent(tape, y, [*ends])
                deque(way.cotangents(descended.start), maxlen=0)
            masked = dict(_masked(tape, y, [*ends], way.units, descended.start))
        except LimitError as error:
            if error.code == LimitError.code:  # the time limit; without memory there is just no health
                raise
            return False
        except (GradcheckError, MemoryError, ValueError, TypeError, LookupError, ArithmeticError):
            return False
        broken = None if way.broken is None else spot_of(way.broken)
        forward = culprit(tape, y) if broken else None
        visit = Visit(Course(way.units), drafts(tape, way.units, data), norms, forward, broken, masked)
        for x in xs:
            self.visits.setdefault(x, []).append(visit)
        if sum(ct.nbytes for ct in ends.values()) <= _HELD:
            descended.ends.update(ends)
        return True

    def look(self, tape: Tape, values: Mapping[str, Array]) -> None:
        """Adds one more forward run, with `values` on a tape, to the activity of units."""
        program = self.program(tape)
        if program is not None:
            self.activity.show(tape, program, values)

    def program(self, tape: Tape) -> Program | None:
        """The part of a tape that leads from all xs to y."""
        if self._program is None or self._program.tape is not tape:
            names = [tape.named[x].name for x in self.visits if x in tape.named]
            known = bool(names) and self.y in tape.named
            self._program = Program(tape, names, [tape.named[self.y].name]) if known else None
        return self._program

    def masked(self, x: str) -> tuple[str, ...]:
        """A note on a softmax without any share, from which PyTorch and JAX pass NaN on to x."""
        name, visits = self.names.get(x, ""), self.visits.get(x, ())
        spot = next((visit.masked[name] for visit in visits if name in visit.masked), None)
        said = "is NaN along lines of -infinity alone, which the model masks: no gradient flows there here, but the softmax"
        return () if spot is None else (f"{spot} {said} of PyTorch and of JAX passes NaN on",)

    @property
    def wanted(self) -> int:
        """Number of further forward runs that would show enough of every unit; 0 if they would take long."""
        runs = math.ceil(SAMPLES / self.activity.least) - 1
        return runs if runs * self.work <= _CHEAP else 0

    def figures(self, x: str) -> Gradient:
        """The figures of a gradient in a record, for a random weighted sum of y; {} if there is no gradient."""
        norms = Norms.over([visit.norms for visit in self.visits.get(x, ())])
        name = self.names.get(x)
        if name not in norms.norm:
            return {}
        return {
            "norm": norms.norm[name],
            "max": norms.largest[name],
            "zero_fraction": norms.zeros[name] / max(norms.size[name], 1),
            "finite": not norms.bad[name],
        }

    def health(self, x: str) -> Health | None:
        """The health of the gradient by x; None where no backward pass reaches it."""
        visits = self.visits.get(x)
        if not visits:
            return None if self.finite else assessed((), None, None, Nonfinite(forward=self.spoilt), finite=False)
        norms, nodes, name = Norms.over([visit.norms for visit in visits]), visits[0].nodes, self.names[x]
        counts = self.activity.counts()
        units = visits[0].course.onward(name)
        made = sorted({unit.place.key for unit in units} & nodes.keys(), key=visits[0].ranks.__getitem__)
        way = {k: nodes[k] for k in made if any(n in norms.norm for n in nodes[k].outputs)}
        layers = {key: draft for key, draft in way.items() if draft.weighted or draft.bends}
        every = curve(units, name, layers.keys(), norms.norm)
        whole = not any(norms.bad.values())
        forward = self.spoilt or next((visit.forward for visit in visits if visit.forward is not None), None)
        backward = next((visit.backward for visit in visits if visit.backward is not None), None)
        return assessed(
            tuple(_layer(draft, norms, counts.get(key, (0, None, None))) for key, draft in layers.items()),
            _ratio(units, name, layers, norms.norm, every) if whole else None,
            every.steepest({key: draft.spot for key, draft in layers.items()}) if whole else None,
            Nonfinite(norms.bad.get(name, 0), forward, backward),
            finite=self.finite,
            lost=_lost(units, name, norms),
        )


class Passing(Tape):
    """A tape that keeps nothing: results live as long as their `Var`s; values of the forward run can be read."""

    keeps = False

    def __init__(self, forward: Tape) -> None:
        super().__init__(forward.ops, dtype=forward.dtype, seed=forward.seed)
        self.values = forward.values

    def hold(self, name: str, value: Any) -> Var:
        """A value that no step computes; its name is not registered."""
        return self.weight(name, np.asarray(value))

    def weight(self, name: str, array: Array) -> Var:
        """The same for a constant."""
        dtype = np.dtype(object) if array.dtype.kind in "US" else self.widen(array.dtype)
        return Held(self, name, array.astype(dtype, copy=False))

    def recorded(self, make: Callable[[], Step], results: Sequence[Array]) -> tuple[Var, ...]:
        return tuple([Held(self, "computed", y) for y in results])


class Descent:
    """The backward pass from y to xs.  NoGradientError if an operator on the way has no rule.

    `unit` is the one whose rule ran last; `broken`, if watched, the first whose rule made NaN or infinity of finite
    cotangents.
    """

    def __init__(self, tape: Tape, y: str, xs: Sequence[str], *, watched: bool = True) -> None:
        self.tape, self.y, self.xs, self.watched = tape, y, frozenset(xs), watched
        self.units = units_between(tape, xs, [y])
        self.unit: Unit | None = None
        self.broken: Unit | None = None
        self.passing = Passing(tape)
        check_rules(self.units)

    def cotangents(self, cotangent: Array) -> Iterator[tuple[str, Array]]:
        """Names and cotangents of all tensors on the way, y first, and of other differentiated operands."""
        pending = {self.y: cotangent}
        readers = Counter(name for unit in self.units for name in _operands(unit))
        made = {name for unit in self.units for name in unit.outputs}
        for unit in reversed(self.units):
            cts = {n: ct for n in unit.outputs if n and (ct := pending.pop(n, None)) is not None}
            yield from cts.items()
            for name, ct in self._pulled(unit, cts):
                pending[name] = pending[name] + ct if name in pending else ct
            readers.subtract(_operands(unit))
            whole = [n for n in _operands(unit) if not readers[n] and n not in made and n in pending]
            yield from ((name, pending.pop(name)) for name in whole)
        yield from pending.items()  # y itself, if there are no units

    def _pulled(self, unit: Unit, cts: Mapping[str, Array]) -> list[tuple[str, Array]]:
        """Cotangents of a unit's operands."""
        if not cts:
            return []
        self.unit = unit
        names = _operands(unit)
        large = names & self.tape.values.recipes.keys()  # the cotangents of large weights are computed one by one
        turns = [names - large, *({name} for name in sorted(large))]
        flows = [flow for turn in turns for flow in self._applied(unit, cts, turn)]
        if self.watched and self.broken is None and not all(_is_finite(ct) for _, ct in flows):
            self.broken = unit if all(map(_is_finite, cts.values())) else None
        return flows

    def _applied(self, unit: Unit, cts: Mapping[str, Array], names: set[str]) -> list[tuple[str, Array]]:
        """Cotangents of some operands by the rule, beside a large weight on a tape that can recompute it."""
        tape: Tape = self.passing
        if not self.tape.values.recipes.keys().isdisjoint((*unit.operands, *unit.outputs)):
            tape = Tape(self.tape.ops, dtype=self.tape.dtype, seed=self.tape.seed)
            tape.values = self.tape.values.part((*unit.operands, *unit.outputs))
            tape.fixed.update(tape.values.recipes)
        held = [tape.hold(tape.fresh("ct"), cts[n]) if n in cts else None for n in unit.outputs]
        return [(name, ct.value) for name, ct in pull_back(tape, unit, held, names)]


def _squared(flat: Array) -> float:
    """The sum of squares without a copy; NaN for complex numbers."""
    return float(np.einsum("i,i", flat, flat)) if flat.dtype.kind == "f" else math.nan


def _is_finite(ct: Array) -> bool:
    flat = ct.reshape(-1)
    return math.isfinite(_squared(flat)) or bool(np.isfinite(flat).all())


def _operands(unit: Unit) -> set[str]:
    return {name for name in unit.operands if name}


def random_cotangent(y: Array, seed: Sequence[int]) -> Array:
    """A random direction of length sqrt(y.size), complex for a complex y; not all ones, which Softmax ignores."""
    rng = np.random.default_rng(seed)
    ct = rng.normal(size=y.shape) + (1j * rng.normal(size=y.shape) if y.dtype.kind == "c" else 0)
    return np.asarray(ct * (math.sqrt(y.size) / np.linalg.norm(ct))).astype(y.dtype)


def _reached(tape: Tape, starts: Iterable[str]) -> set[str]:
    """Tensors that depend on some tensors of a tape."""
    names = set(starts)
    for step in tape.steps:
        if not names.isdisjoint((*step.operands, *step.statics)):
            names.update(n for n in step.node.outputs if n)
    return names


def culprit(tape: Tape, y: str) -> Spot | None:
    """The first node on the way to y whose result is not finite although its operands are."""
    for step in (tape.steps[i] for i in computing([step.node for step in tape.steps], [y])[0]):
        if not _finite(tape, step.node.outputs) and _finite(tape, (*step.operands, *step.statics)):
            return spot_of(step)
    return None


def _finite(tape: Tape, names: Iterable[str]) -> bool:
    return all(np.isfinite(tape.values[n]).all() for n in names if n and is_inexact(tape.values[n].dtype))


def _masked(tape: Tape, y: str, xs: Sequence[str], units: Sequence[Unit], start: Array) -> Iterator[tuple[str, Spot]]:
    """The xs that NaN comes back to by the plain rule of a softmax without any share, with that softmax."""
    empty = [unit for unit in units if _without_shares(tape, unit)]
    if not empty:
        return

    def plain(ct: Var, y: Var, x: Var, *, axis: int = -1) -> tuple[Var]:
        return (y * (ct - sym.sum(ct * y, (axis,))),)

    way = Descent(tape, y, xs, watched=False)
    way.units = [structs.replace(u, op=replace(u.op, vjp=plain)) if u.op.vjp is softmax_vjp else u for u in way.units]
    for name, ct in way.cotangents(start):
        if name in way.xs and np.isnan(ct).any():
            between = {unit.steps for unit in units_between(tape, [name], [y])}
            yield from ((name, spot_of(unit)) for unit in empty[::-1] if unit.steps in between)  # the first stays


def _without_shares(tape: Tape, unit: Unit) -> bool:
    """True for a softmax with a line of -infinity alone."""
    if unit.op.vjp is not softmax_vjp or not np.isnan(tape.values[unit.outputs[0]]).any():
        return False
    x = tape.values[unit.operands[0]]
    return x.ndim > 0 and bool(np.isneginf(x).all(axis=unit.metadata.get("axis", -1)).any())


class Visit(Struct, frozen=True, dict=True):
    """One y at one point: the way there, its nodes, cotangents by name, and the nodes that made NaN or infinity."""

    course: Course
    nodes: Mapping[Key, LayerDraft]
    norms: Norms
    forward: Spot | None
    backward: Spot | None
    masked: Mapping[str, Spot]  # xs that NaN comes back to where a softmax without any share passes it on

    @cached_property
    def ranks(self) -> dict[Key, int]:
        """Places of the nodes in their order."""
        return {key: rank for rank, key in enumerate(self.nodes)}


class Norms(Struct):
    """Cotangents of the tensors between x and y, by name: norm, exact zeros, size; for each x the largest entry too."""

    norm: dict[str, float] = field(default_factory=dict)
    zeros: dict[str, int] = field(default_factory=dict)
    size: dict[str, int] = field(default_factory=dict)
    largest: dict[str, float] = field(default_factory=dict)
    bad: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, ct: Array, *, end: bool) -> None:
        flat = ct.reshape(-1)
        squares = _squared(flat)
        self.zeros[name], self.size[name] = int(np.count_nonzero(flat == 0)), ct.size
        if _SMALL < squares < np.inf:
            self.norm[name], self.bad[name] = math.sqrt(squares), 0
            self.largest[name] = float(max(flat.max(), -flat.min())) if end else math.nan
            return
        size = np.abs(flat[np.isfinite(flat)])
        top = float(np.max(size, initial=0.0))
        self.norm[name] = top * float(np.linalg.norm(size / top)) if top else 0.0
        self.largest[name], self.bad[name] = top, ct.size - size.size

    @staticmethod
    def over(points: Sequence[Norms]) -> Norms:
        """Norms over all points: root mean squares, sums of counts, the largest of largest entries."""
        if len(points) == 1:
            return points[0]
        total = Norms()
        for name in {name: None for point in points for name in point.norm}:
            here = [point for point in points if name in point.norm]
            total.norm[name] = math.hypot(*(p.norm[name] for p in here)) / math.sqrt(len(here))
            total.zeros[name], total.bad[name] = sum(p.zeros[name] for p in here), sum(p.bad[name] for p in here)
            total.size[name] = sum(p.size[name] for p in here)
            total.largest[name] = max(p.largest[name] for p in here)
        return total


def _lost(units: Sequence[Unit], x: str, norms: Norms) -> Spot | None:
    """The node at which a gradient becomes zero everywhere on its way from y to x; None if it does not."""
    if norms.norm.get(x) != 0 or not norms.size.get(x) or norms.zeros.get(x) != norms.size[x]:
        return None
    between = {x, *(name for unit in units for name in unit.outputs)}
    for unit in reversed(units):
        made = max((norms.norm.get(name, 0.0) for name in unit.outputs), default=0.0)
        if made and not any(norms.norm.get(name, 0.0) for name in unit.operands if name in between):
            return spot_of(unit)
    return None


def _layer(draft: LayerDraft, norms: Norms, counts: tuple[int, int | None, int | None]) -> Layer:
    outputs = [n for n in dict.fromkeys(draft.outputs) if n in norms.norm]
    parameters = [norms.norm[n] for n in draft.parameters if n in norms.norm]
    size = sum(norms.size[n] for n in outputs)
    units, dead, saturated = counts
    return Layer(
        spot=draft.spot,
        norm=math.hypot(*(norms.norm[n] for n in outputs)),
        size=size,
        zero_fraction=sum(norms.zeros[n] for n in outputs) / max(size, 1),
        weights=math.hypot(*parameters) if parameters else None,
        units=units,
        dead=dead,
        saturated=saturated,
    )


def _ratio(
    units: Sequence[Unit], x: str, layers: Mapping[Key, LayerDraft], norms: Mapping[str, float], every: FlowCurve
) -> float | None:
    """Ratio of the gradient norm at the first layers to that at the last: weighted ones, or all if few are weighted.

    A squashing function at y itself is no layer then, since the loss may undo it.
    """
    weighted = curve(units, x, {key for key, draft in layers.items() if draft.weighted}, norms)
    if len(weighted.flow) > 1:
        return _through(weighted, layers)
    inner = {key for key, draft in layers.items() if not (key in every.keys[-1:] and draft.squashes)}
    return _through(curve(units, x, inner, norms), layers)


def _through(flows: FlowCurve, layers: Mapping[Key, LayerDraft]) -> float | None:
    """The ratio of a curve; None for a ratio of zero that follows from the sizes alone."""
    return None if flows.ratio == 0 and any(draft.constant for draft in layers.values()) else flows.ratio


def gates_given(value: Any, dtype: str) -> tuple[str, ...]:
    """Words of `--fail-on` as a tuple, from one text or a list; the default for None."""
    if value is None:
        return OUTCOMES
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise UsageError(f"fail_on={value!r} must be words, such as 'fail,severed'.")
    try:
        found = gates_from(word.strip() for word in words)
    except UsageError as error:
        raise UsageError(f"fail_on={value!r}: {error}") from None
    if "precision" in found and dtype != "model":
        raise UsageError("fail_on='precision' asks for the gradient in the model's own dtype: dtype='model'.")
    return found


def with_gates(check: Check, asked: Collection[str]) -> Check:
    """The record with the gates for its gradient's health; a known failure (status waived) stops at none.

    Gates that do not concern health stay: they are in a record whatever a run asks for.  Of health that is known the
    words alone are let through at which it stopped before.
    """
    waiver = check.waiver or {}
    known = waiver.get("gates", ())
    if check.status == "waived" and not check.ignored and not known:
        return check
    own = tuple(word for word in check.gates if word not in WORDS)
    health = check.gradient.get("health")
    shown = () if health is None else health.shows
    found = [word for word in WORDS if word in asked and word in shown]
    if known and {*known}.issuperset(found):
        return check
    judged = replace(check, gates=(*own, *found))
    return replace(judged, status=waiver["status"], waiver=None) if known else judged
