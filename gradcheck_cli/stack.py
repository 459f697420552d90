"""Probes by the thousand: a stack is cut into chunks that fit the memory budget, and the chunks run on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gradcheck_cli import native

Result = TypeVar("Result")
_CHUNK_BYTES = 48 << 20  # larger chunks leave the caches and gain nothing
_ALONE_BYTES = 256 << 10  # less than this is done sooner than a thread starts


def _ignore(done: int, total: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may use: bytes of working memory and threads; `progress(done, total)` hears of what is done."""

    memory: int = 2 << 30
    jobs: int = os.cpu_count() or 1
    progress: Callable[[int, int], None] = _ignore

    def chunk(self, bytes_per_probe: int) -> int:
        """How many probes run at once on each thread."""
        return max(1, min(_CHUNK_BYTES, self.memory // (2 * self.jobs)) // max(bytes_per_probe, 1))


def in_chunks(
    run: Callable[[range], Result], count: int, bytes_per_probe: int, budget: Budget
) -> Iterator[tuple[range, Result]]:
    """`run` over `range(count)` in pieces, in order: the probes of a piece with what it gives."""
    size, jobs = budget.chunk(bytes_per_probe), budget.jobs if count * bytes_per_probe > _ALONE_BYTES else 1
    if count > 1 and size * jobs > count:
        size = -(-count // jobs)  # an even share for every thread
    pieces = [range(start, min(start + size, count)) for start in range(0, count, size)]
    if len(pieces) <= 1 or jobs == 1:
        for piece in pieces:
            yield piece, run(piece)
            budget.progress(piece.stop, count)
        return
    yield from _threaded(run, pieces, count, budget)


def _threaded(
    run: Callable[[range], Result], pieces: Sequence[range], count: int, budget: Budget
) -> Iterator[tuple[range, Result]]:
    def alone(piece: range) -> Result:
        with native.single_threaded(), np.errstate(all="ignore"):  # of the thread's own
            return run(piece)

    with ThreadPoolExecutor(budget.jobs) as pool:
        waiting = [(piece, pool.submit(alone, piece)) for piece in pieces[: 2 * budget.jobs]]
        rest = iter(pieces[2 * budget.jobs :])
        try:
            while waiting:
                piece, future = waiting.pop(0)
                yield piece, future.result()
                budget.progress(piece.stop, count)
                waiting.extend((p, pool.submit(alone, p)) for p in [next(rest, None)] if p is not None)
        finally:
            for _, future in waiting:
                future.cancel()
