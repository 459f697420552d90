"""Runs jobs, some at a time, each in a process of its own; gives the records of each one once, whatever becomes of it.

A loop waits for what children say, for their end and for the clock, and does nothing else: what is slow happens in
children, or in the thread that jobs come from.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

from gradcheck_cli.errors import LimitError, UsageError
from gradcheck_cli.zoo import crash
from gradcheck_cli.zoo.admission import Admission
from gradcheck_cli.zoo.child import Errand
from gradcheck_cli.zoo.feed import Feed
from gradcheck_cli.zoo.interrupts import Interrupts
from gradcheck_cli.zoo.job import Job, Limits, Listener, Silent, cores
from gradcheck_cli.zoo.processes import Running, regroup
from gradcheck_cli.zoo.server import calm, there_is_one, warm
from gradcheck_cli.zoo.shelf import adopted, clear

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
