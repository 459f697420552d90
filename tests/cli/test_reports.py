"""Reports as functions of records: layout, widths, and text that would break a format."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from gradcheck_cli.report import FORMATS, render
from gradcheck_cli.report.text import Style, columns, cut, upper, wrapped
from gradcheck_cli.results.record import Check, Entry, ModelInfo, Report, Suspect

MODEL = ModelInfo("net.onnx", "0" * 64, {"": 17}, 61, ("float32",))
ENTRIES = (
    Entry((0, 2, 7, 7), (), 0, 0.0, 0.0402135, 3e-10, "missing"),
    Entry((0, 2, 7, 6), (), 0, 0.0198710, 0.0397421, 3e-10, "x 0.5"),
    Entry((0, 1, 7, 7), (), 0, -0.00812410, 0.00812411, 2e-10, "sign"),
    *(Entry((0, 0, 0, i), (), 0, 1.0, 1.5, 1e-10, "") for i in range(3)),
)
FAILED = Check(
    id="net.onnx::d loss/d input",
    check="net.onnx",
    status="fail",
    code="GC101",
    model=MODEL,
    x="input",
    y="loss",
    x_shape=(1, 3, 8, 8),
    entries={"total": 192, "checked": 192, "failed": 6, "inconclusive": 0},
    max_abs_err=0.0402135,
    max_rel_err=1.0,
    noise=3e-10,
    needed={"rtol": 2.0, "atol": 0.0402135},
    worst=ENTRIES,
    suspect=Suspect(
        14, "MaxPool", "pool1", ("p1",), ("a1",), 1.0, "a1", 59, 60, index=(0, 2, 7, 7), before=13, after=46
    ),
    reproduce="gradcheck net.onnx --x input --y loss --seed 0 --point 0",
    duration_s=0.84,
)
PAGE = """\
net.onnx  opset 17, 61 nodes | float32 model, checked in float64 | seed 0

x                y        entries  max abs err  max rel err    noise
input [1,3,8,8]  loss []  192/192      4.0e-02      1.0e+00    3e-10  FAIL

FAIL GC101  d loss / d input: 6 of 192 entries differ (3.1%)
entry of input   theoretical    numerical  abs err  rel err    noise  pattern
[0,2,7,7]                  0  4.02135e-02  4.0e-02  1.0e+00    3e-10  missing
[0,2,7,6]        1.98710e-02  3.97421e-02  2.0e-02  5.0e-01    3e-10  x 0.5
[0,1,7,7]       -8.12410e-03  8.12411e-03  1.6e-02  2.0e+00    2e-10  sign
... 3 more, --show 6

  suspect    node 14  MaxPool 'pool1'  a1 -> p1
             fails on its own: max rel err 1.0e+00 at a1[0,2,7,7]
             the 13 nodes before it and the 46 after it pass on their own
  would pass only with --rtol 2.0
  reproduce  gradcheck net.onnx --x input --y loss --seed 0 --point 0

1 check: 1 failed in 0.84s
"""


def report(*checks: Check) -> Report:
    return Report(checks, (), 0.84)


def test_the_page_of_a_failure() -> None:
    assert render("full", report(FAILED)) == PAGE


LONG = replace(
    FAILED,
    x="encoder/layer_0/attention/self/query/kernel:0",
    y="a_very_long_name_of_a_loss",
    y_shape=(8, 10),
)


def test_names_are_cut_and_numbers_are_not() -> None:
    head, row = render("full", report(LONG), Style(width=100)).splitlines()[2:4]
    assert max(map(len, (head, row))) <= 100
    assert row.startswith("encode...rnel:0 [1,3,8,8]  a_very_...a_loss [8,10]  192/192 ")
    assert row.endswith("      4.0e-02      1.0e+00    3e-10  FAIL")


def test_errors_stand_below_names_of_which_too_little_would_be_left() -> None:
    assert render("full", report(LONG)).splitlines()[2:6] == [
        "x                                              y",
        "  entries  max abs err  max rel err    noise (uncertainty)",
        "encoder/layer_0/...f/query/kernel:0 [1,3,8,8]  a_very_long_name_of_a_loss [8,10]",
        "  192/192      4.0e-02      1.0e+00    3e-10  FAIL",
    ]


def test_a_wide_table_of_entries_leaves_out_what_follows_from_the_rest() -> None:
    wide = replace(FAILED, y_shape=(8, 10), worst=tuple(replace(e, y=(7, 9)) for e in ENTRIES))
    lines = render("full", report(wide)).splitlines()
    head = next(line for line in lines if "theoretical" in line)
    assert "abs err" not in head
    assert max(len(line) for line in lines[:12]) <= 80
    assert "[0,2,7,7] -> [7,9]" in render("full", report(wide))


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "a\nb", "]]>", "<x>&\"'", "a|b`c", "a,b:c%d", "\x00", "\ud800"])
@pytest.mark.parametrize("form", FORMATS)
def test_any_name_goes_into_any_format(form: str, name: str) -> None:
    check = replace(FAILED, x=name, check=name, model=replace(MODEL, uri=name), notes=(name,), reproduce=name)
    text = render(form, report(check))
    assert "\x1b" not in text
    assert "\x00" not in text
    if form == "json":
        assert json.loads(text)["checks"][0]["x"] == name
    if form == "jsonl":
        assert json.loads(text)["x"] == name
    if form == "junit":
        ElementTree.fromstring(text)
    if form == "github":
        assert [line.startswith("::") for line in text.splitlines()] == [False, True, False]


@pytest.mark.parametrize("form", FORMATS)
def test_a_report_without_checks_is_a_report(form: str) -> None:
    text = render(form, Report(()))
    assert form == "jsonl" or text


def test_numbers_that_are_not_finite_are_words_in_json() -> None:
    odd = replace(FAILED, max_abs_err=math.nan, worst=(replace(ENTRIES[0], numerical=-math.inf),))
    [record] = json.loads(render("json", report(odd)))["checks"]
    assert (record["max_abs_err"], record["worst"][0]["numerical"]) == ("nan", "-inf")
    assert "nan" in render("full", report(odd))


def test_an_error_stands_in_every_format() -> None:
    error = Check("a.onnx", "a.onnx", "error", "GC401", ModelInfo("a.onnx"), "", "", message="a.onnx is empty.")
    assert render("full", report(error)).splitlines() == [
        "a.onnx", "", "ERROR GC401  a.onnx is empty.", "", "1 check: 1 error in 0.84s",
    ]  # fmt: skip
    for form in FORMATS:
        assert "is empty" in render(form, report(error))


def test_a_forward_run_that_differs_is_expected_only_where_that_was_said() -> None:
    differs = {"agrees": False, "reason": "y is off by 1"}
    waiver = {"forward": "differs", "reason": "ACME-413"}
    severed = replace(FAILED, status="severed", code="GC107", worst=(), gates=("severed",), forward=differs)
    assert "\nFORWARD DIFFERS  y is off by 1\n" in render("full", report(severed))
    assert "\nFORWARD DIFFERS, as expected: ACME-413\n" in render("full", report(replace(severed, waiver=waiver)))


def test_quiet_leaves_out_what_passed_and_verbose_adds_to_it() -> None:
    passed = replace(
        FAILED, status="pass", code="", worst=(), suspect=None, notes=("values of test_data_set_0 for x", "a note")
    )
    assert render("full", report(passed), Style(verbosity=-1)) == "1 check: 1 passed in 0.84s\n"
    assert "test_data_set_0" not in render("full", report(passed))
    assert "  note       a note\n" in render("full", report(passed))  # of which no row tells
    assert "test_data_set_0" in render("full", report(passed), Style(verbosity=1))
    assert "  a note\n" in render("full", report(passed), Style(verbosity=1))


@pytest.mark.parametrize("value, expected", [(2.0, "2.0"), (0.00031, "0.00031"), (3.11e-05, "3.2e-05"), (0.0, "0.0")])
def test_a_tolerance_is_rounded_up(value: float, expected: str) -> None:
    assert upper(value) == expected


def test_a_name_is_cut_in_its_middle() -> None:
    assert cut("encoder/query/kernel", 11) == "enco...rnel"
    assert cut("short", 11) == "short"


@pytest.mark.parametrize("width", [12, 40, 80])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "one",
        "two  spaces",
        "  checks[0]: an indent of its own ^",
        "x" * 100 + " y",
        "words " * 30,
        "名前 テンソル " * 9,
    ],
)
def test_a_wrapped_sentence_fits_and_keeps_its_words_and_its_own_indent(text: str, width: int):
    lines, words = wrapped(text, width, "- ", "    "), text.split()
    assert " ".join(lines).split() == (["-", *words] if words else [])
    assert all(columns(line) <= width or len(line[2:].split()) == 1 for line in lines)
    assert all(line.startswith("    ") and line == line.rstrip() for line in lines[1:])
    assert not words or lines[0].startswith("- " + " " * (len(text) - len(text.lstrip())) + words[0])
