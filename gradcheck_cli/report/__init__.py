"""Reports: pure functions from records to text, one file for each output format."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import groupby
from typing import Protocol

from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import Check, Report

STREAMED = {"full": "full", "concise": "concise", "jsonl": "json_lines", "github": "github"}
WHOLE = {
    "json": "json_document", "junit": "junit", "gitlab": "gitlab", "markdown": "markdown", "html": "html",
    "sarif": "sarif",
}  # fmt: skip
FORMATS = (*STREAMED, *WHOLE)
_IN_MEMORY = 1 << 20  # characters of a report that is being made, before it goes to a temporary file
SUFFIXES = {
    ".json": "json", ".jsonl": "jsonl", ".xml": "junit", ".html": "html", ".md": "markdown", ".sarif": "sarif",
}  # fmt: skip


class Streamed(Protocol):
    """A format that is written as checks end: a section for each, then a summary."""

    def section(self, checks: tuple[Check, ...], style: Style) -> str: ...

    def summary(self, report: Report, style: Style) -> str: ...


def streamed(name: str) -> Streamed | None:
    """The format of this name if it can be written piece by piece."""
    module = STREAMED.get(name)
    return import_module(f"gradcheck_cli.report.{module}") if module else None


def render(name: str, report: Report, style: Style | None = None) -> str:
    """A whole report in a format."""
    return "".join(parts(name, report, style or Style()))


def parts(name: str, report: Report, style: Style) -> Iterator[str]:
    """The same bit by bit, as far as the format allows: of many records the whole takes much memory."""
    if (pieces := streamed(name)) is not None:
        yield from (pieces.section(group, style) for group in by_check(report.checks))
        yield pieces.summary(report, style)
    else:
        document: str | Iterator[str] = import_module(f"gradcheck_cli.report.{WHOLE[name]}").document(report, style)
        yield from (document,) if isinstance(document, str) else document


def is_folder(path: str) -> bool:
    """A report at this path is a folder of pages."""
    return path.endswith(("/", os.sep)) or os.path.isdir(path)


def file_format(path: str) -> str:
    """The format of a report at a path, by its suffix; a folder is HTML.  Empty for a suffix that says nothing."""
    return "html" if is_folder(path) else SUFFIXES.get(os.path.splitext(path)[1], "")


def write(path: str, report: Report, style: Style, form: str = "") -> None:
    """A whole report in a file, or in a folder; in a format, if not in that of its suffix."""
    if is_folder(path):
        from gradcheck_cli.report.html import write_folder

        write_folder(report, path)
    else:
        import tempfile

        with tempfile.SpooledTemporaryFile(
            _IN_MEMORY, "w+", encoding="utf-8", errors="backslashreplace", newline="\n"
        ) as made:
            for part in parts(form or file_format(path), report, style):
                made.write(part)
            made.seek(0)  # what cannot be made has left an earlier file as it is
            with open(path, "w", encoding="utf-8", newline="\n") as file:
                shutil.copyfileobj(made, file)


def by_check(checks: Iterable[Check]) -> Iterator[tuple[Check, ...]]:
    """Neighboring records of one check together."""
    yield from (tuple(group) for _, group in groupby(checks, lambda check: (check.check, check.model.uri)))
