"""Probes by the thousand: a stack is cut into chunks that fit the memory budget, and the chunks run on all cores."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from threading import local
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from gradcheck_cli import native

if TYPE_CHECKING:  # brings logging, and small checks start no threads
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
