"""Parses YAML into a tree of values that know their line and column, and reports problems at those places.

YAML is read by version 1.2's core schema: `1e-3` is a number, `no` a string, `0123` is 123, `1:0` a string.  A key is
always a string, so that a tensor may be called `1` or `on`.  Specs are untrusted: the tree is built from the parser's
events, without recursion and within bounds.  A place is a path of keys and indices: ("checks", 0, "delta").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import yaml

from gradcheck_cli.errors import Diagnostic, SpecError, did_you_mean
from gradcheck_cli.formats.untrusted import opened

MAX_BYTES = 8 << 20
MAX_DEPTH = 64
MAX_ALIASED = 100_000  # values that aliases may add: ten lines of aliases can stand for 10**10 values
_BREAK = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")  # what libyaml counts as the end of a line
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_PREFIX = "tag:yaml.org,2002:"
_INT = r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"
_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
_CORE = {  # tag: pattern of a whole plain scalar, first characters
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (_INT, list("-+0123456789")),
    "float": (_FLOAT, list("-+.0123456789")),
}


@dataclass(slots=True)
class Document:
    """A YAML file that was read: its tree, its lines, and the problems found in it so far."""

    path: str
    root: PlacedValue
    lines: list[str]
    data: bytes = b""
    problems: list[Diagnostic] = field(default_factory=list)

    @classmethod
    def read(cls, path: str) -> Document:
        text, data = read_text(path)
        return cls(path, parse(text, path), lines_of(text), data)

    def problem(self, message: str, line: int, column: int) -> Diagnostic:
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return Diagnostic(message, self.path, line, column, text)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collects the problems of a part of the file, so that the rest is read too."""
        try:
            yield
        except SpecError as error:
            self.problems.extend(error.problems)

    def raise_problems(self) -> None:
        if self.problems:
            raise SpecError(problems=list(dict.fromkeys(self.problems)))


@dataclass(frozen=True, slots=True)
class DocumentPath:
    """A place in a document; `spot / "nodes" / 3` is a place inside of it."""

    document: Document
    path: tuple[str | int, ...] = ()

    def __truediv__(self, part: str | int) -> DocumentPath:
        return DocumentPath(self.document, (*self.path, part))

    def __str__(self) -> str:
        return show_path(self.path)

    @property
    def entry(self) -> PlacedValue:
        """The value at this place, or the nearest one around it if the path does not exist."""
        return self._walk()[0]

    @property
    def line(self) -> int:
        """The line of the key at this place; of an entry of a list, that in which it begins."""
        entry, key = self._walk()
        return key[0] if key else entry.line

    def error(self, message: str, *, key: bool = False) -> SpecError:
        """The error to raise for the value at this place; with `key`, for its key."""
        entry, key_place = self._walk()
        line, column = key_place if key and key_place else (entry.line, entry.column)
        return SpecError(problems=[self.document.problem(message, line, column)])

    def error_in_text(self, message: str, line: int, column: int) -> SpecError:
        """The error to raise for a line and column (from 1) inside the string at this place."""
        return SpecError(problems=[self.document.problem(message, *self._place_in_text(line, column))])

    def _place_in_text(self, line: int, column: int) -> tuple[int, int]:
        """Line and column in the file, for those inside the string at this place."""
        entry = self.entry
        if entry.style == "|":
            inside = entry.text.split("\n")[line - 1 : line] or [""]
            raw = self.document.lines[entry.line + line - 1 : entry.line + line] or [""]
            return entry.line + line, len(raw[0]) - len(inside[0].rstrip("\r")) + column
        if line > 1 or entry.style == ">":
            return entry.line, entry.column
        return entry.line, entry.column + column - 1 + (entry.style in ("'", '"'))

    def _walk(self) -> tuple[PlacedValue, tuple[int, int] | None]:
        entry, key = self.document.root, None
        for part in self.path:
            # Paths of pydantic also name the branches of unions, which are no keys of the file.
            if part in entry.children:
                key = entry.keys.get(part) if isinstance(part, str) else None
                entry = entry.children[part]
        return entry, key


def show_path(path: Sequence[str | int]) -> str:
    """A path as messages write it: checks[0].delta."""
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return shown.removeprefix(".")


@dataclass(slots=True)
class PlacedValue:
    """A value of the file with its line and column (counted from 1).

    `children` are the entries of a mapping by key, of a list by index; `keys` has line and column of each key.
    `size` is the number of values in the entry, with aliases expanded.
    """

    value: Any
    line: int
    column: int
    text: str = ""
    style: str | None = None  # of a scalar: None for a plain one, else | > ' "
    size: int = 1
    children: dict[str | int, PlacedValue] = field(default_factory=dict)
    keys: dict[str, tuple[int, int]] = field(default_factory=dict)


def read_text(path: str | Path) -> tuple[str, bytes]:
    """The text of a file in UTF-8, and its bytes."""
    try:
        with opened(path) as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SpecError(problems=[Diagnostic(f"cannot be read: {reason}", str(path))]) from None
    if len(data) > MAX_BYTES:
        raise SpecError(problems=[Diagnostic(f"is larger than {MAX_BYTES >> 20} MiB, the most for a spec", str(path))])
    try:
        return data.decode("utf-8-sig"), data
    except UnicodeDecodeError as error:
        before = lines_of(data[: error.start].decode("utf-8", "replace"))
        message = f"byte 0x{data[error.start]:02x} is not UTF-8; a spec is UTF-8 text"
        raise SpecError(problems=[Diagnostic(message, str(path), len(before), len(before[-1]) + 1)]) from None


def lines_of(text: str) -> list[str]:
    """The lines of a text, split where libyaml splits them."""
    return _BREAK.split(text)


def parse(text: str, path: str) -> PlacedValue:
    """The tree of a YAML text with a single document."""
    return _Builder(text, path).run()


class _Builder:
    """Builds the tree from the parser's events."""

    def __init__(self, text: str, path: str) -> None:
        self.text, self.path = text, path
        self.root: PlacedValue | None = None
        self.open: list[_Open] = []
        self.anchors: dict[str, PlacedValue | None] = {}  # None while the value is still open
        self.aliased = 0

    def run(self) -> PlacedValue:
        if found := _UNPRINTABLE.search(self.text):
            before = lines_of(self.text[: found.start()])
            message = f"the character U+{ord(found.group()):04X} is not allowed in YAML"
            self._fail(message, len(before), len(before[-1]) + 1)
        for event in self._events():
            self._take(event)
        if self.root is None or (self.root.value is None and not self.root.text):
            self._fail("the file is empty; a spec starts with 'gradcheck: 1'", 1, 1)
        return self.root

    def _events(self) -> Iterator[Any]:
        self.loader = _Loader(self.text)
        try:
            while self.loader.check_event():
                yield self.loader.get_event()
        except yaml.MarkedYAMLError as error:
            self._refuse_syntax(error)
        except yaml.YAMLError as error:
            self._fail(f"not YAML: {error}", 1, 1)
        finally:
            self.loader.dispose()

    def _refuse_syntax(self, error: yaml.MarkedYAMLError) -> NoReturn:
        lines, mark = lines_of(self.text), error.problem_mark
        if mark is None or mark.line >= len(lines):  # the begin of the faulty part says more than the end of the file
            mark = error.context_mark or mark
        line, column = (mark.line, mark.column) if mark else (0, 0)
        text = (lines + [""])[line]
        if "cannot start any token" in str(error.problem) and text[column : column + 1] == "\t":
            self._fail("a tab cannot indent YAML; use spaces", line + 1, column + 1)
        if "maximum nesting depth" in str(error.problem):  # libyaml's own limit, which its look-ahead may meet first
            self._fail(f"nested deeper than {MAX_DEPTH} levels", line + 1, column + 1)
        context = f" {error.context}" if error.context else ""
        self._fail(f"not YAML:{context} {error.problem}".replace("  ", " "), line + 1, column + 1)

    def _take(self, event: Any) -> None:
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        if isinstance(event, yaml.ScalarEvent):
            self._add(self._scalar(event, line, column), event.anchor)
        elif isinstance(event, yaml.AliasEvent):
            self._add(self._alias(str(event.anchor), line, column))
        elif isinstance(event, (yaml.SequenceStartEvent, yaml.MappingStartEvent)):
            self._start(event, line, column)
        elif isinstance(event, (yaml.SequenceEndEvent, yaml.MappingEndEvent)):
            closed = self.open.pop()
            self._merge(closed)
            self._add(closed.entry, closed.anchor)
        elif isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            self._fail("a spec is one document; a second one starts here", line, column)

    def _start(self, event: Any, line: int, column: int) -> None:
        if len(self.open) == MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH} levels", line, column)
        kind = "map" if isinstance(event, yaml.MappingStartEvent) else "seq"
        value: Any = {} if kind == "map" else []
        if event.tag not in (None, "!", _PREFIX + kind):
            self._refuse_tag(event.tag, line, column)
        if event.anchor:
            self.anchors[event.anchor] = None
        self.open.append(_Open(PlacedValue(value, line, column), event.anchor))

    def _scalar(self, event: Any, line: int, column: int) -> PlacedValue:
        tag = event.tag
        if tag in (None, "!"):
            plain = tag is None and event.implicit[0]
            tag = self.loader.resolve(yaml.ScalarNode, event.value, (plain, not plain))
        kind = tag.removeprefix(_PREFIX)
        if kind != "str" and kind not in _CORE:
            self._refuse_tag(tag, line, column)
        if kind in _CORE and not re.fullmatch(_CORE[kind][0], event.value):
            self._fail(f"{event.value!r} is no {kind}", line, column)
        try:
            value = _convert(kind, event.value)
        except ValueError:  # Python refuses integers of over 4300 digits
            self._fail("a number with too many digits", line, column)
        style = event.style if event.style in ("|", ">", "'", '"') else None
        return PlacedValue(value, line, column, event.value, style)

    def _alias(self, anchor: str, line: int, column: int) -> PlacedValue:
        if anchor not in self.anchors:
            near = did_you_mean(anchor, self.anchors)
            self._fail(f"no anchor '&{anchor}' stands before this alias.{near}", line, column)
        target = self.anchors[anchor]
        if target is None:
            self._fail(f"the alias '*{anchor}' stands inside its own value", line, column)
        self.aliased += target.size
        if self.aliased > MAX_ALIASED:
            self._fail(f"aliases stand for more than {MAX_ALIASED:,} values", line, column)
        return target

    def _add(self, entry: PlacedValue, anchor: str | None = None) -> None:
        if anchor:
            self.anchors[anchor] = entry
        if not self.open:
            self.root = entry
        elif isinstance((into := self.open[-1].entry).value, list):
            into.children[len(into.value)] = entry
            into.value.append(entry.value)
            into.size += entry.size
        elif self.open[-1].key is None:
            self._set_key(self.open[-1], entry)
        else:
            self._set_value(self.open[-1], entry)

    def _set_key(self, into: _Open, key: PlacedValue) -> None:
        if isinstance(key.value, (list, dict)):
            self._fail("a key must be a name, not a list or mapping", key.line, key.column)
        if key.text in into.entry.keys:
            line, column = into.entry.keys[key.text]
            message = f"the key {key.text!r} stands here a second time; first at {line}:{column}"
            self._fail(message, key.line, key.column)
        into.key = key

    def _set_value(self, into: _Open, entry: PlacedValue) -> None:
        key, into.key = into.key, None
        assert key is not None
        if key.text == "<<" and key.style is None:
            into.merges.extend(entry.children.values() if isinstance(entry.value, list) else [entry])
            for each in into.merges:
                if not isinstance(each.value, dict):
                    self._fail("'<<' takes a mapping or a list of mappings", each.line, each.column)
            return
        into.entry.keys[key.text] = (key.line, key.column)
        into.entry.children[key.text] = entry
        into.entry.value[key.text] = entry.value
        into.entry.size += entry.size

    def _merge(self, closed: _Open) -> None:
        """Adds the mappings under `<<`: own keys take precedence, then the first mapping that has the key."""
        into = closed.entry
        for source in closed.merges:
            for key, child in source.children.items():
                if key not in into.children:
                    into.children[key], into.value[key] = child, child.value
                    into.keys[str(key)] = source.keys[str(key)]
                    into.size += child.size

    def _refuse_tag(self, tag: str, line: int, column: int) -> NoReturn:
        shown = tag.replace(_PREFIX, "!!")
        self._fail(f"the tag {shown!r} is not allowed; a spec holds plain values only", line, column)

    def _fail(self, message: str, line: int, column: int) -> NoReturn:
        text = (lines_of(self.text) + [""])[line - 1 : line]
        raise SpecError(problems=[Diagnostic(message, self.path, line, column, "".join(text))])


def _convert(kind: str, text: str) -> Any:
    if kind == "int":
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if kind == "float":
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return {"null": None, "bool": text[:1] in "tT"}.get(kind, text)


@dataclass(slots=True)
class _Open:
    """A list or mapping whose end has not been read yet."""

    entry: PlacedValue
    anchor: str | None
    key: PlacedValue | None = None
    merges: list[PlacedValue] = field(default_factory=list)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """libyaml's parser with the tags of YAML 1.2's core schema."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


for _tag, (_pattern, _first) in _CORE.items():
    _Loader.add_implicit_resolver(_PREFIX + _tag, re.compile(f"(?:{_pattern})\\Z"), _first)
