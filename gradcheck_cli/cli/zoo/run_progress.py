"""The progress of a zoo run on stderr: in a terminal a bar, running models, memory and time left; else a line a model."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradcheck_cli.cli import note
from gradcheck_cli.errors import counted, shown
from gradcheck_cli.graph.memory import spell
from gradcheck_cli.report.text import columns, cut, seconds
from gradcheck_cli.report.zoo_summary import verdict, worst
from gradcheck_cli.zoo import Job, JobListener
from gradcheck_cli.zoo.store import brief

_MOST = 8  # running models that are shown


@dataclass(slots=True)
class _Running:
    """A running job."""

    name: str
    began: float
    stage: str = ""
    size: int = 0


class ZooProgress(JobListener):
    """A listener of the engine that shows progress, unless it is turned off."""

    def __init__(self, shown: str, total: int, before: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """Shows progress of `total` jobs, of which up to `before` were done in earlier runs."""
        terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.bar, self.lines = terminal and shown != "off", not terminal and shown != "off"
        self.clock, self.total, self.before = clock, total, before
        self.done = self.kept = self.failing = 0
        self.spent: list[float] = []  # seconds of each job that has ended
        self.at_once = 0  # the largest number of jobs that ran at once
        self.running: dict[str, _Running] = {}
        self._live: Any = None
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> ZooProgress:
        if self.bar:
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True)
            self._live = Live(
                get_renderable=lambda: self._drawn(console.width), console=console, transient=True, refresh_per_second=5,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def passed_over(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Counts a job that is not run, because it was done before or has no model."""
        self.kept += not records
        self._count(records)

    def started(self, job: Job) -> None:
        self.running[job.key] = _Running(job.uri, self.clock())
        self.at_once = max(self.at_once, len(self.running))

    def stage(self, job: Job, what: str) -> None:
        if job.key in self.running:
            self.running[job.key].stage = what

    def memory(self, job: Job, size: int) -> None:
        if job.key in self.running:
            self.running[job.key].size = size

    def ended(self, job: Job, records: Sequence[Mapping[str, Any]]) -> None:
        if (ran := self.running.pop(job.key, None)) is not None:
            self.spent.append(self.clock() - ran.began)
        self._count(records)

    def remark(self, text: str) -> None:
        note(text)

    def _count(self, records: Sequence[Mapping[str, Any]]) -> None:
        with self._one_at_a_time:  # `passed_over` is called in another thread
            self.done += 1
            self.failing += any(not check.passes for check in brief(records))
            if self.lines and records:
                width = len(str(self.total))
                print(f"[{self.done:{width}}/{self.total}] {_outcome(records)}", file=sys.stderr, flush=True)

    def seconds_left(self) -> float | None:
        """Estimated seconds until the end, from the mean time of a job; None until enough jobs have ended."""
        if len(self.spent) < max(self.at_once, 1):
            return None
        each, now = sum(self.spent) / len(self.spent), self.clock()
        running = [max(each - (now - job.began), 0.0) for job in list(self.running.values())]
        waiting = self.total - self.done - len(running) - max(self.before - self.kept, 0)
        return (sum(running) + each * max(waiting, 0)) / self.at_once

    def _drawn(self, width: int) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_row(ProgressBar(total=self.total, completed=self.done, width=20), Text(self.summary()))
        running = sorted(self.running.values(), key=lambda each: each.began)
        lines = [Text(self._line(each, max(width, 20)), no_wrap=True) for each in running[:_MOST]]
        return Group(grid, *lines)

    def summary(self) -> str:
        """The line beside the bar: 12/300, 2 failing, 1.2 GiB, about 3m 20s left."""
        size, left = sum(each.size for each in list(self.running.values())), self.seconds_left()
        parts = [f"{self.done}/{self.total}", f"{self.failing} failing" if self.failing else ""]
        parts += [spell(size) if size else "", f"about {_roughly(left)} left" if left is not None else ""]
        return ", ".join(filter(None, parts))

    def _line(self, each: _Running, width: int) -> str:
        """The line of a running job: name and stage, shortened to fit, time and memory."""
        numbers = f"{self.clock() - each.began:.0f}s" + (f"  {spell(each.size)}" if each.size else "")
        free = width - len(numbers) - 4
        name = cut(shown(each.name), free if not each.stage else max(free * 2 // 3, 10))
        stage = cut(shown(each.stage), max(free - columns(name) - 2, 0)) if each.stage else ""
        return f"  {name}  {stage}".rstrip() + f"  {numbers}"


def _roughly(duration: float) -> str:
    return f"{max(duration, 1):.0f}s" if duration < 120 else seconds(duration)


def _outcome(records: Sequence[Mapping[str, Any]]) -> str:
    """The line of a finished job: FAIL GC101 models/net.onnx, 3 checks in 0.84s."""
    checks = brief(records)
    took, decides = seconds(sum(check.duration_s for check in checks)), worst(checks)
    file, check = decides.model.uri, decides.check
    label = check if f"{check}::".startswith(f"{file}::") else f"{file}::{check}"
    return f"{shown(verdict(decides))} {shown(label)}, {counted(len(checks), 'check')} in {took} of checks"
