"""The table of single entries of a Jacobian that did not pass."""

from __future__ import annotations

from collections.abc import Iterator

from gradcheck_cli.record import Check, Entry
from gradcheck_cli.report.text import Style, columns, cut, name, precise, rough, shape, short, table

NUMBERS = ("theoretical", "numerical", "abs err", "rel err", "noise", "pattern")
_ABS_ERR = 2  # the column that is left out where the line would be too long: it follows from the others
SLOPES = ("theoretical", "left slope", "right slope", "noise", "verdict")


def entry_lines(check: Check, style: Style) -> Iterator[str]:
    """Header and rows of the worst entries, as many as `style` shows, and how many more there are."""
    told = [entry for entry in check.worst if entry.status != "kink-ok" or style.verbosity > 0]
    shown = told[: style.show]
    if not shown:
        return
    pair = (
        f"{cut(name(check.x), 20)} -> {cut(name(check.y), 20)}"
        if check.y_shape
        else f"entry of {cut(name(check.x), 24)}"
    )
    if any(entry.slopes for entry in shown):
        rows = [(pair, *SLOPES), *(sides(check, entry) for entry in shown)]
        yield from table(rows, "<>>>><", (0, 12, 12, 12, 7))
    else:
        yield from _plain([(pair, *NUMBERS), *(row(check, entry) for entry in shown)], style)
    if len(told) > len(shown):
        yield _more(check, len(told), len(shown))


def _plain(rows: list[tuple[str, ...]], style: Style) -> list[str]:
    """The table of both Jacobians, without what follows from the rest where it would be too wide."""
    lines = table(rows, "<>>>>><", (0, 12, 0, 7, 7, 7))
    if max(map(columns, lines)) > style.width:
        rows = [row[: _ABS_ERR + 1] + row[_ABS_ERR + 2 :] for row in rows]
        lines = table(rows, "<>>>><", (0, 12, 0, 7, 7))
    return lines


def _more(check: Check, told: int, shown: int) -> str:
    every = check.entries.get("failed", 0) + check.entries.get("inconclusive", 0)
    return f"... {max(every, told) - shown} more, --show {told}"


def row(check: Check, entry: Entry) -> tuple[str, ...]:
    gap = abs(entry.theoretical - entry.numerical)
    size = max(abs(entry.theoretical), abs(entry.numerical))
    relative = gap / size if size else 0.0
    numbers = (
        precise(entry.theoretical),
        precise(entry.numerical),
        short(gap),
        short(relative),
        rough(entry.noise),
    )
    return (place(check, entry), *numbers, name(entry.pattern))


def sides(check: Check, entry: Entry) -> tuple[str, ...]:
    """An entry among some at a tie: the slopes from both sides say more than one number."""
    slopes = [precise(slope) for slope in entry.slopes] if entry.slopes else [precise(entry.numerical)] * 2
    verdict = {"fail": "FAIL", "kink-ok": "KINK-OK"}.get(entry.status, name(entry.reason))
    return (place(check, entry), precise(entry.theoretical), *slopes, rough(entry.noise), verdict)


def place(check: Check, entry: Entry) -> str:
    """Where an entry stands: its indices, the part of a complex number, the point if there are several."""
    where = f"{shape(entry.x)} -> {shape(entry.y)}" if check.y_shape else shape(entry.x)
    part = f" {name(entry.part)}" if entry.part else ""
    return f"{where}{part}" + (f" point {entry.point}" if check.points > 1 else "")
