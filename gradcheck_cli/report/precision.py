"""How many digits of a gradient the model's own dtype keeps, in a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradcheck_cli.report.text import count, cut, name, precise, shape
from gradcheck_cli.results.measures import Precision, Spot
from gradcheck_cli.results.record import Check

_WHAT = {"overflow": "overflow", "underflow": "underflow", "nan": "NaN"}


def spelled(spot: Spot, *, brief: bool = False) -> str:
    """A node as sentences name it; in brief without the graph that it lies in, and with no more of its name than fits."""
    if brief:
        return f"node {spot.node} {name(spot.op)}" + (f" {cut(name(spot.name), 24)!r}" if spot.name else "")
    inside = f" in the {name(spot.inside)}" if spot.inside else ""
    return f"node {spot.node} {name(spot.op)}" + (f" {name(spot.name)!r}" if spot.name else "") + inside


def precision_text(checks: Sequence[Check]) -> str:
    """float32 keeps 6.1 of 7.2 digits at the median, 3.9 at worst ([0,2,7,7]: ...), of the gradient that loses most.

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
        yield f"{kept}, {found.worst:.1f} at worst" + (
            f" ({_entry(check, found)})" if found.worst < found.digits else ""
        )
    else:
        yield f"{name(found.dtype)}: the gradient is zero"
    if found.nonfinite:
        yield f"{_precision_entries(found.nonfinite)} not finite"
    if found.underflow:
        yield f"{_precision_entries(found.underflow)} underflow to 0"
    if found.first is not None:
        way = ", backwards" if found.first.way == "backward" else ""
        yield f"first {_WHAT.get(found.first.what, name(found.first.what))} at {spelled(found.first.spot, brief=True)}{way}"


def _precision_entries(number: int) -> str:
    return count(number, "entry", "entries")


def _entry(check: Check, found: Precision) -> str:
    """[0,2,7,7]: 1.21431e-02, not 1.21497e-02."""
    place = shape(found.x) + (f" -> {shape(found.y)}" if check.y_shape else "")
    return f"{place}: {precise(found.narrow)}, not {precise(found.wide)}"
