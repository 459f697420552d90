"""What a check would have missed: one that does not compare every entry, and why, or one of which rounding hides some."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from gradcheck_cli.report.text import Style, count, name, percent
from gradcheck_cli.results.record import Check

_NAMES = {"nodes": "node by node", "directional": "random projections", "sampled": "drawn entries"}
_SAID = {
    "nodes": {"missed_below", "probability", "of"},
    "directional": {"missed_below", "probability", "of"},
    "sampled": {"confidence", "bad_fraction"},
}


def power_lines(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """A sentence for each mode but the full one that some of the checks were done in."""
    for mode in _NAMES:
        some = [check for check in checks if check.mode == mode and (check.status != "fail" or check.chosen)]
        if some:
            yield from textwrap.wrap(_sentence(mode, some), style.width, subsequent_indent="  ", break_on_hyphens=False)
    hidden = [check for check in checks if check.mode == "full" and check.status == "pass" and "of" in check.power]
    if hidden:
        yield _hidden(max(hidden, key=_weakness))


def _hidden(check: Check) -> str:
    """What rounding hides where another evaluates y."""
    size, of = f"{check.power['missed_below']:.0e}", name(check.power["of"])
    return f"  rounding   in {name(check.source)} hides an error of {size} of {of}"


def _sentence(mode: str, checks: Sequence[Check]) -> str:
    reasons = [check.chosen for check in checks if check.chosen]
    more = f" (and {count(len(reasons) - 1, 'more pair')} as large)" if len(reasons) > 1 else ""
    why = f", since {name(reasons[0])}{more}" if reasons else ""
    right = [c for c in checks if c.status != "fail" and c.power.keys() >= _SAID[mode]]  # what failed missed nothing
    return f"{_NAMES[mode]}{why}" + (f": {_missed(mode, max(right, key=_weakness))}" if right else "")


def _weakness(check: Check) -> float:
    """How much a check may have missed."""
    return float(check.power.get("bad_fraction", check.power.get("missed_below", 0.0)))


def _missed(mode: str, check: Check) -> str:
    power = check.power
    if mode == "sampled":
        lines = power.get("bad_fraction_of_lines")
        whole = f" ({percent(lines)} where errors fill whole rows or columns)" if lines else ""
        sure, share = percent(power["confidence"]), percent(power["bad_fraction"])
        return f"if none of {check.entries.get('checked', 0)} is wrong, at most {share} of all are, at {sure}{whole}"
    of = "the Jacobian's norm" if power.get("of") == "norm" else f"the {name(power['of'])}"
    return f"an error of {power['missed_below']:.0e} of {of} is missed with at most {percent(power['probability'])}"
