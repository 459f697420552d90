"""How far a run is, on stderr: a bar in a terminal, lines elsewhere; drawn only for work that lasts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

_PATIENCE = 1.0  # seconds without a word
_PACE, _PACE_OF_LINES = 0.1, 2.0


class Progress:
    """Hears of a check's progress and shows it once a model takes longer than a second."""

    def __init__(self, shown: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.terminal, self.clock = sys.stderr.isatty(), clock
        self.on = shown == "on" or (shown == "auto" and self.terminal)
        self.began = self.drawn = clock()
        self.model = self.title = ""
        self._bar: Any = None
        self._task: Any = None

    def begin(self, model: str) -> None:
        """A model begins."""
        self.done()
        self.model, self.began = model, self.clock()

    def start(self, title: str, total: int) -> None:
        """A pair of the model begins."""
        self.title = title

    def advance(self, done: int, total: int) -> None:
        """So many probes of a pass are done."""
        now = self.clock()
        pace = _PACE if self.terminal else _PACE_OF_LINES
        if not self.on or now - self.began < _PATIENCE or now - self.drawn < pace:
            return
        self.drawn = now
        title = f"{self.model}  {self.title}".strip()
        if self.terminal:
            self._draw(title, done, total)
        else:
            print(f"{title}  {done}/{total}", file=sys.stderr, flush=True)

    def done(self) -> None:
        """Takes the bar away, so that what is printed next stands alone."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _draw(self, title: str, done: int, total: int) -> None:
        if self._bar is None:
            self._open(title)
        self._bar.update(self._task, description=title, completed=done, total=total)

    def _open(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(title)
        self._bar.start()
