"""Full and directional gradient checks of the cases, in process and warm: gradcheck beside its peers.

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
from benchmarks.libraries import installed, jax_library, numpy_library, tensorflow_library, torch_library
from benchmarks.table import Table, write
from benchmarks.timing import in_turns, once, ratio

_H = 1e-6  # of JAX's central differences
Check = Callable[[], Any]


def ours(case: Case, jobs: int | None = None) -> Iterator[tuple[str, Check]]:
    """gradcheck's ways, on so many threads or all cores; each must pass."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.onnx"
        onnx.save(case.model(), path)
        model = gradcheck_cli.load(path)

    def run(**settings: Any) -> None:
        # No peer holds its forward run against another runtime.
        settings |= {"x_init_value": {"x": case.x}, "forward": "internal", "jobs": jobs}
        report = gradcheck_cli.check(model, "x", "y", **settings)
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
    """tf.test.compute_gradient of a compiled function."""
    if (tf := installed("tensorflow")) is None:
        return
    library, weights = tensorflow_library(tf), {n: tf.constant(v) for n, v in case.weights.items()}
    x = tf.constant(case.x)
    function = tf.function(lambda x: case.function(library, weights, x))
    yield "tensorflow", lambda: tf.test.compute_gradient(function, [x])


def numdifftools_ways(case: Case) -> Iterator[tuple[str, Check]]:
    """numdifftools' Jacobian alone, of the function in NumPy."""
    if (nd := installed("numdifftools")) is None:
        return
    library = numpy_library()
    jacobian = nd.Jacobian(lambda x: np.ravel(case.function(library, case.weights, x.reshape(case.x_shape))))
    yield "numdifftools", lambda: jacobian(case.x.ravel())


def autograd_ways(case: Case) -> Iterator[tuple[str, Check]]:
    """autograd's check_grads, which compares one random projection."""
    if installed("autograd") is None:
        return
    import autograd.numpy as anp
    from autograd.test_util import check_grads

    library = numpy_library(anp)
    yield "autograd", lambda: check_grads(lambda x: case.function(library, case.weights, x), modes=["rev"])(case.x)


Ways = Callable[[Case], Iterator[tuple[str, Check]]]
PEERS: dict[Ways, tuple[str, ...]] = {
    torch_ways: ("torch slow", "torch fast"),
    jax_ways: ("jax", "jax with compiling"),
    tensorflow_ways: ("tensorflow",),
    numdifftools_ways: ("numdifftools",),
    autograd_ways: ("autograd",),
}
OURS = ("auto", "richardson", "directional")
HEAD = ("case", "way", "seconds", *(f"{way}: times faster" for way in OURS))
SLOW = ("tensorflow", "jax with compiling", "numdifftools")  # timed once
COLD = ("jax with compiling", "numdifftools")  # of them those that have nothing to warm up


def tables(quick: bool = False) -> Iterator[Table]:
    """One table."""
    yield Table("Jacobians", HEAD, rows(quick))


def rows(quick: bool, jobs: int | None = None) -> list[tuple[Any, ...]]:
    """Seconds of each way for each case, and how many times faster our three are."""
    return [row for case in (CASES[:1] if quick else CASES) for row in rows_of(case, 2 if quick else 5, jobs)]


def rows_of(case: Case, rounds: int, jobs: int | None) -> Iterator[tuple[Any, ...]]:
    """The rows of one case."""
    ways, missing = dict(ours(case, jobs)), {}
    for peer, names in PEERS.items():
        found, lost = working(dict(peer(case)))
        ways.update(found)
        missing.update({name: "absent" for name in names if name not in found} | lost)
    taken = taken_by(ways, rounds)
    for name in taken:
        yield case.name, name, statistics.median(taken[name]), *(ratio(taken, name, way) for way in OURS)
    for name, why in missing.items():
        yield case.name, name, why, *[""] * len(OURS)


def working(ways: dict[str, Check]) -> tuple[dict[str, Check], dict[str, str]]:
    """The ways that go through, tried once each, and of the others why they do not."""
    lost = {}
    for name, run in ways.items():
        try:
            run() if name not in COLD else None
        except Exception as error:  # a peer's trouble is a cell of the table
            lost[name] = f"{type(error).__name__}: {error}".split("\n")[0]
    return {name: run for name, run in ways.items() if name not in lost}, lost


def taken_by(ways: dict[str, Check], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, in turns but for those that are slow."""
    times = in_turns({name: run for name, run in ways.items() if name not in SLOW}, rounds)
    slow = {name: [once(ways[name])] * rounds for name in ways if name in SLOW}
    return {**times, **slow}


if __name__ == "__main__":
    write(*tables())
