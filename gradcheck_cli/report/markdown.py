"""A report in Markdown, for a pull request or the summary of a CI job."""

from __future__ import annotations

from collections.abc import Iterator

from gradcheck_cli.record import Check, Report
from gradcheck_cli.report.concise import outcome, subject
from gradcheck_cli.report.entries import entry_lines
from gradcheck_cli.report.full import VERDICTS, share_compared, totals
from gradcheck_cli.report.health import gate_text
from gradcheck_cli.report.text import Style, name, seconds, shape, short

_HEAD = "| check | x | y | entries | max abs err | max rel err | verdict |"


def document(report: Report, style: Style) -> str:
    """A table of all checks, then a part for each that did not pass."""
    lines = [f"## gradcheck: {totals(report)}", "", _HEAD, "|---|---|---|---:|---:|---:|---|"]
    lines += [_row(check) for check in report.checks]
    for check in report.checks:
        if check.status not in ("pass", "waived") or check.gates:
            lines += ["", *_part(check, style)]
    return "\n".join([*lines, "", f"{totals(report)} in {seconds(report.duration_s)}"]) + "\n"


def _row(check: Check) -> str:
    word = VERDICTS[check.status][0]
    errors = (short(check.max_abs_err), short(check.max_rel_err)) if check.entries else ("", "")
    entries = share_compared(check) if check.entries else ""
    x, y = (_code(f"{n} {shape(s)}") if n else "" for n, s in ((check.x, check.x_shape), (check.y, check.y_shape)))
    gate = f", **{', '.join(check.gates)}**" if check.gates else ""
    verdict = (word if check.status == "pass" else f"**{word}** {check.code}".rstrip()) + gate
    return f"| {' | '.join([_code(check.check), x, y, entries, *errors, verdict])} |"


def _part(check: Check, style: Style) -> Iterator[str]:
    yield f"### {VERDICTS[check.status][0]} {check.code}: {_text(subject(check))}"
    yield ""
    yield _text(outcome(check))
    if check.gates:
        yield from ("", _text(gate_text(check)))
    if rows := list(entry_lines(check, style)) if check.status in ("fail", "inconclusive") else []:
        yield from ("", "```", *rows, "```")
    for note in check.notes:
        yield from ("", _text(name(note)))
    if check.suspect is not None:
        label = check.suspect.name or ", ".join(check.suspect.outputs)
        said = f": {_text(name(check.suspect.diagnosis))}" if check.suspect.diagnosis else ""
        yield from ("", f"Suspect: node {check.suspect.node} {check.suspect.op} {_code(label)}{said}")
    if check.reproduce:
        yield from ("", "```sh", name(check.reproduce), "```")


def _code(text: str) -> str:
    """A name in a table's cell, whatever is in it."""
    safe = name(text).replace("|", "\\|")
    return f"`` {safe} ``" if "`" in safe else f"`{safe}`" if safe else ""


def _text(text: str) -> str:
    """A sentence in which nothing is markup."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in text)
