"""One call in a forked process: its result comes back through a pipe, and so does what it raises.

The process begins as this one is, so that nothing has to be sent to it.  It is told off by the system where it asks for
more memory than it may have, watched from here, with all that it starts, and killed when its time is over.

Bounds that a process sets to itself, and the leash on which it dies with the process that started it.

How much memory groups of processes hold, as Linux tells it; nothing elsewhere.
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
import warnings
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from gradcheck_cli.errors import GradcheckError, LimitError
from gradcheck_cli.graph.memory import spell

LEAST = 64 << 20  # bytes beside what a process has from the start


def leave_no_core() -> None:
    """No file is written of a process that crashes; the system ends it first where memory ends."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def hold(size: int) -> None:
    """Allocations fail once the process has so many bytes of data, where the system can do that."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        there = [hard for hard in (resource.getrlimit(resource.RLIMIT_DATA)[1],) if hard != resource.RLIM_INFINITY]
        size = min([max(size, data() + LEAST), *there])
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def data() -> int:
    """Bytes that the limit of data counts already."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmData")).split()[1]) << 10
    return 0


def keep_apart(leash: int) -> None:
    """A process group of its own, which dies when nobody holds the other end of the leash, a pipe."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever holds it decides
    try:
        import fcntl

        fcntl.fcntl(leash, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(leash, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(leash, fcntl.F_SETFL, fcntl.fcntl(leash, fcntl.F_GETFL) | os.O_ASYNC)
    except (AttributeError, OSError):  # only Linux does that by itself
        threading.Thread(target=_hang_on, args=(leash,), daemon=True).start()


def _hang_on(leash: int) -> None:
    with suppress(OSError):
        os.read(leash, 1)
    os.killpg(0, signal.SIGKILL)


_HELD = (b"RssAnon", b"RssShmem")  # what is mapped from files can be dropped at any time
_GROUP = 2  # where a line of /proc/*/stat has the process group, counted from behind the name


def resident(process: int) -> int:
    """Bytes of its own that a process has in memory."""
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


T = TypeVar("T")
GRACE = 0.75  # seconds beyond the limit: the call stops by itself, unless it is stuck
_TICK, _REGROUPED = 0.02, 0.2  # seconds between two looks at it, and at what it has started
_CHUNK = 1 << 20
_OTHERS = 64 << 20  # bytes that processes which it starts have before they do anything
_SHOW_CURSOR = "\r\x1b[2K\x1b[?25h"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds and bytes that a call may take, beside what this process has."""

    timeout: float | None = None
    memory: int | None = None


class Stopped(LimitError):
    """The process of a call ended before the call did; `process` was its number."""

    def __init__(self, message: str, process: int, *, code: str) -> None:
        super().__init__(message, code=code)
        self.process = process


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while a call ran in the process number `process`, which is no more."""

    def __init__(self, process: int) -> None:
        super().__init__()
        self.process = process


class _Elsewhere(Exception):
    """The traceback of an error in another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def possible() -> bool:
    """This system has processes that fork."""
    return hasattr(os, "fork") and hasattr(os, "setpgid")


def run(call: Callable[[], T], bounds: Bounds) -> T:
    """What `call` returns or raises in a process of its own.

    Raises Stopped where that process took too much or crashed, and Interrupted for Ctrl-C: it is gone then, with
    whatever it has started.
    """
    ours, theirs = os.pipe()
    held, leash = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: those here wait, and none holds a lock
        pid = os.fork()
    if not pid:
        os.close(ours)
        os.close(leash)
        _serve(call, bounds, theirs, held)
    os.close(theirs)
    os.close(held)
    child = _Child(pid, ours, bounds)
    try:
        answer = child.heard()
    except KeyboardInterrupt:
        raise Interrupted(pid) from None
    finally:
        child.end()
        os.close(leash)
        os.close(ours)
    return _opened(answer, pid)


def _serve(call: Callable[[], Any], bounds: Bounds, answers: int, leash: int) -> NoReturn:
    """All that the forked process does; it ends it."""
    try:
        keep_apart(leash)
        with suppress(AttributeError):
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # it may still draw on the terminal
        leave_no_core()
        if bounds.memory is not None:
            hold(data() + bounds.memory)
        texts = _collected()
        try:
            answer = pickle.dumps(("value", call()), protocol=5)
        except BaseException as error:
            answer = _packed(error)
        sys.stdout.flush()
        sys.stderr.flush()
        left = memoryview(pickle.dumps(({n: text.getvalue() for n, text in texts.items()}, answer), protocol=5))
        while left:
            left = left[os.write(answers, left[:_CHUNK]) :]
    finally:
        os._exit(0)  # nothing is to be taken down with care


def _collected() -> dict[str, io.StringIO]:
    """Streams that are no files, of a notebook or a test, collect what is written here; it is written there."""
    found = {}
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).fileno()
        except (OSError, ValueError, AttributeError):
            found[name] = io.StringIO()
            setattr(sys, name, found[name])
    return found


def _packed(error: BaseException) -> bytes:
    """An error with its traceback; one that cannot be sent as what it says."""
    text = "".join(traceback.format_exception(error))
    try:
        answer = pickle.dumps(("error", error, text), protocol=5)
        pickle.loads(answer)
    except Exception:
        return pickle.dumps(("error", GradcheckError(f"{type(error).__name__}: {error}"), text))
    return answer


def _opened(answer: bytes, pid: int) -> Any:
    """What came back, returned or raised."""
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
    """The forked process as seen from here."""

    def __init__(self, pid: int, answers: int, bounds: Bounds) -> None:
        self.pid, self.answers, self.bounds = pid, answers, bounds
        self.deadline = time.monotonic() + (float("inf") if bounds.timeout is None else bounds.timeout + GRACE)
        self.start, self.group, self.grouped = resident(os.getpid()), [pid], 0.0
        self.status: int | None = None

    def heard(self) -> bytes:
        """All that it says until it ends; Stopped where it says nothing."""
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
        """It is no more, and nothing is left of its group."""
        with suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.status is None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            self._reap()
            if sys.stderr.isatty():  # what it was drawing there
                sys.stderr.write(_SHOW_CURSOR)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _watch(self) -> None:
        """Stopped, where it takes more than it may; of its memory what others have goes first."""
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


_MEANT = {
    "SIGSEGV": "a segmentation fault", "SIGABRT": "it aborted", "SIGBUS": "a bus error", "SIGFPE": "an arithmetic error",
    "SIGILL": "an illegal instruction", "SIGKILL": "by hand, or by the system because memory ran out",
}  # fmt: skip


def ending(code: int | None) -> str:
    """How a process ended before it was done, in words."""
    if code is None or code >= 0:
        return f"ended with exit code {code} before the check was done"
    name = f"signal {-code}"
    with suppress(ValueError):
        name = signal.Signals(-code).name
    return f"was killed by {name}" + (f" ({_MEANT[name]})" if name in _MEANT else "")
