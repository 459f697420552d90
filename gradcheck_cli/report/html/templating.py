"""The jinja2 environment of pages: templates, and filters that write numbers and names.

Everything is escaped by default.  What is left of characters that would turn a line around or end it goes when a page
is done, whatever way it came in.
"""

from __future__ import annotations

import base64
import datetime
import os
import re
import zlib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gradcheck_cli.errors import VERSION, counted, shown
from gradcheck_cli.report import text
from gradcheck_cli.report.concise import (
    errors_said,
    expectation,
    forward_reason,
    forward_text,
    headline,
    outcome,
    pair_said,
    said_of,
    share_compared,
)
from gradcheck_cli.report.evidence import by_y, entry_table, evidence, open_entries
from gradcheck_cli.report.explanations import PAGES
from gradcheck_cli.report.health import figures, findings, gate_text
from gradcheck_cli.report.html import page_facts
from gradcheck_cli.report.html.page_facts import ORDERS, OUTCOMES, QUIET, PagedModel, by_outcome, outcome_of
from gradcheck_cli.report.plot import HEIGHT, WIDTH
from gradcheck_cli.results.record import Check

_SHOWN = 20  # worst entries of a pair
_NO_LETTERS = "".join(chr(plane << 16 | last) for plane in range(1, 15) for last in (0xFFFE, 0xFFFF))
_TURNING = re.compile(  # controls, marks of direction, what has no width, halves, private letters, and what is none
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\uf8ff\ufdd0-\ufdef\ufeff\ufff9-\ufffb\ufffe\uffff"
    f"\U000e0000-\U0010ffff{_NO_LETTERS}]"
)


def page(template: str, **values: Any) -> str:
    """A page, or a part of one."""
    return harmless(_environment().get_template(template).render(values))


def parts() -> Any:
    """The macros that pages are made of."""
    return _environment().get_template("parts.html").module


def harmless(document: str) -> str:
    """A document with escapes for characters that would not stay in their place."""
    return _TURNING.sub(lambda found: shown(found[0]), document)


def packed(text: str) -> Markup:
    """A part of a page that waits until it is looked at: no elements, and a tenth of its size.

    Letters of base64 cannot end the element that holds them, and browsers unpack deflate by themselves.
    """
    return Markup(base64.b64encode(zlib.compress(harmless(text).encode(), 9)).decode())


def asset(file: str) -> str:
    """A file that pages come with."""
    return files("gradcheck_cli.report.html").joinpath("templates", file).read_text("utf-8")


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("gradcheck_cli.report.html"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    found.filters |= {
        "name": _name, "names": _names, "path": _path, "shape": text.shape, "short": text.short, "rough": text.rough,
        "seconds": text.seconds, "percent": text.percent, "upper_bound": text.upper,
        "outcome": outcome_of, "rank": lambda m: [*OUTCOMES].index(m.outcome.key), "label": _label, "why": _why,
        "headline": _headline, "gate": gate_text, "forward": forward_text, "waiver": expectation,
        "share": share_compared, "errors": errors_said, "remark": _remark,
        "entries": _entries, "tally": _tally,
        "findings": lambda suspect: [_name(sentence, 400) for sentence in evidence(suspect)],
        "figures": lambda check: ", ".join(figures(check)),
        "facts": page_facts.of_check, "model_facts": page_facts.of_model, "file_facts": page_facts.of_file,
        "healths": page_facts.healths, "bars": page_facts.bars,
        "packed": packed, "health_findings": findings, "error_key": lambda m: min(ORDERS["error"].key(m), 1e300),
    }  # fmt: skip
    found.globals |= {"codes": PAGES, "quiet": QUIET, "orders": ORDERS, "version": VERSION, "written": _written(),
                      "page_of": text.page_of, "width": WIDTH, "height": HEIGHT}  # fmt: skip
    return found


def _written() -> str:
    """The time of writing, or SOURCE_DATE_EPOCH, which reproducible builds set."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.datetime.now(datetime.UTC)
    then = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC) if epoch.isdecimal() else now
    return then.strftime("%Y-%m-%d %H:%M UTC")


def _name(label: str, longest: int = 200) -> str:
    """A name on one line, cut in its middle if nobody could want to read it all."""
    return text.cut(text.name(label[: 8 * longest]), longest)


def _path(label: str, longest: int = 120) -> Markup:
    """A path that is broken behind its slashes where it is too long for a line."""
    return Markup("/<wbr>").join(_name(label, longest).split("/"))


def _names(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - 6} more" if len(labels) > 6 else ""
    return ", ".join(_name(label, 60) for label in labels[:6] if label) + more


def _label(check: Check, longest: int = 120) -> str:
    return _name(pair_said(check, " / ") or check.check, longest)


def _headline(check: Check, longest: int = 2000) -> str:
    """The reason for a verdict; lines stay lines."""
    said = headline(check) if check.status != "waived" else ""
    return "\n".join(_name(line, longest) for line in text.without_excerpt(said)[:20])


def _why(check: Check) -> str:
    """A line below a model's name: what is wrong first of all."""
    said = {"gate": gate_text, "forward": forward_reason}.get(outcome_of(check).key, outcome)(check)
    return _name(" ".join(filter(None, (check.code, said))), 140)


def _remark(check: Check) -> str:
    """Words that stand beside a verdict."""
    return _name(said_of(check)[2].strip())


def _entries(check: Check, most: int = _SHOWN) -> tuple[str, Sequence[str], Sequence[Sequence[str]]]:
    """The table of a pair's worst entries: caption, head and rows."""
    told = [entry for entry in check.worst if entry.status != "kink-ok"]
    heads, rows = entry_table(check, told[:most])
    every = open_entries(check, len(told))
    shown = f"The worst {most} of {every:,} entries" if every > most else counted(every, "entry")
    return f"{shown} that did not pass", ("entry of x" + (" → y" if by_y(check) else ""), *heads), rows


def _tally(model: PagedModel) -> str:
    """The number of checks by outcome, 143 checks: 3 fail, 140 pass; without outcomes where all have the same."""
    found = by_outcome(map(outcome_of, model.checks))
    told = ", ".join(f"{number} {outcome.word.lower()}" for outcome, number in found)
    return counted(len(model.checks), "check") + (f": {told}" if len(found) > 1 else "")
