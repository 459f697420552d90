"""The evidence for verdicts in text: rows of pairs with their errors, the worst entries, and the suspect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from gradcheck_cli.errors import clean, counted, plural
from gradcheck_cli.report.concise import errors_said, headline, pair_said, said_of, share_compared, zero_said
from gradcheck_cli.report.text import (
    ENDLESS,
    Style,
    below,
    columns,
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
from gradcheck_cli.results.record import Check, Entry, Gradient, Suspect

NUMBERS = ("theoretical", "numerical", "abs err", "rel err", "noise", "pattern")
_LEFT_OUT = ("abs err", "max abs err", "noise", "rel err")  # in this order, where the line would be too long
SLOPES = ("theoretical", "left slope", "right slope", "noise", "verdict")
_HEAD = ("entries", "max abs err", "max rel err", "noise", "")
_WIDTHS = {  # of others 12 at least
    "entries": 7, "max abs err": 11, "max rel err": 11, "abs err": 7, "rel err": 7, "noise": 7,
    "numerical": 0, "pattern": 0, "verdict": 0, "": 0,
}  # fmt: skip
_LONGEST = 24  # columns of a name above places of entries
_MOST_PASSED = 20  # rows that pass and are shown one by one
_INDENT = " " * 13
_EXPLAINED = " (uncertainty)"
Labels: TypeAlias = Callable[[Sequence[Check], int], Sequence[tuple[str, ...]] | None]


def judged_rows(checks: Sequence[Check], titles: Sequence[str], labels: Labels, style: Style) -> list[str]:
    """The table of some checks: labels, errors and verdicts; many that pass are one row unless `style` is verbose.

    `labels` fits the names of checks into a number of columns, or gives None.  Where they do not fit beside the errors
    they stand above them, whole if need be.
    """
    apart, folded = ([*checks], []) if style.verbosity > 0 else _folded(checks)
    more = [(f"{counted(len(some), 'row')}: see -v", *[""] * (len(titles) - 1)) for some in folded]
    rows = [*apart, *map(_together, folded)]
    numbers = [_HEAD, *map(_errors, rows)]
    gaps = 2 * len(titles)

    def beside(free: int) -> list[tuple[str, ...]] | None:
        names = labels(apart, free) if apart else []
        return None if names is None else [tuple(titles), *names, *more]

    names = beside(style.width - gaps - max(map(columns, _spared(numbers, 0, ENDLESS))))
    every = [(*label, *cells) for label, cells in zip(names, numbers, strict=True)] if names else []
    lines = _spared(every, len(titles), ENDLESS) if every else []
    if not lines or max(map(columns, lines)) > style.width:
        names = beside(style.width - gaps + 2) or beside(ENDLESS) or []
        lines = below(names, _spared(numbers, 0, style.width - 2), style.width)
    head, *lines = lines
    if columns(head.split("\n")[-1]) + len(_EXPLAINED) <= style.width and "noise" in head[-5:]:
        head += _EXPLAINED
    return [head, *(_with_verdict(line, said_of(row), style) for line, row in zip(lines, rows, strict=True))]


def _folded(checks: Sequence[Check]) -> tuple[list[Check], list[list[Check]]]:
    """The checks that have a row each, and groups of many that pass."""
    groups: dict[tuple[str, str, str], list[Check]] = {}
    for check in checks:
        if check.status == "pass" and check.passes:
            groups.setdefault((check.mode, zero_said(check), check.copy_of), []).append(check)
    many = [some for some in groups.values() if len(some) > _MOST_PASSED]
    kept = {id(check) for some in many for check in some}
    return [check for check in checks if id(check) not in kept], many


def _together(checks: Sequence[Check]) -> Check:
    """A record of many that pass: entries together, errors of the worst."""
    entries, nodes = Counter[str](), Counter[str]()
    for check in checks:
        entries.update(check.entries)
        nodes.update(check.nodes)
    worst = {field: max(getattr(c, field) for c in checks) for field in ("max_abs_err", "max_rel_err", "noise")}
    largest: Gradient = {"max": max(c.gradient.get("max", 0.0) for c in checks)}
    return replace(checks[0], entries=entries, nodes=nodes, gradient={**checks[0].gradient, **largest}, **worst)


def _errors(check: Check) -> tuple[str, ...]:
    """The cells of a row right of its names."""
    return share_compared(check), *errors_said(check), said_of(check)[0]


def _with_verdict(line: str, said: tuple[str, str, str], style: Style) -> str:
    """A row with its verdict in color, and the remark on it behind or, where that is too long, below."""
    word, color, beside = said
    whole = " ".join(filter(None, (line, beside)))
    painted = line.removesuffix(word) + paint(word, color, style.color)
    if columns(whole.split("\n")[-1]) <= style.width:
        return painted + whole.removeprefix(line)
    return "\n".join([painted, *wrapped(beside.strip(), style.width, "    ", "    ")])


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
    heads, rows = entry_table(check, shown)
    yield from _fitted([(_places(check), *heads), *rows], style)
    if len(told) > len(shown):
        yield f"... {open_entries(check, len(told)) - len(shown)} more, --show {len(told)}"


def _places(check: Check) -> str:
    """The title of the places of entries; long names stand in the line above."""
    if by_y(check):
        pair = f"{name(check.x)} -> {name(check.y)}"
        return pair if columns(pair) <= 2 * _LONGEST else "entry of x -> of y"
    of = name(check.x or check.y)
    return f"entry of {of if columns(of) <= _LONGEST else 'x' if check.x else 'y'}"


def open_entries(check: Check, kept: int) -> int:
    """The number of entries that did not pass, of which the record has kept some."""
    return max(check.entries.get("failed", 0) + check.entries.get("inconclusive", 0), kept)


def entry_table(check: Check, entries: Sequence[Entry]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The columns of some entries behind their places, and their rows; a given value comes first where that was judged."""
    made, heads = (_sides, SLOPES) if any(entry.slopes for entry in entries) else (_row, NUMBERS)
    heads = ("A", "B", *heads[2:]) if check.of_two_models else ("given", *heads) if check.claim else heads
    return heads, [made(check, entry) for entry in entries]


def _fitted(rows: list[tuple[str, ...]], style: Style) -> list[str]:
    """The table of entries, each below its place where the line would be too long."""
    lines = _spared(rows, 1, style.width)
    if max(map(columns, lines)) <= style.width:
        return lines
    return below([row[:1] for row in rows], _spared([row[1:] for row in rows], 0, style.width - 2), style.width)


def _spared(rows: list[tuple[str, ...]], left: int, width: int) -> list[str]:
    """The table, `left` names first, without its least telling columns where it would be too wide, then on more lines."""
    for head in ("", *(each for each in _LEFT_OUT if not (left and each == "rel err"))):  # rather below its place
        if head and head in rows[0][left:]:
            at = rows[0].index(head, left)
            rows = [row[:at] + row[at + 1 :] for row in rows]
        align = "<" * left + ">" * (len(rows[0]) - left - 1) + "<"
        least = [*[0] * left, *(_WIDTHS.get(each, 12) for each in rows[0][left:])]
        lines = table(rows, align, least)
        if max(map(columns, lines)) <= width:
            return lines
    return table(rows, align, least, width)


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
    label = f" {name(repr(suspect.name))}" if suspect.name else ""
    flow = f"{', '.join(map(name, suspect.inputs))} -> {', '.join(map(name, suspect.outputs))}"
    first = f"node {suspect.node}  {name(suspect.op)}{label}{f'  {flow}' if suspect.inputs else ''}"
    yield from wrapped(first, style.width, "  suspect    ", _INDENT)
    for sentence in (*_own(suspect), suspect.diagnosis, *_others(suspect), _unchecked(suspect)):
        yield from wrapped(name(sentence), style.width, _INDENT, _INDENT)


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
        more = [*suspect.others, *([counted(left, "more node")] if (left := failed - 1 - len(suspect.others)) else [])]
        names = " and ".join(filter(None, (", ".join(more[:-1]), more[-1])))
        yield f"{names} {'fails' if failed == 2 else 'fail'} on {'its' if failed == 2 else 'their'} own as well"
        if suspect.passed:
            yield f"{counted(suspect.passed, 'other node')} on the way {_pass(suspect.passed)}"
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
    return plural(number, "passes on its own", "pass on their own")


def _unchecked(suspect: Suspect) -> str:
    whose = plural(suspect.unchecked, "its", "their")
    return f"{counted(suspect.unchecked, 'node')} could not be checked on {whose} own" if suspect.unchecked else ""
