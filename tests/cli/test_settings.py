"""Places that settings come from, and which of them wins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import numpy_helper

from tests.cli import models
from tests.cli.conftest import Command


def first(gradcheck: Command, *args: str) -> dict[str, Any]:
    """The first record of a run."""
    ran = gradcheck(*args, "--output-format", "json")
    assert ran.out, ran.err
    record: dict[str, Any] = json.loads(ran.out)["checks"][0]
    return record


@pytest.mark.parametrize("layers, expected", [(0, 5e-7), (1, 1e-2), (2, 1e-3), (3, 1e-4), (4, 1e-5)])
def test_the_stronger_place_wins(
    gradcheck: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, layers: int, expected: float
) -> None:
    if layers > 0:
        (folder / "gradcheck.toml").write_text("rtol = 1e-2\n")
    if layers > 1:
        (folder / "mlp.gradcheck.yaml").write_text("gradcheck: 1\nchecks: [{model: mlp.onnx, rtol: 1e-3}]\n")
    if layers > 2:
        monkeypatch.setenv("GRADCHECK_RTOL", "1e-4")
    args = ["--rtol", "1e-5"] if layers > 3 else []
    assert first(gradcheck, "mlp.onnx", *args)["rtol"] == expected


@pytest.mark.parametrize("typed", ["", "-q", "-v"])
@pytest.mark.parametrize("variable", ["", "GRADCHECK_VERBOSE", "GRADCHECK_QUIET"])
@pytest.mark.parametrize("key", ["", "verbose", "quiet"])
def test_what_is_said_is_what_the_stronger_place_asks_for(
    gradcheck: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, typed: str, variable: str, key: str
) -> None:
    if key:
        (folder / "gradcheck.toml").write_text(f"{key} = 1\n")
    if variable:
        monkeypatch.setenv(variable, "1")
    strongest = typed or {"V": "-v", "Q": "-q"}.get((variable.removeprefix("GRADCHECK_") or key.upper())[:1], "")
    out = gradcheck("mlp.onnx", "--x", "input", *([typed] if typed else [])).out
    assert ("max rel err" in out, "method " in out) == (strongest != "-q", strongest == "-v")


@pytest.mark.parametrize("typed", [["--x-init-value", "2"], ["--x-init-value", "input=2"], ["--feed", "input=2"]])
@pytest.mark.parametrize("kept", ["x_init_value: 1", "x_init_value: {input: 1}", "extra_feed_dict: {input: 1}"])
def test_of_two_ways_to_give_a_value_the_stronger_place_wins(
    gradcheck: Command, folder: Path, kept: str, typed: list[str]
) -> None:
    line = ("mlp.onnx", "--x", "input", "--y", "loss")
    alone = {n: first(gradcheck, *line, "--feed", f"input={n}")["gradient"]["norm"] for n in (1, 2)}
    (folder / "mlp.gradcheck.yaml").write_text(f"gradcheck: 1\nchecks: [{{model: mlp.onnx, {kept}}}]\n")
    assert first(gradcheck, *line)["gradient"]["norm"] == alone[1]
    assert first(gradcheck, *line, *typed)["gradient"]["norm"] == alone[2]


AGAIN = "is given twice, and only the last would count."
BOTH = "input has two values, of --x-init-value and --extra-feed-dict; leave out one of them."


@pytest.mark.parametrize("typed, message", [
    ("--feed input=1 --feed input=2", f"--extra-feed-dict input=... {AGAIN}"),
    ("--x-init-value input=1 --x-init-value input=2", f"--x-init-value input=... {AGAIN}"),
    ("--x-init-value 1 --x-init-value 2", f"--x-init-value {AGAIN}"),
    ("--rtol 1e-3 --rtol 1e-9", f"--rtol {AGAIN}"),
    ("--atol loss:1 --atol loss:2", f"--atol loss:... {AGAIN}"),
    ("--x-shape input:8,4 --x-shape input:8,4", f"--x-shape input:... {AGAIN}"),
    ("--val-range 0,1 --val-range 0,2", f"--val-range {AGAIN}"),
    ("--dim N=2 --dim N=3", f"--dim N=... {AGAIN}"),
    ("--grad input=loss --grad input=logits", f"--grad input=... {AGAIN}"),
    ("--x-init-value input=1 --feed input=2", BOTH),
    ("--x-init-value 1 --feed input=2", BOTH),
])  # fmt: skip
def test_one_place_gives_one_value(gradcheck: Command, typed: str, message: str) -> None:
    ran = gradcheck("mlp.onnx", "--x", "input", "--y", "loss", *typed.split())
    assert (ran.code, ran.err) == (2, f"error GC201: {message}\n")


def test_a_value_for_all_and_one_for_a_tensor_are_two(gradcheck: Command) -> None:
    assert gradcheck("mlp.onnx", "--rtol", "1e-3", "--rtol", "input:1e-5", "--rtol", "loss:1e-4").code == 0


def test_the_nearest_file_counts_and_pyproject_does_too(gradcheck: Command, folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "mlp.onnx").rename(inner / "mlp.onnx")
    (folder / "gradcheck.toml").write_text("seed = 1\n")
    (inner / "pyproject.toml").write_text("[tool.gradcheck]\nseed = 2\n[tool.other]\nx = 1\n")
    assert first(gradcheck, "inner/mlp.onnx")["seed"] == 2


@pytest.mark.parametrize("name", ["gradchek", "Gradcheck", "grad-check", "gardcheck"])
def test_a_table_that_is_called_nearly_as_ours_is_noted_once(gradcheck: Command, folder: Path, name: str) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "mlp.onnx").write_bytes((folder / "mlp.onnx").read_bytes())
    (folder / "pyproject.toml").write_text(f"[tool.{name}]\nseed = 2\n")
    ran = gradcheck("mlp.onnx", "inner/mlp.onnx")
    said = (
        f"note: {folder / 'pyproject.toml'} has [tool.{name}], which nothing reads; gradcheck reads [tool.gradcheck]\n"
    )
    assert (ran.code, ran.err.count(said)) == (0, 1), ran.err


@pytest.mark.parametrize("names", [("gradchek", "gradcheck"), ("gradient",), ("black",), ("gradcheck-more",)])
def test_tables_of_other_tools_are_not_noted(gradcheck: Command, folder: Path, names: tuple[str, ...]) -> None:
    (folder / "pyproject.toml").write_text("".join(f"[tool.{name}]\nseed = 2\n" for name in names))
    ran = gradcheck("mlp.onnx")
    assert (ran.code, "which nothing reads" in ran.err) == (0, False)


def test_every_kind_of_value_of_a_file(gradcheck: Command, folder: Path) -> None:
    text = """
        x = ["input", "W"]
        val-range = [0, 0.5]
        rtol = {input = 1e-3}
        dims = {N = 3}
        x_init_value = {input = 0.5}
        fail_on = ["fail"]
        exit_zero = true
        delta = "auto"
        timeout = "10m"
    """
    (folder / "gradcheck.toml").write_text(text)
    record = first(gradcheck, "mlp.onnx", "--y", "loss")
    assert (record["x"], record["x_shape"], record["rtol"]) == ("input", [3, 4], 1e-3)


@pytest.mark.parametrize("text, message", [
    ("rtol = 1\nsed = 3\n", "gradcheck.toml:2:1: unknown key 'sed'. Did you mean 'seed'?"),
    ("points = 0\n", "gradcheck.toml:1:1: points: 0 is not in the range x>=1."),
    ("seed = true\n", "gradcheck.toml:1:1: seed is true; it must be a number or a text"),
    ("seed = \n", "gradcheck.toml:1:8: not TOML: Invalid value"),
])  # fmt: skip
def test_a_mistake_in_a_file_is_shown_in_its_line(gradcheck: Command, folder: Path, text: str, message: str) -> None:
    (folder / "gradcheck.toml").write_text(text)
    ran = gradcheck("mlp.onnx")
    assert ran.code == 2
    assert message in ran.err


def test_tensorflows_spellings_are_understood(gradcheck: Command) -> None:
    fed = [
        "--x_shape",
        "input:3,4",
        "mlp.onnx",
        "--extra_feed_dict",
        "aux_in=[1, 2]",
        "--x_init_value",
        "input=2",
    ]
    record = first(gradcheck, *fed, "--x", "input", "--y", "loss")
    assert record["x_shape"] == [3, 4]


@pytest.mark.parametrize("spelling", ["input:5,4", "input:[5,4]", "input:5x4", "input:5, 4"])
def test_shapes_are_written_in_three_ways(gradcheck: Command, spelling: str) -> None:
    assert first(gradcheck, "mlp.onnx", "--input-shapes", spelling)["x_shape"] == [5, 4]


def test_names_may_hold_colons_spaces_and_slashes(gradcheck: Command) -> None:
    record = first(
        gradcheck, "named.onnx", "--x", "in put:0", "--y", "net/out=1", "--x-shape", "in put:0:2", "--rtol",
        "in put:0:1e-3", "--feed", "in put:0=[1, 2]",
    )  # fmt: skip
    assert (record["status"], record["rtol"]) == ("pass", 1e-3)


def test_the_longest_known_name_wins(gradcheck: Command, folder: Path) -> None:
    models.named(folder / "nested.onnx", "a", "a=1")
    record = first(gradcheck, "nested.onnx", "--x", "a=1", "--y", "a=1", "--feed", "a=1=[3, 4]")
    assert record["x"] == "a=1"


def test_values_come_from_files(gradcheck: Command, folder: Path) -> None:
    value = np.full((2, 4), 0.25)
    np.save(folder / "v.npy", value)
    np.savez(folder / "v.npz", one=value, two=value)
    (folder / "v.json").write_text(json.dumps({"a": value.tolist()}))
    (folder / "v.pb").write_bytes(numpy_helper.from_array(value).SerializeToString())
    header = b"'shape': (2, 4), }  ", b"'shape': (2L, 4L), }"  # as Python 2 wrote it
    (folder / "old.npy").write_bytes((folder / "v.npy").read_bytes().replace(*header))
    np.save(folder / "big.npy", value.astype(">f8"))
    for given in ("@v.npy", "@old.npy", "@big.npy", "@v.npz:one", "@v.json:a", "@v.json", "@v.pb"):
        record = first(gradcheck, "mlp.onnx", "--x", "input", "--y", "loss", "--x-init-value", given)
        assert (record["status"], record["x_shape"]) == ("pass", [2, 4])
    ran = gradcheck("mlp.onnx", "--x", "input", "--x-init-value", "@v.npz:tow")
    assert "v.npz has no array 'tow'. Did you mean 'two'? It has: one, two." in ran.err
    np.savez(folder / "w.npz", **{f"a{i}": value for i in range(12)})
    ran = gradcheck("mlp.onnx", "--x", "input", "--x-init-value", "@w.npz:b")
    assert "It has: a0, a1, a2, a3, a4, a5, a6, a7, a8, a9 and 2 more." in ran.err


def test_a_random_seed_is_printed(gradcheck: Command) -> None:
    assert first(gradcheck, "mlp.onnx", "--seed", "random")["seed"] > 0


def test_a_side_car_supplies_checks_and_typed_targets_replace_several(gradcheck: Command, folder: Path) -> None:
    text = "gradcheck: 1\nchecks:\n  - {name: one, model: mlp.onnx, x: input, y: loss}\n"
    (folder / "mlp.gradcheck.yaml").write_text(text + "  - {name: two, model: mlp.onnx, x: W, y: loss}\n")
    both = json.loads(gradcheck("mlp.onnx", "--output-format", "json").out)["checks"]
    assert [(c["check"], c["x"]) for c in both] == [("one", "input"), ("two", "W")]
    assert first(gradcheck, "mlp.onnx", "--x", "h", "--y", "loss")["check"] == "mlp.onnx"


def test_a_side_car_without_checks_still_gives_its_defaults(gradcheck: Command, folder: Path) -> None:
    (folder / "mlp.gradcheck.yaml").write_text("gradcheck: 1\ndefaults: {seed: 7, rtol: 1e-3}\n")
    record = first(gradcheck, "mlp.onnx", "--rtol", "1e-4")
    assert (record["seed"], record["rtol"]) == (7, 1e-4)


def test_a_spec_beside_a_model_is_a_side_car_only_if_it_is_about_that_model(gradcheck: Command, folder: Path) -> None:
    (folder / "mlp.gradcheck.yaml").write_text((folder / "wrong.gradcheck.yaml").read_text())
    assert first(gradcheck, "mlp.onnx")["check"] == "mlp.onnx"
    names = "gradcheck: 1\nchecks: [{name: other, model: conv.onnx}, {name: mine, model: mlp.onnx, x: W, y: loss}]\n"
    (folder / "mlp.gradcheck.yaml").write_text(names)
    records = json.loads(gradcheck("mlp.onnx", "--output-format", "json").out)["checks"]
    assert [record["check"] for record in records] == ["mine"]


def test_a_folder_holds_models_with_their_side_cars_and_specs_of_their_own(gradcheck: Command, folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    for name in ("mlp.onnx", "conv.onnx"):
        (folder / name).rename(inner / name)
    (inner / "mlp.gradcheck.yaml").write_text("gradcheck: 1\nchecks: [{name: car, model: mlp.onnx, x: W, y: loss}]\n")
    (inner / "conv.gradcheck.yaml").write_text((folder / "wrong.gradcheck.yaml").read_text())
    records = json.loads(gradcheck("inner", "--output-format", "json").out)["checks"]
    assert [record["check"] for record in records] == [
        "square/wrong", "square/known", "sum/right", "inner/conv.onnx", "car",
    ]  # fmt: skip


def test_paths_in_a_configuration_file_are_seen_from_there(gradcheck: Command, folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "mlp.onnx").rename(inner / "mlp.onnx")
    np.save(inner / "v.npy", np.full((5, 4), 0.25))
    (inner / "gradcheck.toml").write_text('x_init_value = {input = "@v.npy"}\nreport = ["r.json"]\n')
    assert first(gradcheck, "inner/mlp.onnx", "--x", "input")["x_shape"] == [5, 4]
    assert json.loads((inner / "r.json").read_text())["exit_code"] == 0


@pytest.mark.one_in(8)
@pytest.mark.parametrize("line", [
    'report = ["{}/r.json"]', 'report = ["r.json", "{}/pages/"]', 'plot = "{}/p.png"', 'save_failures = "{}"',
    'baseline = "{}/b.json"', 'test_data = "{}"', 'x_init_value = "@{}/v.npy"', 'feed = {{input = "@{}/v.npz:a"}}',
])  # fmt: skip
@pytest.mark.parametrize("way", ["..", "link", "absolute", "a/../.."])
def test_a_configuration_file_names_nothing_outside_its_folder(
    gradcheck: Command, folder: Path, line: str, way: str
) -> None:
    inner, outer = folder / "inner", folder / "outer"
    inner.mkdir()
    outer.mkdir()
    (folder / "conv.onnx").rename(inner / "conv.onnx")
    (inner / "link").symlink_to(outer)
    text = line.format(outer if way == "absolute" else way)
    (inner / "gradcheck.toml").write_text("seed = 1\n" + text + "\n")
    before = sorted(folder.rglob("*"))
    ran = gradcheck("inner/conv.onnx")
    assert ran.code == 2
    assert f"gradcheck.toml:2:1: {line.split()[0]}: the path " in ran.err
    assert ("is absolute" if way == "absolute" else "leads out of the folder of this file") in ran.err
    assert sorted(folder.rglob("*")) == before


def test_options_of_the_run_below_some_models_are_noted(gradcheck: Command, folder: Path) -> None:
    inner = folder / "inner"
    inner.mkdir()
    (folder / "conv.onnx").rename(inner / "conv.onnx")
    (inner / "gradcheck.toml").write_text('show = 7\nfail_on = ["fail"]\nseed = 3\n')
    ran = gradcheck("mlp.onnx", "inner/conv.onnx", "--show", "2", "--output-format", "json")
    assert [record["seed"] for record in json.loads(ran.out)["checks"]] == [0, 0, 3]
    assert (
        ran.err == f"note: {inner / 'gradcheck.toml'}: fail_on has no effect here: it lies below some of the models\n"
    )
    assert gradcheck("inner/conv.onnx").err == ""


def test_a_range_that_is_typed_counts_more_than_one_of_the_spec(gradcheck: Command, folder: Path) -> None:
    def largest(*args: str) -> float:
        return float(first(gradcheck, "wrong.gradcheck.yaml", "--check", "square/wrong", *args)["gradient"]["max"])

    (folder / "gradcheck.toml").write_text("val_range = [7, 8]\n")
    assert 0.5 <= largest() <= 1
    assert 5 <= largest("--val-range", "5,6") <= 6
    assert 5 <= largest("--val-range", "x:5,6") <= 6


def test_a_range_without_a_name_is_that_of_floats_alone(gradcheck: Command) -> None:
    """Integers that index a table of some rows are drawn from its rows."""
    assert first(gradcheck, "embedding.onnx", "--param", "table", "--val-range", "100,200")["status"] == "pass"


def test_no_file_beside_a_model_allows_code_to_be_run(gradcheck: Command, folder: Path) -> None:
    (folder / "gradcheck.toml").write_text("allow-python = true\n")
    ran = gradcheck("mlp.onnx")
    assert (ran.code, "code is run when --allow-python is typed" in ran.err) == (2, True)
