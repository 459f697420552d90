"""A report as one HTML page, complete in itself: a table of all checks, then the details of those that did not pass."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from gradcheck_cli.record import Check, Report
from gradcheck_cli.report import full
from gradcheck_cli.report.text import Style, name, seconds, shape, short

_HEAD = ("check", "x", "y", "entries", "max abs err", "max rel err", "verdict")
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #222; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3em .8em .3em 0; border-bottom: 1px solid #ddd; vertical-align: top; }
td:nth-child(n+4) { white-space: nowrap; font-variant-numeric: tabular-nums; }
pre { background: #f6f6f6; padding: 1em; overflow-x: auto; }
.green { color: #1a7f37; } .red { color: #cf222e; } .yellow { color: #9a6700; }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #ddd; } pre { background: #222; } }
"""


def document(report: Report, style: Style) -> str:
    """The page of a whole run."""
    title = escape(f"gradcheck: {full.totals(report)}")
    rows = "\n".join(f"<tr>{_cells(check)}</tr>" for check in report.checks)
    head = "".join(f"<th>{word}</th>" for word in _HEAD)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n"
        f"{''.join(_details(report, style))}<p>in {seconds(report.duration_s)}</p>\n</body>\n</html>\n"
    )


def _cells(check: Check) -> str:
    word, color = full.VERDICTS[check.status]
    x, y = (f"{name(n)} {shape(s)}" if n else "" for n, s in ((check.x, check.x_shape), (check.y, check.y_shape)))
    entries = full.share_compared(check) if check.entries else ""
    errors = (short(check.max_abs_err), short(check.max_rel_err)) if check.entries else ("", "")
    plain = "".join(f"<td>{escape(text)}</td>" for text in (name(check.check), x, y, entries, *errors))
    return f'{plain}<td class="{color}">{escape(" ".join([f"{word} {check.code}".strip(), *check.gates]))}</td>'


def _details(report: Report, style: Style) -> Iterator[str]:
    for check in report.checks:
        if check.status not in ("pass", "waived") or check.gates:
            yield f"<pre>{escape(full.section((check,), style).strip())}</pre>\n"
