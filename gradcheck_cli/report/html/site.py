"""The report as a folder of pages, or as one page, in bounded sizes however many models there are.

`InFolder` and `OnPage` give the addresses of things in either.  Pictures are PNG images, not drawings in the page, since
the strictest policies let a picture have no style of its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import accumulate, count
from math import ceil
from typing import Any, ClassVar, TypeAlias
from urllib.parse import quote

from markupsafe import Markup

from gradcheck_cli.checks.assemble import model_of
from gradcheck_cli.errors import plural
from gradcheck_cli.model import Model
from gradcheck_cli.report.concise import totals
from gradcheck_cli.report.explanations import PAGES
from gradcheck_cli.report.html import page_facts
from gradcheck_cli.report.html.page_facts import (
    ORDERS,
    QUIET,
    Outcome,
    PagedModel,
    by_operator,
    by_outcome,
    models_of,
    ordered,
    outcome_of,
)
from gradcheck_cli.report.html.templating import asset, page, parts
from gradcheck_cli.report.plot import Drawing, drawings
from gradcheck_cli.report.text import name
from gradcheck_cli.results.record import BLANK, Check, Kept, Report
from gradcheck_cli.results.typed import Displayed

Menu: TypeAlias = list[tuple[str, str, bool]]  # label, address, and whether one is there
_LINKED = ("Summary", "Models", "Operators")


class InFolder:
    """Addresses in a folder with pages of models, and of each order of them; `up` leads to the folder.

    Models without a page (not among `told`) stand in the tables only.  `level` is that of the heading of a model.
    """

    single: ClassVar[bool] = False
    level: ClassVar[int] = 1
    most: ClassVar[int | None] = None  # of the pairs of a model that are there at once

    def __init__(self, told: Container[str], up: str = "") -> None:
        self.told, self.up = told, up

    @property
    def summary(self) -> str:
        return f"{self.up}index.html"

    def menu(self, here: str) -> Menu:
        places = (self.summary, self.models("outcome"), f"{self.up}operators.html")
        return [(label, place, label == here) for label, place in zip(_LINKED, places, strict=True)]

    def models(self, order: str, page: int = 1) -> str:
        by = "" if order == "outcome" else f"-by-{order}"
        return f"{self.up}models{by}{f'-{page}' if page > 1 else ''}.html"

    def model(self, model: PagedModel, page: int = 1) -> str:
        if model.slug not in self.told:
            return self.models("outcome")
        return f"{self.up}model/{model.slug}{f'-{page}' if page > 1 else ''}.html"

    def check(self, model: PagedModel, index: int) -> str:
        place = f"#{self.anchor(model, index)}" if model.slug in self.told else ""
        return f"{self.model(model, ceil(index / _PAIRS))}{place}"

    def anchor(self, model: PagedModel, index: int) -> str:
        return f"pair-{index}"


class OnPage:
    """Addresses on a single page; models without a section of their own (not among `told`) stand in the table only."""

    single: ClassVar[bool] = True
    level: ClassVar[int] = 2
    most: ClassVar[int | None] = 40
    summary = "#summary"

    def __init__(self, told: Container[str]) -> None:
        self.told = told

    def menu(self, here: str) -> Menu:
        return [(label, f"#{label.lower()}", False) for label in _LINKED]

    def models(self, order: str, page: int = 1) -> str:
        return "#models"

    def model(self, model: PagedModel, page: int = 1) -> str:
        return f"#{model.slug}" if model.slug in self.told else "#models"

    def check(self, model: PagedModel, index: int) -> str:
        return f"#{self.anchor(model, index)}" if model.slug in self.told else "#models"

    def anchor(self, model: PagedModel, index: int) -> str:
        return f"{model.slug}-{index}"


_CELLS, _TOLD, _ROWS, _OPERATORS = 400, 40, 500, 200  # of the mosaic, what needs attention, a table's page, operators
_IN_TABLES, _PAGED = 12_000, 2_000  # most models in tables, and most with a page of a folder: the worst ones
_PAIRS = 100  # of a model that a page of a folder tells of
_SECTIONS, _CHECKS = 200, 1000  # most models and checks that a single page tells of in full
_ROWS_AT_ONCE, _PAIRS_AT_ONCE = 100, 20  # of them, rows and pairs that are elements of it before anybody asks for more
_DRAWN, _DRAWN_EACH = 30, 3  # checks with pictures: of the whole report, of one model


class Reduced:
    """Records as the tables of all models need them: those of 100,000 checks have to fit into memory at once.

    What did not pass stays whole.  Of the others only what tables show is kept, and equal parts are kept once.
    """

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}

    def of(self, check: Check) -> Check:
        if outcome_of(check).key not in QUIET or check.picture is not None:
            return check
        every = dict[str, Any](check.gradient)
        gradient = {name: every[name] for name in _OF_GRADIENT if name in every}
        forward = {"compared_with": check.forward["compared_with"]} if check.forward else {}
        model = self._once(replace(check.model, uri="", sha256=""))
        model = replace(model, uri=check.check if check.check == check.model.uri else check.model.uri)
        parts = {name: self._once(getattr(check, name)) for name in _EQUAL}
        return replace(check, model=model, gradient=self._once(gradient), forward=self._once(forward), reproduce="",
                       **_NOTHING, **parts)  # fmt: skip

    def _once(self, value: Any) -> Any:
        return self.known.setdefault(repr(value), value)


_OF_GRADIENT = ("zero_fraction", "finite", "severed")
_EQUAL = ("x", "y", "x_shape", "y_shape", "mode", "method", "dims", "entries", "nodes", "claim", "versions", "place",
          "structure", "copy_of")  # fmt: skip
_LEFT_OUT = ("ranges", "evaluations", "coloring", "needed", "power", "branches", "worst")
_NOTHING: dict[str, Any] = {name: getattr(BLANK, name) for name in _LEFT_OUT}


class ReportData:
    """The data that all pages of a report share."""

    def __init__(self, report: Report) -> None:
        self.kept, few = report.checks, Reduced()
        self.report = report = replace(report, checks=tuple(map(few.of, report.checks)))  # pages need them in any order
        self.places = {id(check): place for place, check in enumerate(report.checks)}
        self.models = models_of(report.checks)
        self.listed = self.models[:_IN_TABLES]
        self.pictured = frozenset(_pictured(self.models))

    def run(self) -> dict[str, Any]:
        """The data of the summary."""
        attention = [m for m in self.models if m.outcome.key not in QUIET]
        outcomes = by_outcome(map(outcome_of, self.report.checks))
        code, unfinished = self.report.exit_code, self.report.unfinished
        return {
            "good": not (attention or unfinished),
            "title": f"Not complete: {name(unfinished)}" if unfinished else _title(self.models, attention),
            "subtitle": f"{totals(self.report)}. Exit code {code}.",
            "outcomes": outcomes,
            "shares": _shares(outcomes),
            "mosaic": self.models[:_CELLS],
            "hidden": len(self.models) > _CELLS,
            "total": len(self.models),
            "attention": attention[:_TOLD],
            "unshown": max(len(attention) - _TOLD, 0),
            "causes": _causes(attention),
            "facts": [*page_facts.of_run(self.report, self.models)],
            "notes": [name(note) for note in self.report.notes],
        }

    def whole(self, model: PagedModel) -> PagedModel:
        """A model with complete records, which are read again."""
        places = [self.places[id(check)] for check in model.checks]
        found = self.kept.some(places) if isinstance(self.kept, Kept) else [self.kept[place] for place in places]
        return replace(model, checks=tuple(found))

    def drawings(self, model: PagedModel, index: int) -> Iterator[Drawing]:
        """The pictures of a check, if it is one of those that get pictures."""
        return drawings(model.checks[index - 1]) if (model.slug, index) in self.pictured else iter(())

    def operators(self) -> dict[str, Any]:
        """The tables of operators: those that are why something did not pass, and the others."""
        rows = by_operator(self.models)
        involved, others = [r for r in rows if r.involved], [r for r in rows if not r.involved]
        shown = {"operators": involved[:_OPERATORS], "others": others[:_OPERATORS]}
        return {**shown, "more": len(rows) - sum(map(len, shown.values()))}

    def rows(self, links: InFolder | OnPage) -> dict[str, str]:
        """The rows of the table of models, by slug: in every order the same."""
        row = parts().model_row
        return {model.slug: row(model, links) for model in self.listed}


def folder(report: Report) -> Iterator[tuple[str, bytes]]:
    """The files of a folder, by their names in it: no script, no style but in a file of its own."""
    site = ReportData(report)
    look = {"policy": "script-src 'none'; object-src 'none'; base-uri 'none'; form-action 'none'"}
    yield "style.css", asset("style.css").encode()
    yield "icon.svg", asset("icon.svg").encode()
    told = {model.slug: model for model in site.models[:_PAGED]}
    top, below = InFolder(told), InFolder(told, "../")
    rows = site.rows(top)
    for order in ORDERS:
        for name_, text in _tables(site, rows, order, top, look):
            yield name_, text.encode()
    for model in map(site.whole, told.values()):
        yield from _pages_of(model, site, below, look)
    operators = {"links": top, "section": "Operators", "title": "Operators", **site.operators(), **look}
    yield "operators.html", page("operators.html", **operators).encode()
    summary = {"links": top, "section": "Summary", "run": site.run(), **look}
    yield "index.html", page("summary.html", title=f"gradcheck: {totals(report)}", **summary).encode()


def _pages_of(
    model: PagedModel, site: ReportData, links: InFolder, look: Mapping[str, str]
) -> Iterator[tuple[str, bytes]]:
    """The pictures of a model, and as many pages as its pairs take."""
    pages = max(1, ceil(len(model.checks) / _PAIRS))
    for number in range(1, pages + 1):
        first, pairs = (number - 1) * _PAIRS, list[tuple[Check, int, list[tuple[str, str]]]]()
        for index, check in enumerate(model.checks[first : first + _PAIRS], first + 1):
            drawn = {f"model/{model.slug}-{index}-{each.kind}.png": each for each in site.drawings(model, index)}
            yield from ((file, each.png) for file, each in drawn.items())
            pairs.append((check, index, [(links.up + file, each.says) for file, each in drawn.items()]))
        yield links.model(model, number).removeprefix(links.up), page(
            "model.html", title=f"{name(model.name[:200])}: {model.outcome.word}", links=links, section="Models",
            model=model, pairs=pairs, pages=pages, page=number, **look,
        ).encode()  # fmt: skip


def single(report: Report) -> str:
    """The whole report on one page that needs no other file; of a report that is not large nothing needs its script."""
    site = ReportData(report)
    told = _told(site.models)
    links = OnPage({model.slug for model in told})
    style, script = asset("style.css"), asset("single.js")
    sections = [
        Markup(page("model.part.html", links=links, model=model, pages=1, page=1, pairs=[
            (check, index, [(_data(each.png), each.says) for each in site.drawings(model, index)])
            for index, check in enumerate(model.checks, 1)
        ]))
        for model in map(site.whole, told)
    ]  # fmt: skip
    rows = [*site.rows(links).values()]
    return page(
        "single.html", title=f"gradcheck: {totals(report)}", links=links, section="", run=site.run(),
        rows=rows[:_ROWS_AT_ONCE], later="<>".join(rows[_ROWS_AT_ONCE:]), number=len(rows) - _ROWS_AT_ONCE,
        order="outcome", pages=1, page=1, note=_note(site),
        sections=sections, told=len(told), open=_open(told), untold=len(site.models) - len(told), **site.operators(),
        look=Markup(style), script=Markup(script), icon="data:image/svg+xml," + quote(asset("icon.svg")),
        policy=f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'",
    )  # fmt: skip


_LISTED, _SHOWN_IN_FULL, _TENSORS = 40, 3, 30  # in a notebook: pairs, those that are shown in full, tensors of a kind


def fragment(thing: Displayed) -> str:
    """A check, a report or a model as a part of a notebook's page."""
    look = Markup(asset("notebook.css"))
    match thing:
        case Report():
            checks = sorted(thing.checks, key=lambda check: check.passes)  # what is wrong first, else in their order
            return _listed(checks, f"{totals(thing)}. Exit code {thing.exit_code}.", look)
        case Check():
            return _listed([thing], "", look)
    assert isinstance(thing, Model)
    numbers = sum(value.size for value in thing.graph.constants.values())
    info = model_of(thing.source)
    return page("notebook_model.html", model=thing, info=info, numbers=numbers, most=_TENSORS, look=look)


def _listed(checks: Sequence[Check], heading: str, look: str) -> str:
    """Pairs (x, y) in a table, and the first of those that are wrong in full."""
    told = [check for check in checks if not check.passes][:_SHOWN_IN_FULL]
    able = find_spec("matplotlib") is not None
    shown = [(check, [(_data(each.png), each.says) for each in (drawings(check) if able else ())]) for check in told]
    return page(
        "notebook.html", heading=heading, checks=checks[:_LISTED], more=len(checks) - _LISTED, shown=shown, look=look,
        named=len({check.check for check in checks}) > 1,
    )  # fmt: skip


def _tables(
    site: ReportData, rows: Mapping[str, str], order: str, links: InFolder, look: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """The table of models in one order, as many pages as it takes."""
    models = ordered(site.listed, order)
    pages = max(1, ceil(len(models) / _ROWS))
    for number in range(1, pages + 1):
        some = [rows[model.slug] for model in models[(number - 1) * _ROWS : number * _ROWS]]
        yield links.models(order, number), page(
            "models.html", title="Models", links=links, section="Models", rows=some, order=order, page=number,
            pages=pages, note=_note(site, _PAGED), later="", number=0, **look,
        )  # fmt: skip


def _note(site: ReportData, paged: int | None = None) -> str:
    """A line above the table of models; of large runs with the number that it lists, and that have a page."""
    number, listed = len(site.models), len(site.listed)
    few = f"; the worst {listed:,} are listed, and the JSON of results has all" if listed < number else ""
    pages = f"; the worst {paged:,} have a page" if paged is not None and paged < number else ""
    return f"{number:,} in all{few}{pages}; a cell is a pair (x, y), and the heads of columns sort."


def _title(models: Sequence[PagedModel], attention: Sequence[PagedModel]) -> str:
    if not models:
        return "Nothing was checked"
    every = f"{len(models):,} {plural(len(models), 'model')}"
    if not attention:
        right = all(m.outcome.key == "pass" for m in models)
        return f"All gradients of {every} are right" if right else f"{every}: right or known to fail"
    return f"{len(attention):,} of {every} {plural(len(attention), 'needs', 'need')} attention"


def _shares(outcomes: Sequence[tuple[Outcome, int]]) -> list[tuple[Outcome, float, float]]:
    """The start and the width of each outcome, in thousandths; no failure is too small to be seen."""
    widths = [(outcome, max(number, sum(n for _, n in outcomes) / 250)) for outcome, number in outcomes]
    unit, start, found = 1000 / max(sum(width for _, width in widths), 1), 0.0, list[tuple[Outcome, float, float]]()
    for outcome, width in widths:
        found.append((outcome, round(start, 2), round(width * unit, 2)))
        start += width * unit
    return found


def _causes(models: Iterable[PagedModel]) -> list[tuple[str, str, int, int]]:
    """The most frequent codes, each with its title and the numbers of checks and of models that have it."""
    codes = [{c.code for c in m.checks if c.code} for m in models]
    checks = Counter(c.code for m in models for c in m.checks if c.code)
    holding = Counter(code for each in codes for code in each)
    return [(code, PAGES[code].title if code in PAGES else "", n, holding[code]) for code, n in checks.most_common(30)]


def _pictured(models: Iterable[PagedModel]) -> Iterator[tuple[str, int]]:
    """The checks that get pictures: some of each model, the worst models first."""
    left = count(_DRAWN, -1)
    for model in models:
        having = [index for index, check in enumerate(model.checks, 1) if check.picture is not None]
        for index in having[:_DRAWN_EACH]:
            if not next(left):
                return
            yield model.slug, index


def _told(models: Sequence[PagedModel]) -> list[PagedModel]:
    """The models that a single page tells of in full."""
    found, checks = list[PagedModel](), 0
    for model in models[:_SECTIONS]:
        checks += len(model.checks)
        if found and checks > _CHECKS:
            break
        found.append(model)
    return found


def _open(told: Sequence[PagedModel]) -> int:
    """The number of models, at least one, whose sections are there at once."""
    pairs = accumulate(min(len(model.checks), OnPage.most or 0) for model in told)
    return max(1, sum(total <= _PAIRS_AT_ONCE for total in pairs))


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _digest(text: str) -> str:
    """The hash by which a policy lets this text through, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
