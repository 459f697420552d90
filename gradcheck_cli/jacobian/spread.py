"""The cost of probing a single entry of x, where it reaches little of the model: a few are followed, and counted.

Stacks in which each probe moves a single real are box stacks of one entry each, where that saves enough work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from gradcheck_cli.autodiff.tape import Step
from gradcheck_cli.autodiff.weights import TapeValues
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.jvp import Pushforward
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.cost import OPERATIONS, SOON, forward_work, step_work
from gradcheck_cli.jacobian.pattern import selecting
from gradcheck_cli.op.batching import Ragged
from gradcheck_cli.op.boxes import BoxStack, Crowded, Span, Stack
from gradcheck_cli.op.sparsity import moved

_NARROW = 16  # times as many probes go on together, as long as they are box stacks
_LARGE = 32  # bytes of whole stacks for an entry that box stacks may hold: a quarter of them
_FEWEST = 16  # entries of a tensor whose boxes are small beside it
_PROBE, _HELD = 1 << 10, 64  # bytes of a probe of a box stack: of what is known of it, and of each entry
_UNIT_STEP = 1e7  # operations of all probes from which on a step takes far longer than to find its boxes
_FOLLOWED = 4  # entries of x that are followed, for all of them
_STEP = 1e4  # operations that a step counts as for each probe, however little it computes
_UNKNOWN = (
    Crowded,
    Ragged,
    GradcheckError,
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    RuntimeError,
    MemoryError,
)


class Room(NamedTuple):
    """Limits of box stacks: how many `probes` may be whole at once, and how many `entries` they hold until then."""

    probes: int
    entries: int


def wanted_room(program: Program, x: Array, count: int, bytes_per_probe: int, budget: Budget) -> Room | None:
    """The room for a box of each of some entries of x; None where they are worth no box stack."""
    if x.size < _FEWEST or count * work(program) < _UNIT_STEP * len(program.steps):
        return None
    probes = budget.chunk(bytes_per_probe, program.worth)
    return Room(probes, probes * bytes_per_probe // _LARGE)


def bytes_each(bytes_per_probe: int, room: Room | None, entries: float = math.inf) -> int:
    """Memory that a probe counts as; `entries` is how many it is known to hold at most, on the way and at the end."""
    if room is None:
        return bytes_per_probe
    return int(max(min(bytes_per_probe // _NARROW, _PROBE + _HELD * entries), 1))


def tangents(x: Array, reals: Array, room: Room) -> BoxStack:
    """Unit tangents: of each probe one of the reals of x, `(P,)`; of a complex x the imaginary parts come second."""
    parts = np.ones(len(reals)) if x.dtype.kind != "c" else np.where(reals < x.size, 1, 1j)
    return _box_stack(x, reals, parts, None, room)


def cotangents(y: Array, reals: Array, room: Room) -> BoxStack:
    """Cotangents that pick one of the reals of y each: 1 a real part, -i an imaginary one."""
    parts = np.ones(len(reals)) if y.dtype.kind != "c" else np.where(reals < y.size, 1, -1j)
    return _box_stack(y, reals, parts.astype(y.dtype), None, room)


def values(x: Array, reals: Array, offsets: Array, room: Room) -> BoxStack:
    """x, of which each probe moves one of the reals by an offset."""
    here = x.reshape(-1)[reals % x.size]
    moved = here + (offsets if x.dtype.kind != "c" else np.where(reals < x.size, 1, 1j) * offsets)
    return _box_stack(x, reals, moved.astype(x.dtype), x, room)


def _box_stack(x: Array, reals: Array, entries: Array, base: Array | None, room: Room) -> BoxStack:
    box = tuple(Span(start, 1) for start in np.unravel_index(reals % x.size, x.shape))
    stacked = entries.reshape(-1, *(1,) * x.ndim)
    return BoxStack(stacked, box, np.arange(len(reals)), len(reals), x.shape, base, room.probes, room.entries)


def work(program: Program) -> float:
    """Operations of one probe, counted once."""
    if program not in _works:
        _works[program] = forward_work(program)
    return _works[program]


class Reach(NamedTuple):
    """Operations of a probe of one entry of x, and the most entries of a tensor that it moves."""

    work: float
    entries: float


_works: WeakKeyDictionary[Program, float] = WeakKeyDictionary()
_known: WeakKeyDictionary[Program, Reach] = WeakKeyDictionary()
_taken: WeakKeyDictionary[Program, Array | None] = WeakKeyDictionary()


def probe_work(program: Program) -> float:
    """Operations of a probe of one entry of x: of the whole run where it reaches all, or nobody can tell soon."""
    return reach(program).work


def reach(program: Program) -> Reach:
    """All that a probe of one entry of x takes; of the whole run where it reaches all, or nobody can tell soon."""
    if program not in _known:
        _known[program] = _reach(program)
    return _known[program]


def soon(program: Program, room: Room | None) -> float:
    """Number of probes done in a second at most, as predicted; with `room` they are box stacks of single entries."""
    return OPERATIONS / max(1.0, work(program) if room is None else probe_work(program))


def _reach(program: Program) -> Reach:
    whole = Reach(forward_work(program), math.inf)
    x = program.tape.values[program.probes[0]]
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
    live: dict[str, Stack] = {x: tangents(values[x], np.linspace(0, size - 1, _FOLLOWED).astype(int), room)}
    pushforward, work, most = Pushforward(program.tape), 0.0, 1.0
    with np.errstate(all="ignore"):
        for position, (index, step) in enumerate(program.steps):
            try:
                made = pushforward.through(index, step, live)
            except Crowded:  # from here on probes are whole
                rest = sum(step_work(program.tape, later) for _, later in program.steps[position:])
                return Reach(work + rest, math.inf)
            given = {n: live[n] for n in step.operands if n in live}
            shares = [
                _share(given, values),
                _share(made, values),
            ]  # a sum costs as much as it reads, a product as it makes
            reads = max((values.like(n).size for n in step.operands if n), default=0) > sum(
                values[n].size for n in made
            )
            work += _STEP + shares[0 if reads else 1] * step_work(program.tape, step)
            live.update(made)
            most = max(most, *(_held(stack) for stack in live.values()))
            for name in program.dies.get(position, ()):
                live.pop(name, None)
    return Reach(work, most)


def taken(program: Program) -> Array | None:
    """The reals of x that anything is made of, `(x_size,)`: those that selections take, behind steps that move entries
    about; None where all may be.

    A row of an embedding that no index names is no operand of anything: no probe of it moves anything.
    """
    if program not in _taken:
        selects = any(step.op.cost == "picks" for _, step in program.steps)
        _taken[program] = _taken_of(program) if selects else None
    return _taken[program]


def _taken_of(program: Program) -> Array | None:
    """The same, by entries of x sent through all that moves them: numbered from 1, so that 0 is none of them."""
    x, values = program.tape.values[program.probes[0]], program.tape.values
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
