"""Convolutions of ResNet-50's layer shapes in float64, forward and both gradients, beside PyTorch's.

python -m benchmarks.convolutions
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.libraries import installed
from benchmarks.table import Table, write
from benchmarks.timing import in_turns, ratio
from gradcheck_cli.native.products import conv, conv_transpose

Array = NDArray[Any]
LAYERS = [  # channels in, channels out, size, kernel, stride
    (3, 64, 224, 7, 2), (64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1), (256, 128, 56, 1, 1),
    (128, 128, 56, 3, 2), (128, 512, 28, 1, 1), (256, 256, 28, 3, 2), (256, 1024, 14, 1, 1), (512, 512, 14, 3, 2),
    (512, 512, 7, 3, 1), (512, 2048, 7, 1, 1),
]  # fmt: skip


def by_weight(x: Array, ct: Array, kernel: int, stride: int, pad: int) -> Array:
    """The gradient by the weight as the rule has it: a convolution of x by the cotangent, channels as batch."""
    behind = (ct.shape[-1] - 1) * stride + kernel - pad - x.shape[-1]  # a negative pad cuts off what no window sees
    dilated = {"strides": [1, 1], "pads": [pad, pad, behind, behind], "dilations": [stride, stride]}
    return conv(x.swapaxes(0, 1), ct.swapaxes(0, 1), **dilated).swapaxes(0, 1)


def tables(quick: bool = False) -> Iterator[Table]:
    """One table: seconds of each layer, and ratios where PyTorch is installed."""
    torch = installed("torch")
    table = Table("Convolutions", ("layer", "forward", "by x", "by w", "forward faster", "by x faster", "by w faster"))
    every: list[tuple[float, ...]] = []
    for layer in LAYERS[-2:] if quick else LAYERS:
        times = measured(torch, *layer)
        ours = [statistics.median(times[way]) for way in ("forward", "by x", "by w")]
        ratios = [ratio(times, f"torch {way}", way) for way in ("forward", "by x", "by w")] if torch else ["absent"] * 3
        table.add("{}->{} {}x{}/{}".format(*layer[:3], layer[3], layer[4]), *ours, *ratios)
        every.append(tuple(r for r in ratios if isinstance(r, float)))
    if torch:
        table.add("geometric mean", "", "", "", *(statistics.geometric_mean(c) for c in zip(*every, strict=True)))
    yield table


def measured(torch: Any, c: int, m: int, size: int, kernel: int, stride: int) -> dict[str, list[float]]:
    """Seconds of each way, PyTorch's too where it is installed."""
    rng, pad = np.random.default_rng(0), kernel // 2
    x, w = rng.normal(size=(1, c, size, size)), rng.normal(size=(m, c, kernel, kernel))
    geometry = {"strides": [stride] * 2, "pads": [pad] * 4, "dilations": [1, 1]}
    y = conv(x, w, **geometry)
    ct = rng.normal(size=y.shape)
    left = (size + 2 * pad - kernel) % stride
    ways = {
        "forward": lambda: conv(x, w, **geometry),
        "by x": lambda: conv_transpose(ct, w, **geometry, output_padding=[left] * 2),
        "by w": lambda: by_weight(x, ct, kernel, stride, pad),
    }
    if torch is not None:
        tx, tw, tct = (torch.tensor(a) for a in (x, w, ct))
        ways["torch forward"] = lambda: torch.nn.functional.conv2d(tx, tw, stride=stride, padding=pad)
        gradient = torch.nn.grad
        ways["torch by x"] = lambda: gradient.conv2d_input(tx.shape, tw, tct, stride=stride, padding=pad)
        ways["torch by w"] = lambda: gradient.conv2d_weight(tx, tw.shape, tct, stride=stride, padding=pad)
        for name in ("forward", "by x", "by w"):
            np.testing.assert_allclose(ways[name](), ways[f"torch {name}"]().numpy(), rtol=1e-9, atol=1e-9)
    return in_turns(ways)


if __name__ == "__main__":
    write(*tables())
