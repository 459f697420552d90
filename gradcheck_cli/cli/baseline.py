"""Known failures: those of an earlier run (`--baseline`), those that a spec declares (`expect:`), codes left out.

A known failure is waived as long as the check fails in the same way.  Once it no longer does, one of a spec is a failure,
so that the entry is removed.  A waiver is for the status of the gradient, for a forward run that differs, or for both.
"""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from msgspec import Struct, field

from gradcheck_cli.cli import note
from gradcheck_cli.errors import UsageError, counted
from gradcheck_cli.results.record import ALWAYS_FAIL, OUTCOMES, Check, Waiver

if TYPE_CHECKING:
    from gradcheck_cli.results.codes import CodeChoice

_FINE = ("pass", "waived")
_Outcome: TypeAlias = tuple[str, str, tuple[tuple[str, str, str], ...]]
_WORSE = 10.0  # times as large as the error of a known failure, or its share of entries, is another failure
_Key: TypeAlias = tuple[str, str]  # model and id: checks of several specs may be called the same


class Manner(NamedTuple):
    """The way in which a gradient is wrong; what a record does not say is empty."""

    operator: str = ""  # of the suspect
    patterns: frozenset[str] = frozenset()  # of the worst entries that fail
    error: float = math.inf  # the relative tolerance with which it would pass
    share: float = 1.0  # of the entries that were compared

    @classmethod
    def of(cls, check: Check) -> Manner:
        if not (count := check.entries.get("failed")):
            return cls()
        patterns = frozenset(entry.pattern for entry in check.worst if entry.status == "fail")
        operator = "" if check.suspect is None else check.suspect.part_of or check.suspect.op
        error = float(check.needed.get("rtol", math.inf))
        return cls(operator, patterns, error, count / max(check.entries["checked"], 1))

    def covers(self, now: Manner) -> bool:
        """True if another failure is this one: the same operator, a pattern in common, and not much worse."""
        elsewhere = self.operator and now.operator and self.operator != now.operator
        otherwise = self.patterns and now.patterns and self.patterns.isdisjoint(now.patterns)
        worse = now.error > _WORSE * self.error or now.share > _WORSE * self.share
        return not (elsewhere or otherwise or worse)


class Known(NamedTuple):
    """The failures of a record: status, code, cut, manner and health of the gradient, and a forward run that differed.

    Those that an earlier baseline waived are among them; a waiver of a spec is the spec's own.  A run that could not do
    what it was asked for is no known failure: the same code tells of any other mistake in the same file.
    """

    outcome: _Outcome | None = None
    forward: bool = False
    manner: Manner = Manner()
    health: frozenset[str] = frozenset()  # gates of it that it stopped at

    @classmethod
    def of(cls, check: Check) -> Known:
        waiver = (check.waiver or {}) if (check.waiver or {}).get("baseline") else {}
        status = waiver.get("status", "fail") if waiver and check.status == "waived" else check.status
        fails = status not in _FINE and not check.code.startswith(ALWAYS_FAIL)
        outcome = (status, check.code, _cut(check)) if fails else None
        forward = check.forward_differs or bool(waiver.get("forward"))
        return cls(outcome, forward, Manner.of(check), frozenset((*check.at_health, *waiver.get("gates", ()))))


class Baseline(Struct):
    """The outcomes of an earlier run, and the codes that count."""

    path: str = ""
    known: Mapping[_Key, Known] = field(default_factory=dict)
    repaired: list[str] = field(default_factory=list)  # ids of those that pass now
    met: bool = False  # some check of this run is one of that run
    codes: CodeChoice | None = None  # None: all count

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Baseline:
        """The baseline of `--baseline`, or an empty one, with the codes of `--select` and `--ignore`."""
        found = cls.read(options["baseline"]) if options.get("baseline") else cls()
        if options.get("select") or options.get("ignore"):
            from gradcheck_cli.results.codes import CodeChoice  # where somebody chooses

            found.codes = CodeChoice(options.get("select") or (), options.get("ignore") or ())
        return found

    @classmethod
    def kept(cls, waives: Mapping[str, Any]) -> Baseline:
        """The baseline and the codes of a run that was done; a file that is gone waives nothing, and a note says so."""
        try:
            return cls.of(waives)
        except UsageError as error:
            note(f"{error}: what it waived counts")
            return cls.of({**waives, "baseline": ""})

    @classmethod
    def read(cls, path: str) -> Baseline:
        """Reads a file that `--report` wrote, .json or .jsonl; UsageError for anything else."""
        from gradcheck_cli.results import read_results

        try:
            return cls(path, {key_of(check): Known.of(check) for check in read_results(path)})
        except UsageError as error:
            raise UsageError(f"--baseline {error}") from None

    def waived(self, checks: tuple[Check, ...]) -> tuple[Check, ...]:
        """The complete records, waived where they came out as they did in the baseline."""
        if not self.known and self.codes is None:
            return checks
        self.met = self.met or any(key_of(check) in self.known for check in checks)
        self.repaired += [check.id for check in checks if self._repaired(check)]
        return tuple(map(self.judged, checks))

    def covers(self, check: Check) -> bool:
        """True if a check came out as it did in the baseline, or its code does not count."""
        return self._is_known(check) or bool(self.codes and self.codes.against(check.code))

    def _is_known(self, check: Check) -> bool:
        known = self._of(check)
        if check.status == "pass":
            return bool(check.at_health) and known.health.issuperset(check.at_health)
        same = known.outcome == (check.status, check.code, _cut(check))
        return same and known.manner.covers(Manner.of(check))

    def judged(self, check: Check) -> Check:
        """A record, waived as far as it came out as it did in the baseline, or as its code does not count."""
        waiver: Waiver = {"reason": self.path, "until": None, "baseline": True}
        if check.forward_differs and self._of(check).forward:
            waiver["forward"] = "differs"
            check = check.forward_waived(waiver)
        if self._is_known(check):
            health: Waiver = {"gates": check.at_health} if check.at_health else {}
            check = check.waived({"status": check.status, **waiver, **health})
        return check if self.codes is None else self.codes.judged(check)

    def knows(self, checks: Iterable[Check]) -> bool:
        """True if some of the checks failed in the baseline: complete records are needed to judge these."""
        return any(self._of(check) != Known() for check in checks)

    def _of(self, check: Check) -> Known:
        return self.known.get(key_of(check), Known())

    def _repaired(self, check: Check) -> bool:
        """True if a check, its health or its forward run failed in the baseline and does so no longer."""
        was = self._of(check)
        agrees = was.forward and check.forward.get("agrees") is True
        health = check.gradient.get("health")
        well = bool(was.health) and health is not None and was.health.isdisjoint(health.shows)
        return (check.status in _FINE and bool(was.outcome or well)) or agrees

    def notes(self) -> Iterator[str]:
        """Remarks on the baseline once all is checked."""
        if self.repaired:
            yield f"{self.path}: {counted(len(self.repaired), 'check')} of it passed: write it anew with --report"
        if self.known and not self.met:
            yield f"{self.path} knows none of these checks: were their models named from another folder?"


def key_of(check: Check) -> _Key:
    """The model and the id of a record, the same in every run that names the model from the same folder."""
    uri = check.model.uri
    return uri if "://" in uri else os.path.normpath(uri), check.id


def _cut(check: Check) -> tuple[tuple[str, str, str], ...]:
    """The nodes that cut a severed pair, by operator and name: their numbers change when a model grows."""
    return tuple((s.op, s.name, s.inside) for s in check.severed.cut) if check.severed is not None else ()


STALE = "GC203"


def with_waiver(checks: tuple[Check, ...], expect: Mapping[str, Any] | None, today: datetime.date) -> tuple[Check, ...]:
    """The records of one check, waived where they are as expected; a waiver is over after its last day.

    An `expect` in the defaults of a file need not hold for each of its checks.
    """
    if expect is None:
        return checks
    until = expect.get("until")
    expected = cast(Waiver, {key: expect[key] for key in ("status", "forward") if expect.get(key)})
    waiver: Waiver = {**expected, "reason": expect.get("reason", ""), "until": until.isoformat() if until else None}
    if until is not None and today > until:
        ended: Waiver = {**waiver, "ended": True}
        return tuple(replace(c, waiver=ended) if _waived(c, waiver) is not c else c for c in checks)
    waived = tuple(_waived(c, waiver) for c in checks)
    gone = "" if expect.get("usual") else " and ".join(_gone(checks, expect))
    return tuple(_stale(c, waiver, gone) for c in waived) if gone else waived


def _waived(check: Check, waiver: Waiver) -> Check:
    """The record with its status, its forward run or both waived, as far as they are what is expected."""
    if waiver.get("forward") and check.forward_differs:
        check = check.forward_waived(waiver)
    return check.waived(waiver) if check.status == waiver.get("status") else check


def _gone(checks: tuple[Check, ...], expect: Mapping[str, Any]) -> Iterator[str]:
    """Known failures that no longer occur; a forward run that only another machine can make stays known."""
    if expect.get("status") and all(c.status == "pass" for c in checks):
        yield f"passes, but is expected to give {expect['status']}"
    agreed = {c.forward.get("agrees") for c in checks}
    if expect.get("forward") and True in agreed and not any(c.forward_differs for c in checks):
        yield "its forward run agrees, but is expected to differ"


def _stale(check: Check, waiver: Waiver, gone: str) -> Check:
    reason = f" ({waiver['reason']})" if waiver["reason"] else ""
    message = f"{gone}{reason}: remove its 'expect' from the spec"
    return replace(check, status="fail", code=STALE, message=message, waiver=waiver)


def gates_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The gates of `--fail-on`, or its default; none with `--exit-zero`."""
    return () if options.get("exit_zero") else tuple(options.get("fail_on", OUTCOMES))


def waivers_in(options: Mapping[str, Any]) -> dict[str, Any]:
    """The `--baseline`, `--select` and `--ignore` of a run, by which its records are judged again later."""
    said = {name: tuple(options[name]) for name in ("select", "ignore") if options.get(name)}
    return {**said, "baseline": os.path.abspath(options["baseline"])} if options.get("baseline") else said
