"""A key changes with all that bears on a result, and with nothing else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import rich_click as click
from onnx import numpy_helper, parser

from gradcheck_cli.cli.check import command
from gradcheck_cli.cli.zoo.jobs import Maker, places, split
from gradcheck_cli.zoo.parcel import expected_seconds, shared_out
from tests.cli import models

SPEC = """gradcheck: 1
graphs:
  net:
    inputs: {x: {shape: [2]}}
    params: {w: {shape: [2], init: {kind: file, path: w.npy}}}
    nodes: ["y = Mul (x, w)"]
    outputs: [y]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with external data and test data, and a spec with an array and a model beside it."""
    monkeypatch.chdir(tmp_path)
    model = onnx.load(models.conv(tmp_path / "net.onnx"))
    onnx.save(model, tmp_path / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=0)
    (tmp_path / "test_data_set_0").mkdir()
    for name in ("test_data_set_0/input_0.pb", "w.npy", "v.npy", "notes.txt"):
        (tmp_path / name).write_bytes(b"1")
    (tmp_path / "graph.gradcheck.yaml").write_text(SPEC)
    models.mlp(tmp_path / "other.onnx")
    (tmp_path / "car.gradcheck.yaml").write_text("gradcheck: 1\nchecks: [{model: other.onnx, x: input, y: loss}]\n")
    return tmp_path


def keys(source: str, gates: tuple[str, ...] = (), **given: Any) -> list[str]:
    maker = Maker(given, gates, click.Context(command))
    return [maker.job(place).key for place in split(places([source]), given)]


@pytest.mark.parametrize(
    "source, file",
    [
        ("net.onnx", "net.onnx"),
        ("net.onnx", "net.bin"),
        ("net.onnx", "test_data_set_0/input_0.pb"),
        ("graph.gradcheck.yaml", "graph.gradcheck.yaml"),
        ("graph.gradcheck.yaml", "w.npy"),
        ("car.gradcheck.yaml", "other.onnx"),
    ],
)
def test_a_key_changes_with_each_file_that_is_read(folder: Path, source: str, file: str):
    before = keys(source)
    (folder / file).write_bytes((folder / file).read_bytes() + b"\n")
    assert set(keys(source)).isdisjoint(before)


def test_a_key_stays_when_what_is_not_read_changes(folder: Path):
    before = keys("net.onnx")
    for name in ("notes.txt", "v.npy", "w.npy", "other.onnx"):
        (folder / name).write_bytes(b"2")
    assert keys("net.onnx") == before


@pytest.mark.parametrize(
    "given",
    [{"seed": 1}, {"rtol": ("1e-3",)}, {"mode": "nodes"}, {"points": 2}, {"dim": ("N=2",)}, {"test_data": "none"},
     {"params": True}, {"extra_feed_dict": ("image=@v.npy",)}],
)  # fmt: skip
def test_a_key_changes_with_settings(folder: Path, given: dict[str, Any]):
    assert set(keys("net.onnx", **given)).isdisjoint(keys("net.onnx"))


@pytest.mark.parametrize(
    "given",
    [{"output_format": "json"}, {"report": ("r.html",)}, {"timeout": 3.0}, {"jobs": 4}, {"show": 1}, {"fail_fast": True},
     {"exit_zero": True}, {"verbose": 2}, {"save_failures": "none"}, {"folder": "run"}, {"rerun": "all"}],
)  # fmt: skip
def test_a_key_stays_whatever_is_shown_of_the_result(folder: Path, given: dict[str, Any]):
    assert keys("net.onnx", **given) == keys("net.onnx")


def test_gates_of_health_are_part_of_a_key(folder: Path):
    assert keys("net.onnx", gates=("fail", "inconclusive")) == keys("net.onnx")
    assert keys("net.onnx", gates=("fail", "vanishing")) != keys("net.onnx")


def test_a_file_that_an_option_names_is_part_of_a_key(folder: Path):
    given = {"extra_feed_dict": ("image=@v.npy",)}
    before = keys("net.onnx", **given)
    (folder / "v.npy").write_bytes(b"2")
    assert keys("net.onnx", **given) != before


def test_a_side_car_and_a_configuration_file_are_part_of_a_key(folder: Path):
    seen = [keys("net.onnx")]
    (folder / "net.gradcheck.yaml").write_text("gradcheck: 1\ndefaults: {seed: 2}\nchecks: []\n")
    seen.append(keys("net.onnx"))
    (folder / "gradcheck.toml").write_text("points = 2\n")
    seen.append(keys("net.onnx"))
    (folder / "gradcheck.toml").write_text('points = 2\ncolor = "never"  # a comment\n')
    seen.append(keys("net.onnx"))
    assert len({tuple(each) for each in seen}) == 3
    assert seen[2] == seen[3]


def test_copies_of_a_model_have_keys_of_their_own(folder: Path):
    (folder / "copy").mkdir()
    for name in ("net.onnx", "net.bin"):
        (folder / "copy" / name).write_bytes((folder / name).read_bytes())
    assert keys("net.onnx", test_data="none") != keys("copy/net.onnx", test_data="none")


def test_shards_take_about_the_same_time_and_each_finds_that_out_for_itself():
    rng = random.Random(5)
    costs = {f"models/{index}.onnx": 0.01 + rng.paretovariate(1.2) for index in range(400)}
    shards = shared_out(costs, 4)
    loads = [sum(costs[job] for job, shard in shards.items() if shard == index) for index in (1, 2, 3, 4)]
    assert shards.keys() == costs.keys()
    assert max(loads) - min(loads) <= min(costs.values())
    assert shards == shared_out(dict(rng.sample([*costs.items()], len(costs))), 4)


def test_shards_of_models_that_cost_the_same_have_as_many_each():
    shards = shared_out(dict.fromkeys("cab", 1.0), 9)
    assert shards == {"a": 1, "b": 2, "c": 3}
    assert shared_out({"anything": 0.0}, 1) == {"anything": 1}


def test_a_larger_graph_larger_weights_and_weights_in_another_file_are_expected_to_take_longer(tmp_path: Path):
    def saved(name: str, nodes: int, size: int, *, beside: bool = False) -> float:
        text = " ".join(f"h{i + 1} = Tanh (h{i})" for i in range(nodes)) + f" y = Add (h{nodes}, w)"
        head = f'<ir_version: 9, opset_import: ["": 17]> g (float[{size}] h0) => (float[{size}] y)'
        model = parser.parse_model(f"{head} {{ {text} }}")
        model.graph.initializer.append(numpy_helper.from_array(np.ones(size, np.float32), "w"))
        file = tmp_path / f"{name}.onnx"
        onnx.save(model, file, save_as_external_data=beside, location=f"{name}.data")
        return expected_seconds(file)

    small = saved("small", 2, 1 << 12)
    assert small < saved("deep", 200, 1 << 12)
    assert small < (wide := saved("wide", 2, 1 << 20))
    assert wide == pytest.approx(saved("beside", 2, 1 << 20, beside=True), rel=0.01)
    (tmp_path / "none.onnx").write_bytes(b"no model")
    unread = {expected_seconds(None), *(expected_seconds(tmp_path / name) for name in ("none.onnx", "gone.onnx"))}
    assert len(unread) == 1
    assert 0 < unread.pop() < small
