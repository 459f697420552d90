"""Every error that gradcheck raises, one tree.

    GradcheckError
    ├── UsageError (ValueError)      exit 2   an argument, a name, a shape, a value
    │   └── SpecError                exit 2   a YAML or TOML file, with line and column
    ├── ModelError                   exit 4   a file that is no readable model
    ├── UnsupportedError             exit 5   an operator or dtype that gradcheck does not know
    │   └── NoGradientError (LookupError)     an operator without a gradient on the way from y to x
    ├── MisshapenError               exit 1   a rule that gives an operand a gradient of another shape
    ├── PointError                   exit 3   the model has no finite value at this point
    ├── LimitError                   exit 6   time or memory
    └── NothingChecked               exit 7   an empty glob, everything deselected

A mismatch of gradients is a result, never an exception.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

VERSION = "0.1.0"  # of gradcheck; pyproject.toml reads it here
DOCUMENTATION = "https://gradcheck-cli.readthedocs.io/en/latest/"  # the address of docs/, here and nowhere else
# controls, marks of direction, halves of characters; what else is odd about a name was cleaned with it
_ODD = "\0-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb"
_LINK = rf"\]8;;(?:{re.escape(DOCUMENTATION)}[\w/]*)?\x1b\\"  # to the documentation, or the end of it
_MOVING, _MOVING_OR_COLOR = re.compile(f"\x1b(?!\\[\\d+m|{_LINK}|\\\\)|[{_ODD}]"), re.compile(f"[\x1b{_ODD}]")
_IES, _ES = re.compile(r"[^aeiou]y$"), ("s", "x", "ch", "sh")  # entries, branches
_WIDTH = 100  # characters of a line that is shown with a caret
_COMMAND = re.compile(r"^(\s*):(?=:)|##(?=\[)", re.MULTILINE)


class GradcheckError(Exception):
    """A model or a request that cannot be checked; knows the exit code and the GC code of its kind."""

    exit_code = 70
    code = "GC901"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        if code is not None:
            self.code = code


class UsageError(GradcheckError, ValueError):
    """An argument that contradicts the model or itself."""

    exit_code = 2
    code = "GC201"


class Diagnostic(NamedTuple):
    """One problem in a file: message, path, place, and the line of text.

    Lines and columns are counted from 1; line 0 is the file as a whole.
    """

    message: str
    path: str
    line: int = 0
    column: int = 0
    text: str = ""

    def __str__(self) -> str:
        if not self.line:
            return f"{self.path}: {self.message}"
        return f"{self.path}:{self.line}:{self.column}: {self.message}{_snippet(self.text, self.column)}"


class SpecError(UsageError):
    """A spec or configuration file that is wrong, at a line and column (both counted from 1).

    It lists all problems at once: `problems` in the order of the file.  `path`, `line` and `column` are those of the
    first; they are "" and 0 for an error that belongs to no line.
    """

    code = "GC202"
    most_shown = 20

    def __init__(self, message: str = "", *, problems: Sequence[Diagnostic] = (), code: str | None = None) -> None:
        self.problems = tuple(sorted(problems, key=lambda each: (each.path, each.line, each.column)))
        super().__init__(message or self._listing(), code=code)

    @property
    def path(self) -> str:
        return self.problems[0].path if self.problems else ""

    @property
    def line(self) -> int:
        return self.problems[0].line if self.problems else 0

    @property
    def column(self) -> int:
        return self.problems[0].column if self.problems else 0

    def _listing(self) -> str:
        shown = [str(problem) for problem in self.problems[: self.most_shown]]
        more = len(self.problems) - len(shown)
        return "\n".join(shown + [f"... and {more} more"] * (more > 0))


class ModelError(GradcheckError):
    """A file that cannot be read as a model, or an operator `op` that does not fit its operands, which have `shapes`."""

    exit_code = 4
    code = "GC401"

    def __init__(
        self, message: str, *, code: str | None = None, op: str = "", shapes: Iterable[tuple[int, ...]] = ()
    ) -> None:
        super().__init__(message, code=code)
        self.op, self.shapes = op, tuple(shapes)


class UnsupportedError(GradcheckError):
    """A valid model that uses an operator, attribute or dtype that gradcheck does not know.

    `operators` are the unknown operators, with their domains.
    """

    exit_code = 5
    code = "GC502"

    def __init__(self, message: str, *, code: str | None = None, operators: Iterable[str] = ()) -> None:
        super().__init__(message, code=code)
        self.operators = tuple(dict.fromkeys(operators))


class NoGradientError(UnsupportedError, LookupError):
    """Operators between x and y without a gradient rule: `missing`, as (node index, operator, domain, name)."""

    code = "GC501"

    def __init__(self, message: str, missing: Iterable[tuple[int, str, str, str]] = ()) -> None:
        self.missing = tuple(missing)
        super().__init__(message, operators=(f"{domain}.{op}" if domain else op for _, op, domain, _ in self.missing))


class MisshapenError(GradcheckError):
    """A rule that gives an operand a gradient of another shape; in a check it is a result."""

    exit_code = 1
    code = "GC102"


class PointError(GradcheckError):
    """The model cannot be evaluated at the chosen point."""

    exit_code = 3
    code = "GC302"


class LimitError(GradcheckError):
    """A time or memory limit was reached."""

    exit_code = 6
    code = "GC601"


class NothingChecked(GradcheckError):
    """There was nothing to check."""

    exit_code = 7
    code = "GC701"


def shown(name: str) -> str:
    """A name of a model for messages: on one line, with escapes for characters that would move a terminal's cursor."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else _escaped(c) for c in name)


def quoted(word: str) -> str:
    """A word quoted for a shell; bash, zsh and ksh read escapes between $' and '."""
    import shlex  # seldom needed

    if word.isprintable():
        return shlex.quote(word)
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{shown(escaped)}'"


def harmless(text: str, colon: str = ": ", hashes: str = "## ", *, color: bool = False) -> str:
    """A text in which no name moves a cursor, or is a command to the runner of a CI service, which reads all logs.

    Of a command at the start of a line, ::error::, the first colon is replaced, and the marks of ##[error] wherever
    they stand.
    """
    return _COMMAND.sub(lambda found: hashes if found[1] is None else found[1] + colon, still(text, color=color))


def clean(text: str) -> str:
    """A text with escapes for control characters, which could move a terminal's cursor; line breaks stay."""
    return harmless("\n".join(map(shown, text.split("\n"))))


def still(text: str, *, color: bool = False) -> str:
    """A text with escapes for all characters that do not stay in their place, other than line breaks, and colors."""
    if text.isascii() and text.replace("\n", "").isprintable():  # most are: ten times as fast as to look for the others
        return text
    return (_MOVING if color else _MOVING_OR_COLOR).sub(lambda found: shown(found[0]), text)


def counted(number: float, one: str, many: str = "") -> str:
    """A number and what it counts: 1 entry, 2 entries."""
    return f"{number} {plural(number, one, many)}"


def plural(number: float, one: str, many: str = "") -> str:
    """The word for a number of things: entry for one, entries for any other number."""
    if number == 1:
        return one
    return many or (one[:-1] + "ies" if _IES.search(one) else one + ("es" if one.endswith(_ES) else "s"))


def listed(words: Iterable[object], most: int = 5) -> str:
    """Words one after another, the first of many and the number of the others: a, b and 3 more."""
    every = [*map(str, words)]
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def named(names: Iterable[str], most: int = 4) -> str:
    """Names of tensors, as `listed`."""
    return listed(map(shown, names), most)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The sentence " Did you mean 'x'?" for the known name nearest to `name`, or nothing."""
    import difflib  # seldom needed

    every = list(known)
    same = [each for each in every if each.lower() == name.lower()]
    near = same or difflib.get_close_matches(name, every, n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def spelled(error: BaseException) -> str:
    """The kind of an exception and its words: KeyError: 'saved'."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def respelled(name: str, known: str) -> bool:
    """True if `name` is `known` in another case, or with two letters swapped, or a small letter in its middle too many,
    too few or wrong.

    Its ends and its capitals count as meant: QMoE is no MoE, Tanh no Tan, and FastRelu no FastGelu.
    """
    if name.lower() == known.lower():
        return True
    same = shared(name, known)
    behind = min(shared(name[::-1], known[::-1]), min(len(name), len(known)) - same)
    odd, right = name[same : len(name) - behind], known[same : len(known) - behind]
    if not same or not (odd + right).islower():
        return False
    return (behind and max(len(odd), len(right)) == 1 < len(known) - 3) or (len(odd) == 2 and odd == right[::-1])


def shared(a: str, b: str) -> int:
    """The length of the prefix that two texts have in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _escaped(character: str) -> str:
    """An escape that Python and shells read: \\n, \\x1b, \\u202e."""
    if "\x80" <= character <= "\xff":  # \x9b would be a byte to a shell
        return f"\\u{ord(character):04x}"
    return character.encode("unicode_escape").decode()


def _snippet(text: str, column: int) -> str:
    """The line of a file with a caret under a column, cut to what a terminal shows; "" for an empty one."""
    start = max(0, column - 1 - _WIDTH // 2) if len(text) > _WIDTH else 0
    cut = text[start : start + _WIDTH].rstrip()
    shown = "".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in cut)
    if not shown:
        return ""
    pad = "".join("\t" if c == "\t" else " " for c in text[start : column - 1])
    return f"\n  {shown}\n  {pad}^"


@contextmanager
def unwarned() -> Iterator[None]:
    """Forks without the warnings of Python and of JAX, where it is imported: threads here wait, and none holds a lock."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        yield


def sendable(error: BaseException) -> BaseException:
    """The error; one that cannot be sent to another process becomes the first of its kinds that can, with its text."""
    if _is_sent(error):
        return error
    if not isinstance(error, GradcheckError):
        return GradcheckError(f"{type(error).__name__}: {error}")
    for kind in type(error).__mro__:
        with suppress(Exception):  # a kind that asks for more than a text
            if _is_sent(plain := kind(str(error), code=error.code)):
                return plain
    return GradcheckError(str(error))


def _is_sent(error: BaseException) -> bool:
    import pickle  # only where something fails in another process

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever it holds
        return False
    return True
