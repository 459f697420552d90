"""Bounds that a process sets to itself, and the leash on which it dies with the process that started it."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

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
