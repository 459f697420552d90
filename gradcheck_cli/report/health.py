"""The health of gradients: on one line below the table of a check, and layer by layer for `--health`.

`precision_text` says how many digits of a gradient the model's own dtype keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from gradcheck_cli.errors import counted, plural
from gradcheck_cli.report.text import Style, cut, name, opened, percent, precise, shape, short, table, wrapped
from gradcheck_cli.results.measures import VANISHING, Health, Layer, Precision, Spot
from gradcheck_cli.results.record import Check

_WHAT = {"overflow": "overflow", "underflow": "underflow", "nan": "NaN"}


def spelled(spot: Spot) -> str:
    """A node as sentences name it: without the graph that it lies in, and with no more of its name than fits."""
    return f"node {spot.node} {name(spot.op)}" + (f" {name(repr(cut(spot.name, 24)))}" if spot.name else "")


def precision_text(checks: Sequence[Check]) -> str:
    """The precision of the gradient that loses most: float32 keeps 6.1 of 7.2 digits at the median, 3.9 at worst (...).

    Nothing if it was not measured.
    """
    measured = [(c, p) for c in checks if isinstance(p := c.gradient.get("precision"), Precision)]
    if not measured:
        return ""
    check, found = min(measured, key=lambda entry: (bool(entry[1].note), -entry[1].nonfinite, entry[1].worst))
    if found.note:
        return f"not compared: {name(found.note)}"
    pair = f"d {name(check.y)} / d {name(check.x)}: " if len(measured) > 1 else ""
    return pair + "; ".join(_precision_facts(check, found))


def _precision_facts(check: Check, found: Precision) -> Iterator[str]:
    if found.entries or found.nonfinite:
        kept = f"{name(found.dtype)} keeps {found.median:.1f} of {found.digits:.1f} digits at the median"
        worst = f" ({_entry(check, found)})" if found.worst < found.digits else ""
        yield f"{kept}, {found.worst:.1f} at worst{worst}"
    else:
        yield f"{name(found.dtype)}: the gradient is zero"
    if found.nonfinite:
        yield f"{counted(found.nonfinite, 'entry')} not finite"
    if found.underflow:
        yield f"{counted(found.underflow, 'entry')} {plural(found.underflow, 'underflows', 'underflow')} to 0"
    if found.first is not None:
        way = ", backwards" if found.first.way == "backward" else ""
        yield f"first {_WHAT.get(found.first.what, name(found.first.what))} at {spelled(found.first.spot)}{way}"


def _entry(check: Check, found: Precision) -> str:
    """The entry that loses most digits, [0,2,7,7]: 1.21431e-02, not 1.21497e-02."""
    place = shape(found.x) + (f" -> {shape(found.y)}" if check.y_shape else "")
    return f"{place}: {precise(found.narrow)}, not {precise(found.wide)}"


_HEAD = ("node", "layer", "gradient", "zeros", "of weights", "dead", "saturated")
_LABEL = "  health     "
_SPACE = " " * len(_LABEL)
_WORDS = {"nonfinite": "not finite", "precision": "imprecise"}


def health_lines(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """The health of one check's gradients in a sentence; those that are wrong, or cut off, are left out."""
    told = [c for c in checks if c.status in ("pass", "severed", "inconclusive") and c.entries and health_of(c)]
    told = [c for c in told if c.status != "severed" or c.gradient["norm"]]
    if told:
        yield from wrapped(", ".join(_facts(told)), style.width, _LABEL, _SPACE)
    if text := precision_text(told):
        yield from wrapped(text, style.width, "  precision  ", _SPACE)


def gate_lines(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """A line for each record that stops the run for what `--fail-on` asks."""
    for check in checks:
        if check.at_health:
            text = f"GATE  d {name(check.y)} / d {name(check.x)}: {gate_text(check)}"
            yield from opened(text, "GATE", "red", style)


def gate_text(check: Check) -> str:
    """The sentence on the health that fails the run, "its gradient is dead (--fail-on dead)", or nothing."""
    return (
        f"{health_text(check.at_health)} (--fail-on {','.join(map(name, check.at_health))})" if check.at_health else ""
    )


def health_text(words: Iterable[str]) -> str:
    """The sentence on a gradient to which words of `--fail-on` apply."""
    return f"its gradient is {', '.join(_WORDS.get(word, name(word)) for word in words)}"


def health_of(check: Check) -> Health | None:
    """The health that a record holds."""
    return check.gradient.get("health")


def health_tables(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """The tables of all layers, one for each pair (x, y)."""
    for check in checks:
        health = health_of(check)
        if health is None:
            continue
        title = f"Health of d {name(check.y)} / d {name(check.x)}: "
        yield from wrapped(title + ", ".join(figures(check)), style.width, "")
        yield from layer_table(health.layers, style)
        if health.depth > len(health.layers):
            yield f"... {counted(health.depth - len(health.layers), 'more layer')}"
        yield from (line for fact in findings(health) for line in wrapped(fact, style.width, "  ", "    "))


def layer_table(layers: Sequence[Layer], style: Style) -> list[str]:
    """A line for each layer, in the order in which they run."""
    if not layers:
        return []
    cells = [_cells(layer) for layer in layers]
    numbers = [max(len(row[i]) for row in [_HEAD, *cells]) for i in (0, 2, 3, 4, 5, 6)]
    free = max(12, style.width - sum(numbers) - 2 * 6)
    rows = [_HEAD] + [(row[0], cut(row[1], free), *row[2:]) for row in cells]
    return table(rows, "><>>>>>", width=style.width)


def _cells(layer: Layer) -> tuple[str, ...]:
    spot = layer.spot
    label = f"{name(spot.op)} {name(spot.name)}" + (f", {name(spot.inside)}" if spot.inside else "")
    weights = "" if layer.weights is None else short(layer.weights)
    dead, saturated = (  # a question mark where too few values of the units were seen
        f"{'?' if number is None else number}/{layer.units}" if layer.units else ""
        for number in (layer.dead, layer.saturated)
    )
    return str(spot.node), label, short(layer.norm), percent(layer.zero_fraction), weights, dead, saturated


def _facts(checks: Sequence[Check]) -> Iterator[str]:
    """A line on several gradients at once: of each fact the worst."""
    norms = [float(c.gradient["norm"]) for c in checks]
    low, high = (short(norm) if norm else "0" for norm in (min(norms), max(norms)))
    zeros = max(float(c.gradient["zero_fraction"]) for c in checks)
    found = [health for c in checks if (health := health_of(c)) is not None]
    if high != "0":
        yield f"norm {low}" if low == high else f"norms {low} to {high}"
        if zeros:
            yield f"{'up to ' if len(checks) > 1 else ''}{percent(zeros)} zeros"
    elif lost := next((h.lost for h in found if h.lost is not None), None):
        yield f"zero everywhere: it becomes zero at {spelled(lost)}"
    else:
        yield "zero everywhere"
    yield from _entries(max(found, key=lambda h: h.nonfinite.entries))
    yield from _dead(max(found, key=lambda h: (h.dead, h.units)))
    ratios = [h for h in found if h.ratio is not None]
    if ratios and any(c.status != "severed" for c in checks):  # nothing flows through a cut
        yield _flow(max(ratios, key=lambda h: abs(math.log(h.ratio)) if h.ratio and h.ratio > 0 else math.inf))


def figures(check: Check) -> Iterator[str]:
    if check.gradient.get("zero_fraction") == 1.0:
        yield "zero everywhere"
    elif "norm" in check.gradient:
        yield f"norm {short(check.gradient['norm'])}"
        yield f"largest entry {short(check.gradient['max'])}"
        yield f"{percent(check.gradient['zero_fraction'])} zeros"


def findings(health: Health) -> Iterator[str]:
    """Facts about all layers together, a sentence each."""
    yield from _entries(health)
    yield from _dead(health)
    if health.saturated:
        yield f"{health.saturated} of {counted(health.units, 'unit')} saturated"
    if health.lost is not None:
        yield f"zero everywhere: it becomes zero at {name(str(health.lost))}"
    if health.ratio is not None:
        yield _flow(health)
    jump = health.steepest
    if jump is not None:
        yield f"largest change from one layer to the next at {name(str(jump.spot))}: times {jump.factor:.2g}, backwards"


def _entries(health: Health) -> Iterator[str]:
    lost = health.nonfinite
    pairs = (lost.forward, ""), (lost.backward, ", backwards")
    first = [f"{spelled(spot)}{way}" for spot, way in pairs if spot]
    if lost.entries or first:
        what = f"{counted(lost.entries, 'entry')} not finite" if lost.entries else "not finite"
        yield what + (f" (first at {first[0]})" if first else "")


def _dead(health: Health) -> Iterator[str]:
    worst = max(health.layers, key=lambda layer: (layer.ill, layer.dead or 0), default=None)
    if worst is not None and health.dead:
        all_of_them = (worst.dead, worst.units) == (health.dead, health.units)
        where = spelled(worst.spot)
        most = where if all_of_them else f"{worst.dead} of {worst.units} of {where}"
        yield f"{health.dead} of {counted(health.units, 'unit')} dead ({most})"


def _flow(health: Health) -> str:
    """The flow through the layers, gradient norm first/last layer 3e-08 (24 layers): vanishing, most at node 23 Sigmoid."""
    small = health.ratio is not None and health.ratio < VANISHING  # a gradient that is lost at a node shows it too
    words = [word for word in ("vanishing", "exploding") if word in health.shows and (small or word == "exploding")]
    where = f", most at {spelled(health.steepest.spot)}" if words and health.steepest is not None else ""
    told = f": {words[0]}{where}" if words else ""
    ends = "layer" if health.depth > 1 else "step"  # of a loop
    return f"gradient norm first/last {ends} {health.ratio:.2g} ({counted(health.depth, 'layer')}){told}"
