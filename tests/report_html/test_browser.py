"""The pages in a real browser, under the policy that CI servers set: no script, no inline style, nothing from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradcheck_cli.report.html.page_facts import models_of
from gradcheck_cli.results.record import Report
from tests.browsing import Silent, browser, needs_browser, served

playwright = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core says what is accessible")

__all__ = ["browser"]  # a fixture
pytestmark = needs_browser
POLICY = "default-src 'none'; style-src 'self'; img-src 'self'"
PHONE, DESK = {"width": 360, "height": 740}, {"width": 1280, "height": 900}
Open = Callable[..., Any]


class Strict(Silent):
    """Serves the folder as strictly as CI servers do; the single page is for those who open it from a disk."""

    def end_headers(self) -> None:
        if self.path.startswith("/site/"):
            self.send_header("Content-Security-Policy", POLICY)
        super().end_headers()


@pytest.fixture(scope="module")
def address(written: Path) -> Iterator[str]:
    with served(written, Strict) as found:
        yield found


def _refused(request: Any) -> bool:
    """False for a request that the browser gave up because a link led to another page while it was on its way."""
    return request.failure != "net::ERR_ABORTED"


@pytest.fixture
def shown(browser: Any, address: str) -> Iterator[Open]:
    """Opens a page of the report; whatever the browser complains of fails the test."""
    contexts, complaints = [], []

    def opened(path: str, viewport: Any = DESK, **more: Any) -> Any:
        contexts.append(context := browser.new_context(viewport=viewport, **more))
        page = context.new_page()
        page.on("console", lambda message: complaints.append((path, message.text)))
        page.on("pageerror", lambda error: complaints.append((path, str(error))))
        page.on("requestfailed", lambda request: complaints.extend([(path, request.url)] if _refused(request) else []))
        page.on("response", lambda answer: complaints.extend([(path, answer.url)] if answer.status >= 400 else []))
        page.goto(address + path)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def paths(report: Report) -> dict[str, str]:
    """A page of each kind."""
    slugs = {model.name: model.slug for model in models_of(report.checks)}
    models = {
        name: f"site/model/{slugs[name]}.html" for name in ("wrong.onnx", "right.onnx", "tie.onnx", "endless.onnx")
    }
    return {"summary": "site/index.html", "models": "site/models.html", "operators": "site/operators.html",
            "single": "single.html", "large": "large.html", "wide": "wide.html", **models}  # fmt: skip


KINDS = (
    "summary",
    "models",
    "operators",
    "single",
    "large",
    "wide",
    "wrong.onnx",
    "right.onnx",
    "tie.onnx",
    "endless.onnx",
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_are_accessible_and_fit_on_a_phone(kind: str, scheme: str, shown: Open, paths: dict[str, str]):
    for viewport in (DESK, PHONE):
        page = shown(paths[kind], viewport, color_scheme=scheme)
        found = axe.Axe().run(page).response["violations"]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_styles_and_pictures_get_through_the_policy(shown: Open, paths: dict[str, str]):
    page = shown(paths["wrong.onnx"])
    assert page.evaluate("getComputedStyle(document.querySelector('.badge')).fontWeight") == "700"
    sizes = page.evaluate("[...document.images].map(image => image.naturalWidth)")
    assert len(sizes) == 2
    assert min(sizes) > 100


@pytest.mark.slow
def test_a_failure_stands_out_in_both_schemes(shown: Open, paths: dict[str, str]):
    for scheme in ("light", "dark"):
        page = shown(paths["summary"], color_scheme=scheme)
        colors = {kind: page.evaluate(f"getComputedStyle(document.querySelector('.mosaic .{kind}')).backgroundColor")
                  for kind in ("fail", "pass", "inconclusive")}  # fmt: skip
        assert len(set(colors.values())) == 3


@pytest.mark.slow
def test_one_gets_from_the_summary_to_a_failure_and_back(shown: Open, paths: dict[str, str]):
    page = shown(paths["summary"])
    page.get_by_role("link", name="wrong.onnx").last.click()
    assert page.get_by_role("heading", level=1).inner_text() == "wrong.onnx"
    page.get_by_role("link", name="Models").last.click()
    assert page.get_by_role("heading", level=1).inner_text() == "Models"
    page.get_by_role("link", name="gradcheck").first.click()
    assert page.get_by_role("heading", level=1).inner_text() == "9 of 13 models need attention"


def test_links_sort_the_table_of_a_folder(shown: Open, paths: dict[str, str]):
    page = shown(paths["models"])
    page.get_by_role("link", name="Model", exact=True).click()
    names = page.locator("tbody th a").all_inner_texts()
    assert names == sorted(names)
    assert page.locator("th[aria-sort]").all_inner_texts() == ["Model"]


def test_buttons_sort_the_table_of_the_single_page(shown: Open, paths: dict[str, str]):
    page = shown(paths["single"])
    head = page.locator(".models thead").get_by_role("button", name="Model")
    orders = []
    for _ in range(2):
        head.click()
        orders.append(page.locator(".models tbody th a").all_inner_texts())
    assert orders[0] == sorted(orders[0])
    assert orders[1] == orders[0][::-1]
    page.locator(".models thead").get_by_role("button", name="Max rel err").click()
    keys = page.evaluate("[...document.querySelectorAll('.models tbody tr')].map(row => +row.cells[4].dataset.key)")
    assert keys == sorted(keys, reverse=True)


ROWS = ".models tbody th a"


def test_words_filter_the_rows_of_the_single_page(shown: Open, paths: dict[str, str]):
    page = shown(paths["single"])
    box = page.get_by_role("searchbox", name="Filter models")
    found = page.locator(".filter output").first
    for words, rows in {
        "right.onnx": 2,
        "RIGHT other": 1,
        "gc101": 2,
        "known failure": 1,
        "nothing of this": 0,
    }.items():
        box.fill(words)
        assert page.locator(ROWS).count() == rows, words
        assert found.inner_text() == f"{rows} of 13"
    box.fill("onnx")
    page.locator(".models thead").get_by_role("button", name="Model").click()
    names = page.locator(ROWS).all_inner_texts()
    assert names == sorted(names)
    assert len(names) == 13
    box.fill("")
    assert found.inner_text() == ""


def test_ten_thousand_models_are_few_elements_until_one_looks_for_them(shown: Open, paths: dict[str, str]):
    page = shown(paths["large"])
    assert page.evaluate("document.querySelectorAll('*').length") < 12_000
    rows = page.locator(ROWS)
    assert rows.count() == 100
    page.get_by_role("button", name="Show 100 more of 9,901").click()
    page.get_by_role("button", name="Show 100 more of 9,801").wait_for()
    assert rows.count() == 200
    page.get_by_role("searchbox", name="Filter models").fill("net-07342")
    page.get_by_text("1 of 10,001").wait_for()
    assert rows.all_inner_texts() == ["zoo/16/net-07342.onnx"]
    page.get_by_role("searchbox", name="Filter models").fill("")
    page.locator(".models thead").get_by_role("button", name="Model").click()
    playwright.expect(rows.first).to_have_text("wide.onnx")
    assert rows.nth(1).inner_text() == "zoo/0/net-00000.onnx"


def test_a_link_leads_to_what_was_packed(shown: Open, paths: dict[str, str], large: Report):
    [model] = models_of(large.checks[-1_000:])
    page = shown(f"{paths['wide']}#{model.slug}-777")
    place = page.locator(f"[id='{model.slug}-777']")
    place.wait_for()
    assert place.get_attribute("open") is not None
    assert "layer776.weight" in place.inner_text()
    told = models_of(large.checks)[80]
    page = shown(f"{paths['large']}#{told.slug}")
    page.locator(f"[id='{told.slug}']").get_by_text(told.name).first.wait_for()


@pytest.mark.slow
def test_the_keyboard_alone_filters_sorts_and_shows_more(shown: Open, paths: dict[str, str]):
    page = shown(paths["large"])
    page.get_by_role("searchbox", name="Filter models").focus()
    page.keyboard.type("net-000")
    page.locator(".filter output").first.get_by_text("100 of 10,001").wait_for()
    for _ in range(3):
        page.keyboard.press("Tab")  # the table, which scrolls, and the first heads
    assert page.evaluate("document.activeElement.innerText") == "Model"
    assert page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2
    page.keyboard.press("Enter")
    playwright.expect(page.locator(ROWS).first).to_have_text("zoo/0/net-00000.onnx")
    further = page.locator("#details > button.further")
    further.focus()
    sections = page.locator("#details > .every > *")
    before = sections.count()
    page.keyboard.press("Enter")
    playwright.expect(sections).not_to_have_count(before)
    assert page.evaluate("document.activeElement.closest('#details') !== null")


@pytest.mark.slow
def test_what_is_right_is_folded_and_a_link_opens_it(shown: Open, paths: dict[str, str]):
    for script in (True, False):
        page = shown(paths["single"], java_script_enabled=script)
        model = page.locator("details.model", has=page.get_by_text("right.onnx", exact=True))
        assert not model.locator("article").is_visible()
        page.locator(".models").get_by_role("link", name="right.onnx", exact=True).click()
        assert model.locator("article").is_visible()
        assert page.locator("article.model").first.is_visible()


@pytest.mark.slow
def test_without_script_the_single_page_says_as_much(shown: Open, paths: dict[str, str]):
    texts = [shown(paths["single"], java_script_enabled=on).locator("main").text_content() for on in (True, False)]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_one_click_selects_the_whole_command_and_nothing_else(shown: Open, report: Report, paths: dict[str, str]):
    [record] = [c for c in report.checks if c.check == "wrong.onnx"]
    for viewport in (DESK, PHONE):
        page = shown(paths["wrong.onnx"], viewport)
        page.locator("pre.command").click()
        assert page.evaluate("getSelection().toString()") == record.reproduce
