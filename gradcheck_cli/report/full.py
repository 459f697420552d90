"""The report that people read: a table for each check, or for two models compared, then what failed and where to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradcheck_cli.report.concise import ended, given_by, mode_said, totals
from gradcheck_cli.report.evidence import LEAST_NAME, entry_lines, judged_rows, suspect_lines, title_lines
from gradcheck_cli.report.health import gate_lines, health_tables
from gradcheck_cli.report.remarks import forward_lines, held_against, lines_below
from gradcheck_cli.report.text import Style, columns, count, cut, name, paint, shape, took, upper, wrapped
from gradcheck_cli.results.record import Check, Report


def section(checks: tuple[Check, ...], style: Style) -> str:
    """The table of one check, and what is to be said about its rows; what passed is left out if quiet."""
    shown = [c for c in checks if style.verbosity >= 0 or not c.passes]
    if not shown:
        return ""
    if shown[0].of_two_models:
        return _of_two_models(shown, style)
    compared = [c for c in shown if c.entries]
    parts = [[*header(shown[0], style)]]
    if compared:
        rows = judged_rows(compared, ("x", "y"), lambda free: [*zip(*_names(compared, free), strict=True)], style)
        parts += [[*rows, *lines_below(compared, style)]]
    parts += [[*health_tables(shown, style)] if style.health else [], [*gate_lines(shown, style)]]
    parts += [[*forward_lines(shown, style)]]
    parts += [[*_details(c, style)] for c in shown]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n\n"


def summary(report: Report, style: Style) -> str:
    """The last line: numbers of checks by outcome."""
    notes = "".join(f"{note}\n" for note in report.notes)
    return f"{notes}{totals(report)} {took(report)}\n"


def header(check: Check, style: Style) -> Iterator[str]:
    """The model, and the way in which it was checked."""
    kind = ", ".join(map(name, check.model.dtypes))
    beside = ", and in its own precision" if check.dtype == "model" else ""
    precision = f"{kind} model, checked in float64{beside}" if kind else f"checked in float64{beside}"
    facts = [size, precision, f"seed {check.seed}"] if (size := _size(check)) else []
    title = paint(name(check.check), "bold", style.color)
    yield f"{title}  {' | '.join(facts)}".rstrip()
    if how := how_checked(check):
        yield f"{'':{min(len(name(check.check)), 40)}}  {how}" if facts else how


def _size(check: Check) -> str:
    """The opsets of a model and the number of its nodes."""
    opsets = [f"{name(domain) or 'opset'} {v}" for domain, v in sorted(check.model.opset.items())]
    return ", ".join(opsets + ([count(check.model.nodes, "node")] if check.model.nodes else []))


def how_checked(check: Check) -> str:
    """Facts on the method that are not usual: mode, evaluator, points, sizes that were chosen, ranges."""
    if not check.entries:
        return ""
    usual = (check.mode, check.method) == ("full", "complex-step")
    how = [] if usual else [name(f"{mode_said(check)}, {check.method}")]
    how += [f"y computed by {name(check.source)}"] if check.source != "internal" else []
    how += [count(check.points, "point")] if check.points > 1 else []
    how += [name(check.sizes)] if check.dims else []
    how += [f"{name(k)} in {low:g},{high:g}" for k, (low, high) in check.ranges.items()]
    return " | ".join(how)


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


def _details(check: Check, style: Style, common: Sequence[str] = ()) -> Iterator[str]:
    """Details of one record, without notes that are `common` to all; nothing for one that passed, unless asked for.

    Where two models were compared, a note of its own is worth telling of one that passed too.
    """
    notes = [*check.remarks, *(check.missed if style.verbosity > 0 else ())]
    notes = [ended(check), *(note for note in notes if note not in common)]
    passed = check.status in ("pass", "waived") and not any(notes) if check.of_two_models else check.status == "pass"
    if passed and style.verbosity < 1:
        return
    yield from title_lines(check, style)
    if check.of_two_models or check.status in ("fail", "inconclusive") or check.entries.get("kink_ok"):
        yield from entry_lines(check, style)
    for note in notes:
        yield from wrapped(name(note), style.width)
    if check.suspect is not None:
        yield from ("", *suspect_lines(check.suspect, style))
    if check.status == "fail" and check.needed.get("rtol"):
        yield f"  would pass only with --rtol {upper(check.needed['rtol'])}"
    if check.status in ("inconclusive", "severed") and not (check.passes or check.of_two_models):
        from gradcheck_cli.report.explanations import PAGES

        if check.code in PAGES and (hint := PAGES[check.code].hint):
            yield f"  try        {hint}"
    if style.verbosity > 0:
        yield from _method(check)
    if check.reproduce and check.status not in ("pass", "waived") and not check.passes:
        yield f"  reproduce  {name(check.reproduce)}"


def _method(check: Check) -> Iterator[str]:
    """The facts on the way in which a pair was checked, for `-v`."""
    if check.of_two_models:
        yield f"  tolerance  rtol {check.rtol:.2g}, atol {check.atol:.2g}"
        return
    tolerance = f"rtol {check.rtol:g}, atol {check.atol:g}"
    yield f"  method     {name(f'{mode_said(check)}, {check.method}')}; {tolerance}; {count(check.points, 'point')}"
    if check.forward:
        yield f"  forward    {held_against(check)}"
    if check.coloring:
        yield f"  coloring   {count(check.coloring['rows'], 'row')} in {count(check.coloring['colors'], 'group')}"


def _of_two_models(shown: Sequence[Check], style: Style) -> str:
    """The table of two models that were held against each other, what a reader should know, and what differs."""
    compared = [c for c in shown if c.entries]
    common = [n for n in shown[0].remarks if all(n in c.notes for c in shown)]
    parts = [[*_two_headers(shown[0], style)]]
    if compared:
        parts += [judged_rows(compared, ("compared",), lambda free: [(_label(c, free),) for c in compared], style)]
    parts += [[line for note in common for line in wrapped(name(note), style.width)]]
    parts += [[*_details(c, style, common)] for c in shown]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n\n"


def _two_headers(check: Check, style: Style) -> Iterator[str]:
    where = "each in its own dtype" if check.dtype == "model" else "both in float64"
    facts = [", ".join(check.model.dtypes), where, f"seed {check.seed}"]
    facts += [count(check.points, "point")] if check.points > 1 else []
    facts += [name(check.sizes)] if check.dims else []
    first, second = name(str(check.forward.get("compared_with") or "?")), name(check.model.uri)
    yield f"A  {paint(first, 'bold', style.color)}"
    yield f"B  {paint(second, 'bold', style.color)}  {_size(check)}"
    yield f"   {' | '.join(filter(None, facts))}"


def _label(check: Check, width: int) -> str:
    """The tensor or derivative of a row, output logits [2,10] or d loss / d input [2,4], of which only names are cut."""
    if not check.x:
        sizes = shape(check.y_shape)
        return f"output {cut(name(check.y), max(LEAST_NAME, width - len(sizes) - 8))} {sizes}"
    sizes, (y, x) = shape(check.x_shape), (name(check.y), name(check.x))
    free = max(2 * LEAST_NAME, width - len(sizes) - 8)
    first = min(columns(y), max(free // 2, free - columns(x)))
    return f"d {cut(y, first)} / d {cut(x, free - first)} {sizes}"
