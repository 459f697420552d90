"""`--baseline`: what failed in an earlier run fails no longer, as long as it fails in the same way."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gradcheck_cli.errors import UsageError
from gradcheck_cli.record import Check
from gradcheck_cli.report.text import count

_FINE = ("pass", "waived")
_Key: TypeAlias = tuple[str, str]  # model and id: checks of several specs may be called the same


@dataclass(slots=True)
class Baseline:
    """The outcomes of an earlier run: status and code of each of its records, None for those that passed."""

    path: str
    known: Mapping[_Key, tuple[str, str] | None]
    repaired: list[str] = field(default_factory=list)  # ids of those that pass now
    met: bool = False  # some check of this run is one of that run

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Baseline:
        """That of `--baseline`, or one that knows nothing."""
        return cls.read(options["baseline"]) if options.get("baseline") else cls("", {})

    @classmethod
    def read(cls, path: str) -> Baseline:
        """Of a file that `--report` wrote, .json or .jsonl; UsageError for anything else."""
        from gradcheck_cli.results import read_results

        try:
            return cls(path, {_key(check): _outcome(check) for check in read_results(path)})
        except UsageError as error:
            raise UsageError(f"--baseline {error}") from None

    def waived(self, checks: tuple[Check, ...]) -> tuple[Check, ...]:
        """The records, those that came out as they did in the baseline waived."""
        self.met = self.met or any(_key(check) in self.known for check in checks)
        self.repaired += [check.id for check in checks if check.status in _FINE and self.known.get(_key(check))]
        return tuple(map(self.judged, checks))

    def covers(self, check: Check) -> bool:
        """It came out as it did in the baseline."""
        return self.known.get(_key(check)) == (check.status, check.code)

    def judged(self, check: Check) -> Check:
        """A record, waived if it came out as it did in the baseline."""
        if not self.covers(check):
            return check
        waiver = {"status": check.status, "reason": self.path, "until": None, "baseline": True}
        return check.waived(waiver)

    def notes(self) -> Iterator[str]:
        """What is to be said of it when all is checked."""
        if self.repaired:
            yield f"{self.path}: {count(len(self.repaired), 'check')} of it passed: write it anew"
        if self.known and not self.met:
            yield f"{self.path} knows none of these checks: were their models named from another folder?"


def _key(check: Check) -> _Key:
    uri = check.model.uri
    return uri if "://" in uri else os.path.normpath(uri), check.id


def _outcome(check: Check) -> tuple[str, str] | None:
    """What failed; so did what an earlier baseline waived, while a waiver of a spec is up to the spec, and to its end."""
    waiver = check.waiver or {}
    if check.status == "waived" and waiver.get("baseline"):
        return waiver.get("status", "fail"), check.code
    return None if check.status in _FINE else (check.status, check.code)
