"""Small PyTorch modules that are exported and recorded: none has lost a gradient on the way, so that none may fail.

`python -m tests.reference.parity_modules FOLDER` exports all by both exporters, checks each beside its record, and prints a
table of what failed.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradcheck_cli as gc

EXPORTERS = ("torchscript", "dynamo")
# the exporter folds the first step, at which the hidden state is zero, and the bias there with it
LOST = (("rnn", "dynamo"),)


Table = dict[str, tuple[Callable[[], Any], tuple[tuple[int, ...], ...]]]
_IMAGE, _LINE, _WAVE = ((2, 3, 8, 8),), ((3, 4),), ((2, 3, 12),)


def modules() -> Table:
    """By name: what makes a module, and the shapes of its inputs."""
    return {**_dense(), **_activations(), **_images(), **_sequences()}


def _of(function: Callable[..., Any], *parts: Any) -> Any:
    """A module that is a function of its parts and inputs."""
    from torch import nn

    class Of(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(parts)

        def forward(self, *xs: Any) -> Any:
            return function(*self.parts, *xs)

    return Of()


def _tied() -> Any:
    """Two layers with one weight."""
    from torch import nn

    up, down, again = nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False), nn.Linear(4, 6, bias=False)
    again.weight = up.weight
    return nn.Sequential(up, down, nn.Tanh(), again)


def _scaled() -> Any:
    """A scale and a shift, which are no layer's."""
    import torch
    from torch import nn

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.rand(4) + 0.5), nn.Parameter(torch.zeros(4))

        def forward(self, x: Any) -> Any:
            return x * self.scale + self.shift

    return Scaled()


def _dense() -> Table:
    from torch import nn

    seq, lin = nn.Sequential, nn.Linear
    return {
        "linear": (lambda: lin(4, 3), _LINE),
        "linear without bias": (lambda: lin(4, 3, bias=False), _LINE),
        "mlp": (lambda: seq(lin(4, 8), nn.ReLU(), lin(8, 3)), _LINE),
        "deep mlp": (lambda: seq(*(m for _ in range(5) for m in (lin(4, 4), nn.Tanh()))), _LINE),
        "scaled": (_scaled, _LINE),
        "tied": (_tied, _LINE),
        "residual": (lambda: _of(lambda f, x: x + f(x), seq(lin(4, 4), nn.GELU(), lin(4, 4))), _LINE),
        "gated": (lambda: _of(lambda a, b, x: a(x) * b(x).sigmoid(), lin(4, 4), lin(4, 4)), _LINE),
        "glu": (lambda: seq(lin(4, 8), nn.GLU()), _LINE),
        "bilinear": (lambda: nn.Bilinear(4, 4, 3), ((3, 4), (3, 4))),
        "two inputs": (lambda: _of(lambda f, x, y: f(x) * y, lin(4, 4)), ((3, 4), (3, 4))),
        "two outputs": (lambda: _of(lambda f, g, x: (f(x), g(x)), lin(4, 3), lin(4, 2)), _LINE),
        "concat": (lambda: _of(lambda f, x, y: f(_cat(x, y)), lin(8, 2)), ((3, 4), (3, 4))),
        "softmax": (lambda: seq(lin(4, 3), nn.Softmax(-1)), _LINE),
        "log softmax": (lambda: seq(lin(4, 3), nn.LogSoftmax(-1)), _LINE),
        "layer norm": (lambda: seq(lin(4, 6), nn.LayerNorm(6), lin(6, 2)), _LINE),
        "rms norm": (lambda: seq(lin(4, 6), nn.RMSNorm(6), lin(6, 2)), _LINE),
        "batch norm": (lambda: seq(lin(4, 6), nn.BatchNorm1d(6), lin(6, 2)), _LINE),
        "two batch norms": (lambda: seq(lin(4, 6), nn.BatchNorm1d(6), nn.ReLU(), lin(6, 6), nn.BatchNorm1d(6)), _LINE),
    }  # fmt: skip


def _activations() -> Table:
    from torch import nn

    seq, lin = nn.Sequential, nn.Linear
    return {
        **{f"activation {a}": (lambda a=a: seq(lin(4, 6), getattr(nn, a)(), lin(6, 2)), _LINE) for a in (
            "Sigmoid", "Tanh", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish", "Softplus", "Softsign", "LeakyReLU",
            "Hardswish", "Hardsigmoid", "LogSigmoid", "PReLU", "Hardtanh", "ReLU6")},
    }  # fmt: skip


def _images() -> Table:
    from torch import nn

    seq, lin, flat = nn.Sequential, nn.Linear, nn.Flatten
    return {
        "group norm": (lambda: seq(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU()), _IMAGE),
        "instance norm": (lambda: seq(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True)), _IMAGE),
        "dropout": (lambda: seq(lin(4, 6), nn.Dropout(0.5), lin(6, 2)), _LINE),
        "conv": (lambda: nn.Conv2d(3, 4, 3), _IMAGE),
        "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1), _WAVE),
        "conv3d": (lambda: nn.Conv3d(1, 2, 3), ((1, 1, 5, 5, 5),)),
        "conv stride": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), _IMAGE),
        "conv dilated": (lambda: nn.Conv2d(3, 4, 3, dilation=2), _IMAGE),
        "conv groups": (lambda: nn.Conv2d(3, 6, 3, groups=3), _IMAGE),
        "conv same": (lambda: nn.Conv2d(3, 4, 3, padding="same"), _IMAGE),
        "conv transposed": (lambda: nn.ConvTranspose2d(3, 2, 3, stride=2), _IMAGE),
        "conv batch norm": (lambda: seq(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), _IMAGE),
        "resnet block": (lambda: _of(lambda f, x: (x + f(x)).relu(), seq(
            nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 3, padding=1),
            nn.BatchNorm2d(3))), _IMAGE),
        "cnn": (lambda: seq(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), flat(), lin(36, 3)), _IMAGE),
        "average pool": (lambda: seq(nn.Conv2d(3, 4, 3), nn.AvgPool2d(2), flat(), lin(36, 3)), _IMAGE),
        "adaptive pool": (lambda: seq(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), flat(), lin(4, 3)), _IMAGE),
        "upsample": (lambda: seq(nn.Upsample(scale_factor=2), nn.Conv2d(3, 2, 3)), _IMAGE),
        "bilinear upsample": (lambda: seq(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(3, 2, 3)), _IMAGE),
        "pixel shuffle": (lambda: seq(nn.Conv2d(3, 8, 3), nn.PixelShuffle(2)), _IMAGE),
        "padding": (lambda: seq(nn.ReflectionPad2d(1), nn.Conv2d(3, 2, 3)), _IMAGE),
    }  # fmt: skip


def _sequences() -> Table:
    from torch import nn
    from torch.nn import functional as F

    lin = nn.Linear
    return {
        "lstm": (lambda: _of(lambda f, x: f(x)[0], nn.LSTM(3, 4)), ((5, 2, 3),)),
        "gru": (lambda: _of(lambda f, x: f(x)[0], nn.GRU(3, 4)), ((5, 2, 3),)),
        "rnn": (lambda: _of(lambda f, x: f(x)[0], nn.RNN(3, 4)), ((5, 2, 3),)),
        "attention": (lambda: _of(lambda f, x: f(x, x, x, need_weights=False)[0], nn.MultiheadAttention(4, 2)),
                      ((5, 2, 4),)),
        "transformer layer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1), ((5, 2, 4),)),
        "dot attention": (lambda: _of(lambda q, k, v, x: F.scaled_dot_product_attention(q(x), k(x), v(x)),
                                     lin(4, 4), lin(4, 4), lin(4, 4)), ((2, 5, 4),)),
        "matrix product": (lambda: _of(lambda f, x: f(x) @ x.transpose(-1, -2), lin(4, 4)), ((2, 5, 4),)),
        "norms": (lambda: _of(lambda f, x: F.normalize(f(x), dim=-1), lin(4, 4)), _LINE),
        "variance": (lambda: _of(lambda f, x: f(x).var(-1) + f(x).logsumexp(-1), lin(4, 4)), _LINE),
        "loss": (lambda: _of(lambda f, x, y: F.mse_loss(f(x), y), lin(4, 2)), ((3, 4), (3, 2))),
    }  # fmt: skip


def _cat(*xs: Any) -> Any:
    import torch

    return torch.cat(xs, -1)


def written(folder: Path) -> Iterator[tuple[str, str, Path | None, str]]:
    """Exports and records modules by both exporters: name, exporter, file, or the reason why there is none."""
    import torch

    from gradcheck_cli.reference import recording

    for name, (make, shapes) in modules().items():
        for exporter in EXPORTERS:
            torch.manual_seed(1)
            module, xs = make().eval(), tuple(torch.randn(shape) for shape in shapes)
            path = folder / f"{name.replace(' ', '_')}.{exporter}.onnx"
            try:
                with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    torch.onnx.export(module, xs, path, dynamo=exporter == "dynamo", external_data=False)
            except Exception as error:  # an exporter may refuse a module
                yield name, exporter, None, f"not exported: {type(error).__name__}: {error}".splitlines()[0][:100]
                continue
            recording.torch(module, xs, path.with_name(f"{path.stem}.gradcheck.npz"))
            yield name, exporter, path, ""


def main(folder: Path) -> None:
    """Prints the gradients that fail beside their records, and how many were checked."""
    tally: Counter[str] = Counter()
    for name, exporter, path, reason in written(folder):
        checks = [] if path is None else [check for check in gc.check(gc.load(path)).checks if check.claim]
        bad = [check for check in checks if not check.passes]
        tally["files"] += path is not None
        tally["gradients"] += len(checks)
        tally["failed"] += bool(bad)
        for line in [reason] if reason else [f"{check.id}: {check.status} {check.message}" for check in bad]:
            print(f"{name:24} {exporter:12} {line}")
    print(len(modules()), "modules", dict(tally))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
