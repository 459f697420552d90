"""A spec with everything in it: two graphs, an operator, initial values, fixed values, a waiver that no longer holds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Command

SPEC = """\
gradcheck: 1
defaults: {seed: 0, points: 3}
graphs:
  mlp:
    opset: 17
    dims: {N: 8}
    inputs:
      input:  {shape: [N, 4], dtype: float32, range: [-1, 1]}
      labels: {shape: [N], dtype: int64, range: [0, 2]}
    params:
      W1: {shape: [4, 16], init: glorot_uniform}
      b1: {shape: [16], init: zeros}
      W2: {shape: [16, 3], init: {kind: normal, std: 0.2}}
    nodes:
      - {name: fc1, op: Gemm, inputs: [input, W1, b1], outputs: [h1]}
      - {op: Tanh, inputs: [h1], outputs: [a1]}
      - {op: MatMul, inputs: [a1, W2], outputs: [logits]}
      - {op: SoftmaxCrossEntropyLoss, inputs: [logits, labels], outputs: [loss], attrs: {reduction: mean}}
    outputs: [loss]
  convnet:
    inputs: {image: {shape: [1, 3, 8, 8], range: [0, 1]}}
    params: {K: {shape: [4, 3, 3, 3], init: {kind: file, path: weights.npz, key: conv1}}}
    nodes: |
      c = Conv <pads=[1,1,1,1]> (image, K)
      r = Relu (c)
      loss = ReduceSum <keepdims=0> (r)
    outputs: [loss]
ops:
  acme.Softplus:                       # an operator whose gradient is under test
    inputs: [x]
    outputs: [y]
    forward: |
      e = Exp (x)
      one = Constant <value_float=1.0> ()
      s = Add (e, one)
      y = Log (s)
    gradient: |                        # given x, y and dy, define dx
      s = Sigmoid (x)
      dx = Mul (dy, s)
init: {trained: {from: checkpoints/mlp.npz}}
checks:
  - {name: mlp/input, graph: mlp, x: input, y: loss}
  - {name: mlp/params, graph: mlp, x: [W1, b1, W2], y: loss, init_targets: [trained],
     extra_feed_dict: {labels: [0, 1, 2, 0, 1, 2, 0, 1]}}
  - name: conv/kernel
    graph: convnet
    x: K
    y: loss
    expect: {status: fail, reason: "ACME-412", until: 2999-03-31}      # a waiver; strict: once it passes, remove it
"""


@pytest.fixture
def spec(folder: Path) -> Path:
    """The spec with the files that it speaks of."""
    rng = np.random.default_rng(0)
    np.savez(folder / "weights.npz", conv1=rng.normal(size=(4, 3, 3, 3)).astype(np.float32))
    (folder / "checkpoints").mkdir()
    shapes = {"W1": (4, 16), "b1": (16,), "W2": (16, 3)}
    trained = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    np.savez(folder / "checkpoints" / "mlp.npz", **trained)
    (folder / "all.gradcheck.yaml").write_text(SPEC)
    return folder / "all.gradcheck.yaml"


def test_it_is_checked_and_the_waiver_that_no_longer_holds_fails(gradcheck: Command, spec: Path) -> None:
    ran = gradcheck(spec.name, "--output-format", "json")
    records = json.loads(ran.out)["checks"]
    assert [(r["check"], r["x"], r["status"], r["code"]) for r in records] == [
        ("mlp/input", "input", "pass", ""),
        ("mlp/params", "W1", "pass", ""),
        ("mlp/params", "b1", "pass", ""),
        ("mlp/params", "W2", "pass", ""),
        ("conv/kernel", "K", "fail", "GC203"),
    ]
    assert ran.code == 1
    assert [r["dims"] for r in records[:2]] == [{"N": 8}, {"N": 8}]
    assert {r["entries"]["total"] for r in records if r["check"] == "mlp/params"} == {3 * 64, 3 * 16, 3 * 48}


def test_expected_failures_say_why_and_until_when(gradcheck: Command, spec: Path) -> None:
    spec.write_text(
        SPEC.replace("x: K\n", "x: K\n    rtol: 0\n    atol: 0\n    delta: 0.3\n").replace("fail, r", "inconclusive, r")
    )
    ran = gradcheck(spec.name, "-k", "kernel")
    assert ran.code == 0, ran.out
    assert "KNOWN FAILURE" in ran.out
    assert "inconclusive, as expected: ACME-412 (until 2999-03-31)" in " ".join(ran.out.split())


def test_it_fits_the_schema_that_editors_use(gradcheck: Command, spec: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    yaml = pytest.importorskip("yaml")
    schema = json.loads(gradcheck("schema", "spec").out)
    document = json.loads(json.dumps(yaml.safe_load(SPEC), default=str))
    jsonschema.Draft7Validator(schema).validate(document)


RECORD = {  # the fields of a record that scripts may count on
    "schema", "id", "check", "status", "code", "model", "x", "y", "x_shape", "y_shape", "mode", "method", "source",
    "power", "dtype", "rtol", "atol", "seed", "points", "dims", "entries", "max_abs_err", "max_rel_err", "needed",
    "gradient", "worst", "suspect", "notes", "bundle", "waiver", "reproduce", "duration_s", "peak_rss_mb", "versions",
}  # fmt: skip


def test_a_record_has_every_field_that_was_promised(gradcheck: Command) -> None:
    ran = gradcheck("wrong.gradcheck.yaml", "mlp.onnx", "lfs.onnx", "--output-format", "jsonl")
    for line in ran.out.splitlines():
        assert set(json.loads(line)) >= RECORD
        assert json.loads(line)["model"]["dtypes"] == ([] if "lfs" in json.loads(line)["check"] else ["float32"])
    record = json.loads(ran.out.splitlines()[0])
    assert set(record["model"]) == {"uri", "sha256", "opset", "nodes", "dtypes", "operators"}
    assert set(record["entries"]) == {"total", "checked", "failed", "inconclusive", "kink_ok"}
    assert set(record["needed"]) == {"rtol", "atol"}
    assert set(record["gradient"]) == {"norm", "max", "zero_fraction", "finite", "health"}
    assert set(record["worst"][0]) >= {"x", "y", "point", "theoretical", "numerical", "noise", "pattern"}
    assert set(record["suspect"]) >= {"node", "op", "name", "outputs"}
    assert set(record["versions"]) == {"gradcheck", "onnx", "numpy", "python", "kernels"}
