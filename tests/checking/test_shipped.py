"""Test data that ships with a model is what it is checked at, and its outputs hold the forward run to account."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import numpy_helper

import gradcheck_cli as gc
from gradcheck_cli.cli import main
from gradcheck_cli.errors import ModelError
from gradcheck_cli.formats.onnx import read as onnx_read
from gradcheck_cli.ops import OPS
from gradcheck_cli.points.point import find_point
from gradcheck_cli.results.record import Check
from gradcheck_cli.settings import Settings

ONNX_DATA = Path(onnx.backend.test.__file__).parent / "data"
X, SCALE = np.arange(8, dtype=np.float32).reshape(2, 4) / 10, np.float32([1, 2, 3, 4])
NET = """net (float[N,4] x, float[4] scale, int64[N] label) => (float[N,4] y, float loss) {
    h = Mul (x, scale)
    y = Tanh (h)
    loss = SoftmaxCrossEntropyLoss (y, label)
}"""
LABEL = np.array([3, 1])
Y = np.tanh(X * SCALE)


def save(folder: Path, text: str = NET, name: str = "net.onnx") -> Path:
    graph = onnx.parser.parse_graph(text)
    opset = onnx.helper.make_opsetid("", 17)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9), folder / name)
    return folder / name


def ship(folder: Path, inputs: Mapping[int, Any], outputs: Mapping[int, Any] | None = None) -> Path:
    """A folder of test data with arrays by position."""
    folder.mkdir(parents=True, exist_ok=True)
    for kind, arrays in (("input", inputs), ("output", outputs or {})):
        for position, array in arrays.items():
            tensor = numpy_helper.from_array(np.asarray(array))
            (folder / f"{kind}_{position}.pb").write_bytes(tensor.SerializeToString())
    return folder


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """A model with right test data beside it."""
    ship(tmp_path / "test_data_set_0", {0: X, 1: SCALE, 2: LABEL}, {0: Y})
    return save(tmp_path)


def feeds(path: Path, index: int = 0, **settings: Any) -> Mapping[str, Any]:
    """The values at which a model would be checked."""
    given = Settings(**{"test_data": "auto", **settings})
    source = onnx_read.read(path)
    return find_point(source, given, OPS, source.graph.outputs, index).feeds


def check(path: Path, x: str = "x", y: str = "y", **settings: Any) -> Check:
    [record] = gc.check(gc.load(path), x, y, **{"test_data": "auto", **settings}).checks
    return record


# What it is checked at


def test_inputs_are_those_that_ship_with_the_model(net: Path):
    found = feeds(net)
    for name, value in (("x", X), ("scale", SCALE), ("label", LABEL)):
        np.testing.assert_array_equal(found[name], value)
    record = check(net)
    assert (record.status, record.dims, record.x_shape) == ("pass", {"N": 2}, (2, 4))
    assert "values of test_data_set_0 for x, scale, label" in record.notes


def test_without_test_data_values_are_drawn(net: Path):
    assert not np.array_equal(feeds(net, test_data=None)["x"], X)
    for word, used in (("none", False), ("auto", True)):
        assert ("values of test_data_set_0 for x, scale, label" in check(net, test_data=word).notes) == used


def test_a_folder_that_was_named_counts(net: Path, tmp_path: Path):
    other = ship(tmp_path / "other", {0: X + 1, 1: SCALE, 2: LABEL})
    np.testing.assert_array_equal(feeds(net, test_data=other)["x"], X + 1)
    assert check(net, test_data=str(other)).status == "pass"


def test_what_the_user_gives_wins(net: Path):
    mine = np.full((2, 4), 0.5)
    for way in ("x_init_value", "extra_feed_dict"):
        found = feeds(net, **{way: {"x": mine}})
        np.testing.assert_array_equal(found["x"], mine)
        np.testing.assert_array_equal(found["scale"], SCALE)
    found = feeds(net, val_range={"x": (5.0, 6.0)})
    assert found["x"].min() >= 5
    np.testing.assert_array_equal(found["scale"], SCALE)


def test_a_range_for_everything_wins_over_what_lies_beside_the_model_only(net: Path, tmp_path: Path):
    wide = {"": (5.0, 6.0)}
    beside = feeds(net, val_range=wide)
    assert (beside["x"].min() >= 5, beside["label"].tolist()) == (True, LABEL.tolist())
    named = feeds(net, val_range=wide, test_data=tmp_path / "test_data_set_0")
    np.testing.assert_array_equal(named["x"], X)


def test_an_input_without_test_data_is_drawn(net: Path, tmp_path: Path):
    (tmp_path / "test_data_set_0" / "input_1.pb").unlink()
    found = feeds(net)
    np.testing.assert_array_equal(found["x"], X)
    assert found["scale"].shape == (4,)


def test_the_first_point_is_the_shipped_one_and_others_draw_what_is_no_integer(net: Path):
    first, second = feeds(net, 0), feeds(net, 1)
    np.testing.assert_array_equal(first["x"], X)
    assert second["x"].shape == X.shape
    assert not np.array_equal(second["x"], X)
    np.testing.assert_array_equal(second["label"], LABEL)
    assert check(net, points=3).status == "pass"


def test_an_input_with_a_default_value_takes_the_shipped_one(tmp_path: Path):
    path = save(tmp_path, "net (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 1}> { y = Mul (x, w) }")
    ship(tmp_path / "test_data_set_0", {0: np.float32([1, 2]), 1: np.float32([3, 4])}, {0: np.float32([3, 8])})
    np.testing.assert_array_equal(feeds(path)["w"], [3, 4])
    assert check(path).status == "pass"


# What does not fit


MISFITS = {
    "a size that is fixed": ({1: np.ones(5, np.float32)}, "input_1.pb has shape [5]; 'scale' has [4]"),
    "a rank": ({1: np.float32(1)}, "input_1.pb has shape []; 'scale' has [4]"),
    "a dtype": ({0: X.astype(np.float64)}, "input_0.pb is float64; 'x' is float32"),
    "a position": ({3: X}, "input_3.pb is one too many: the model has 3 inputs"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_left_alone_beside_the_model_and_an_error_if_named(net: Path, tmp_path: Path, name: str):
    wrong, reason = MISFITS[name]
    folder = ship(tmp_path / "test_data_set_0", wrong)
    record = check(net)
    assert record.status == "pass"
    assert any(note.startswith("test data beside the model is not used: ") and reason in note for note in record.notes)
    with pytest.raises(ValueError, match="test_data_set_0") as raised:
        check(net, test_data=folder)
    assert reason in str(raised.value)


def test_a_size_that_the_user_gives_puts_contradicting_test_data_aside(net: Path, tmp_path: Path):
    for given in ({"dims": {"N": 3}}, {"x_shape": {"x": (3, 4)}}, {"x_init_value": {"x": np.ones((3, 4))}}):
        record = check(net, **given)
        assert (record.status, record.x_shape) == ("pass", (3, 4))
        assert any("and N is 3 here" in note for note in record.notes), record.notes
        with pytest.raises(ValueError, match="and N is 3 here"):
            check(net, **given, test_data=tmp_path / "test_data_set_0")


def test_what_cannot_be_read_is_left_alone_beside_the_model_and_an_error_if_named(net: Path, tmp_path: Path):
    folder = tmp_path / "test_data_set_0"
    (folder / "input_0.pb").write_bytes(b"\x0a\xffno tensor")
    record = check(net)
    assert record.status == "pass"
    assert any(note.startswith("test data beside the model is not used: ") for note in record.notes)
    with pytest.raises(ModelError, match=r"input_0\.pb"):
        check(net, test_data=folder)


def test_a_named_folder_without_inputs_is_an_error(net: Path, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty holds no input_0\.pb"):
        check(net, test_data=tmp_path / "empty")
    with pytest.raises(ModelError, match="nowhere cannot be read"):
        check(net, test_data=tmp_path / "nowhere")


def test_what_is_no_folder_is_an_error(net: Path):
    with pytest.raises(ValueError, match="test_data is 5"):
        check(net, test_data=5)


def test_the_command_takes_a_folder_or_none_and_looks_beside_the_model(net: Path, capsys: pytest.CaptureFixture[str]):
    def notes(*options: str) -> list[str]:
        assert main([str(net), "--x", "x", "--y", "y", "--output-format", "json", *options]) == 0
        found: list[str] = json.loads(capsys.readouterr().out)["checks"][0]["notes"]
        return found

    values = "values of test_data_set_0 for x, scale, label"
    assert notes() == notes("--test-data", "auto") == [values]
    assert notes("--test-data", str(net.parent / "test_data_set_0")) == [values]
    assert notes("--test-data", "none") == []


def test_a_model_in_memory_has_nothing_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A spec's graph is no file of its own either: what lies beside belongs to a model."""
    monkeypatch.chdir(tmp_path)
    ship(tmp_path / "test_data_set_0", {0: np.full(3, 7, np.float32)})
    (tmp_path / "a.gradcheck.yaml").write_text(
        "gradcheck: 1\ngraphs: {g: {inputs: {x: {shape: [3]}}, nodes: 'y = Tanh (x)', outputs: [y]}}\n"
    )
    model = gc.load("a.gradcheck.yaml")
    [record] = gc.check(model, test_data="auto").checks
    assert not any("test data" in note or "test_data" in note for note in record.notes)


def test_a_parameter_with_a_default_before_the_input_has_no_test_data(tmp_path: Path):
    path = save(tmp_path, "net (float[2] w, float[2] x) => (float[2] y) <float[2] w = {1, 1}> { y = Mul (x, w) }")
    ship(tmp_path / "test_data_set_0", {0: np.float32([1, 2])}, {0: np.float32([1, 2])})
    np.testing.assert_array_equal(feeds(path)["x"], [1, 2])
    assert check(path).status == "pass"


# The forward run and the shipped outputs


def test_a_forward_run_that_disagrees_with_the_shipped_output_is_gc404(net: Path, tmp_path: Path):
    wrong = Y.copy()
    wrong[1, 2] += 0.25
    ship(tmp_path / "test_data_set_0", {}, {0: wrong})
    record = check(net)
    assert (record.status, record.code, record.exit_code) == ("pass", "", 1)
    assert (record.gates, record.forward["agrees"], record.forward["code"]) == (("forward",), False, "GC404")
    assert "test_data_set_0" in record.forward["compared_with"]
    assert "'y' is not what test_data_set_0/output_0.pb says: 1 of 8 entries differs" in record.forward["reason"]
    assert "[1,2]" in record.forward["reason"]


def test_a_shipped_output_of_another_shape_is_gc404(net: Path, tmp_path: Path):
    ship(tmp_path / "test_data_set_0", {}, {0: Y[:1]})
    record = check(net)
    assert (record.status, record.gates) == ("pass", ("forward",))
    assert "its shape is [2,4] here and [1,4] there" in record.forward["reason"]


def test_only_the_pair_whose_output_disagrees_is_gated(net: Path, tmp_path: Path):
    ship(tmp_path / "test_data_set_0", {}, {0: Y, 1: np.float32(99)})
    report = gc.check(gc.load(net), "x", test_data="auto")
    assert [(c.y, c.status, c.gates) for c in report.checks] == [("y", "pass", ()), ("loss", "pass", ("forward",))]
    assert report.exit_code == 1


@pytest.mark.parametrize("given", [{"x_init_value": {"x": X + 1}}, {"extra_feed_dict": {"h": X}}, {"point": 1}])
def test_elsewhere_shipped_outputs_say_nothing(net: Path, tmp_path: Path, given: dict[str, Any]):
    ship(tmp_path / "test_data_set_0", {}, {0: Y + 1})
    assert check(net, y="y", x="h" if "extra_feed_dict" in given else "x", **given).status == "pass"


def test_rounding_in_the_models_own_dtype_is_no_disagreement(tmp_path: Path):
    """In float32, 1e8 + 1 is 1e8."""
    path = save(tmp_path, "net (float[1] x, float[1] big, float[1] one) => (float[1] y) "
                "{ s = Add (big, one)  d = Sub (s, big)  y = Mul (d, x) }")  # fmt: skip
    ship(tmp_path / "test_data_set_0", {0: np.float32([3]), 1: np.float32([1e8]), 2: np.float32([1])})
    for y, gates in ((0, ()), (3, ()), (1, ("forward",))):
        ship(tmp_path / "test_data_set_0", {}, {0: np.float32([y])})
        assert check(path).gates == gates


def test_what_is_drawn_inside_the_model_is_not_compared(tmp_path: Path):
    text = "net (float[3] x) => (float[3] y) { r = RandomNormalLike (x)  y = Add (r, x) }"
    ship(tmp_path / "test_data_set_0", {0: np.ones(3, np.float32)}, {0: np.zeros(3, np.float32)})
    assert check(save(tmp_path, text)).status == "pass"


@pytest.mark.parametrize("dtype", ["float64", "model"])
@pytest.mark.parametrize("name", ["test_single_relu_model", "test_shrink", "test_expand_shape_model1"])
def test_models_of_onnx_are_checked_at_their_test_data(name: str, dtype: str):
    folder = ONNX_DATA / "simple" / name
    records = gc.check(gc.load(folder / "model.onnx"), test_data="auto", dtype=dtype).checks
    assert {record.status for record in records} == {"pass"}
    assert all(record.notes[0].startswith("values of test_data_set_0 for ") for record in records)


def test_a_real_architecture_is_checked_at_its_test_data(tmp_path: Path):
    shutil.copy(ONNX_DATA / "light" / "light_squeezenet.onnx", tmp_path / "model.onnx")
    size = 3 * 224 * 224
    ramp = (np.arange(size).reshape(1, 3, 224, 224) / size).astype(np.float32)
    folder = ship(tmp_path / "test_data_set_0", {0: ramp})
    shutil.copy(ONNX_DATA / "light" / "light_squeezenet_output_0.pb", folder / "output_0.pb")
    source = onnx_read.read(tmp_path / "model.onnx")
    point = find_point(source, Settings(test_data="auto"), OPS, source.graph.outputs)
    np.testing.assert_array_equal(point.feeds[source.graph.free_inputs[0]], ramp)
    assert point.expected is not None
    found = point.expected.comparison(point.tape, source.graph.outputs[0])
    assert found is not None
    assert (found.how, found.relative < 1e-3) == ("", True)
