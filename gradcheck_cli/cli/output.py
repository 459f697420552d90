"""Where a run's results go: stdout as they come or at the end, and report files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradcheck_cli.errors import UsageError
from gradcheck_cli.record import Check, Report
from gradcheck_cli.report import SUFFIXES, render, streamed
from gradcheck_cli.report.text import Style


class Output:
    """Writes records in the format that was asked for."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.format = options.get("output_format", "full")
        self.reports: Sequence[str] = options.get("report", ())
        self.style = style_of(options)
        self.shows = "show" in options
        self._pieces = streamed(self.format)

    @property
    def for_people(self) -> bool:
        """Errors need no record of their own: people read them on stderr."""
        return self.format in ("full", "concise")

    def section(self, checks: tuple[Check, ...], show: int | None = None) -> None:
        """The records of one check that has ended; `show` is what its spec says, if nobody said more."""
        if self._pieces is not None:
            style = self.style if show is None or self.shows else replace(self.style, show=show)
            _print(self._pieces.section(checks, style))

    def end(self, report: Report) -> None:
        """What comes last on stdout."""
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
    )


def colored(choice: str, terminal: bool) -> bool:
    """Whether to color: as chosen, else by NO_COLOR and FORCE_COLOR, else in a terminal."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (terminal and os.environ.get("TERM") != "dumb")


def _print(text: str) -> None:
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()
