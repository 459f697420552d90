"""Progress of a run: a bar in a terminal or a notebook, lines on stderr elsewhere; drawn only for work that lasts.

Time left starts as what was forecast, and follows what has been seen: pairs that are done say how far off forecasts
are, and the pass that runs says how long it still takes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from gradcheck_cli.errors import clean, shown

if TYPE_CHECKING:
    from gradcheck_cli.checks.estimates import Forecast

_PATIENCE = 1.0  # seconds without a word
_PACE, _PACE_OF_LINES = 0.1, 2.0
_LATE = 0.1  # of the time that a pair took: still left while it runs, whatever was forecast
_OFF = 10.0  # times as long, or as short, as forecast: beyond this the past says nothing of the future


class Remaining:
    """Time left of a model: pairs that were forecast, the one that is compared, and the pass that runs."""

    def __init__(self, now: float) -> None:
        self.began = self.since = self.passed = now  # the model's pairs, this pair, this pass
        self.waiting: dict[str, float] = {}  # seconds forecast, by title
        self.finished = self.current = 0.0
        self.done = self.total = 0

    def expect(self, forecast: dict[str, float], now: float) -> None:
        """Takes the seconds that were forecast for the pairs that will be compared."""
        self.waiting = {**self.waiting, **forecast}
        self.began = self.since = now

    def start(self, title: str, now: float) -> None:
        """Takes note of a pair that begins, or of one more pass of it."""
        self.passed, self.done = now, 0
        if title in self.waiting:
            self.finished, self.current, self.since = self.finished + self.current, self.waiting.pop(title), now

    def advance(self, done: int, total: int, now: float) -> None:
        """Takes the number of probes of a pass that are done."""
        if done <= self.done or total != self.total:
            self.passed = now if self.done else self.passed
        self.done, self.total = done, total

    def seconds(self, now: float) -> float | None:
        """Seconds left; None where nothing was forecast."""
        if not self.current:
            return sum(self.waiting.values()) or None
        speed = (self.since - self.began) / self.finished if self.finished else 1.0
        speed = min(max(speed, 1 / _OFF), _OFF)
        gone = now - self.since
        here = max(self.current * speed - gone, _LATE * gone)
        there = (now - self.passed) / self.done * (self.total - self.done) if self.done else 0.0
        return max(here, there) + speed * sum(self.waiting.values())

    def share(self, now: float) -> float:
        """The share of all that is done, from 0 to 1."""
        left, gone = self.seconds(now), now - self.began
        if left is None:
            return self.done / self.total if self.total else 0.0
        return gone / max(gone + left, 1e-9)


class Progress:
    """Shows the progress of a check once its model takes, or will take, longer than a second."""

    def __init__(self, when: str, clock: Callable[[], float] = time.monotonic, *, verbose: bool = False) -> None:
        self.made, self.clock = _bar(), clock
        self.on, self.verbose = when == "on" or (when == "auto" and self.made is not None), verbose
        self.began = self.drawn = clock()
        self.remaining = Remaining(self.began)
        self.model = self.title = self.what = ""
        self._bar: Bar | None = None

    def begin(self, model: str) -> None:
        """Takes note of a model that begins."""
        self.done()
        self.model, self.began = model, self.clock()
        self.remaining = Remaining(self.began)

    def expect(self, forecasts: Iterator[Forecast]) -> None:
        """Tells the predicted time of pairs: with -v as a line, and as the first state of a bar."""
        if not self.on and not self.verbose:
            return
        try:
            found = list(forecasts)
        except Exception:  # what goes wrong there goes wrong in the check too, which says it
            return
        self.what = found[0].what.split(",")[0] if found else ""
        now = self.clock()
        self.remaining.expect({each.title: each.seconds for each in found}, now)
        for each in found if self.verbose else ():
            _line(f"{self.model}  {each}")
        if self.on and self.made is not None and sum(each.seconds for each in found) > _PATIENCE:
            self._draw(self.model, "", now)

    def start(self, title: str, total: int) -> None:
        """Takes note of a pair that begins, or of one more pass of it."""
        self.title = title
        if self.remaining.waiting or self.remaining.current:
            self.remaining.start(title, self.clock())

    def advance(self, done: int, total: int) -> None:
        """Takes the number of probes of a pass that are done, and shows it at intervals."""
        now = self.clock()
        self.remaining.advance(done, total, now)
        pace = _PACE_OF_LINES if self.made is None else _PACE
        if not self.on or (now - self.began < _PATIENCE and self._bar is None) or now - self.drawn < pace:
            return
        self.drawn = now
        title = f"{self.model}  {self.title}".strip()
        if self.made is not None:
            self._draw(title, f"{done}/{total}", now)
        else:
            _line(f"{title}  {done}/{total}{self._left(now)}")

    def done(self) -> None:
        """Removes the bar, so that the next text is printed on lines of its own."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _left(self, now: float) -> str:
        left = self.remaining.seconds(now)
        if left is None:
            return ""
        from gradcheck_cli.jacobian.cost import duration

        return f"  about {duration(left)} left"

    def _draw(self, title: str, part: str, now: float) -> None:
        part = f"{part}{self._left(now)}".strip()
        if self._bar is None:
            assert self.made is not None
            self._bar = self.made()
        self._bar.draw(title, self.remaining.share(now), part)


class Bar(Protocol):
    """A bar that is drawn as often as one likes, and taken away at the end."""

    def draw(self, title: str, share: float, part: str) -> None: ...
    def stop(self) -> None: ...


def _bar() -> Callable[[], Bar] | None:
    """The kind of bar that whoever looks on can see; None where lines have to do."""
    if _in_notebook():
        return NotebookBar
    return TerminalBar if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else None


def _in_notebook() -> bool:
    """True in the process of a notebook's kernel; what it forks cannot reach the page."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    kernel = getattr(shell, "kernel", None)
    return kernel is not None and getattr(kernel.session, "pid", None) == os.getpid()


class TerminalBar:
    """A bar on a line of stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
        from rich.table import Column

        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("{task.fields[part]}", markup=False, table_column=Column(no_wrap=True, min_width=24)),
        )
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("", total=1.0, part="")
        self._bar.start()

    def draw(self, title: str, share: float, part: str) -> None:
        self._bar.update(self._task, description=shown(title), completed=share, part=part)

    def stop(self) -> None:
        self._bar.stop()


class NotebookBar:
    """A bar below a notebook's cell, made of HTML alone, so that no extension has to be installed."""

    def __init__(self) -> None:
        import IPython.display

        display: Any = IPython.display.display
        self._shown = display(_shown_as("", ""), raw=True, display_id=True)

    def draw(self, title: str, share: float, part: str) -> None:
        from html import escape

        text = shown(f"{title}  {part}".strip())
        bar = f'<progress max="1" value="{min(max(share, 0.0), 1.0):.3f}" aria-label="Progress"></progress>'
        self._shown.update(_shown_as(f"{share:4.0%}  {text}", f"{bar} {escape(text)}"), raw=True)

    def stop(self) -> None:
        self._shown.update(_shown_as("", ""), raw=True)


def _shown_as(text: str, html: str) -> dict[str, str]:
    """A display in both its forms."""
    return {"text/plain": text, "text/html": html}


def _line(text: str) -> None:
    """Prints a line to stderr."""
    print(clean(text), file=sys.stderr, flush=True)
