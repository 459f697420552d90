"""The JSON Schemas are draft-07, take what gradcheck takes and refuse what it refuses."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from gradcheck_cli.formats.yaml.fields import spec_schema
from gradcheck_cli.formats.yaml.places import parse
from gradcheck_cli.report.json_records import result_schema

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[2]
SPECS = sorted([*ROOT.glob("specs/*.gradcheck.yaml"), *ROOT.glob("examples/*.gradcheck.yaml")])


def errors(schema, value):
    return [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(value)]


@pytest.mark.parametrize("schema", [spec_schema(), result_schema()], ids=["spec", "result"])
def test_schemas_are_draft_07(schema):
    jsonschema.Draft7Validator.check_schema(schema)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert "$defs" not in str(schema)
    assert "prefixItems" not in str(schema)


def test_every_key_of_a_spec_is_explained():
    definitions = spec_schema()["definitions"]
    for name, definition in definitions.items():
        for key, schema in definition["properties"].items():
            assert schema.get("description"), f"{name}.{key}"


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_the_specs_that_come_with_gradcheck_fit(path):
    assert errors(spec_schema(), parse(path.read_text(encoding="utf-8"), "f").value) == []


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "gradcheck: 2",
        "{gradcheck: 1, graph: {}}",
        "{gradcheck: 1, checks: [{detla: 1}]}",
        "{gradcheck: 1, checks: [{delta: 0}]}",
        "{gradcheck: 1, checks: [{seed: maybe}]}",
        "{gradcheck: 1, checks: [{x: 3}]}",
        "{gradcheck: 1, graphs: {g: {nodes: []}}}",
        "{gradcheck: 1, graphs: {g: {nodes: [{op: Relu}], outputs: [y]}}}",
        "{gradcheck: 1, graphs: {g: {nodes: [], outputs: [y], params: {p: {shape: [2]}}}}}",
        "{gradcheck: 1, graphs: {g: {nodes: [], outputs: [y], params: {p: {init: {kind: normal, sd: 1}}}}}}",
        "{gradcheck: 1, graphs: {g: {nodes: [], outputs: [y], inputs: {x: {range: [1]}}}}}",
        "{gradcheck: 1, models: [{name: a}]}",
    ],
)
def test_mistakes_do_not_fit(text):
    assert errors(spec_schema(), parse(text, "f").value)


RECORD = {
    "schema": "gradcheck.result/1", "id": "net.onnx::d loss/d input", "check": "net.onnx", "status": "fail",
    "code": "GC101",
    "model": {"uri": "net.onnx", "sha256": "0" * 64, "opset": {"": 17}, "nodes": 61},
    "x": "input", "y": "loss", "x_shape": [1, 3, 8, 8], "y_shape": [], "mode": "full", "method": "complex-step",
    "source": "internal", "power": {"missed_below": 1e-9}, "dtype": "float64", "rtol": 5e-7, "atol": 0.0, "seed": 0,
    "points": 1, "dims": {"N": 2}, "entries": {"total": 192, "checked": 192, "failed": 6, "inconclusive": 1},
    "max_abs_err": 0.0402, "max_rel_err": "inf", "needed": {"rtol": 2.0, "atol": 0.0402},
    "gradient": {"norm": 0.31, "max": 0.08, "zero_fraction": 0.1, "finite": True},
    "worst": [{"x": [0, 2, 7, 7], "y": [], "point": 0, "theoretical": 0.0, "numerical": 0.0402135, "noise": 3e-10,
               "pattern": "missing"}],
    "suspect": {"node": 14, "op": "MaxPool", "name": "pool1", "outputs": ["p1"]},
    "notes": ["3 entries at a tie of node 12 MaxPool: KINK-OK"], "bundle": None, "waiver": None,
    "reproduce": "gradcheck net.onnx --x input --y loss --seed 0 --point 0", "duration_s": 0.84, "peak_rss_mb": 71,
    "versions": {"gradcheck": "0.1.0", "onnx": "1.23.2", "numpy": "2.4.6"},
}  # fmt: skip


def test_a_record_and_a_run_fit():
    assert errors(result_schema(), RECORD) == []
    assert errors(result_schema(), {"schema": "gradcheck.run/1", "exit_code": 1, "checks": [RECORD]}) == []
    assert errors(result_schema(), {"schema": "gradcheck.run/1", "exit_code": 7, "checks": []}) == []


@pytest.mark.parametrize(
    "key, value",
    [
        ("schema", "gradcheck.result/2"),
        ("status", "failed"),
        ("code", "101"),
        ("max_abs_err", "much"),
        ("x_shape", [-1]),
        ("worst", [{}]),
        ("suspect", "MaxPool"),
        ("model", {}),
    ],
)
def test_a_damaged_record_does_not_fit(key, value):
    assert errors(result_schema(), {**copy.deepcopy(RECORD), key: value})


def test_an_exit_code_is_one_of_the_fixed():
    assert errors(result_schema(), {"schema": "gradcheck.run/1", "exit_code": 8, "checks": []})


def test_records_of_gradcheck_fit():
    record = pytest.importorskip("gradcheck_cli.results.record")
    check = record.Check("i", "c", "pass", "", record.ModelInfo("m"), "x", "y", max_rel_err=float("nan"))
    assert errors(result_schema(), record.Report((check,)).as_json()) == []
