"""The part of a zoo that runs in Dask workers: `perform` does the job of a parcel and reports its progress to the driver.

Jobs run in children of an engine process beside the worker, so that no model can crash the worker, in which only a thread
waits for each job.  That process (`serve`) takes jobs from a pipe, runs them as `engine` does on one machine, and sends
progress and records back.  It ends with its worker, when the pipe is closed, and when it has been idle for a while.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from msgspec.structs import replace

from gradcheck_cli.zoo import Job, JobListener, Limits
from gradcheck_cli.zoo.parcel import Parcel, difference, is_seen, laid_out, renamed, versions
from gradcheck_cli.zoo.shelf import FOLDER

MEMORY = "MEMORY"  # the name of memory among a worker's resources
MOST_SAVED = 256 << 20  # bytes of bundles that are sent back
START = "import sys; from gradcheck_cli.zoo.worker import serve; serve(int(sys.argv[1]))"
_IDLE = 60.0  # seconds without a job
_LOOK = 0.5  # seconds after which a cancelled job is noticed
_TRIES = 3  # to hand a job to an engine process, which may be ending
Bundles: TypeAlias = "Mapping[str, Mapping[str, bytes]]"  # files of each, by path below its folder
Told: TypeAlias = Callable[[str, Any], None]
Setup: TypeAlias = "tuple[Limits, str, tuple[str, ...]]"  # the first message to an engine process


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """The answer to a parcel: its records, or None if its files are needed first; or versions that differ (`differs`)."""

    worker: str
    records: list[dict[str, Any]] | None = None
    bundles: Bundles = field(default_factory=dict)
    differs: str = ""


class Lost(Exception):
    """The engine process has ended during the job."""


class GivenUp(Exception):
    """The job was cancelled."""


def perform(parcel: Parcel, topic: str) -> JobAnswer:
    """Does a job in a thread of a Dask worker; reports its progress as events of the topic."""
    from distributed import get_worker

    worker: Any = get_worker()
    if differs := difference(parcel.versions, versions()):
        return JobAnswer(worker.address, differs=differs)
    if parcel.contents is None and not is_seen(parcel):
        return JobAnswer(worker.address)
    with tempfile.TemporaryDirectory("", "gradcheck-", worker.local_directory, ignore_cleanup_errors=True) as place:
        return _performed(parcel, Path(place), worker, topic)


def _performed(parcel: Parcel, place: Path, worker: Any, topic: str) -> JobAnswer:
    root, saved = place / "root", place / "saved"
    job = parcel.job if parcel.contents is None else laid_out(parcel, root)
    kept = job.options.get("save_failures", FOLDER)
    if kept != "none":
        job = replace(job, options={**job.options, "save_failures": str(saved)})
    room = int(worker.state.total_resources.get(MEMORY, 0))
    said = os.environ.get("GRADCHECK_NUM_THREADS", "")  # else one a job, since the machine may have several workers
    threads = max(1, int(said)) if said.isdecimal() else 1
    limits = replace(parcel.limits, jobs=worker.state.nthreads, room=room, threads=threads)

    def told(kind: str, value: Any) -> None:
        worker.log_event(topic, {"ticket": parcel.ticket, "kind": kind, "value": value})

    job, setup = replace(job, key=parcel.ticket), (limits, parcel.work, parcel.command)
    records = _done(job, setup, told, lambda: is_given_up(worker, parcel.ticket))
    names = {str(saved): kept, str(root): ""}
    return JobAnswer(worker.address, renamed(records, names), _bundles(saved, names))


def is_given_up(worker: Any, ticket: str) -> bool:
    """True if the job was cancelled, its driver is gone, or the worker is ending."""
    task = worker.state.tasks.get(ticket)
    ending = worker.status.name in ("closing", "closed", "stopping", "failed")
    return ending or task is None or task.state in ("cancelled", "resumed", "released", "forgotten")


def _bundles(folder: Path, names: Mapping[str, str]) -> Bundles:
    """The bundles that a job left, up to a total size, with paths in their JSON files replaced by `names`."""
    found: dict[str, dict[str, bytes]] = {}
    left = MOST_SAVED
    for path in sorted(folder.rglob("*")):
        name, _, inside = path.relative_to(folder).as_posix().partition("/")
        if not inside or not path.is_file() or (left := left - path.stat().st_size) < 0:
            continue
        content = path.read_bytes()
        for old, new in names.items() if path.suffix == ".json" else ():
            content = content.replace(old.encode(), new.encode())
        found.setdefault(name, {})[inside] = content
    return found


def _done(job: Job, setup: Setup, told: Told, given_up: Callable[[], bool]) -> list[dict[str, Any]]:
    """The records of a job from the worker's engine process, which is started if there is none."""
    for _ in range(_TRIES):
        with _ENGINES_LOCK:
            engine = _ENGINES.get(setup)
            if engine is None or engine.gone:
                engine = _ENGINES[setup] = EngineProcess(setup)
        with suppress(Unheard):
            return engine.does(job, told, given_up)
    raise Lost("no process could be started for jobs")


class Unheard(Exception):
    """The engine process ended before it began with the job."""


class EngineProcess:
    """The worker's end of the pipe to its engine process."""

    def __init__(self, setup: Setup) -> None:
        self.pipe, theirs = Pipe()
        command = [sys.executable, "-P", "-c", START, str(theirs.fileno())]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True, env={**os.environ}
        )
        theirs.close()
        self.pipe.send(setup)
        self.waiting: dict[str, SimpleQueue[tuple[str, Any]]] = {}
        self.gone = False
        self.lock = threading.Lock()
        threading.Thread(target=self._listen, name="post", daemon=True).start()

    def does(self, job: Job, told: Told, given_up: Callable[[], bool]) -> list[dict[str, Any]]:
        """The records of a job; raises Unheard, Lost or GivenUp if there are none."""
        heard, began = self._asked(job), False
        while True:
            try:
                kind, value = heard.get(timeout=_LOOK)
            except Empty:
                if given_up():
                    self._leave(job)
                    raise GivenUp from None
                continue
            if kind == "done":
                self.waiting.pop(job.key, None)
                return list(value)
            if kind == "gone":
                raise Lost("the process that runs its jobs has ended") if began else Unheard
            began = began or kind == "started"
            told(kind, value)

    def _asked(self, job: Job) -> SimpleQueue[tuple[str, Any]]:
        heard: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        with self.lock:
            if self.gone:
                raise Unheard
            self.waiting[job.key] = heard
            with suppress(OSError):  # the process is ending, which `_listen` reports
                self.pipe.send(job)
        return heard

    def _leave(self, job: Job) -> None:
        """Stops waiting for a job; ends the process if there is no other job."""
        with self.lock:
            self.waiting.pop(job.key, None)
            if not self.waiting:
                self.gone = True
                self.process.terminate()

    def _listen(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                key, kind, value = self.pipe.recv()
                if (heard := self.waiting.get(key)) is not None:
                    heard.put((kind, value))
        with self.lock:
            self.gone = True
            for heard in self.waiting.values():
                heard.put(("gone", None))
        self.process.wait()
        self.pipe.close()


_ENGINES: dict[Setup, EngineProcess] = {}
_ENGINES_LOCK = threading.Lock()


def serve(end: int) -> None:
    """The main function of the process; `end` is its end of the pipe."""
    from gradcheck_cli.zoo import engine

    with suppress(KeyboardInterrupt, OSError, EOFError):
        pipe = Connection(end)
        limits, work, command = pipe.recv()
        sys.argv = list(command)  # for the command in bundles
        jobs = PipedJobs(pipe)
        engine.run(jobs.fetched(), limits, jobs.done, jobs, work)


class PipedJobs(JobListener):
    """Takes jobs from the pipe; sends their progress and records into it, with the key of the job."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.unfinished, self._counting = 0, threading.Lock()

    def fetched(self) -> Iterator[Job]:
        """Jobs as they come, until there has been none to do for a while; runs in a thread of the engine."""
        while True:
            while not self.pipe.poll(_IDLE):
                if not self.unfinished:
                    return
            try:
                job: Job = self.pipe.recv()
            except (EOFError, OSError):  # the worker is gone, and nothing waits for its jobs
                os.kill(os.getpid(), signal.SIGTERM)
                return
            self._count(1)
            yield job

    def _count(self, more: int) -> None:
        with self._counting:
            self.unfinished += more

    def done(self, job: Job, records: list[dict[str, Any]]) -> None:
        self.pipe.send((job.key, "done", records))
        self._count(-1)

    def started(self, job: Job) -> None:
        self.pipe.send((job.key, "started", None))

    def stage(self, job: Job, what: str) -> None:
        self.pipe.send((job.key, "stage", what))

    def memory(self, job: Job, size: int) -> None:
        self.pipe.send((job.key, "memory", size))
