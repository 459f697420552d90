"""Where a run's results go: stdout as they come or at the end, and report files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TextIO

from gradcheck_cli.errors import UsageError
from gradcheck_cli.record import Check, Report
from gradcheck_cli.report import SUFFIXES, axes, render, streamed
from gradcheck_cli.report.text import Style, clean


class Output:
    """Writes records in the format that was asked for."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.format = options.get("output_format", "full")
        self.reports: Sequence[str] = options.get("report", ())
        self.style = style_of(options)
        self.shows = "show" in options
        self._pieces = streamed(self.format)
        self.heatmap, self.plot, self.drawn = bool(options.get("heatmap")), options.get("plot", ""), 0
        if self.plot:
            from gradcheck_cli.report.plot import require_matplotlib

            require_matplotlib()

    @property
    def for_people(self) -> bool:
        """Errors need no record of their own: people read them on stderr."""
        return self.format in ("full", "concise")

    def section(self, checks: tuple[Check, ...], show: int | None = None) -> None:
        """The records of one check that has ended; `show` is what its spec says, if nobody said more."""
        if self._pieces is not None:
            style = self.style if show is None or self.shows else replace(self.style, show=show)
            _print(self._pieces.section(checks, style))

    @property
    def draws(self) -> bool:
        """Pictures of the checks were asked for."""
        return self.heatmap or bool(self.plot)

    def draw(self, checks: tuple[Check, ...]) -> None:
        """Pictures of checks that have ended: beside what people read, a figure a check."""
        if not self.draws:
            return
        from gradcheck_cli.report import heatmap, plot  # bring what pictures are made of

        drawn = [c for c in checks if c.picture is not None]
        if self.heatmap:
            shown = [c for c in drawn if self.style.verbosity >= 0 or c.status not in ("pass", "waived")]
            text = "".join(heatmap.section(c, self.style) for c in shown)
            _print(text, sys.stdout if self.for_people else sys.stderr)
        for check in drawn if self.plot else ():
            self.drawn += 1
            plot.write(check, path := plot.numbered(self.plot, self.drawn))
            self._note(f"{path}: {axes.derivative(check, 60)}")

    def _note(self, text: str) -> None:
        if self.style.verbosity >= 0:
            print(f"note: {clean(text)}", file=sys.stderr)

    def end(self, report: Report) -> None:
        """What comes last on stdout."""
        if self.plot and not self.drawn:
            self._note(f"nothing was compared, so --plot {self.plot} was not written")
        _print(
            render(self.format, report, self.style)
            if self._pieces is None
            else self._pieces.summary(report, self.style)
        )

    def write_reports(self, report: Report) -> None:
        """The files of `--report`, whole: without colors, and with every entry that was kept."""
        style = Style(show=max(self.style.show, 20))
        for path in self.reports:
            text = render(SUFFIXES[os.path.splitext(path)[1]], report, style)
            try:
                with open(path, "w", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
                    file.write(text)
            except OSError as error:
                raise UsageError(f"--report {path} cannot be written: {error.strerror or error}") from None


def style_of(options: Mapping[str, Any]) -> Style:
    """Colors and width of the terminal; plain and 80 columns where there is none."""
    terminal = sys.stdout.isatty()
    verbosity = options.get("verbose", 0) - options.get("quiet", 0)
    return Style(
        color=colored(options.get("color", "auto"), terminal),
        width=shutil.get_terminal_size().columns if terminal else 80,
        show=options.get("show", 3),
        verbosity=verbosity,
        ascii=not _shows_blocks(sys.stdout),
        health=bool(options.get("health")),
    )


def colored(choice: str, terminal: bool) -> bool:
    """Whether to color: as chosen, else by NO_COLOR and FORCE_COLOR, else in a terminal."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (terminal and os.environ.get("TERM") != "dumb")


def _shows_blocks(stream: TextIO) -> bool:
    """Whether a stream can take more than ASCII."""
    try:
        "·░▒▓█".encode(stream.encoding or "ascii")
    except (UnicodeError, LookupError):
        return False
    return True


def _print(text: str, stream: TextIO | None = None) -> None:
    if text:
        stream = stream or sys.stdout
        stream.write(text)
        stream.flush()
