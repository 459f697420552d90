"""Stacks in which each probe moves a single real: patches of one entry each, where enough is computed from them."""

from __future__ import annotations

import math
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.cost import forward_work
from gradcheck_cli.op.boxes import Patch, Span

_NARROW = 16  # times as many probes go on together, as long as they are patches
_LARGE_STACK = 32  # bytes of whole stacks for an entry that patches may hold: a quarter of them
_FEWEST = 16  # entries of a tensor whose boxes are small beside it
_PROBE, _HELD = 1 << 10, 64  # bytes of a probe that is a patch: of what is known of it, and of each entry
_UNIT_STEP = 1e7  # operations of all probes from which on a step takes far longer than to find its boxes
_works: WeakKeyDictionary[Program, float] = WeakKeyDictionary()


class Room(NamedTuple):
    """What patches have: how many `probes` may be whole at once, and how many `entries` they hold until then."""

    probes: int
    entries: int


def wanted_room(program: Program, x: Array, count: int, bytes_per_probe: int, budget: Budget) -> Room | None:
    """The room for a patch of each of some entries of x; None where they are worth no patches."""
    if x.size < _FEWEST or count * work(program) < _UNIT_STEP * len(program.steps):
        return None
    probes = budget.chunk(bytes_per_probe, program.worth)
    return Room(probes, probes * bytes_per_probe // _LARGE_STACK)


def bytes_each(bytes_per_probe: int, room: Room | None, entries: float = math.inf) -> int:
    """Memory that a probe counts as; `entries` is how many it is known to hold at most, on the way and at the end."""
    if room is None:
        return bytes_per_probe
    return int(max(min(bytes_per_probe // _NARROW, _PROBE + _HELD * entries), 1))


def tangents(x: Array, reals: Array, room: Room) -> Patch:
    """Unit tangents: of each probe one of the reals of x, `(P,)`; of a complex x the imaginary parts come second."""
    parts = np.ones(len(reals)) if x.dtype.kind != "c" else np.where(reals < x.size, 1, 1j)
    return _patch(x, reals, parts, None, room)


def cotangents(y: Array, reals: Array, room: Room) -> Patch:
    """Cotangents that pick one of the reals of y each: 1 a real part, -i an imaginary one."""
    parts = np.ones(len(reals)) if y.dtype.kind != "c" else np.where(reals < y.size, 1, -1j)
    return _patch(y, reals, parts.astype(y.dtype), None, room)


def values(x: Array, reals: Array, offsets: Array, room: Room) -> Patch:
    """x, of which each probe moves one of the reals by an offset."""
    here = x.reshape(-1)[reals % x.size]
    moved = here + (offsets if x.dtype.kind != "c" else np.where(reals < x.size, 1, 1j) * offsets)
    return _patch(x, reals, moved.astype(x.dtype), x, room)


def _patch(x: Array, reals: Array, entries: Array, base: Array | None, room: Room) -> Patch:
    box = tuple(Span(start, 1) for start in np.unravel_index(reals % x.size, x.shape))
    stacked = entries.reshape(-1, *(1,) * x.ndim)
    return Patch(stacked, box, np.arange(len(reals)), len(reals), x.shape, base, room.probes, room.entries)


def work(program: Program) -> float:
    """Operations of one probe, counted once."""
    if program not in _works:
        _works[program] = forward_work(program)
    return _works[program]
