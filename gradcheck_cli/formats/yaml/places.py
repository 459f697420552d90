"""Where things stand in a file: paths through a document, and the problems reported there.

A path is a tuple of keys and indices, as pydantic reports it: ("checks", 0, "delta").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from gradcheck_cli.errors import Problem, SpecError
from gradcheck_cli.formats.yaml.yaml_text import Entry, lines_of, parse, read_text


@dataclass(slots=True)
class Document:
    """A YAML file as read: its tree, its lines, and the problems found in it so far."""

    path: str
    root: Entry
    lines: list[str]
    data: bytes = b""
    problems: list[Problem] = field(default_factory=list)

    @classmethod
    def read(cls, path: str) -> Document:
        text, data = read_text(path)
        return cls(path, parse(text, path), lines_of(text), data)

    def problem(self, message: str, line: int, column: int) -> Problem:
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return Problem(message, self.path, line, column, text)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Keeps the problems of a part of the file, so that the rest is read too."""
        try:
            yield
        except SpecError as error:
            self.problems.extend(error.problems)

    def raise_problems(self) -> None:
        if self.problems:
            raise SpecError(problems=list(dict.fromkeys(self.problems)))


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in a document; `spot / "nodes" / 3` is a place inside it."""

    document: Document
    path: tuple[str | int, ...] = ()

    def __truediv__(self, part: str | int) -> Spot:
        return Spot(self.document, (*self.path, part))

    def __str__(self) -> str:
        return show_path(self.path)

    @property
    def entry(self) -> Entry:
        """The value here, or the one around it where this path leads nowhere."""
        return self._walk()[0]

    def error(self, message: str, *, key: bool = False) -> SpecError:
        """The error to raise for the value here; with `key`, for the key that it stands under."""
        entry, key_place = self._walk()
        line, column = key_place if key and key_place else (entry.line, entry.column)
        return SpecError(problems=[self.document.problem(message, line, column)])

    def error_in_text(self, message: str, line: int, column: int) -> SpecError:
        """The error to raise for a line and column (from 1) of the text that is the value here."""
        place = self.text_place(line, column)
        return SpecError(problems=[self.document.problem(message, *place)])

    def text_place(self, line: int, column: int) -> tuple[int, int]:
        """Where a line and column of the text that is the value here stand in the file."""
        entry = self.entry
        if entry.style == "|":
            inside = entry.text.split("\n")[line - 1 : line] or [""]
            raw = self.document.lines[entry.line + line - 1 : entry.line + line] or [""]
            return entry.line + line, len(raw[0]) - len(inside[0].rstrip("\r")) + column
        if line > 1 or entry.style == ">":
            return entry.line, entry.column
        return entry.line, entry.column + column - 1 + (entry.style in ("'", '"'))

    def _walk(self) -> tuple[Entry, tuple[int, int] | None]:
        entry, key = self.document.root, None
        for part in self.path:
            # A path of pydantic also names branches of unions, which are no keys of the file.
            if part in entry.children:
                key = entry.keys.get(part) if isinstance(part, str) else None
                entry = entry.children[part]
        return entry, key


def show_path(path: Sequence[str | int]) -> str:
    """A path as messages write it: checks[0].delta."""
    shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return shown.removeprefix(".")
