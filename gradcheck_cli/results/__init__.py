"""Results read back: records of a file that `--report` or a zoo wrote, as the `Check`s that they were.

What a field holds is read from the types of `Check` itself; only its mappings of mixed kinds are told of here.  Keys
that this version does not know are passed over, so that results of a newer one can be shown; whatever else does not
fit is a UsageError that says where.

Records of files, put aside as they are read: there may be more of them than fit into memory.
"""

from __future__ import annotations

import gc
import json
import re
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import groupby
from typing import Any, get_args

from gradcheck_cli.errors import UsageError
from gradcheck_cli.results.json_schema import STATUSES
from gradcheck_cli.results.measures import Health, Precision, Severed
from gradcheck_cli.results.record import RUN_SCHEMA, SCHEMA, Check, Kept
from gradcheck_cli.results.typed import Reader, Tell, Unfit, brief, mapping, optional, plain, reader, record, values

_CODE = re.compile("(GC[1-9][0-9]{2})?")
_MIXED: Mapping[str, Mapping[str, Any]] = {  # fields that hold values of several kinds by key
    "forward": {
        "compared_with": str | None, "agrees": bool | None, "code": str | None, "reason": str, "refused": bool,
        "max_abs_err": float | None, "max_rel_err": float | None, "bound": float | None,
    },
    "power": {
        "missed_below": float, "of": str, "probability": float, "negligible": float,
        "bad_fraction": float, "bad_fraction_of_lines": float, "confidence": float,
    },
    "gradient": {
        "norm": float, "max": float, "zero_fraction": float, "finite": bool,
        "health": Health | None, "precision": Precision | None, "severed": Severed | None,
    },
    "branches": {"total": int, "covered": int, "missed": tuple[str, ...], "ranges": tuple[str, ...]},
    "claim": {
        "by": str, "kind": str, "of": tuple[str, ...], "found": bool, "layout": str, "seed": str, "theoretical": str,
    },
    "waiver": {"status": str, "forward": str, "reason": str, "until": str | None, "baseline": bool, "ended": bool},
}  # fmt: skip
_SPOT: Mapping[str, Any] = {"node": int, "op": str, "name": str, "outputs": tuple[str, ...]}
_TOGETHER: Mapping[str, tuple[str, ...]] = {  # keys that come together, if there are any
    "forward": ("compared_with",),
    "branches": ("total", "covered"),
    "claim": ("by", "kind", "of"),
    "entries": ("total", "checked"),
    "nodes": ("total", "checked"),
    "coloring": ("rows", "colors"),
}


def read_results(path: str, tell: Tell | None = None) -> tuple[Check, ...]:
    """The records in a file: a run, or records one after another, as in lines; "-" is the standard input.

    A last line that was not written to its end is left out, and `tell` hears of it.  UsageError for anything else.
    """
    return tuple(check for _, check in results_in(path, tell))


def results_in(path: str, tell: Tell | None = None) -> Iterator[tuple[Mapping[str, Any], Check]]:
    """The same one by one, each after what it was read from."""
    for value, line in values(path, tell):
        try:
            yield from ((record, check_from_json(record)) for record in _records(value))
        except UsageError as error:
            raise UsageError(f"{path}:{line} holds {error}") from None


def check_from_json(value: Mapping[str, Any]) -> Check:
    """The `Check` that a JSON record was made of; UsageError for what is none."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UsageError(f"no result of gradcheck: {_instead(value)}")
    try:
        check = _check_reader()(value)
    except Unfit as error:
        raise UsageError(f"no result of gradcheck: {error}") from None
    assert isinstance(check, Check)
    return check


def _records(value: Any) -> list[Any]:
    """The records of a run, or the one that stands alone."""
    if not isinstance(value, dict) or value.get("schema") != RUN_SCHEMA:
        return [value]
    checks = value.get("checks")
    if not isinstance(checks, list):
        raise UsageError("no results of gradcheck: its checks are no list")
    return checks


def _instead(value: Any) -> str:
    """What stands where a record should."""
    if not isinstance(value, dict):
        return f"{brief(value)} is no record"
    return f"its schema is {brief(value.get('schema'))}, not {SCHEMA!r}"


@contextmanager
def many() -> Iterator[None]:
    """For thousands of records: no garbage is looked for in them, again and again; none of them is part of a circle."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@cache
def _check_reader() -> Reader:
    from gradcheck_cli.results.typed import picture

    return record(Check, _own, {"picture": optional(picture)})


def _own(name: str, hint: Any) -> Reader:
    """What reads a field of `Check` by this name and of this type."""
    if name in _MIXED:
        known = {key: reader(each) for key, each in _MIXED[name].items()}
        if name == "forward":
            known["first_node"] = optional(
                mapping(plain, {key: reader(each) for key, each in _SPOT.items()}, (*_SPOT,))
            )
        read = mapping(plain, known, _TOGETHER.get(name, ()))
        return optional(read) if type(None) in get_args(hint) else read
    if name in _TOGETHER:
        return mapping(reader(get_args(hint)[1]), {}, _TOGETHER[name])
    return {"status": _status, "code": _code}.get(name) or reader(hint)


def _status(value: Any) -> Any:
    if value not in STATUSES:
        raise Unfit(f"should be one of {', '.join(STATUSES)}, and is {brief(value)}")
    return value


def _code(value: Any) -> Any:
    if not isinstance(value, str) or not _CODE.fullmatch(value):
        raise Unfit(f"should be a code such as GC101, and is {brief(value)}")
    return value


_HELD = 1000  # records that stay in memory as they were read
_IN_MEMORY = 8 << 20  # bytes of the others; if they are more, these go to a temporary file


def put_aside(path: str, tell: Tell | None = None) -> Kept:
    """The records in a file, which is read to its end now: UsageError for one that cannot be."""
    file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  # open as long as it may be read
    outcomes, held, ends = list[Check](), list[Check](), [0]

    def read(places: Sequence[int]) -> Iterator[Check]:
        for place in places:
            yield held[place] if place < len(held) else put_back(place - len(held))

    def put_back(place: int) -> Check:
        file.seek(ends[place])
        return check_from_json(json.loads(file.read(ends[place + 1] - ends[place])))

    weakref.finalize(read, file.close)
    for value, check in results_in(path, tell):
        outcomes.append(check.outcome)
        if len(held) < _HELD:
            held.append(check)
        else:
            ends.append(ends[-1] + file.write(json.dumps(value).encode()))
    return Kept(outcomes, read)


def joined(parts: Sequence[Kept]) -> Kept:
    """The records of several, one after another."""
    places = [(part, place) for part in parts for place in range(len(part))]

    def read(some: Sequence[int]) -> Iterator[Check]:
        for part, those in groupby((places[place] for place in some), lambda at: at[0]):
            yield from part.read([place for _, place in those])

    return Kept([outcome for part in parts for outcome in part.outcomes], read)
