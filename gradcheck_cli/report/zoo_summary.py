"""A zoo summed up for people: how models and checks came out, then the models that did not pass, the worst first."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gradcheck_cli.errors import counted
from gradcheck_cli.report.concise import CODE, COUNTED, WORD, said_of, totals
from gradcheck_cli.report.text import ENDLESS, Style, apart, columns, linked, name, paint, table, took
from gradcheck_cli.results.record import SEVERITY, Check, Report


class Group(NamedTuple):
    """The records of one job."""

    name: str
    checks: Sequence[Check]


def document(
    groups: Sequence[Group], report: Report, detail: Callable[[str], str], style: Style, most: int, more: str
) -> str:
    """The summary; `detail` says more of a job by its name, `most` failing ones are shown, `more` shows all."""
    failing = [group for group in groups if not passed(group.checks)]
    failing.sort(key=lambda group: SEVERITY.index(worst(group.checks).exit_code))  # the worst first, else as they were
    parts = [_counts(groups)] if style.verbosity >= 0 and groups else []
    parts += ["\n".join(_failing(failing[:most], detail, style))]
    parts += [f"... {counted(len(failing) - most, 'more model')}: {name(more)}"] if len(failing) > most else []
    last = f"{totals(report)}" + (f" {took(report)}" if report.duration_s else "")
    return "\n\n".join([part for part in parts if part] + [last]) + "\n"


def passed(checks: Sequence[Check]) -> bool:
    """True if all of the checks pass."""
    return all(check.passes for check in checks)


def worst(checks: Sequence[Check]) -> Check:
    """The record that decides what a job came to: the first of the worst."""
    return min(checks, key=lambda check: (SEVERITY.index(check.exit_code), not check.gates, check.status == "pass"))


def verdict(check: Check) -> str:
    """The verdict on a check with its code, FAIL GC101."""
    if check.gradient_passes and check.forward_differs:
        return f"{WORD} {CODE}"
    code = check.code if check.status != "waived" or check.ignored else ""
    return f"{said_of(check)[0]} {code}".strip()


def _counts(groups: Sequence[Group]) -> str:
    """Numbers of models and of checks by outcome."""
    models = [_counted_as(worst(group.checks)) for group in groups]
    checks = [_counted_as(check) for group in groups for check in group.checks]
    rows = [("", "models", "checks")]
    rows += [(word, str(models.count(status)), str(checks.count(status)))
             for status, word in {**COUNTED, "ignored": "ignored"}.items() if status in checks]  # fmt: skip
    return "\n".join(table(rows, "<>>"))


def _counted_as(check: Check) -> str:
    return "ignored" if check.status == "waived" and check.ignored else check.status


def _failing(groups: Sequence[Group], detail: Callable[[str], str], style: Style) -> Iterator[str]:
    """Jobs that failed: what each came to and its name, cut, and how much of it failed; then why."""
    told = [(verdict(worst(group.checks)), _share(group)) for group in groups]
    names = [name(group.name) for group in groups]
    free = style.width - max((len(said) + len(share) + 2 + 2 * bool(share) for said, share in told), default=0)
    right = style.width if style.width < ENDLESS else 0
    for group, label, (said, share) in zip(groups, apart(names, free) or names, told, strict=True):
        space = " " * max(2, right - len(said) - 2 - columns(label) - len(share)) if share else ""
        yield f"{linked(paint(said, said_of(worst(group.checks))[1], style.color), style.links)}  {label}{space}{share}"
        yield from _reason(detail(group.name), style)


def _share(group: Group) -> str:
    """The number of checks of a job that failed, 2 of 3 checks."""
    failed = sum(not passed([each]) for each in group.checks)
    return f"{failed} of {counted(len(group.checks), 'check')}" if len(group.checks) > 1 else ""


def _reason(detail: str, style: Style) -> list[str]:
    return textwrap.wrap(
        detail, style.width, initial_indent="  ", subsequent_indent="  ", max_lines=3, placeholder=" ...",
        break_on_hyphens=False,
    )  # fmt: skip
