"""The process of one job: kept apart from all others, bounded, and heard through a pipe alone.

It is forked from a server that has imported everything, so that it is there in some milliseconds.  What a model can do to
a process ends with it: its group is killed when its job is done, and by the kernel when the driver is gone.

What a child says to the process that started it: frames of a length and as many bytes of JSON, [kind, value].

A child runs whatever a model makes it do, so what comes from it is held to sizes and to this form; anything else is as
good as a crash.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from gradcheck_cli.checks.isolation import hold, keep_apart, leave_no_core
from gradcheck_cli.errors import shown
from gradcheck_cli.zoo.job import Job

LONGEST, MOST = 64 << 20, 512 << 20  # bytes of a frame, and of all that a child may say
KINDS = {"tasks": int, "task": str, "stage": str, "needs": int, "record": dict, "end": int}
_HEAD = 4  # bytes


class Garbled(Exception):
    """What a child says is no frame."""


def packed(kind: str, value: Any) -> bytes:
    """A frame; ValueError for one that would be refused."""
    data = json.dumps([kind, value], allow_nan=False, separators=(",", ":")).encode()
    if len(data) > LONGEST:
        raise ValueError(f"{kind} takes {len(data)} bytes, more than {LONGEST}")
    return len(data).to_bytes(_HEAD, "big") + data


class Frames:
    """Bytes as they come in, frames as they are whole."""

    def __init__(self) -> None:
        self.rest = bytearray()
        self.read = 0

    def feed(self, data: bytes) -> Iterator[tuple[str, Any]]:
        """The frames that are whole now; Garbled for what is none."""
        self.rest += data
        self.read += len(data)
        if self.read > MOST:
            raise Garbled(f"more than {MOST >> 20} MiB of results")
        start = 0
        while (end := self._end(start)) <= len(self.rest):
            yield _unpacked(bytes(self.rest[start + _HEAD : end]))
            start = end
        del self.rest[:start]

    def _end(self, start: int) -> int:
        """Where the frame that starts there ends; beyond all that is there while its head is not whole."""
        if len(self.rest) < start + _HEAD:
            return len(self.rest) + 1
        size = int.from_bytes(self.rest[start : start + _HEAD], "big")
        if size > LONGEST:
            raise Garbled(f"a frame of {size} bytes")
        return start + _HEAD + size


def _unpacked(data: bytes) -> tuple[str, Any]:
    try:
        kind, value = json.loads(data, parse_constant=_no_number)
    except (ValueError, TypeError, RecursionError):
        raise Garbled("a frame that is no JSON") from None
    if not isinstance(kind, str) or type(value) is not KINDS.get(kind):
        raise Garbled("a frame of no known kind")
    return kind, value


def _no_number(text: str) -> Any:
    raise ValueError(text)


_PACE = 0.5  # seconds between two words about the same stage
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Errand:
    """A job with what its process gets: the function ("module:name") that does it, seconds and bytes."""

    job: Job
    work: str
    timeout: float | None
    memory: int
    granted: int  # bytes that it may take without asking
    first: int = 0  # of its tasks: those before it are done


class Desk:
    """What a job's work is told, and whom it tells how far it is."""

    def __init__(self, errand: Errand, channel: int) -> None:
        self.errand, self.channel = errand, channel
        self.granted, self.threads = errand.granted, 1
        self.said, self.at = "", 0.0

    def tasks(self, count: int) -> None:
        """So many tasks there are in all, those included that are done."""
        self.send("tasks", count)

    def begin(self, name: str) -> None:
        """The next task begins: its time runs from now on."""
        self.send("task", name)

    def stage(self, what: str, progress: str = "") -> None:
        """What is done now; of its progress only now and then."""
        now = time.monotonic()
        if what != self.said or now > self.at + _PACE:
            self.said, self.at = what, now
            self.send("stage", shown(f"{what}  {progress}".strip())[:_LONGEST_NAME])

    def needs(self, size: float) -> None:
        """Waits until so much memory, in bytes, can be had; the time limit waits too."""
        if size > self.granted:
            self.granted = int(size)
            with _without_alarm():
                self.send("needs", self.granted)
                self.wait()

    def wait(self) -> int:
        """Waits for a word of the driver: how many threads there are for it."""
        word = os.read(self.channel, 1)
        if not word:
            os._exit(1)
        return word[0]

    def send(self, kind: str, value: Any) -> None:
        """A frame, whole."""
        data = memoryview(packed(kind, value))
        while data:
            data = data[os.write(self.channel, data) :]


Work: TypeAlias = Callable[[Job, Desk], Iterable[Mapping[str, Any]]]  # the records of a job, as strict JSON has them


def serve(errand: Errand, channel: Connection, noise: Connection, leash: Connection) -> None:
    """All that a child does; it ends the process."""
    _keep_apart(leash)
    _redirect(noise)
    leave_no_core()
    hold(errand.memory)  # before the driver sees it held
    os.chdir(errand.job.folder or os.curdir)
    desk = Desk(errand, channel.fileno())
    work, count = _found(errand.work), 0
    desk.threads = desk.wait()  # all is ready: there may be no room for it yet
    for record in work(errand.job, desk):
        desk.send("record", record)
        count += 1
    desk.send("end", count)
    os._exit(0)  # nothing is to be taken down with care


def _found(work: str) -> Work:
    module, _, name = work.partition(":")
    found: Work = getattr(import_module(module), name)
    return found


def _keep_apart(leash: Connection) -> None:
    """On a leash, unless the driver went before it was fastened."""
    keep_apart(leash.fileno())
    driver = parent_process()
    if driver is None or not driver.is_alive():
        os._exit(1)


def _redirect(noise: Connection) -> None:
    """Whatever is written to stdout or stderr, by C code too, goes to the driver, which keeps the end of it."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(noise.fileno(), 1)
    os.dup2(noise.fileno(), 2)
    os.close(nothing)
    noise.close()
    sys.stdout, sys.stderr = (
        os.fdopen(end, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False) for end in (1, 2)
    )


class _without_alarm:
    """Under it, the alarm of a time limit stands still."""

    def __enter__(self) -> None:
        self.left = signal.setitimer(signal.ITIMER_REAL, 0)[0] if hasattr(signal, "setitimer") else 0.0

    def __exit__(self, *_: object) -> None:
        if self.left:
            signal.setitimer(signal.ITIMER_REAL, self.left)
