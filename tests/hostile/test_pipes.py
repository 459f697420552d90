"""Whatever a model, a spec, a result or a run says, no text that is printed moves a cursor or commands a CI service."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcheck_cli.cli import main
from gradcheck_cli.errors import clean, harmless
from gradcheck_cli.report import FORMATS, on_stdout, render
from gradcheck_cli.report.text import Style
from gradcheck_cli.results.record import Check, ModelInfo, Report
from tests.cli import models
from tests.cli.conftest import Command, entered, typed
from tests.hostile.names import COMMANDS, HALVES, NAMES, harm
from tests.reports.records import CHECKS, TEXT

OWN = {"github": r"::(error|warning) file="}  # lines that are meant as commands
BAD = {**COMMANDS, **HALVES, **{kind: name for kind, name in NAMES.items() if name}}


@pytest.fixture
def gradcheck(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    entered(tmp_path, monkeypatch)
    return partial(typed, capsys)


@pytest.mark.parametrize("form", FORMATS)
@settings(max_examples=40, deadline=None)
@given(checks=st.lists(CHECKS, min_size=1, max_size=2), note=TEXT, verbosity=st.integers(-1, 2))
def test_no_record_does_harm_in_any_format(form: str, checks: list[Check], note: str, verbosity: int) -> None:
    text = render(form, Report(tuple(checks), (note,)), Style(verbosity=verbosity))
    assert harm(text, own=OWN.get(form, "")) == []


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
def test_no_name_does_harm_in_any_format(name: str, form: str) -> None:
    check = Check(
        id=name, check=name, status="fail", code="GC101", model=ModelInfo(name), x=name, y=name, notes=(name,),
        message=name, reproduce=name, bundle=name, versions={name: name},
    )  # fmt: skip
    error = replace(check, status="error", code="GC401")
    text = render(form, Report((check, error), (name,)))
    assert harm(text, own=OWN.get(form, "")) == []
    assert text.encode("utf-8")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.sampled_from([*BAD.values(), "\n", "#", "[", ":", " "]), st.text(max_size=3)), max_size=6))
def test_a_text_that_was_cleaned_does_no_harm_and_stays_as_it_is_when_it_is_cleaned_again(parts: list[str]) -> None:
    for done in (harmless, clean):
        text = done("".join(parts))
        assert harm(text) == []
        assert done(text) == text


def test_colors_and_plain_text_stay() -> None:
    text = "\x1b[31mFAIL\x1b[0m  a: b :: c # [d]\n  größe 名前\tx"
    assert harmless(text, color=True) == text
    assert harmless(text) == text.replace("\x1b", "\\x1b")


def test_json_and_html_say_the_same_as_before() -> None:
    name = "##[error]x"
    check = Check(id=name, check=name, status="pass", code="", model=ModelInfo("m"), x="x", y="y")
    assert json.loads(render("json", Report((check,))))["checks"][0]["id"] == name
    page = render("html", Report((check,)))
    assert "&#35;#[error]x" in page


def hostile_model(name: str) -> None:
    """A model in which all that is a text says the same."""
    models.named(Path("net.onnx"), f"{name}.x", f"{name}.y")
    model = onnx.load("net.onnx")
    model.graph.name = model.graph.doc_string = model.doc_string = model.producer_name = name
    for node in model.graph.node:
        node.name = node.doc_string = name
    model.metadata_props.add(key=name, value=name)
    onnx.save(model, "net.onnx")


COMMANDLINES = {
    "inspect": ("inspect", "net.onnx", "-v"),
    "inspect, as JSON": ("inspect", "net.onnx", "--output-format", "json"),
    "a gradient file": ("grad", "net.onnx", "-o", "grad.onnx"),
    "a zoo": ("zoo", "net.onnx", "--run", "run", "-j", "1", "--forward", "internal", "--progress", "plain"),
    "two models": ("diff", "net.onnx", "net.onnx"),
    "no such tensor": ("net.onnx", "--x", "nope"),
    **{form: ("net.onnx", "-v", "--points", "2", "--output-format", form) for form in on_stdout()},
}


@pytest.mark.one_in(12)
@pytest.mark.parametrize("args", COMMANDLINES.values(), ids=COMMANDLINES)
@pytest.mark.parametrize("name", [*COMMANDS.values(), NAMES["escape sequences"]], ids=[*COMMANDS, "escape sequences"])
def test_no_model_does_harm_by_any_command(name: str, args: tuple[str, ...], gradcheck: Command) -> None:
    hostile_model(name)
    ran = gradcheck(*args)
    assert harm(ran.out, own=OWN["github"]) == []
    assert harm(ran.err) == []
    assert ran.code != 70


def changed(record: dict[str, Any], name: str) -> dict[str, Any]:
    """A record in which every text that may be any says the same."""
    fixed = ("schema", "status", "sha256", "mode", "method")
    return {key: value if key in fixed else in_all(value, name) for key, value in record.items()}


def in_all(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return changed(dict(value), name)
    if isinstance(value, list):
        return [in_all(each, name) for each in value]
    return name if isinstance(value, str) and value else value


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "args", [("report",), ("zoo", "status"), ("zoo", "report"), ("zoo", "resume"), ("zoo", "diff")]
)
@pytest.mark.parametrize("name", COMMANDS.values(), ids=COMMANDS)
def test_no_run_or_result_of_a_stranger_does_harm(name: str, args: tuple[str, ...], gradcheck: Command) -> None:
    models.mlp(Path("net.onnx"))
    assert main(["zoo", "net.onnx", "--run", "run", "-j", "1", "--forward", "internal", "-q"]) == 0
    results = Path("run/results.jsonl")
    lines = [changed(json.loads(line), name) for line in results.read_text().splitlines()]
    results.write_text("".join(json.dumps(line) + "\n" for line in lines))
    about = json.loads(Path("run/run.json").read_text())
    about |= {"version": name, "created": name, "shard": name, "jobs": [name], "sources": [name]}
    Path("run/run.json").write_text(json.dumps(about))
    gradcheck("--version")  # what was printed so far is gone
    ran = gradcheck(*args, *(["run"] if args[-1] != "diff" else ["run", "run"]))
    assert harm(ran.out + ran.err) == []
    assert ran.code in {0, 1, 2, 3, 4, 5, 6, 7}
    assert not re.search("Traceback|a bug of gradcheck", ran.err)
