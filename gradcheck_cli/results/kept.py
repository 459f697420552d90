"""Records of files, put aside as they are read: there may be more of them than fit into memory."""

from __future__ import annotations

import json
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from itertools import groupby

from gradcheck_cli.results import check_from_json, results_in
from gradcheck_cli.results.json_values import Tell
from gradcheck_cli.results.record import Check, Kept

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
