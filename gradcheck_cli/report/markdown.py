"""A report in Markdown, for a pull request or the summary of a step of GitHub Actions, which a file takes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence

from gradcheck_cli.errors import counted
from gradcheck_cli.report.concise import CODE, WORD, errors_said, outcome, said_of, share_compared, subject, totals
from gradcheck_cli.report.evidence import entry_lines
from gradcheck_cli.report.health import gate_text
from gradcheck_cli.report.text import Style, name, shape, took
from gradcheck_cli.results.record import Check, Report

_HEAD = "| check | x | y | entries | max abs err | max rel err | verdict |\n|---|---|---|---:|---:|---:|---|\n"


def document(report: Report, style: Style) -> Iterator[str]:
    """A table of all checks, then a part for each that did not pass."""
    yield from _assembled(report, report.checks, (_part(check, style) for check in report.wrong))


def bounded(report: Report, style: Style, most: int) -> str:
    """The document cut to a number of bytes: without its last parts, then without passing checks; "" if still too long."""
    bad = report.wrong
    parts = [*_within(most, (_part(check, style) for check in bad))]
    fewer = [len(bad) >> halved for halved in range(len(bad).bit_length() + 1)]  # down to 0
    for checks, shown in ((report.checks, len(bad)), *((bad[:n], n) for n in fewer)):
        text = "".join(_assembled(report, checks, parts[:shown])) if shown <= len(parts) else ""
        if text and len(text.encode(errors="backslashreplace")) <= most:
            return text
    return ""


def _within(most: int, parts: Iterable[str]) -> Iterator[str]:
    """The first parts, as many as may fit into a number of bytes."""
    for part in parts:
        if (most := most - len(part)) < 0:
            return
        yield part


def _assembled(report: Report, checks: Sequence[Check], parts: Iterable[str]) -> Iterator[str]:
    """A page with rows for some checks."""
    unfinished = f"**Not complete: {_text(name(report.unfinished))}**\n\n" if report.unfinished else ""
    yield f"## gradcheck: {totals(report)}\n\n{unfinished}{_HEAD}"
    yield from (f"{_row(check)}\n" for check in checks)
    left = len(report.checks) - len(checks)
    yield f"\n... and {counted(left, 'more check')}\n" if left else ""
    yield from parts
    yield f"\n{totals(report)} {took(report)}\n"


def _row(check: Check) -> str:
    word, _, rest = said_of(check)
    errors = errors_said(check)[:2] if check.entries else ("", "")
    entries = share_compared(check) if check.entries else ""
    x, y = (_code(f"{n} {shape(s)}") if n else "" for n, s in ((check.x, check.x_shape), (check.y, check.y_shape)))
    gate = f", **{_text(name(', '.join(check.at_health)))}**" if check.at_health else ""
    gate += f", **{WORD}** {CODE}" if check.forward_differs else ""
    said = word if check.status == "pass" else f"**{word}** {check.code}".rstrip()
    verdict = f"{said} {_text(rest.strip())}".rstrip() + gate
    return f"| {' | '.join([_code(check.check), x, y, entries, *errors, verdict])} |"


def _part(check: Check, style: Style) -> str:
    parts = [[*_lines(check, style)]] if not check.gradient_passes else []
    parts += [[*_forward(check)]] if check.forward_differs else []
    again = ["", "```sh", name(check.reproduce), "```"] if check.reproduce else []
    return "".join("\n" + "\n".join([*lines, *again]) + "\n" for lines in parts)


def _forward(check: Check) -> Iterator[str]:
    """A section on a forward run that differs."""
    yield f"### {WORD} {CODE}: {_text(subject(check))}"
    for line in check.forward.get("reason", "").splitlines():
        yield from ("", _text(name(line)))


def _lines(check: Check, style: Style) -> Iterator[str]:
    """A section on a check that did not pass."""
    yield f"### {said_of(check)[0]} {check.code}: {_text(subject(check))}"
    yield ""
    yield _text(outcome(check))
    if check.at_health:
        yield from ("", _text(gate_text(check)))
    if rows := list(entry_lines(check, style)) if check.status in ("fail", "inconclusive") else []:
        yield from ("", "```", *rows, "```")
    for note in check.notes:
        yield from ("", _text(name(note)))
    if check.suspect is not None:
        label = check.suspect.name or ", ".join(check.suspect.outputs)
        said = f": {_text(name(check.suspect.diagnosis))}" if check.suspect.diagnosis else ""
        yield from ("", f"Suspect: node {check.suspect.node} {_text(name(check.suspect.op))} {_code(label)}{said}")


def _code(text: str) -> str:
    """A name, also in a cell of a table: as code where that can hold it."""
    safe = name(text)
    return _text(safe) if set(safe) & set("`|\\") or not safe.strip() else f"`{safe}`"


def _text(text: str) -> str:
    """A sentence in which nothing is markup, not even where it begins, and nobody is called by name."""
    escaped = "".join(f"\\{c}" if c in "\\`*_[]<>|#&~!" else c for c in text)
    escaped = re.sub(r"^\s*(\d*)([-+=.)])", r"\1\\\2", escaped)
    return re.sub(r"@(?=\w)", "@<!-- -->", escaped)


LARGEST = 1 << 20  # bytes of a step's summary: a larger one is not shown at all


def job_summary() -> str:
    """The file to which a step adds its summary; empty where nothing runs one."""
    return os.environ.get("GITHUB_STEP_SUMMARY", "")


def add_summary(path: str, report: Report, style: Style) -> None:
    """Adds a report, or as much of it as there is room for; OSError where that cannot be."""
    with open(path, "a", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        file.write(bounded(report, style, LARGEST - file.tell()))
