"""Small models built in code, operator tables with one rule replaced, and mutants: both put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, TensorType
from gradcheck_cli.results.record import Check

RNG = np.random.default_rng(7)
SQUARE = RNG.normal(size=(3, 3))


def model(
    *nodes: tuple[Any, ...],
    x: tuple[int, ...] = (4,),
    dtype: Any = np.float64,
    constants: Mapping[str, Any] | None = None,
    inputs: Mapping[str, tuple[int, ...]] | None = None,
) -> gc.Model:
    """A model of nodes `(op, inputs, outputs)`, with attributes or without; the last output is y, and _ is left out."""
    shapes = {"x": x, **(inputs or {})}
    made = tuple(
        Node(op, tuple(reads.split()), tuple(o.strip("_") for o in outs.split()), *rest)
        for op, reads, outs, *rest in nodes
    )
    arrays = {name: np.asarray(value) for name, value in (constants or {}).items()}
    types = {name: TensorType(np.dtype(dtype), shape) for name, shape in shapes.items()}
    graph = Graph(tuple(shapes), (made[-1].outputs[-1],), made, arrays, types)
    return gc.Model(Source(graph, "graph", nodes=len(made)), gc.OPS)


def save(path: Path, text: str, opset: int = 17, **constants: Any) -> Path:
    """A model in ONNX's text syntax with its constants, written to a file."""
    graph = onnx.parser.parse_graph(text)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def with_rule(op: str, vjp: Any) -> dict[tuple[str, str], gc.Op]:
    """The operator table with one rule replaced."""
    return {**gc.OPS, ("", op): dataclasses.replace(gc.OPS["", op], vjp=vjp)}


def scaled(op: str, factor: Any) -> Any:
    """The rule of an operator with its first cotangent off by a factor."""
    right = gc.OPS["", op].vjp
    assert right is not None

    def rule(ct: Any, ans: Any, *primals: Any, **metadata: Any) -> tuple[Any, ...]:
        first, *others = right(ct, ans, *primals, **metadata)
        return (first * factor, *others)

    return rule


def check(tested: gc.Model, value: Any = None, **more: Any) -> Check:
    """The record of y by x."""
    given = {} if value is None else {"x_init_value": {"x": np.asarray(value)}}
    [record] = gc.check(tested, "x", tested.graph.outputs[0], **given, **more).checks
    return record


class Mutant(NamedTuple):
    """An operator with a rule that is wrong in one way, and a model that has it between two other nodes."""

    name: str
    op: str
    rule: Any
    model: gc.Model
    code: str = "GC101"


def between(op: str, attrs: Mapping[str, Any] | None = None, x: tuple[int, ...] = (4,), **more: Any) -> gc.Model:
    """sin(op(1.5 x, ...)): the operator at work between two others."""
    reads = " ".join(["h", *(more.get("constants") or {})])
    more["constants"] = {**(more.get("constants") or {}), "wide": np.float64(1.5)}
    return model(("Mul", "x wide", "h"), (op, reads, "a", attrs or {}), ("Sin", "a", "y"), x=x, **more)


def off_in_one_entry(ct: Any, y: Any, x: Any) -> tuple[Any]:
    return (ct * y * np.array([1.0, 1.0, 1.1, 1.0]),)


def fanned() -> gc.Model:
    return model(("Tanh", "x", "h"), ("Mul", "h h", "a"), ("Sin", "a", "y"))


MUTANTS = [
    Mutant("the sign", "Tanh", scaled("Tanh", -1.0), between("Tanh")),
    Mutant("a factor of 2", "Exp", scaled("Exp", 2.0), between("Exp")),
    Mutant("relative 1e-3", "Exp", scaled("Exp", 1 + 1e-3), between("Exp")),
    Mutant("relative 1e-4", "Exp", scaled("Exp", 1 + 1e-4), between("Exp")),
    Mutant("relative 1e-5", "Exp", scaled("Exp", 1 + 1e-5), between("Exp")),
    Mutant("relative 1e-6", "Exp", scaled("Exp", 1 + 1e-6), between("Exp")),
    Mutant("one entry 10 % off", "Exp", off_in_one_entry, between("Exp")),
    Mutant("a missing term", "Tanh", lambda ct, y, x: (ct * (1 - y),), between("Tanh")),
    Mutant("a weight that is not transposed", "MatMul", lambda ct, y, a, b: (sym.matmul(ct, b), None),
           between("MatMul", x=(2, 3), constants={"W": SQUARE})),
    Mutant("fan-out of which one way counts", "Mul", lambda ct, y, a, b: (ct * b, None), fanned()),
    Mutant("a quotient without its second term", "Div", lambda ct, y, a, b: (ct / b, None),
           model(("Tanh", "x", "h"), ("Cosh", "x", "c"), ("Div", "h c", "a"), ("Sin", "a", "y"))),
    Mutant("a power without ln a", "Pow", lambda ct, y, a, b: (ct * b * y / a, ct * y),
           model(("Cosh", "x", "c"), ("Pow", "c x", "a"), ("Sin", "a", "y"))),
    Mutant("softmax without its sum", "Softmax", lambda ct, y, x, *, axis=-1: (ct * y,), between("Softmax")),
    Mutant("log-softmax on the wrong axis", "LogSoftmax",
           lambda ct, y, x, *, axis: gc.OPS["", "LogSoftmax"].vjp(ct, y, x, axis=-3 - axis),  # type: ignore[misc]
           between("LogSoftmax", {"axis": 0}, x=(2, 3))),
    Mutant("a sum for a mean", "ReduceMean", scaled("ReduceMean", 4.0),
           between("ReduceMean", {"keepdims": 0})),
    Mutant("a permutation that is not inverted", "Transpose",
           lambda ct, y, x, *, perm=None: (sym.transpose(ct, (1, 2, 0)),),
           between("Transpose", {"perm": (1, 2, 0)}, x=(3, 3, 3))),
    Mutant("operands of a concatenation swapped", "Concat",
           lambda ct, y, *xs, **metadata: gc.OPS["", "Concat"].vjp(ct, y, *xs, **metadata)[::-1],  # type: ignore[misc]
           model(("Tanh", "x", "h"), ("Exp", "x", "e"), ("Concat", "h e", "a", {"axis": 0}),
                 ("Sin", "a", "y"))),
    Mutant("a leak that is lost", "LeakyRelu", lambda ct, y, x, *, alpha=0.01: (sym.where(x > 0, ct, 0),),
           between("LeakyRelu", {"alpha": 0.25}, x=(8,))),
    Mutant("a clip that lets everything through", "Clip",
           lambda ct, y, x, *bounds: (ct, *[None] * len(bounds)),
           between("Clip", x=(8,), constants={"low": -0.5, "high": 0.5})),
    Mutant("a gradient of NaN", "Exp", scaled("Exp", np.nan), between("Exp"), "GC103"),
]  # fmt: skip


def names(mutants: list[Mutant]) -> Any:
    return {"argvalues": mutants, "ids": [m.name.replace(" ", "-") for m in mutants]}
