"""Writes mlp.onnx, a small classifier with its loss: the model of README's examples.

python examples/make_mlp.py
"""

from pathlib import Path

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save

rng = np.random.default_rng(0)
labels = np.array([0, 1, 2, 0, 1, 2, 0, 1], np.int64)
parameters = {
    "W1": rng.normal(0, 0.5, (4, 16)).astype(np.float32),
    "b1": rng.normal(0, 0.1, 16).astype(np.float32),
    "W2": rng.normal(0, 0.5, (16, 3)).astype(np.float32),
    "b2": rng.normal(0, 0.1, 3).astype(np.float32),
    "labels": labels,
}
graph = helper.make_graph(
    [
        helper.make_node("Gemm", ["input", "W1", "b1"], ["h1"], name="fc1"),
        helper.make_node("Tanh", ["h1"], ["a1"], name="act1"),
        helper.make_node("Gemm", ["a1", "W2", "b2"], ["logits"], name="fc2"),
        helper.make_node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss"], name="xent"),
    ],
    "mlp",
    [helper.make_tensor_value_info("input", TensorProto.FLOAT, [8, 4])],
    [
        helper.make_tensor_value_info("loss", TensorProto.FLOAT, []),
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, [8, 3]),
    ],
    [numpy_helper.from_array(value, name) for name, value in parameters.items()],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
checker.check_model(model, full_check=True)
save(model, Path(__file__).with_name("mlp.onnx"))
