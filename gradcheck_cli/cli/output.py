"""The outputs of a run: stdout, as results come or at the end, and report files."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TextIO

from msgspec import structs

from gradcheck_cli.cli import Titles, note
from gradcheck_cli.errors import UsageError, harmless
from gradcheck_cli.report import FORMATS, format_of, parts, write
from gradcheck_cli.report.text import ENDLESS, Style, colored, wrapped
from gradcheck_cli.results.record import Check, Report
from gradcheck_cli.settings import Pictures

_LABEL, _COMMANDS = re.compile(r" *(\S+  +)?"), ("  run  ", "  gradcheck ")
_LEAST_WIDTH = 20  # columns: nothing can be laid out in fewer


class Output:
    """Writes records in the format that was asked for."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.format = FORMATS[options.get("output_format", "full")]
        self.reports: Sequence[str] = options.get("report", ())
        self.style, self.shows = style_of(options), "show" in options
        self.for_people = self.format.for_people
        self._pieces = self.format.load() if self.format.streamed else None
        self._summary = ""
        if self.format.workflow:
            from gradcheck_cli.report.markdown import job_summary

            self._summary = job_summary()
        self.heatmap, self.plot, self.drawn = bool(options.get("heatmap")), options.get("plot", ""), 0
        if self.plot:
            from gradcheck_cli.report.plot import require_matplotlib

            require_matplotlib()
        files = [*filter(None, map(format_of, self.reports))]
        for form in files:
            form.require()
        self._illustrated = any(form.pictured for form in files)

    def section(self, checks: tuple[Check, ...], show: int | None = None) -> None:
        """The records of one check that has ended; `show` is what its spec says, if nobody said more."""
        if self._pieces is not None:
            style = self.style if show is None or self.shows else structs.replace(self.style, show=show)
            self.put(self._pieces.section(checks, style))

    @property
    def pictures(self) -> Pictures:
        """The checks that have to keep the data of pictures: some formats show pictures of what is wrong."""
        return "all" if self.heatmap or self.plot else "wrong" if self._illustrated else "none"

    def kept(self, check: Check) -> Check:
        """A record with as much of its picture's data as is needed until the end."""
        wanted = check.picture if self._illustrated and check.status != "pass" else None
        return replace(check, picture=wanted and wanted.small)

    def draw(self, checks: tuple[Check, ...]) -> None:
        """Prints the heatmaps of checks that have ended, and draws a figure of each."""
        if not (self.heatmap or self.plot):
            return
        from gradcheck_cli.report import heatmap, plot  # bring what pictures are made of

        drawn = [c for c in checks if c.picture is not None]
        if self.heatmap:
            shown = [c for c in drawn if self.style.verbosity >= 0 or not c.passes]
            text = "".join(heatmap.section(c, self.style) for c in shown)
            _print(harmless(text, color=self.style.color), sys.stdout if self.for_people else sys.stderr)
        for check in drawn if self.plot else ():
            self.drawn += 1
            path = plot.numbered(self.plot, self.drawn)
            plot.write(check, path, follow=path == self.plot)  # nobody gave the others, and a link may lie there
            self._note(f"{path}: {heatmap.derivative(check, 60)}")

    def _note(self, text: str) -> None:
        if self.style.verbosity >= 0:
            note(text)

    def end(self, report: Report) -> None:
        """Prints what comes last on stdout."""
        if self.plot and not self.drawn:
            self._note(f"nothing was compared, so --plot {self.plot} was not written")
        if self._pieces is None:
            self.whole(report)
        else:
            self.put(self._pieces.summary(report, self.style))

    @property
    def writes(self) -> bool:
        """True if files or a summary are to be written."""
        return bool(self.reports or self._summary)

    def put(self, text: str) -> None:
        """Prints text to stdout."""
        _print(self.format.harmless(text, color=self.style.color))

    def whole(self, report: Report) -> None:
        """Prints a whole report."""
        for part in parts(self.format.name, report, self.style):
            self.put(part)

    def write_reports(self, report: Report, form: str = "") -> None:
        """Writes the files of `--report`, without colors and with every entry that was kept.

        One that fails is no reason not to write the others.
        """
        style, failed = Style(show=max(self.style.show, 20)), list[UsageError]()
        for path in self.reports:
            try:
                write(path, report, style, form)
            except (OSError, UsageError) as error:
                reason = f"--report {path} cannot be written: {getattr(error, 'strerror', None) or error}"
                failed.append(error if isinstance(error, UsageError) else UsageError(reason))
        if self._summary:
            from gradcheck_cli.report.markdown import add_summary

            try:
                add_summary(self._summary, report, style)
            except OSError as error:
                self._note(f"the summary of this step cannot be written: {error.strerror or error}")
        if failed:
            raise failed[0]


def style_of(options: Mapping[str, Any]) -> Style:
    """Colors and width of the terminal; where there is none, plain lines of COLUMNS, or of any length."""
    terminal = sys.stdout.isatty()
    Titles.color = options.get("color", "auto")
    color = colored(Titles.color, terminal)
    return Style(
        color=color,
        links=color and terminal,
        width=max(_LEAST_WIDTH, _columns(terminal)),
        show=options.get("show", 3),
        verbosity=options.get("verbose", 0) - options.get("quiet", 0),
        ascii=not _shows_blocks(sys.stdout),
        health=bool(options.get("health")),
    )


def fitted(lines: Iterable[str]) -> str:
    """Lines of a label and words, "  note    nothing depends on x", as the screen holds them; commands stay whole."""
    width = style_of({}).width
    return "\n".join(part for text in lines for line in text.split("\n") for part in _parts(line, width))


def _parts(line: str, width: int) -> list[str]:
    if line.startswith(_COMMANDS):
        return [line]
    label = _LABEL.match(line)[0]  # type: ignore[index]  # it matches anything
    indent = " " * (len(label) if label.startswith(" ") and len(label) < width / 2 else 2)
    return wrapped(line[len(label) :], width, label, indent) or [line]


def _columns(terminal: bool) -> int:
    """The width that lines have to fit into; anything that is no number of columns in COLUMNS asks for nothing."""
    if terminal:
        return shutil.get_terminal_size().columns
    with suppress(ValueError):
        if (given := int(os.environ.get("COLUMNS", ""))) > 0:
            return given
    return ENDLESS


def _shows_blocks(stream: TextIO) -> bool:
    """True if a stream takes more than ASCII."""
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
