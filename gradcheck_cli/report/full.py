"""The report that people read: a table for each check, or for two models compared, then what failed and where to look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradcheck_cli.errors import counted
from gradcheck_cli.report.concise import ended, given_by, mode_said, totals
from gradcheck_cli.report.evidence import entry_lines, judged_rows, suspect_lines, title_lines
from gradcheck_cli.report.health import gate_lines, health_tables
from gradcheck_cli.report.remarks import forward_lines, held_against, lines_below
from gradcheck_cli.report.text import (
    ENDLESS,
    SPACE,
    Style,
    both,
    columns,
    labels,
    name,
    opened,
    paint,
    shape,
    took,
    upper,
    wrapped,
)
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
        rows = judged_rows(compared, ("x", "y"), _names, style)
        parts += [[*rows, *lines_below(compared, style)]]
    parts += [[*health_tables(shown, style)] if style.health else [], [*gate_lines(shown, style)]]
    parts += [[*forward_lines(shown, style)]]
    parts += [[*_details(c, style)] for c in shown]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n\n"


def summary(report: Report, style: Style) -> str:
    """The last lines: versions if asked for, numbers of checks by outcome."""
    lines = [*report.notes, *(versions_said(report) if style.verbosity > 0 else ())]
    ends = wrapped(f"{totals(report)} {took(report)}", style.width, "")
    return "".join(f"{line}\n" for line in [*lines, *ends])


def versions_said(report: Report) -> Iterator[str]:
    """A line for each set of versions that results were made with: gradcheck 0.1.0, onnx 1.19.0, ..., kernels avx2."""
    order = ("gradcheck", "onnx", "numpy", "python", "kernels")
    made = (", ".join(f"{n} {name(c.versions[n])}" for n in order if n in c.versions) for c in report.checks)
    yield from dict.fromkeys(filter(None, made))


def header(check: Check, style: Style) -> Iterator[str]:
    """The model, and the way in which it was checked."""
    kind = ", ".join(map(name, check.model.dtypes))
    beside = ", and in its own precision" if check.dtype == "model" else ""
    precision = f"{kind} model, checked in float64{beside}" if kind else f"checked in float64{beside}"
    facts = [size, precision, f"seed {check.seed}"] if (size := _size(check)) else []
    title = name(check.check)
    yield from opened(f"{title}  {_beside_each_other(facts)}".rstrip(), title, "bold", style)
    if how := [*how_checked(check)]:
        space = " " * (2 + min(columns(title), 40, style.width // 2 - 2)) if facts else ""
        yield from wrapped(_beside_each_other(how), style.width, space, space)


def _size(check: Check) -> str:
    """The opsets of a model and the number of its nodes."""
    opsets = [f"{name(domain) or 'opset'} {v}" for domain, v in sorted(check.model.opset.items())]
    return ", ".join(opsets + ([counted(check.model.nodes, "node")] if check.model.nodes else []))


def how_checked(check: Check) -> Iterator[str]:
    """Facts on the method that are not usual: mode, evaluator, points, sizes that were chosen, ranges."""
    if not check.entries:
        return
    if check.method and (check.mode, check.method) != ("full", "complex-step") and not check.copy_of:
        yield name(f"{mode_said(check)}, {check.method}")
    if check.source != "internal":
        yield f"y computed by {name(check.source)}"
    if check.points > 1:
        yield counted(check.points, "point")
    if check.dims:
        yield name(check.sizes)
    yield from (f"{name(k)} in {low:g},{high:g}" for k, (low, high) in check.ranges.items())


def _beside_each_other(facts: Sequence[str]) -> str:
    """Facts between bars, each of which stays on one line where lines are wrapped."""
    return " ".join(fact.replace(" ", SPACE) + f"{SPACE}|" * (fact is not facts[-1]) for fact in facts)


def _names(checks: Sequence[Check], free: int) -> list[tuple[str, str]] | None:
    """Names with shapes for x and y, fitted into `free`; by whom a gradient is, where that leaves names whole."""
    sizes = [(shape(c.x_shape), shape(c.y_shape)) for c in checks]
    full = [(name(c.x) + given_by(c), name(c.y)) for c in checks]
    found = labels(full, sizes, free)
    brief = [(name(c.x) + " given" * bool(c.claim), name(c.y)) for c in checks]
    if len({*brief}) < len({*full}) or found == labels(full, sizes, ENDLESS):
        return found
    return labels(brief, sizes, free)


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
    if check.status == "waived" and check.ignored and style.verbosity < 1:
        return
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
            yield from wrapped(hint, style.width, "  try        ", " " * 13)
    for title, text in _method(check) if style.verbosity > 0 else ():
        yield from wrapped(text, style.width, f"  {title:11}", " " * 13)
    if check.reproduce and check.status not in ("pass", "waived") and not check.passes:
        yield f"  reproduce  {name(check.reproduce)}"


def _method(check: Check) -> Iterator[tuple[str, str]]:
    """The facts on the way in which a pair was checked, for `-v`."""
    if check.of_two_models:
        yield "tolerance", f"rtol {check.rtol:.2g}, atol {check.atol:.2g}"
        return
    tolerance = f"rtol {check.rtol:g}, atol {check.atol:g}"
    if not check.copy_of:
        how = ", ".join(filter(None, (mode_said(check), check.method)))  # nothing, where a claim's shape was wrong
        yield "method", f"{name(how)}; {tolerance}; {counted(check.points, 'point')}"
    if check.forward:
        yield "forward", held_against(check)
    if check.coloring:
        yield (
            "coloring",
            f"{counted(check.coloring['rows'], 'row')} perturbed in {counted(check.coloring['colors'], 'group')}",
        )


def _of_two_models(shown: Sequence[Check], style: Style) -> str:
    """The table of two models that were held against each other, what a reader should know, and what differs."""
    compared = [c for c in shown if c.entries]
    common = [n for n in shown[0].remarks if all(n in c.notes for c in shown)]
    parts = [[*_two_headers(shown[0], style)]]
    if compared:
        parts += [judged_rows(compared, ("compared",), _labels, style)]
    parts += [[line for note in common for line in wrapped(name(note), style.width)]]
    parts += [[*_details(c, style, common)] for c in shown]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n\n"


def _two_headers(check: Check, style: Style) -> Iterator[str]:
    where = "each in its own dtype" if check.dtype == "model" else "both in float64"
    facts = [", ".join(check.model.dtypes), where, f"seed {check.seed}"]
    facts += [counted(check.points, "point")] if check.points > 1 else []
    facts += [name(check.sizes)] if check.dims else []
    first, second = name(str(check.forward.get("compared_with") or "?")), name(check.model.uri)
    yield f"A  {paint(first, 'bold', style.color)}"
    start, *more = wrapped(f"{second}  {_size(check)}", style.width, "B  ", "   ")
    yield from (start.replace(second, paint(second, "bold", style.color), 1), *more)
    yield from wrapped(_beside_each_other([*filter(None, facts)]), style.width, "   ", "   ")


def _labels(checks: Sequence[Check], free: int) -> list[tuple[str, ...]] | None:
    """The tensors or derivatives of rows, output logits [2,10] or d loss / d input [2,4], of which only names are cut."""
    sizes = [shape(c.x_shape if c.x else c.y_shape) for c in checks]
    room = free - len("output  ") - max(map(len, sizes))
    pairs = both(room, [name(c.y) for c in checks], [name(c.x) for c in checks])
    return pairs and [
        (f"d {y} / d {x} {size}" if x else f"output {y} {size}",) for (y, x), size in zip(pairs, sizes, strict=True)
    ]
