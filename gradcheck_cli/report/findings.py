"""The forward run beside the gradient's verdict: that it differs from somebody else's, or that nobody else runs it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from gradcheck_cli.report.text import Style, clean, cut, name, paint, short
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
