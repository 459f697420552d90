"""Names that were chosen to harm: terminals, shells, markup, files, and whoever compares them by looks."""

from __future__ import annotations

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
