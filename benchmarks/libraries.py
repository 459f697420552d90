"""Array libraries of the peers under the names that the cases are written in; None where one is not installed."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np


def installed(name: str) -> Any | None:
    """The module, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def numpy_library(xp: Any = np) -> SimpleNamespace:
    """NumPy, or what wraps it, with convolutions by products of shifted images and a scatter by a matrix."""

    def shifted(x: Any, w: Any, pad: int, stride: int) -> Iterator[tuple[Any, Any]]:
        x = xp.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)), "constant")
        height, width = x.shape[2] - w.shape[2] + 1, x.shape[3] - w.shape[3] + 1
        for i, j in np.ndindex(w.shape[2:]):
            yield x[:, :, i : i + height : stride, j : j + width : stride], w[:, :, i, j]

    def conv(x: Any, w: Any, pad: int) -> Any:
        return sum(xp.einsum("nchw,mc->nmhw", *tap) for tap in shifted(x, w, pad, 1))

    def depthwise(x: Any, w: Any, stride: int) -> Any:
        return sum(image * taps[:, :, None] for image, taps in shifted(x, w, 1, stride))

    def mean_pool(x: Any) -> Any:
        return 0.25 * (x[:, :, ::2, ::2] + x[:, :, 1::2, ::2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, 1::2])

    return SimpleNamespace(
        tanh=xp.tanh, exp=xp.exp, sqrt=xp.sqrt, reshape=xp.reshape, swapaxes=xp.swapaxes, zeros=xp.zeros,
        mean=partial(_with_axis, xp.mean), sum=partial(_with_axis, xp.sum), conv=conv, mean_pool=mean_pool,
        concatenate=xp.concatenate, depthwise=depthwise, rows=lambda x, at: x[at],
        rows_added=lambda x, at, added: x + np.eye(len(x))[:, at] @ added,
    )  # fmt: skip


def torch_library(torch: Any) -> SimpleNamespace:
    """PyTorch under NumPy's names."""
    functional = torch.nn.functional
    return SimpleNamespace(
        tanh=torch.tanh, exp=torch.exp, sqrt=torch.sqrt, reshape=torch.reshape, swapaxes=torch.swapaxes,
        zeros=lambda shape, dtype: torch.zeros(shape, dtype=dtype),
        mean=lambda x, axis, keepdims: torch.mean(x, axis, keepdim=keepdims),
        sum=lambda x, axis, keepdims: torch.sum(x, axis, keepdim=keepdims),
        conv=lambda x, w, pad: functional.conv2d(x, w, padding=pad),
        depthwise=lambda x, w, stride: functional.conv2d(x, w, stride=stride, padding=1, groups=len(w)),
        mean_pool=lambda x: functional.avg_pool2d(x, 2),
        concatenate=torch.concatenate, rows=lambda x, at: x[at],
        rows_added=lambda x, at, added: torch.index_add(x, 0, at, added),
    )  # fmt: skip


def jax_library(jax: Any) -> SimpleNamespace:
    """jax.numpy, with the functions that it has elsewhere or writes otherwise."""
    jnp, lax = jax.numpy, jax.lax

    def mean_pool(x: Any) -> Any:
        return 0.25 * lax.reduce_window(x, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def conv(x: Any, w: Any, pad: int) -> Any:
        return lax.conv_general_dilated(x, w, (1, 1), ((pad, pad), (pad, pad)))

    def depthwise(x: Any, w: Any, stride: int) -> Any:
        return lax.conv_general_dilated(x, w, (stride, stride), ((1, 1), (1, 1)), feature_group_count=len(w))

    return SimpleNamespace(
        tanh=jnp.tanh, exp=jnp.exp, sqrt=jnp.sqrt, reshape=jnp.reshape, swapaxes=jnp.swapaxes, zeros=jnp.zeros,
        mean=partial(_with_axis, jnp.mean), sum=partial(_with_axis, jnp.sum), conv=conv, mean_pool=mean_pool,
        concatenate=jnp.concatenate, depthwise=depthwise, rows=lambda x, at: x[at],
        rows_added=lambda x, at, added: x.at[at].add(added),
    )  # fmt: skip


def tensorflow_library(tf: Any) -> SimpleNamespace:
    """TensorFlow under NumPy's names."""

    def swapaxes(x: Any, a: int, b: int) -> Any:
        order = list(range(len(x.shape)))
        order[a], order[b] = order[b], order[a]
        return tf.transpose(x, order)

    def padded(x: Any, pad: int) -> Any:
        return tf.transpose(tf.pad(x, [[0, 0], [0, 0], [pad, pad], [pad, pad]]), (0, 2, 3, 1))

    def conv(x: Any, w: Any, pad: int) -> Any:
        made = tf.nn.conv2d(padded(x, pad), tf.transpose(w, (2, 3, 1, 0)), 1, "VALID")
        return tf.transpose(made, (0, 3, 1, 2))

    def depthwise(x: Any, w: Any, stride: int) -> Any:
        made = tf.nn.depthwise_conv2d(padded(x, 1), tf.transpose(w, (2, 3, 0, 1)), [1, stride, stride, 1], "VALID")
        return tf.transpose(made, (0, 3, 1, 2))

    def mean_pool(x: Any) -> Any:
        pooled = tf.nn.avg_pool2d(tf.transpose(x, (0, 2, 3, 1)), 2, 2, "VALID")
        return tf.transpose(pooled, (0, 3, 1, 2))

    return SimpleNamespace(
        tanh=tf.tanh, exp=tf.exp, sqrt=tf.sqrt, reshape=tf.reshape, swapaxes=swapaxes, zeros=tf.zeros,
        mean=partial(_with_axis, tf.reduce_mean), sum=partial(_with_axis, tf.reduce_sum), conv=conv,
        mean_pool=mean_pool, depthwise=depthwise, concatenate=tf.concat, rows=tf.gather,
        rows_added=lambda x, at, added: tf.tensor_scatter_nd_add(x, at[:, None], added),
    )  # fmt: skip


def _with_axis(reduce: Any, x: Any, axis: int, keepdims: bool) -> Any:
    return reduce(x, axis, keepdims=keepdims)
