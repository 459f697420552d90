"""`--baseline`: what failed in an earlier run fails no longer, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gradcheck_cli.errors import UsageError
from gradcheck_cli.record import Check

_FINE = ("pass", "waived")


@dataclass(slots=True)
class Baseline:
    """The outcomes of an earlier run: id of a record -> status and code of those that did not pass."""

    path: str
    known: Mapping[str, tuple[str, str]]
    repaired: list[str] = field(default_factory=list)  # ids of those that pass now

    @classmethod
    def read(cls, path: str) -> Baseline:
        """Of a file that `--report` wrote, .json or .jsonl; UsageError for anything else."""
        from gradcheck_cli.results import read_results

        try:
            return cls(path, dict(_known(read_results(path))))
        except UsageError as error:
            raise UsageError(f"--baseline {error}") from None

    def waived(self, checks: tuple[Check, ...]) -> tuple[Check, ...]:
        """The records, those that came out as they did in the baseline waived."""
        self.repaired += [check.id for check in checks if check.status in _FINE and check.id in self.known]
        return tuple(self._waived(check) for check in checks)

    def covers(self, check: Check) -> bool:
        """It came out as it did in the baseline."""
        return self.known.get(check.id) == (check.status, check.code)

    def _waived(self, check: Check) -> Check:
        if not self.covers(check):
            return check
        waiver = {"status": check.status, "reason": self.path, "until": None, "baseline": True}
        return replace(check, status="waived", waiver=waiver)


def _known(checks: Iterable[Check]) -> Iterable[tuple[str, tuple[str, str]]]:
    """What failed; so did what an earlier baseline waived, while a waiver of a spec is up to the spec, and to its end."""
    for check in checks:
        waiver = check.waiver or {}
        if check.status == "waived" and waiver.get("baseline"):
            yield check.id, (waiver.get("status", "fail"), check.code)
        elif check.status not in _FINE:
            yield check.id, (check.status, check.code)
