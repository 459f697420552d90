"""The report that people read: a table for each check, then what failed and where to look."""

from __future__ import annotations

from collections.abc import Iterator

from gradcheck_cli.report.concise import ended, given_by, mode_said, totals
from gradcheck_cli.report.evidence import LEAST_NAME, entry_lines, judged_rows, suspect_lines, title_lines
from gradcheck_cli.report.health import gate_lines, health_tables
from gradcheck_cli.report.remarks import forward_lines, held_against, lines_below
from gradcheck_cli.report.text import (
    Style,
    columns,
    count,
    cut,
    name,
    paint,
    seconds,
    shape,
    upper,
    wrapped,
)
from gradcheck_cli.results.record import Check, Report


def section(checks: tuple[Check, ...], style: Style) -> str:
    """The table of one check, and what is to be said about its rows; what passed is left out if quiet."""
    if checks and checks[0].of_two_models:
        from gradcheck_cli.report import diff_table

        return diff_table.section(checks, style)
    shown = [c for c in checks if style.verbosity >= 0 or not c.passes]
    if not shown:
        return ""
    compared = [c for c in shown if c.entries]
    parts = [[*header(shown[0], style)], [*_rows(compared, style), *lines_below(compared, style)] if compared else []]
    parts += [[*health_tables(shown, style)] if style.health else [], [*gate_lines(shown, style)]]
    parts += [[*forward_lines(shown, style)]]
    parts += [[*_details(c, style)] for c in shown]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n\n"


def summary(report: Report, style: Style) -> str:
    """The last line: numbers of checks by outcome."""
    notes = "".join(f"{note}\n" for note in report.notes)
    return f"{notes}{totals(report)} in {seconds(report.duration_s)}\n"


def header(check: Check, style: Style) -> Iterator[str]:
    """The model, and the way in which it was checked."""
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
    """All that is not the plain case: mode, method, sizes that were chosen, points."""
    if not check.entries:
        return ""
    how = (
        [] if (check.mode, check.method) == ("full", "complex-step") else [name(f"{mode_said(check)}, {check.method}")]
    )
    how += [f"y computed by {name(check.source)}"] if check.source != "internal" else []
    how += [count(check.points, "point")] if check.points > 1 else []
    how += [name(check.sizes)] if check.dims else []
    how += [f"{name(k)} in {low:g},{high:g}" for k, (low, high) in check.ranges.items()]
    return " | ".join(how)


def _rows(checks: list[Check], style: Style) -> list[str]:
    return judged_rows(checks, ("x", "y"), lambda free: list(zip(*_names(checks, free), strict=True)), style)


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


def _details(check: Check, style: Style) -> Iterator[str]:
    """More about one row; nothing for one that passed, unless asked for."""
    if check.status == "pass" and style.verbosity < 1:
        return
    yield from title_lines(check, style)
    if check.status in ("fail", "inconclusive") or check.entries.get("kink_ok"):
        yield from entry_lines(check, style)
    yield from _paragraphs(check, style)
    if check.suspect is not None:
        yield ""
        yield from suspect_lines(check.suspect, style)
    if check.status == "fail" and check.needed.get("rtol"):
        yield f"  would pass only with --rtol {upper(check.needed['rtol'])}"
    if check.status in ("inconclusive", "severed") and not check.passes:
        from gradcheck_cli.report.explanations import PAGES

        if check.code in PAGES and (hint := PAGES[check.code].hint):
            yield f"  try        {hint}"
    if style.verbosity > 0:
        tolerance = f"rtol {check.rtol:g}, atol {check.atol:g}"
        yield f"  method     {name(f'{mode_said(check)}, {check.method}')}; {tolerance}; {count(check.points, 'point')}"
    if style.verbosity > 0 and check.forward:
        yield f"  forward    {held_against(check)}"
    if style.verbosity > 0 and check.coloring:
        yield f"  coloring   {count(check.coloring['rows'], 'row')} in {count(check.coloring['colors'], 'group')}"
    if check.reproduce and check.status not in ("pass", "waived") and not check.passes:
        yield f"  reproduce  {name(check.reproduce)}"


def _paragraphs(check: Check, style: Style) -> Iterator[str]:
    if text := ended(check):
        yield from wrapped(text, style)
    for note in (*check.remarks, *(check.missed if style.verbosity > 0 else ())):
        yield from wrapped(name(note), style)
