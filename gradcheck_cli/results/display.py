"""Records as a prompt shows them, in a few lines, and as rows of a pandas.DataFrame."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from gradcheck_cli.errors import UsageError, shown
from gradcheck_cli.results.record import STATUSES, Check, Report

if TYPE_CHECKING:
    from pandas import DataFrame

_LINES = 5  # checks that a report names
COLUMNS = {  # of a data frame, each with its type; a dot leads into a part of the record
    **dict.fromkeys(("id", "check", "x", "y", "status", "code"), "string"),
    "passes": "bool",
    **dict.fromkeys(("entries.total", "entries.checked", "entries.failed", "entries.inconclusive"), "Int64"),
    **dict.fromkeys(("max_abs_err", "max_rel_err", "noise", "rtol", "atol", "gradient.norm"), "float64"),
    "suspect.node": "Int64",
    **dict.fromkeys(("suspect.op", "suspect.name", "suspect.diagnosis", "message", "mode", "method"), "string"),
    **dict.fromkeys(("points", "seed"), "Int64"),
    "duration_s": "float64",
    "model.uri": "string",
}
_COMPARED = ("max_abs_err", "max_rel_err", "noise", "rtol", "atol")  # of a check that compared something


@singledispatch
def as_html(thing: object) -> str | None:
    """A record or a model as a part of a page, by the room above that draws; None, and so its repr, until one does."""
    return None


def as_text(thing: object) -> str:
    """The repr of a record."""
    match thing:
        case Check():
            return f"<Check {subject(thing)}: {summary(thing)}>"
        case Report():
            return "\n".join(_lines(thing))
    return object.__repr__(thing)


def subject(check: Check) -> str:
    """The check and its derivative: 'net.onnx' d loss/d input."""
    return f"{shown(check.check)!r}" + (f" {'/'.join(map(shown, check.derivative))}" if check.x or check.y else "")


def summary(check: Check) -> str:
    """The outcome and its numbers: fail GC101, 6 of 192 failed, max rel err 1.0e+00, suspect node 14 MaxPool pool1."""
    told = [f"{check.status} {check.code}".strip(), *check.gates]
    if check.copy_of:
        told += [f"copy of {check.copy_of}"]
    elif check.entries:
        told += [*_counted(check.entries), f"max rel err {check.max_rel_err:.1e}"]
    else:
        told += filter(None, [check.message])
    if (suspect := check.suspect) is not None:
        told += [f"suspect node {suspect.node} {suspect.op} {suspect.name}".strip()]
    return ", ".join(map(shown, told))


def _counted(entries: Mapping[str, int]) -> list[str]:
    """The numbers of entries that failed or stayed open; where there are none, that of all that were checked."""
    checked = entries.get("checked", 0)
    return [f"{entries[k]} of {checked} {k}" for k in ("failed", "inconclusive") if entries.get(k)] or [
        f"{checked} checked"
    ]


def _lines(report: Report) -> Iterator[str]:
    """The numbers of checks by status, the exit code, and the first checks that are wrong."""
    numbers, wrong = Counter(check.status for check in report.outcomes), report.wrong
    told = ", ".join(f"{numbers[status]} {status}" for status in STATUSES if status in numbers)
    yield f"<Report: {told or 'nothing was checked'}; exit code {report.exit_code}>"
    yield from (f"  {check!r}" for check in wrong[:_LINES])
    if len(wrong) > _LINES:
        yield f"  ... {len(wrong) - _LINES} more"


def frame(checks: Iterable[Check]) -> DataFrame:
    """The checks as a data frame, with `_` for the dots of COLUMNS: entries_failed, suspect_op."""
    try:
        import pandas as pd
    except ModuleNotFoundError:
        raise UsageError("to_dataframe() needs pandas: python -m pip install pandas") from None
    rows = [*checks]
    columns = {place: pd.Series([_value(row, place) for row in rows], dtype=kind) for place, kind in COLUMNS.items()}
    return pd.DataFrame({place.replace(".", "_"): column for place, column in columns.items()})


def _value(check: Check, place: str) -> Any:
    """The value at a place of a record; None where the record has none, NaN for errors of what was not compared."""
    compared = check.entries and not check.copy_of
    value: Any = math.nan if place in _COMPARED and not compared else check
    for key in place.split(".") if value is check else ():
        value = value.get(key) if isinstance(value, Mapping) else getattr(value, key, None)
    return value
