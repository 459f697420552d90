"""Two runs compared, check by check: what fails now and did not, what is fixed, what takes longer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from gradcheck_cli.results.record import Check

Kind: TypeAlias = Literal["newly failing", "fixed", "changed", "slower", "gone", "new"]
KINDS: tuple[Kind, ...] = ("newly failing", "fixed", "changed", "slower", "gone", "new")
FACTOR, LEAST = 1.5, 1.0  # times as long, and seconds more, from which a check counts as slower


class Change(NamedTuple):
    """A check that is not as it was; None where a run does not have it."""

    kind: Kind
    old: Check | None
    new: Check | None

    @property
    def id(self) -> str:
        check = self.new or self.old
        return check.id if check else ""


def compared(old: Iterable[Check], new: Iterable[Check], factor: float = FACTOR, least: float = LEAST) -> list[Change]:
    """All changes, by kind, then by the name of the check."""
    before, after = _by_name(old), _by_name(new)
    found: list[Change] = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        found += [Change(kind, was, now) for kind in _kinds(was, now, factor, least)]
    return sorted(found, key=lambda change: KINDS.index(change.kind))


def _kinds(was: Check | None, now: Check | None, factor: float, least: float) -> Iterable[Kind]:
    """In which ways a check has changed; a new one that fails is newly failing too."""
    if now is None:
        yield "gone"
    elif was is None:
        yield "new" if _is_fine(now) else "newly failing"
    elif _is_fine(was) != _is_fine(now):
        yield "fixed" if _is_fine(now) else "newly failing"
    elif (was.status, was.code, was.forward_differs) != (now.status, now.code, now.forward_differs):
        yield "changed"
    if was and now and now.duration_s > factor * was.duration_s and now.duration_s - was.duration_s > least:
        yield "slower"


def _is_fine(check: Check) -> bool:
    """A severed pair is not, though x may have a gradient from another y."""
    return check.passes and check.status != "severed"


def _by_name(checks: Iterable[Check]) -> Mapping[tuple[str, str], Check]:
    """Checks by model and id: those of several specs may be called the same."""
    return {(check.model.uri, check.id): check for check in checks}
