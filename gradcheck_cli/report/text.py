"""Numbers, names and tables as text: numbers are never cut, only names are.

`path`, `uri` and `fingerprint` place a check in a project, as the services of a repository want it.
"""

from __future__ import annotations

import hashlib
import math
import os
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from urllib.parse import quote

from gradcheck_cli.errors import shown
from gradcheck_cli.results.record import Check, Report

name = shown  # a name on one line
COLORS = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bold": 1, "dim": 2}


@dataclass(frozen=True, slots=True)
class Style:
    """The look of a report: colors, width, how many entries of a failure it shows, more (1) or less (-1) text."""

    color: bool = False
    width: int = 80
    show: int = 3
    verbosity: int = 0
    ascii: bool = False  # nothing but ASCII can be shown
    health: bool = False  # of every gradient, layer by layer


def paint(text: str, color: str, on: bool = True) -> str:
    """A text in a terminal's color."""
    return f"\x1b[{COLORS[color]}m{text}\x1b[0m" if on and color else text


def clean(text: str) -> str:
    """A text with escapes for control characters, which could move a terminal's cursor; line breaks stay."""
    return "\n".join(map(shown, text.split("\n")))


def without_excerpt(message: str) -> list[str]:
    """The lines of a message without the line of a file and the caret below it, which need a font of fixed width."""
    lines = message.split("\n")
    return lines[:-2] if lines[-1].strip() == "^" else lines


def cut(text: str, width: int) -> str:
    """A name cut in its middle to a width in columns."""
    if columns(text) <= width or width < 3:
        return text
    left = (width - 3 + 1) // 2
    return f"{_first(text, left)}...{_first(text[::-1], width - 3 - left)[::-1]}"


def short(value: float) -> str:
    """A number to two digits: 4.0e-02."""
    return f"{value:.1e}"


def rough(value: float) -> str:
    """A number to one digit: 3e-10."""
    return f"{value:.0e}" if value else "0"


def precise(value: float) -> str:
    """A number to six digits: 4.02135e-02."""
    return f"{value:.5e}" if value else "0"


def upper(value: float) -> str:
    """A tolerance rounded up to two digits, so that what it was computed for passes: 2.0, 3.1e-05."""
    if not abs(value) > 1e-300 or not math.isfinite(value):  # of smaller ones a hundredth is no number
        return str(value)
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return repr(float(f"{math.ceil(value / unit - 1e-9) * unit:.1e}"))


def shape(sizes: Sequence[int]) -> str:
    """A shape without spaces: [1,3,8,8]."""
    return f"[{','.join(map(str, sizes))}]"


def count(number: int, one: str, many: str = "") -> str:
    """A number and what it counts: 1 check, 2 checks."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def percent(share: float) -> str:
    """A share as one reads it: 3.1%, 100%, 0.02%."""
    return f"{100 * share:.1f}".removesuffix(".0") + "%" if share >= 0.001 else f"{100 * share:.1g}%"


def seconds(duration: float) -> str:
    """A duration as one reads it: 0.84s, 12.3s, 3m 20s."""
    if not math.isfinite(duration):
        return "?"
    if duration < 10:
        return f"{duration:.2f}s"
    if duration < 120:
        return f"{duration:.1f}s"
    minutes, rest = divmod(round(duration), 60)
    return f"{minutes}m {rest:02d}s" if minutes < 120 else f"{minutes // 60}h {minutes % 60:02d}m"


def took(report: Report) -> str:
    """The time of a run by the clock, in 12s; of results that were read the sum of their checks', in 48s of checks."""
    return f"in {seconds(report.duration_s)}{' of checks' if report.summed else ''}"


def wrapped(text: str, width: int, first: str = "  ", others: str = "  ") -> list[str]:
    """A sentence in lines of a width in columns, each behind its indent; a word that is longer stays whole."""
    lines, line = list[str](), ""
    first += " " * (len(text) - len(text.lstrip(" ")))  # its own indent
    for word in text.strip(" ").split(" "):
        start = others if lines else first
        if line and columns(start + line) + 1 + columns(word) > width:
            lines.append(f"{start}{line}".rstrip())
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, f"{others if lines else first}{line}".rstrip()] if line else []


def opened(text: str, start: str, color: str, style: Style) -> Iterator[str]:
    """The wrapped lines of a text, the start of the first one in a color."""
    for index, line in enumerate(each for part in text.split("\n") for each in wrapped(part, style.width, "")):
        yield paint(start, color, style.color) + line.removeprefix(start) if index == 0 else line


def table(rows: Sequence[Sequence[str]], align: str, least: Sequence[int] = ()) -> list[str]:
    """Lines of a table: `align` has < or > for each column, `least` a minimal width; two spaces between."""
    minimal = [*least, *[0] * (len(align) - len(least))]
    widths = [max([low, *(columns(row[i]) for row in rows)]) for i, low in enumerate(minimal)]
    lines = ("  ".join(map(_padded, row, align, widths)) for row in rows)
    return [line.rstrip() for line in lines]


def columns(text: str) -> int:
    """The number of columns that a text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _first(text: str, width: int) -> str:
    """The start of a text, as far as it fits into a width."""
    return text[: sum(taken <= width for taken in accumulate(map(columns, text)))]


def _padded(cell: str, align: str, width: int) -> str:
    space = " " * (width - columns(cell))
    return cell + space if align == "<" else space + cell


_OF_A_URL = ":/?#[]@!$&'()*+,;=%~"


def path(check: Check) -> str:
    """The path of a model or spec, relative to the project's folder if it lies in there, with slashes; a URL as it is."""
    uri = check.model.uri or check.check
    if is_url(uri):
        return uri
    file = os.path.abspath(uri)
    projects = filter(None, map(os.environ.get, ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")))  # of a job of a CI service
    inside = next((base for base in (*projects, os.getcwd()) if _within(file, base)), "")
    return (os.path.relpath(file, inside) if inside else os.path.normpath(uri)).replace(os.sep, "/")


def uri(check: Check) -> str:
    """The path of a model or spec as a URI."""
    found = path(check)
    if is_url(found):
        return quote(found, safe=_OF_A_URL, errors="replace")
    return ("file://" if found.startswith("/") else "") + quote(found, safe="/~", errors="replace")


def is_url(text: str) -> bool:
    """True if a text names a model elsewhere: s3://..."""
    scheme, mark, _ = text.partition("://")
    return bool(mark) and scheme.isalnum()


def fingerprint(check: Check, code: str) -> str:
    """A digest that is the same for a fault of a check in every run, wherever it runs."""
    return hashlib.sha256(f"{path(check)}\0{check.id}\0{code}".encode(errors="replace")).hexdigest()


def _within(file: str, folder: str) -> bool:
    try:
        return os.path.commonpath([file, folder]) == os.path.normpath(folder)
    except ValueError:  # on another drive, or no absolute path
        return False
