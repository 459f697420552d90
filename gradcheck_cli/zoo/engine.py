"""Runs jobs, some at a time, each in a process of its own; gives the records of each one once, whatever becomes of it.

A loop waits for what children say, for their end and for the clock, and does nothing else: what is slow happens in
children, or in the thread that jobs come from.

Who may start: children whose predicted memory fits the machine together; one that fits nowhere runs alone.

Jobs as they are asked for, from a thread: fetching the next one may take a while, and nothing waits for it.

Ctrl-C, SIGTERM and SIGHUP as a flag, so that nothing is torn that is being written; and what wakes the driver up.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TypeAlias, TypeVar

from gradcheck_cli.errors import LimitError, UsageError
from gradcheck_cli.graph.memory import left
from gradcheck_cli.zoo import crash
from gradcheck_cli.zoo.child import Errand
from gradcheck_cli.zoo.job import Job, Limits, Listener, Silent, cores
from gradcheck_cli.zoo.processes import Running, calm, regroup, there_is_one, warm
from gradcheck_cli.zoo.shelf import adopted, clear

LEAST = 256 << 20  # bytes that a child may take without asking: any small model
_OF_A_FILE = 4.0  # bytes that reading takes, for each of the file
_KEPT = 0.1  # of what is left of the machine, for others


class Admission:
    """What is granted to each child, by its number."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.capacity = min(int((1 - _KEPT) * left()), limits.room or sys.maxsize)
        self.granted: dict[int, int] = {}

    def first(self, job: Job) -> int:
        """Bytes that a job is granted at first: what was predicted, else what its file asks for."""
        size = _OF_A_FILE * _size(os.path.join(job.folder, job.path))
        return self.bounded(max(LEAST, int(job.predicted_mb * (1 << 20)) or int(size)))

    def bounded(self, size: int) -> int:
        """A child that takes more than the limit is stopped, so it never has more."""
        return min(size, self.limits.memory)

    def fits(self, child: int, size: int) -> bool:
        """It can have so much beside all others, or there are no others."""
        others = [granted for other, granted in self.granted.items() if other != child]
        return not others or sum(others) + size <= self.capacity

    def grant(self, child: int, size: int) -> None:
        """It has so much from now on."""
        self.granted[child] = size

    def free(self, child: int) -> None:
        """It is gone."""
        self.granted.pop(child, None)


def _size(path: str) -> int:
    with suppress(OSError, ValueError):
        return os.stat(path).st_size
    return 0


T = TypeVar("T")  # a job, however it is wrapped


class Feed(Generic[T]):
    """The jobs of an iterable, fetched `ahead` of what was taken; `wake` is called when there is something new."""

    def __init__(self, jobs: Iterable[T], wake: Callable[[], None], ahead: int = 2) -> None:
        self.jobs, self.wake = jobs, wake
        self.ready: deque[T] = deque()
        self.room = threading.Semaphore(ahead)
        self.fetched = self.closed = False
        self.error: BaseException | None = None
        threading.Thread(target=self._fetch, name="jobs", daemon=True).start()

    @property
    def over(self) -> bool:
        """All were taken."""
        return self.fetched and not self.ready

    def take(self) -> T | None:
        """The next job if it is there; raises what the iterable raised."""
        if self.ready:
            self.room.release()
            return self.ready.popleft()
        if self.fetched and self.error is not None:
            raise self.error
        return None

    def close(self) -> None:
        """No more are fetched."""
        self.closed = True
        self.room.release()

    def _fetch(self) -> None:
        try:
            for job in self.jobs:
                self.room.acquire()
                if self.closed:
                    return
                self.ready.append(job)
                self.wake()
        except BaseException as error:  # raised where jobs are taken
            self.error = error
        self.fetched = True
        self.wake()


_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupts:
    """`asked` once a signal has come; a second one does not wait. `reader` is ready when something has happened."""

    def __init__(self) -> None:
        self.asked = False
        self.reader, self.writer = os.pipe()
        for end in (self.reader, self.writer):
            os.set_blocking(end, False)

    def wake(self) -> None:
        """Makes `reader` ready; from any thread."""
        with suppress(OSError):  # full: it is ready, or closed: nobody waits
            os.write(self.writer, b"\n")

    def awake(self) -> None:
        """It is not ready any more."""
        with suppress(OSError):
            while os.read(self.reader, 4096):
                pass

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self.wake()

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Signals are noted under it; where they are ignored, or not ours to handle, they stay as they are."""
        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
                if signal.getsignal(number) != signal.SIG_IGN:
                    before[number] = signal.signal(number, self._note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            writer, self.writer = self.writer, -1
            os.close(writer)
            os.close(self.reader)


Done: TypeAlias = Callable[[Job, list[dict[str, Any]]], None]
WORK = "gradcheck_cli.cli.zoo.child_check:records"  # what a child does with a job; it stands above this floor
_TICK, _SECOND = 0.1, 1.0
_PATIENCE = 5.0  # seconds for killed processes to go


def run(jobs: Iterable[Job], limits: Limits, done: Done, listen: Listener | None = None, work: str = WORK) -> None:
    """Calls `done` with each job and its records, as they end.

    `jobs` is read as there is room, in a thread of its own: it may fetch what it names.  Whatever `done` or `jobs` raise
    ends the run, and so do Ctrl-C and SIGTERM (KeyboardInterrupt): the children are killed.
    """
    if not there_is_one():
        raise UsageError(
            "many models at once need processes that fork, which this system has not; check them one by one"
        )
    Engine(limits, done, listen or Silent(), work).run(jobs)


class Engine:
    """One run: the children there are, and those that are about to go."""

    def __init__(self, limits: Limits, done: Done, listen: Listener, work: str) -> None:
        self.limits, self.done, self.listen, self.work = limits, done, listen, work
        self.context = get_context("forkserver")
        self.admission, self.interrupts = Admission(limits), Interrupts()
        self.selector = selectors.DefaultSelector()
        self.children: list[Running] = []
        self.leaving: list[Running] = []
        self.looked = self.regrouped = 0.0
        self.folders: set[Path] = set()  # of bundles

    def run(self, jobs: Iterable[Job]) -> None:
        """All of it."""
        with self.interrupts.heeded():
            self.selector.register(self.interrupts.reader, selectors.EVENT_READ, self.interrupts.awake)
            feed = Feed(jobs, self.interrupts.wake)
            try:
                warm()
                while self._fill(feed):
                    self._turn(_TICK)
                    if self.interrupts.asked:
                        raise KeyboardInterrupt
            finally:
                feed.close()
                self._end()

    def _fill(self, feed: Feed[Job]) -> bool:
        """Starts a child for each place and one that stands by; False where nothing is left to do."""
        while len(self.children) <= self.limits.jobs and (job := feed.take()) is not None:
            self._prepare(job)
            self._start(
                Errand(job, self.work, job.time(self.limits.timeout), self.limits.memory, self.admission.first(job))
            )
        self._admit(last=feed.over)
        return bool(self.children) or not feed.over

    def _prepare(self, job: Job) -> None:
        """Bundles of crashes in earlier runs get their names, before this one has any."""
        folder = crash.folder_of(job)
        if folder is not None and folder not in self.folders:
            self.folders.add(folder)
            adopted(folder)

    def _start(self, errand: Errand, records: Sequence[dict[str, Any]] = ()) -> None:
        """A child for an errand; `records` are those that it has already."""
        try:
            with calm():
                child = Running.start(errand, records, self.context)
        except (OSError, EOFError) as error:
            reason = LimitError(f"no process could be started for it: {error or 'its server has ended'}", code="GC603")
            self._give(errand.job, [*records, crash.record(errand.job, "", reason)])
            return
        self.children.append(child)
        self.selector.register(child.channel, selectors.EVENT_READ, partial(self._hear, child))
        self.selector.register(child.noise, selectors.EVENT_READ, partial(self._overhear, child))
        self.selector.register(child.process.sentinel, selectors.EVENT_READ, partial(self._ended, child))

    def _turn(self, timeout: float) -> None:
        """What has happened since, or nothing for a while."""
        for key, _ in self.selector.select(timeout):
            if self.selector.get_map().get(key.fd) is key:  # what came before may have ended it
                key.data()
        if (now := time.monotonic()) > self.looked + _TICK:
            self._watch(now)

    def _hear(self, child: Running) -> None:
        for kind, value in child.listen():
            if kind == "stage":
                self.listen.stage(child.errand.job, value)
        if child.ended:
            self._part(child)
            self._give(child.errand.job, child.records)
        elif child.silent:
            self._ignore(child.channel)

    def _overhear(self, child: Running) -> None:
        if not child.overhear():
            self._ignore(child.noise)

    def _ignore(self, end: Connection) -> None:
        """Nothing comes from there any more."""
        with suppress(KeyError):
            self.selector.unregister(end)

    def _ended(self, child: Running) -> None:
        """Its process is no more; what it has said to the end still counts."""
        child.process.join()
        if child in self.children:
            self._hear(child)
        if child in self.children:
            child.overhear()
            self._settle(child)
        self.selector.unregister(child.process.sentinel)
        self.leaving.remove(child)
        child.close()

    def _settle(self, child: Running) -> None:
        """A child that died: its record, and another child for the tasks that it had left."""
        self._part(child)
        job = child.errand.job
        size, seconds = round(child.most / (1 << 20), 1), round(time.monotonic() - child.began, 4)
        made = crash.record(job, child.name, child.failure(), duration_s=seconds, peak_rss_mb=size,
                            bundle=crash.bundle(job, child.pid))  # fmt: skip
        records = [*child.records, made]
        if child.left:
            self._start(replace(child.errand, first=child.left), records)
        else:
            self._give(job, records)

    def _part(self, child: Running) -> None:
        """It is done with, but for its process."""
        self.children.remove(child)
        self.leaving.append(child)
        self.admission.free(child.pid)
        self._ignore(child.channel)
        self._ignore(child.noise)
        child.kill()

    def _give(self, job: Job, records: list[dict[str, Any]]) -> None:
        self.done(job, records)
        self.listen.ended(job, records)

    def _watch(self, now: float) -> None:
        """Time and memory of all children; who belongs to whom is looked up once a second."""
        self.looked = now
        if told := now > self.regrouped + _SECOND:
            self.regrouped = now
            regroup(self.children)
        for child in self.children:
            size = child.weigh()
            child.look_at_the_clock(now)
            if told:
                self.listen.memory(child.errand.job, size)

    def _admit(self, *, last: bool) -> None:
        """Lets those go on who wait for memory that is there now, and begin whom there is a place for.

        Where all wait, the first of them gets what it wants; while some wait, nobody begins.
        """
        running = [child for child in self.children if not child.fresh]
        share = cores() if last and len(self.children) == 1 else max(1, cores() // self.limits.jobs)
        threads = self.limits.threads or share
        for child in running:
            size = self.admission.bounded(child.wants)
            if child.wants and (self.admission.fits(child.pid, size) or all(other.wants for other in running)):
                self._let_go(child, size, threads)
        for child in [child for child in self.children if child.fresh]:
            full = len(running) >= self.limits.jobs or any(other.wants for other in running)
            if not full and self.admission.fits(child.pid, child.errand.granted):
                self._let_go(child, child.errand.granted, threads)
                running.append(child)
                if not child.errand.first:
                    self.listen.started(child.errand.job)

    def _let_go(self, child: Running, size: int, threads: int) -> None:
        self.admission.grant(child.pid, size)
        child.let_go(threads)

    def _end(self) -> None:
        """No process is left; what was interrupted leaves nothing."""
        children = [*self.children, *self.leaving]
        for child in children:
            child.kill()
        deadline = time.monotonic() + _PATIENCE
        for child in children:
            child.process.join(max(0.0, deadline - time.monotonic()))
            if child in self.children:
                crash.forget(child.errand.job, child.pid)
            child.close()
        self.selector.close()
        for folder in self.folders:
            clear(folder)
