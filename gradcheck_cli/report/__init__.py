"""Reports: pure functions from records to text, one file for each output format and one line for it in the table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from typing import Any

from msgspec import Struct

from gradcheck_cli.errors import UsageError, harmless, still
from gradcheck_cli.report.text import AS_JSON, AS_XML, Style
from gradcheck_cli.results.record import Check, Report


class Format(Struct, frozen=True):
    """An output format: a module with `section` and `summary` where it is streamed, else with `document`.

    The module of one that may be a folder has `write_folder` as well.
    """

    name: str  # as --output-format takes it
    module: str  # in this package
    good_for: str
    suffixes: tuple[str, ...] = ()
    streamed: bool = False  # written as checks end, else at the end of a run
    whole: str = ""  # the function of a whole report, if not `document`, or `section` and `summary` of a streamed one
    stdout: bool = True  # may go to the standard output of a run
    folder: bool = False  # may be a folder, written DIR/
    for_people: bool = False  # people read errors on stderr, so that an error needs no record of its own
    workflow: bool = False  # holds commands to GitHub's runner, which takes a summary of the step besides
    pictured: bool = False  # shows pictures of what is wrong, so that records have to keep the data of these
    needs: tuple[str, ...] = ()  # modules of the extra `report`
    instead: tuple[str, str] = (": ", "## ")  # of marks at which a runner would take a line for a command to it

    def load(self) -> Any:
        """Imports the module of the format."""
        return import_module(f"{__name__}.{self.module}")

    def harmless(self, text: str, *, color: bool = False) -> str:
        """A text of the format in which names do no harm; commands to a runner are those of the format itself."""
        return still(text, color=color) if self.workflow else harmless(text, *self.instead, color=color)

    def require(self) -> None:
        """Raises UsageError where what it is made with is not installed."""
        if missing := [module for module in self.needs if find_spec(module) is None]:
            needed, install = " and ".join(missing), " ".join(missing)
            raise UsageError(f"the format {self.name} needs {needed}: python -m pip install {install}")


FORMATS = {
    each.name: each
    for each in (
        Format("full", "full", "reading: tables, then what failed and where to look", streamed=True, for_people=True),
        Format("concise", "concise", "reading, a line a check", streamed=True, for_people=True),
        Format("json", "json_records", "scripts, and `gradcheck report` later", (".json",), instead=AS_JSON),
        Format(
            "jsonl", "json_records", "pandas and DuckDB: a record a line", (".jsonl",),
            streamed=True, whole="lines", instead=AS_JSON,
        ),
        Format(
            "junit", "junit", "test reports of CI services, such as Jenkins and GitLab", (".xml",), instead=AS_XML
        ),
        Format("github", "github", "GitHub Actions: annotations and a summary", streamed=True, workflow=True),
        Format("gitlab", "gitlab", "GitLab's Code Quality, in the merge request", instead=AS_JSON),
        Format(
            "html", "html", "looking at: pages with pictures", (".html",),
            stdout=False, folder=True, pictured=True, needs=("jinja2", "matplotlib"), instead=AS_XML,
        ),
        Format("markdown", "markdown", "pull requests and wikis", (".md",)),
        Format("sarif", "sarif", "code scanning", (".sarif",), stdout=False, instead=AS_JSON),
    )
}  # fmt: skip


def on_stdout() -> tuple[str, ...]:
    """Names of the formats that a run may print."""
    return tuple(form.name for form in FORMATS.values() if form.stdout)


def suffixes() -> dict[str, Format]:
    """The format that each suffix of a file stands for."""
    return {suffix: form for form in FORMATS.values() for suffix in form.suffixes}


def files_said() -> str:
    """The kinds of files in words: .json, .xml (junit) or .html; DIR/ is a folder of html."""
    said = [suffix if suffix == f".{form.name}" else f"{suffix} ({form.name})" for suffix, form in suffixes().items()]
    folders = [form.name for form in FORMATS.values() if form.folder]
    return f"{', '.join(said[:-1])} or {said[-1]}; DIR/ is a folder of {' or '.join(folders)}"


def render(name: str, report: Report, style: Style | None = None) -> str:
    """A whole report in a format."""
    return "".join(parts(name, report, style or Style()))


def parts(name: str, report: Report, style: Style) -> Iterator[str]:
    """A whole report in pieces, as far as the format allows: with many records it may not fit into memory."""
    form = FORMATS[name]
    form.require()
    yield from (form.harmless(part, color=style.color) for part in _made(form, report, style))


def _made(form: Format, report: Report, style: Style) -> Iterator[str]:
    module = form.load()
    if form.streamed and not form.whole:
        yield from (module.section(group, style) for group in by_check(report.checks))
        yield module.summary(report, style)
    else:
        document: str | Iterator[str] = getattr(module, form.whole or "document")(report, style)
        yield from (document,) if isinstance(document, str) else document


def is_folder(path: str) -> bool:
    """True if a report at this path is a folder of pages."""
    return path.endswith(("/", os.sep)) or os.path.isdir(path)


def format_of(path: str) -> Format | None:
    """The format of a report at a path, by its suffix, or of a folder; None for a suffix that says nothing."""
    if is_folder(path):
        return next(form for form in FORMATS.values() if form.folder)
    return suffixes().get(os.path.splitext(path)[1])


def write(path: str, report: Report, style: Style, name: str = "") -> None:
    """A whole report in a file, or in a folder; in the format of a name, or in that of its suffix."""
    form = FORMATS[name] if name else format_of(path)
    assert form is not None
    if is_folder(path):
        if not form.folder:
            raise UsageError(f"{path} is a folder, and {form.name} is written as one file.")
        form.require()
        form.load().write_folder(report, path)
    else:
        from gradcheck_cli.formats.whole_file import whole

        with whole(path) as file:
            for part in parts(form.name, report, style):
                file.write(part.encode("utf-8", "backslashreplace"))


def by_check(checks: Iterable[Check]) -> Iterator[tuple[Check, ...]]:
    """Neighboring records of one check together."""
    yield from (tuple(group) for _, group in groupby(checks, lambda check: (check.check, check.model.uri)))
