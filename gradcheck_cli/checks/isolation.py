"""One call in a forked process: its return value, or its exception, comes back through a pipe.

The child starts as a copy of this process, so nothing has to be sent to it.  Its allocations fail above the memory
limit (`hold`), this process watches its memory and that of all its descendants, as /proc on Linux shows it, and kills
it when its time is over.  A pipe that it holds as a leash kills it if this process dies.
"""

from __future__ import annotations

import io
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar

from gradcheck_cli.errors import GradcheckError, LimitError, sendable, unwarned
from gradcheck_cli.graph.memory import release, spell

T = TypeVar("T")
LEAST = 64 << 20  # bytes that a process may have on top of those it has from the start
GRACE = 0.75  # seconds beyond the limit in which a call may stop by itself
_TICK, _REGROUPED = 0.02, 0.2  # seconds between two checks of the child's memory, and of the list of its descendants
_CHUNK = 1 << 20
_OTHERS = 64 << 20  # bytes that its descendants have from the start
_SHOW_CURSOR = "\r\x1b[2K\x1b[?25h"
_HELD = (b"RssAnon", b"RssShmem")  # pages of mapped files can be dropped at any time
_GROUP = 2  # field of the process group in /proc/*/stat, counted from behind the name
_MEANT = {
    "SIGSEGV": "a segmentation fault", "SIGABRT": "it aborted", "SIGBUS": "a bus error", "SIGFPE": "an arithmetic error",
    "SIGILL": "an illegal instruction", "SIGKILL": "by hand, or by the system because memory ran out",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds and bytes that a call may take, on top of those of this process."""

    timeout: float | None = None
    memory: int | None = None


class Stopped(LimitError):
    """The process of a call ended before the call did; `process` was its id."""

    def __init__(self, message: str, process: int, *, code: str) -> None:
        super().__init__(message, code=code)
        self.process = process

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, since an exception is made again from its arguments by position."""
        return partial(Stopped, code=self.code), (str(self), self.process)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while a call ran in process `process`, which has ended."""

    def __init__(self, process: int) -> None:
        super().__init__()
        self.process = process

    def __reduce__(self) -> tuple[Any, ...]:
        return Interrupted, (self.process,)


class _Elsewhere(Exception):
    """The traceback of an error in another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def possible() -> bool:
    """True on systems that can fork."""
    return hasattr(os, "fork") and hasattr(os, "setpgid")


def run(call: Callable[[], T], bounds: Bounds) -> T:
    """Return value of `call`, run in a process of its own; its exceptions are raised here.

    Raises Stopped if that process exceeded its bounds or crashed, and Interrupted for Ctrl-C; the process and all that
    it started have ended then.
    """
    ours, theirs = os.pipe()
    held, leash = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    interrupt = _KeptBack()
    try:
        with unwarned():
            pid = os.fork()
    except OSError:
        interrupt.restore()
        raise
    if not pid:
        interrupt.restore()
        os.close(ours)
        os.close(leash)
        _serve(call, bounds, theirs, held)
    os.close(theirs)
    os.close(held)
    child = _Child(pid, ours, bounds)
    try:
        interrupt.restore()
        answer = child.heard()
    except KeyboardInterrupt:
        raise Interrupted(pid) from None
    finally:
        child.end()
        os.close(leash)
        os.close(ours)
    return _opened(answer, pid)


class _KeptBack:
    """Ctrl-C, kept back while a process starts: before there is a child to end, it would leave one behind."""

    def __init__(self) -> None:
        self.came, self.handler = False, signal.getsignal(signal.SIGINT)
        self.active = threading.current_thread() is threading.main_thread() and callable(self.handler)
        if self.active:
            signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = True

    def restore(self) -> None:
        """Puts the handler back; raises KeyboardInterrupt for a Ctrl-C that came."""
        if self.active:
            signal.signal(signal.SIGINT, self.handler)
            if self.came:
                raise KeyboardInterrupt


def _serve(call: Callable[[], Any], bounds: Bounds, answers: int, leash: int) -> NoReturn:
    """Runs the call in the forked process, sends its answer and ends the process."""
    try:
        keep_apart(leash)
        with suppress(AttributeError):
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it may write to the terminal
        leave_no_core()
        if bounds.memory is not None:
            hold(data() + bounds.memory)
        texts = _collected()
        try:
            answer = pickle.dumps(("value", call()), protocol=5)
        except BaseException as error:
            answer = _packed(MemoryError() if bounds.memory is not None and _is_without_room(error) else error)
        sys.stdout.flush()
        sys.stderr.flush()
        left = memoryview(pickle.dumps(({n: text.getvalue() for n, text in texts.items()}, answer), protocol=5))
        while left:
            left = left[os.write(answers, left[:_CHUNK]) :]
    finally:
        os._exit(0)  # without cleanup, which belongs to the parent


def _collected() -> dict[str, io.StringIO]:
    """Replaces streams that are no files, as in a notebook or a test, by buffers whose text is sent to the parent."""
    found = {}
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).fileno()
        except (OSError, ValueError, AttributeError):
            found[name] = io.StringIO()
            setattr(sys, name, found[name])
    return found


def _is_without_room(error: BaseException) -> bool:
    """True for the error of Python itself where there is no memory for the frame of a call (CPython 3.11)."""
    return isinstance(error, SystemError) and "without exception set" in str(error)


def _packed(error: BaseException) -> bytes:
    """An exception with its traceback, pickled; what its frames hold is freed, for memory may have run out."""
    release(error)
    return pickle.dumps(("error", sendable(error), "".join(traceback.format_exception(error))), protocol=5)


def _opened(answer: bytes, pid: int) -> Any:
    """The answer of the child: its value, or its exception raised."""
    try:
        told, answer = pickle.loads(answer)
        kind, value, *text = pickle.loads(answer)
    except Exception:
        raise Stopped("its process sent half an answer", pid, code="GC603") from None
    for name, said in told.items():
        if said:
            getattr(sys, name).write(said)
    if kind == "error":
        raise value from (_Elsewhere(text[0]) if not isinstance(value, GradcheckError) else None)
    return value


class _Child:
    """The forked process as seen by its parent."""

    def __init__(self, pid: int, answers: int, bounds: Bounds) -> None:
        self.pid, self.answers, self.bounds = pid, answers, bounds
        self.deadline = time.monotonic() + (float("inf") if bounds.timeout is None else bounds.timeout + GRACE)
        self.start, self.group, self.grouped = resident(os.getpid()), [pid], 0.0
        self.status: int | None = None

    def heard(self) -> bytes:
        """All bytes that the child sends until it ends; Stopped if there are none."""
        parts: list[bytes] = []
        while True:
            ready, _, _ = select.select([self.answers], [], [], _TICK)
            if ready:
                if not (part := os.read(self.answers, _CHUNK)):
                    break
                parts.append(part)
            else:
                self._watch()
        self._reap()
        if not parts:
            raise Stopped(f"its process {ending(self.status)}", self.pid, code="GC603")
        return b"".join(parts)

    def end(self) -> None:
        """Kills the child and its group."""
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.status is None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            self._reap()
            if sys.stderr.isatty():  # it may have hidden the cursor
                sys.stderr.write(_SHOW_CURSOR)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _watch(self) -> None:
        """Raises Stopped if the child exceeds its bounds; of its memory, that of its descendants is freed first."""
        now = time.monotonic()
        if now > self.deadline:
            limit = f"{self.bounds.timeout:g} s (--timeout)"
            raise Stopped(f"took longer than {limit} and did not stop by itself", self.pid, code="GC601")
        if self.bounds.memory is None:
            return
        if now > self.grouped + _REGROUPED:
            self.grouped, self.group = now, members([self.pid])[self.pid] or [self.pid]
        sizes = {process: resident(process) for process in self.group}
        most = self.start + max(self.bounds.memory, _OTHERS) + _OTHERS
        if sizes.get(self.pid, 0) > most:
            limit = f"{spell(self.bounds.memory)} of memory (--memory-limit)"
            raise Stopped(f"held more than {limit} and was stopped", self.pid, code="GC602")
        if sum(sizes.values()) > most + _OTHERS:
            for process in self.group:
                if process != self.pid:
                    with suppress(OSError):
                        os.kill(process, signal.SIGKILL)


def ending(code: int | None) -> str:
    """The end of a process in words: its signal, or its exit code."""
    if code is None or code >= 0:
        return f"ended with exit code {code} before the check was done"
    name = f"signal {-code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
    return f"was killed by {name}" + (f" ({_MEANT[name]})" if name in _MEANT else "")


def keep_apart(leash: int) -> None:
    """Puts this process into a group of its own that is killed once nobody holds the other end of the leash, a pipe."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    try:
        import fcntl

        fcntl.fcntl(leash, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(leash, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(leash, fcntl.F_SETFL, fcntl.fcntl(leash, fcntl.F_GETFL) | os.O_ASYNC)
    except (AttributeError, OSError):  # only Linux sends that signal
        threading.Thread(target=_hang_on, args=(leash,), daemon=True).start()


def _hang_on(leash: int) -> None:
    with suppress(OSError):
        os.read(leash, 1)
    os.killpg(0, signal.SIGKILL)


def leave_no_core() -> None:
    """Disables core dumps of this process, and makes it the first to be killed when the machine runs out of memory."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def hold(size: int) -> None:
    """Makes allocations fail once the process has `size` bytes of data, on systems that support it."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        there = [hard for hard in (resource.getrlimit(resource.RLIMIT_DATA)[1],) if hard != resource.RLIM_INFINITY]
        size = min([max(size, data() + LEAST), *there])
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def data() -> int:
    """Bytes of this process that count against the limit of data already."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmData")).split()[1]) << 10
    return 0


def resident(process: int) -> int:
    """Resident bytes of a process, without mapped files."""
    with suppress(OSError, ValueError):
        rows = (line.split() for line in Path(f"/proc/{process}/status").read_bytes().splitlines())
        return sum(int(row[1]) << 10 for row in rows if row[0].rstrip(b":") in _HELD)
    return 0


def members(groups: Collection[int]) -> dict[int, list[int]]:
    """The processes of each group."""
    found: dict[int, list[int]] = {group: [] for group in groups}
    with suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdecimal() and (group := _group(int(name))) in found:
                found[group].append(int(name))
    return found


def _group(process: int) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2].split()[_GROUP])
    return 0
