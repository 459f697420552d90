"""Times of several things taken side by side: in turns, so that whatever else the machine does meets all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

_LEAST = 0.01  # seconds that are timed at once: shorter calls are made several times
_SETTLED = 0.12  # seconds after which the threads of OpenBLAS and OpenMP sleep, and no longer look for work on a core
_SHORT = 0.1  # seconds: a call that takes less feels that the processor has slept before it


def once(function: Callable[[], Any]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turns(functions: Mapping[str, Callable[[], Any]], rounds: int = 5) -> dict[str, list[float]]:
    """Seconds a call, `rounds` of them for each, after some that are not counted: everybody is warm."""
    often = {name: _calls(function) for name, function in functions.items()}
    runs = {name: _repeating(function, often[name]) for name, function in functions.items()}
    short = {name for name, run in runs.items() if once(run) < _SHORT}
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, run in runs.items():
            time.sleep(_SETTLED)
            if name in short:
                run()  # wakes the processor: its clock and caches take some milliseconds
            times[name].append(once(run) / often[name])
    return times


def ratio(times: Mapping[str, list[float]], peer: str, ours: str) -> float:
    """Speed-up of `ours`: the median over rounds of the ratio within a round."""
    return statistics.median(p / o for p, o in zip(times[peer], times[ours], strict=True))


def repeated(function: Callable[[], Any], seconds: float = 0.02) -> Callable[[], Any]:
    """The function as often in a row as takes about this long; the number is in `.calls`."""
    calls = _calls(function, seconds)
    run = _repeating(function, calls)
    run.calls = calls  # type: ignore[attr-defined]
    return run


def _calls(function: Callable[[], Any], seconds: float = _LEAST) -> int:
    """Number of calls that take so long, by the second one: the first may fill caches."""
    return 1 if once(function) > 100 * seconds else max(1, round(seconds / max(once(function), 1e-7)))


def _repeating(function: Callable[[], Any], calls: int) -> Callable[[], Any]:
    def run() -> None:
        for _ in range(calls):
            function()

    return run
