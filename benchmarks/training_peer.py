"""Gradient graphs of onnxruntime-training, timed in the environment that has it.

python training_peer.py MODEL X THREADS [NAME ...]: adds the gradients of `loss` by tensors to a model, saves what it
computes at the array of X as X.npz, and prints the nodes of the graph and the version.  Then it runs the graph once for
each line that comes in, and answers with a line.  It needs NumPy, onnx and onnxruntime-training, nothing else.
"""

from __future__ import annotations

import sys
from importlib.metadata import version

import numpy as np
import onnx


def main() -> None:
    """Runs as often as it is asked to."""
    import onnxruntime
    from onnxruntime.capi._pybind_state import GradientGraphBuilder

    source, x, threads, *names = sys.argv[1:]
    model = onnx.load(source)
    for node in model.graph.node:  # it differentiates a LayerNormalization only by the statistics that this gives
        if node.op_type == "LayerNormalization":
            node.output.extend(f"{node.output[0]}/{n}" for n in range(len(node.output), 3))
    builder = GradientGraphBuilder(model.SerializeToString(), {"loss"}, set(names), "loss")
    builder.build()
    made = builder.get_model()
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, int(threads)
    session = onnxruntime.InferenceSession(made, options, ["CPUExecutionProvider"])
    feeds, outputs = {"x": np.load(x)}, ["loss", *(f"{name}_grad" for name in names)]
    feeds.update((i.name, np.ones([], np.float32)) for i in session.get_inputs() if i.name not in feeds)
    found = session.run(outputs, feeds)
    np.savez(f"{x}.npz", **dict(zip(outputs, found)))  # noqa: B905 - for old Pythons too
    print(len(onnx.load_from_string(made).graph.node), version("onnxruntime-training-cpu"), flush=True)
    for _ in sys.stdin:
        session.run(outputs, feeds)
        print(flush=True)


if __name__ == "__main__":
    main()
