"""Models whose file has another gradient than their framework, with the records: `tests/models/files/recorded/`.

`python -m tests.reference.planted_losses torch` (or jax, or tensorflow) writes them anew where that framework is installed;
the tests need none.  Files of PyTorch are exported by it; those of JAX and TensorFlow are written as their exporters do,
who leave out stop_gradient and custom gradients.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

FOLDER = Path(__file__).parent.parent / "models" / "files" / "recorded"


def custom() -> dict[str, Any]:
    """Functions with gradients of their own."""
    import torch

    def made(forward: Callable[[Any], Any], backward: Callable[[Any], Any]) -> Any:
        class Custom(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return forward(x)

            @staticmethod
            def backward(ctx: Any, ct: Any) -> Any:
                return backward(ct)

        return Custom.apply

    return {
        "custom_function": made(lambda x: x * 1.0, lambda ct: 2 * ct),
        "straight_through": made(lambda x: torch.round(3 * x), lambda ct: 3 * ct),
        "reversal": made(lambda x: x.view_as(x), lambda ct: -ct),
        "sign_estimator": made(torch.sign, lambda ct: ct),
    }


def functions() -> dict[str, Callable[[Any], Any]]:
    """Functions between two layers, by name; all but the first lose a gradient when they are exported."""
    import torch
    from torch import nn

    def without_gradient(h: Any) -> Any:
        with torch.no_grad():
            return torch.tanh(h)

    def hooked(h: Any) -> Any:
        if h.requires_grad and not torch.onnx.is_in_onnx_export():
            h.register_hook(lambda ct: 0.5 * ct)
        return torch.tanh(h)

    def cleared(h: Any) -> Any:
        copy = h.detach().clone()
        copy[:, 0] = 0
        return copy + 0.5 * h

    def hardened(h: Any) -> Any:
        soft = torch.softmax(h, -1)
        hard = nn.functional.one_hot(soft.argmax(-1), h.shape[-1]).to(h.dtype)
        return hard - soft.detach() + soft

    def clipped_outside(h: Any) -> Any:
        return h + torch.from_numpy(np.clip(h.detach().numpy(), -0.1, 0.1))

    return {
        "right": torch.tanh,
        **custom(),
        "detach": lambda h: torch.tanh(h.detach()),
        "no_grad": without_gradient,
        "straight_through_sum": lambda h: h + (torch.round(3 * h) - h).detach(),
        "frozen_value": lambda h: h / h.std().item(),
        "frozen_array": lambda h: h - float(h.detach().numpy().mean()),
        "integer_cast": lambda h: h + ((4 * h).int().to(h.dtype) - h).detach(),
        "clipped_by_numpy": clipped_outside,
        "hard_argmax": hardened,
        "detached_copy": cleared,
        "hook": hooked,
        "fake_quantize": lambda h: torch.fake_quantize_per_tensor_affine(h, 0.1, 0, -128, 127),
        "detached_norm": lambda h: h / h.norm(dim=-1, keepdim=True).detach(),
        "detached_maximum": lambda h: torch.tanh(h - h.detach() * 0.5),
    }


def net(function: Callable[[Any], Any], *more: Any) -> Any:
    """Two layers with a function between them."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer1, self.more, self.layer2 = nn.Linear(4, 5), nn.Sequential(*more), nn.Linear(5, 3)

        def forward(self, x: Any) -> Any:
            return self.layer2(function(self.more(self.layer1(x))))

    torch.manual_seed(3)
    return Net()


def halved(model: Any) -> None:
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor).astype(np.float16).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def folded(model: Any) -> None:
    scale = np.float32([0.5, 1, 2, 1, 1])
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if tensor.name in ("layer1.weight", "layer1.bias"):
            values = (values.T * scale).T
        elif tensor.name == "layer2.weight":
            values = values / scale
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), tensor.name))


def frozen(model: Any) -> None:
    """The first layer at the example becomes a constant, as a wrong optimizer leaves it."""
    layer, inner = model.graph.node[0], model.graph.node[0].output[0]
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    values = example() @ held[layer.input[1]].T + held[layer.input[2]]
    del model.graph.node[0]
    model.graph.initializer.append(numpy_helper.from_array(values, inner))


def example() -> Any:
    """The input of all models of PyTorch."""
    return np.random.default_rng(3).normal(size=(3, 4)).astype(np.float32)


def of_torch() -> None:
    """Writes the models of PyTorch."""
    import torch
    from torch import nn

    from gradcheck_cli.reference import recording

    def kept(name: str, module: Any, change: Callable[[Any], None] = lambda model: None, train: bool = False) -> None:
        path, x = FOLDER / f"{name}.onnx", torch.tensor(example())
        recording.torch(module.train(train), x, FOLDER / f"{name}.gradcheck.npz")
        torch.onnx.export(module.eval(), (x,), path, dynamo=False, input_names=["x"], output_names=["y"])
        model = onnx.load(path)
        change(model)
        onnx.save(model, path)

    for name, function in functions().items():
        kept(name, net(function))
    kept("half_constants", net(torch.tanh), halved)
    kept("folded_scale", net(lambda h: h), folded)
    kept("frozen_layer", net(torch.tanh), frozen)
    kept("batch_norm_mode", net(torch.tanh, nn.BatchNorm1d(5)), train=True)
    kept("dropout_mode", net(torch.tanh, nn.Dropout(0.5)), train=True)


_DENSE = """<ir_version: 8, opset_import: ["" : 17]> net (float[3,4] x) => (float[3,2] y)
{ h = MatMul (x, w)  t = Tanh (h)  y = Mul (h, t) }"""


def _weights() -> tuple[Any, Any]:
    rng = np.random.default_rng(5)
    return rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=(4, 2)).astype(np.float32)


def _written(name: str, w: Any) -> None:
    """A dense layer times its tanh, whose weights have another name than in the framework."""
    model = onnx.parser.parse_model(_DENSE)
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    onnx.save(model, FOLDER / f"{name}.onnx")


def of_jax() -> None:
    """Writes the models of JAX."""
    import jax
    import jax.numpy as jnp

    from gradcheck_cli.reference import recording

    @jax.custom_vjp
    def doubled(h: Any) -> Any:
        return h

    doubled.defvjp(lambda h: (h, None), lambda _, ct: (2 * ct,))
    functions: dict[str, Callable[[Any], Any]] = {
        "jax_right": jnp.tanh,
        "jax_stop_gradient": lambda h: jax.lax.stop_gradient(jnp.tanh(h)),
        "jax_custom_vjp": lambda h: jnp.tanh(doubled(h)),
    }
    x, w = _weights()
    for name, function in functions.items():

        def net(params: Any, x: Any, function: Callable[[Any], Any] = function) -> Any:
            h = x @ params["dense"]["kernel"].T
            return h * function(h)

        recording.jax(net, (x,), FOLDER / f"{name}.gradcheck.npz", params={"dense": {"kernel": jnp.asarray(w.T)}})
        _written(name, w)


def of_tensorflow() -> None:
    """Writes the models of TensorFlow."""
    import tensorflow as tf

    from gradcheck_cli.reference import recording

    @tf.custom_gradient
    def doubled(h: Any) -> Any:
        return tf.identity(h), lambda ct: 2 * ct

    class Net(tf.Module):
        def __init__(self, w: Any, function: Callable[[Any], Any]) -> None:
            super().__init__()
            self.kernel, self.function = tf.Variable(w, name="kernel"), function

        def __call__(self, x: Any) -> Any:
            h = x @ self.kernel
            return h * self.function(h)

    functions: dict[str, Callable[[Any], Any]] = {
        "tf_right": tf.tanh,
        "tf_stop_gradient": lambda h: tf.stop_gradient(tf.tanh(h)),
        "tf_custom_gradient": lambda h: tf.tanh(doubled(h)),
    }
    x, w = _weights()
    for name, function in functions.items():
        recording.tensorflow(Net(w, function), x, FOLDER / f"{name}.gradcheck.npz")
        _written(name, w)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    {"torch": of_torch, "jax": of_jax, "tensorflow": of_tensorflow}[sys.argv[1]]()
