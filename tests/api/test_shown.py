"""Records and models at a prompt, in a notebook, in a data frame and in a log; help that fits on a screen."""

from __future__ import annotations

import inspect
import logging
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import html5lib
import numpy as np
import pytest

import gradcheck_cli as gc
from tests.checking.small import between, scaled, with_rule
from tests.checking.small import model as small
from tests.hostile.names import NAMES

WRONG = with_rule("Tanh", scaled("Tanh", 2.0))
TABLE = ["id", "check", "x", "y", "status", "code", "passes", "entries_total", "entries_checked", "entries_failed"]
TYPES = {"id": "string", "passes": "bool", "entries_failed": "Int64", "max_rel_err": "float64", "suspect_node": "Int64",
         "suspect_op": "string", "message": "string", "points": "Int64", "duration_s": "float64"}  # fmt: skip


@pytest.fixture(scope="module")
def right() -> gc.Report:
    return gc.check(between("Tanh"))


@pytest.fixture(scope="module")
def wrong() -> gc.Report:
    return gc.check(between("Tanh"), ops=WRONG)


def blocked() -> gc.Report:
    """A report of a check that compared nothing."""
    return gc.check(between("Tanh"), ops=with_rule("Tanh", None))


def elements(fragment: str | None) -> list[Any]:
    """The elements of a fragment of a page; an error in its HTML is an error here."""
    assert fragment is not None
    body = f"<!doctype html><html lang=en><title>t</title><body>{fragment}".replace("<style>", "<p hidden>")
    return [*html5lib.HTMLParser(strict=True).parse(body.replace("</style>", "</p>")).iter()]


def tags(fragment: str | None) -> set[str]:
    return {str(each.tag).rpartition("}")[2] for each in elements(fragment)}


def text(fragment: str | None) -> str:
    return " ".join(" ".join(elements(fragment)[0].itertext()).split())


# At a prompt


def test_a_check_is_a_line_with_its_outcome_and_its_suspect(right: gc.Report, wrong: gc.Report):
    assert re.fullmatch(r"<Check 'graph' d y/d x: pass, 16 checked, max rel err \S+>", repr(right.checks[0]))
    assert repr(wrong.checks[0]) == (
        "<Check 'graph' d y/d x: fail GC101, 4 of 16 failed, max rel err 5.0e-01, suspect node 1 Tanh>"
    )
    assert repr(blocked().checks[0]).startswith("<Check 'graph' d y/d x: unsupported GC501, ")


def test_a_report_is_its_counts_and_the_first_checks_that_are_wrong(right: gc.Report, wrong: gc.Report):
    assert repr(right) == "<Report: 1 pass; exit code 0>"
    assert repr(wrong) == f"<Report: 1 fail; exit code 1>\n  {wrong.checks[0]!r}"
    many = replace(wrong, checks=wrong.checks * 12 + right.checks)
    lines = repr(many).splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("<Report: 1 pass, 12 fail; exit code 1>", "  ... 7 more", 7)
    assert repr(gc.Report(())) == "<Report: nothing was checked; exit code 7>"


def test_a_model_is_a_line_however_many_inputs_it_has():
    every = {f"x{i}": (2,) for i in range(300)}
    model = small(("Sum", " ".join(every), "y"), inputs=every)
    assert repr(model) == "<Model 'graph': (x, x0, x1, x2, x3, x4, ...) -> (y)>"


@pytest.mark.parametrize("label", NAMES.values(), ids=NAMES)
def test_no_name_leaves_its_line(label: str, wrong: gc.Report):
    check = replace(wrong.checks[0], check=label, x=label, y=label, message=label)
    assert repr(check).isprintable()
    assert all(line.isprintable() for line in repr(gc.Report((check,))).split("\n"))


@pytest.mark.parametrize("name", [name for name in gc.__all__ if callable(getattr(gc, name))])
def test_signatures_show_no_tables_and_no_addresses(name: str):
    try:
        signature = str(inspect.signature(getattr(gc, name)))
    except ValueError:  # an enumeration has none
        return
    assert len(signature) < (600 if inspect.isfunction(getattr(gc, name)) else 6000)  # a record has many fields
    assert "object at 0x" not in signature


# In a notebook


def test_a_report_in_a_notebook_shows_a_table_the_suspect_and_the_picture(wrong: gc.Report):
    shown = text(wrong._repr_html_())
    for words in ("1 check: 1 failed. Exit code 1.", "FAIL GC101", "4 of 16 entries differ (25%)", "Suspect node 1 Tanh",
                  "the gradient is 2 times what it should be"):  # fmt: skip
        assert words in shown
    images = [each.get("src") for each in elements(wrong._repr_html_()) if str(each.tag).endswith("}img")]
    assert len(images) == 2
    assert all(source.startswith("data:image/png;base64,") for source in images)
    assert {"table", "img"} <= tags(wrong.checks[0]._repr_html_())


def test_what_passes_is_a_row_and_nothing_more(right: gc.Report):
    assert {"section", "img"}.isdisjoint(tags(right._repr_html_()))
    assert "PASS" in text(right._repr_html_())


def test_what_compared_nothing_says_why():
    assert "no gradient for 'Tanh'" in text(blocked()._repr_html_())


def test_a_report_of_many_checks_shows_the_wrong_ones_first_and_tells_of_the_rest(right: gc.Report, wrong: gc.Report):
    named = tuple(replace(right.checks[0], check=f"{i}.onnx") for i in range(10_000))
    fragment = gc.Report((*named, replace(wrong.checks[0], check="wrong.onnx"), *named))._repr_html_()
    assert len(fragment or "") < 300_000
    assert re.search("Verdict .*? FAIL GC101 wrong.onnx x .*? PASS 0.onnx", text(fragment))
    assert "19,961 more checks" in text(fragment)


def test_a_model_in_a_notebook_shows_its_inputs_and_outputs():
    model = between("Tanh")
    shown = text(model._repr_html_())
    assert "input x [4] float64" in shown
    assert "Operators: Mul 1, Tanh 1, Sin 1" in shown


@pytest.mark.parametrize("label", NAMES.values(), ids=NAMES)
def test_a_name_is_text_in_a_notebook(label: str, wrong: gc.Report):
    [check] = wrong.checks
    assert check.suspect is not None
    hostile = replace(check, check=label, x=label, y=label, message=label, notes=(label,), picture=None,
                      suspect=replace(check.suspect, name=label, op=label, outputs=(label,), diagnosis=label))  # fmt: skip
    plain = replace(hostile, check="n", x="n", y="n", message="n", suspect=check.suspect)
    assert tags(gc.Report((hostile, check))._repr_html_()) <= tags(gc.Report((plain, check))._repr_html_()) | {"wbr"}
    model = small(("Neg", "x", "".join(label.split()) or "y"))
    assert "script" not in tags(model._repr_html_())


def test_no_part_of_a_notebook_runs_anything(wrong: gc.Report):
    for fragment in (wrong._repr_html_(), wrong.checks[0]._repr_html_(), between("Tanh")._repr_html_()):
        assert {"script", "iframe", "object", "form"}.isdisjoint(tags(fragment))
        assert not [name for each in elements(fragment) for name in each.attrib if name.startswith("on")]


def alone(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)


CHECKED = """
import sys
for name in sys.argv[1:]:
    sys.modules[name] = None
import gradcheck_cli as gc
from tests.checking.small import between, scaled, with_rule
report = gc.check(between("Tanh"), ops=with_rule("Tanh", scaled("Tanh", 2.0)))
"""


def test_without_jinja_a_notebook_shows_the_repr_and_without_matplotlib_no_picture():
    ran = alone(CHECKED + "print(report._repr_html_())", "jinja2")
    assert (ran.stdout, ran.stderr) == ("None\n", "")
    ran = alone(CHECKED + "print(report._repr_html_())", "matplotlib")
    assert ran.stderr == ""
    assert "Suspect" in ran.stdout
    assert "<img" not in ran.stdout


# In a data frame


def test_a_data_frame_has_a_row_for_each_check_and_typed_columns(right: gc.Report, wrong: gc.Report):
    pd = pytest.importorskip("pandas")
    frame = gc.Report((*right.checks, *wrong.checks, *blocked().checks)).to_dataframe()
    assert [*frame.columns[: len(TABLE)]] == TABLE
    assert {name: str(frame[name].dtype) for name in TYPES} == TYPES
    assert [*frame.status] == ["pass", "fail", "unsupported"]
    assert [*frame.passes] == [True, False, False]
    assert [*frame.entries_failed[:2]] == [0, 4]
    assert [*frame.suspect_op[1:2]] == ["Tanh"]
    for name in ("entries_checked", "max_rel_err", "suspect_node"):
        assert pd.isna(frame[name][2]), name
    assert frame.max_rel_err[1] == wrong.checks[0].max_rel_err
    assert frame.query("not passes and entries_failed > 2").index.tolist() == [1]


def test_a_data_frame_of_nothing_has_the_same_columns_and_types(wrong: gc.Report):
    pytest.importorskip("pandas")
    assert gc.Report(()).to_dataframe().dtypes.equals(wrong.to_dataframe().dtypes)


def test_without_pandas_the_error_says_what_to_install():
    ran = alone(CHECKED + "report.to_dataframe()", "pandas")
    assert "UsageError: to_dataframe() needs pandas: python -m pip install pandas" in ran.stderr


# In a log


def test_the_log_tells_what_is_chosen_and_what_is_found(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "gradcheck")
    gc.check(between("Tanh"), ops=WRONG)
    told = [(record.levelname, record.message) for record in caplog.records if record.name == "gradcheck"]
    assert told == [
        ("INFO", "graph: x x; y y"),
        ("INFO", "graph: point 0"),
        ("DEBUG", "graph: comparing d y/d x"),
        ("INFO", "'graph' d y/d x: fail GC101, 4 of 16 failed, max rel err 5.0e-01, suspect node 1 Tanh; "
                 "mode full, complex-step"),
    ]  # fmt: skip


def test_nothing_is_logged_to_those_who_did_not_ask():
    ran = alone(CHECKED)
    assert (ran.stdout, ran.stderr) == ("", "")


def test_no_name_moves_the_cursor_of_a_log(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "gradcheck")
    gc.check(small(("Neg", "x", "y\x1b[2J\n")))
    assert caplog.records
    assert all(record.message.isprintable() for record in caplog.records)


# Progress


def test_progress_is_lines_where_nobody_draws(capsys: pytest.CaptureFixture[str]):
    weights = np.random.default_rng(0).normal(size=(40, 40))
    nodes = [("MatMul", "x W", "a"), ("CumSum", "a zero", "b"), ("Tanh", "b", "c"), ("Softmax", "c", "d")]
    model = small(*nodes, x=(160, 40), constants={"W": weights, "zero": np.int64(0)})
    gc.check(model, mode="full", progress=True, jobs=1)
    assert "graph  d d/d x  " in capsys.readouterr().err
    gc.check(between("Tanh"))
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="progress=3 must be True or False"):
        gc.check(between("Tanh"), progress=3)  # type: ignore[arg-type]


CELL = """
import numpy as np
import gradcheck_cli as gc
from tests.checking.small import model
nodes = [("MatMul", "x W", "a"), ("CumSum", "a zero", "b"), ("Tanh", "b", "c"), ("Softmax", "c", "d")]
weights = np.random.default_rng(0).normal(size=(40, 40))
report = gc.check(model(*nodes, x=(160, 40), constants={"W": weights, "zero": np.int64(0)}), progress=True, mode="full")
report
"""


@pytest.mark.slow
def test_a_kernel_shows_a_bar_that_goes_and_then_the_report():
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient", reason="it runs notebooks")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    told: list[str] = []

    class Client(client.NotebookClient):  # type: ignore[misc, name-defined]
        def process_message(self, message: Any, *more: Any) -> Any:
            told.append(message["content"].get("data", {}).get("text/html", ""))
            return super().process_message(message, *more)

    Client(notebook, timeout=600).execute()
    assert any(re.fullmatch(r'<progress max="1" value="0\.\d+" .*</progress> graph  d d/d x .*', each) for each in told)
    bar, shown = notebook.cells[0].outputs
    assert bar.data == {"text/plain": "", "text/html": ""}
    assert shown.data["text/plain"] == "<Report: 1 pass; exit code 0>"
    assert "PASS" in shown.data["text/html"]
