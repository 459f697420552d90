"""One model held against another, as people read of it: a row for each output and each derivative, then what differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradcheck_cli.report.evidence import LEAST_NAME, entry_lines, judged_rows, suspect_lines, title_lines
from gradcheck_cli.report.text import (
    Style,
    columns,
    count,
    cut,
    name,
    paint,
    shape,
    upper,
    wrapped,
)
from gradcheck_cli.results.record import Check


def section(checks: Sequence[Check], style: Style) -> str:
    """The table of all that was compared, what a reader should know, and what differs."""
    shown = [c for c in checks if style.verbosity >= 0 or not c.passes]
    if not shown:
        return ""
    compared = [c for c in shown if c.entries]
    common = [n for n in shown[0].remarks if all(n in c.notes for c in shown)]
    parts = [[*_header(shown[0], style)], _rows(compared, style) if compared else []]
    parts += [[line for note in common for line in wrapped(name(note), style)]]
    parts += [[*_details(c, common, style)] for c in shown]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n\n"


def _header(check: Check, style: Style) -> Iterator[str]:
    opsets = [f"opset {v}" if not domain else f"{name(domain)} {v}" for domain, v in sorted(check.model.opset.items())]
    size = ", ".join([*opsets, count(check.model.nodes, "node")])
    where = "each in its own dtype" if check.dtype == "model" else "both in float64"
    facts = [", ".join(check.model.dtypes), where, f"seed {check.seed}"]
    facts += [count(check.points, "point")] if check.points > 1 else []
    facts += [name(check.sizes)] if check.dims else []
    first, second = name(str(check.forward.get("compared_with") or "?")), name(check.model.uri)
    yield f"A  {paint(first, 'bold', style.color)}"
    yield f"B  {paint(second, 'bold', style.color)}  {size}"
    yield f"   {' | '.join(filter(None, facts))}"


def _rows(checks: Sequence[Check], style: Style) -> list[str]:
    return judged_rows(checks, ("compared",), lambda free: [(_label(c, free),) for c in checks], style)


def _label(check: Check, width: int) -> str:
    """output logits [2,10], or d loss / d input [2,4]; only names are cut."""
    if not check.x:
        sizes = shape(check.y_shape)
        return f"output {cut(name(check.y), max(LEAST_NAME, width - len(sizes) - 8))} {sizes}"
    sizes, (y, x) = shape(check.x_shape), (name(check.y), name(check.x))
    free = max(2 * LEAST_NAME, width - len(sizes) - 8)
    first = min(columns(y), max(free // 2, free - columns(x)))
    return f"d {cut(y, first)} / d {cut(x, free - first)} {sizes}"


def _details(check: Check, common: Sequence[str], style: Style) -> Iterator[str]:
    """More about one row; nothing for one that passed, unless asked for or worth a note."""
    own = [note for note in check.remarks if note not in common]
    if check.status in ("pass", "waived") and style.verbosity < 1 and not own:
        return
    yield from title_lines(check, style)
    yield from entry_lines(check, style)
    for note in own:
        yield from wrapped(name(note), style)
    if check.suspect is not None:
        yield from ("", *suspect_lines(check.suspect, style))
    if check.status == "fail" and check.needed.get("rtol"):
        yield f"  would pass only with --rtol {upper(check.needed['rtol'])}"
    if style.verbosity > 0:
        yield f"  tolerance  rtol {check.rtol:.2g}, atol {check.atol:.2g}"
    if check.reproduce and check.status not in ("pass", "waived"):
        yield f"  reproduce  {name(check.reproduce)}"
