"""Running a stack of probes in chunks, and the result of a stack.

A stack is cut into chunks that fit the memory budget, and the chunks run on all cores (`in_chunks`): on threads, or in
forked processes, since what takes seconds in Python itself uses all cores only so.  Such a process starts as a copy of
this one, so that nothing has to be sent to it; its results come back through a pipe, and it waits until each is taken.

A `StackResult` holds the outputs and, as digests, the discrete decisions taken on the way: a derivative exists on a
piece of a model, and only its decisions tell which piece a probe is on, never its numbers.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial, reduce
from itertools import cycle, islice, pairwise
from threading import current_thread, local, main_thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gradcheck_cli import native
from gradcheck_cli.errors import sendable, unwarned
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.graph.memory import allowed
from gradcheck_cli.op.box_rules import Restricted
from gradcheck_cli.op.boxes import BoxStack, Stack, in_any_entry, windows
from gradcheck_cli.settings import Settings

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor
    from multiprocessing.connection import Connection

    from gradcheck_cli.autodiff.tape import Step
    from gradcheck_cli.engine.complex_step import Pushforward


Result = TypeVar("Result")
_CACHED = 16 << 20  # bytes: larger chunks leave the caches, and malloc gives their arrays back to the system each time
_CHUNK_BYTES = 64 << 20  # most bytes of a chunk whose single steps are small
_ALONE_BYTES = 256 << 10  # a smaller stack is done before another thread has woken up
_LEARNED = (32 << 20) - (64 << 10)  # bytes: the largest threshold that glibc's malloc adapts to
_LANES = 2  # as many as this share a stack even where one runs alone, so that both get the same bits
_SHARED = 4  # a thread is worth a quarter of `least` probes; with fewer, threads wait for the interpreter's lock
_PATIENCE = 0.2  # seconds between looks at a limit of time
_LASTING = 1  # seconds from which on processes are worth more than they cost
MANY = 1 << 20  # added to `Decisions.places` for each changed entry of a discrete result
_ODD = np.uint64(0x9E3779B97F4A7C15)


def _ignore(done: int, total: int) -> None:
    pass


class Budget(Struct, frozen=True):
    """Limits of a run: bytes of working memory and threads.  `progress(done, total)` is called after each chunk."""

    memory: int = 2 << 30
    jobs: int = os.cpu_count() or 1
    progress: Callable[[int, int], None] = _ignore

    @classmethod
    def within(cls, settings: Settings, jobs: int = 0) -> Budget:
        """The limits that settings give, with fewer threads if need be."""
        return cls(allowed(settings.memory_limit), jobs or settings.jobs)

    def chunk(self, bytes_per_probe: int, least: int = 1) -> int:
        """Number of probes that one thread runs at once, if memory allows at least `least` of them.

        With fewer than `least` probes, Python's overhead for each step outweighs the computation.
        """
        size, room = max(bytes_per_probe, 1), min(_CHUNK_BYTES, self.memory // (2 * max(self.jobs, _LANES)))
        return max(1, min(max(_CACHED // size, least), room // size))


def in_chunks(
    run: Callable[[range], Result],
    count: int,
    bytes_per_probe: int,
    budget: Budget,
    least: int = 1,
    most: float = math.inf,
    tally: Counter[str] | None = None,
) -> Iterator[tuple[range, Callable[[], Result]]]:
    """Yields `(probes, result)` for consecutive ranges of `range(count)`, in order; `result()` is `run(probes)`.

    least  number of probes below which Python's overhead for each step outweighs the computation
    most   number of probes after which limits of time are looked at again: those of a second
    tally  all that `run` changes; what takes long may run in processes then
    """
    _warm()
    alone = _here.busy or count * bytes_per_probe <= _ALONE_BYTES
    lanes = 1 if alone else max(1, min(max(budget.jobs, _LANES), _SHARED * count // least))
    pieces = _shares(count, int(max(1, min(budget.chunk(bytes_per_probe, least), most))), lanes)
    jobs = min(budget.jobs, lanes)
    if len(pieces) <= 1 or jobs == 1:
        # stacks inside are cut as they are on threads; a lone piece leaves the cores to what runs inside
        work = partial(_alone, run) if lanes > 1 and len(pieces) > 1 else run
        for piece in pieces:
            yield piece, partial(work, piece)
            budget.progress(piece.stop, count)
        return
    if tally is not None and count > _LASTING * most and _may_fork():
        results = forked(partial(_alone, run), pieces, jobs, tally)
    else:
        results = _threaded(run, pieces, jobs)
    for piece, result in results:
        yield piece, result
        budget.progress(piece.stop, count)


def _shares(count: int, most: int, jobs: int) -> Sequence[range]:
    """Ranges of nearly equal size, of at most `most` probes, in a number that `jobs` divides where possible."""
    rounds = -(-count // (most * jobs))
    size = max(1, -(-count // (rounds * jobs))) if count else 1
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def _threaded(
    run: Callable[[range], Result], pieces: Sequence[range], jobs: int
) -> Iterator[tuple[range, Callable[[], Result]]]:
    """Yields the results of the pieces, in order, from `jobs` threads."""
    from concurrent.futures import wait

    crew, rest = _crew(jobs), iter(pieces)
    waiting = deque((piece, crew.submit(_alone, run, piece)) for piece in islice(rest, 2 * jobs))
    try:
        while waiting:
            piece, future = waiting[0]
            yield piece, future.result
            waiting.popleft()
            waiting.extend((piece, crew.submit(_alone, run, piece)) for piece in islice(rest, 1))
    finally:
        wait([future for _, future in waiting if not future.cancel()])


def shared_out(
    run: Callable[[int, Budget], Result], count: int, budget: Budget, *, forks: bool = True
) -> Iterator[Result]:
    """Yields `run(0, budget)`, `run(1, budget)`, ... in order: once they have lasted, by processes that share the rest.

    Results of a process are pickled, all else that it does is lost, and its budget tells no progress: a terminal is
    written by one process, and a lock that a thread holds where it is forked stays locked.
    """
    begun, quiet = time.monotonic(), replace(budget, progress=_ignore)
    work = partial(_alone, lambda piece: run(piece.start, quiet))
    for number in range(count):
        lasting = time.monotonic() - begun > _LASTING
        if forks and 1 < budget.jobs < count - number and lasting and _may_fork():
            pieces = [range(i, i + 1) for i in range(number, count)]
            tick = partial(budget.progress, number, count)
            yield from (result() for _, result in forked(work, pieces, budget.jobs, Counter(), tick))
            return
        yield run(number, budget)


def _may_fork() -> bool:
    """True where a process with idle threads may fork, in its main thread, unless it is a daemon."""
    from multiprocessing import current_process  # seldom needed

    alone = current_thread() is main_thread()
    return sys.platform == "linux" and alone and not current_process().daemon


def _alone(run: Callable[[range], Result], piece: range) -> Result:
    """Runs a piece on a pool thread, with kernels that start no further threads."""
    _here.busy = True
    try:
        with native.single_threaded(), np.errstate(all="ignore"):  # each thread has an errstate of its own
            return run(piece)
    finally:
        _here.busy = False


def forked(
    run: Callable[[range], Result],
    pieces: Sequence[range],
    jobs: int,
    tally: Counter[str],
    tick: Callable[[], None] = lambda: None,
) -> Iterator[tuple[range, Callable[[], Result]]]:
    """Yields the results of the pieces, in order, from `jobs` processes, which take turns.

    What they add to `tally` is added here.  While a result is waited for, `tick` is called, which may raise.
    """
    workers: list[_Worker[Result]] = []

    def end() -> None:
        while workers:
            workers.pop().end()

    def result(worker: _Worker[Result], piece: range) -> Result:
        try:
            return worker.result(piece, tick)
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
        self, run: Callable[[range], Result], pieces: Sequence[range], tally: Counter[str], others: list[Connection]
    ) -> None:
        from multiprocessing import get_context  # seldom needed

        context = get_context("fork")
        self.run, self.tally = run, tally
        self.answers, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_serve, args=(run, pieces, tally, theirs, [*others, self.answers]))
        with unwarned():
            self.process.start()
        theirs.close()

    def result(self, piece: range, tick: Callable[[], None]) -> Result:
        """The next result, which is that of `piece`."""
        try:
            while not self.answers.poll(_PATIENCE):
                tick()
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
    run: Callable[[range], Any],
    pieces: Sequence[range],
    tally: Counter[str],
    answers: Connection,
    others: list[Connection],
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


class _Here(local):
    """Thread-local flag: this thread runs chunks beside other threads."""

    busy = False


_here = _Here()


@cache
def _crew(size: int) -> ThreadPoolExecutor:
    """A thread pool that is kept: starting threads costs more than many a chunk."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(size, "gradcheck")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_crew.cache_clear)  # a forked child has none of the threads


@cache
def _warm() -> None:
    """Makes malloc keep the pages of large arrays that are freed.

    Otherwise the system takes and clears them again for each result of each chunk, and threads wait for one another.
    """
    np.empty(_LEARNED, np.uint8)


class Decisions(Struct, frozen=True):
    """Discrete decisions of each probe that differ from those of the point: digests, three arrays `(P,)`, and steps.

    kind     equal for probes that take the same decisions, 0 for the decisions of the point
    places   number of places where a probe decides differently from the point; MANY or more if a discrete result differs
    where    equal for probes that decide differently from the point at the same places
    crossed  booleans `(P,)` for each step of the tape at which some probe decides differently from the point; a probe
             that cannot run at all is crossed at step -1
    """

    kind: Array
    places: Array
    where: Array
    crossed: dict[int, Array] = field(default_factory=dict)

    @classmethod
    def none(cls, count: int) -> Decisions:
        """Digests of probes that decide like the point."""
        return cls(np.zeros(count, np.uint64), np.zeros(count, np.int64), np.zeros(count, np.uint64))

    @classmethod
    def joined(cls, parts: Sequence[Decisions]) -> Decisions:
        """Decisions of several stacks as one."""
        stops = np.cumsum([0, *(len(part.kind) for part in parts)])
        whole = cls.none(stops[-1])
        for part, (start, stop) in zip(parts, pairwise(stops), strict=True):
            whole.add(slice(start, stop), part)
        return whole

    def part(self, rows: slice) -> Decisions:
        """Decisions of some probes."""
        crossed = {step: changed[rows] for step, changed in self.crossed.items() if changed[rows].any()}
        return Decisions(self.kind[rows], self.places[rows], self.where[rows], crossed)

    def add(self, rows: Array | slice, own: Decisions) -> None:
        """Adds the decisions of the probes `rows`."""
        self.kind[rows] += own.kind
        self.places[rows] += own.places
        self.where[rows] += own.where
        for step, changed in own.crossed.items():
            self.crossed.setdefault(step, np.zeros(len(self.kind), bool))[rows] |= changed

    def note(self, index: int, stack: Array, changed: Array, discrete: bool) -> None:
        """Adds the decisions of step `index`: `stack` is `(P, n)`, `changed` marks entries that differ from the point's."""
        rows, places = np.nonzero(changed)  # few, in the order of the probes
        self.note_at(index, rows, places, stack[rows, places], discrete)

    def note_at(self, index: int, rows: Array, places: Array, values: Array, discrete: bool) -> None:
        """The same by the differing entries alone: the probe of each, in order, its place among the n, and its value."""
        numbers = values.astype(np.float64) if values.dtype != object else np.ones(len(rows))
        factor, here = _digest(places, 2 * index), _digest(places, 2 * index + 1)
        probes, starts = np.unique(rows, return_index=True)
        self.crossed.setdefault(index, np.zeros(len(self.kind), bool))[probes] = True
        self.kind[probes] += np.add.reduceat(_mixed(numbers.view(np.uint64) * _ODD) * factor + here, starts)
        self.where[probes] += np.add.reduceat(here, starts)
        self.places[probes] += (MANY if discrete else 1) * np.diff(starts, append=len(rows))


def _digest(places: Array, number: int) -> Array:
    """An odd 64-bit number for each place, different for each `number`."""
    return _mixed(places.astype(np.uint64) * _ODD + np.uint64(number)) | np.uint64(1)


def _mixed(bits: Array) -> Array:
    """SplitMix64's mixing of 64 bits: https://doi.org/10.1145/2660193.2660195."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


def deviating(
    pushforward: Pushforward, step: Step, live: Mapping[str, Stack], results: Sequence[Stack],
    boxed: tuple[BoxStack, Array] | None,
) -> Array:  # fmt: skip
    """The probes, in order, that may take a discrete decision different from that of the point.

    `boxed` is the branch of the step in boxes, with a mask of what differs; without it any probe may take another.
    """
    values = pushforward.tape.values
    made = ((y, values[name]) for name, y in zip(step.node.outputs, results, strict=False) if name)
    found = [_differing(y, here) for y, here in made if not is_inexact(here.dtype)]
    if step.op.branch is not None:
        count = next(live[n].shape[0] for n in step.operands if n in live)
        found.append(np.arange(count) if boxed is None else boxed[0].probes[in_any_entry(boxed[1])])
    return reduce(np.union1d, found, np.zeros(0, np.int64))


def _differing(result: Stack, here: Array) -> Array:
    """The probes whose result differs from that at the point."""
    if not isinstance(result, BoxStack):
        return np.flatnonzero(in_any_entry(result != here))
    return result.probes[in_any_entry(result.values != windows(here, result.box, len(result.probes)))]


def branch_in_boxes(pushforward: Pushforward, step: Step, live: Mapping[str, Stack]) -> tuple[BoxStack, Array] | None:
    """The branch of a step in boxes, and a mask of what differs from that of the point; None where boxes do not tell."""
    probed, branch = [live[n] for n in step.operands if n in live], step.op.branch
    boxed = all(isinstance(x, BoxStack) and x.base is not None for x in probed)
    if branch is None or not boxed or step.op.box_rule is None or not pushforward.finite(step.operands):
        return None  # NaN differs from itself
    restricted = Restricted(step.op.box_rule, branch, step.op.batching, step.metadata, pushforward.shapes(step))
    return restricted.differing([live.get(n, pushforward.tape.values[n]) if n else None for n in step.operands])


class StackResult(Struct, frozen=True):
    """The result of a stack of probes: an array `(P, *shape)` for each output, NaN of a probe that cannot run at all, and
    the decisions that were taken."""

    outputs: tuple[Array, ...]
    decisions: Decisions

    @property
    def crossed(self) -> Mapping[int, Array]:
        """Probes that crossed a branch, by step of the tape."""
        return self.decisions.crossed

    def any_crossed(self, count: int) -> Array:
        """Mask `(P,)` of the probes that crossed a branch."""
        return any_of(self.crossed, count)


def gathered(parts: Sequence[StackResult]) -> StackResult:
    """One result of several, for consecutive parts of a stack."""
    outputs = tuple(np.concatenate(column) for column in zip(*(part.outputs for part in parts), strict=True))
    return StackResult(outputs, Decisions.joined([part.decisions for part in parts]))


def any_of(by_step: Mapping[int, Array], count: int) -> Array:
    """Mask `(count,)` of the rows that crossed a branch at any step of `by_step`, whose arrays are `(count,)`."""
    return np.logical_or.reduce([np.zeros(count, bool), *by_step.values()])
