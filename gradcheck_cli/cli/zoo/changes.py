"""`gradcheck zoo diff OLD NEW`: compares two runs, for people and for scripts."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import rich_click as click

from gradcheck_cli.cli import note
from gradcheck_cli.cli.options import COLOR, TEXT_OR_JSON, Real, completing
from gradcheck_cli.cli.output import style_of
from gradcheck_cli.cli.report import of_file
from gradcheck_cli.cli.zoo.results import FinishedJobs
from gradcheck_cli.errors import counted, harmless
from gradcheck_cli.report.concise import several_files
from gradcheck_cli.report.text import AS_JSON, Style, apart, name, paint, seconds, table
from gradcheck_cli.report.zoo_summary import verdict
from gradcheck_cli.results import many
from gradcheck_cli.results.record import BLANK, Check

SCHEMA = "gradcheck.diff/1"
Kind: TypeAlias = Literal["newly failing", "fixed", "changed", "slower", "gone", "new"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FACTOR, LEAST = 1.5, 1.0  # a check is slower if it takes so many times as long and so many seconds more
_MOST = 10
_COLORS = {"newly failing": "red", "fixed": "green", "slower": "yellow", "changed": "yellow"}


_OPTIONS: list[click.Parameter] = [
    *(click.RichArgument([name], metavar=name.upper(), type=click.Path(), shell_complete=completing("runs"))
      for name in ("old", "new")),
    click.RichOption(["--slower"], type=Real(1), default=FACTOR, metavar="FACTOR",
                     help=f"Report a check as slower if it takes this many times as long. [default: {FACTOR}]"),
    click.RichOption(["--show"], type=click.IntRange(min=0), default=_MOST, metavar="INT",
                     help=f"Number of checks shown of each kind of change. [default: {_MOST}]"),
    TEXT_OR_JSON,
    COLOR,
]  # fmt: skip


@click.command("diff", params=_OPTIONS)
def diff(old: str, new: str, slower: float, show: int, output_format: str, color: str) -> int:
    """Compare two runs, or results (.jsonl, .json): newly failing, fixed, changed, slower, gone, new.

    It exits with 1 if a check fails that did not fail before, or was not there; else with 0.
    """
    with many():
        before, after = _checks(old), _checks(new)
        changes = compared(before, after, slower)
    alike = several_files([*before, *after])
    code = int(any(change.kind == "newly failing" for change in changes))
    if before and after and not {check.id for check in before} & {check.id for check in after}:
        note(f"{old} and {new} have no check in common: were their sources named from different folders?")
    if output_format == "json":
        told = [
            {"kind": c.kind, "id": c.id, "model": c.file, "old": _brief(c.old), "new": _brief(c.new)} for c in changes
        ]
        document = {"schema": SCHEMA, "exit_code": code, "changes": told}
        sys.stdout.write(harmless(json.dumps(document, indent=2), *AS_JSON) + "\n")
    else:
        style = style_of({"color": color})
        sys.stdout.write(harmless(_text(changes, len(after), style, show, alike), color=style.color))
    return code


def _checks(path: str) -> Sequence[Check]:
    """The outcomes of a run, or the records of a file of results."""
    if os.path.isdir(path):
        found = FinishedJobs.of_run(Path(path))
        found.tell_unfinished()
        return found.outcomes
    return of_file(path).checks.outcomes


def _text(changes: Sequence[Change], total: int, style: Style, most: int, alike: Collection[str]) -> str:
    parts = []
    for kind in KINDS:
        if those := [change for change in changes if change.kind == kind]:
            more = [f"  ... {len(those) - most} more, --show {len(those)}"] if len(those) > most else []
            title = paint(f"{kind} ({len(those)})", _COLORS.get(kind, "bold"), style.color)
            parts.append("\n".join([title, *_lines(those[:most], style, alike), *more]))
    counts = Counter(change.kind for change in changes)
    said = ", ".join(f"{counts[kind]} {kind}" for kind in KINDS if counts[kind]) or "nothing has changed"
    return "\n\n".join([*parts, f"{counted(total, 'check')}: {said}"]) + "\n"


def _lines(changes: Iterable[Change], style: Style, alike: Collection[str]) -> Iterator[str]:
    """Lines with names of checks, shortened to fit, and their outcomes; with files of checks that are called alike."""
    rows = [(name(f"{c.file}::{c.id}" if c.check in alike else c.id), _outcome(c)) for c in changes]
    labels, outcomes = zip(*rows, strict=True)
    fitted = apart(labels, style.width - 4 - max(map(len, outcomes))) or labels
    lines = table([*zip(fitted, outcomes, strict=True)], "<<", (), style.width - 2)
    yield from ("  " + line.replace("\n", "\n  ") for line in lines)


def _outcome(change: Change) -> str:
    if change.kind == "slower" and change.old and change.new:
        return f"{seconds(change.old.duration_s)} -> {seconds(change.new.duration_s)}"
    return " -> ".join(verdict(check) for check in (change.old, change.new) if check)


def _brief(check: Check | None) -> dict[str, Any] | None:
    return None if check is None else {"status": check.status, "code": check.code, "duration_s": check.duration_s}


class Change(NamedTuple):
    """A change of a check between two runs; None for a run without the check."""

    kind: Kind
    old: Check | None
    new: Check | None

    @property
    def id(self) -> str:
        return self._known.id

    @property
    def check(self) -> str:
        return self._known.check

    @property
    def file(self) -> str:
        return self._known.model.uri

    @property
    def _known(self) -> Check:
        return self.new or self.old or BLANK


def compared(old: Iterable[Check], new: Iterable[Check], factor: float = FACTOR, least: float = LEAST) -> list[Change]:
    """All changes, sorted by kind and by name of the check."""
    before, after = _by_name(old), _by_name(new)
    found: list[Change] = []
    for key in sorted(before.keys() | after.keys()):
        was, now = before.get(key), after.get(key)
        found += [Change(kind, was, now) for kind in _kinds(was, now, factor, least)]
    return sorted(found, key=lambda change: KINDS.index(change.kind))


def _kinds(was: Check | None, now: Check | None, factor: float, least: float) -> Iterable[Kind]:
    """The kinds of change of a check; a new one that fails is "newly failing"."""
    if now is None:
        yield "gone"
    elif was is None:
        yield "new" if _is_fine(now) else "newly failing"
    elif _is_fine(was) and not _is_fine(now):
        yield "newly failing"
    elif _is_repaired(was, now):
        yield "fixed"
    elif (was.status, was.code, was.forward_differs) != (now.status, now.code, now.forward_differs):
        yield "changed"
    alike = was and now and bool(was.copy_of) == bool(now.copy_of)  # a copy takes less time by what it leaves out
    if alike and was and now and now.duration_s > factor * was.duration_s and now.duration_s - was.duration_s > least:
        yield "slower"


def _is_fine(check: Check) -> bool:
    """True for a check that passes, other than a severed pair."""
    return check.passes and check.status != "severed"


def _is_repaired(was: Check, now: Check) -> bool:
    """True if a check passes by itself that did not; one whose failure is let through now, as by a baseline, does not."""
    if not _is_fine(now):
        return False
    if now.waiver:
        return not _is_fine(was) and now.code != was.code
    return not _is_fine(was) or bool(was.waiver)


def _by_name(checks: Iterable[Check]) -> Mapping[tuple[str, str], Check]:
    """Checks by model and id, since checks of several specs may share a name."""
    return {(check.model.uri, check.id): check for check in checks}
