"""Growth of time and memory: with entries checked, sizes of x and y, nodes, bytes of weights, and what else there may
be many of; and with threads.

python -m benchmarks.scaling
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

import gradcheck_cli
from benchmarks.alone import alone, peak
from benchmarks.cases import CASES
from benchmarks.growth import lines
from benchmarks.limit import numerical
from benchmarks.table import Table, write
from benchmarks.timing import in_turns, ratio
from gradcheck_cli import native

SIDE = 2048  # of each square matrix of the model whose weights grow
LIMIT = 2 << 30  # bytes, the default of --memory-limit


def tables(quick: bool = False) -> Iterator[Table]:
    """A table for each thing that grows."""
    yield threads(quick)
    with tempfile.TemporaryDirectory() as folder:
        for table in (entries, sizes, nodes, weights, lines):
            yield table(Path(folder), quick)


def threads(quick: bool) -> Table:
    """One thread against two."""
    table = Table("Scaling: threads", ("what", "one thread, s", "two threads, s", "times faster"))
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 1024, 1024))
    x, w = rng.normal(size=(1, 256, 28, 28)), rng.normal(size=(256, 256, 3, 3))
    geometry = {"strides": [1, 1], "pads": [1] * 4, "dilations": [1, 1]}
    works: dict[str, Callable[[int], Callable[[], Any]]] = {
        "product 1024x1024": lambda jobs: lambda: native.matmul(a, b),
        "convolution 256->256 28x3": lambda jobs: lambda: native.conv(x, w, **geometry),
        **{f"numerical Jacobian, {case.name}": _by_jobs(case) for case in (CASES[:1] if quick else CASES)},
    }
    for name, work in works.items():
        ways = {"one": _on_threads(1, work(1)), "two": _on_threads(2, work(2))}
        times = in_turns(ways, rounds=2 if quick else 7)
        table.add(name, *(statistics.median(times[way]) for way in ways), ratio(times, "one", "two"))
    return table


def _by_jobs(case: Any) -> Callable[[int], Callable[[], Any]]:
    return lambda jobs: numerical(case, jobs)


def _on_threads(count: int, work: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> None:
        with native.single_threaded() if count == 1 else nullcontext():
            work()

    return run


def entries(folder: Path, quick: bool) -> Table:
    """More and more entries of one Jacobian; more rows, and more columns, of a full one."""
    table = Table("Scaling: entries", ("what", "entries checked", "seconds", "microseconds an entry"))
    path = _dense(folder, 2048, 1024)
    for drawn in (64, 256) if quick else (4096, 16384, 65536, 262144):
        _timed(table, "drawn, of 2048 x 1024", path, mode="sampled", max_entries=drawn)
    for columns in (16, 64) if quick else (64, 256, 1024, 4096):
        _timed(table, f"all, 256 x {columns}", _dense(folder, 256, columns), mode="full")
    return table


def _timed(table: Table, what: str, path: Path, **settings: Any) -> None:
    model = gradcheck_cli.load(path)
    seconds, checked = min(_checked(model, **settings) for _ in range(3))
    table.add(what, checked, seconds, 1e6 * seconds / checked)


def _checked(model: gradcheck_cli.Model, **settings: Any) -> tuple[float, int]:
    """Seconds of a check, and how many entries it compared."""
    start = time.perf_counter()
    [found] = gradcheck_cli.check(model, "x", "y", **settings).checks
    if found.status in ("fail", "error", "limit"):
        raise RuntimeError(f"{found.id}: {found.status} {found.code}")
    return time.perf_counter() - start, found.entries.get("checked", 0)


def sizes(folder: Path, quick: bool) -> Table:
    """A large x and a large y, in full and by projections: memory against --memory-limit."""
    head = ("x", "y", "mode", "seconds", "peak beyond the loaded model, MB", "--memory-limit, MB")
    table = Table("Scaling: memory", head)
    small = (768, 3, _pooled(folder, 1, 3)), (4, 300, _dense(folder, 4, 300))
    large = (150528, 10, _pooled(folder, 14, 10)), (64, 100_000, _dense(folder, 64, 100_000))
    for n, m, path in small if quick else large:
        for mode in ("full", "sampled", "directional"):
            [seconds, before], most = alone("benchmarks.scaling:check_file", path=str(path), mode=mode)
            table.add(n, m, mode, seconds, most - before, LIMIT / 2**20)
    return table


def nodes(folder: Path, quick: bool) -> Table:
    """More and more nodes, each of them small."""
    table = Table("Scaling: nodes", ("nodes", "mode", "seconds", "milliseconds a node"))
    for count in (20,) if quick else (100, 1000, 5000):
        path = folder / f"chain{count}.onnx"
        body = "".join(f"t{i + 1} = {('Sin', 'Tanh')[i % 2]}(t{i}) " for i in range(count - 2))
        text = f"chain (double[16] x) => (double[16] y) {{ t0 = Neg(x) {body} y = Cos(t{count - 2}) }}"
        _save(parser.parse_graph(text), path)
        model = gradcheck_cli.load(path)
        for mode in ("full", "directional", "nodes"):
            seconds, _ = min(_checked(model, mode=mode) for _ in range(2))
            table.add(count, mode, seconds, 1e3 * seconds / count)
    return table


def weights(folder: Path, quick: bool) -> Table:
    """More and more weights, in float32, in a file beside the model; all of it from the file on."""
    head = ("weights, MB", "mode", "seconds", "peak, MB")
    table = Table("Scaling: weights", head)
    for layers in (1,) if quick else (4, 16, 64):
        path = _deep(folder, layers, 64 if quick else SIDE)
        for mode in ("directional", "nodes"):
            [seconds, _], most = alone("benchmarks.scaling:check_file", path=str(path), mode=mode)
            table.add((folder / "weights.bin").stat().st_size / 2**20, mode, seconds, most)
    return table


def check_file(path: str, mode: str) -> tuple[float, float]:
    """Seconds of a check of a file, and the peak of memory before, when it was loaded."""
    start = time.perf_counter()
    model = gradcheck_cli.load(path)
    before = peak()
    _checked(model, mode=mode)
    return time.perf_counter() - start, before


def _dense(folder: Path, n: int, m: int) -> Path:
    """A file with a function of n numbers that gives m: two products and a bend."""
    path, rng = folder / f"dense{n}x{m}.onnx", np.random.default_rng(0)
    graph = parser.parse_graph(
        f"dense (double[1,{n}] x) => (double[1,{m}] y) {{ h = MatMul(x, a) t = Tanh(h) y = MatMul(t, b) }}"
    )
    drawn = {"a": rng.normal(size=(n, 32)) / n**0.5, "b": rng.normal(size=(32, m)) / 32**0.5}
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in drawn.items())
    return _save(graph, path)


def _pooled(folder: Path, side: int, m: int) -> Path:
    """A file with a function of an image, 16 * side wide and high: means over squares, a bend, a product."""
    inner, space = 3 * side * side, [1, 3, 16 * side, 16 * side]
    graph = parser.parse_graph(
        f"""pooled (double{space} x) => (double[1,{m}] y) {{ p = AveragePool<kernel_shape=[16,16], strides=[16,16]>(x)
        t = Tanh(p) f = Flatten(t) y = MatMul(f, w) }}"""
    )
    graph.initializer.append(numpy_helper.from_array(np.random.default_rng(0).normal(size=(inner, m)), "w"))
    return _save(graph, folder / f"pooled{side}.onnx")


def _deep(folder: Path, layers: int, side: int) -> Path:
    """A file of square products, one after another, its weights in a file of their own."""
    rng, length = np.random.default_rng(0), 4 * side * side
    with open(folder / "weights.bin", "wb") as file:
        for _ in range(layers):
            file.write((rng.standard_normal((side, side), np.float32) / np.float32(side**0.5)).tobytes())
    body = "".join(f"h{i} = MatMul(t{i}, w{i}) t{i + 1} = Tanh(h{i}) " for i in range(layers))
    text = f"deep (float[1,{side}] x) => (float[1,{side}] y) {{ t0 = Neg(x) {body} y = Neg(t{layers}) }}"
    graph = parser.parse_graph(text)
    for i in range(layers):
        held = TensorProto(name=f"w{i}", dims=[side, side], data_type=TensorProto.FLOAT)
        held.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", i * length), ("length", length)):
            held.external_data.add(key=key, value=str(value))
        graph.initializer.append(held)
    return _save(graph, folder / "deep.onnx")


def _save(graph: Any, path: Path) -> Path:
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


if __name__ == "__main__":
    for made in tables():
        write(made)
