"""Names that were chosen to harm: terminals, shells, markup, files, logs, and whoever compares them by looks."""

from __future__ import annotations

import re

CONTROL = "a\x1b[31mb\x07\r\nc\x00d\x7f"
NAMES = {
    "empty": "",
    "a space": "in put",
    "only spaces": "   ",
    "slashes": "a/b\\c//d",
    "colons": "a:0:b:",
    "an equals sign": "a=b=",
    "a comma and brackets": "a,[1,2](x){y}",
    "quotes": "'a\" `b` $(c)",
    "an at sign": "@file.npy:key",
    "an option": "--y",
    "a dash": "-",
    "a number": "1e-3",
    "a word of YAML": "null",
    "markup": "[bold]x[/] [link=file:///x]y[/link] [/]",
    "percent and braces": "%s %(x)d {0} {x!r:>9}",
    "a path upwards": "../../x",
    "XML": "<a href='&amp;'>]]></a>",
    "Markdown": "| a `b` **c** |",
    "commands of a CI job": "::error file=x::y%0A::set-output name=z::1",
    "control characters": CONTROL,
    "escape sequences": "\x1b]0;title\x07\x1b[2J\x9b31m",
    "line breaks": "a\nb\r\nc\u2028d\x85e\x0bf\x0cg",
    "non-ASCII letters": "größe_名前_имя_\u0645",
    "an emoji": "👩\u200d👩\u200d👧",
    "letters that turn direction": "a\u202etxt.exe\u2066b",
    "letters that combine": "e\u0301\u0301\u0301" * 5,
    "letters without width": "a\u200bb\ufeffc",
    "a private and an unassigned letter": "\ue000\U000e0001\uffff",
    "a very long one": "x" * 10_000,
}
COMMANDS = {  # to the runner of a CI service that reads the log
    "a command": "::error::x",
    "a command of old": "##[error]x",
    "behind a line break": "a\n::warning::y",
    "of old, behind a line break": "a\r\n##[group]y",
    "indented": "  ::add-mask::x",
    "behind a carriage return": "a\r::error::x",
    "behind a line separator": "a\u2028::error::x\x85::error::y",
    "behind an escape sequence": "\x1b[2J\x1b[31m::error::x",
    "a setting of old": "a ##vso[task.setvariable variable=x]y ##[command]z",
}
HALVES = {
    "a half": "a\ud800",
    "another half": "\udfffb",
    "halves turned round": "\udc00\ud800",
    "a byte of a file": "\udc80",
}
_MOVES = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff\ufff9-\ufffb]"
)
_OBEYED = re.compile(r"^\s*(::|##\[)|##\[")


def harm(text: str, *, own: str = "") -> list[str]:
    """The lines of a text that move a cursor or command a runner; commands of its `own` kind are meant."""
    lines = (line for line in text.split("\n") if not (own and re.match(own, line)))
    return [repr(line[:200]) for line in lines if _MOVES.search(line) or _OBEYED.search(line)]
