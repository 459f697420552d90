"""Times of several things taken side by side: in turns, so that whatever else the machine does meets all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def once(function: Callable[[], Any]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def in_turns(functions: Mapping[str, Callable[[], Any]], rounds: int = 5) -> dict[str, list[float]]:
    """Seconds a call, `rounds` of them for each, after one that is not counted."""
    for function in functions.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            times[name].append(once(function))
    return times


def ratio(times: Mapping[str, list[float]], peer: str, ours: str) -> float:
    """How many times faster `ours` is: the median over rounds of the ratio within a round."""
    return statistics.median(p / o for p, o in zip(times[peer], times[ours], strict=True))


def repeated(function: Callable[[], Any], seconds: float = 0.02) -> Callable[[], Any]:
    """The function as often in a row as takes about this long; the number is in `.calls`."""
    function()
    calls = max(1, round(seconds / max(once(function), 1e-7)))

    def run() -> None:
        for _ in range(calls):
            function()

    run.calls = calls  # type: ignore[attr-defined]
    return run
