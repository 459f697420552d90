"""Known outcomes, `expect:` in a spec: waived as long as they hold, a failure once they no longer do.

A waiver is for the status of the gradient, for a forward run that differs, or for both.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gradcheck_cli.results.record import Check

STALE = "GC203"


def with_waiver(checks: tuple[Check, ...], expect: Mapping[str, Any] | None, today: datetime.date) -> tuple[Check, ...]:
    """The records of one check, what is expected of them waived; a waiver is over after its last day.

    What is usual in a file, said in its defaults, need not be so for each of its checks.
    """
    if expect is None:
        return checks
    until = expect.get("until")
    waiver = {
        **{key: expect[key] for key in ("status", "forward") if expect.get(key)},
        "reason": expect.get("reason", ""),
        "until": until.isoformat() if until else None,
    }
    if until is not None and today > until:
        ended = {**waiver, "ended": True}
        return tuple(replace(c, waiver=ended) if _expected(c, expect) else c for c in checks)
    waived = tuple(_waived(c, expect, waiver) for c in checks)
    gone = "" if expect.get("usual") else " and ".join(_gone(checks, expect))
    return tuple(_stale(c, waiver, gone) for c in waived) if gone else waived


def _expected(check: Check, expect: Mapping[str, Any]) -> bool:
    """Something of it is what is expected."""
    return check.status == expect.get("status") or bool(expect.get("forward") and check.forward_differs)


def _waived(check: Check, expect: Mapping[str, Any], waiver: Mapping[str, Any]) -> Check:
    if expect.get("forward") and check.forward_differs:
        check = check.forward_waived(waiver)
    return check.waived(waiver) if check.status == expect.get("status") else check


def _gone(checks: tuple[Check, ...], expect: Mapping[str, Any]) -> Iterator[str]:
    """What is expected, and no longer so; of a forward run that nobody else can make nothing is known."""
    if expect.get("status") and all(c.status == "pass" for c in checks):
        yield f"passes, but is expected to give {expect['status']}"
    agreed = {c.forward.get("agrees") for c in checks}
    if expect.get("forward") and True in agreed and not any(c.forward_differs for c in checks):
        yield "its forward run agrees, but is expected to differ"


def _stale(check: Check, waiver: Mapping[str, Any], gone: str) -> Check:
    reason = f" ({waiver['reason']})" if waiver["reason"] else ""
    message = f"{gone}{reason}: remove its 'expect' from the spec"
    return replace(check, status="fail", code=STALE, message=message, waiver=waiver)
