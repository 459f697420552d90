"""The evidence for verdicts in text: rows of pairs with their errors, the worst entries, and the suspect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gradcheck_cli.report.concise import headline, pair_said, said_of, share_compared
from gradcheck_cli.report.text import (
    Style,
    clean,
    columns,
    count,
    cut,
    linked,
    name,
    opened,
    paint,
    precise,
    rough,
    shape,
    short,
    table,
    wrapped,
)
from gradcheck_cli.results.record import Check, Entry, Suspect

NUMBERS = ("theoretical", "numerical", "abs err", "rel err", "noise", "pattern")
_LEFT_OUT = ("abs err", "noise")  # where the line would be too long: the first follows from the others
SLOPES = ("theoretical", "left slope", "right slope", "noise", "verdict")
_WIDTHS = {"abs err": 7, "rel err": 7, "noise": 7, "pattern": 0, "numerical": 0, "verdict": 0}  # of others 12 at least
_HEAD = ("entries", "max abs err", "max rel err", "noise", "")
_NUMBERS = 2 + 11 + 2 + 11 + 2 + 7 + 2  # columns that the numbers right of `entries` take
LEAST_NAME = 5
_INDENT = " " * 13


def judged_rows(
    checks: Sequence[Check], titles: Sequence[str], labels: Callable[[int], Sequence[Sequence[str]]], style: Style
) -> list[str]:
    """The table of some checks: their labels, which `labels` fits into a number of columns, errors and verdicts."""
    entries = [share_compared(c) for c in checks]
    verdicts = [said_of(c) for c in checks]
    widest = max(7, *map(len, entries))
    free = style.width - 2 * len(titles) - widest - _NUMBERS - max(len(word) for word, _, _ in verdicts)
    rows = [(*titles, *_HEAD)] + [
        (*label, n, short(c.max_abs_err), short(c.max_rel_err), rough(c.noise), word)
        for label, n, c, (word, _, _) in zip(labels(free), entries, checks, verdicts, strict=True)
    ]
    head, *lines = table(rows, "<" * len(titles) + ">>>><", (*(0 for _ in titles), 7, 11, 11, 7))
    explained = f"{head} (uncertainty)"
    return [explained if columns(explained) <= style.width else head] + [
        " ".join(filter(None, (line.removesuffix(word) + paint(word, color, style.color), beside)))
        for line, (word, color, beside) in zip(lines, verdicts, strict=True)
    ]


def title_lines(check: Check, style: Style) -> Iterator[str]:
    """The verdict on a row and its reason, on as many lines as it takes."""
    word, color, _ = said_of(check)
    start = f"{word} {check.code}".strip()
    said = ": ".join(filter(None, (pair_said(check, " / "), headline(check))))
    first, *others = opened(clean(f"{start}  {said}"), start, color, style)
    yield from (linked(first, style.links), *others)


def entry_lines(check: Check, style: Style) -> Iterator[str]:
    """Header and rows of the worst entries, as many as `style` shows, and the number of the others."""
    told = [entry for entry in check.worst if entry.status != "kink-ok" or style.verbosity > 0]
    shown = told[: style.show]
    if not shown:
        return
    pair = f"entry of {cut(name(check.x or check.y), 24)}"
    if by_y(check):
        pair = f"{cut(name(check.x), 20)} -> {cut(name(check.y), 20)}"
    heads, rows = entry_table(check, shown)
    yield from _fitted([(pair, *heads), *rows], style)
    if len(told) > len(shown):
        yield f"... {open_entries(check, len(told)) - len(shown)} more, --show {len(told)}"


def open_entries(check: Check, kept: int) -> int:
    """The number of entries that did not pass, of which the record has kept some."""
    return max(check.entries.get("failed", 0) + check.entries.get("inconclusive", 0), kept)


def entry_table(check: Check, entries: Sequence[Entry]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The columns of some entries behind their places, and their rows; a given value comes first where that was judged."""
    made, heads = (_sides, SLOPES) if any(entry.slopes for entry in entries) else (_row, NUMBERS)
    heads = ("A", "B", *heads[2:]) if check.of_two_models else ("given", *heads) if check.claim else heads
    return heads, [made(check, entry) for entry in entries]


def _fitted(rows: list[tuple[str, ...]], style: Style) -> list[str]:
    """The table, without its least telling columns where it would be too wide."""
    for name_ in (None, *_LEFT_OUT):
        if name_ in rows[0]:
            rows = [row[: (at := rows[0].index(name_))] + row[at + 1 :] for row in rows]
        lines = table(rows, f"<{'>' * (len(rows[0]) - 2)}<", (0, *(_WIDTHS.get(head, 12) for head in rows[0][1:])))
        if max(map(columns, lines)) <= style.width:
            break
    return lines


def _row(check: Check, entry: Entry) -> tuple[str, ...]:
    """The cells of an entry: its place, the values that were compared, their difference and its pattern."""
    gap = abs(entry.judged - entry.numerical)
    size = max(abs(entry.judged), abs(entry.numerical))
    relative = gap / size if size else 0.0
    numbers = (precise(entry.numerical), short(gap), short(relative), rough(entry.noise))
    return (place(check, entry), *_judged(check, entry), *numbers, name(entry.pattern))


def _sides(check: Check, entry: Entry) -> tuple[str, ...]:
    """The cells of an entry in a table of entries at a tie, with the slopes from both sides."""
    slopes = [precise(slope) for slope in entry.slopes] if entry.slopes else [precise(entry.numerical)] * 2
    verdict = {"fail": "FAIL", "kink-ok": "KINK-OK"}.get(entry.status, name(entry.reason))
    return (place(check, entry), *_judged(check, entry), *slopes, rough(entry.noise), verdict)


def _judged(check: Check, entry: Entry) -> tuple[str, ...]:
    """Somebody else's value, where that was judged, and the rules' own, where they give one."""
    if not check.claim:
        return (precise(entry.theoretical),)
    known = check.claim.get("theoretical") != "none"
    return (precise(entry.judged), precise(entry.theoretical) if known else "-")


def by_y(check: Check) -> bool:
    """True if entries have a place in y: y is no scalar, and no weighed sum of its entries was differentiated."""
    if check.of_two_models:
        return bool(check.x and check.y_shape) and check.mode == "full"
    return bool(check.y_shape) and not check.claim.get("seed")


def place(check: Check, entry: Entry) -> str:
    """The place of an entry: its indices, the part of a complex number, the point if there are several."""
    where = f"{shape(entry.x)} -> {shape(entry.y)}" if by_y(check) else shape(entry.x if check.x else entry.y)
    part = f" {name(entry.part)}" if entry.part else ""
    return f"{where}{part}" + (f" point {entry.point}" if check.points > 1 else "")


def suspect_lines(suspect: Suspect, style: Style) -> Iterator[str]:
    """The node whose own gradient is wrong, and how that is known."""
    label = f" {name(suspect.name)!r}" if suspect.name else ""
    flow = f"{', '.join(map(name, suspect.inputs))} -> {', '.join(map(name, suspect.outputs))}"
    yield f"  suspect    node {suspect.node}  {name(suspect.op)}{label}{f'  {flow}' if suspect.inputs else ''}"
    yield from (_INDENT + fact for fact in _own(suspect))
    for sentence in (suspect.diagnosis, *_others(suspect), _unchecked(suspect)):
        yield from wrapped(name(sentence), max(style.width, 40), _INDENT, _INDENT)


def evidence(suspect: Suspect) -> Iterator[str]:
    """The evidence that this node is at fault, a sentence each."""
    yield from filter(None, (*_own(suspect), *_others(suspect), _unchecked(suspect)))


def _own(suspect: Suspect) -> Iterator[str]:
    """The place of the node, and the result of checking it on its own."""
    if suspect.inside:
        yield f"in the {name(suspect.inside)}"
    if suspect.part_of:
        yield f"which {name(suspect.part_of)} is composed of"
    if suspect.rel_err == suspect.rel_err and suspect.at:
        place = shape(suspect.index) if suspect.index else ""
        yield f"fails on its own: max rel err {short(suspect.rel_err)} at {name(suspect.at)}{place}"


def _others(suspect: Suspect) -> Iterator[str]:
    """The results of the other nodes."""
    failed = suspect.tried - suspect.passed
    if failed > 1:
        more = [*suspect.others, *([count(left, "more node")] if (left := failed - 1 - len(suspect.others)) else [])]
        names = " and ".join(filter(None, (", ".join(more[:-1]), more[-1])))
        yield f"{names} {'fails' if failed == 2 else 'fail'} on {'its' if failed == 2 else 'their'} own as well"
        if suspect.passed:
            yield f"{count(suspect.passed, 'other node')} on the way {_pass(suspect.passed)}"
    elif suspect.unchecked and suspect.passed:
        yield f"{suspect.passed} of the {suspect.before + suspect.after} other nodes on the way {_pass(suspect.passed)}"
    elif suspect.before + suspect.after:
        yield f"{_around(suspect)} {_pass(suspect.before + suspect.after)}"


def _around(suspect: Suspect) -> str:
    """The numbers of nodes around a suspect, the 13 nodes before it and the 46 after it."""
    sides = [(number, side) for number, side in ((suspect.before, "before"), (suspect.after, "after")) if number]
    first, *second = [f"the {'node' if number == 1 else f'{number} nodes'} {side} it" for number, side in sides]
    return " and ".join([first, *(text.replace(" nodes", "") for text in second)])


def _pass(number: int) -> str:
    return "passes on its own" if number == 1 else "pass on their own"


def _unchecked(suspect: Suspect) -> str:
    whose = "its" if suspect.unchecked == 1 else "their"
    return f"{count(suspect.unchecked, 'node')} could not be checked on {whose} own" if suspect.unchecked else ""
