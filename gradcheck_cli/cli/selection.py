"""Choosing checks by name: `-k` as in pytest (substrings with and, or, not), `--check` exactly."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from gradcheck_cli.errors import NothingChecked, UsageError, did_you_mean

Matcher = Callable[[str], bool]
_TOKEN = re.compile(r"\s*(?:(?P<mark>[()])|(?P<word>[^\s()]+))")


def select(names: Sequence[str], exact: Iterable[str], expression: str | None) -> list[int]:
    """Indices of the checks that are wanted; NothingChecked if there is none."""
    wanted = set(exact)
    for name in wanted:
        if name not in names:
            raise UsageError(f"no check is called {name!r}.{did_you_mean(name, names)}{_known(names)}")
    matches = matcher(expression) if expression is not None else lambda name: True
    chosen = [i for i, name in enumerate(names) if (not wanted or name in wanted) and matches(name)]
    if not chosen:
        raise NothingChecked(f"nothing to check: -k {expression!r} matches none of {len(names)} checks")
    return chosen


def matcher(expression: str) -> Matcher:
    """Whether a name matches an expression; a word matches as part of the name, in any case."""
    return _Parser(expression).run()


class _Parser:
    """any: all (or all)*; all: factor (and factor)*; factor: not factor, ( any ), or a word."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [match["mark"] or match["word"] for match in _TOKEN.finditer(text)]

    def run(self) -> Matcher:
        matches = self._any()
        if self.tokens:
            self._fail(f"{self.tokens[0]!r} is not expected there")
        return matches

    def _any(self) -> Matcher:
        parts = [self._all()]
        while self._take("or"):
            parts.append(self._all())
        return lambda name: any(part(name) for part in parts)

    def _all(self) -> Matcher:
        parts = [self._factor()]
        while self._take("and"):
            parts.append(self._factor())
        return lambda name: all(part(name) for part in parts)

    def _factor(self) -> Matcher:
        if self._take("not"):
            inner = self._factor()
            return lambda name: not inner(name)
        if self._take("("):
            inner = self._any()
            if not self._take(")"):
                self._fail("a ')' is missing")
            return inner
        if not self.tokens or self.tokens[0] in ("and", "or", ")"):
            self._fail("a word is missing" + (f" before {self.tokens[0]!r}" if self.tokens else " at the end"))
        word = self.tokens.pop(0).lower()
        return lambda name: word in name.lower()

    def _take(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False

    def _fail(self, reason: str) -> None:
        raise UsageError(f"-k {self.text!r}: {reason}; write words joined by and, or, not and brackets")


def _known(names: Sequence[str], most: int = 8) -> str:
    more = f", ... {len(names) - most} more" if len(names) > most else ""
    return f" Checks: {', '.join(names[:most])}{more}."
