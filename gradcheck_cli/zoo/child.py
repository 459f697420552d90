"""The child process of a job, isolated and bounded, and the frames that it sends to its driver through a pipe.

It is forked in milliseconds from a server that has imported everything.  When its job has ended well it may get another
one, since the pages that a fork copies cost more than a small check.  Its process group is killed when it gets none, and
by the kernel when the driver ends.  A frame is a length and so many bytes of JSON, [kind, value].  A model may make a
child send anything, so frames are bounded and validated; a bad frame counts as a crash.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias, cast

from gradcheck_cli.checks.isolation import hold, keep_apart, leave_no_core
from gradcheck_cli.errors import shown
from gradcheck_cli.zoo import Job

LONGEST, MOST = 64 << 20, 512 << 20  # bytes of one frame, and of all frames of a child
KINDS = {"tasks": int, "task": str, "stage": str, "needs": int, "record": dict, "end": int}
_HEAD = 4  # bytes
_REPORT_EVERY = 0.5  # seconds, for progress within one stage
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Errand:
    """A job with the limits of its process; `work` is the function ("module:name") that does the job."""

    job: Job
    work: str
    timeout: float | None  # seconds
    memory: int  # bytes
    granted: int  # bytes that it may take without asking
    first: int = 0  # index of the first task that is left to do
    again: int = -1  # index of the task that is tried once more, since the process that did it was killed

    @property
    def is_again(self) -> bool:
        """True for a job that another process has begun."""
        return self.first > 0 or self.again >= 0


class Desk:
    """The connection of a job's work to the driver: takes grants, reports progress and records."""

    def __init__(self, errand: Errand, channel: int) -> None:
        self.errand, self.channel = errand, channel
        self.granted, self.threads = errand.granted, 1
        self.said, self.at = "", 0.0

    def tasks(self, count: int) -> None:
        """Reports the number of all tasks, including those that are done."""
        self.send("tasks", count)

    def begin(self, name: str) -> None:
        """Reports that the next task begins, whose time limit runs from here."""
        self.send("task", name)

    def stage(self, what: str, progress: str = "") -> None:
        """Reports the current stage, and its progress at intervals."""
        now = time.monotonic()
        if what != self.said or now > self.at + _REPORT_EVERY:
            self.said, self.at = what, now
            self.send("stage", shown(f"{what}  {progress}".strip())[:_LONGEST_NAME])

    def needs(self, size: float) -> None:
        """Waits until `size` bytes of memory are granted; the time limit is paused meanwhile."""
        if size > self.granted:
            self.granted = int(size)
            with _without_alarm():
                self.send("needs", self.granted)
                self.wait()

    def wait(self) -> int:
        """Waits for the driver's permission to go on; gives the number of threads that the job may use."""
        word = os.read(self.channel, 1)
        if not word:
            os._exit(1)
        return word[0]

    def send(self, kind: str, value: Any) -> None:
        """Sends one frame."""
        data = memoryview(packed(kind, value))
        while data:
            data = data[os.write(self.channel, data) :]


Work: TypeAlias = Callable[[Job, Desk], Iterable[Mapping[str, Any]]]  # gives the records of a job, as strict JSON


def serve(errand: Errand, channel: Connection, noise: Connection, leash: Connection) -> None:
    """The main function of a child, which ends the process."""
    keep_apart(leash.fileno())
    driver = parent_process()
    if driver is None or not driver.is_alive():
        os._exit(1)
    _redirect(noise)
    leave_no_core()
    home = os.getcwd()
    while True:
        _attend(errand, channel.fileno(), home)
        errand = _another(channel.fileno())


def _attend(errand: Errand, channel: int, home: str) -> None:
    """Does one errand: waits until there is room for it, and sends its records."""
    hold(errand.memory)  # the kernel's limit acts before the driver notices
    os.chdir(os.path.join(home, errand.job.folder))
    _forget_the_peak()
    desk = Desk(errand, channel)
    module, _, name = errand.work.partition(":")
    work, count = cast(Work, getattr(import_module(module), name)), 0
    desk.threads = desk.wait()
    for record in work(errand.job, desk):
        desk.send("record", record)
        count += 1
    _end_others()
    desk.send("end", count)


def _end_others() -> None:
    """Kills processes that a job has left behind; that of onnxruntime serves the next job too."""
    from gradcheck_cli.checks.forward.runtime import WORKER  # which a driver can do without

    kept = WORKER.process.pid if WORKER.process is not None else 0
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            for process in map(int, path.read_text().split()):
                if process != kept:
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)


def handed(errand: Errand) -> bytes:
    """The bytes by which a driver gives an errand to a child that has done one."""
    data = pickle.dumps(errand)
    return len(data).to_bytes(_HEAD, "big") + data


def _another(channel: int) -> Errand:
    """The next errand; ends the process, without cleaning up, where the driver has gone."""
    size = int.from_bytes(_exactly(channel, _HEAD), "big")
    return cast(Errand, pickle.loads(_exactly(channel, size)))


def _exactly(channel: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (part := os.read(channel, size - len(data))):
            os._exit(0)
        data += part
    return data


def _forget_the_peak() -> None:
    """Has the kernel measure this process's largest memory from here, so that it is that of one job."""
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def _redirect(noise: Connection) -> None:
    """Sends what is written to stdout and stderr, also by C code, to the driver, which keeps the end of it."""
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
    """Pauses the alarm of a time limit."""

    def __enter__(self) -> None:
        self.left = signal.setitimer(signal.ITIMER_REAL, 0)[0] if hasattr(signal, "setitimer") else 0.0

    def __exit__(self, *_: object) -> None:
        if self.left:
            signal.setitimer(signal.ITIMER_REAL, self.left)


class Garbled(Exception):
    """Raised for bytes from a child that are no valid frame."""


def packed(kind: str, value: Any) -> bytes:
    """The bytes of a frame; raises ValueError if it is too long."""
    data = json.dumps([kind, value], allow_nan=False, separators=(",", ":")).encode()
    if len(data) > LONGEST:
        raise ValueError(f"{kind} takes {len(data)} bytes, more than {LONGEST}")
    return len(data).to_bytes(_HEAD, "big") + data


class Frames:
    """Splits a stream of bytes into frames."""

    def __init__(self) -> None:
        self.rest = bytearray()
        self.read = 0

    def feed(self, data: bytes) -> Iterator[tuple[str, Any]]:
        """The frames that are complete with these bytes; raises Garbled for an invalid one."""
        self.rest += data
        self.read += len(data)
        if self.read > MOST:
            raise Garbled(f"more than {MOST >> 20} MiB of results")
        while len(self.rest) >= _HEAD:
            size = int.from_bytes(self.rest[:_HEAD], "big")
            if size > LONGEST:
                raise Garbled(f"a frame of {size} bytes")
            if len(self.rest) < _HEAD + size:
                return
            frame = bytes(self.rest[_HEAD : _HEAD + size])
            del self.rest[: _HEAD + size]
            yield _unpacked(frame)


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
