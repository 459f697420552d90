"""The documentation in a real browser: it fits, it is accessible, and it asks nobody but its own server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pygments.token import STANDARD_TYPES

from tests.browsing import browser, needs_browser, served
from tests.docs.site import build

pytest.importorskip("material", reason="the site is built by mkdocs-material")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core says what is accessible")

__all__ = ["browser"]  # a fixture
pytestmark = [pytest.mark.slow, needs_browser]
PHONE, DESK = {"width": 400, "height": 800}, {"width": 1280, "height": 900}
TOKENS = [kind for kind in STANDARD_TYPES.values() if kind not in ("", "esc", "hll")]  # what a highlighter calls them
KINDS = ("", "tutorial/", "guides/zoo/", "method/numerical/", "reference/options/", "reference/codes/GC101/")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    assert build(folder).returncode == 0
    with served(folder) as found:
        yield found


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", KINDS)
def test_pages_fit_are_accessible_and_ask_nobody_else(path: str, scheme: str, browser: Any, address: str):
    for viewport in (PHONE, DESK):
        with browser.new_context(viewport=viewport, color_scheme=scheme) as context:
            page, asked = context.new_page(), list[str]()
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.goto(address + path)
            page.wait_for_selector(".md-search[aria-label]", state="attached")
            found = axe.Axe().run(page).response["violations"]
            assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []
            assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
            assert [url for url in asked if not url.startswith((address, "data:"))] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_code_of_any_kind_has_enough_contrast(scheme: str, browser: Any, address: str):
    with browser.new_context(viewport=DESK, color_scheme=scheme) as context:
        page = context.new_page()
        page.goto(address + "tutorial/")
        page.evaluate(
            """kinds => {
            const code = document.querySelector(".highlight code")
            for (const kind of kinds) code.append(Object.assign(document.createElement("span"),
                {className: kind, textContent: ` ${kind} `}))
        }""",
            TOKENS,
        )
        assert page.locator(".highlight code > span").count() >= len(TOKENS)
        found = axe.Axe().run(page).response["violations"]
        assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []


def test_commands_are_copied_without_what_they_print(browser: Any, address: str):
    page = browser.new_page()
    page.goto(address)
    page.wait_for_selector(".md-code__button", state="attached")
    copied = page.evaluate("""() => {
        const session = document.querySelector(".highlight:has(.gp) code")
        session.setAttribute("data-md-copying", "")
        return session.innerText
    }""")
    page.close()
    assert copied.strip() == "gradcheck examples/mlp.onnx --x input --y loss"


def test_what_is_looked_for_is_found(browser: Any, address: str):
    page = browser.new_page(viewport=DESK)
    page.goto(address)
    page.get_by_placeholder("Search").click()
    page.keyboard.type("GC107", delay=20)
    found = page.wait_for_selector(".md-search-result__link[href*='GC107']")
    assert "GC107" in found.inner_text()
    page.close()
