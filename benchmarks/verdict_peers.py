"""The checkers of other libraries on a function that is served to them; runs in the environment that has the library.

python verdict_peers.py torch-slow ADDRESS: connects to the benchmark, says its version, and answers case by case.  It
needs NumPy and the library, nothing else.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from multiprocessing.connection import Client
from typing import Any

import numpy as np

Function = Callable[[Any], Any]
Checker = Callable[[Function, Any, Any, tuple[int, ...]], bool]


def main() -> None:
    """Serves checks until the benchmark hangs up."""
    name, address = sys.argv[1:]
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="")
    warnings.simplefilter("ignore")
    with Client(address, authkey=bytes.fromhex(os.environ["VERDICTS_KEY"])) as line:
        try:
            check, version = PEERS[name]()
        except ImportError:
            line.send(None)
            return
        line.send(version)
        while (given := line.recv()) is not None:
            line.send(("verdict", judged(check, line, given)))


def judged(check: Checker, line: Any, given: dict[str, Any]) -> str:
    """pass, fail, or error with what was raised."""

    def function(x: Any) -> Any:
        line.send(("value", packed(np.asarray(x))))
        return unpacked(line.recv())

    x, jacobian = unpacked(given["x"]), unpacked(given["jacobian"])
    try:
        return "pass" if check(function, x, jacobian, given["y_shape"]) else "fail"
    except Exception as error:  # whatever a library raises is its verdict
        return f"error {type(error).__name__}: {error}"[:200]


def packed(x: Any) -> tuple[bytes, tuple[int, ...], str]:
    """An array as plain data, which every NumPy reads."""
    return x.tobytes(), x.shape, x.dtype.name


def unpacked(data: tuple[bytes, tuple[int, ...], str]) -> Any:
    """The array again."""
    raw, shape, dtype = data
    return np.frombuffer(raw, dtype).reshape(shape).copy()


def torch_checker(dtype: str, **settings: Any) -> tuple[Checker, str]:
    """torch.autograd.gradcheck on a function of its own."""
    import torch

    torch.set_num_threads(1)

    def check(function: Function, x: Any, jacobian: Any, y_shape: tuple[int, ...]) -> bool:
        class Tested(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return torch.from_numpy(function(x.detach().numpy()))

            @staticmethod
            def backward(ctx: Any, ct: Any) -> Any:
                held = torch.from_numpy(jacobian.astype(dtype))
                return (held @ ct.reshape(-1)).reshape(x.shape)

        here = torch.from_numpy(x.astype(dtype)).requires_grad_()
        return bool(torch.autograd.gradcheck(Tested.apply, (here,), raise_exception=False, **settings))

    return check, str(torch.__version__)


def tensorflow_checker(least: float) -> tuple[Checker, str]:
    """tf.test.compute_gradient, and the largest difference against a threshold."""
    import tensorflow as tf

    def check(function: Function, x: Any, jacobian: Any, y_shape: tuple[int, ...]) -> bool:
        @tf.custom_gradient
        def tested(x: Any) -> Any:
            y = tf.ensure_shape(tf.numpy_function(function, [x], tf.float64), y_shape)

            def back(ct: Any) -> Any:
                return tf.reshape(tf.linalg.matvec(jacobian, tf.reshape(ct, [-1])), x.shape)

            return y, back

        theoretical, numerical = tf.test.compute_gradient(tested, [tf.constant(x)])
        return bool(np.max(np.abs(theoretical[0] - numerical[0]), initial=0.0) < least)

    return check, str(tf.__version__)


def jax_checker() -> tuple[Checker, str]:
    """jax.test_util.check_grads in reverse mode."""
    import jax
    from jax.test_util import check_grads

    jax.config.update("jax_enable_x64", True)

    def check(function: Function, x: Any, jacobian: Any, y_shape: tuple[int, ...]) -> bool:
        like = jax.ShapeDtypeStruct(y_shape, np.float64)

        @jax.custom_vjp
        def tested(x: Any) -> Any:
            return jax.pure_callback(function, like, x, vmap_method="sequential")

        def back(kept: None, ct: Any) -> Any:
            return ((jacobian @ ct.reshape(-1)).reshape(x.shape),)

        tested.defvjp(lambda x: (tested(x), None), back)
        try:
            check_grads(tested, (x,), order=1, modes=["rev"])
        except AssertionError:
            return False
        return True

    return check, jax.__version__


PEERS: dict[str, Callable[[], tuple[Checker, str]]] = {
    "torch slow": lambda: torch_checker("float64"),
    "torch fast": lambda: torch_checker("float64", fast_mode=True),
    "torch float32": lambda: torch_checker("float32", eps=1e-3, atol=1e-3, rtol=1e-2),
    "TensorFlow 1e-4": lambda: tensorflow_checker(1e-4),
    "TensorFlow 1e-3": lambda: tensorflow_checker(1e-3),
    "JAX": jax_checker,
}

if __name__ == "__main__":
    main()
