"""Runs jobs, several at a time, each alone in a process; each job gives its records once, even if its process dies.

One loop waits for messages of children, for their end and for the clock; everything slow happens in children, or in the
thread that fetches jobs (`Feed`).  Children start if their predicted memory fits into the machine (`Admission`).
Ctrl-C, SIGTERM and SIGHUP only set a flag, so that no file is left half written (`Interrupts`).
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

from gradcheck_cli.errors import GradcheckError, LimitError, UsageError
from gradcheck_cli.graph.memory import left
from gradcheck_cli.zoo import Job, JobListener, Limits, cores
from gradcheck_cli.zoo.child import Errand
from gradcheck_cli.zoo.processes import Running, calm, can_fork, regroup, warm
from gradcheck_cli.zoo.shelf import FOLDER, adopted, clear, dropped

LEAST = 256 << 20  # bytes that a child may take without asking, enough for any small model
WORK = "gradcheck_cli.cli.zoo.child_check:records"  # a child's function for a job, by name: it is on a higher floor
Done: TypeAlias = Callable[[Job, list[dict[str, Any]]], None]
T = TypeVar("T")  # a job, however it is wrapped
_MEMORY_OF_FILE = 4.0  # bytes that reading takes for each byte of a file
_RESERVED = 0.1  # of the free memory, for other programs
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
_TICK, _SECOND = 0.1, 1.0
_PATIENCE = 5.0  # seconds for killed processes to end


def run(
    jobs: Iterable[Job], limits: Limits, done: Done, listen: JobListener | None = None, work: str = WORK,
    stop: Callable[[], bool] | None = None,
) -> None:  # fmt: skip
    """Calls `done` with each job and its records as jobs end.

    `jobs` is read in a thread of its own as there is room, and may fetch models.  Exceptions of `done` and `jobs` end
    the run and kill the children, and so do Ctrl-C and SIGTERM (KeyboardInterrupt).  Once `stop` is true no job is begun.
    """
    if not can_fork():
        raise UsageError(
            "many models at once need processes that fork, which this system has not; check them one by one"
        )
    Engine(limits, done, listen or JobListener(), work, stop).run(jobs)


class Engine:
    """One run of jobs: the children that work, and those that are ending, and those that wait for another job."""

    def __init__(
        self, limits: Limits, done: Done, listen: JobListener, work: str, stop: Callable[[], bool] | None
    ) -> None:
        self.limits, self.done, self.listen, self.work, self.stop = limits, done, listen, work, stop
        self.context = get_context("forkserver")
        self.admission, self.interrupts = Admission(limits), Interrupts()
        self.selector = selectors.DefaultSelector()
        self.children: list[Running] = []
        self.leaving: list[Running] = []
        self.idle: list[Running] = []
        self.looked = self.regrouped = 0.0
        self.folders: set[Path] = set()  # of bundles

    def run(self, jobs: Iterable[Job]) -> None:
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
        """Starts a child for each free place, and one that waits; False if nothing is left to do."""
        if self.stop is not None and self.stop():
            return self._only_begun()
        while len(self.children) <= self.limits.jobs and (job := feed.take()) is not None:
            folder = folder_of_bundles(job)
            if folder is not None and folder not in self.folders:
                self.folders.add(folder)
                adopted(folder)  # bundles of earlier crashes
            granted, timeout = self.admission.first(job), job.time(self.limits.timeout)
            self._begin(Errand(job, self.work, timeout, self.limits.memory, granted))
        self._admit(last=feed.over)
        return bool(self.children) or not feed.over

    def _only_begun(self) -> bool:
        """Ends the children whose jobs were not begun; False if no other is left."""
        for child in [child for child in self.children if child.fresh and not child.errand.is_again]:
            self._part(child)
        self._admit(last=True)
        return bool(self.children)

    def _begin(self, errand: Errand) -> None:
        """Gives an errand to a child that has done one, else to a new one."""
        while self.idle:
            child = self.idle.pop()
            if child.take(errand):
                self.children.append(child)
                return
            self._dismiss(child)
        self._start(errand)

    def _start(self, errand: Errand, records: Sequence[dict[str, Any]] = ()) -> None:
        """Starts a child for an errand; `records` come from an earlier child that died."""
        try:
            child = self._forked(errand, records)
        except (OSError, EOFError) as error:
            reason = LimitError(f"no process could be started for it: {error or 'its server has ended'}", code="GC603")
            self._give(errand.job, [*records, record_of_crash(errand.job, "", reason)])
            return
        self.children.append(child)
        self.selector.register(child.channel, selectors.EVENT_READ, partial(self._hear, child))
        self.selector.register(child.noise, selectors.EVENT_READ, partial(self._overhear, child))
        self.selector.register(child.process.sentinel, selectors.EVENT_READ, partial(self._ended, child))

    def _forked(self, errand: Errand, records: Sequence[dict[str, Any]]) -> Running:
        """A new child; the server that it is forked from is started again once it is known to have been killed."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                with calm():
                    return Running.start(errand, records, self.context)
            except (OSError, EOFError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(_TICK)

    def _turn(self, timeout: float) -> None:
        """Handles everything that has happened since the last turn, or waits for something."""
        for key, _ in self.selector.select(timeout):
            if self.selector.get_map().get(key.fd) is key:  # an earlier event may have closed it
                key.data()
        if (now := time.monotonic()) > self.looked + _TICK:
            self._watch(now)

    def _hear(self, child: Running) -> None:
        for kind, value in child.listen():
            if kind == "stage":
                self.listen.stage(child.errand.job, value)
        if child in self.idle:
            self._discard(child)
        elif child.ended:
            job, records = child.errand.job, child.records
            if child.lasts():
                self.children.remove(child)
                self.admission.granted.pop(child.pid, None)
                self.idle.append(child)
            else:
                self._part(child)
            if self.stop is None:
                self._admit(last=False)  # the next one works while these records are stored
            self._give(job, records)
        elif child.silent:
            self._ignore(child.channel)

    def _overhear(self, child: Running) -> None:
        if not child.overhear():
            self._ignore(child.noise)

    def _ignore(self, end: Connection) -> None:
        """Stops listening to one end of a pipe."""
        with suppress(KeyError):
            self.selector.unregister(end)

    def _ended(self, child: Running) -> None:
        """Handles the end of a child's process; everything that it has sent still counts."""
        child.process.join()
        if child in self.children:
            self._hear(child)
        if child in self.children:
            child.overhear()
            self._settle(child)
        if child in self.idle:
            self._discard(child)
        self.selector.unregister(child.process.sentinel)
        self.leaving.remove(child)
        child.close()

    def _settle(self, child: Running) -> None:
        """Makes the record of a child that died, and starts another child for its remaining tasks.

        A task whose process was killed by somebody else is tried once more.
        """
        self._part(child)
        child.await_end()
        if child.fresh and child.served:  # it died before it could be told that it has another job
            self._start(child.errand, child.records)
            return
        job, folder = child.errand.job, folder_of_bundles(child.errand.job)
        task = max(child.at, child.errand.first)
        if child.was_killed and task != child.errand.again:
            if folder is not None:
                dropped(folder, child.pid)
            self._start(replace(child.errand, first=task, again=task), child.records)
            return
        size, seconds = round(child.most / (1 << 20), 1), round(time.monotonic() - child.began, 4)
        bundle = next(iter(adopted(folder, child.pid) if folder is not None else ()), None)
        made = record_of_crash(job, child.name, child.failure(), duration_s=seconds, peak_rss_mb=size,
                               bundle=bundle and str(bundle))  # fmt: skip
        records = [*child.records, made]
        if child.left:
            self._start(replace(child.errand, first=child.left), records)
        else:
            self._give(job, records)

    def _part(self, child: Running) -> None:
        """Ends the work of a child, whose process may take a moment longer to end."""
        self.children.remove(child)
        self.admission.granted.pop(child.pid, None)
        self._dismiss(child)

    def _discard(self, child: Running) -> None:
        """Ends a child that waited for another job, and said something or died instead."""
        self.idle.remove(child)
        self._dismiss(child)

    def _dismiss(self, child: Running) -> None:
        """Ends a child that works no longer."""
        self.leaving.append(child)
        self._ignore(child.channel)
        self._ignore(child.noise)
        child.kill()

    def _give(self, job: Job, records: list[dict[str, Any]]) -> None:
        self.done(job, records)
        self.listen.ended(job, records)

    def _watch(self, now: float) -> None:
        """Checks time and memory of all children; their process groups are looked up once a second."""
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
        """Grants memory to children that wait for it, and starts children for which there is a place.

        If all children wait, the first gets its memory anyway; while any child waits, none is started.
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
                if not child.errand.is_again:
                    self.listen.started(child.errand.job)

    def _let_go(self, child: Running, size: int, threads: int) -> None:
        self.admission.granted[child.pid] = size
        child.let_go(threads)

    def _end(self) -> None:
        """Kills all processes, and removes bundles of interrupted checks."""
        children = [*self.children, *self.leaving, *self.idle]
        for child in children:
            child.kill()
        deadline = time.monotonic() + _PATIENCE
        for child in children:
            child.process.join(max(0.0, deadline - time.monotonic()))
            folder = folder_of_bundles(child.errand.job)
            if child in self.children and folder is not None:
                dropped(folder, child.pid)
            child.close()
        self.selector.close()
        for folder in self.folders:
            clear(folder)


def record_of_crash(job: Job, name: str, error: GradcheckError, **more: Any) -> dict[str, Any]:
    """The JSON record of a check that ended with an error."""
    from gradcheck_cli.checks.assemble import failed_record, versions  # imports NumPy, which a driver can do without
    from gradcheck_cli.results.record import Check, ModelInfo

    name = name or job.uri
    blank = Check(id=name, check=name, status="limit", code="", model=ModelInfo(job.uri), x="", y="",
                  versions=versions(), **more)  # fmt: skip
    return failed_record(blank, error).as_json()


def folder_of_bundles(job: Job) -> Path | None:
    """The folder for bundles of a job; None if none are kept."""
    folder = job.options.get("save_failures", FOLDER)
    return None if folder == "none" else Path(job.folder, folder)


class Admission:
    """Grants memory to children."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.capacity = min(int((1 - _RESERVED) * left()), limits.room or sys.maxsize)
        self.granted: dict[int, int] = {}  # bytes by process id

    def first(self, job: Job) -> int:
        """Bytes that a job is granted at first: as predicted, else by the size of its file."""
        size = 0.0
        with suppress(OSError, ValueError):
            size = _MEMORY_OF_FILE * os.stat(os.path.join(job.folder, job.path)).st_size
        return self.bounded(max(LEAST, int(job.predicted_mb * (1 << 20)) or int(size)))

    def bounded(self, size: int) -> int:
        """The size, at most the memory limit of a job: a child that takes more is stopped."""
        return min(size, self.limits.memory)

    def fits(self, child: int, size: int) -> bool:
        """True if `size` bytes fit beside those of all other children, or there are no others."""
        others = [granted for other, granted in self.granted.items() if other != child]
        return not others or sum(others) + size <= self.capacity


class Feed(Generic[T]):
    """Fetches the jobs of an iterable in a thread, `ahead` of those taken; calls `wake` when a job or the end is there."""

    def __init__(self, jobs: Iterable[T], wake: Callable[[], None], ahead: int = 2) -> None:
        self.jobs, self.wake = jobs, wake
        self.ready: deque[T] = deque()
        self.room = threading.Semaphore(ahead)
        self.fetched = self.closed = False
        self.error: BaseException | None = None
        threading.Thread(target=self._fetch, name="jobs", daemon=True).start()

    @property
    def over(self) -> bool:
        """True when all jobs were taken."""
        return self.fetched and not self.ready

    def take(self) -> T | None:
        """The next job, None if it is not there yet; raises the error of the iterable."""
        if self.ready:
            self.room.release()
            return self.ready.popleft()
        if self.fetched and self.error is not None:
            raise self.error
        return None

    def close(self) -> None:
        """Stops fetching."""
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
        except BaseException as error:  # `take` raises it
            self.error = error
        self.fetched = True
        self.wake()


class Interrupts:
    """Signals and wake-ups of the main loop.

    The first signal sets `asked`, a second one raises KeyboardInterrupt at once.  `reader` is readable after a signal
    or a call of `wake`.
    """

    def __init__(self) -> None:
        self.asked = False
        self.reader, self.writer = os.pipe()
        for end in (self.reader, self.writer):
            os.set_blocking(end, False)

    def wake(self) -> None:
        """Makes `reader` readable; may be called from any thread."""
        with suppress(OSError):  # the pipe is full, hence readable, or closed
            os.write(self.writer, b"\n")

    def awake(self) -> None:
        """Empties `reader`."""
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
        """Handles signals in the block, except ignored ones; only the main thread can do so."""
        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in _SIGNALS if hasattr(signal, name)):
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
