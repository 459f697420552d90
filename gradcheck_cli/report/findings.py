"""The forward run beside the gradient's verdict: that it differs from somebody else's, or that nobody else runs it.

What a check would have missed: one that does not compare every entry, and why, or one of which rounding hides some.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from gradcheck_cli.report.text import Style, clean, count, cut, name, paint, percent, short
from gradcheck_cli.results.record import Check

WORD, CODE = "FORWARD DIFFERS", "GC404"
_LONGEST = 240  # characters of what another runtime says of a model it does not take
_PREFIX = re.compile(
    r"^onnxruntime \S*: \w+: (\[ONNXRuntimeError\] : \d+ : \w+ : )?(Load model from .{1,200}? failed: ?)?"
)


def forward_text(check: Check) -> str:
    """How the forward run differs, on one line; nothing where it does not, or where that is waived."""
    return f"{WORD} {CODE} {forward_reason(check)}" if check.forward_differs else ""


def forward_reason(check: Check) -> str:
    """What differs, and from which node on."""
    return name("  ".join(str(check.forward.get("reason", "")).splitlines()))


def forward_lines(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """A paragraph for each y whose forward run differs."""
    for text, color in dict.fromkeys(_paragraph(check) for check in checks):
        for index, line in enumerate(each for part in text.split("\n") for each in _wrapped(part, style) if text):
            yield paint(WORD, color, style.color) + line.removeprefix(WORD) if index == 0 else line


def refusals(checks: Sequence[Check], style: Style) -> Iterator[str]:
    """That onnxruntime does not take the model, and why."""
    for text in dict.fromkeys(_refusal(check) for check in checks if check.forward.get("refused")):
        yield from textwrap.wrap(
            text, style.width, initial_indent=f"  {'forward':10} ", subsequent_indent=" " * 13, break_on_hyphens=False
        )


def held_against(check: Check) -> str:
    """What the forward run was compared with."""
    if other := check.forward.get("compared_with"):
        absolute, relative = (_short(check.forward.get(f"max_{kind}_err")) for kind in ("abs", "rel"))
        said = "" if check.forward.get("agrees") is False else name(str(check.forward.get("reason") or ""))
        return f"as {name(other)} has it: max abs err {absolute}, max rel err {relative}" + (
            f"; {said}" if said else ""
        )
    return f"not compared with onnxruntime: {name(str(check.forward.get('reason') or ''))}"


def _paragraph(check: Check) -> tuple[str, str]:
    """What is to be said of one record, and in which color."""
    if check.forward.get("agrees") is not False:
        return "", ""
    if check.forward_differs:
        return f"{WORD} {CODE}  {clean(str(check.forward.get('reason', '')))}", "red"
    waiver = check.waiver or {}
    reason, until = waiver.get("reason"), waiver.get("until")
    expected = (f": {name(str(reason))}" if reason else "") + (f" (until {name(str(until))})" if until else "")
    return f"{WORD}, as expected{expected}", "yellow"


def _refusal(check: Check) -> str:
    if check.forward.get("agrees") is False:  # from what ships with the model: then that is what there is to say
        return "onnxruntime does not run this model"
    said = cut(_PREFIX.sub("", name(str(check.forward.get("reason") or ""))), _LONGEST)
    return f"onnxruntime does not run this model, nothing is compared with it: {said}"


def _short(value: object) -> str:
    return short(value) if isinstance(value, float) else "-"


def _wrapped(text: str, style: Style) -> list[str]:
    return textwrap.wrap(
        text, style.width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False, expand_tabs=False,
        replace_whitespace=False,
    )  # fmt: skip


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
