"""Probes by the thousand: a stack is cut into chunks that fit the memory budget, and the chunks run on all cores.

What a stack of probes gives: values of the outputs, and how the discrete decisions on the way compare with the point's.

A derivative exists on a piece of a model; which piece a probe is on shows in its decisions alone, never in numbers.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from threading import local
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gradcheck_cli import native
from gradcheck_cli.graph import Array

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


Result = TypeVar("Result")
_CACHED = 16 << 20  # bytes: larger chunks leave the caches, and malloc gives their arrays back to the system each time
_CHUNK_BYTES = 64 << 20  # of chunks whose single steps are small
_ALONE_BYTES = 256 << 10  # less than this is done about as soon as another thread has woken up
_LEARNED = (32 << 20) - (64 << 10)  # bytes: the most that the threshold of glibc's malloc grows to
_SHARED = 4  # parts of the least worthwhile chunk, one for each thread, that still are: fewer fight for the interpreter


def _ignore(done: int, total: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may use: bytes of working memory and threads; `progress(done, total)` hears of what is done."""

    memory: int = 2 << 30
    jobs: int = os.cpu_count() or 1
    progress: Callable[[int, int], None] = _ignore

    def chunk(self, bytes_per_probe: int, least: int = 1) -> int:
        """How many probes run at once on each thread; `least` are worth what Python does for a step."""
        size, room = max(bytes_per_probe, 1), min(_CHUNK_BYTES, self.memory // (2 * self.jobs))
        return max(1, min(max(_CACHED // size, least), room // size))


def in_chunks(
    run: Callable[[range], Result],
    count: int,
    bytes_per_probe: int,
    budget: Budget,
    least: int = 1,
    most: float = math.inf,
) -> Iterator[tuple[range, Result]]:
    """`run` over `range(count)` in pieces, in order: the probes of a piece with what it gives.

    least  probes that are worth what Python does for a step
    most   probes after which limits of time are looked at again
    """
    _warm()
    alone = _here.busy or count * bytes_per_probe <= _ALONE_BYTES
    jobs = 1 if alone else max(1, min(budget.jobs, _SHARED * count // least))
    pieces = _shares(count, int(max(1, min(budget.chunk(bytes_per_probe, least), most))), jobs)
    if len(pieces) <= 1 or jobs == 1:
        for piece in pieces:
            yield piece, run(piece)
            budget.progress(piece.stop, count)
        return
    for piece, result in _threaded(run, pieces, jobs):
        yield piece, result
        budget.progress(piece.stop, count)


@cache
def _warm() -> None:
    """Let malloc learn that arrays of this size come and go: it keeps their pages from then on.

    Otherwise the system takes and clears them anew for each result of each chunk, and one thread waits for the other.
    """
    np.empty(_LEARNED, np.uint8)


def _shares(count: int, most: int, jobs: int) -> Sequence[range]:
    """Pieces of nearly one size, `most` probes at most, as many for each thread."""
    rounds = -(-count // (most * jobs))
    size = max(1, -(-count // (rounds * jobs))) if count else 1
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


class _Here(local):
    """Whether this thread is one of several that run chunks."""

    busy = False


_here = _Here()


@cache
def _crew(size: int) -> ThreadPoolExecutor:
    """Threads that wait for work: starting them costs more than many a chunk."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(size, "gradcheck")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_crew.cache_clear)  # a child has none of them


def _threaded(run: Callable[[range], Result], pieces: Sequence[range], jobs: int) -> Iterator[tuple[range, Result]]:
    """The pieces in order, on `jobs` threads."""
    from concurrent.futures import wait

    crew, rest = _crew(jobs), iter(pieces)
    waiting = deque((piece, crew.submit(_alone, run, piece)) for piece in islice(rest, 2 * jobs))
    try:
        while waiting:
            piece, future = waiting[0]
            yield piece, future.result()
            waiting.popleft()
            waiting.extend((piece, crew.submit(_alone, run, piece)) for piece in islice(rest, 1))
    finally:
        wait([future for _, future in waiting if not future.cancel()])


def _alone(run: Callable[[range], Result], piece: range) -> Result:
    """A piece on a thread among others: its kernels start no more of them."""
    _here.busy = True
    try:
        with native.single_threaded(), np.errstate(all="ignore"):  # of the thread's own
            return run(piece)
    finally:
        _here.busy = False


MANY = 1 << 20  # places at least where a result that is discrete itself changes
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Decisions:
    """Digests of all decisions of each probe, every one an array `(P,)`.

    kind    equal for probes that decide everything alike, 0 for the decisions of the point
    places  at how many places a probe decides otherwise than the point; from MANY on something discrete was computed
    where   equal for probes that decide otherwise at the same places
    """

    kind: Array
    places: Array
    where: Array

    @classmethod
    def none(cls, count: int) -> Decisions:
        """Those of probes that decide like the point."""
        return cls(np.zeros(count, np.uint64), np.zeros(count, np.int64), np.zeros(count, np.uint64))

    @classmethod
    def joined(cls, parts: Sequence[Decisions]) -> Decisions:
        """Those of several stacks as one."""
        columns = [(part.kind, part.places, part.where) for part in parts]
        return cls(*(np.concatenate(column) for column in zip(*columns, strict=True)))

    def add(self, rows: Array, own: Decisions) -> None:
        """Add what some probes decided."""
        self.kind[rows] += own.kind
        self.places[rows] += own.places
        self.where[rows] += own.where

    def note(self, index: int, stack: Array, changed: Array, discrete: bool) -> None:
        """Add what step `index` decided: `stack` is `(P, n)`, `changed` says where that differs from the point's."""
        rows, places = np.nonzero(changed)  # few, in the order of the probes
        numbers = stack[rows, places].astype(np.float64) if stack.dtype != object else np.ones(len(rows))
        factor, here = _digest(places, 2 * index), _digest(places, 2 * index + 1)
        probes, starts = np.unique(rows, return_index=True)
        self.kind[probes] += np.add.reduceat(_mixed(numbers.view(np.uint64) * _ODD) * factor + here, starts)
        self.where[probes] += np.add.reduceat(here, starts)
        self.places[probes] += (MANY if discrete else 1) * np.diff(starts, append=len(rows))


def _digest(places: Array, number: int) -> Array:
    """An odd number for each place, another one for every `number`."""
    return _mixed(places.astype(np.uint64) * _ODD + np.uint64(number)) | np.uint64(1)


def _mixed(bits: Array) -> Array:
    """SplitMix64's mixing of 64 bits: https://doi.org/10.1145/2660193.2660195."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a stack of probes gives: an array `(P, *shape)` for each output, and the branches they crossed.

    `crossed` has a row of booleans `(P,)` for each step of the tape at which a discrete decision of some probe
    differs from that of the point; probes that cannot run at all are NaN and crossed at step -1.
    """

    outputs: tuple[Array, ...]
    crossed: Mapping[int, Array]
    decisions: Decisions = field(default_factory=lambda: Decisions.none(0))

    def after(self, crossed: Mapping[int, Array], decisions: Decisions) -> Outcome:
        """The same with what was decided before, at earlier steps."""
        self.decisions.add(np.arange(len(decisions.kind)), decisions)
        return replace(self, crossed={**crossed, **self.crossed})

    def any_crossed(self, count: int) -> Array:
        """Whether each probe crossed a branch, shape `(P,)`."""
        return any_of(self.crossed, count)


def gathered(parts: Sequence[Outcome]) -> Outcome:
    """The outcome of probes that had to run in parts, or one by one."""
    outputs = tuple(np.concatenate(column) for column in zip(*(o.outputs for o in parts), strict=True))
    stops = np.cumsum([len(outcome.decisions.kind) for outcome in parts])
    crossed: dict[int, Array] = {}
    for outcome, stop in zip(parts, stops, strict=True):
        for index, change in outcome.crossed.items():
            crossed.setdefault(index, np.zeros(stops[-1], bool))[stop - len(change) : stop] = change
    return Outcome(outputs, crossed, Decisions.joined([outcome.decisions for outcome in parts]))


def any_of(by_step: Mapping[int, Array], count: int) -> Array:
    """Rows, of `count`, that crossed a branch at some step: any of `by_step`, whose arrays are `(count,)`."""
    return np.logical_or.reduce([np.zeros(count, bool), *by_step.values()])
