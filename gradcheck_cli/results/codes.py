"""Codes of findings, and those that count: `--select` and `--ignore` name them by prefixes.

An outcome fails a run if `--fail-on` has it and its code counts.  A finding whose code does not count gets a waiver, so
that every report shows it as none that fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from gradcheck_cli.errors import UsageError
from gradcheck_cli.results.record import ALWAYS_FAIL, Check, Waiver

CODES = tuple(
    f"GC{number}"
    for number in (
        101, 102, 103, 104, 105, 106, 107, 110, 111, 201, 202, 203, 301, 302, 303, 304,
        401, 402, 403, 404, 501, 502, 503, 601, 602, 603, 701, 901,
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CodeChoice:
    """The codes that count, by prefixes: all, or those of `--select`, but for those of `--ignore`.

    Of several prefixes that fit a code the longest decides: GC301 of the one option counts beside GC3 of the other.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def against(self, code: str) -> str:
        """The words that keep a code from counting, "ignored by --ignore GC301"; "" for one that counts."""
        if not code or code.startswith(ALWAYS_FAIL):
            return ""
        ignored, selected = (
            max((each for each in some if code.startswith(each)), key=len, default="")
            for some in (self.ignore, self.select)
        )
        if ignored and len(ignored) >= len(selected):
            return f"ignored by --ignore {ignored}"
        return f"not in --select {','.join(self.select)}" if self.select and not selected else ""

    def judged(self, check: Check) -> Check:
        """The record, with a waiver for each finding whose code does not count; gates of health have no code."""
        if check.forward_differs and (reason := self.against(str(check.forward.get("code") or "GC404"))):
            own: Waiver = (check.waiver or {}) if check.status == "waived" else _ignoring(reason)
            check = check.forward_waived({**own, "forward": "differs"})
        reason = "" if check.gradient_passes or check.status == "pass" else self.against(check.code)
        if not reason:
            return check
        waiver: Waiver = {"status": check.status, **_ignoring(reason)}
        if check.ignored:
            waiver["forward"] = "differs"
        gates = tuple(gate for gate in check.gates if gate != "severed")
        return replace(check, status="waived", gates=gates, waiver=waiver)


def _ignoring(reason: str) -> Waiver:
    return {"reason": reason, "until": None, "ignored": True}


def codes_from(words: Iterable[str]) -> tuple[str, ...]:
    """Prefixes of codes from words such as GC101, gc3 or ALL; UsageError for one that no finding has, or for none."""
    found = dict.fromkeys(filter(None, (_prefix(word.strip()) for word in words)))
    if not found:
        raise UsageError("it names no code; write GC301, or GC3 for all codes that begin so.")
    return tuple(found)


def _prefix(word: str) -> str:
    """A prefix of codes."""
    prefix = "GC" + re.sub(r"(?<=\d)X+$", "", word.upper().removeprefix("ALL").removeprefix("GC")) if word else ""
    if not prefix or any(code.startswith(prefix) and not code.startswith(ALWAYS_FAIL) for code in CODES):
        return prefix
    if prefix in CODES or prefix in ("GC7", "GC9"):
        raise UsageError(f"{word!r} is of a run that could not do what it was asked for, which always fails.")
    near = ", ".join(code for code in CODES if code.startswith(prefix[:3])) or "those that `gradcheck explain` lists"
    raise UsageError(f"{word!r} is no code, and no code begins so. The nearest are {near}.")
