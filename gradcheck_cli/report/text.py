"""Numbers, names and tables as text: numbers are never cut, only names are.

`path`, `uri` and `fingerprint` place a check in a project, as the services of a repository want it.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile
from urllib.parse import quote

from msgspec import Struct

from gradcheck_cli.errors import DOCUMENTATION, shared, shown
from gradcheck_cli.results.record import Check, Report

name = shown  # a name on one line
ENDLESS = sys.maxsize  # columns, where nothing has to fit
LEAST_NAME = 12  # columns of a name that is cut: of fewer nobody would make sense
SPACE = "\xa0"  # of a text that is to be wrapped: no line ends there
_PICTURED = 80  # columns of a drawing where lines may have any length
AS_JSON, AS_XML = ("\\u003a", "#\\u0023"), ("&#58;", "&#35;#")  # for `harmless`: the same characters, written otherwise
COLORS = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bold": 1, "dim": 2}
_CODE = re.compile(r"\bGC\d{3}\b")


class Style(Struct, frozen=True):
    """The look of a report: colors, width, how many entries of a failure it shows, more (1) or less (-1) text."""

    color: bool = False
    links: bool = False  # codes open their pages
    width: int = 80  # columns, or ENDLESS
    show: int = 3
    verbosity: int = 0
    ascii: bool = False  # nothing but ASCII can be shown
    health: bool = False  # of every gradient, layer by layer

    @property
    def canvas(self) -> int:
        """Columns of a drawing, which would be as wide as its matrix if lines may have any length."""
        return self.width if self.width < ENDLESS else _PICTURED


def colored(choice: str, terminal: bool) -> bool:
    """True if output is colored: as chosen, else by NO_COLOR and FORCE_COLOR, else in a terminal."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (terminal and os.environ.get("TERM") != "dumb")


def paint(text: str, color: str, on: bool = True) -> str:
    """A text in a terminal's color."""
    return f"\x1b[{COLORS[color]}m{text}\x1b[0m" if on and color else text


def page_of(code: str) -> str:
    """The address of a code's page in the documentation."""
    return f"{DOCUMENTATION}reference/codes/{code}/"


def linked(text: str, on: bool) -> str:
    """A text whose first code opens its page, in terminals that know links (OSC 8); it looks the same."""
    return _CODE.sub(lambda code: f"\x1b]8;;{page_of(code[0])}\x1b\\{code[0]}\x1b]8;;\x1b\\", text, 1) if on else text


def without_excerpt(message: str) -> list[str]:
    """The lines of a message without the line of a file and the caret below it, which need a font of fixed width."""
    lines = message.split("\n")
    return lines[:-2] if lines[-1].strip() == "^" else lines


def cut(text: str, width: int) -> str:
    """A name cut in its middle to a width in columns."""
    if columns(text) <= width or width < 3:
        return text
    left = (width - 3 + 1) // 2
    return f"{_first(text, left)}...{_last(text, width - 3 - left)}"


def apart(names: Sequence[str], width: int) -> list[str] | None:
    """Names cut to a width, their common prefix first; None if two would read the same, or next to nothing is left."""
    if max(map(columns, names), default=0) <= width:
        return [*names]
    start = _common(names)
    room = max(0, width - 3 - max(columns(each[start:]) for each in names))
    ends = [f"...{_last(each[:start], room)}{each[start:]}" if start else each for each in names]
    for shorten in (cut, _tail) if width >= LEAST_NAME else ():
        found = [shorten(each, width) for each in ends]
        if len({*found}) == len({*names}):
            return found
    return None


def both(room: int, *names: Sequence[str]) -> list[tuple[str, ...]] | None:
    """Two columns of names, cut so that both fit into `room`; None if rows could not be told apart then."""
    wanted = [max(map(columns, column), default=0) for column in names]
    first = min(wanted[0], max(room // 2, room - wanted[1]))
    fitted = [apart(column, width) for column, width in zip(names, (first, room - first), strict=True)]
    return None if None in fitted else [*zip(*(column or () for column in fitted), strict=True)]


def labels(
    names: Sequence[tuple[str, str]], sizes: Sequence[tuple[str, str]], free: int
) -> list[tuple[str, str]] | None:
    """Names of x and y with their shapes, the names cut so that both columns fit into `free`; None if they cannot."""
    room = free - sum(1 + max(map(len, column)) for column in zip(*sizes, strict=True))
    pairs = both(room, *zip(*names, strict=True))
    if pairs is None:
        return None
    return [(f"{x} {a}", f"{y} {b}") for (x, y), (a, b) in zip(pairs, sizes, strict=True)]


def _common(names: Sequence[str]) -> int:
    """The length of the prefix that different names have in common, up to a separator; 0 if it saves nothing."""
    first, last = min(names), max(names)
    length = 1 + max(map(first[: shared(first, last)].rfind, "/._:-")) if first != last else 0
    return length if length > 3 else 0


def _tail(text: str, width: int) -> str:
    return text if columns(text) <= width else f"...{_last(text, width - 3)}"


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
    """A sentence in lines of a width in columns, each behind its indent; a word that is longer stays whole.

    Such words are names, paths and commands, which people copy.
    """
    lines, line = list[str](), ""
    first += " " * (len(text) - len(text.lstrip(" ")))  # its own indent
    for word in text.strip(" ").split(" "):
        start = others if lines else first
        if line and columns(start + line) + 1 + columns(word) > width:
            lines.append(f"{start}{line}".rstrip())
            line = word
        else:
            line = f"{line} {word}" if line else word
    lines += [f"{others if lines else first}{line}".rstrip()] if line else []
    return [line.replace(SPACE, " ") for line in lines]


def opened(text: str, start: str, color: str, style: Style) -> Iterator[str]:
    """The wrapped lines of a text, the start of the first one in a color."""
    for index, line in enumerate(each for part in text.split("\n") for each in wrapped(part, style.width, "")):
        begin = start[: shared(start, line)] if index == 0 else ""
        yield paint(begin, color, style.color and bool(begin)) + line.removeprefix(begin)


def table(rows: Sequence[Sequence[str]], align: str, least: Sequence[int] = (), width: int = ENDLESS) -> list[str]:
    """The rows of a table: `align` has < or > for each column, `least` a minimal width; two spaces between.

    Columns that do not fit into `width` go on in another line of each row, which is indented.
    """
    minimal = [*least, *[0] * (len(align) - len(least))]
    widths = [max([low, *(columns(row[i]) for row in rows)]) for i, low in enumerate(minimal)]
    cells = [[*map(_padded, row, align, widths)] for row in rows]
    breaks = _breaks(widths, width)
    return ["\n    ".join("  ".join(row[a:b]).rstrip() for a, b in breaks).rstrip() for row in cells]


def _breaks(widths: Sequence[int], width: int) -> list[tuple[int, int]]:
    """The columns of each line, first and last, so that every line fits as far as a single column does."""
    starts, used = [0], -2
    for i, wide in enumerate(widths):
        used += wide + 2
        if used > width and i > starts[-1]:
            starts.append(i)
            used = 4 + wide
    return [*zip(starts, [*starts[1:], len(widths)], strict=True)]


def below(labels: Sequence[Sequence[str]], rows: Sequence[str], width: int) -> list[str]:
    """The rows of a table whose labels are too long for it, each below its labels."""
    told = table(labels, "<" * len(labels[0]))
    if max(map(columns, told)) > width:
        told = ["\n".join(part for text in label if text for part in _chopped(text, width)) for label in labels]
    return ["\n  ".join([label, *row.split("\n")]) for label, row in zip(told, rows, strict=True)]


def _chopped(text: str, width: int) -> Iterator[str]:
    """A text on lines of a width, however long its words are."""
    start, taken, indent = 0, 0, ""
    for at, wide in enumerate(map(_wide, text)):
        if taken + wide > width - len(indent) and at > start:
            yield indent + text[start:at]
            start, taken, indent = at, 0, "    "
        taken += wide
    yield indent + text[start:]


def columns(text: str) -> int:
    """The number of columns that a text takes in a terminal."""
    return len(text) if text.isascii() else sum(map(_wide, text))


def _wide(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):  # marks on the character before
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _first(text: str, width: int) -> str:
    """The start of a text, as far as it fits into a width."""
    return text[: sum(1 for _ in takewhile(lambda taken: taken <= width, accumulate(map(_wide, text))))]


def _last(text: str, width: int) -> str:
    """The end of a text, as far as it fits; no mark stands there without the character that it belongs to."""
    found = _first(text[::-1], width)[::-1]
    return found[next((i for i, c in enumerate(found) if _wide(c)), len(found)) :]


def _padded(cell: str, align: str, width: int) -> str:
    space = " " * (width - columns(cell))
    return cell + space if align == "<" else space + cell


_OF_A_URL = ":/?#[]@!$&'()*+,;=%~"


def path(check: Check) -> str:
    """The path of a model or spec, relative to the project's folder if it lies in there, with slashes; a URL as it is."""
    return _in_project(check.model.uri or check.check)


def place(check: Check) -> tuple[str, int]:
    """The path of the spec that asks for a check, and the line there; without one that of the model, and its first line."""
    if not check.place:
        return path(check), 1
    return _in_project(check.place["file"]), check.place["line"]


def _in_project(uri: str) -> str:
    if is_url(uri):
        return uri
    file = os.path.abspath(uri)
    projects = filter(None, map(os.environ.get, ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")))  # of a job of a CI service
    inside = next((base for base in (*projects, os.getcwd()) if _within(file, base)), "")
    return (os.path.relpath(file, inside) if inside else os.path.normpath(uri)).replace(os.sep, "/")


def uri(found: str) -> str:
    """The path of a model or spec as a URI."""
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
