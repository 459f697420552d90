"""The documentation as a site: it is built without a warning, its addresses are those in messages and reports."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from gradcheck_cli.cli.group import gradcheck
from gradcheck_cli.errors import DOCUMENTATION
from gradcheck_cli.ops.facts import all_facts
from gradcheck_cli.report import FORMATS, render
from gradcheck_cli.report.explanations import PAGES
from gradcheck_cli.report.text import Style, page_of
from gradcheck_cli.results.record import Check, ModelInfo, Report
from gradcheck_cli.settings import SETTINGS, options_at
from tests.docs.sessions import ROOT
from tests.docs.site import build, file_of, reference

pytest.importorskip("material", reason="the site is built by mkdocs-material")
html5lib = pytest.importorskip("html5lib", reason="pages are read by html5lib")
HTML = "{http://www.w3.org/1999/xhtml}"
LOADING = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "object": "data"}
COUNTS = {"total": 1, "checked": 1, "failed": 1}
FAILED = Check("a.onnx", "a.onnx", "fail", "GC101", ModelInfo("a.onnx"), "x", "y", entries=COUNTS, gates=("dead",))
MARKUP = re.compile(r".{0,20}(?:\\|&lt;|&gt;|--8<--|<!--|`).{0,20}")
CODE_IN_A_LINK = re.compile(r"\x1b\]8;;(\S+?)\x1b\\(\w+)\x1b\]8;;\x1b\\")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as CI builds it."""
    folder = tmp_path_factory.mktemp("site")
    built = build(folder)
    assert built.returncode == 0, built.stderr
    return folder


def elements(path: Path, *tags: str) -> list[Any]:
    """The elements of a page of some kinds."""
    return [e for e in html5lib.parse(path.read_text("utf-8")).iter() if e.tag in {f"{HTML}{tag}" for tag in tags}]


def said(path: Path) -> str:
    """The text of a page's article."""
    [article] = elements(path, "article")
    return " ".join("".join(article.itertext()).split())


def code_in(path: Path) -> set[str]:
    """The pieces of code of a page."""
    return {"".join(e.itertext()) for e in elements(path, "code")}


def test_every_code_has_a_page_at_its_address(site: Path):
    for code, page in PAGES.items():
        text = said(file_of(page_of(code), site))
        assert f"{code}: " in text
        for part in (page.title, page.meaning, page.causes, page.remedy):
            assert letters(part) in letters(text)


def letters(text: str) -> str:
    """A text without what markup may change."""
    return re.sub(r"[\W_]+", "", text)


def test_sarif_links_each_rule_to_its_page(site: Path):
    log = json.loads(render("sarif", Report((FAILED,))))
    rules = log["runs"][0]["tool"]["driver"]["rules"]
    assert {rule["id"]: file_of(rule["helpUri"], site).is_file() for rule in rules} == {
        "GC101": True,
        "health/dead": True,
    }


def test_a_page_of_a_report_links_its_codes():
    links = {e.get("href") for e in html5lib.parse(render("html", Report((FAILED,)))).iter(f"{HTML}a")}
    assert page_of("GC101") in links


@pytest.mark.parametrize("form", ["full", "concise"])
def test_codes_are_links_in_a_terminal_and_nowhere_else(form: str):
    report = Report((replace(FAILED, gates=()),))
    plain, linked = (render(form, report, Style(color=True, links=on)) for on in (False, True))
    assert CODE_IN_A_LINK.findall(linked) == [(page_of("GC101"), "GC101")]
    assert CODE_IN_A_LINK.sub(r"\2", linked) == plain
    assert "http" not in plain


def test_files_have_no_links_for_terminals():
    texts = (render(name, Report((FAILED,))) for name in FORMATS)
    assert not any("\x1b" in text for text in texts)


def test_every_option_of_every_command_is_in_the_reference(site: Path):
    shown = code_in(site / "reference" / "options" / "index.html")
    spellings = {word for text in shown for word in re.findall(r"(?<!\S)(-\w|--[\w-]+)(?=[ ,]|$)", text)}
    assert options_of(gradcheck, click.Context(gradcheck, info_name="gradcheck")) <= spellings | {"--version"}


def options_of(command: click.Command, context: click.Context) -> set[str]:
    found = {word for param in command.params if isinstance(param, click.Option) for word in param.opts}
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        inner = command.get_command(context, name)
        assert inner is not None
        found |= options_of(inner, click.Context(inner, parent=context, info_name=name))
    return found


def test_every_key_operator_and_format_is_in_the_reference(site: Path):
    wanted = {
        "operators": {facts.name for facts in all_facts()},
        "configuration": {option.name for option in options_at("file")},
        "formats": set(FORMATS),
        "python": {key for key, option in SETTINGS.items() if option.panel},
    }
    missing = {name: words - code_in(site / "reference" / name / "index.html") for name, words in wanted.items()}
    assert not any(missing.values()), missing


def test_every_public_name_is_in_the_reference_with_its_arguments(site: Path):
    import gradcheck_cli as gc

    text = said(site / "reference" / "python" / "index.html")
    assert [name for name in gc.__all__ if f"gc.{name}" not in text] == []
    assert "x_init_value: Mapping[Any, Any] | None = None" in text
    assert max(map(len, text.split())) < 200  # no default is spelt out that nobody could read


def test_the_schemas_are_those_that_the_command_prints(site: Path):
    for name, text in reference().schema_files().items():
        assert json.loads((site / name).read_text("utf-8")) == json.loads(text)


def test_no_page_loads_anything_from_elsewhere(site: Path):
    pages = [*site.rglob("*.html")]
    assert len(pages) > len(PAGES) + 20
    foreign = [(page.relative_to(site), source) for page in pages for source in loaded(page) if "//" in source]
    assert foreign == []
    sheets = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:url\(|@import )(?![\"']?data:)[^;)]*//[^;)]*", sheets) == []


def loaded(page: Path) -> Iterator[str]:
    """Addresses that a browser loads with a page."""
    for element in elements(page, *LOADING):
        name = element.tag.removeprefix(HTML)
        if name != "link" or element.get("rel") not in ("canonical", "prev", "next"):
            yield element.get(LOADING[name], "")


def test_the_address_of_the_documentation_stands_in_one_place(site: Path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project.get("urls", {}).get("Documentation", DOCUMENTATION) == DOCUMENTATION
    [canonical] = [e.get("href") for e in elements(site / "index.html", "link") if e.get("rel") == "canonical"]
    assert canonical == DOCUMENTATION
    texts = [path for path in (ROOT / "gradcheck_cli").rglob("*.py") if DOCUMENTATION in path.read_text("utf-8")]
    assert [path.name for path in texts] == ["errors.py"]


def test_no_markup_is_left_in_a_text(site: Path):
    pages = {page: prose(article) for page in site.rglob("index.html") for article in elements(page, "article")}
    left = [(page.relative_to(site), found) for page, text in pages.items() for found in MARKUP.findall(text)]
    assert left == []


def prose(element: Any) -> str:
    """The text of an element without its code."""
    inner = "" if element.tag in (f"{HTML}code", f"{HTML}pre") else (element.text or "") + "".join(map(prose, element))
    return inner + (element.tail or "")
