"""The table of single entries of a Jacobian that did not pass."""

from __future__ import annotations

from collections.abc import Iterator

from gradcheck_cli.record import Check, Entry
from gradcheck_cli.report.text import Style, columns, cut, name, precise, rough, shape, short, table

_NUMBERS = ("theoretical", "numerical", "abs err", "rel err", "noise", "pattern")
_ABS_ERR = 2  # the column that is left out where the line would be too long: it follows from the others
_STATUS = {"kink": "kink", "noise": "noise", "nonfinite": "not finite"}


def entry_lines(check: Check, style: Style) -> Iterator[str]:
    """Header and rows of the worst entries, as many as `style` shows, and how many more there are."""
    shown = check.worst[: style.show]
    if not shown:
        return
    pair = (
        f"{cut(name(check.x), 20)} -> {cut(name(check.y), 20)}"
        if check.y_shape
        else f"entry of {cut(name(check.x), 24)}"
    )
    head = (pair, *_NUMBERS)
    rows = [head, *(_row(check, entry) for entry in shown)]
    lines = table(rows, "<>>>>><", (0, 12, 0, 7, 7, 7))
    if max(map(columns, lines)) > style.width:
        rows = [row[: _ABS_ERR + 1] + row[_ABS_ERR + 2 :] for row in rows]
        lines = table(rows, "<>>>><", (0, 12, 0, 7, 7))
    yield from lines
    if len(check.worst) > len(shown):
        yield _more(check, len(shown))


def _more(check: Check, shown: int) -> str:
    every = check.entries.get("failed", 0) + check.entries.get("inconclusive", 0)
    return f"... {max(every, len(check.worst)) - shown} more, --show {len(check.worst)}"


def _row(check: Check, entry: Entry) -> tuple[str, ...]:
    gap = abs(entry.theoretical - entry.numerical)
    size = max(abs(entry.theoretical), abs(entry.numerical))
    relative = gap / size if size else 0.0
    pattern = entry.pattern or _STATUS.get(entry.status, "")
    numbers = (
        precise(entry.theoretical),
        precise(entry.numerical),
        short(gap),
        short(relative),
        rough(entry.noise),
    )
    return (place(check, entry), *numbers, pattern)


def place(check: Check, entry: Entry) -> str:
    """Where an entry stands: its indices, the part of a complex number, the point if there are several."""
    where = f"{shape(entry.x)} -> {shape(entry.y)}" if check.y_shape else shape(entry.x)
    part = f" {entry.part}" if entry.part else ""
    return f"{where}{part}" + (f" point {entry.point}" if check.points > 1 else "")
