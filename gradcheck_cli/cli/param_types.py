"""Types of options that click does not have: durations, sizes in bytes, lists of words, number or word."""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, Any

import rich_click as click
from click.shell_completion import CompletionItem

from gradcheck_cli.cli.environment import words
from gradcheck_cli.errors import UsageError, did_you_mean
from gradcheck_cli.results.record import GATES, gates_from
from gradcheck_cli.zoo.job import SCHEDULER, SCHEDULERS

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]  # generic only in newer releases of click
    Choice = click.Choice[str]
else:
    ParamType = click.ParamType
    Choice = click.Choice

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {
    "": 1,
    "B": 1,
    **{f"{p}B": 1000**i for i, p in enumerate("KMGT", 1)},
    **{f"{p}iB": 1024**i for i, p in enumerate("KMGT", 1)},
}
_REPORTS = (".json", ".jsonl", ".xml", ".html", ".md", ".sarif")


class Text(ParamType):
    """A text; several in an environment variable are separated by spaces."""

    name = "text"

    def split_envvar_value(self, rv: str) -> list[str]:
        return words(rv)


class OneOf(Choice):
    """A word of a fixed set; a misspelt one is told the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(f"{error.message}{did_you_mean(str(value), self.choices)}", param, ctx)


class NumberOr(ParamType):
    """A number, or one word that stands for a way to choose it."""

    def __init__(self, kind: type[int] | type[float], word: str, least: float, *, above: bool = False) -> None:
        self.kind, self.word, self.least, self.above = kind, word, least, above
        self.name = f"{'int' if kind is int else 'float'}|{word}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == self.word:
            return value
        try:
            number = self.kind(value)
            finite = math.isfinite(number)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor {self.word!r}.", param, ctx)
        except OverflowError:
            self.fail(f"{str(value)[:20]!r}... is too large.", param, ctx)
        if not finite or number < self.least or (self.above and number == self.least):
            self.fail(f"{value!r} must be {'above' if self.above else 'at least'} {self.least:g}.", param, ctx)
        return number


class Duration(ParamType):
    """Seconds, from 90, 30s, 10m or 1h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(value).strip())
        if not match or not float(match[1]):
            self.fail(f"{value!r} is no duration; write 30s, 10m or 1h.", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


class ByteSize(ParamType):
    """A number of bytes, from 2GiB, 512MB ..."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip(), re.IGNORECASE)
        unit = next((u for u in _BYTES if match and u.lower() == match[2].lower()), None)
        if not match or unit is None or not float(match[1]):
            self.fail(f"{value!r} is no size; write 2GiB or 512MB.", param, ctx)
        return int(float(match[1]) * _BYTES[unit])


class Words(ParamType):
    """Words of a fixed set, separated by commas."""

    name = "list"

    def __init__(self, known: tuple[str, ...]) -> None:
        self.known = known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        words = tuple(word.strip() for word in str(value).split(",") if word.strip())
        for word in words:
            if word not in self.known:
                near = did_you_mean(word, self.known)
                self.fail(f"{word!r} is none of {', '.join(self.known)}.{near}", param, ctx)
        return words

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in self.known if word.startswith(incomplete)]


class Gates(Words):
    """What fails a run: words of outcomes and of the gradient's health, which `gates_from` makes a whole list of."""

    def __init__(self) -> None:
        super().__init__(GATES)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return gates_from(word.strip() for word in str(value).split(","))
        except UsageError as error:
            self.fail(str(error), param, ctx)


class ReportPath(Text):
    """A file to write, whose suffix says in which format."""

    name = "path"
    suffixes: tuple[str, ...] = _REPORTS
    folders = True  # a path that ends in "/" is a folder of pages

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        suffix = os.path.splitext(value)[1]
        if self.folders and (value.endswith(("/", os.sep)) or os.path.isdir(value)):
            return self._folder(value, param, ctx)
        if self.suffixes and suffix not in self.suffixes:
            self.fail(f"{value!r} must end in {', '.join(self.suffixes)}.", param, ctx)
        folder = os.path.dirname(value) or "."
        if not os.path.isdir(folder):
            self.fail(f"{value!r}: there is no folder {folder!r}.", param, ctx)
        if os.path.isdir(value) or not os.access(value if os.path.exists(value) else folder, os.W_OK):
            self.fail(f"{value!r} cannot be written.", param, ctx)
        return str(value)

    def _folder(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from gradcheck_cli.report.html.folder import refusal

        if reason := refusal(value):
            self.fail(f"{value!r} cannot be written: {reason}.", param, ctx)
        return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


class AnyPath(ReportPath):
    """A file to write in a format that something else says."""

    suffixes = ()


class PlotPath(ReportPath):
    """A figure to write."""

    suffixes = (".png", ".svg")
    folders = False


class Scheduler(ParamType):
    """Where a Dask cluster is."""

    name = "scheduler"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(SCHEDULER, str(value)) and not os.path.isfile(value):
            self.fail(f"{value!r} is no Dask scheduler; {SCHEDULERS}", param, ctx)
        return str(value)
