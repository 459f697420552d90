"""Makes `tests/models/files/claims`: small models with the gradients that other tools make of them.

    PYTHON -m tests.claims.tools onnxruntime-training FOLDER     with onnxruntime-training-cpu 1.19.2 and numpy < 2
    PYTHON -m tests.claims.tools onnx-ad FOLDER                  with onnx-ad 0.3.0
    PYTHON -m tests.claims.tools jax2onnx FOLDER                 with jax2onnx 0.17.1 and jax 0.10.2

Of a model NAME.onnx, the first one writes NAME_training.onnx and what that gives there, NAME.npz; the second one
adj_NAME.onnx.  Of each pair of models one has something in it that the tool is known to get wrong.  The third one
writes a loss and what `jax.grad` makes of it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
Shape = Sequence[int | None]
node = helper.make_node


def weights(**shapes: Sequence[int]) -> dict[str, Array]:
    """Normal numbers, the same ones for the same names and shapes."""
    rng = np.random.default_rng(0)
    return {name: (rng.normal(size=shape) * 0.5).astype(np.float32) for name, shape in shapes.items()}


def model(
    nodes: Sequence[onnx.NodeProto], x: Mapping[str, Shape], y: Mapping[str, Shape], w: Mapping[str, Array], opset: int
) -> onnx.ModelProto:
    """A model of float32 with these inputs, outputs and weights."""
    ins, outs = ([helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in each.items()] for each in (x, y))
    graph = helper.make_graph(nodes, "graph", ins, outs, [numpy_helper.from_array(v, n) for n, v in w.items()])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(made)
    return onnx.shape_inference.infer_shapes(made)


def trained() -> dict[str, tuple[onnx.ModelProto, list[str]]]:
    """Models for onnxruntime-training by name, with what each is differentiated by."""
    square = [node("Mul", ["t", "t"], ["q"]), node("ReduceSum", ["q"], ["loss"], keepdims=0)]
    conv = weights(W=(3, 2, 3, 3), b=(3,))
    image: dict[str, Shape] = {"x": [1, 2, 5, 5]}
    loss: dict[str, Shape] = {"loss": []}
    found = {}
    for name, how in (("conv_same", {"auto_pad": "SAME_UPPER"}), ("conv_pads", {"pads": [1, 1, 1, 1]})):
        nodes = [node("Conv", ["x", "W", "b"], ["c"], kernel_shape=[3, 3], **how), node("Tanh", ["c"], ["t"]), *square]
        found[name] = model(nodes, image, loss, conv, 17), ["x", "W", "b"]
    for name, more in (("pool_dilated", {"dilations": [2, 2]}), ("pool", {})):
        nodes = [
            node("Mul", ["x", "k"], ["u"]), node("AveragePool", ["u"], ["p"], kernel_shape=[2, 2], **more),
            node("Tanh", ["p"], ["t"]), *square,
        ]  # fmt: skip
        found[name] = model(nodes, image, loss, weights(k=(1, 2, 1, 1)), 19), ["x", "k"]
    chosen = {"c": np.array([[1, 0, 1], [0, 1, 1]], bool)}
    for name, shape in (("where_broadcast", [3]), ("where", [2, 3])):
        nodes = [node("Where", ["c", "x", "z"], ["v"]), node("Tanh", ["v"], ["t"]), *square]
        found[name] = model(nodes, {"x": shape, "z": [2, 3]}, loss, chosen, 17), ["x", "z"]
    normal = weights(s=(2,), o=(2,), m=(2,)) | {"v": np.array([0.7, 1.3], np.float32)}
    nodes = [node("BatchNormalization", ["x", "s", "o", "m", "v"], ["n"]), node("Tanh", ["n"], ["t"]), *square]
    found["batchnorm"] = model(nodes, {"x": [3, 2, 2]}, loss, normal, 17), ["x", "s", "o"]
    return found


def onnxruntime_training(folder: Path) -> None:
    """The gradients of all of them by onnxruntime-training, as graphs and as numbers."""
    import onnxruntime as rt
    from onnxruntime.capi import onnxruntime_pybind11_state as training

    options = rt.SessionOptions()
    options.graph_optimization_level = rt.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, (forward, xs) in trained().items():
        onnx.save(forward, folder / f"{name}.onnx")
        raw = forward.SerializeToString()
        if name == "batchnorm":  # its gradient is that of training: this is where the forward becomes that, too
            raw = training.get_optimized_model(raw, set(xs), options)
        builder = training.GradientGraphBuilder(raw, {"loss"}, set(xs), "loss", options)
        builder.build()
        made = onnx.load_from_string(builder.get_model())
        onnx.save(made, folder / f"{name}_training.onnx")
        session = rt.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
        rng, outputs = np.random.default_rng(1), [f"{x}_grad" for x in xs]
        feeds = {each.name: rng.uniform(-1, 1, each.shape).astype(np.float32) for each in session.get_inputs()}
        np.savez(folder / f"{name}.npz", **feeds, **dict(zip(outputs, session.run(outputs, feeds), strict=True)))


def differentiated() -> dict[str, onnx.ModelProto]:
    """Models for onnx-ad by name."""
    conv, rnn = weights(W=(3, 2, 3, 3)), weights(W=(1, 9, 5), R=(1, 9, 3), B=(1, 18))
    scale, stats = weights(s=(2,), o=(2,)), weights(m=(2,)) | {"v": np.array([0.7, 1.3], np.float32)}
    zero, axis = np.array([[1, 0, 2], [1, 2, 0.5]], np.float32), {"ax": np.array([1], np.int64)}
    hot = weights(k=(3, 4)) | {"i": np.array([0, 2, 3], np.int64), "depth": np.array(4, np.int64)}
    image: dict[str, Shape] = {"x": [1, 2, 5, 5]}
    moments: dict[str, Shape] = {"m": [2], "v": [2]}
    end, gru = node("Tanh", ["e"], ["y"]), {"hidden_size": 3, "linear_before_reset": 1}
    bn, prod = (
        node("BatchNormalization", ["x", "s", "o", "m", "v"], ["e"]),
        node("ReduceProd", ["u", "ax"], ["e"], keepdims=0),
    )
    times = node("Mul", ["x", "z"], ["u"])
    return {
        "conv_ends": model([node("Conv", ["x", "W"], ["e"], pads=[0, 0, 1, 1]), end], image, {"y": [1, 3, 4, 4]}, conv, 18),
        "conv_even": model([node("Conv", ["x", "W"], ["e"], pads=[1, 1, 1, 1]), end], image, {"y": [1, 3, 5, 5]}, conv, 18),
        "gru_unbiased": model([node("GRU", ["x", "W", "R"], ["e"], **gru), end], {"x": [4, 2, 5]}, {"y": [4, 1, 2, 3]},
                              {n: rnn[n] for n in "WR"}, 18),
        "gru": model([node("GRU", ["x", "W", "R", "B"], ["e"], **gru), end], {"x": [4, 2, 5]}, {"y": [4, 1, 2, 3]},
                     rnn, 18),
        "moments": model([bn, end], {"x": [3, 2, 2], **moments}, {"y": [3, 2, 2]}, scale, 18),
        "no_moments": model([bn, end], {"x": [3, 2, 2]}, {"y": [3, 2, 2]}, scale | stats, 18),
        "det": model([node("Add", ["x", "A"], ["a"]), node("Det", ["a"], ["e"]), end], {"x": [3, 3]}, {"y": []},
                     weights(A=(3, 3)), 18),
        "trace": model([node("Mul", ["x", "A"], ["a"]), node("ReduceSum", ["a"], ["e"], keepdims=0), end], {"x": [3, 3]},
                       {"y": []}, weights(A=(3, 3)), 18),
        "onehot": model([node("OneHot", ["i", "depth", "x"], ["o"]), node("Mul", ["o", "k"], ["e"]), end], {"x": [2]},
                        {"y": [3, 4]}, hot, 18),
        "plain": model([node("Mul", ["x", "k"], ["e"]), end], {"x": [1, 4]}, {"y": [3, 4]}, weights(k=(3, 4)), 18),
        "prod_zero": model([times, prod, end], {"x": [2, 3]}, {"y": [2]}, {"z": zero, **axis}, 18),
        "prod": model([times, prod, end], {"x": [2, 3]}, {"y": [2]}, {"z": zero + 1, **axis}, 18),
    }  # fmt: skip


def onnx_ad(folder: Path) -> None:
    """The adjoint models of all of them by onnx-ad; of every other one in CasADi's layout."""
    from onnx_ad import reverse

    for index, (name, forward) in enumerate(differentiated().items()):
        onnx.save(forward, folder / f"{name}.onnx")
        onnx.save(reverse(forward, layout=("onnx", "casadi")[index % 2]), folder / f"adj_{name}.onnx")


def jax2onnx(folder: Path) -> None:
    """A loss of JAX and its gradient by all of its arguments."""
    import jax
    from jax import numpy as jnp
    from jax2onnx import to_onnx

    def loss(x: Any, w: Any, b: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ w + b) ** 2)

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 3), (3, 4), (4,))]
    onnx.save(to_onnx(loss, shapes), folder / "jax.onnx")
    onnx.save(to_onnx(jax.grad(loss, argnums=(0, 1, 2)), shapes), folder / "jax_grad.onnx")


if __name__ == "__main__":
    made = {"onnxruntime-training": onnxruntime_training, "onnx-ad": onnx_ad, "jax2onnx": jax2onnx}
    made[sys.argv[1]](Path(sys.argv[2]))
