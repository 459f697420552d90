"""Results read back: records of a file that `--report` or a zoo wrote, as the `Check`s that they were.

Keys that this version does not know are passed over, so that results of a newer one can be shown; whatever else does not
fit is a UsageError that says where.  Records are put aside as they are read: there may be more than fit into memory.  No
more of a file is held than the value that is being read, and of a run as we write it than one of its records.
"""

from __future__ import annotations

import codecs
import gc
import json
import re
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, BinaryIO, TypeAlias

from msgspec import DecodeError, Raw
from msgspec.json import Decoder

from gradcheck_cli.errors import UsageError
from gradcheck_cli.results.record import RUN_SCHEMA, SCHEMA, Check, Kept
from gradcheck_cli.results.typed import Unfit, brief, from_texts, reader

Tell: TypeAlias = Callable[[str], object]
_SELDOM = 100_000  # objects that are made between two collections
_LARGEST, _BLOCK = 2 << 30, 1 << 20  # bytes of a file, and of it at once
_NO_SPACE = re.compile(r"[^ \t\r\n]")
# the text that a run begins with
_RUN = re.compile(rf'{{\s*"schema": *"{RUN_SCHEMA}",\s*"exit_code": *\d+,(\s*"fail_on": *\[[^]]*\],)?\s*"checks": *\[')
_decode = json.JSONDecoder().raw_decode


def read_results(path: str, tell: Tell | None = None) -> tuple[Check, ...]:
    """The records in a file: a run, or records one after another, as in lines; "-" is the standard input.

    A last line that was not written to its end is left out, and `tell` hears of it.  UsageError for anything else.
    """
    return tuple(check for _, check in results_in(path, tell))


def results_in(
    path: str, tell: Tell | None = None, run: Callable[[Mapping[str, Any]], object] | None = None
) -> Iterator[tuple[Mapping[str, Any], Check]]:
    """The records in a file one by one, each with the JSON value that it was read from.

    `run` gets what a run says besides its records.
    """
    for value, line in values(path, tell):
        if run is not None and isinstance(value, dict) and value.get("schema") == RUN_SCHEMA:
            run({name: each for name, each in value.items() if name != "checks"})
        try:
            yield from ((record, check_from_json(record)) for record in _records(value))
        except UsageError as error:
            raise UsageError(f"{path}:{line} holds {error}") from None


def check_from_json(value: Mapping[str, Any]) -> Check:
    """The `Check` that a JSON record was made of; UsageError for what is none."""
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise UsageError(f"no result of gradcheck: {_instead(value)}")
    try:
        check = reader(Check)(value)
    except Unfit as error:
        raise UsageError(f"no result of gradcheck: {error}") from None
    assert isinstance(check, Check)
    return check


def check_from_texts(fields: Mapping[str, str]) -> Check:
    """The `Check` of a record by the JSON text of each of its fields; values that many records share are made once."""
    schema = json.loads(fields.get("schema", "null"))
    if schema != SCHEMA:
        raise UsageError(f"no result of gradcheck: {_instead({'schema': schema})}")
    try:
        check = from_texts(Check, fields)
    except Unfit as error:
        raise UsageError(f"no result of gradcheck: {error}") from None
    assert isinstance(check, Check)
    return check


_split = Decoder(dict[str, Raw]).decode


def texts_in(text: bytes) -> dict[str, str]:
    """The JSON text of each field of a record, of which nothing else is read; ValueError for what is no JSON."""
    try:
        return {name: str(bytes(value), "utf-8") for name, value in _split(text).items()}
    except DecodeError:  # as half a letter is for it, which stands in names of files that are no UTF-8
        return {name: json.dumps(value) for name, value in json.loads(text).items()}


def _records(value: Any) -> list[Any]:
    """The records of a run, or the one that stands alone."""
    if not isinstance(value, dict) or value.get("schema") != RUN_SCHEMA:
        return [value]
    checks = value.get("checks")
    if not isinstance(checks, list):
        raise UsageError("no results of gradcheck: its checks are no list")
    return checks


def _instead(value: Any) -> str:
    """A description of what stands where a record should."""
    if not isinstance(value, dict):
        return f"{brief(value)} is no record"
    return f"its schema is {brief(value.get('schema'))}, not {SCHEMA!r}"


@contextmanager
def many() -> Iterator[None]:
    """Lets garbage be collected seldom while thousands of records are read: none of them is part of a cycle.

    Pages are made of what is, so that without any collection the memory would grow with them.
    """
    before = gc.get_threshold()
    gc.set_threshold(_SELDOM, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


_HELD = 1000  # records that stay in memory as they were read
_IN_MEMORY = 8 << 20  # bytes of the others; if they are more, these go to a temporary file


def put_aside(path: str, tell: Tell | None = None, run: Callable[[Mapping[str, Any]], object] | None = None) -> Kept:
    """The records in a file, which is read to its end now: UsageError for one that cannot be; `run` as above."""
    file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  # open as long as it may be read
    outcomes, held, ends = list[Check](), list[Check](), [0]

    def read(places: Sequence[int]) -> Iterator[Check]:
        for place in places:
            yield held[place] if place < len(held) else put_back(place - len(held))

    def put_back(place: int) -> Check:
        file.seek(ends[place])
        return check_from_json(json.loads(file.read(ends[place + 1] - ends[place])))

    weakref.finalize(read, file.close)
    for value, check in results_in(path, tell, run):
        outcomes.append(check.outcome)
        if len(held) < _HELD:
            held.append(check)
        else:
            ends.append(ends[-1] + file.write(json.dumps(value).encode()))
    return Kept(outcomes, read)


def joined(parts: Sequence[Kept]) -> Kept:
    """The records of several, one after another."""
    if len(parts) == 1:
        return parts[0]
    places = [(part, place) for part in parts for place in range(len(part))]

    def read(some: Sequence[int]) -> Iterator[Check]:
        for part, those in groupby((places[place] for place in some), lambda at: at[0]):
            yield from part.read([place for _, place in those])

    return Kept([outcome for part in parts for outcome in part.outcomes], read)


def values(path: str, tell: Tell | None) -> Iterator[tuple[Any, int]]:
    """The JSON values in a file, whatever space is between them, and the line in which each begins.

    Instead of a run as we write it come its records, then the run without them.  A last line that was not written to its
    end is left out, and `tell` hears of it.
    """
    lines, text = path.endswith(".jsonl"), _Text(_texts_of(path))
    first = True
    while text.next():
        line = text.line
        try:
            if first and (head := _RUN.match(text.read, text.at)):
                yield from _records_of(text, head)
            value = text.value()
        except (ValueError, RecursionError) as error:
            if isinstance(error, RecursionError) or "\n" in text.left or not (lines or not first):
                raise UsageError(f"{path}:{line} holds no results; --report results.json writes them") from None
            if tell is not None:
                tell(f"{path}:{line}: the last line was not written to its end, and is left out")
            return
        yield value, line
        first = False
    if first and not lines:
        raise UsageError(f"{path} holds no results: it is empty")


def _records_of(text: _Text, head: re.Match[str]) -> Iterator[tuple[Any, int]]:
    """The records of a run one by one; the text that is left behind them is the run without its records."""
    text.go(head.end())
    more = text.next() != "]"
    while more:
        text.next()
        line = text.line
        yield text.value(), line
        if (sign := text.next()) not in (",", "]"):
            raise ValueError(sign)
        more = sign == ","
        text.go(text.at + more)
    text.put_before(head[0])


class _Text:
    """The text of a file, read in blocks: `read` is the part that is held, and `at` the place up to which it was used."""

    def __init__(self, blocks: Iterator[str]) -> None:
        self.blocks, self.read, self.at, self.line = blocks, "", 0, 1

    @property
    def left(self) -> str:
        """The text that was read and not used yet."""
        return self.read[self.at :]

    def go(self, place: int) -> None:
        """Moves on to a place in the text that was read."""
        self.line += self.read.count("\n", self.at, place)
        self.at = place

    def next(self) -> str:
        """Skips space, and gives the character behind it; nothing at the end."""
        while (found := _NO_SPACE.search(self.read, self.at)) is None:
            self.go(len(self.read))
            if not self._more():
                return ""
        self.go(found.start())
        return found[0]

    def value(self) -> Any:
        """The value that begins here; ValueError where there is none in all that is left."""
        while True:
            try:
                value, end = _decode(self.read, self.at)
            except ValueError:
                if not self._more():
                    raise
            else:
                if end < len(self.read) or not self._more():  # else a number may go on
                    self.go(end)
                    return value

    def put_before(self, text: str) -> None:
        """Puts a text in front of the text that is left."""
        self.read, self.at = text + self.left, 0

    def _more(self) -> bool:
        """Reads as much again as is left, so that a long value is not tried over and over; False at the end."""
        left = self.left
        if block := "".join(self._blocks_of(max(len(left), 1))):
            self.read, self.at = left + block, 0
        return bool(block)

    def _blocks_of(self, size: int) -> Iterator[str]:
        while size > 0 and (block := next(self.blocks, None)) is not None:
            size -= len(block)
            yield block


def _texts_of(path: str) -> Iterator[str]:
    """A file's text, block by block: UTF-8, or what a Windows shell makes of it."""
    try:
        if path == "-":
            yield from _decoded(sys.stdin.buffer, path)
        else:
            with open(path, "rb") as file:
                yield from _decoded(file, path)
    except UnicodeDecodeError:
        raise UsageError(f"{path} holds no results: it is no text") from None
    except OSError as error:
        hint = "; for what a zoo has found: gradcheck zoo report" if isinstance(error, IsADirectoryError) else ""
        raise UsageError(f"{path} cannot be read: {error.strerror or error}{hint}") from None


def _decoded(file: BinaryIO, path: str) -> Iterator[str]:
    """The text of a file or pipe of bounded size; a character that is cut off at its end is left out."""
    size, decoder = 0, None
    while block := file.read(_BLOCK):
        if (size := size + len(block)) > _LARGEST:
            raise UsageError(f"{path} is larger than {_LARGEST >> 30} GiB")
        decoder = decoder or codecs.getincrementaldecoder(json.detect_encoding(block))("surrogatepass")
        yield decoder.decode(block)
