"""`gradcheck zoo diff OLD NEW`: compares two runs, for people and for scripts."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import rich_click as click

from gradcheck_cli.cli.baseline import Baseline
from gradcheck_cli.cli.options import OneOf
from gradcheck_cli.cli.output import style_of
from gradcheck_cli.cli.zoo.results import FinishedJobs, note
from gradcheck_cli.report.text import Style, cut, name, paint, seconds, table
from gradcheck_cli.report.zoo_summary import verdict
from gradcheck_cli.results.record import Check
from gradcheck_cli.zoo.folder import FACTOR, KINDS, Change, compared, read_about

SCHEMA = "gradcheck.diff/1"
_MOST = 10
_COLORS = {"newly failing": "red", "fixed": "green", "slower": "yellow", "changed": "yellow"}


@click.command("diff")
@click.argument("old", metavar="OLD", type=click.Path())
@click.argument("new", metavar="NEW", type=click.Path())
@click.option("--slower", type=click.FloatRange(1), metavar="FACTOR", help="Times as long that matter. [default: 1.5]")
@click.option("--show", type=click.IntRange(min=0), metavar="INT", help="Checks shown of each kind. [default: 10]")
@click.option("--output-format", type=OneOf(("full", "json")), default="full", help="What goes to stdout.")
@click.option("--color", type=OneOf(("auto", "always", "never")), default="auto", help="Colors.")
def diff(old: str, new: str, **options: Any) -> int:
    """Compare two runs, or results (.jsonl, .json): newly failing, fixed, changed, slower, gone, new.

    It exits with 1 if a check fails that did not fail before, or was not there; else with 0.
    """
    return _show(old, new, {name: value for name, value in options.items() if value is not None})


def _show(old: str, new: str, options: Mapping[str, Any]) -> int:
    """Prints the changes, and gives the exit code."""
    before, after = _checks(old), _checks(new)
    changes = compared(before, after, options.get("slower", FACTOR))
    code = int(any(change.kind == "newly failing" for change in changes))
    if before and after and not {check.id for check in before} & {check.id for check in after}:
        note(f"{old} and {new} have no check in common: were their sources named from different folders?")
    if options["output_format"] == "json":
        document = {"schema": SCHEMA, "exit_code": code, "changes": [_as_json(change) for change in changes]}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        sys.stdout.write(_text(changes, len(after), style_of({"color": options["color"]}), options.get("show", _MOST)))
    return code


def _checks(path: str) -> Sequence[Check]:
    """The outcomes of a run, or the records of a file of results."""
    if os.path.isdir(path):
        folder = Path(path)
        found = FinishedJobs(folder, read_about(folder).jobs, Baseline("", {}))
        return [check for group in found.groups for check in group.checks]
    from gradcheck_cli.results import read_results

    return read_results(path, note)


def _text(changes: Sequence[Change], total: int, style: Style, most: int) -> str:
    parts = []
    for kind in KINDS:
        if those := [change for change in changes if change.kind == kind]:
            more = [f"  ... {len(those) - most} more, --show {len(those)}"] if len(those) > most else []
            title = paint(f"{kind} ({len(those)})", _COLORS.get(kind, "bold"), style.color)
            parts.append("\n".join([title, *_lines(those[:most], style), *more]))
    counts = Counter(change.kind for change in changes)
    said = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind]) or "nothing has changed"
    return "\n\n".join([*parts, f"{total} checks: {said}"]) + "\n"


def _lines(changes: Iterable[Change], style: Style) -> Iterator[str]:
    """Lines with names of checks, shortened to fit, and their outcomes."""
    rows = [(name(change.id), _outcome(change)) for change in changes]
    free = style.width - 4 - max((len(outcome) for _, outcome in rows), default=0)
    yield from (f"  {line}" for line in table([(cut(label, free), outcome) for label, outcome in rows], "<<"))


def _outcome(change: Change) -> str:
    if change.kind == "slower" and change.old and change.new:
        return f"{seconds(change.old.duration_s)} -> {seconds(change.new.duration_s)}"
    return " -> ".join(verdict(check) for check in (change.old, change.new) if check)


def _as_json(change: Change) -> dict[str, Any]:
    return {"kind": change.kind, "id": change.id, "old": _brief(change.old), "new": _brief(change.new)}


def _brief(check: Check | None) -> dict[str, Any] | None:
    return None if check is None else {"status": check.status, "code": check.code, "duration_s": check.duration_s}
