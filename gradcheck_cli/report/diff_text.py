"""One model held against another, as people read of it: a row for each output and each derivative, then what differs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from gradcheck_cli.report import full
from gradcheck_cli.report.full import entry_lines, suspect_lines
from gradcheck_cli.report.text import (
    Style,
    clean,
    columns,
    count,
    cut,
    name,
    paint,
    shape,
    upper,
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
    parts += [[line for note in common for line in _wrapped(name(note), style)]]
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
    return full.judged_rows(checks, ("compared",), lambda free: [(_label(c, free),) for c in checks], style)


def _label(check: Check, width: int) -> str:
    """output logits [2,10], or d loss / d input [2,4]; only names are cut."""
    if not check.x:
        sizes = shape(check.y_shape)
        return f"output {cut(name(check.y), max(full.LEAST_NAME, width - len(sizes) - 8))} {sizes}"
    sizes, (y, x) = shape(check.x_shape), (name(check.y), name(check.x))
    free = max(2 * full.LEAST_NAME, width - len(sizes) - 8)
    first = min(columns(y), max(free // 2, free - columns(x)))
    return f"d {cut(y, first)} / d {cut(x, free - first)} {sizes}"


def _details(check: Check, common: Sequence[str], style: Style) -> Iterator[str]:
    """What is to be said of one row; nothing for one that passed, unless asked for or worth a note."""
    own = [note for note in check.remarks if note not in common]
    if check.status in ("pass", "waived") and style.verbosity < 1 and not own:
        return
    word, color, _ = full.said_of(check)
    start = f"{word} {check.code}".strip()
    text = f"{start}  {': '.join(filter(None, (' / '.join(map(name, check.derivative)), full.headline(check))))}"
    for number, line in enumerate(each for part in clean(text).split("\n") for each in _wrapped(part, style, "")):
        yield paint(start, color, style.color) + line.removeprefix(start) if number == 0 else line
    yield from entry_lines(check, style)
    for note in own:
        yield from _wrapped(name(note), style)
    if check.suspect is not None:
        yield from ("", *suspect_lines(check.suspect, style))
    if check.status == "fail" and check.needed.get("rtol"):
        yield f"  would pass only with --rtol {upper(check.needed['rtol'])}"
    if style.verbosity > 0:
        yield f"  tolerance  rtol {check.rtol:.2g}, atol {check.atol:.2g}"
    if check.reproduce and check.status not in ("pass", "waived"):
        yield f"  reproduce  {name(check.reproduce)}"


def _wrapped(text: str, style: Style, indent: str = "  ") -> list[str]:
    return textwrap.wrap(
        text, style.width, initial_indent=indent, subsequent_indent="  ", break_long_words=False,
        break_on_hyphens=False, expand_tabs=False, replace_whitespace=False,
    )  # fmt: skip
