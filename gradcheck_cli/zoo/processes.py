"""Children as their driver sees them: their messages, their limits, their end; and the server they are forked from.

The server is the fork server of `multiprocessing`.  It has imported all that children need, so that each of them starts
in milliseconds, and it ends with the process that started it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_all_start_methods, get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.util import get_temp_dir
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gradcheck_cli.checks.isolation import ending, members, resident
from gradcheck_cli.errors import LimitError, shown
from gradcheck_cli.graph.memory import spell
from gradcheck_cli.zoo.child import Errand, Frames, Garbled, handed, serve

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, ForkServerProcess

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
GRACE = 2.0  # seconds after the time limit in which a child ends by itself, unless it is stuck
READY = "gradcheck_cli.cli.zoo.ready"  # the server imports it before it forks; by name, since it is on a higher floor
_UNTIL_KILLED = 0.5  # seconds between SIGTERM and SIGKILL
_KILLED, _WITHOUT_SERVER = (-KILL, -signal.SIGTERM), 255  # exit codes, the latter as `multiprocessing` has it
_LAST_WORDS = 4096  # bytes of the end of its output that are kept
_CHUNK = 1 << 18
_MOST_SERVED = 100  # errands of one process
_GROWN = 128 << 20  # bytes by which a process may grow before another takes its place
_SHORT = 1 << 15  # bytes that a pipe takes at once
_WEARING = ("GC6", "GC9")  # codes of records after which a process is not used again: limits and bugs
_STATUS = ("pass", "fail", "severed", "inconclusive", "error", "unsupported", "limit", "waived")
_DRIVER, _MOMENT = "_GRADCHECK_DRIVER", 1.0
_LONGEST = 60  # characters of a folder, so that the path of a socket in it has at most 108


@dataclass(slots=True, eq=False)
class Running:
    """A child process; `reason` is the error for which it was stopped, if it was."""

    errand: Errand
    process: ForkServerProcess
    channel: Connection
    noise: Connection
    leash: Connection
    fresh: bool = True  # it has not been allowed to begin
    deadline: float = float("inf")
    frames: Frames = field(default_factory=Frames)
    records: list[dict[str, Any]] = field(default_factory=list)  # of finished tasks
    given: list[dict[str, Any]] = field(default_factory=list)  # of the current task
    count: int = 0  # of all records that this child gave
    tasks: int = 0
    at: int = -1  # index of the current task
    name: str = ""  # of the current task
    stage: str = ""
    ended: bool = False  # all records are there
    silent: float = 0.0  # time at which it closed its pipe
    wants: int = 0  # bytes that it waits for
    asked: float = 0.0  # time at which it asked for them
    began: float = field(default_factory=time.monotonic)
    reason: LimitError | None = None
    kill_at: float = 0.0
    most: int = 0  # bytes of memory at its peak
    group: list[int] = field(default_factory=list)  # its processes
    last_words: bytes = b""
    served: int = 0  # errands that it has done
    at_first: int = 0  # bytes of memory with which it began

    @classmethod
    def start(cls, errand: Errand, records: Sequence[dict[str, Any]], context: ForkServerContext) -> Running:
        """Starts a child for an errand, with records of an earlier child; raises OSError or EOFError if that fails."""
        ours, theirs = context.Pipe()
        noise, loud = context.Pipe(duplex=False)
        held, leash = context.Pipe(duplex=False)
        ends = [ours, noise, leash]
        try:
            process = context.Process(target=serve, args=(errand, theirs, loud, held), daemon=True)
            process.start()
        except BaseException:
            for end in ends:
                end.close()
            raise
        finally:
            for end in (theirs, loud, held):
                end.close()
        for end in (ours, noise):
            os.set_blocking(end.fileno(), False)
        made = cls(errand, process, ours, noise, leash, group=[process.pid or 0])
        made.records, made.at = [*records], errand.first - 1
        return made

    def lasts(self) -> bool:
        """True if it may do another errand: nothing went wrong in it, nothing of others ran in it, and it has not grown."""
        sound = self.ended and self.reason is None and not self.silent and self.served < _MOST_SERVED
        if not sound or self.errand.job.options.get("allow_python"):
            return False
        if any(record["code"].startswith(_WEARING) for record in self.records):
            return False
        return max(self.most, self.weigh()) <= self.at_first + min(_GROWN, self.errand.memory // 16)

    def take(self, errand: Errand) -> bool:
        """Gives it another errand; False if it cannot take it."""
        data = handed(errand)
        try:
            if len(data) > _SHORT or os.write(self.channel.fileno(), data) < len(data):
                return False
        except OSError:
            return False
        self.errand, self.records, self.given, self.at = errand, [], [], errand.first - 1
        self.count = self.tasks = self.wants = self.most = 0
        self.fresh, self.ended, self.deadline = True, False, float("inf")
        self.name, self.stage, self.last_words, self.frames = "", "", b"", Frames()
        self.served += 1
        return True

    def _until(self) -> float:
        timeout = self.errand.timeout
        return time.monotonic() + timeout + GRACE if timeout is not None else float("inf")

    @property
    def pid(self) -> int:
        """The id of its process and of its process group."""
        return self.process.pid or 0

    def listen(self) -> Iterator[tuple[str, Any]]:
        """The new messages of the child; stops a child that sends an invalid frame."""
        try:
            while data := _read(self.channel):
                for kind, value in self.frames.feed(data):
                    self._hear(kind, value)
                    yield kind, value
            if data is not None:
                self.silent = time.monotonic()
        except Garbled as error:
            self.silent = time.monotonic()
            self.stop(f"its process sent {error}", "GC603")

    def _hear(self, kind: str, value: Any) -> None:
        if self.ended:
            raise Garbled("something behind the end")
        if kind == "record":
            if value.get("status") not in _STATUS or not all(
                isinstance(value.get(n), str) for n in ("id", "check", "code")
            ):
                raise Garbled("a record that is none")
            self.given.append(value)
            self.count += 1
        elif kind == "task":
            self._commit()
            self.at, self.name, self.stage, self.deadline = self.at + 1, value, "", self._until()
        elif kind == "needs":
            self.wants, self.asked = max(value, 1), time.monotonic()
        elif kind == "tasks":
            self.tasks = value
        elif kind == "stage":
            self.stage = value
        elif value != self.count:
            raise Garbled("an end before all is said")
        else:
            self._commit()
            self.ended = True

    def _commit(self) -> None:
        self.records += self.given
        self.given = []

    @property
    def left(self) -> int:
        """The index of the first task after the one in which it died; 0 if there is none."""
        following = max(self.at, self.errand.first) + 1
        return following if following < self.tasks else 0

    def overhear(self) -> bool:
        """Keeps the end of its output; False once the pipe is closed."""
        while data := _read(self.noise):
            self.last_words = (self.last_words + data)[-_LAST_WORDS:]
        return data is None

    def let_go(self, threads: int) -> None:
        """Allows it to begin, or to go on with the memory that it waits for."""
        now = time.monotonic()
        if self.fresh:
            self.fresh, self.began, self.deadline = False, now, self._until()
            self.at_first = self.at_first or resident(self.pid)
        else:
            self.wants, self.deadline = 0, self.deadline + now - self.asked
        with suppress(OSError):
            os.write(self.channel.fileno(), bytes([min(threads, 255)]))

    def weigh(self) -> int:
        """Bytes of memory of all its processes; above the limit kills the child, or first the processes that it started."""
        sizes = {process: resident(process) for process in self.group}
        self.most = max(self.most, total := sum(sizes.values()))
        if total > self.errand.memory:
            if sizes.get(self.pid, total) > self.errand.memory or len(self.group) == 1:
                limit = spell(self.errand.memory)
                self.stop(f"held more than {limit} of memory (--memory-limit) and was stopped", "GC602", KILL)
            else:
                for process in self.group:
                    if process != self.pid:
                        _kill(process, KILL)
        return total

    def look_at_the_clock(self, now: float) -> None:
        """Stops it when its time is over, or when it has closed its pipe; kills it if it does not stop."""
        if self.reason is None and now > self.deadline and not self.wants:
            self.stop(f"took longer than {self.errand.timeout:g} s (--timeout) and did not stop by itself", "GC601")
        elif self.reason is None and self.silent and now > self.silent + _UNTIL_KILLED:
            self.stop("its process closed the pipe that its results come through", "GC603")
        elif self.kill_at and now > self.kill_at:
            self.kill()

    def stop(self, reason: str, code: str, by: signal.Signals = signal.SIGTERM) -> None:
        """Stops it for a reason that its record gives."""
        if self.reason is None:
            self.reason = LimitError(reason, code=code)
            self.kill_at = time.monotonic() + _UNTIL_KILLED
            self.kill(by)

    def kill(self, by: signal.Signals = KILL) -> None:
        """Sends a signal to all processes of its group."""
        with suppress(OSError):
            os.killpg(self.pid, by)
        if self.process.exitcode is None:  # it may not have a group yet
            _kill(self.pid, by)

    def close(self) -> None:
        """Kills what is left of its group, and closes all pipes."""
        self.kill()
        for end in (self.channel, self.noise, self.leash):
            end.close()
        if self.process.exitcode is not None:
            self.process.join()
            self.process.close()

    @property
    def was_killed(self) -> bool:
        """True if somebody else killed it, or the server that tells of its end."""
        return self.reason is None and self.process.exitcode in (*_KILLED, _WITHOUT_SERVER)

    def await_end(self) -> None:
        """Waits a moment until a killed process is gone: one whose server was killed ends after that is known."""
        deadline = time.monotonic() + _MOMENT
        while self.process.exitcode == _WITHOUT_SERVER and resident(self.pid):
            if time.monotonic() > deadline:
                break
            time.sleep(_MOMENT / 100)

    def failure(self) -> LimitError:
        """The error for a child that ended before all of its records were there."""
        while_ = f" while {self.stage}" if self.stage else ""
        words = f"; its last words: {heard}" if (heard := self._heard()) else ""
        if self.reason is not None:
            return LimitError(f"{self.reason}{while_}{words}", code=self.reason.code)
        twice = ", twice" if self.errand.again == max(self.at, self.errand.first) else ""
        return LimitError(f"its process {ending(self.process.exitcode)}{while_}{twice}{words}", code="GC603")

    def _heard(self) -> str:
        lines = [line.strip() for line in self.last_words.decode("utf-8", "replace").splitlines() if line.strip()]
        return shown(lines[-1])[-300:] if lines else ""


def regroup(children: Iterable[Running]) -> None:
    """Looks up the processes that belong to each child."""
    by_group = {child.pid: child for child in children}
    for group, processes in members(by_group.keys()).items():
        by_group[group].group = processes or [group]


def _read(end: Connection) -> bytes | None:
    """Bytes from a pipe; empty once it is closed, None if there are none yet."""
    try:
        return os.read(end.fileno(), _CHUNK)
    except BlockingIOError:
        return None
    except OSError:  # reset by a process that died
        return b""


def _kill(process: int, by: signal.Signals) -> None:
    with suppress(OSError):
        os.kill(process, by)


def can_fork() -> bool:
    """True if this system has a fork server."""
    return "forkserver" in get_all_start_methods()


def warm() -> None:
    """Starts the server before the first child is needed."""
    if can_fork():
        from multiprocessing import forkserver

        get_context("forkserver").set_forkserver_preload([READY])
        with calm():
            forkserver.ensure_running()


@contextmanager
def calm() -> Iterator[None]:
    """Prepares the environment for a server that is started in the block.

    The server ignores Ctrl-C, its BLAS starts no threads (a fork would not copy them), it knows the folder to remove in
    the end, and its children do not run the script of this process.
    """
    given = {"OPENBLAS_NUM_THREADS": "1", _DRIVER: f"{os.getpid()} {_folder()}"}
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    resource_tracker.ensure_running()  # a server starts it otherwise, which lets Ctrl-C through again
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _folder() -> str:
    """The folder of the server's socket: a temporary folder, which `multiprocessing` makes once."""
    if len(tempfile.gettempdir()) <= _LONGEST:
        return get_temp_dir()
    asked, tempfile.tempdir = tempfile.tempdir, "/tmp"
    try:
        return get_temp_dir()
    finally:
        tempfile.tempdir = asked


def remove_folder_at_exit() -> str:
    """Called in the server: lets it remove the folder of its socket if its driver was killed; gives that folder."""
    driver, _, folder = os.environ.pop(_DRIVER, "0 ").partition(" ")
    if folder:
        atexit.register(_remove, int(driver), folder)
    return folder


def _remove(driver: int, folder: str) -> None:
    """Removes a folder if the driver is gone; its pipes are closed a moment before it ends."""
    deadline = time.monotonic() + _MOMENT
    while os.getppid() == driver and time.monotonic() < deadline:
        time.sleep(_MOMENT / 100)
    if os.getppid() != driver:
        shutil.rmtree(folder, ignore_errors=True)
