"""For GitHub Actions: a line of the log for each check, then annotations of those that did not pass.

A step shows ten errors and ten warnings and drops the others without a word, so that what is beyond is counted here.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradcheck_cli.errors import clean, counted
from gradcheck_cli.report import text as places
from gradcheck_cli.report.concise import CODE, LEVELS, forward_reason, forward_text, outcome, said_of, subject, totals
from gradcheck_cli.report.health import gate_text
from gradcheck_cli.report.text import Style, took
from gradcheck_cli.results.record import FORWARD, Check, Report

MOST = 10  # annotations of a level that a step shows
_LONGEST = 4000  # characters of one


def section(checks: tuple[Check, ...], style: Style) -> str:
    """The lines of one check; passing ones are left out if `style` is quiet."""
    shown = [c for c in checks if style.verbosity >= 0 or not c.passes]
    return "".join(f"{_line(c)}\n" for c in shown)


def summary(report: Report, style: Style) -> str:
    """The annotations, and how many checks ended how."""
    lines = [line for level in ("error", "warning") for line in _annotations(report, level)]
    return "".join(f"{line}\n" for line in [*lines, f"{totals(report)} {took(report)}"])


def _line(check: Check) -> str:
    """The line of a check, which begins with its verdict and never with a name, so that no name is a command."""
    said, _, rest = said_of(check)
    word = " ".join(filter(None, (said, check.code if check.status not in ("pass", "waived") else "", rest.strip())))
    told = f"{word} {subject(check)}  {outcome(check)}".rstrip()
    return "; ".join(filter(None, (told, gate_text(check), forward_text(check)))).replace("##[", "## [")


def _annotations(report: Report, level: str) -> Iterator[str]:
    """The annotations of one level that a step shows; the last one counts the others."""
    found = [(i, annotation) for i, each in enumerate(report.outcomes) if _level(each) == level]
    if level == "error":
        found += [(i, forward_annotation) for i, each in enumerate(report.outcomes) if each.forward_differs]
    shown = found if len(found) <= MOST else found[: MOST - 1]
    yield from (made(report.checks[index]) for index, made in shown)
    if left := len(found) - len(shown):
        yield f"::{level} title=gradcheck::{counted(left, 'more check')} did not pass: see the log of this step"


def forward_annotation(check: Check) -> str:
    """The workflow command for a forward run that differs."""
    return _command("error", check, CODE, forward_reason(check), check.reproduce)


def annotation(check: Check) -> str:
    """The workflow command that annotates a check."""
    return _command(_level(check), check, check.code, outcome(check), gate_text(check), *check.notes, check.reproduce)


def _command(level: str, check: Check, code: str, *lines: str) -> str:
    path, line = places.place(check)
    place = "" if places.is_url(path) else f"file={_property(path)}," + (f"line={line}," if check.place else "")
    title = _property(f"{code} {subject(check)}".strip())
    return f"::{level} {place}title={title}::{_data(chr(10).join(filter(None, lines))[:_LONGEST])}"


def _level(check: Check) -> str:
    """The level of an annotation for the gradient; "" for one that passed."""
    if check.gradient_passes:
        return ""
    return "error" if {*check.gates} - {FORWARD} else LEVELS.get(check.status, "")


def _data(text: str) -> str:
    return clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
