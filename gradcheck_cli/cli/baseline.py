"""`--baseline`: what failed in an earlier run fails no longer, as long as it fails in the same way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gradcheck_cli.errors import UsageError
from gradcheck_cli.record import RUN_SCHEMA, SCHEMA, Check

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
        try:
            with open(path, encoding="utf-8") as file:
                records = [*_records(file.read())]
            known = {r["id"]: (str(r["status"]), str(r["code"])) for r in records if r["status"] not in _FINE}
        except OSError as error:
            raise UsageError(f"--baseline {path} cannot be read: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UsageError(f"--baseline {path} holds no results; write them with --report results.json") from None
        return cls(path, known)

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
        return replace(check, status="waived", waiver={"status": check.status, "reason": self.path, "until": None})


def _records(text: str) -> Iterator[Any]:
    """The records of a document, or of lines."""
    lines = text.splitlines()
    first = json.loads(lines[0]) if lines and lines[0].startswith('{"schema"') else json.loads(text)
    if first["schema"] == RUN_SCHEMA:
        yield from first["checks"]
        return
    for record in map(json.loads, lines):
        if record["schema"] != SCHEMA:
            raise ValueError(record["schema"])
        yield record
