"""Kernels of others, tried once at the values they have: what their operators say of them is held against real differences.

A kernel that is not complex-safe (`np.abs`, a norm, a cast) would turn a verdict around, one that computes in shorter
numbers would make right rules fail, and a wrong word for how it meets probes makes either side of a check wrong.  What
does not hold is taken back on the tape, where the default, which is always right, takes its place.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any

import numpy as np
from msgspec import structs

from gradcheck_cli.autodiff.tape import Step, Tape, Trial
from gradcheck_cli.engine.chunks import Budget, any_of
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import GradcheckError, ModelError
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobian.coloring import BITS, sample
from gradcheck_cli.jacobian.directions import Directions, Room, flat, flat_stack, moved_entries, reals, shaped
from gradcheck_cli.jacobian.jacobian import by_complex_step, by_differences, by_ladder, each_beside, forward_noise
from gradcheck_cli.jacobian.precise import heard
from gradcheck_cli.op import Op
from gradcheck_cli.op.batching import is_ours, kept, loop, told
from gradcheck_cli.verdict.agreement import agree
from gradcheck_cli.verdict.differences import ALL_RUNGS, CENTRAL, CHEAP_RUNGS, Estimate, rung
from gradcheck_cli.verdict.rule import epsilon

_ENTRIES = 3  # of an operand that are moved alone, beside a random direction of all of them
_PLACES = 8  # entries of which it is looked at what reads them
_LARGE = 1 << 18  # entries of an operand and its result from which on fewer steps are tried
_TRIED = 8  # nodes of an operator that are tried; the others are taken to be like them
_NEAR = 2.0**-10  # how far entries move, in units of the scale of x, to see what reads them
_SAME = 1e-9  # of the largest entry: a stack and single probes differ by less where only sums are ordered otherwise
_CLEAR = 1e-6  # of the largest slope: less is no contradiction
_SEEN = 0.1  # of the largest slope: what differences bound no better than that, they do not confirm
_SPACINGS = 2.0 ** -np.arange(46.0, 5.0, -4.0)  # of points at which noise is heard
_FEW_SPACINGS = _SPACINGS[-6:-2]
_LOUD = 3.0  # times its usual size: noise that some of many entries have
_FINE = 8 * epsilon(np.dtype(np.float64))  # of a result: noise of float64 is known without being heard
_ALONE = Budget(jobs=1)
_WIDE, _FINE_RUNGS = (2, 3, 4), (7, 9, 12)  # rungs of the ladder that see past noise, and that do not
_CONFIRMED = ""
_FAILS = "its kernel does not take complex numbers, so differences alone count"
_OTHERS = "its kernel gives other slopes on complex numbers than on real ones, so differences alone count"
_UNSEEN = "differences see nothing of its slopes that would confirm it"


def try_kernels(tape: Tape, untried: Iterable[int]) -> None:
    """Tries steps of a tape whose kernels are none of ours, each of them once."""
    seen: dict[int, list[Step]] = {}
    for index in untried:
        before = seen.setdefault(id(tape.steps[index].op), [])
        step = _guarded(tape.steps[index])
        tape.steps[index] = _Attempt(tape, step).tried() if len(before) < _TRIED else _like(before, step, tape)
        before.append(tape.steps[index])


def _like(before: Sequence[Step], step: Step, tape: Tape) -> Step:
    """A step whose kernel is taken to be like the same kernel at others."""
    worst = max(before, key=lambda each: len(each.trial.retracted) if each.trial is not None else 0)
    coarse = max(each.trial.coarse for each in before if each.trial is not None)
    noise = tuple(_share(tape, name, coarse) for name in step.node.outputs)
    said = () if worst.trial is None else worst.trial.retracted
    op = replace(worst.op, forward=step.op.forward)
    return structs.replace(step, op=op, trial=Trial(noise if coarse else (), coarse, said))


def _guarded(step: Step) -> Step:
    """A step whose kernel raises ModelError, as gradcheck's own do, whatever it raises where it has no value."""
    kernel, many = step.op.forward, step.op.many

    @wraps(kernel)
    def run(*operands: Any, **metadata: Any) -> Any:
        try:
            return kept(kernel(*operands, **metadata), operands, many)
        except (GradcheckError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            text = f"{step.where} cannot be computed near its point: {told(kernel, error, (Exception,))}"
            raise ModelError(text, op=step.op.name) from error

    return step if is_ours(kernel) else structs.replace(step, op=replace(step.op, forward=run))


def _share(tape: Tape, name: str, coarse: float) -> Array | None:
    value = tape.values[name] if name else None
    if value is None or not is_inexact(value.dtype):
        return None
    return np.full(value.shape, coarse * float(np.max(np.abs(value), initial=0.0)))


@dataclass
class _Attempt:
    """One step on a tape of its own."""

    tape: Tape
    step: Step

    def tried(self) -> Step:
        """The step with what holds of its operator, and what was found."""
        if not self.pairs or "rng" in self.step.metadata:  # whose draws are its own
            return structs.replace(self.step, trial=Trial())
        said: list[str] = []
        op = self._stacked(self.step.op, said)
        op = self._read(op, said)
        op = self._boxed(op, said)
        op, noise = self._differentiated(op, said)
        largest = [float(np.max(np.abs(self.tape.values[n]), initial=0.0)) for n in self.outputs]
        coarse = max((float(np.max(noise[n], initial=0.0)) / size for n, size in zip(self.outputs, largest, strict=True)
                      if n in noise and size), default=0.0)  # fmt: skip
        by_output = tuple(noise.get(n) for n in self.step.node.outputs) if coarse else ()
        return structs.replace(self.step, op=op, trial=Trial(by_output, coarse, tuple(said)))

    @cached_property
    def operands(self) -> list[str]:
        """Operands that hold numbers with a derivative."""
        names = dict.fromkeys(n for n in self.step.operands if n)
        return [n for n in names if is_inexact(self.tape.values[n].dtype) and self.tape.values[n].size]

    @cached_property
    def outputs(self) -> list[str]:
        """Results that do."""
        known = [n for n in self.step.node.outputs if n and n in self.tape.values]
        return [n for n in known if is_inexact(self.tape.values[n].dtype) and self.tape.values[n].size]

    @cached_property
    def pairs(self) -> list[tuple[str, str]]:
        """The pairs (y, x) of the derivatives."""
        return [(x, y) for x in self.operands for y in self.outputs]

    @cached_property
    def plain(self) -> Op:
        """The operator with nothing declared that could be wrong."""
        return replace(self.step.op, batching=loop, linear=(), sparsity=None, boxes=None)

    @property
    def large(self) -> bool:
        sizes = (self.tape.values[n].size for n in (*self.operands, *self.outputs))
        return sum(sizes) > _LARGE

    def program(self, op: Op, x: str, y: str) -> Program:
        """The step alone, with an operator in the place of its own."""
        part = Tape(self.tape.ops, dtype=self.tape.dtype, seed=self.tape.seed)
        part.steps = [structs.replace(self.step, op=op)]
        part.values = self.tape.values.part({n for n in (*self.step.node.inputs, *self.step.node.outputs) if n})
        return Program(part, [x], [y])

    def directions(self, x: str) -> Iterator[Directions]:
        """A random direction of all entries, and some entries alone."""
        value = self.tape.values[x]
        rng, count = np.random.default_rng(0), reals(value)
        sizes = Directions(value, range(count)).representable(1.0)
        yield Directions(value, (rng.choice([-1.0, 1.0], count) * sizes * rng.uniform(0.5, 1.5, count))[None])
        if not self.large:
            yield Directions(value, np.sort(rng.permutation(count)[:_ENTRIES]))

    def _stacked(self, op: Op, said: list[str]) -> Op:
        """The batching rule, held against probe after probe."""
        if op.batching is loop or all(self._alike(op, probed) for probed in self._subsets()):
            return op
        said.append(
            "runs probe by probe: its kernel gives something else for a stack of probes, as its batching rule says it is"
        )
        return replace(op, batching=loop, sparsity=None, boxes=None)

    def _subsets(self) -> Iterator[tuple[str, ...]]:
        yield from ((name,) for name in self.operands)
        if len(self.operands) > 1:
            yield tuple(self.operands)

    def _alike(self, op: Op, probed: tuple[str, ...]) -> bool:
        """A stack of three probes gives what each of them gives alone."""
        rng, known = np.random.default_rng(1), self.tape.values
        stacks = {n: np.stack([known[n] * (1 + _NEAR * rng.uniform(-1, 1, known[n].shape)) for _ in range(3)])
                  for n in probed}  # fmt: skip
        operands = [stacks.get(n, known[n]) if n else None for n in self.step.operands]
        live = [n in stacks for n in self.step.operands]
        alone, together = (self._batched(each, operands, live) for each in (self.plain, op))
        return alone is None or (together is not None and _same(alone, together))

    def _batched(self, op: Op, operands: Sequence[Array | None], live: Sequence[bool]) -> list[Array] | None:
        """Results of a stack; None where that is an error."""
        try:
            made = op.batching(op.forward, operands, live, self.step.metadata)
        except Exception:  # of a kernel of others anything may come
            return None
        return [np.asarray(y) for y in (made if op.many else (made,))]

    def _read(self, op: Op, said: list[str]) -> Op:
        """The word for what an entry of the result is made from, held against entries that move."""
        if all(self._inside(op, x, y) for x, y in self.pairs):
            return op
        said.append("may read all of its operands: its kernel reads entries that `batching`, or `sparsity`, leaves out")
        return replace(op, batching=loop, sparsity=None, boxes=None)

    def _inside(self, op: Op, x: str, y: str) -> bool:
        """No entry of y moves with an entry of x that it does not read."""
        declared, plain = self.program(op, x, y), self.program(self.plain, x, y)
        value = self.tape.values[x]
        drawn = np.sort(np.random.default_rng(0).permutation(reals(value))[:BITS])  # those of `sample`
        chosen = np.unique(np.linspace(0, len(drawn) - 1, _PLACES).astype(int))
        try:
            known = sample(declared)
        except (ValueError, IndexError, TypeError):
            return False
        part = Directions(value, drawn[chosen])
        [(seen, _)] = each_beside(plain, [(part, part.representable(_NEAR))], _ALONE)
        here = flat_stack(self.tape.values[y][None])
        moved = np.abs(seen - here) > _SAME * np.maximum(np.abs(here), np.max(np.abs(here), initial=0.0))
        rows, columns = np.nonzero(moved)
        return bool(known.holds(chosen[rows], columns).all())

    def _boxed(self, op: Op, said: list[str]) -> Op:
        """The box rule, held against whole stacks."""
        if op.boxes is None or all(self._whole(op, x, y) for x, y in self.pairs):
            return op
        said.append("makes stacks whole: boxes do not go through its kernel as its `boxes` says")
        return replace(op, boxes=None)

    def _whole(self, op: Op, x: str, y: str) -> bool:
        value = self.tape.values[x]
        rows = np.unique(np.linspace(0, reals(value) - 1, _PLACES).astype(int))
        offsets = Directions(value, rows).representable(_NEAR)
        boxes = moved_entries(value, rows, offsets, Room(len(rows), len(rows) * value.size))
        made = self.program(op, x, y).run({x: boxes}).outputs[0]
        moved = flat(value) + offsets[:, None] * Directions(value, rows).block(range(len(rows)))
        return _same([self.program(self.plain, x, y).run({x: shaped(moved, value)}).outputs[0]], [made])

    def _differentiated(self, op: Op, said: list[str]) -> tuple[Op, dict[str, Array]]:
        """The operator as far as the complex step, or its being linear, is confirmed; and the noise of its results."""
        noise = self._noise() if self._rough else {}
        if not (op.analytic or op.linear) or self._confirmed(op, noise) == _CONFIRMED:
            return op, noise
        safe = replace(op, linear=())
        found = self._confirmed(safe, noise)
        if op.linear and found == _CONFIRMED:
            said.append("is not linear as its operator says: differences are others at its point")
            return safe, noise
        said.append(f"is not taken as analytic: {found}")
        return replace(safe, analytic=False, step=None), noise

    @cached_property
    def _rough(self) -> bool:
        """Small steps see another slope than large ones, so that there may be noise that these are blind to; or results
        are in shorter numbers."""
        return max(self._units.values()) > _FINE or any(self._parts(x, y) for x, y in self.pairs)

    @cached_property
    def _units(self) -> dict[str, float]:
        """One rounding of the numbers that the kernel gives, by result."""
        operands = [self.tape.values[n] if n else None for n in self.step.operands]
        made = self.step.op.forward(*operands, **self.step.metadata)
        results = made if self.step.op.many else (made,)
        units = {n: epsilon(np.asarray(y).dtype) for n, y in zip(self.step.node.outputs, results, strict=False)}
        return {n: units[n] for n in self.outputs}

    def _parts(self, x: str, y: str) -> bool:
        plain = self.program(self.plain, x, y)
        noise = forward_noise(plain)
        for part in self.directions(x):
            wide = by_ladder(plain, part, _WIDE, noise, _ALONE).estimate
            for k in _FINE_RUNGS:
                steps = part.representable(rung(k))
                [(fine, _)] = by_differences(plain, part, CENTRAL, [steps], _ALONE)
                bound = 2 * wide.error + 4 * noise / steps[:, None]
                with np.errstate(invalid="ignore"):
                    if (np.isfinite(wide.value) & ~(np.abs(fine - wide.value) <= bound)).any():
                        return True
        return False

    @property
    def rungs(self) -> Sequence[int]:
        return CHEAP_RUNGS if self.large else ALL_RUNGS

    def _noise(self) -> dict[str, Array]:
        """Bounds of the rounding error of each result, `shape`, where that is more than a rounding of float64."""
        spacings = _FEW_SPACINGS if self.large else _SPACINGS
        found: dict[str, Array] = {}
        for x, y in self.pairs:
            loud, value = heard(self.program(self.plain, x, y), spacings, _ALONE), self.tape.values[y]
            loud = loud[: value.size] + loud[value.size :] if value.dtype.kind == "c" else loud
            rounding = self._units.get(y, 0.0) * np.abs(value)
            found[y] = np.maximum.reduce([found.get(y, rounding), rounding, _LOUD * loud.reshape(value.shape)])
        floor = {y: _FINE * float(np.max(np.abs(self.tape.values[y]), initial=0.0)) for y in found}
        return {y: np.where(each > floor[y], each, 0.0) for y, each in found.items() if (each > floor[y]).any()}

    def _confirmed(self, op: Op, noise: dict[str, Array]) -> str:
        """Nothing to object to the slopes that go without differences, or what there is."""
        found = [self._agree(op, x, y, noise.get(y)) for x, y in self.pairs]
        return next((each for each in found if each != _CONFIRMED), _CONFIRMED)

    def _agree(self, op: Op, x: str, y: str, noise: Array | None) -> str:
        plain, declared = self.program(self.plain, x, y), self.program(op, x, y)
        known = forward_noise(plain)
        if noise is not None:
            known = np.maximum(known, np.tile(noise.reshape(-1), len(known) // noise.size))
        seen = False
        for part in self.directions(x):
            rows = by_ladder(plain, part, self.rungs, known, _ALONE)
            exact = _without_differences(declared, part)
            if exact is None:
                return _FAILS
            apart, sure = _held(exact, rows.estimate, any_of(rows.crossed, part.count))
            if apart:
                return _OTHERS
            seen |= sure
        return _CONFIRMED if seen else _UNSEEN


def _without_differences(program: Program, part: Directions) -> Array | None:
    """Slopes by the complex step, or by the kernel itself where it is linear; None where that is an error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", np.exceptions.ComplexWarning)
            return by_complex_step(program, part, _ALONE)
    except Exception:  # of a kernel of others anything may come
        return None


def _held(exact: Array, ladder: Estimate, crossed: Array) -> tuple[bool, bool]:
    """Some slope is another one, and some slope is confirmed."""
    size = np.maximum(np.abs(exact), np.where(np.isfinite(ladder.value), np.abs(ladder.value), 0.0))
    largest = np.max(size, axis=1, initial=0.0, keepdims=True)
    bound = np.where(np.isfinite(ladder.error) & np.isfinite(ladder.value) & ~crossed[:, None], ladder.error, np.inf)
    with np.errstate(invalid="ignore"):
        apart = ~(np.abs(exact - ladder.value) <= 8 * bound + _CLEAR * size + 1e-9 * largest) & np.isfinite(bound)
        sure = 8 * bound <= _SEEN * size
    return bool(apart.any()), bool((sure & (size > 0)).any())


def _same(one: Sequence[Array], other: Sequence[Array]) -> bool:
    """Results of one shape that differ by no more than the order of sums explains."""
    return all(
        agree(a, b, _SAME * float(np.max(np.abs(a), initial=0.0, where=np.isfinite(a))))
        if is_inexact(a.dtype)
        else np.array_equal(a, b)
        for a, b in zip(one, other, strict=True)
    )
