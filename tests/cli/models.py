"""Small ONNX files for the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


ENDLESS = """endless (float[2] x) => (float[2] y) {
  n = Constant <value = int64 {9223372036854775807}> ()
  go = Constant <value = bool {1}> ()
  y = Loop (n, go, x) <body = body (int64 i, bool c, float[2] a) => (bool d, float[2] b) {
    d = Identity (c)
    b = Sin (a)
  }>
}"""


def save(path: Path, text: str, **constants: np.ndarray) -> Path:
    """A model in ONNX's text syntax with its constants, written to a file."""
    graph = onnx.parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in constants.items())
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    onnx.save(model, path)
    return path


def pointer(path: Path) -> Path:
    """The pointer that Git LFS leaves in place of a model that it has not fetched."""
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n")
    return path


def mlp(path: Path) -> Path:
    """input -> loss, with a branch from aux_in to aux_out that loss does not see."""
    text = """mlp (float[N,4] input, float[2] aux_in) => (float loss, float[2] aux_out) {
        h = MatMul (input, W)
        a = Tanh (h)
        loss = ReduceSum <keepdims = 0> (a)
        aux_out = Exp (aux_in)
    }"""
    return save(path, text, W=np.linspace(-1, 1, 12).reshape(4, 3))


def conv(path: Path) -> Path:
    """image [N,3,8,8] through Conv and Relu to loss."""
    text = """conv (float[N,3,8,8] image) => (float loss) {
        c = Conv (image, K)
        r = Tanh (c)
        loss = ReduceSum <keepdims = 0> (r)
    }"""
    return save(path, text, K=np.linspace(-1, 1, 54).reshape(2, 3, 3, 3))


def embedding(path: Path) -> Path:
    """input_ids (integers) into a table."""
    text = """embedding (int64[2,3] input_ids) => (float loss) {
        e = Gather (table, input_ids)
        loss = ReduceSum <keepdims = 0> (e)
    }"""
    return save(path, text, table=np.ones((5, 4)))


def log(path: Path) -> Path:
    """The logarithm of x minus 2, which is not finite anywhere in the usual range."""
    text = """log (float[3] x) => (float[3] y) {
        s = Sub (x, two)
        y = Log (s)
    }"""
    return save(path, text, two=np.full(3, 2.0))


def unknown_operator(path: Path) -> Path:
    """x through an operator of a vendor."""
    return save(path, "net (float[3] x) => (float[3] y) { a = Exp (x)  y = acme.Magic (a) }")


def named(path: Path, x: str, y: str) -> Path:
    """Two tensors with names as they come."""
    node = helper.make_node("Tanh", [x], [y])
    shape = [2]
    graph = helper.make_graph(
        [node],
        "named",
        [helper.make_tensor_value_info(x, FLOAT, shape)],
        [helper.make_tensor_value_info(y, FLOAT, shape)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def endless(path: Path) -> Path:
    """A loop that goes on for as long as one lets it."""
    return save(path, ENDLESS)


def twice() -> dict[str, object]:
    """An operator for a spec that calls Python."""
    return {"inputs": ["x"], "outputs": ["y"], "forward": "y = Add (x, x)"}


def restored() -> dict[str, object]:
    """Such an operator, whose spec is another one for a moment whenever it is asked for."""
    spec = Path("restored.gradcheck.yaml")
    text = spec.read_text()
    spec.write_text(text + "defaults: {seed: 3}\n")
    spec.write_text(text)
    return twice()


KINKS = """gradcheck: 1
graphs:
  net:
    inputs: {x: {shape: [4]}}
    nodes: |
      f = Floor (x)
      y = Sub (x, f)
    outputs: [y]
checks: [{x: x, y: y, x_init_value: [0, 1, 2, 3]}]
"""
QUANTIZED = """gradcheck: 1
graphs:
  net:
    inputs: {x: {shape: [3]}}
    params: {s: {shape: [], init: 0.5}}
    nodes: ["q = QuantizeLinear(x, s)", "y = DequantizeLinear(q, s)"]
    outputs: [y]
checks: [{name: codes, graph: net, x: x, y: y}]
"""
