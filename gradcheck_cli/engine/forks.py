"""Chunks of probes in forked processes: what takes seconds in Python itself uses all cores only so.

A process starts as a copy of this one, so that nothing has to be sent to it; its results come back through a pipe, and it
waits until each is taken.  What a process that died has left undone is done here.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Generic, TypeVar

from gradcheck_cli.errors import sendable, unwarned

Result = TypeVar("Result")
Tally = Counter[str]


def forked(
    run: Callable[[range], Result], pieces: Sequence[range], jobs: int, tally: Tally
) -> Iterator[tuple[range, Callable[[], Result]]]:
    """Yields the results of the pieces, in order, from `jobs` processes, which take turns.

    What they add to `tally` is added here.
    """
    workers: list[_Worker[Result]] = []

    def end() -> None:
        while workers:
            workers.pop().end()

    def result(worker: _Worker[Result], piece: range) -> Result:
        try:
            return worker.result(piece)
        except BaseException:
            end()
            raise

    try:
        for number in range(jobs):
            workers.append(_Worker(run, pieces[number::jobs], tally, [worker.answers for worker in workers]))
        for piece, worker in zip(pieces, cycle([*workers]), strict=False):
            yield piece, partial(result, worker, piece)
    finally:
        end()


class _Worker(Generic[Result]):
    """A process that does some pieces, in order."""

    def __init__(
        self, run: Callable[[range], Result], pieces: Sequence[range], tally: Tally, others: list[Connection]
    ) -> None:
        context = get_context("fork")
        self.run, self.tally = run, tally
        self.answers, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_serve, args=(run, pieces, tally, theirs, [*others, self.answers]))
        with unwarned():
            self.process.start()
        theirs.close()

    def result(self, piece: range) -> Result:
        """The next result, which is that of `piece`."""
        try:
            value, counted, error = self.answers.recv()
        except (EOFError, OSError):
            return self.run(piece)
        self.tally.update(counted)
        if error is not None:
            raise error
        return value

    def end(self) -> None:
        """Ends the process, whatever it does."""
        self.answers.close()
        self.process.kill()
        self.process.join()
        self.process.close()


def _serve(
    run: Callable[[range], Any], pieces: Sequence[range], tally: Tally, answers: Connection, others: list[Connection]
) -> None:
    """Does the pieces in the forked process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the parent that is to stop, and ends this process
    for other in others:
        other.close()  # so that a process whose parent has died finds nobody at the other end
    with suppress(OSError):  # nobody reads any more
        for piece in pieces:
            tally.clear()
            try:
                answers.send((run(piece), tally, None))
            except OSError:
                raise
            except Exception as error:
                answers.send((None, tally, sendable(error)))
