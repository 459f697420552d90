"""Known outcomes, `expect:` in a spec: waived as long as they hold, a failure once they no longer do."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gradcheck_cli.record import Check

STALE = "GC203"


def with_waiver(checks: tuple[Check, ...], expect: Mapping[str, Any] | None, today: datetime.date) -> tuple[Check, ...]:
    """The records of one check, those of the expected status waived; a waiver is over after its last day."""
    if expect is None:
        return checks
    until = expect.get("until")
    waiver = {
        "status": expect["status"],
        "reason": expect.get("reason", ""),
        "until": until.isoformat() if until else None,
    }
    if until is not None and today > until:
        ended = {**waiver, "ended": True}
        return tuple(replace(c, waiver=ended) if c.status == expect["status"] else c for c in checks)
    waived = tuple(c.waived(waiver) if c.status == expect["status"] else c for c in checks)
    if any(c.status != "pass" for c in waived):
        return waived
    return tuple(_stale(c, waiver) for c in waived)


def _stale(check: Check, waiver: Mapping[str, Any]) -> Check:
    reason = f" ({waiver['reason']})" if waiver["reason"] else ""
    message = f"passes, but is expected to give {waiver['status']}{reason}: remove its 'expect' from the spec"
    return replace(check, status="fail", code=STALE, message=message, waiver=waiver)
