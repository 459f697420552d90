"""Models of which one thing grows: nodes, operands, parameters, outputs, iterations; each at n, 2n and 4n of it.

Time that grows as the thing does makes a column of equal figures; four times as many that take more than four times as
long are a defect.

python -m benchmarks.growth
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from benchmarks.alone import alone, peak
from benchmarks.table import Table, write

TITLE = "Scaling: lines"
Sizes: TypeAlias = Mapping[str, list[int]]
Parts: TypeAlias = tuple[list[NodeProto], Sizes, Sizes, Mapping[str, Any]]  # nodes, inputs, outputs, constants
_STEPS = 4  # times as many at the last step as at the first


def _node(op: str, inputs: str, outputs: str, **attrs: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attrs)


def _names(stem: str, count: int) -> str:
    return " ".join(f"{stem}{i}" for i in range(count))


def chain(n: int, *ops: str) -> Parts:
    """Operators one after another."""
    return [_node(ops[i % len(ops)], f"t{i}", f"t{i + 1}") for i in range(n)], {"t0": [16]}, {f"t{n}": [16]}, {}


def additions(n: int) -> Parts:
    """Additions of one constant, one after another."""
    nodes = [_node("Add", f"t{i} c", f"t{i + 1}") for i in range(n)]
    return nodes, {"t0": [16]}, {f"t{n}": [16]}, {"c": np.full(16, 0.01)}


def residual(n: int) -> Parts:
    """Every tensor read twice."""
    nodes = [node for i in range(n // 2)
             for node in (_node("Tanh", f"t{i}", f"u{i}"), _node("Add", f"t{i} u{i}", f"t{i + 1}"))]  # fmt: skip
    return nodes, {"t0": [4]}, {f"t{n // 2}": [4]}, {}


def operands(n: int) -> Parts:
    """A sum of one node for each operand."""
    nodes = [_node("Sin", "x", f"a{i}") for i in range(n)]
    return [*nodes, _node("Sum", _names("a", n), "y")], {"x": [4]}, {"y": [4]}, {}


def pieces(n: int) -> Parts:
    """A tensor split into entries, which are joined again."""
    nodes = [_node("Split", "x", _names("a", n), axis=0, num_outputs=n)]
    nodes += [_node("Tanh", f"a{i}", f"b{i}") for i in range(n)]
    return [*nodes, _node("Concat", _names("b", n), "y", axis=0)], {"x": [n]}, {"y": [n]}, {}


def parameters(n: int) -> Parts:
    """A layer's weights for each of n units, all of which are added."""
    nodes = [_node("MatMul", f"x w{i}", f"a{i}") for i in range(n)]
    weights = {f"w{i}": np.array([[0.5], [-i / n]]) for i in range(n)}  # of equal numbers they were constants
    return [*nodes, _node("Sum", _names("a", n), "y")], {"x": [1, 2]}, {"y": [1, 1]}, weights


def outputs(n: int) -> Parts:
    """An output for each of n nodes."""
    return [_node("Sin", "x", f"y{i}") for i in range(n)], {"x": [4]}, {f"y{i}": [4] for i in range(n)}, {}


def inputs(n: int) -> Parts:
    """The sum of n inputs, bent."""
    nodes = [_node("Sum", _names("x", n), "s"), _node("Sin", "s", "y")]
    return nodes, {f"x{i}": [4] for i in range(n)}, {"y": [4]}, {}


def iterations(n: int) -> Parts:
    """A loop that is unrolled."""
    flag, state = (helper.make_tensor_value_info(*each) for each in (("g", TensorProto.BOOL, []), _double("s", [4])))
    made = [helper.make_tensor_value_info(*each) for each in (("h", TensorProto.BOOL, []), _double("v", [4]))]
    count = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    nodes = [_node("Identity", "g", "h"), _node("Sin", "s", "u"), _node("Add", "u s", "v")]
    body = helper.make_graph(nodes, "body", [count, flag, state], made)
    return [_node("Loop", "n t x", "y", body=body)], {"x": [4]}, {"y": [4]}, {"n": np.int64(n), "t": np.bool_(True)}


def determinant(n: int) -> Parts:
    """The determinant of a matrix with n entries."""
    side = round(n**0.5)
    return [_node("Det", "x", "y")], {"x": [side, side]}, {"y": []}, {}


LINES: Mapping[str, tuple[Callable[[int], Parts], int, int, Mapping[str, Any]]] = {  # number at first, quick number
    "nodes, curved": (lambda n: chain(n, "Sin", "Tanh"), 5000, 20, {}),
    "nodes, Relu": (lambda n: chain(n, "Relu"), 5000, 20, {}),
    "nodes, Add": (additions, 5000, 20, {}),
    "nodes, residual": (residual, 2500, 20, {}),
    "operands": (operands, 5000, 20, {}),
    "pieces": (pieces, 250, 20, {}),
    "parameters": (parameters, 2500, 10, {"params": True}),
    "outputs": (outputs, 250, 10, {}),
    "inputs": (inputs, 250, 10, {}),
    "iterations": (iterations, 2500, 20, {}),
    "entries of a determinant": (determinant, 2500, 16, {}),
}


def lines(folder: Path, quick: bool) -> Table:
    """Every line at three lengths, each in a process of its own."""
    head = ("what", "number", "CPU, s", "milliseconds each", "against the fewest", "peak, MB")
    table = Table(TITLE, head)
    for what, (build, first, small, settings) in LINES.items():
        least = 0.0
        for number in (small,) if quick else (first, 2 * first, _STEPS * first):
            path = saved(build(number), folder / "line.onnx")
            [seconds, before], most = alone("benchmarks.growth:check_file", path=str(path), settings=dict(settings))
            each = 1e3 * seconds / number
            least = least or each
            table.add(what, number, seconds, each, each / least, most - before)
    return table


def check_file(path: str, settings: Mapping[str, Any]) -> tuple[float, float]:
    """Seconds of CPU of a check of a file, and the peak of memory before it."""
    import gradcheck_cli

    model = gradcheck_cli.load(path)
    before, start = peak(), time.process_time()
    wrong = {check.status for check in gradcheck_cli.check(model, **settings).checks} - {"pass"}
    if wrong:
        raise RuntimeError(f"a check of a right model ended with {', '.join(sorted(wrong))}")
    return time.process_time() - start, before


def saved(parts: Parts, path: Path) -> Path:
    """The parts of a model as a file."""
    nodes, ins, outs, constants = parts
    ends = [[helper.make_tensor_value_info(*_double(*each)) for each in sizes.items()] for sizes in (ins, outs)]
    held = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "line", *ends, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


def _double(name: str, shape: list[int]) -> tuple[str, int, list[int]]:
    return name, TensorProto.DOUBLE, shape


def tables(quick: bool = False) -> Iterator[Table]:
    """One table."""
    with tempfile.TemporaryDirectory() as folder:
        yield lines(Path(folder), quick)


if __name__ == "__main__":
    write(*tables())
