"""Predicted against measured time of full checks, and memory of all modes: `python -m benchmarks.costs`.

The prediction chooses the mode of a check before anything is compared.  It is for one thread, in operations of a nominal
machine; measured is processor time, the smaller of two runs, so that other work on the machine says little.  Memory is
the peak of a process of its own beyond what it had before, where the system tells that.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import onnx
from onnx import parser

import gradcheck_cli as gc
from benchmarks.cases import CASES
from gradcheck_cli.checks.estimates import needed
from gradcheck_cli.checks.isolation import Bounds, run
from gradcheck_cli.checks.problem import Problem
from gradcheck_cli.ops import OPS
from gradcheck_cli.points.point import find_point
from gradcheck_cli.settings import Mode, Settings

WITHIN, HELD_WITHIN = 3.0, 1.5  # times too much or too little: of time, of memory
CHAIN = " ".join(f"t{i} = {('Sin', 'Tanh', 'Exp', 'Sigmoid')[i % 4]} ({f't{i - 1}' if i else 'x'})" for i in range(50))
MODELS = {
    "softmax over 500": "(float[1,500] x) => (float[1,500] y) { y = Softmax (x) }",
    "exp of 4096": "(float[4096] x) => (float[4096] y) { y = Exp (x) }",
    "sum of 16384": "(float[16384] x) => (float y) { e = Exp (x)  y = ReduceSum <keepdims = 0> (e) }",
    "square of a matrix": "(float[40,40] x) => (float[40,40] y) { y = MatMul (x, x) }",
    "normalized rows": (
        "(float[8,64] x) => (float[8,64] y) { e = Exp (x)  m = ReduceMean <keepdims = 1> (e)  d = Sub (e, m)"
        "  t = Tanh (d)  y = Div (t, m) }"
    ),
    "attention": (
        "(float[32,16] x) => (float[32,16] y) { t = Transpose <perm = [1,0]> (x)  s = MatMul (x, t)"
        "  a = Softmax (s)  y = MatMul (a, x) }"
    ),
    "running sums": "(float[600] x) => (float[600] y) <int64 a = {0}> { c = CumSum (x, a)  y = Sin (c) }",
    "four long sums": (
        "(float[16384] x) => (float[4] y) <int64[2] s = {4, 4096}, int64[1] one = {1}> { r = Reshape (x, s)"
        "  e = Tanh (r)  y = ReduceSum <keepdims = 0> (e, one) }"
    ),
    "largest of windows": (
        "(float[1,4,24,24] x) => (float[1,4,12,12] y)"
        " { y = MaxPool <kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]> (x) }"
    ),
    "a chain of 50": f"(float[200] x) => (float[200] y) {{ {CHAIN}  s = ReduceSum (t49)  y = Add (s, t49) }}",
    "sorted": "(float[900] x) => (float[900] y, int64[900] i) <int64[1] k = {900}> { y, i = TopK (x, k) }",
    "products of products": (
        "(float[24,24] x) => (float[24,24] y) { a = MatMul (x, x)  b = Tanh (a)  c = MatMul (b, x)  d = Tanh (c)"
        "  y = MatMul (d, b) }"
    ),
    "gated": "(float[2,1024] x) => (float[2,1024] y) { s = Sigmoid (x)  y = Mul (s, x) }",
    "a mean": "(float[256,256] x) => (float y) { e = Erf (x)  y = ReduceMean <keepdims = 0> (e) }",
}


LARGE: dict[str, tuple[str, tuple[Mode, ...]]] = {  # models that take more than any machine has free, and in which modes
    "softmax over 3000": ("(float[3000] x) => (float[3000] y) { y = Softmax (x) }", ("full",)),
    "attention of 3000": (
        "(float[50,60] x) => (float[50,60] y) { t = Transpose <perm = [1,0]> (x)  a = MatMul (x, t)"
        "  s = Softmax (a)  y = MatMul (s, x) }", ("full",)),
    "sorted": ("(float[2500] x) => (float[2500] y, int64[2500] i) <int64[1] k = {2500}> { y, i = TopK (x, k) }", ("full",)),
    "exp of 4 million": ("(float[4000000] x) => (float[4000000] y) { y = Exp (x) }", ("nodes", "directional")),
    "softmax over 2 million": ("(float[2000000] x) => (float[2000000] y) { y = Softmax (x) }", ("nodes", "directional")),
    "a square of 1500": ("(float[1500,1500] x) => (float[1500,1500] y) { y = MatMul (x, x) }", ("nodes", "directional")),
    "a chain of a million": (
        f"(float[1000000] x) => (float[1000000] y) {{ {CHAIN}  y = Cos (t49) }}", ("nodes", "directional")),
    "running sums of 2 million": (
        "(float[2000000] x) => (float[2000000] y) <int64 a = {0}> { y = CumSum (x, a) }", ("nodes", "directional")),
}  # fmt: skip


def predicted(model: gc.Model) -> float:
    """Seconds that a check of all entries is predicted to take on one thread."""
    problem, x = _problem(model)
    return problem.cost(x).seconds


def _problem(model: gc.Model) -> tuple[Problem, str]:
    """The problem of a model's first y by its first x."""
    settings = Settings(jobs=1, mode="full", forward="internal")
    (x, *_), (y, *_) = model.graph.free_inputs, model.graph.outputs
    point = find_point(model.source, settings, OPS, [x, y])
    return Problem.at(point, y, [x], model.source, replace(settings, x=(x,)), OPS), x


def estimated(path: Path, mode: Mode) -> float:
    """Bytes that a check is estimated to take."""
    model = gc.load(path)
    problem, x = _problem(model)
    return needed(problem, x, mode, 1)


def held(path: Path, mode: Mode) -> float:
    """Bytes that it holds at most, in this process, beyond what was there."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what there is now
    before = _kilobytes("VmHWM")
    model = gc.load(path)
    gc.check(model, y=model.graph.outputs[0], mode=mode, jobs=1, forward="internal")
    return 1024.0 * (_kilobytes("VmHWM") - before)


def _kilobytes(name: str) -> int:
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith(name))


def measured(model: gc.Model) -> float:
    """Processor seconds that it takes, of two runs."""
    return min(_run(model) for _ in range(2))


def _run(model: gc.Model) -> float:
    start = time.process_time()
    gc.check(model, y=model.graph.outputs[0], mode="full", jobs=1, forward="internal")
    return time.process_time() - start


def times(folder: Path) -> Iterator[tuple[str, float, float]]:
    """Each model with both times."""
    models = {name: _parsed(text) for name, text in MODELS.items()} | {case.name: case.model() for case in CASES}
    for name, proto in models.items():
        onnx.save(proto, folder / "model.onnx")
        model = gc.load(folder / "model.onnx")
        _run(model)  # what a first run brings
        yield name, predicted(model), measured(model)


def sizes(folder: Path) -> Iterator[tuple[str, float, float]]:
    """Each large model and mode with both sizes, each in a process of its own."""
    path = folder / "model.onnx"
    for name, (text, modes) in LARGE.items():
        onnx.save(_parsed(text), path)
        for mode in modes:
            yield f"{name}, {mode}", *(run(partial(each, path, mode), Bounds()) for each in (estimated, held))


def _parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> m {text}')


def table(found: Iterator[tuple[str, float, float]], unit: str, scale: float, within: float) -> None:
    """A table of what was predicted and measured, and how many are predicted well enough."""
    print(f"{'model':38} {'predicted':>14} {'measured':>14} {'ratio':>7}")
    ratios = []
    for name, before, after in found:
        ratios.append(before / after)
        print(f"{name:38} {before / scale:10.3f} {unit} {after / scale:10.3f} {unit} {ratios[-1]:7.2f}", flush=True)
    well = sum(1 / within <= ratio <= within for ratio in ratios)
    print(f"\n{well} of {len(ratios)} within {within:g} times\n")


def main() -> None:
    """Both tables."""
    with tempfile.TemporaryDirectory() as folder:
        table(sizes(Path(folder)), "MiB", 2.0**20, HELD_WITHIN)
        table(times(Path(folder)), "s  ", 1.0, WITHIN)


if __name__ == "__main__":
    main()
