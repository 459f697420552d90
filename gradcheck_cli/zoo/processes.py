"""A child as its driver sees it: what it has said so far, when it is late, how it ended.

The server that children are forked from: it has imported all that they need, so that each is there in milliseconds.

It is that of `multiprocessing`.  It ends with the process that started it.
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
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from multiprocessing.util import get_temp_dir
from types import ModuleType
from typing import TYPE_CHECKING, Any

from gradcheck_cli.checks.isolation import ending, members, resident
from gradcheck_cli.errors import LimitError, shown
from gradcheck_cli.graph.memory import spell
from gradcheck_cli.zoo.child import Errand, Frames, Garbled, serve

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, ForkServerProcess


KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
GRACE = 2.0  # seconds beyond the limit: a child tells by itself, unless it is stuck
_FAREWELL = 0.5  # seconds between SIGTERM and SIGKILL
_LAST_WORDS = 4096  # bytes of what is printed that are kept
_CHUNK = 1 << 18
_STATUS = ("pass", "fail", "severed", "inconclusive", "error", "unsupported", "limit", "waived")


@dataclass(slots=True, eq=False)
class Running:
    """One child; `reason` says why it was stopped, if it was."""

    errand: Errand
    process: ForkServerProcess
    channel: Connection
    noise: Connection
    leash: Connection
    fresh: bool = True  # it waits for its turn
    deadline: float = float("inf")
    frames: Frames = field(default_factory=Frames)
    records: list[dict[str, Any]] = field(default_factory=list)
    given: list[dict[str, Any]] = field(default_factory=list)  # of the task that is done now: they count once it is
    count: int = 0  # of all that this child gave
    tasks: int = 0
    at: int = -1  # the task that is done now, and its name
    name: str = ""
    stage: str = ""
    ended: bool = False  # all records are there
    silent: float = 0.0  # since when nothing more can come
    wants: int = 0  # bytes that it waits for
    asked: float = 0.0  # since when
    began: float = field(default_factory=time.monotonic)
    reason: LimitError | None = None
    kill_at: float = 0.0
    most: int = 0  # bytes that it held
    group: list[int] = field(default_factory=list)
    last_words: bytes = b""

    @classmethod
    def start(cls, errand: Errand, records: Sequence[dict[str, Any]], context: ForkServerContext) -> Running:
        """The child of an errand that has some records already; OSError or EOFError where none can be had."""
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

    def _until(self) -> float:
        timeout = self.errand.timeout
        return time.monotonic() + timeout + GRACE if timeout is not None else float("inf")

    @property
    def pid(self) -> int:
        """Its process, and the group of all that it starts."""
        return self.process.pid or 0

    @property
    def gone(self) -> bool:
        """Its process is no more."""
        return self.process.exitcode is not None

    def listen(self) -> Iterator[tuple[str, Any]]:
        """What it has said since; one that closes the pipe or talks nonsense is stopped."""
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
        """The first task behind the one that it died of; 0 where there is none."""
        following = max(self.at, self.errand.first) + 1
        return following if following < self.tasks else 0

    def overhear(self) -> bool:
        """Keeps the end of what it prints; False once nothing comes any more."""
        while data := _read(self.noise):
            self.last_words = (self.last_words + data)[-_LAST_WORDS:]
        return data is None

    def let_go(self, threads: int) -> None:
        """It may begin, or has the memory that it waits for."""
        now = time.monotonic()
        if self.fresh:
            self.fresh, self.began, self.deadline = False, now, self._until()
        else:
            self.wants, self.deadline = 0, self.deadline + now - self.asked
        with suppress(OSError):
            os.write(self.channel.fileno(), bytes([min(threads, 255)]))

    def weigh(self) -> int:
        """Bytes that its processes hold; if it is more than the limit allows, others than the first of them go first."""
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
        """Stops it when its time is over."""
        if self.reason is None and now > self.deadline and not self.wants:
            self.stop(f"took longer than {self.errand.timeout:g} s (--timeout) and did not stop by itself", "GC601")
        elif self.reason is None and self.silent and now > self.silent + _FAREWELL:
            self.stop("its process closed the pipe that its results come through", "GC603")
        elif self.kill_at and now > self.kill_at:
            self.kill()

    def stop(self, reason: str, code: str, by: signal.Signals = signal.SIGTERM) -> None:
        """Ends it, for a reason that its record will give."""
        if self.reason is None:
            self.reason = LimitError(reason, code=code)
            self.kill_at = time.monotonic() + _FAREWELL
            self.kill(by)

    def kill(self, by: signal.Signals = KILL) -> None:
        """All processes of its group."""
        with suppress(OSError):
            os.killpg(self.pid, by)
        if not self.gone:  # it may not have a group yet
            _kill(self.pid, by)

    def close(self) -> None:
        """Lets go of everything; what is left of its group dies."""
        self.kill()
        for end in (self.channel, self.noise, self.leash):
            end.close()
        if self.gone:
            self.process.join()
            self.process.close()

    def failure(self) -> LimitError:
        """Why there are not all records."""
        while_ = f" while {self.stage}" if self.stage else ""
        words = f"; its last words: {heard}" if (heard := self._heard()) else ""
        if self.reason is not None:
            return LimitError(f"{self.reason}{while_}{words}", code=self.reason.code)
        return LimitError(f"its process {ending(self.process.exitcode)}{while_}{words}", code="GC603")

    def _heard(self) -> str:
        lines = [line.strip() for line in self.last_words.decode("utf-8", "replace").splitlines() if line.strip()]
        return shown(lines[-1])[-300:] if lines else ""


def regroup(children: Iterable[Running]) -> None:
    """Learns which processes belong to whom."""
    by_group = {child.pid: child for child in children}
    for group, processes in members(by_group.keys()).items():
        by_group[group].group = processes or [group]


def _read(end: Connection) -> bytes | None:
    """What has come; nothing at the end; None where more may come."""
    try:
        return os.read(end.fileno(), _CHUNK)
    except BlockingIOError:
        return None
    except OSError:  # reset by a process that died
        return b""


def _kill(process: int, by: signal.Signals) -> None:
    with suppress(OSError):
        os.kill(process, by)


READY = "gradcheck_cli.cli.zoo.ready"  # what it imports before it forks; above this floor, as what children do
_OURS, _MOMENT = "_GRADCHECK_DRIVER", 1.0
_LONGEST = 60  # characters of a folder in which the name of a socket still fits into the 108 that it may have


def there_is_one() -> bool:
    """This system has processes that fork."""
    return "forkserver" in get_all_start_methods()


def warm() -> None:
    """Starts it, ahead of the first child."""
    if there_is_one():
        from multiprocessing import forkserver

        get_context("forkserver").set_forkserver_preload([READY])
        with calm():
            forkserver.ensure_running()


@contextmanager
def calm() -> Iterator[None]:
    """A server that is started under it never hears of Ctrl-C, its BLAS starts no threads, since a fork takes none
    along, and it knows what to take away when we cannot.  Children do not run the script that runs this."""
    told = {"OPENBLAS_NUM_THREADS": "1", _OURS: f"{os.getpid()} {_folder()}"}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
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
    """Where the server's socket is: a temporary folder, which `multiprocessing` makes once."""
    if len(tempfile.gettempdir()) <= _LONGEST:
        return get_temp_dir()
    asked, tempfile.tempdir = tempfile.tempdir, "/tmp"
    try:
        return get_temp_dir()
    finally:
        tempfile.tempdir = asked


def sweep_in_the_end() -> str:
    """In the server: where its socket is, which goes with it if the process that started it was killed."""
    driver, _, folder = os.environ.pop(_OURS, "0 ").partition(" ")
    if folder:
        atexit.register(_swept, int(driver), folder)
    return folder


def _swept(driver: int, folder: str) -> None:
    """Its files are closed a moment before a process is gone."""
    deadline = time.monotonic() + _MOMENT
    while os.getppid() == driver and time.monotonic() < deadline:
        time.sleep(_MOMENT / 100)
    if os.getppid() != driver:
        shutil.rmtree(folder, ignore_errors=True)
