"""What a worker of a Dask cluster does with a parcel: has its post run the job, and tells the driver how far that is.

Jobs run in children of a process beside the worker (`post`), so that whatever a model does the worker stays; it keeps no
more than a thread waiting for each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from gradcheck_cli.zoo.job import Job, Limits
from gradcheck_cli.zoo.parcel import Parcel, difference, is_seen, laid_out, renamed, versions
from gradcheck_cli.zoo.post import START
from gradcheck_cli.zoo.shelf import FOLDER

MEMORY = "MEMORY"  # what a worker's memory is called among its resources
MOST_SAVED = 256 << 20  # bytes of bundles that are sent back
_LOOK = 0.5  # seconds between two looks at whether anybody still waits
_TRIES = 3  # at a post that may just be leaving

Bundles: TypeAlias = "Mapping[str, Mapping[str, bytes]]"  # files of each, by path below its folder


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a parcel: its records, or that its files are wanted, or how this worker differs from the driver."""

    worker: str
    records: list[dict[str, Any]] | None = None
    bundles: Bundles = field(default_factory=dict)
    differs: str = ""


class Lost(Exception):
    """The process that did the job is no more."""


class GivenUp(Exception):
    """Nobody waits for the job any more."""


def perform(parcel: Parcel, topic: str) -> Answer:
    """Does a job in a thread of a Dask worker; events of the topic tell the driver of it."""
    from distributed import get_worker

    worker: Any = get_worker()
    if differs := difference(parcel.versions, versions()):
        return Answer(worker.address, differs=differs)
    if parcel.contents is None and not is_seen(parcel):
        return Answer(worker.address)
    place = Path(tempfile.mkdtemp(prefix="gradcheck-", dir=worker.local_directory))
    try:
        return _performed(parcel, place, worker, topic)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _performed(parcel: Parcel, place: Path, worker: Any, topic: str) -> Answer:
    root, saved = place / "root", place / "saved"
    job = parcel.job if parcel.contents is None else laid_out(parcel, root)
    kept = job.options.get("save_failures", FOLDER)
    if kept != "none":
        job = replace(job, options={**job.options, "save_failures": str(saved)})
    room = int(worker.state.total_resources.get(MEMORY, 0))
    limits = replace(parcel.limits, jobs=worker.state.nthreads, room=room, threads=_threads())

    def told(kind: str, value: Any) -> None:
        worker.log_event(topic, {"ticket": parcel.ticket, "kind": kind, "value": value})

    def given_up() -> bool:
        return is_given_up(worker, parcel.ticket)

    records = _done(replace(job, key=parcel.ticket), (limits, parcel.work, parcel.command), told, given_up)
    names = {str(saved): kept, str(root): ""}
    return Answer(worker.address, renamed(records, names), _bundles(saved, names))


def _threads() -> int:
    """Of each job: there may be more workers on the machine, so one, unless somebody says otherwise."""
    said = os.environ.get("GRADCHECK_NUM_THREADS", "")
    return int(said) if said.isdecimal() and int(said) else 1


def is_given_up(worker: Any, ticket: str) -> bool:
    """The job was cancelled, its driver is gone, or the worker is about to end."""
    task = worker.state.tasks.get(ticket)
    ending = worker.status.name in ("closing", "closed", "stopping", "failed")
    return ending or task is None or task.state in ("cancelled", "resumed", "released", "forgotten")


def _bundles(folder: Path, names: Mapping[str, str]) -> Bundles:
    """The bundles that a job left, as far as they are small enough, under the names that paths have elsewhere."""
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


# --- the post of a worker

Told: TypeAlias = Callable[[str, Any], None]
About: TypeAlias = "tuple[Limits, str, tuple[str, ...]]"  # what a post is told first

_POSTS: dict[About, Post] = {}
_POSTS_LOCK = threading.Lock()


def _done(job: Job, about: About, told: Told, given_up: Callable[[], bool]) -> list[dict[str, Any]]:
    """The records of a job from the post of this process, which is started where there is none."""
    for _ in range(_TRIES):
        with _POSTS_LOCK:
            post = _POSTS.get(about)
            if post is None or post.gone:
                post = _POSTS[about] = Post(about)
        with suppress(Unheard):
            return post.does(job, told, given_up)
    raise Lost("no process could be started for jobs")


class Unheard(Exception):
    """A post was gone before it took the job up."""


class Post:
    """A worker's view of its post."""

    def __init__(self, about: About) -> None:
        self.pipe, theirs = Pipe()
        command = [sys.executable, "-P", "-c", START, str(theirs.fileno())]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True, env={**os.environ}
        )
        theirs.close()
        self.pipe.send(about)
        self.waiting: dict[str, SimpleQueue[tuple[str, Any]]] = {}
        self.gone = False
        self.lock = threading.Lock()
        threading.Thread(target=self._listen, name="post", daemon=True).start()

    def does(self, job: Job, told: Told, given_up: Callable[[], bool]) -> list[dict[str, Any]]:
        """The records of a job; Unheard, Lost or GivenUp where there are none."""
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
            with suppress(OSError):  # it is about to end: it will be said
                self.pipe.send(job)
        return heard

    def _leave(self, job: Job) -> None:
        """Nobody waits for a job; once nobody waits for any, there is no post."""
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
