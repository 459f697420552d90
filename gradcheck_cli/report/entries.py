"""The table of single entries of a Jacobian that did not pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradcheck_cli.report.text import Style, columns, cut, name, precise, rough, shape, short, table
from gradcheck_cli.results.record import Check, Entry

NUMBERS = ("theoretical", "numerical", "abs err", "rel err", "noise", "pattern")
_LEFT_OUT = ("abs err", "noise")  # where the line would be too long: the first follows from the others
SLOPES = ("theoretical", "left slope", "right slope", "noise", "verdict")
_WIDTHS = {"abs err": 7, "rel err": 7, "noise": 7, "pattern": 0, "numerical": 0, "verdict": 0}  # of others 12 at least


def entry_lines(check: Check, style: Style) -> Iterator[str]:
    """Header and rows of the worst entries, as many as `style` shows, and how many more there are."""
    told = [entry for entry in check.worst if entry.status != "kink-ok" or style.verbosity > 0]
    shown = told[: style.show]
    if not shown:
        return
    pair = (
        f"{cut(name(check.x), 20)} -> {cut(name(check.y), 20)}"
        if by_y(check)
        else f"entry of {cut(name(check.x or check.y), 24)}"
    )
    made, heads = (sides, SLOPES) if any(entry.slopes for entry in shown) else (row, NUMBERS)
    rows = [(pair, *headings(check, heads)), *(made(check, entry) for entry in shown)]
    yield from _fitted(rows, style)
    if len(told) > len(shown):
        yield _more(check, len(told), len(shown))


def headings(check: Check, heads: Sequence[str]) -> tuple[str, ...]:
    """The columns behind the place: what others give comes first where that was judged."""
    if check.of_two_models:
        return ("A", "B", *heads[2:])
    return ("given", *heads) if check.claim else tuple(heads)


def _fitted(rows: list[tuple[str, ...]], style: Style) -> list[str]:
    """The table, without columns that say least where it would be too wide."""
    for name_ in (None, *_LEFT_OUT):
        if name_ in rows[0]:
            rows = [row[: (at := rows[0].index(name_))] + row[at + 1 :] for row in rows]
        lines = table(rows, f"<{'>' * (len(rows[0]) - 2)}<", (0, *(_WIDTHS.get(head, 12) for head in rows[0][1:])))
        if max(map(columns, lines)) <= style.width:
            break
    return lines


def _more(check: Check, told: int, shown: int) -> str:
    every = check.entries.get("failed", 0) + check.entries.get("inconclusive", 0)
    return f"... {max(every, told) - shown} more, --show {told}"


def row(check: Check, entry: Entry) -> tuple[str, ...]:
    gap = abs(entry.judged - entry.numerical)
    size = max(abs(entry.judged), abs(entry.numerical))
    relative = gap / size if size else 0.0
    numbers = (precise(entry.numerical), short(gap), short(relative), rough(entry.noise))
    return (place(check, entry), *_judged(check, entry), *numbers, name(entry.pattern))


def sides(check: Check, entry: Entry) -> tuple[str, ...]:
    """An entry among some at a tie: the slopes from both sides say more than one number."""
    slopes = [precise(slope) for slope in entry.slopes] if entry.slopes else [precise(entry.numerical)] * 2
    verdict = {"fail": "FAIL", "kink-ok": "KINK-OK"}.get(entry.status, name(entry.reason))
    return (place(check, entry), *_judged(check, entry), *slopes, rough(entry.noise), verdict)


def _judged(check: Check, entry: Entry) -> tuple[str, ...]:
    """What others give, where that was judged, and what the rules give, where they give something."""
    if not check.claim:
        return (precise(entry.theoretical),)
    known = check.claim.get("theoretical") != "none"
    return (precise(entry.judged), precise(entry.theoretical) if known else "-")


def by_y(check: Check) -> bool:
    """Entries have a place in y: it is no scalar, and no weighed sum of what it holds."""
    if check.of_two_models:
        return bool(check.x and check.y_shape) and check.mode == "full"
    return bool(check.y_shape) and not check.claim.get("seed")


def place(check: Check, entry: Entry) -> str:
    """Where an entry stands: its indices, the part of a complex number, the point if there are several."""
    where = f"{shape(entry.x)} -> {shape(entry.y)}" if by_y(check) else shape(entry.x if check.x else entry.y)
    part = f" {name(entry.part)}" if entry.part else ""
    return f"{where}{part}" + (f" point {entry.point}" if check.points > 1 else "")
