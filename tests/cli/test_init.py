"""`gradcheck init`: a side-car with what a check would choose, and a check with it gives the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gradcheck_cli.formats.yaml.places import Document
from gradcheck_cli.formats.yaml.reading import validate
from tests.cli import models
from tests.cli.conftest import Command

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.onnx"))
MODELS = ["mlp", "conv", "embedding", "log", "unknown", "named"]
WRITTEN = """\
gradcheck: 1
# How mlp.onnx is checked. The targets and sizes are those that a check chooses by itself: change what
# should be otherwise. `gradcheck config mlp.onnx` shows all settings in force, `gradcheck schema spec` all keys.
checks:
  - model: mlp.onnx
    x: [input, aux_in]  # differentiated by these
    y: [loss, aux_out]  # these are differentiated
    dims: {N: 2}  # sizes of open dimensions
    # val_range:           # inputs are drawn from these at the first point, from wider ones at others
    #   input: [-1, 1]
    #   aux_in: [-1, 1]
    # points: 3            # random points to check; 1 by default
    # seed: 0              # of all that is drawn at random
    # rtol: 5.0e-7         # relative error that is accepted
    # expect: {status: fail, reason: "why this is known", until: 2999-12-31}
"""


def results(gradcheck: Command, *args: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and records of a check, but for names and times."""
    ran = gradcheck(*args, "--output-format", "json")
    other = {"id", "check", "reproduce", "duration_s", "peak_rss_mb", "forward", "place"}
    return ran.code, [{k: v for k, v in record.items() if k not in other} for record in json.loads(ran.out)["checks"]]


def test_the_file_says_what_a_check_would_choose(gradcheck: Command, folder: Path) -> None:
    ran = gradcheck("init", "mlp.onnx")
    assert (ran.code, ran.out, ran.err) == (0, "mlp.gradcheck.yaml: mlp.onnx\n", "")
    assert (folder / "mlp.gradcheck.yaml").read_text() == WRITTEN
    assert not [path for path in folder.iterdir() if path.name.startswith(".mlp")]


@pytest.mark.parametrize("points", ["1", "3"])
@pytest.mark.parametrize("name", MODELS)
def test_a_check_with_the_file_as_it_is_gives_the_same(gradcheck: Command, name: str, points: str) -> None:
    before = results(gradcheck, f"{name}.onnx", "--points", points)
    assert gradcheck("init", f"{name}.onnx").code == 0
    validate(Document.read(f"{name}.gradcheck.yaml"))
    assert results(gradcheck, f"{name}.onnx", "--points", points) == before


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=[path.stem for path in EXAMPLES])
def test_so_it_does_for_the_examples(gradcheck: Command, path: Path) -> None:
    shutil.copy(path, path.name)
    before = results(gradcheck, path.name)
    assert gradcheck("init", path.name).code == 0
    assert results(gradcheck, path.name) == before


def test_gradients_that_a_model_brings_are_still_checked(gradcheck: Command) -> None:
    gradcheck("grad", "mlp.onnx", "-o", "with.onnx")
    before = results(gradcheck, "with.onnx")
    assert any(record.get("claim") for record in before[1])
    assert gradcheck("init", "with.onnx").code == 0
    assert results(gradcheck, "with.onnx") == before


def test_an_edited_file_counts(gradcheck: Command, folder: Path) -> None:
    gradcheck("init", "conv.onnx")
    file = folder / "conv.gradcheck.yaml"
    file.write_text(file.read_text().replace("N: 2", "N: 1").replace("# points: 3 ", "points: 2 "))
    [record] = results(gradcheck, "conv.onnx")[1]
    assert (record["x_shape"], record["points"]) == ([1, 3, 8, 8], 2)


def test_nothing_is_overwritten_unless_it_is_asked_for(gradcheck: Command, folder: Path) -> None:
    file = folder / "mlp.gradcheck.yaml"
    file.write_text("gradcheck: 1\n")
    ran = gradcheck("init", "mlp.onnx", "conv.onnx")
    assert (ran.code, ran.out) == (2, "conv.gradcheck.yaml: conv.onnx\n")
    assert ran.err == "error GC201: mlp.gradcheck.yaml is there already; --force replaces it.\n"
    assert file.read_text() == "gradcheck: 1\n"
    assert gradcheck("init", "mlp.onnx", "--force").code == 0
    assert file.read_text() == WRITTEN


def test_a_link_is_replaced_and_not_followed(gradcheck: Command, folder: Path) -> None:
    (folder / "secret").write_text("kept")
    (folder / "mlp.gradcheck.yaml").symlink_to("secret")
    assert gradcheck("init", "mlp.onnx").code == 2
    assert gradcheck("init", "mlp.onnx", "--force").code == 0
    assert (folder / "secret").read_text() == "kept"
    assert not (folder / "mlp.gradcheck.yaml").is_symlink()


def test_several_models_can_share_a_file_elsewhere(gradcheck: Command, folder: Path) -> None:
    (folder / "specs").mkdir()
    ran = gradcheck("init", "mlp.onnx", "conv.onnx", "-o", "specs/all.gradcheck.yaml")
    assert (ran.code, ran.out) == (0, "specs/all.gradcheck.yaml: mlp.onnx, conv.onnx\n")
    assert "3 passed" in gradcheck("specs/all.gradcheck.yaml").out


def test_specs_in_a_folder_are_left_alone(gradcheck: Command, folder: Path) -> None:
    (folder / "models").mkdir()
    for name in ("mlp.onnx", "wrong.gradcheck.yaml"):
        shutil.copy(name, folder / "models")
    ran = gradcheck("init", "models")
    assert (ran.code, ran.out) == (0, "models/mlp.gradcheck.yaml: models/mlp.onnx\n")
    (folder / "models/mlp.onnx").unlink()
    assert gradcheck("init", "models").code == 7


@pytest.mark.parametrize("args, code, said", [
    (["missing.onnx"], 4, "missing.onnx does not exist"),
    (["lfs.onnx"], 4, "is a Git LFS pointer"),
    (["wrong.gradcheck.yaml"], 2, "is a spec already"),
    (["mlp.onnx", "-o", "mlp.yaml"], 2, "-o mlp.yaml must end in .gradcheck.yaml."),
    (["mlp.onnx", "-o", "none/mlp.gradcheck.yaml"], 2, "none/mlp.gradcheck.yaml cannot be written: No such file"),
    (["*.tflite"], 7, "matches no file"),
])  # fmt: skip
def test_what_cannot_be_done_is_one_error(gradcheck: Command, args: list[str], code: int, said: str) -> None:
    ran = gradcheck("init", *args)
    assert (ran.code, ran.out, said in ran.err) == (code, "", True)
    assert ran.err.count("error") == 1


@pytest.mark.parametrize(
    "name", ["yes", "a: b", "#c", "d\x85e", "\u2028", "\x7f\x1b[2J", "- f", "1e3", "ü", "'g\"", "null"]
)
def test_names_are_written_so_that_they_are_read_again(gradcheck: Command, folder: Path, name: str) -> None:
    models.named(folder / "named.onnx", name, "out")
    ran = gradcheck("init", "named.onnx")
    assert ran.code == 0
    assert Document.read("named.gradcheck.yaml").root.value["checks"][0]["x"] == [name]
    assert "\x1b" not in (folder / "named.gradcheck.yaml").read_text() + ran.out


def test_a_side_car_of_another_name_is_not_put_in_the_shade(gradcheck: Command, folder: Path) -> None:
    (folder / "mlp.gradcheck.yml").write_text("gradcheck: 1\nchecks: [{model: mlp.onnx}]\n")
    ran = gradcheck("init", "mlp.onnx", "--force")
    assert (ran.code, "mlp.gradcheck.yml says already how mlp.onnx is checked" in ran.err) == (2, True)
