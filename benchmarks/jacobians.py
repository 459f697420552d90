"""Full and directional gradient checks of four functions, in process and warm: gradcheck beside its peers.

python -m benchmarks.jacobians
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import gradcheck_cli
from benchmarks.cases import CASES, Case
from benchmarks.libraries import installed, jax_library, tensorflow_library, torch_library
from benchmarks.table import Table, write
from benchmarks.timing import in_turns, once, ratio

_H = 1e-6  # of JAX's central differences
Check = Callable[[], Any]


def ours(case: Case) -> Iterator[tuple[str, Check]]:
    """gradcheck's ways; each must pass."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.onnx"
        onnx.save(case.model(), path)
        model = gradcheck_cli.load(path)

    def run(**settings: Any) -> None:
        report = gradcheck_cli.check(model, "x", "y", x_init_value={"x": case.x}, **settings)
        assert report.exit_code == 0, report.checks[0]

    yield "auto", lambda: run(mode="full")
    yield "richardson", lambda: run(mode="full", method="richardson")
    yield "directional", lambda: run(mode="directional")


def torch_ways(case: Case) -> Iterator[tuple[str, Check]]:
    """torch.autograd.gradcheck, slow and fast."""
    if (torch := installed("torch")) is None:
        return
    library, weights = torch_library(torch), {n: torch.tensor(v) for n, v in case.weights.items()}
    x = torch.tensor(case.x, requires_grad=True)

    def function(x: Any) -> Any:
        return case.function(library, weights, x)

    yield "torch slow", lambda: torch.autograd.gradcheck(function, (x,))
    yield "torch fast", lambda: torch.autograd.gradcheck(function, (x,), fast_mode=True)


def jax_ways(case: Case) -> Iterator[tuple[str, Check]]:
    """Jitted and vmapped central differences beside jacrev, compiled before and with the time to compile."""
    if (jax := installed("jax")) is None:
        return
    jax.config.update("jax_enable_x64", True)
    library, weights = jax_library(jax), {n: jax.numpy.asarray(v) for n, v in case.weights.items()}
    x = jax.numpy.asarray(case.x)

    def flat(x: Any) -> Any:
        return case.function(library, weights, x.reshape(case.x_shape)).ravel()

    def both(x: Any) -> Any:
        steps = _H * jax.numpy.eye(x.size)
        numerical = jax.vmap(lambda step: (flat(x + step) - flat(x - step)) / (2 * _H))(steps)
        return jax.numpy.abs(jax.jacrev(flat)(x).T - numerical).max()

    compiled = jax.jit(both)

    def compile_too() -> None:
        jax.clear_caches()
        assert float(jax.jit(lambda x: both(x))(x.ravel())) < 1e-6

    yield "jax", lambda: float(compiled(x.ravel()))
    yield "jax with compiling", compile_too


def tensorflow_ways(case: Case) -> Iterator[tuple[str, Check]]:
    """tf.test.compute_gradient."""
    if (tf := installed("tensorflow")) is None:
        return
    library, weights = tensorflow_library(tf), {n: tf.constant(v) for n, v in case.weights.items()}
    x = tf.constant(case.x)
    yield "tensorflow", lambda: tf.test.compute_gradient(lambda x: case.function(library, weights, x), [x])


def numdifftools_ways(case: Case) -> Iterator[tuple[str, Check]]:
    """numdifftools' Jacobian alone, of the function in NumPy; only where it takes seconds."""
    nd = installed("numdifftools")
    if nd is None or case.name.startswith("LeNet"):
        return
    jacobian = nd.Jacobian(lambda x: np.ravel(case.function(np, case.weights, x.reshape(case.x_shape))))
    yield "numdifftools", lambda: jacobian(case.x.ravel())


_SLOW = ("tensorflow", "numdifftools", "jax with compiling")  # timed once


def main() -> None:
    table = Table("Jacobians", ("case", "way", "seconds", "auto is faster", "richardson", "directional"))
    for case in CASES:
        ways = dict(ours(case))
        for peers in (torch_ways, jax_ways, tensorflow_ways):
            ways.update(peers(case))
        slow = {name: ways.pop(name) for name in _SLOW if name in ways}
        times = in_turns(ways)
        times.update({name: [once(run)] * len(times["auto"]) for name, run in slow.items()})
        for name, taken in times.items():
            ratios = [ratio(times, name, way) for way in ("auto", "richardson", "directional")]
            table.add(case.name, name, statistics.median(taken), *ratios)
    write(table)


if __name__ == "__main__":
    main()
