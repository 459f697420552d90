"""Gradient files of other tools; runs in the environment that has the tool.

python node_count_peers.py PEER MODEL FEEDS OUT: adds the gradients of `loss` by all float initializers to a model,
saves the file as OUT, runs it on the arrays of FEEDS, and saves the gradients, by the names of the weights, as OUT.npz.
It needs NumPy, onnx, an onnxruntime and the tool, nothing else.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper


def main() -> None:
    """Writes what the command line asks for, and prints the version of the tool."""
    peer, source, feeds, out = sys.argv[1:]
    model = onnx.load(source)
    with np.load(feeds) as arrays:
        gradients = PEERS[peer](model, dict(arrays), out)
    np.savez(f"{out}.npz", **gradients)
    print(version(peer))


def onnx_ad(model: Any, feeds: dict[str, Any], out: str) -> dict[str, Any]:
    """onnx-ad differentiates by inputs: weights become some."""
    from onnx_ad import reverse

    weights = {t.name: t for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and t.dims}
    for name, tensor in weights.items():
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
        model.graph.initializer.remove(tensor)
        feeds[name] = numpy_helper.to_array(tensor)
    made = reverse(model, inputs=list(weights), outputs=["loss"], layout="onnx")
    onnx.save(made, out)
    (seed,) = (i.name for i in made.graph.input if i.name not in feeds)
    found = run(out, {**feeds, seed: np.ones(1, np.float32)}, [o.name for o in made.graph.output])
    return {n: y[..., 0] for n in weights for name, y in found.items() if name == f"{seed.removesuffix('loss')}{n}"}


def onnxruntime_training(model: Any, feeds: dict[str, Any], out: str) -> dict[str, Any]:
    """onnxruntime-training's graphs have operators of its own."""
    from onnxruntime.capi._pybind_state import GradientGraphBuilder

    weights = [t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and t.dims]
    builder = GradientGraphBuilder(model.SerializeToString(), {"loss"}, set(weights), "loss")
    builder.build()
    made = onnx.load_from_string(builder.get_model())
    onnx.save(made, out)
    found = run(out, feeds, [f"{name}_grad" for name in weights])
    return {name: found[f"{name}_grad"] for name in weights}


def run(path: str, feeds: dict[str, Any], outputs: list[str]) -> dict[str, Any]:
    """Outputs of a file by name, its nodes run as they stand there."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    given = {i.name: feeds[i.name] for i in session.get_inputs()}
    return dict(zip(outputs, session.run(outputs, given), strict=True))


PEERS = {"onnx-ad": onnx_ad, "onnxruntime-training-cpu": onnxruntime_training}

if __name__ == "__main__":
    main()
