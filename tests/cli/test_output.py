"""Whole outputs of `gradcheck check`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tests.cli import models
from tests.cli.conftest import WRONG, Command


def test_a_model_that_passes(gradcheck: Command) -> None:
    ran = gradcheck("mlp.onnx", "--x", "input", "--y", "loss", "--dim", "N=2", "--method", "central", "--rtol", "1e-3")
    assert ran.code == 0
    assert ran.err == ""
    head, how, blank, columns, row, *rest = ran.out.split("\n")
    assert head == "mlp.onnx  opset 17, acme 1, 4 nodes | float32 model, checked in float64 | seed 0"
    assert how == "          full, central | N=2"
    assert (blank, columns) == ("", "x            y        entries  max abs err  max rel err    noise (uncertainty)")
    assert row.startswith("input [2,4]  loss []      8/8  ")
    assert row.endswith("  PASS")
    assert rest.pop(0).startswith("  health     norm ")
    assert rest == ["", "1 check: 1 passed in TIME", ""]


def test_a_failure_shows_entries_suspect_and_how_to_do_it_again(gradcheck: Command) -> None:
    ran = gradcheck("wrong.gradcheck.yaml", "-k", "wrong", "--show", "2")
    lines = ran.out.splitlines()
    assert ran.code == 1
    assert lines[5] == "FAIL GC101  d loss / d x: 3 of 3 entries differ (100%)"
    assert lines[6].split() == [
        "entry",
        "of",
        "x",
        "theoretical",
        "numerical",
        "abs",
        "err",
        "rel",
        "err",
        "noise",
        "pattern",
    ]
    assert [line.split()[-2:] for line in lines[7:9]] == [["x", "0.5"]] * 2
    assert lines[9:11] == ["... 1 more, --show 3", ""]
    assert lines[11] == "  suspect    node 0  Square  x -> h"
    assert lines[12].startswith("             fails on its own: max rel err 5.0e-01")
    assert "  would pass only with --rtol 0.5" in lines
    assert lines[-3] == (
        "  reproduce  gradcheck wrong.gradcheck.yaml --check square/wrong --x x --y loss --seed 0 --point 0"
    )
    assert lines[-1] == "1 check: 1 failed in TIME"


def test_what_reproduce_prints_gives_the_same_again(gradcheck: Command) -> None:
    first = gradcheck("wrong.gradcheck.yaml", "--check", "square/wrong", "--seed", "5")
    command = next(line for line in first.out.splitlines() if "reproduce" in line).split()[2:]
    assert gradcheck(*command).out == first.out


def test_concise_is_one_line_a_check(gradcheck: Command) -> None:
    ran = gradcheck("wrong.gradcheck.yaml", "--output-format", "concise")
    wrong, known, right, summary = ran.out.splitlines()
    spec, told = "wrong.gradcheck.yaml", "KNOWN FAILURE fail, as expected: ACME-412 (until 2999-12-31)"
    assert wrong == f"{spec}:18: square/wrong: d loss/d x: FAIL GC101 3/3 entries differ, max rel err 5.0e-01"
    assert known == f"{spec}:19: square/known: d loss/d x: {told}"
    assert right.startswith(f"{spec}:21: sum/right: d loss/d h: PASS 3 entries")
    assert summary == "3 checks: 1 passed, 1 known failure, 1 failed in TIME"


def test_json_is_strict_and_carries_the_exit_code(gradcheck: Command) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    ran = gradcheck("wrong.gradcheck.yaml", "mlp.onnx", "--output-format", "json")
    document = json.loads(ran.out, parse_constant=refuse)
    assert (ran.code, document["schema"], document["exit_code"]) == (1, "gradcheck.run/1", 1)
    assert [c["status"] for c in document["checks"]] == ["fail", "waived", "pass", "pass", "pass"]
    assert document["checks"][0]["suspect"]["op"] == "Square"


def test_jsonl_is_a_record_a_line(gradcheck: Command) -> None:
    records = [json.loads(line) for line in gradcheck("mlp.onnx", "--output-format", "jsonl").out.splitlines()]
    assert [(r["schema"], r["x"], r["y"]) for r in records] == [
        ("gradcheck.result/1", "input", "loss"),
        ("gradcheck.result/1", "aux_in", "aux_out"),
    ]


def test_github_annotates_what_did_not_pass(gradcheck: Command) -> None:
    *log, first, summary = gradcheck("wrong.gradcheck.yaml", "--output-format", "github").out.splitlines()
    assert [line.split("  ")[0] for line in log] == [
        "FAIL GC101 square/wrong: d loss/d x", "KNOWN FAILURE square/known: d loss/d x", "PASS sum/right: d loss/d h",
    ]  # fmt: skip
    assert first.startswith(
        "::error file=wrong.gradcheck.yaml,line=18,title=GC101 square/wrong%3A d loss/d x::3/3 entries"
    )
    assert summary == "3 checks: 1 passed, 1 known failure, 1 failed in TIME"


@pytest.mark.parametrize("form", ["full", "concise", "markdown", "junit", "json"])
def test_no_name_is_a_command_to_the_runner_that_reads_the_log(gradcheck: Command, folder: Path, form: str) -> None:
    models.named(folder / "named.onnx", "::error::x", "##[error]y")
    out = gradcheck("named.onnx", "--output-format", form).out
    assert re.findall(r"^\s*::|##\[", out, re.MULTILINE) == []
    assert "error" in out


def test_reports_are_written_by_suffix(gradcheck: Command, folder: Path) -> None:
    paths = ["r.json", "r.jsonl", "r.xml", "r.md"]
    ran = gradcheck("wrong.gradcheck.yaml", *(word for path in paths for word in ("--report", path)))
    assert ran.code == 1
    assert json.loads((folder / "r.json").read_text())["exit_code"] == 1
    assert len((folder / "r.jsonl").read_text().splitlines()) == 3
    root = ElementTree.parse(folder / "r.xml").getroot()
    skipped = [suite.get("skipped") for suite in root]
    assert (root.get("tests"), root.get("failures"), skipped) == ("3", "1", ["0", "1", "0"])
    assert (folder / "r.md").read_text().startswith("## gradcheck: 3 checks: 1 passed, 1 known failure, 1 failed\n")


def test_a_report_is_written_even_if_the_only_model_cannot_be_read(gradcheck: Command, folder: Path) -> None:
    ran = gradcheck("lfs.onnx", "--report", "r.json")
    assert (ran.code, ran.out) == (4, "")
    [record] = json.loads((folder / "r.json").read_text())["checks"]
    assert (record["status"], record["code"]) == ("error", "GC403")


def test_several_models_run_each_once_and_one_that_fails_stops_no_other(gradcheck: Command) -> None:
    ran = gradcheck("conv.onnx", "lfs.onnx", "./conv.onnx", "mlp.onnx", "--output-format", "concise")
    assert [line.split(":")[0] for line in ran.out.splitlines()] == [
        "conv.onnx", "lfs.onnx", "mlp.onnx", "mlp.onnx", "4 checks",
    ]  # fmt: skip
    assert "lfs.onnx: ERROR GC403 lfs.onnx is a Git LFS pointer" in ran.out
    assert ran.code == 4


def test_fail_fast_stops_at_the_first_failure(gradcheck: Command) -> None:
    ran = gradcheck("wrong.gradcheck.yaml", "mlp.onnx", "--fail-fast", "--output-format", "concise")
    assert ran.out.splitlines()[-1] == "1 check: 1 failed in TIME"


def test_quiet_says_nothing_of_what_passed(gradcheck: Command) -> None:
    assert gradcheck("mlp.onnx", "-q").out == "2 checks: 2 passed in TIME\n"
    assert "PASS" not in gradcheck("wrong.gradcheck.yaml", "-q").out


@pytest.mark.slow
def test_verbose_states_how_many_groups_rows_were_probed_in(gradcheck: Command) -> None:
    options = ("conv.onnx", "--x", "image", "--y", "c", "--dim", "N=32", "-v")
    assert re.search(r"\n  coloring   \d+ rows perturbed in \d+ groups\n", gradcheck(*options).out)
    assert "coloring" not in gradcheck(*options, "--no-coloring").out


def test_verbose_states_method_and_tolerances(gradcheck: Command) -> None:
    out = gradcheck("mlp.onnx", "--x", "input", "--y", "loss", "-v").out
    assert "  method     full, complex-step; rtol 5e-07, atol 0; 1 point" in out


def test_a_folder_and_a_pattern_find_models_and_leave_side_cars_to_them(gradcheck: Command, folder: Path) -> None:
    nested = folder / "nets" / "deep"
    nested.mkdir(parents=True)
    (folder / "mlp.onnx").rename(nested / "b.onnx")
    (folder / "conv.onnx").rename(folder / "nets" / "a.onnx")
    (nested / "b.gradcheck.yaml").write_text("gradcheck: 1\nchecks: [{name: car, model: b.onnx, x: input, y: loss}]\n")
    expected = ["nets/a.onnx: d loss/d image", "nets/deep/b.gradcheck.yaml:2: car: d loss/d input"]
    for argument in ("nets", "nets/**/*.onnx", "net*s"):
        lines = gradcheck(argument, "--output-format", "concise").out.splitlines()[:-1]
        assert [line.partition(": PASS")[0] for line in lines] == expected, argument


def test_a_folder_and_a_pattern_leave_out_what_is_hidden(gradcheck: Command, folder: Path) -> None:
    nets = folder / "nets"
    for name in ("a.onnx", "._a.onnx", ".cache/b.onnx", "deep/.c.onnx"):
        (nets / name).parent.mkdir(parents=True, exist_ok=True)
        models.mlp(nets / name)
    for argument in ("nets", "nets/*.onnx", "nets/**/*.onnx", "net*s"):
        lines = gradcheck(argument, "--output-format", "concise").out.splitlines()[:-1]
        assert {line.partition(": ")[0] for line in lines} == {"nets/a.onnx"}, argument
    assert gradcheck("nets/._a.onnx").code == 0  # named, a hidden file is a model as any other


@pytest.mark.parametrize("color, colored", [("always", True), ("never", False), ("auto", False)])
def test_colors_only_where_wanted(gradcheck: Command, color: str, colored: bool) -> None:
    assert ("\x1b[" in gradcheck("mlp.onnx", "--color", color).out) is colored


@pytest.mark.parametrize("color, colored", [("always", True), ("never", False), ("auto", False)])
@pytest.mark.parametrize("wrong", ["--delta=x", "--y=nothing"])
def test_titles_of_errors_are_colored_where_wanted(gradcheck: Command, color: str, colored: bool, wrong: str) -> None:
    ran = gradcheck("mlp.onnx", wrong, "--color", color)
    assert ran.code == 2
    assert ("\x1b[" in ran.err) is colored


def test_a_file_of_settings_colors_titles(gradcheck: Command, folder: Path) -> None:
    (folder / "gradcheck.toml").write_text('color = "always"')
    ran = gradcheck("mlp.onnx", "--y", "nothing")
    assert ran.code == 2
    assert "\x1b[" in ran.err


def test_force_color_and_no_color(gradcheck: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in gradcheck("mlp.onnx").out
    assert "\x1b[" in gradcheck("nowhere.onnx").err
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in gradcheck("mlp.onnx").out
    assert "\x1b[" not in gradcheck("nowhere.onnx").err


def test_a_waiver_that_no_longer_holds_fails(gradcheck: Command, folder: Path) -> None:
    stale = WRONG.replace("square/known, graph: net, x: x", "square/known, graph: net, x: h")
    (folder / "stale.gradcheck.yaml").write_text(stale)
    ran = gradcheck("stale.gradcheck.yaml", "-k", "known")
    assert ran.code == 1
    assert "FAIL GC203 d loss / d h: passes, but is expected to give fail (ACME-412): remove" in " ".join(
        ran.out.split()
    )


def test_a_waiver_ends_with_its_last_day(gradcheck: Command, folder: Path) -> None:
    (folder / "over.gradcheck.yaml").write_text(WRONG.replace("2999-12-31", "2020-01-01"))
    ran = gradcheck("over.gradcheck.yaml", "-k", "known")
    assert ran.code == 1
    assert "  was a known failure, ACME-412, until 2020-01-01" in ran.out


def test_an_inconclusive_check_names_the_kink_and_says_what_to_try(gradcheck: Command, folder: Path) -> None:
    spec = "gradcheck: 1\ngraphs:\n  net:\n    inputs: {x: {shape: [4]}}\n    nodes: |\n      r = Relu (x)\n"
    spec += "      n = Neg (x)\n      s = Relu (n)\n      y = Sub (r, s)\n"
    spec += "    outputs: [y]\nchecks: [{x: x, y: y, x_init_value: [0, 1, 2, 3]}]\n"
    (folder / "kinks.gradcheck.yaml").write_text(spec)
    lines = gradcheck("kinks.gradcheck.yaml").out.splitlines()
    start = lines.index("INCONCLUSIVE GC301  d y / d x: 1 of 16 entries cannot be judged (6.2%)")
    place, _, to, theoretical, left, right, _, reason = lines[start + 2].split()
    assert (place, to, theoretical, left, right, reason) == ("[0]", "[0]", "0", *["1.00000e+00"] * 2, "nonderivative")
    said = "1 entry at a tie of node 0 Relu 'r', node 2 Relu 's': nonderivative, slopes 1 and 1 from the two sides, "
    said += "gradient 0"
    assert lines[start + 3 : start + 5] == [
        f"  {said}",
        "  try        another --seed, or values away from the kink: --val-range (gradcheck explain GC301)",
    ]
    assert lines[start + 5].startswith("  reproduce  gradcheck kinks.gradcheck.yaml --check net --x x --y y --seed 0")


def test_the_gradient_of_the_gradient_has_a_row_of_its_own(gradcheck: Command) -> None:
    ran = gradcheck("mlp.onnx", "--x", "input", "--y", "loss", "--second-order", "-v")
    rows = [line for line in ran.out.splitlines() if line.startswith("input")]
    assert [row.split()[-1] for row in rows] == ["PASS", "PASS"]
    assert "  64/64  " in rows[1]
    assert "\nPASS  d loss / d input\n" in ran.out
    assert "\nPASS  d2 loss / d input^2\n" in ran.out
    assert ran.out.endswith("2 checks: 2 passed in TIME\n")


def test_a_record_of_second_order_says_how_to_do_it_again(gradcheck: Command) -> None:
    """The row is asked for by the tensor whose gradient it is about: its own y has no name in the model."""
    records = json.loads(gradcheck("mlp.onnx", "--x", "W", "--second-order", "--output-format", "json").out)["checks"]
    assert [r["id"] for r in records] == ["mlp.onnx::d loss/d W", "mlp.onnx::d2 loss/d W^2"]
    assert records[1]["reproduce"] == "gradcheck mlp.onnx --x W --y loss --second-order --dim N=2 --seed 0 --point 0"
    ran = gradcheck("mlp.onnx", "--x", "W", "--x", "input", "--second-order", "--output-format", "json")
    again = (
        "gradcheck mlp.onnx --x W --x input --y loss --second-order --dim N=2 --seed 0 --point 0"  # held to each other
    )
    assert [r["reproduce"] for r in json.loads(ran.out)["checks"] if r["gradient_of"]] == [again, again]


def test_as_tensorflow_compares(gradcheck: Command) -> None:
    ran = gradcheck("mlp.onnx", "--x", "input", "--y", "loss", "--compat", "tf", "-v")
    assert ran.out.splitlines()[1].split("|")[0].strip() == "full, central"
    assert "  as in TensorFlow: delta 0.001, |difference| <= 0.0001 + 0.0001 |numerical|" in ran.out
    assert "rtol 0.0001, atol 0.0001" in ran.out
    finer = gradcheck("mlp.onnx", "--x", "input", "--y", "loss", "--compat", "tf", "--delta", "0.25", "--atol", "0")
    assert finer.code == 1
    assert "--compat tf" in finer.out


def test_branches_that_no_point_has_taken_are_counted_and_named_if_asked(gradcheck: Command, folder: Path) -> None:
    models.save(folder / "leaky.onnx", "leaky (float[3] x) => (float[3] y) { h = Exp (x)  y = LeakyRelu (h) }")
    assert "  branches   1 of 2 LeakyRelu sides never taken: try --points 10\n" in gradcheck("leaky.onnx").out
    named = gradcheck("leaky.onnx", "-v").out
    assert "  node 1 LeakyRelu 'y': negative side not covered\n" in named
    assert "  branches   1 of 2 LeakyRelu sides never taken: try --points 10\n" in named
    [record] = json.loads(gradcheck("leaky.onnx", "--output-format", "json").out)["checks"]
    [read] = record["branches"].pop("ranges")
    assert re.fullmatch(r"node 1 LeakyRelu 'y' reads 0\.\d+ to \d\.\d+", read)
    assert f"  values     {read}\n" in named
    assert record["branches"] == {
        "total": 2,
        "covered": 1,
        "missed": ["node 1 LeakyRelu 'y': negative side not covered"],
    }


def test_a_range_that_was_chosen_is_printed(gradcheck: Command, folder: Path) -> None:
    models.save(
        folder / "cube.onnx", "cube (float[3] x) => (float[3] y) { q = Mul (x, x)  h = Mul (q, x)  y = Log (h) }"
    )
    ran = gradcheck("cube.onnx")
    assert ran.code == 0
    assert ran.out.splitlines()[1].strip() == "x in 0.1,1"


def test_a_claim_of_another_shape_has_no_errors_and_no_method(gradcheck: Command, folder: Path) -> None:
    np.save("g.npy", np.zeros(5))
    np.save("x.npy", np.ones((2, 4), np.float32))
    ran = gradcheck("mlp.onnx", "--x", "input", "--y", "loss", "--feed", "input=@x.npy", "--grad", "input=@g.npy")
    assert ran.code == 1
    how, _, _, row = ran.out.splitlines()[1:5]
    assert how.split() == ["N=2"]
    assert re.search(r"  0/0 +- +- +0  FAIL$", row)
