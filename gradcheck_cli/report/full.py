"""The report that people read: a table for each check, then what failed and where to look.

The table of single entries of a Jacobian that did not pass.

Notes of checks that passed which are shown without being asked for.

Most of what there is to say of a check that passed stands in its row, or in a line below the table.  What does not may
change what the reader makes of it, and is never left to `-v`.

The suspect, as people read of it: the node, its worst element, what its gradient looks like, and the other nodes.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Sequence

from gradcheck_cli.report.explanations import PAGES
from gradcheck_cli.report.findings import forward_lines, held_against, power_lines, refusals
from gradcheck_cli.report.health import gate_lines, health_lines, health_tables
from gradcheck_cli.report.text import (
    Style,
    clean,
    columns,
    count,
    cut,
    name,
    paint,
    percent,
    precise,
    rough,
    seconds,
    shape,
    short,
    table,
    upper,
)
from gradcheck_cli.results.record import ENTRY_REASONS, OUTCOMES, Check, Entry, Report, Suspect

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


_SHOWN = 5  # of one table
_LABEL = "  note       "
_ELSEWHERE = re.compile(  # by the line on what was given, by the header, by the last lines, or by whoever asked for it
    r"by their names |differences instead of the complex step|as in TensorFlow: |values of .* for "
    r"|--straight-through has no effect",
    re.DOTALL,
)
_IN_ROW = re.compile(  # (4 at a kink; 2 of 16 not judged: jump)
    r"\d+ entr(y|ies) at a tie of |and ties of \d+ nodes more|\d+ entr(y|ies) open(, since| for) "
    r"|\d+ of \d+ entries of y (is|are) not finite and left out"
)
_TOLERATED = re.compile(r"\d+ rows? perturbed across a branch of ")  # the entries agree all the same


def remarks(check: Check) -> list[str]:
    """The notes of a check that passed, but for what is said elsewhere."""
    if check.status != "pass":
        return []
    quiet = (_ELSEWHERE, _TOLERATED, *(() if check.nodes else (_IN_ROW,)))  # a row of nodes counts no entries
    return [note for note in check.remarks if not any(each.match(note) for each in quiet)]


def remark_lines(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """A sentence for each different note of some checks, with the derivative that it is about if there are several."""
    if style.verbosity > 0:  # each stands with its check
        return
    about: dict[str, list[Check]] = {}
    for check in checks:
        for note in remarks(check):
            about.setdefault(note, []).append(check)
    for note, some in [*about.items()][:_SHOWN]:
        pair = "" if len(some) == len(checks) else f"{' / '.join(map(name, some[0].derivative))}: "
        yield from textwrap.wrap(
            f"{pair}{name(note)}", style.width, initial_indent=_LABEL, subsequent_indent=" " * len(_LABEL),
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    if len(about) > _SHOWN:
        yield f"{_LABEL}{count(len(about) - _SHOWN, 'more note')}: see -v"


_INDENT = " " * 13


def suspect_lines(suspect: Suspect, style: Style) -> Iterator[str]:
    """The node whose own gradient is wrong, and how that is known."""
    label = f" {name(suspect.name)!r}" if suspect.name else ""
    flow = f"{', '.join(map(name, suspect.inputs))} -> {', '.join(map(name, suspect.outputs))}"
    yield f"  suspect    node {suspect.node}  {name(suspect.op)}{label}{f'  {flow}' if suspect.inputs else ''}"
    yield from (_INDENT + fact for fact in _own(suspect))
    for sentence in (suspect.diagnosis, *_others(suspect), _unchecked(suspect)):
        yield from textwrap.wrap(
            name(sentence), max(style.width, 40), initial_indent=_INDENT, subsequent_indent=_INDENT,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip


def evidence(suspect: Suspect) -> Iterator[str]:
    """How it is known that this node is at fault, a sentence each."""
    yield from _own(suspect)
    yield from _others(suspect)
    yield from filter(None, [_unchecked(suspect)])


def _own(suspect: Suspect) -> Iterator[str]:
    """Where the node stands, and how it fares on its own."""
    if suspect.inside:
        yield f"in the {name(suspect.inside)}"
    if suspect.part_of:
        yield f"which {name(suspect.part_of)} is composed of"
    if suspect.rel_err == suspect.rel_err and suspect.at:
        place = shape(suspect.index) if suspect.index else ""
        yield f"fails on its own: max rel err {short(suspect.rel_err)} at {name(suspect.at)}{place}"


def _others(suspect: Suspect) -> Iterator[str]:
    """How the other nodes fare."""
    failed = suspect.tried - suspect.passed
    if failed > 1:
        more = [*suspect.others, *([count(left, "more node")] if (left := failed - 1 - len(suspect.others)) else [])]
        yield f"{_listed(more)} {'fails' if failed == 2 else 'fail'} on {'its' if failed == 2 else 'their'} own as well"
        if suspect.passed:
            yield f"{count(suspect.passed, 'other node')} on the way {_pass(suspect.passed)}"
    elif suspect.unchecked and suspect.passed:
        yield f"{suspect.passed} of the {suspect.before + suspect.after} other nodes on the way {_pass(suspect.passed)}"
    elif suspect.before + suspect.after:
        yield f"{_around(suspect)} {_pass(suspect.before + suspect.after)}"


def _around(suspect: Suspect) -> str:
    """The 13 nodes before it and the 46 after it."""
    sides = [(number, side) for number, side in ((suspect.before, "before"), (suspect.after, "after")) if number]
    first, *second = [f"the {'node' if number == 1 else f'{number} nodes'} {side} it" for number, side in sides]
    return " and ".join([first, *(text.replace(" nodes", "") for text in second)])


def _pass(number: int) -> str:
    return "passes on its own" if number == 1 else "pass on their own"


def _unchecked(suspect: Suspect) -> str:
    whose = "its" if suspect.unchecked == 1 else "their"
    return f"{count(suspect.unchecked, 'node')} could not be checked on {whose} own" if suspect.unchecked else ""


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


_VERDICTS = {
    "pass": ("PASS", "green"), "waived": ("WAIVED", "yellow"), "fail": ("FAIL", "red"), "severed": ("NO GRADIENT", "red"),
    "inconclusive": ("INCONCLUSIVE", "yellow"), "error": ("ERROR", "red"),
    "unsupported": ("UNSUPPORTED", "yellow"), "limit": ("LIMIT", "yellow"),
}  # fmt: skip
COUNTED = {
    "pass": "passed", "waived": "waived", "fail": "failed", "severed": "severed", "inconclusive": "inconclusive",
    "unsupported": "unsupported", "limit": "over a limit",
}  # fmt: skip
_WHY = {reason: reason for reason in ENTRY_REASONS} | {"left_out": "y is not finite"}
_HEAD = ("entries", "max abs err", "max rel err", "noise", "")
_NUMBERS = 2 + 11 + 2 + 11 + 2 + 7 + 2  # columns that the numbers right of `entries` take
LEAST_NAME = 5
_GIVEN = 3  # of others' gradients that are named


def section(checks: tuple[Check, ...], style: Style) -> str:
    """The table of one check, and what is to be said about its rows; what passed is left out if quiet."""
    if checks and checks[0].of_two_models:
        from gradcheck_cli.report import diff_text as two_models

        return two_models.section(checks, style)
    shown = [c for c in checks if style.verbosity >= 0 or not c.passes]
    if not shown:
        return ""
    compared = [c for c in shown if c.entries]
    below = [*_claims(compared, style), *power_lines(compared, style), *health_lines(compared, style)]
    below += [
        *_uncovered(compared, style),
        *_ranges(compared, style),
        *remark_lines(compared, style),
        *refusals(compared, style),
    ]
    parts = [[*header(shown[0], style)], [*_rows(compared, style), *below] if compared else []]
    parts += [[*health_tables(shown, style)] if style.health else [], [*gate_lines(shown, style)]]
    parts += [[*forward_lines(shown, style)]]
    parts += [[*_details(c, style)] for c in shown]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n\n"


def summary(report: Report, style: Style) -> str:
    """The last line: how many checks ended how."""
    notes = "".join(f"{note}\n" for note in report.notes)
    return f"{notes}{totals(report)} in {seconds(report.duration_s)}\n"


def totals(report: Report) -> str:
    """12 checks: 11 passed, 1 failed."""
    statuses = ["pass" if c.status == "severed" and c.passes else c.status for c in report.outcomes]
    parts = [f"{statuses.count(status)} {word}{_let_through(status, report)}" for status, word in COUNTED.items()
             if status in statuses]  # fmt: skip
    if apart := sum(c.status == "severed" and c.passes for c in report.outcomes):
        parts.insert(1, f"{apart} of them severed")
    parts += [count(statuses.count("error"), "error")] if "error" in statuses else []
    if differ := sum(c.forward_differs for c in report.outcomes):
        parts += [f"{differ} forward differs{_let_through('forward', report)}"]
    parts += [f"{stopped} at a gate"] if (stopped := sum(bool(c.at_health) for c in report.outcomes)) else []
    return f"{count(len(statuses), 'check')}: {', '.join(parts) or 'nothing to do'}"


def _let_through(outcome: str, report: Report) -> str:
    """That a run does not fail for this outcome, although others fail it."""
    return ", not in --fail-on" if outcome in OUTCOMES and report.fail_on and outcome not in report.fail_on else ""


def said_of(check: Check) -> tuple[str, str, str]:
    """What became of a check in a word, the color of that, and what stands beside it in its row."""
    word, color = _VERDICTS[check.status]
    if check.status != "severed":
        open_ = not_judged(check) if check.status == "pass" else ""
        return word, color, " ".join(filter(None, ("zero everywhere" if check.zero_everywhere else "", open_)))
    others = check.severed.others if check.severed is not None else ()
    beside = f"({name(check.x)} has one from: {listed(others)})" if others else ""
    return word, color if check.gates else "yellow", beside


def not_judged(check: Check) -> str:
    """(2 at a kink; 516 of 262,144 not judged: underflow): what a check that passed does not say of every entry."""
    if check.nodes or check.of_two_models:
        return ""
    kinks, left = check.entries.get("kink_ok", 0), check.entries.get("left_out", 0)
    open_ = check.entries.get("inconclusive", 0) + left
    parts = [f"{kinks:,} at a kink"] if kinks else []
    if open_:
        reasons = sorted((r for r in _WHY if check.entries.get(r)), key=lambda r: -check.entries[r])
        told = ", ".join(_WHY[r] for r in reasons)
        every = check.entries.get("checked", 0) + left
        parts.append(f"{open_:,} of {every:,} not judged" + (f": {told}" if told else ""))
    return f" ({'; '.join(parts)})" if parts else ""


def listed(names: Sequence[str], most: int = 3) -> str:
    """Names one after another, the first few of many."""
    return ", ".join(map(name, names[:most])) + (f" and {len(names) - most} more" if len(names) > most else "")


def header(check: Check, style: Style) -> Iterator[str]:
    """Which model was checked, and how."""
    opsets = [f"opset {v}" if not domain else f"{name(domain)} {v}" for domain, v in sorted(check.model.opset.items())]
    size = ", ".join(opsets + ([count(check.model.nodes, "node")] if check.model.nodes else []))
    kind = ", ".join(map(name, check.model.dtypes))
    beside = ", and in its own precision" if check.dtype == "model" else ""
    precision = f"{kind} model, checked in float64{beside}" if kind else f"checked in float64{beside}"
    facts = [size, precision, f"seed {check.seed}"] if size else []
    title = paint(name(check.check), "bold", style.color)
    yield f"{title}  {' | '.join(facts)}".rstrip()
    if how := how_checked(check):
        yield f"{'':{min(len(name(check.check)), 40)}}  {how}" if facts else how


def how_checked(check: Check) -> str:
    """What is not the plain case: mode, method, sizes that were chosen, points."""
    if not check.entries:
        return ""
    how = [] if (check.mode, check.method) == ("full", "complex-step") else [name(f"{check.mode}, {check.method}")]
    how += [f"y by {name(check.source)}"] if check.source != "internal" else []
    how += [count(check.points, "point")] if check.points > 1 else []
    how += [name(check.sizes)] if check.dims else []
    how += [f"{name(k)} in {low:g},{high:g}" for k, (low, high) in check.ranges.items()]
    return " | ".join(how)


def _rows(checks: list[Check], style: Style) -> list[str]:
    return judged_rows(checks, ("x", "y"), lambda free: list(zip(*_names(checks, free), strict=True)), style)


def judged_rows(
    checks: Sequence[Check], titles: Sequence[str], labels: Callable[[int], Sequence[Sequence[str]]], style: Style
) -> list[str]:
    """The table of some checks: labels under their titles, which get so many columns together, errors and verdicts."""
    entries = [share_compared(c) for c in checks]
    verdicts = [said_of(c) for c in checks]
    widest = max(7, *map(len, entries))
    free = style.width - 2 * len(titles) - widest - _NUMBERS - max(len(word) for word, _, _ in verdicts)
    rows = [(*titles, *_HEAD)] + [
        (*label, n, short(c.max_abs_err), short(c.max_rel_err), rough(c.noise), word)
        for label, n, c, (word, _, _) in zip(labels(free), entries, checks, verdicts, strict=True)
    ]
    head, *lines = table(rows, "<" * len(titles) + ">>>><", (*(0 for _ in titles), 7, 11, 11, 7))
    return [head] + [
        " ".join(filter(None, (line.removesuffix(word) + paint(word, color, style.color), beside)))
        for line, (word, color, beside) in zip(lines, verdicts, strict=True)
    ]


def share_compared(check: Check) -> str:
    """How much was compared, of how much: 192/192; of nodes on their own 59/61 nodes."""
    if check.nodes:
        return f"{check.nodes['checked']}/{check.nodes['total']} nodes"
    return f"{check.entries.get('checked', 0)}/{check.entries.get('total', 0)}"


def _names(checks: list[Check], free: int) -> tuple[list[str], list[str]]:
    """Names with shapes for x and y, the names cut so that both columns fit into `free`."""
    whole = [((name(c.x) + given_by(c), shape(c.x_shape)), (name(c.y), shape(c.y_shape))) for c in checks]
    room = free - max(columns(text) + len(sizes) + 1 for _, (text, sizes) in whole)
    fits = all(columns(text) + len(sizes) < room for (text, sizes), _ in whole)
    pairs = [((x if fits else (name(c.x), x[1])), y) for c, (x, y) in zip(checks, whole, strict=True)]
    wanted = [max(columns(text) + len(sizes) + 1 for text, sizes in column) for column in zip(*pairs, strict=True)]
    least = max(len(sizes) for (_, sizes), _ in pairs) + 1 + LEAST_NAME
    first = min(wanted[0], max(free // 2, free - wanted[1], least))
    widths = (first, free - first)

    def label(text: str, sizes: str, width: int) -> str:
        return f"{cut(text, max(LEAST_NAME, width - len(sizes) - 1))} {sizes}"

    return [label(*p[0], widths[0]) for p in pairs], [label(*p[1], widths[1]) for p in pairs]


def given_by(check: Check) -> str:
    """The gradient that was judged, if it is not gradcheck's own."""
    return f" by {name(check.claim['by'])}" if check.claim else ""


def _claims(checks: list[Check], style: Style) -> Iterator[str]:
    """Which gradients are not gradcheck's own, and what they are derivatives of."""
    groups: dict[tuple[str, str], list[str]] = {}
    for claim in (c.claim for c in checks if c.claim):
        seed = claim.get("seed", "")
        how = f"seed {name(seed)}" if seed else f"whole Jacobians, {name(claim.get('layout', ''))}"
        groups.setdefault((claim["kind"], how), []).append(name(claim["by"]))
    for (kind, how), names in groups.items():
        more = f" and {len(names) - _GIVEN} more" if len(names) > _GIVEN else ""
        by = cut(", ".join(names[:_GIVEN]), style.width - 22 - len(kind + how + more))
        yield f"  given      by {kind}{'s'[: len(names) > 1]} {by}{more}; {how}"


def _uncovered(checks: list[Check], style: Style) -> Iterator[str]:
    """That some branches of the model were not taken, by the row that has most of them."""
    most = max((c.branches for c in checks if c.missed), key=lambda b: b["total"] - b["covered"], default=None)
    if most is not None:
        more = "" if style.verbosity > 0 else ": see -v"
        yield f"  branches   {most['total'] - most['covered']} of {most['total']} not covered{more}"


def _ranges(checks: list[Check], style: Style) -> Iterator[str]:
    """If asked for, the values that piecewise nodes read on the way of some row, each node once."""
    for read in dict.fromkeys(read for c in checks for read in c.branches.get("ranges", ()) if style.verbosity > 0):
        yield f"  values     {name(read)}"


def _details(check: Check, style: Style) -> Iterator[str]:
    """What is to be said about one row; nothing for one that passed, unless asked for."""
    if check.status == "pass" and style.verbosity < 1:
        return
    yield from _title(check, style)
    if check.status in ("fail", "inconclusive") or check.entries.get("kink_ok"):
        yield from entry_lines(check, style)
    yield from _paragraphs(check, style)
    if check.suspect is not None:
        yield ""
        yield from suspect_lines(check.suspect, style)
    if check.status == "fail" and check.needed.get("rtol"):
        yield f"  would pass only with --rtol {upper(check.needed['rtol'])}"
    if (
        check.status in ("inconclusive", "severed")
        and not check.passes
        and check.code in PAGES
        and (hint := PAGES[check.code].hint)
    ):
        yield f"  try        {hint}"
    if style.verbosity > 0:
        tolerance = f"rtol {check.rtol:g}, atol {check.atol:g}"
        yield f"  method     {name(f'{check.mode}, {check.method}')}; {tolerance}; {count(check.points, 'point')}"
    if style.verbosity > 0 and check.forward:
        yield f"  forward    {held_against(check)}"
    if style.verbosity > 0 and check.coloring:
        yield f"  coloring   {count(check.coloring['rows'], 'row')} in {count(check.coloring['colors'], 'group')}"
    if check.reproduce and check.status not in ("pass", "waived") and not check.passes:
        yield f"  reproduce  {name(check.reproduce)}"


def _title(check: Check, style: Style) -> Iterator[str]:
    """What became of a row, on one line or as many as it takes."""
    word, color, _ = said_of(check)
    start = f"{word} {check.code}".strip()
    pair = " / ".join(map(name, check.derivative)) + given_by(check) if check.x or check.y else ""
    text = f"{start}  {': '.join(filter(None, (pair, headline(check))))}"
    for index, line in enumerate(each for part in clean(text).split("\n") for each in _wrapped(part, style, "")):
        yield paint(start, color, style.color) + line.removeprefix(start) if index == 0 else line


def headline(check: Check) -> str:
    """What happened, in a few words."""
    if check.status == "waived":
        return expectation(check)
    if check.message:
        return check.message.removeprefix(f"{check.code}: ").strip()
    if check.status == "fail" and check.nodes.get("failed"):
        failed, every = check.nodes["failed"], count(check.nodes["checked"], "node")
        return f"{failed} of {every} {'fails on its' if failed == 1 else 'fail on their'} own"
    checked = check.entries.get("checked", 0)
    number = check.entries.get("failed" if check.status == "fail" else "inconclusive", 0)
    share = f" ({percent(number / checked)})" if checked else ""
    what = {"fail": "differ", "inconclusive": "cannot be judged"}.get(check.status)
    return f"{number} of {checked} {compared(check)} {what}{share}" if what else ""


def compared(check: Check, number: int = 0) -> str:
    """What was compared: entries of the Jacobian, or random projections of it; so many of them."""
    one, many = ("projection", "projections") if check.mode in ("directional", "nodes") else ("entry", "entries")
    return one if number == 1 else many


def expectation(check: Check) -> str:
    """fail, as expected: ACME-412 (until 2027-03-31)."""
    waiver = check.waiver or {}
    until = f" (until {name(last)})" if (last := waiver.get("until")) else ""
    reason = f": {name(str(waiver['reason']))}" if waiver.get("reason") else ""
    what = [name(waiver.get("status") or ""), "forward differs" if waiver.get("forward") else ""]
    return f"{' and '.join(filter(None, what))}, as expected{reason}{until}"


def ended(check: Check) -> str:
    """its waiver, ACME-412, ended on 2027-03-31; nothing where none has."""
    waiver = check.waiver or {}
    reason = f", {name(waiver['reason'])}," if waiver.get("reason") else ""
    return f"its waiver{reason} ended on {name(waiver.get('until') or '')}" if waiver.get("ended") else ""


def _paragraphs(check: Check, style: Style) -> Iterator[str]:
    if text := ended(check):
        yield from _wrapped(text, style, "  ")
    for note in (*check.remarks, *(check.missed if style.verbosity > 0 else ())):
        yield from _wrapped(name(note), style, "  ")


def _wrapped(text: str, style: Style, indent: str) -> list[str]:
    """A sentence in lines of the report's width; what has no space stays whole."""
    return textwrap.wrap(
        text, style.width, initial_indent=indent, subsequent_indent="  ", break_long_words=False,
        break_on_hyphens=False, expand_tabs=False, replace_whitespace=False,
    )  # fmt: skip
