"""Directions in which a tensor is probed, and tensors as vectors of reals: of a complex one the real parts come first.

Stacks in which each probe moves a single real are box stacks of one entry each, where that saves enough work: a few
entries are followed through the model to tell how much of it one reaches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from gradcheck_cli.autodiff.tape import Step
from gradcheck_cli.autodiff.weights import TapeValues
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.complex_step import Pushforward, selecting
from gradcheck_cli.engine.program import BUSY, FAILURES, Program
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.cost import OPERATIONS, SOON, forward_work, once, step_work
from gradcheck_cli.op.boxes import BoxStack, Crowded, Span, Stack
from gradcheck_cli.op.sparsity import moved
from gradcheck_cli.verdict.differences import representable, rms, scales


class Directions:
    """Directions in which x is probed, one a row: unit vectors of some of its reals, or given ones `(rows, x_size)`."""

    def __init__(self, here: Array, chosen: Sequence[int] | Array) -> None:
        self.here = flat(here)
        self.single = not (isinstance(chosen, np.ndarray) and chosen.ndim == 2)
        self._given = None if self.single else np.asarray(chosen)
        self.rows = np.asarray(chosen, np.int64) if self.single else np.arange(len(chosen))
        self.count = len(self.rows)
        self.weighed = False  # given ones are in units of each entry's size
        self.tied = False  # given ones keep the ties of the point

    @property
    def given(self) -> Array | None:
        """The directions, `(rows, x_size)`; None where they are unit vectors."""
        return self._given

    def block(self, piece: range) -> Array:
        """Some of the directions, `(len(piece), x_size)`."""
        if (given := self.given) is not None:
            return given[piece.start : piece.stop]
        unit = np.zeros((len(piece), self.here.size))
        unit[np.arange(len(piece)), self.rows[piece.start : piece.stop]] = 1
        return unit

    def entries(self, piece: range) -> Array | None:
        """The real of x that moves in each of some directions; None where several do."""
        return self.rows[piece.start : piece.stop] if self.single else None

    def tangents(self, piece: range, x: Array, room: Room | None) -> Stack:
        """Some of the directions as tangents of x; a box stack of single entries if there is room for them."""
        entries = self.entries(piece)
        if entries is None or room is None:
            return shaped(self.block(piece), x)
        return unit_tangents(x, entries, room)

    def beside(self, piece: range, x: Array, offsets: Array, room: Room | None) -> Stack:
        """x moved by offsets, one for each of some directions."""
        entries = self.entries(piece)
        if entries is not None and room is not None:
            return moved_entries(x, entries, offsets, room)
        moved = self.here + offsets[:, None] * self.block(piece)
        return shaped(moved.astype(self.here.dtype, copy=False), x)

    def room(self, program: Program, budget: Budget, doubled: int = 1) -> tuple[int, Room | None]:
        """Bytes that one of them counts as, and the room that box stacks have; see `units`."""
        whole, x = doubled * program.bytes_per_probe(), program.x
        narrow = self.entries(range(0)) is not None
        room = wanted_room(program, x, self.count, whole, budget) if narrow else None
        if room is None:
            return whole, None
        return bytes_each(whole, reach(program).entries + program.y.size), room

    def slopes(self, cotangents: Array) -> Array:
        """Derivatives along the directions, `(P, rows)`, from cotangents of x `(P, x_size)`.

        Each cotangent by itself: in one product the order of its sums would follow from how many there are, and so from
        the threads that share them.
        """
        if (given := self.given) is None:
            return cotangents[:, self.rows]
        return np.array([given @ ct for ct in cotangents]).reshape(len(cotangents), len(given))

    @property
    def sizes(self) -> Array | None:
        """Magnitude of the real of x that moves in each direction, `(rows,)`; None where several do."""
        return np.abs(self.here)[self.rows] if self.single else None

    def part(self, rows: Array) -> Directions:
        """Some of the directions."""
        return Directions(self.here, self.rows[rows] if (given := self.given) is None else given[rows])

    def representable(self, h: Array | float, side: float = 1.0) -> Array:
        """Steps h times the scale of x along each direction, (rows,); along a unit vector x + side * step is exact."""
        if self.single:
            return self._exact(scales(self.here)[self.rows] * h, side)
        return np.full(self.count, h * self._typical)

    @cached_property
    def _typical(self) -> float:
        """The root mean square of the scales of all entries that move, 1 of nothing."""
        here = self.here if (given := self.given) is None else self.here[given.any(axis=0)]
        return rms(scales(here)) if here.size else 1.0

    def fixed(self, delta: float) -> Array:
        """The same step for every direction, (rows,), made exact along unit vectors."""
        steps = np.full(self.count, float(delta))
        return self._exact(steps) if self.single else steps

    def _exact(self, steps: Array, side: float = 1.0) -> Array:
        here = self.here[self.rows]
        exact = side * representable(here, (side * steps).astype(here.dtype)).astype(np.float64)
        return np.where(exact > 0, exact, steps)


class Redrawn(Directions):
    """Given directions of a large tensor, drawn anew when they are read: those of all tensors of a model would not fit."""

    def __init__(self, here: Array, count: int, draw: Callable[[], Array]) -> None:
        super().__init__(here, range(count))
        self.single, self._draw = False, draw

    @property
    def given(self) -> Array:
        return self._draw()


class Joined(Directions):
    """Several kinds of directions of one x, one after the other."""

    def __init__(self, parts: Sequence[Directions]) -> None:
        self.here, self.parts, self.count = parts[0].here, parts, sum(part.count for part in parts)
        self.weighed = self.tied = False

    def block(self, piece: range) -> Array:
        """Some of the directions, `(len(piece), x_size)`."""
        return np.concatenate([part.block(mine) for part, mine in self._shares(piece)])

    def entries(self, piece: range) -> Array | None:
        """The real of x that moves in each of some directions; None where several do."""
        found = [entries for part, mine in self._shares(piece) if (entries := part.entries(mine)) is not None]
        return np.concatenate(found) if len(found) == len(self.parts) else None

    def _shares(self, piece: range) -> Iterator[tuple[Directions, range]]:
        """The share of a piece that belongs to each kind."""
        start = 0
        for part in self.parts:
            yield part, range(max(piece.start - start, 0), max(min(piece.stop - start, part.count), 0))
            start += part.count


def reals(x: Array) -> int:
    """Number of reals that a tensor counts as."""
    return x.size * (2 if x.dtype.kind == "c" else 1)


def flat(x: Array) -> Array:
    """A tensor as a vector of reals: real parts, then imaginary parts."""
    flat = x.reshape(-1)
    return np.concatenate([flat.real, flat.imag]) if x.dtype.kind == "c" else flat


def flat_stack(stack: Array) -> Array:
    flat = stack.reshape(stack.shape[0], -1) if stack.size else stack.reshape(stack.shape[0], 0)
    flat = np.concatenate([flat.real, flat.imag], axis=1) if stack.dtype.kind == "c" else flat
    return flat.astype(np.result_type(flat.dtype, np.float64), copy=False)


def shaped(stack: Array, like: Array) -> Array:
    """The inverse of `flat_stack` for tensors like `like`."""
    if like.dtype.kind == "c":
        stack = stack[:, : like.size] + 1j * stack[:, like.size :]
    return stack.reshape(len(stack), *like.shape)


PROJECTIONS = 5  # random directions of each side of a directional check: see `missed` for what that sees
DOT_TESTS = 2  # of each side where every node is checked on its own
_POOLED = 1 << 16  # numbers from which on they are copied from a pool
_POOL = 1048573  # its length, a prime: where its numbers come again, no axis of a tensor comes again with them
SHARE = 4  # of the memory: what the directions of one x may take
_NARROW = 16  # times as many probes go on together, as long as they are box stacks
_LARGE = 32  # bytes of whole stacks for an entry that box stacks may hold: a quarter of them
_FEWEST = 16  # entries of a tensor whose boxes are small beside it
_PROBE, _HELD = 1 << 10, 64  # bytes of a probe of a box stack: of what is known of it, and of each entry
_UNIT_STEP = 1e7  # operations of all probes from which on a step takes far longer than to find its boxes
_CALLS = 4  # times as many calls make a step of box stacks
_FOLLOWED = 4  # entries of x that are followed, for all of them
_STEP = 1e4  # operations that a step counts as for each probe, however little it computes
_UNKNOWN = (*FAILURES, Crowded, MemoryError)


def directions_within(size: int, count: int, memory: int) -> int:
    """Number of directions that are drawn of a tensor of so many bytes: `count`, fewer where memory is short."""
    return max(1, min(count, memory // max(SHARE * size, 1)))


def gaussian(rng: np.random.Generator, count: int, size: int) -> Array:
    """Normal random numbers `(count, size)`; of large ones each row is a stretch of a pool, which `rng` chooses."""
    if count * size < _POOLED:
        return rng.normal(size=(count, size))
    drawn, pool = np.empty((count, size)), _pool()
    for row, start in zip(drawn, rng.integers(_POOL, size=count), strict=True):
        row[: _POOL - start] = pool[start : start + size]
        for here in range(_POOL - start, size, _POOL):
            row[here : here + _POOL] = pool[: size - here]
    return drawn


@cache
def _pool() -> Array:
    """Normal random numbers, drawn once: to copy them takes a fortieth of the time that drawing takes."""
    return np.random.default_rng(0).normal(size=_POOL)


def spread(rng: np.random.Generator, size: int, count: int) -> Array:
    """Some numbers below `size`, one drawn from each of `count` equal stretches; all of them where they are few."""
    if count >= size:
        return np.arange(size)
    edges = np.linspace(0, size, count + 1).astype(np.int64)
    return np.asarray(rng.integers(edges[:-1], edges[1:]), np.int64)


class Room(NamedTuple):
    """Limits of box stacks: how many `probes` may be whole at once, and how many `entries` they hold until then."""

    probes: int
    entries: int


def wanted_room(program: Program, x: Array, count: int, bytes_per_probe: int, budget: Budget) -> Room | None:
    """The room for a box of each of some entries of x; None where they are worth no box stack."""
    if x.size < _FEWEST or count * forward_work(program) < _UNIT_STEP * len(program.steps) or _whole_at_once(program):
        return None
    probes = budget.chunk(bytes_per_probe, program.worth)
    return Room(probes, probes * bytes_per_probe // _LARGE)


def _whole_at_once(program: Program) -> bool:
    """True if no step that reads a probe can work on its box."""
    probes = frozenset(program.probes)
    return all(step.op.box_rule is None for _, step in program.steps if not probes.isdisjoint(step.operands))


def bytes_each(bytes_per_probe: int, entries: float = math.inf) -> int:
    """Memory that a probe of a box stack counts as, which is known to hold at most so many entries of a tensor."""
    return int(max(min(bytes_per_probe // _NARROW, _PROBE + _HELD * entries), 1))


def unit_tangents(x: Array, places: Array, room: Room) -> BoxStack:
    """Unit tangents: of each probe one of the reals of x, `(P,)`; of a complex x the imaginary parts come second."""
    return _box_stack(x, places, _parts(x, places, 1j), None, room)


def unit_cotangents(y: Array, places: Array, room: Room) -> BoxStack:
    """Cotangents that pick one of the reals of y each: 1 a real part, -i an imaginary one."""
    return _box_stack(y, places, _parts(y, places, -1j).astype(y.dtype), None, room)


def moved_entries(x: Array, places: Array, offsets: Array, room: Room) -> BoxStack:
    """x, of which each probe moves one of the reals by an offset."""
    moved = x.reshape(-1)[places % x.size] + _parts(x, places, 1j) * offsets
    return _box_stack(x, places, moved.astype(x.dtype), x, room)


def _parts(x: Array, places: Array, imaginary: complex) -> Array:
    """1 for each place of a real part, another number for each of an imaginary one."""
    return np.ones(len(places)) if x.dtype.kind != "c" else np.where(places < x.size, 1, imaginary)


def _box_stack(x: Array, places: Array, entries: Array, base: Array | None, room: Room) -> BoxStack:
    box, count = tuple(Span(start, 1) for start in np.unravel_index(places % x.size, x.shape)), len(places)
    return BoxStack(entries.reshape(-1, *(1,) * x.ndim), box, np.arange(count), count, x.shape, base, *room)


class Reach(NamedTuple):
    """Operations of a probe of one entry of x, the most entries of a tensor that it moves, and those of all tensors."""

    work: float
    entries: float
    moved: float


def soon(program: Program, room: Room | None) -> float:
    """Number of probes done in a second at most, as predicted; with `room` they are box stacks of single entries."""
    return OPERATIONS / max(1.0, forward_work(program) if room is None else reach(program).work)


def enough(program: Program, room: Room | None) -> int:
    """Number of probes from which on computing takes far longer than calling kernels; `room` as in `soon`."""
    if room is None or (moved := reach(program).moved) == math.inf:
        return program.worth
    return max(program.worth, int(_CALLS * BUSY * len(program.steps) // (8 * moved)))


@once
def reach(program: Program) -> Reach:
    """All that a probe of one entry of x takes; of the whole run where it reaches all, or nobody can tell soon."""
    whole = Reach(forward_work(program), math.inf, math.inf)
    x = program.x
    if not program.analytic or x.size < _FOLLOWED or 2 * _FOLLOWED * whole.work > SOON:
        return whole
    try:
        found = _followed(program, x.size)
    except _UNKNOWN:
        return whole
    return found if found.work < whole.work else whole


def _followed(program: Program, size: int) -> Reach:
    """The same of some entries, from the first of x to the last."""
    (x,), values = program.probes, program.tape.values
    room = Room(0, _FOLLOWED * program.bytes_per_probe() // _LARGE)
    live: dict[str, Stack] = {x: unit_tangents(values[x], np.linspace(0, size - 1, _FOLLOWED).astype(int), room)}
    pushforward, work = Pushforward(program.tape), 0.0
    most = moved = max(1.0, _held(live[x]))
    with np.errstate(all="ignore"):
        for position, (index, step) in enumerate(program.steps):
            try:
                made = pushforward.through(index, step, live)
            except Crowded:  # from here on probes are whole
                rest = sum(step_work(program.tape, later) for _, later in program.steps[position:])
                return Reach(work + rest, math.inf, math.inf)
            given = {n: live[n] for n in step.operands if n in live}
            read = max((values.like(n).size for n in step.operands if n), default=0)
            summed = read > sum(values[n].size for n in made)  # which costs as much as it reads, a product as it makes
            work += _STEP + _share(given if summed else made, values) * step_work(program.tape, step)
            live.update(made)
            moved += sum(map(_held, made.values()))
            most = max(most, *map(_held, made.values()))
            for name in program.dies.get(position, ()):
                live.pop(name, None)
    return Reach(work, most, moved)


@once
def taken(program: Program) -> Array | None:
    """The reals of x that anything is made of, `(x_size,)`: those that selections take, behind steps that move entries
    about; None where all may be.

    A row of an embedding that no index names is no operand of anything: no probe of it moves anything.  Entries of x
    are sent through all that moves them, numbered from 1, so that 0 is none of them.
    """
    if not any(step.op.cost == "picks" for _, step in program.steps):
        return None
    x, values = program.x, program.tape.values
    number = np.int32 if x.size < np.iinfo(np.int32).max else np.int64
    places = {program.probes[0]: np.arange(1, x.size + 1, dtype=number).reshape(x.shape)}
    found = np.zeros(x.size + 1, bool)
    for position, (_, step) in enumerate(program.steps):
        try:
            places.update(_moved(step, places, values))
        except _UNKNOWN:
            for name in {*step.operands, *step.statics} & places.keys():
                found[places[name]] = True
        if 2 * np.count_nonzero(found) > x.size:
            return None
        for name in program.dies.get(position, ()):
            places.pop(name, None)
    for name in {*program.outputs, *program.tape.guards} & places.keys():
        found[places[name]] = True
    return found[1:] if x.dtype.kind != "c" else np.tile(found[1:], 2)


def _moved(step: Step, places: Mapping[str, Array], values: TapeValues) -> dict[str, Array]:
    """Places to which a step moves entries that it does nothing else to; TypeError of a step that does."""
    given = [n for n in step.operands if n in places]
    if not given and places.keys().isdisjoint(step.statics):
        return {}
    chooses = any(n in places for n, selects in zip(step.operands, selecting(step), strict=True) if selects)
    if step.op.sparsity is not moved or chooses or not places.keys().isdisjoint(step.statics):
        raise TypeError
    operands = [
        places[n] if n in places else values[n] if n and selects else np.zeros(values[n].shape, int) if n else None
        for n, selects in zip(step.operands, selecting(step), strict=True)
    ]
    made = step.op.forward(*operands, **step.metadata)
    results = dict(zip(step.node.outputs, made if step.op.many else (made,), strict=False))
    if any(y.dtype.kind != "i" or y.shape != values[n].shape for n, y in results.items() if n):
        raise TypeError
    return {n: y for n, y in results.items() if n}


def _held(stack: Stack) -> float:
    """Entries of a tensor that each probe holds."""
    return (stack.values if isinstance(stack, BoxStack) else stack).size / _FOLLOWED


def _share(stacks: Mapping[str, Stack], values: TapeValues) -> float:
    """The share of its tensor that each probe holds, the largest of some."""
    return max((_held(stack) / max(values[n].size, 1) for n, stack in stacks.items()), default=0.0)
