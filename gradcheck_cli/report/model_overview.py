"""A model as `gradcheck inspect` prints it: tensors, operators, what has no gradient, what a check would cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradcheck_cli.checks.inspection import Inspection, PairCost, TensorFacts
from gradcheck_cli.errors import counted
from gradcheck_cli.report.text import (
    ENDLESS,
    Style,
    apart,
    below,
    columns,
    labels,
    name,
    paint,
    shape,
    table,
    wrapped,
)
from gradcheck_cli.results.record import sizes_said

_ROLES = {
    "input": "inputs", "weight": "weights", "statistic": "statistics", "quantization": "quantization",
    "constant": "constants", "output": "outputs", "inner": "inner tensors",
}  # fmt: skip
_MOST = {"input": 40, "weight": 12, "statistic": 4, "quantization": 4, "constant": 4, "output": 40}  # rows, without -v
_CUT = 10  # severed pairs shown, unless all are asked for


def text(found: Inspection, style: Style) -> str:
    """The whole overview as text."""
    opsets = [f"opset {v}" if not domain else f"{domain} {v}" for domain, v in sorted(found.opset.items())]
    head = f"{paint(name(found.uri), 'bold', style.color)}  {', '.join([*opsets, counted(found.nodes, 'node')])}"
    parts = [[head], [*_tensors(found, style)], [*_facts(found, style)]]
    parts += [[*_blocked(found, style), *_severed(found, style)], [*_costs(found, style)]]
    return "\n\n".join("\n".join(lines) for lines in parts if lines) + "\n"


def _tensors(found: Inspection, style: Style) -> Iterator[str]:
    groups = {role: [t for t in found.tensors if t.role == role] for role in _ROLES}
    shown = {role: group if style.verbosity > 0 else group[: _MOST.get(role, 1000)] for role, group in groups.items()}
    names = [name(t.name) for group in shown.values() for t in group]
    fitted = apart(names, max(20, style.width - 46)) or names
    facts = [(name(t.shape), t.dtype, *_known(t)) for group in shown.values() for t in group]
    rows = [(label, *told) for label, told in zip(fitted, facts, strict=True)]
    lines = iter(
        line.replace("\n", "\n  ") for line in table([("", "", "", "", ""), *rows], "<<<<<", (), style.width - 2)[1:]
    )
    for role, group in shown.items():
        if group:
            yield _ROLES[role] + (f" ({len(groups[role])})" if len(groups[role]) > 1 else "")
            yield from (f"  {next(lines)}" for _ in group)
            hidden = len(groups[role]) - len(group)
            yield from [f"  ... {hidden} more, -v"] * (hidden > 0)


def _known(tensor: TensorFacts) -> tuple[str, str]:
    """The state of a tensor's gradient, and of a constant the reason of its role."""
    why = f"({name(tensor.role)}: {name(tensor.why.partition(': ')[2])})" if tensor.rule else ""
    return "has a gradient" if tensor.gradient == "possible" else tensor.gradient, why


def _facts(found: Inspection, style: Style) -> Iterator[str]:
    operators = ", ".join(f"{name(op)} {number}" for op, number in found.operators.items())
    yield from _titled("operators", operators, style)
    if found.init_targets:
        yield from _titled("init", ", ".join(map(name, found.init_targets)), style)
    if found.updates:
        yield from _titled("updates", ", ".join(f"{name(k)} by {name(v)}" for k, v in found.updates.items()), style)
    if found.dims:
        yield from _titled("dims", name(sizes_said(found.dims, found.notes)), style)


def _blocked(found: Inspection, style: Style) -> Iterator[str]:
    for each in found.blocked:
        what = "cannot be computed" if each.lacks == "forward" else "has no gradient"
        told = f"; it stops {', '.join(map(name, each.stops[:4]))}{' ...' if len(each.stops) > 4 else ''}"
        stops = told if each.stops else ""
        yield from _titled("blocked", f"{name(each.where)} {what}{stops}", style, warns=True)


def _severed(found: Inspection, style: Style) -> Iterator[str]:
    for each in found.severed if style.verbosity > 0 else found.severed[:_CUT]:
        text = f"d {name(each.y)}/d {name(each.x)}: {name(each.sentence)}"
        yield from _titled("severed", text, style, warns=True)
    if len(found.severed) > _CUT and style.verbosity < 1:
        yield f"... {len(found.severed) - _CUT} more, -v"


def _costs(found: Inspection, style: Style) -> Iterator[str]:
    if found.obstacle:
        title = paint("does not run", "yellow", style.color)
        yield from (f"{title}  {name(line)}" for line in found.obstacle.split("\n"))
        return
    if not found.costs:
        left = max((t for t in found.tensors if t.rule and t.differentiable), key=lambda t: t.rule, default=None)
        yield "there is no gradient to check" + (f" but that by a constant: --param {name(left.name)}" if left else "")
        return
    shown = found.costs if style.verbosity > 0 else found.costs[:20]
    numbers = [(f"{c.entries:,}", f"{c.runs:,}", _spell(c.seconds)) for c in shown]
    right = table([("entries", "runs", "about"), *numbers], ">>>")
    pairs = _pairs(shown, style.width - max(map(columns, right)) - 4)
    if pairs is None:
        whole = _pairs(shown, style.width - 2) or _pairs(shown, ENDLESS) or []
        yield from below([("x", "y"), *whole], right, style.width)
    else:
        yield from table([(*pair, line) for pair, line in zip([("x", "y"), *pairs], right, strict=True)], "<<<")
    if len(found.costs) > len(shown):
        yield f"... {len(found.costs) - len(shown)} more, -v"


def _pairs(costs: Sequence[PairCost], free: int) -> list[tuple[str, str]] | None:
    """Names with shapes for x and y, fitted into `free`."""
    sizes = [(shape(c.x_shape), shape(c.y_shape)) for c in costs]
    return labels([(name(c.x), name(c.y)) for c in costs], sizes, free)


def _titled(title: str, words: str, style: Style, *, warns: bool = False) -> list[str]:
    lines = wrapped(words, style.width, f"{title:11}", " " * 11)
    return [line.replace(title, paint(title, "yellow", warns and style.color), i == 0) for i, line in enumerate(lines)]


def _spell(seconds: float) -> str:
    """A rough time."""
    for unit, word in ((3600.0, "h"), (60.0, "min")):
        if seconds >= unit:
            return f"{seconds / unit:,.0f} {word}"
    return f"{seconds:.0f} s" if seconds >= 1 else "<1 s"
