"""Pages show all that records say, in valid HTML, with nothing from outside, whatever names there are."""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradcheck_cli.errors import DOCUMENTATION
from gradcheck_cli.report.html.page_facts import ORDERS, OUTCOMES, by_operator, models_of
from gradcheck_cli.report.html.site import ReportData, folder, single
from gradcheck_cli.results import check_from_json
from gradcheck_cli.results.record import Check, ModelInfo, Report
from tests.hostile.names import NAMES
from tests.report_html.conftest import HTML, Page, failed, named, said
from tests.reports.records import records

UNWANTED = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")


def test_the_fixture_has_a_check_of_every_outcome(report: Report):
    assert {model.outcome.key for model in models_of(report.checks)} == set(OUTCOMES)


def own_targets(element: Any) -> list[str]:
    """Addresses that an element loads or links, but for pages of the documentation, which a reader may open."""
    found = list(filter(None, (element.get("href"), element.get("src"))))
    return [target for target in found if element.tag != f"{HTML}a" or not target.startswith(DOCUMENTATION)]


def test_every_link_leads_to_a_file_and_to_a_place_in_it(files: Mapping[str, bytes], pages: dict[str, Page]):
    links = 0
    for path, page in pages.items():
        for element in page.tree.iter():
            for target in own_targets(element):
                file, place = urldefrag(unquote(target))
                file = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
                assert file in files, (path, target)
                assert not place or [e for e in pages[file].tree.iter() if e.get("id") == place], (path, target)
                links += 1
    assert links > 100


def test_every_place_has_one_name(pages: dict[str, Page], page: Page):
    for each in (*pages.values(), page):
        ids = [e.get("id") for e in each.tree.iter() if e.get("id")]
        assert len(ids) == len(set(ids))


def test_pages_of_a_folder_have_no_script_and_no_style_of_their_own(pages: dict[str, Page]):
    for page in pages.values():
        tags = {str(e.tag).rpartition("}")[2] for e in page.tree.iter()}
        assert tags.isdisjoint({"script", "style", "iframe", "object", "base", "form"})
        assert not [a for e in page.tree.iter() for a in e.attrib if a == "style" or a.startswith("on")]


def test_the_single_page_needs_no_other_file(page: Page):
    targets = [target for element in page.tree.iter() for target in own_targets(element)]
    places = {e.get("id") for e in page.tree.iter()}
    assert all(t.startswith("data:") or (t[0] == "#" and t[1:] in places) for t in targets)
    assert any(t.startswith("data:image/png;base64,") for t in targets)


def test_the_single_page_runs_no_script_but_its_own(page: Page):
    [policy] = [e.get("content") for e in page.all("meta") if e.get("http-equiv") == "Content-Security-Policy"]
    for tag in ("script", "style"):
        [element] = [each for each in page.all(tag) if not each.get("type")]
        digest = base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_the_summary_counts_every_outcome_and_names_all_that_is_not_right(report: Report, pages: dict[str, Page]):
    summary = pages["index.html"]
    [hero] = summary.all("h1")
    assert said(hero) == "9 of 13 models need attention"
    assert "Exit code 2" not in summary.said
    assert f"Exit code {report.exit_code}." in summary.said
    counts = [said(e) for e in summary.all("li", class_="tile")]
    expected = [f"{2 if key in ('fail', 'pass') else 1} {each.word} " for key, each in OUTCOMES.items()]
    assert [told[: len(start)] for told, start in zip(counts, expected, strict=True)] == expected
    [attention] = summary.all("ol", class_="attention")
    assert [said(a) for a in attention.iter("{http://www.w3.org/1999/xhtml}a")] == [
        "projected.onnx", "wrong.onnx", "cut.onnx", "pointer.onnx", "misread.onnx", "vanishing.onnx", "endless.onnx",
        "blocked.onnx", "tie.onnx",
    ]  # fmt: skip


def test_every_cell_is_told_by_a_letter_and_a_word_not_by_its_color_alone(pages: dict[str, Page]):
    cells = [cell for name in ("index.html", "models.html") for cell in pages[name].all("a", class_="cell")]
    for cell in cells:
        [outcome] = set(cell.get("class").split()) - {"cell"}
        assert said(cell).endswith(OUTCOMES[outcome].word)
    assert len(cells) == 26


def test_a_page_of_a_model_tells_what_its_record_says(report: Report, pages: dict[str, Page]):
    [record] = [c for c in report.checks if c.check == "wrong.onnx"]
    [model] = models_of([record])
    page = pages[f"model/{model.slug}.html"]
    assert [e.text for e in page.all("code") if "gradcheck" in e.text] == [record.reproduce]
    assert record.suspect is not None
    assert record.suspect.diagnosis in page.said
    for text in ("FAIL GC101", "4 of 16 entries differ (25%)", "suspect", "Tanh", "full, complex-step", "rtol 5e-07"):
        assert text.lower() in page.said.lower(), text
    [table] = page.all("table", class_="entries")
    assert len(list(table.iter("{http://www.w3.org/1999/xhtml}tr"))) == 1 + len(record.worst)


def test_what_belongs_to_other_outcomes_is_told_as_well(pages: dict[str, Page]):
    everything = "\n".join(page.said for page in pages.values())
    for text in (
        "ACME-412",
        "2027-03-31",
        "--fail-on vanishing",
        "FORWARD DIFFERS GC404",
        "left slope",
        "no gradient for 'Tanh'",
        "last seen in",
    ):
        assert text in everything, text


def test_only_what_kept_a_picture_is_drawn(report: Report, files: Mapping[str, bytes]):
    having = {m.slug for m in models_of(report.checks) if any(c.picture for c in m.checks)}
    drawn = {path: data for path, data in files.items() if path.endswith(".png")}
    assert {path.removeprefix("model/").rsplit("-", 2)[0] for path in drawn} == having
    assert len(having) == 2
    assert all(data.startswith(b"\x89PNG\r\n\x1a\n") for data in drawn.values())


@pytest.mark.parametrize("order", ORDERS)
def test_each_order_has_a_page_that_is_sorted_and_has_all(order: str, report: Report, pages: dict[str, Page]):
    name = "models.html" if order == "outcome" else f"models-by-{order}.html"
    column = [*ORDERS].index(order)
    [table] = pages[name].all("table")
    rows = [[*tr] for tr in table.iter("{http://www.w3.org/1999/xhtml}tr")][1:]
    keys = [row[column].get("data-key") for row in rows]
    numbers = keys if order == "name" else [float(k) for k in keys]
    assert numbers == sorted(numbers, reverse=ORDERS[order].descending)
    assert len(rows) == 13
    marked = [said(th) for th in pages[name].all("th") if th.get("aria-sort")]
    assert len(marked) == 1


def test_operators_are_told_by_what_they_have_to_do_with_failures(pages: dict[str, Page]):
    involved, others = (
        [[said(cell) for cell in tr] for tr in table.iter("{http://www.w3.org/1999/xhtml}tr")][1:]
        for table in pages["operators.html"].all("table")
    )
    [tanh] = involved
    assert tanh[:4] == ["Tanh", "3", "1", "2 of 10"]
    assert others == [["Mul", "2 of 10"], ["Sin", "2 of 10"], ["ReduceSum", "0 of 1"], ["Relu", "0 of 1"]]


def test_a_suspect_counts_for_the_operator_of_its_own_domain(report: Report):
    [wrong] = [c for c in report.checks if c.check == "wrong.onnx"]
    ours = ModelInfo("wrong.onnx", operators={"acme.Tanh": 2, "Sin": 1})
    rows = by_operator(models_of([replace(wrong, model=ours), replace(report.checks[0], check="b", model=ours)]))
    assert [(r.operator, len(r.suspected), r.failing, r.models) for r in rows] == [
        ("acme.Tanh", 1, 1, 2),
        ("Sin", 0, 1, 2),
    ]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("label", NAMES.values(), ids=NAMES)
def test_a_name_is_text_wherever_it_stands(label: str, report: Report):
    [wrong] = [c for c in report.checks if c.check == "wrong.onnx"]
    assert wrong.suspect is not None
    bad = replace(
        wrong, check=label, x=label, y=label, notes=(label,), message=label, dims={label: 2}, picture=None,
        model=ModelInfo(label, operators={label: 1}), reproduce=label, bundle=label, gates=(label,),
        suspect=replace(wrong.suspect, name=label, op=label, inputs=(label,), outputs=(label,), diagnosis=label),
    )  # fmt: skip
    plain = replace(bad, check="n", x="n", y="n", notes=("n",), message="n", model=ModelInfo("n", operators={"n": 1}),
                    dims={"n": 2}, reproduce="n", bundle="n", gates=("n",), suspect=replace(
                        wrong.suspect, name="n", op="n", inputs=("n",), outputs=("n",), diagnosis="n"))  # fmt: skip
    other = failed(label, "unsupported", "GC502", label, blocked_by=(label,))
    made = dict(folder(Report((bad, other), (label,))))
    assert all(re.fullmatch(r"(model/)?[a-z0-9-]{1,80}\.(html|css|svg)", path) for path in made)
    known = {
        e.tag for text in (single(Report((plain,))), *_texts(folder(Report((plain, other))))) for e in _elements(text)
    }
    for text in (*_texts(made.items()), single(Report((bad, other), (label,)))):
        assert not UNWANTED.search(text)
        assert {e.tag for e in _elements(text)} <= known


def _texts(files: object) -> list[str]:
    return [data.decode() for path, data in files if path.endswith(".html")]  # type: ignore[attr-defined]


def _elements(text: str) -> list[object]:
    return [*Page(text).tree.iter()]


def test_models_that_differ_have_files_that_differ():
    labels = ["a.onnx", "a-onnx", "A.onnx", "b/a.onnx", "../a.onnx", "a.onnx\0", "con", "", "x" * 5000, "\u202e"]
    models = models_of(failed(label, "pass", "", "") for label in labels)
    slugs = {model.slug.casefold() for model in models}
    assert len(slugs) == len(labels)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", slug) and len(slug) <= 60 for slug in slugs)


def test_records_of_one_model_meet_on_its_page_wherever_they_stand(report: Report):
    one, two = report.checks[:2]
    models = models_of([one, two, replace(one, x="z"), replace(two, x="z")])
    assert [len(model.checks) for model in models] == [2, 2]


def test_pages_stay_of_bounded_size_however_many_models_there_are():
    many = Report(
        (
            *(failed(f"{i}.onnx", "pass", "", "") for i in range(1200)),
            *(failed(f"{i}.bad", "error", "GC401", "cannot be read") for i in range(60)),
        )
    )
    made = {path: data.decode() for path, data in folder(many)}
    assert made["index.html"].count('<a class="cell') == 400
    assert made["index.html"].count('<li class="error">') == 40
    tables = [text for path, text in made.items() if re.fullmatch(r"models-by-time(-\d)?\.html", path)]
    rows = [row for text in tables for row in re.findall(r'<th scope="row".*?<bdi>(.*?)</bdi>', text)]
    assert len(rows) == len(set(rows)) == 1260
    page = Page(single(many))
    assert len([*page.tree.iter()]) < 12_000
    whole = "\n".join([page.text, *unpacked(page)])
    assert whole.count("<article") == 200
    assert set(re.findall(r'href="#(.*?)"', whole)) <= set(re.findall(r'id="(.*?)"', whole))
    rows = [row for each in whole.split("<>") for row in re.findall(r'<th scope="row".*?<bdi>(.*?)</bdi>', each)]
    assert len(set(rows)) == 1260


def unpacked(page: Page) -> list[str]:
    """The parts of a page that are packed until somebody asks for them."""
    data = [each.text for each in page.all("script") if each.get("type")]
    return [zlib.decompress(base64.b64decode(text)).decode() for text in data]


def test_a_folder_of_very_many_models_lists_the_worst_and_has_pages_of_some(report: Report):
    right = report.checks[0]
    many = (replace(right, check=f"{i:05}.onnx", model=replace(right.model, uri=f"{i:05}.onnx")) for i in range(12_500))
    made = dict(folder(Report((*many, failed("z.bad", "error", "GC401", "cannot be read")))))
    assert sum(path.startswith("model/") for path in made) == 2_000
    for order in ("", "-by-time"):
        tables = [data.decode() for path, data in made.items() if re.fullmatch(rf"models{order}(-\d+)?\.html", path)]
        assert sum(text.count('<th scope="row"') for text in tables) == 12_000
        assert any("z.bad" in text for text in tables)
    first = made["models.html"].decode()
    assert "12,501 in all; the worst 12,000 are listed, and the JSON of results has all; the worst 2,000 have" in first
    texts = {path: data.decode() for path, data in made.items() if path.endswith(".html") and "/" not in path}
    led = {link.partition("#")[0] for text in texts.values() for link in re.findall(r'href="([^"]+\.html[^"]*)"', text)}
    assert {link for link in led if "://" not in link} <= made.keys()
    assert sum(map(len, made.values())) < 60e6


def test_a_page_of_one_large_model_has_few_elements_and_all_its_pairs(wide_page: Page):
    assert len([*wide_page.tree.iter()]) < 5_000
    whole = "\n".join([wide_page.text, *unpacked(wide_page)])
    assert whole.count('<details class="pair') == 1_000
    assert all(f"layer{i}.weight" in whole for i in range(1_000))


def test_a_folder_has_numbered_pages_of_a_large_model_and_what_is_wrong_on_the_first(large: Report):
    wide = [
        *large.checks[-1_000:-1],
        replace(large.checks[0], check="wide.onnx", x="wrong", model=large.checks[-1].model),
    ]
    [model] = models_of(wide)
    made = {path: data.decode() for path, data in folder(Report(tuple(wide)))}
    names = [f"model/{model.slug}{f'-{page}' if page > 1 else ''}.html" for page in range(1, 11)]
    pages = [Page(made[name]) for name in names]
    assert {path for path in made if path.startswith("model/") and path.endswith(".html")} == {*names}
    assert max(len([*page.tree.iter()]) for page in pages) < 6_000
    places = [e.get("id") for page in pages for e in page.tree.iter() if (e.get("id") or "").startswith("pair-")]
    assert places == [f"pair-{index}" for index in range(1, 1_001)]
    assert "wrong" in said(pages[0].all("section", class_="pair")[0])
    for number, page in enumerate(pages, 1):
        [links] = [nav for nav in page.all("nav") if nav.get("aria-label") == "Pages"]
        targets = {a.get("href").rpartition("/")[2]: a.get("aria-current") for a in links.iter(f"{HTML}a")}
        assert targets == {posixpath.basename(name): "page" if name == names[number - 1] else None for name in names}
        assert f"Pairs {number * 100 - 99:,} to {number * 100:,} of 1,000" in page.said


@pytest.mark.one_in(3)
@pytest.mark.parametrize("label", NAMES.values(), ids=NAMES)
def test_a_name_in_what_is_packed_is_text(label: str, large: Report, packed_tags: set[object]):
    bad = [replace(check, check=f"{label} {i}", x=label) for i, check in enumerate(large.checks[1:151])]
    parts = unpacked(Page(single(Report(tuple(bad)))))
    assert len(parts) == 2
    for part in parts:
        assert not UNWANTED.search(part)
        assert {e.tag for e in _elements(_document(part))} <= packed_tags
    assert parts[0].count("<>") == 50 - 1


@pytest.fixture(scope="module")
def packed_tags(large: Report) -> set[object]:
    """The elements of what is packed where names are plain."""
    plain = Page(single(Report(large.checks[1:151])))
    return {e.tag for part in unpacked(plain) for e in _elements(_document(part))}


def _document(part: str) -> str:
    """Rows or sections as a page."""
    inside = part.replace("<>", "")
    table = f"<table>{inside}</table>" if inside.lstrip().startswith("<tr") else inside
    return f"<!doctype html><html lang=en><title>t</title>{table}"


def test_not_more_is_drawn_than_one_waits_for(report: Report):
    wrong = [named(report.checks[2], f"{i}.onnx") for i in range(60)]
    assert len(ReportData(Report(tuple(wrong))).pictured) == 30
    assert len(ReportData(Report((wrong[0],) * 60)).pictured) == 3


def test_records_read_back_give_the_same_pages(report: Report, files: Mapping[str, bytes]):
    again = [check_from_json(json.loads(json.dumps(c.as_json(pictured=True)))) for c in report.checks]
    made = dict(folder(replace(report, checks=tuple(again))))
    assert made.keys() == files.keys()
    texts = [path for path in made if path.endswith(".html")]
    assert [path for path in texts if _undated(made[path]) != _undated(files[path])] == []


def _undated(data: bytes) -> str:
    return re.sub(r"Written .* UTC", "", data.decode())


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(records(Check), max_size=3), st.integers(0, 10))
def test_whatever_records_hold_gives_valid_pages(checks: list[Check], duration: int):
    report = Report(tuple(checks), (), float(duration))
    for text in (single(report), *_texts(folder(report))):
        assert not UNWANTED.search(text)
        Page(text)
