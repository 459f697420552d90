"""Whole networks: a directional check in units of one forward run, the forward run beside PyTorch's, peak memory.

python -m benchmarks.models
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gradcheck_cli
from benchmarks.alone import alone
from benchmarks.libraries import installed
from benchmarks.networks import GPT, RESNET, Network, transformer
from benchmarks.table import Table, write
from benchmarks.timing import in_turns, ratio

TINY = Network("tiny transformer", (4, 8), (4, 10), transformer(1, 8, 2, 4, 10))
HEAD = ("model", "one forward run, s", "directional check, s", "in forward runs", "PyTorch's forward run, s",
        "forward: times faster", "peak of the check, MB")  # fmt: skip


def tables(quick: bool = False) -> Iterator[Table]:
    """One table: a row for each network."""
    table = Table("Models", HEAD, note="All in float64; the check is all of `check()`, the model being loaded.")
    for network in (TINY,) if quick else (RESNET, GPT):
        with tempfile.TemporaryDirectory() as folder:
            table.add(network.name, *measured(network, Path(folder) / "network.onnx", rounds=2 if quick else 5))
    yield table


def measured(network: Network, path: Path, rounds: int) -> tuple[Any, ...]:
    """The cells of a row but its name."""
    weights = network.write(path)
    model, torch = gradcheck_cli.load(path), installed("torch")
    [y] = model.graph.outputs
    x = np.random.default_rng(1).normal(size=network.x_shape)
    ways = {
        "forward": lambda: gradcheck_cli.run(model[y], {"x": x}),
        "check": lambda: check(model, x),
    }
    if torch is not None:
        function, there = network.in_torch(torch, weights), torch.tensor(x)

        def in_torch() -> Any:
            with torch.no_grad():
                return function(there)

        np.testing.assert_allclose(in_torch().numpy(), ways["forward"]()[0], rtol=1e-6, atol=1e-6)
        ways["torch"] = in_torch
    times = in_turns(ways, rounds)
    _, peak = alone("benchmarks.models:check_file", path=str(path))
    theirs = (statistics.median(times["torch"]), ratio(times, "torch", "forward")) if torch else ("absent", "")
    ours = (statistics.median(times[way]) for way in ("forward", "check"))
    return *ours, ratio(times, "check", "forward"), *theirs, peak


def check(model: gradcheck_cli.Model, x: Any = None) -> None:
    """A directional check, which must find nothing wrong."""
    given = {} if x is None else {"x_init_value": {"x": x}}
    [found] = gradcheck_cli.check(model, "x", mode="directional", **given).checks
    if found.status in ("fail", "error"):
        raise RuntimeError(f"{found.id}: {found.status} {found.code}")


def check_file(path: str) -> None:
    """The same from the file."""
    check(gradcheck_cli.load(path))


if __name__ == "__main__":
    write(*tables())
