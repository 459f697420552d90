"""Selections at points where operands are tied, and what rules may and may not do with the cotangent there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import gradcheck_cli as gc
from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.trace import trace
from tests.checking.small import model, with_rule

Share = Callable[[int, int], Any]  # how many are tied, which of the outputs that they could be -> their weights


@dataclass(frozen=True)
class Selection:
    """An operator amid smooth ones, whose operands at a point are tied: values of every input, all of them xs."""

    op: str
    model: gc.Model
    values: Mapping[str, Any]


def selection(op: str, operands: str, attrs: Mapping[str, Any] | None = None, **more: Any) -> Selection:
    """sin(op(1.5 x, ...)): `x` has its values, and so has `v` where that is an operand too."""
    values = {name: np.asarray(more.pop(name), np.float64) for name in ("x", "v") if name in more}
    constants = {**more.pop("constants", {}), "wide": np.float64(1.5)}
    names = {"x": "h", "v": "u"}
    scaled = [("Mul", f"{name} wide", names[name]) for name in values]
    reads = " ".join(names.get(n, n) for n in operands.split())
    shapes = {name: value.shape for name, value in values.items()}
    made = model(*scaled, (op, reads, "a", attrs or {}), ("Sin", "a", "y"), x=shapes.pop("x"), inputs=shapes,
                 constants=constants)  # fmt: skip
    return Selection(op, made, values)


FLAT = {"keepdims": 0}
TWO, THREE = [0.5, 0.5, -0.2, 0.1], [0.5, 0.5, 0.1, 0.5]
IMAGE = np.array([[[[0.5, 0.5, 0.1, 0.3], [0.2, 0.5, 0.3, 0.1]]]])
K = np.array([2])
SELECTIONS = {
    "ReduceMax of two": selection("ReduceMax", "x", FLAT, x=TWO),
    "ReduceMax of three": selection("ReduceMax", "x", FLAT, x=THREE),
    "ReduceMin of two": selection("ReduceMin", "x", FLAT, x=[-v for v in TWO]),
    "ReduceMin of rows": selection("ReduceMin", "x axes", FLAT, x=[[0.1, 0.1, 0.4], [0.3, 0.2, 0.2]],
                                   constants={"axes": np.array([1])}),
    "MaxPool of two": selection("MaxPool", "x", {"kernel_shape": (1, 2), "strides": (1, 2)}, x=IMAGE),
    "MaxPool of three": selection("MaxPool", "x", {"kernel_shape": (2, 2), "strides": (2, 2)}, x=IMAGE),
    "MaxPool that overlaps": selection("MaxPool", "x", {"kernel_shape": (1, 2)}, x=IMAGE),
    "GlobalMaxPool": selection("GlobalMaxPool", "x", x=[[[0.5, 0.1, 0.5], [0.2, 0.2, 0.2]]]),
    "Max of two tensors": selection("Max", "x v", x=[0.5, 0.1, 0.3], v=[0.5, 0.4, 0.3]),
    "Min of two tensors": selection("Min", "x v", x=[0.5, 0.1, 0.3], v=[0.5, 0.4, 0.3]),
    "Max that broadcasts": selection("Max", "x v", x=[[0.5, 0.1], [0.5, 0.3]], v=[0.5, 0.3]),
    "TopK": selection("TopK", "x k", x=[0.5, 0.1, 0.5, 0.2], constants={"k": np.array([1])}),
    "TopK of the smallest": selection("TopK", "x k", {"largest": 0}, x=[0.1, 0.5, 0.1, 0.2],
                                      constants={"k": np.array([1])}),
    "TopK that sorts": selection("TopK", "x k", x=[0.5, 0.1, 0.5, 0.2], constants={"k": np.array([4])}),
    "ScatterElements max": selection("ScatterElements", "x at v", {"reduction": "max"}, x=[0.5, 0.1, 0.3], v=[0.5, 0.3],
                                     constants={"at": np.array([0, 1])}),
    "ScatterElements min": selection("ScatterElements", "x at v", {"reduction": "min"}, x=[0.5, 0.1, 0.3], v=[0.5, 0.3],
                                     constants={"at": np.array([0, 1])}),
    "ScatterND max": selection("ScatterND", "x at v", {"reduction": "max"}, x=[0.5, 0.1, 0.3], v=[0.5, 0.3],
                               constants={"at": np.array([[0], [1]])}),
}  # fmt: skip

RIGHT: dict[str, Share] = {
    "first": lambda k, turn: np.arange(k) == turn % k,
    "last": lambda k, turn: np.arange(k) == k - 1 - turn % k,
    "evenly": lambda k, turn: np.full(k, 1 / k),
    "unevenly": lambda k, turn: np.arange(1, k + 1) / (k * (k + 1) / 2),
}
WRONG: dict[str, Share] = {
    "all": lambda k, turn: np.ones(k),
    "none": lambda k, turn: np.zeros(k),
    "a quarter each": lambda k, turn: np.full(k, 0.25 if k < 4 else 0.125),
    "0.1 % too much": lambda k, turn: np.full(k, 1.001 / k),
}


def with_convention(chosen: Selection, share: Share) -> Any:
    """The operator table in which an operator shares out its cotangent among what is tied."""
    matrix = _jacobian(chosen, share)
    position = next(i for i, node in enumerate(chosen.model.graph.nodes) if node.op == chosen.op)
    node = chosen.model.graph.nodes[position]
    sizes = [chosen.values[n].size for n in chosen.values]

    def rule(ct: Any, ans: Any, *operands: Any, **metadata: Any) -> tuple[Any, ...]:
        found, start = [], 0
        ct = ct[0] if isinstance(ct, (tuple, list)) else ct  # of the first output
        moved = iter(sizes)
        for name, operand in zip(node.inputs, operands, strict=False):
            if name not in ("h", "u"):
                found.append(None)
                continue
            size = next(moved)
            flat = sym.matmul(sym.reshape(ct, (1, matrix.shape[1])), matrix[start : start + size].T)
            found.append(sym.reshape(flat, operand.shape))
            start += size
        return tuple(found)

    return with_rule(chosen.op, rule)


def _jacobian(chosen: Selection, share: Share) -> np.ndarray:
    """The Jacobian of the operator with a convention, from its forward run alone: of what moves an output by as much."""
    parts = [1.5 * chosen.values[n].reshape(-1) for n in chosen.values]
    here = np.concatenate(parts)
    step = 1e-6

    def run(values: np.ndarray) -> np.ndarray:
        feeds, start = {}, 0
        for name, value in chosen.values.items():
            feeds[name] = values[start : start + value.size].reshape(value.shape) / 1.5
            start += value.size
        return np.asarray(trace(chosen.model.graph, feeds, ops=gc.OPS, seed=0).named["a"].value).reshape(-1)

    y, columns = run(here), []
    moved = np.stack(
        [np.maximum(abs(run(here + step * e) - y), abs(run(here - step * e) - y)) for e in np.eye(here.size)]
    )
    turns: dict[tuple[int, ...], int] = {}
    for column in range(len(y)):
        tied = np.flatnonzero(moved[:, column] > step / 2)
        key = tuple(tied.tolist())
        weights = np.zeros(here.size)
        weights[tied] = share(len(tied), turns.get(key, 0)) if len(tied) > 1 else 1.0
        turns[key] = turns.get(key, 0) + 1
        columns.append(weights)
    return np.stack(columns, axis=1)
