"""A check by its phases: where the time goes that a goal misses.  The stack of calls is sampled on one thread.

python -m benchmarks.phases
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from benchmarks.alone import alone
from benchmarks.cases import CASES
from benchmarks.jacobians import ours
from benchmarks.one_thread import VARIABLES
from benchmarks.table import Table, write

PHASES = {  # each by the files, or a file and the beginning of a function, that one of the calls has: the first counts
    "health": ("checks/health/",),
    "laws": ("checks/diagnose/laws.py",),
    "audit": ("compare/audit.py",),
    "point": ("points/",),
    "theoretical": ("jacobian/jacobian.py:Backward", "autodiff/backward.py", "compare/partial.py:Partial._theoretical"),
    "numerical": ("compare/ladder.py", "engine/", "jacobian/"),
    "verdict": ("verdict/", "compare/"),
}
KERNELS = (
    "gradcheck_cli/native/",
    "/numpy/",
)  # files whose functions call compiled code, and compute little themselves
_SAMPLE = 0.5e-3  # seconds of CPU between two samples
_LONG = 2.0  # seconds of CPU that are sampled of each check


def tables(quick: bool = False) -> Iterator[Table]:
    """One table: shares of the CPU time of warm checks."""
    head = ("case", "mode", "CPU, ms", *(f"{phase}, %" for phase in PHASES), "rest, %", "in kernels, %", "Python calls")
    found, _ = alone("benchmarks.phases:rows", VARIABLES, quick=quick)
    yield Table("Phases of a check, one thread", head, [tuple(row) for row in found])


def rows(quick: bool) -> list[tuple[Any, ...]]:
    """A row for each case and mode."""
    cases = CASES[:1] if quick else CASES
    return [
        (case.name, mode, *measured(dict(ours(case, 1))[mode])) for case in cases for mode in ("auto", "directional")
    ]


def measured(check: Callable[[], Any]) -> tuple[Any, ...]:
    """Milliseconds of CPU of a check, the shares of its phases, the share in kernels, and its calls in Python."""
    for _ in range(5):
        check()
    samples, start, often = Counter[str](), time.process_time(), 0

    def sample(_: int, frame: FrameType | None) -> None:
        samples[_phase(frame)] += 1
        samples["kernels"] += frame is not None and any(part in frame.f_code.co_filename for part in KERNELS)

    before = signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, _SAMPLE, _SAMPLE)
    try:
        while time.process_time() - start < _LONG:
            check()
            often += 1
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    milliseconds = 1e3 * (time.process_time() - start) / often
    counted = sum(samples[phase] for phase in (*PHASES, "rest"))
    shares = (1e2 * samples[name] / counted for name in (*PHASES, "rest", "kernels"))
    return milliseconds, *(round(share) for share in shares), _calls(check)


def _phase(frame: FrameType | None) -> str:
    """The phase that a stack of calls belongs to."""
    calls = []
    while frame is not None:
        code = frame.f_code
        calls.append(f"{code.co_filename.rpartition('gradcheck_cli/')[2]}:{code.co_qualname}")
        frame = frame.f_back
    return next((phase for phase, marks in PHASES.items() if any(call.startswith(marks) for call in calls)), "rest")


def _calls(check: Callable[[], Any]) -> int:
    """Number of calls of functions in Python, those of built-in ones included."""
    counted = Counter[str]()

    def count(_: Any, event: str, __: Any) -> None:
        counted[event] += 1

    sys.setprofile(count)
    try:
        check()
    finally:
        sys.setprofile(None)
    return counted["call"] + counted["c_call"]


if __name__ == "__main__":
    write(*tables())
