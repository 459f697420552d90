"""How precise the numbers of a model are, as its file declares them, and models whose numbers have moved by as much.

Tools that rewrite a model compute with its weights, in its own dtype: the same function then has weights that are a
rounding away.  How far that carries its results is measured: the model is run with such weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, Node, is_inexact
from gradcheck_cli.op import Ops
from gradcheck_cli.verdict.rule import RTOL, epsilon

ROUNDINGS = 8  # of the less precise model, relative to an entry: the default tolerance
_QUANTIZED = re.compile("Quant|QLinear|Integer|NBits|^Q(Gemm|Attention|Embed|Ordered)")
_BITS = {8: 2.0**-8, 4: 2.0**-5}  # half a step of so many bits, of the largest entry
_FEW = re.compile("NBits|Bnb4|int4|uint4|int2|uint2|float4")


@dataclass(frozen=True, slots=True)
class Precision:
    """The floating-point dtypes of a model, the widest rounding among them, and half a step of what quantizes, if any."""

    dtypes: tuple[str, ...]
    rounding: float
    step: float = 0.0

    def __str__(self) -> str:
        quantized = {0.0: (), _BITS[8]: ("8 bits",), _BITS[4]: ("4 bits",)}[self.step]
        return " and ".join((*self.dtypes, *quantized)) or "no floats"


@dataclass(frozen=True, slots=True)
class Loss:
    """What the numbers of one model may be off by in the other: relative to themselves, and to the largest of a tensor.

    That is a rounding of the less precise one; the step of a quantizer where one of the two quantizes.
    """

    rounding: float
    step: float

    @property
    def rtol(self) -> float:
        """The default tolerance."""
        return max(RTOL, ROUNDINGS * max(self.rounding, self.step))

    @property
    def atol(self) -> float:
        """The absolute one where models run in their own dtypes: what is computed from ones has no digits below."""
        return ROUNDINGS * max(self.rounding, self.step)


def precision(source: Source) -> Precision:
    """What a model declares."""
    graph = source.graph
    declared = [t.dtype for n, t in graph.types.items() if n in (*graph.inputs, *graph.outputs) and t.dtype is not None]
    cast = [dtype for node in _nodes(graph) if (dtype := _cast_to(node)) is not None]
    held = [v.dtype for each in _graphs(graph) for v in each.constants.values()]
    floats = {d.name: d for d in [*declared, *held, *cast] if is_inexact(d)}
    widest = max((epsilon(dtype) / 2 for dtype in floats.values()), default=0.0)
    return Precision(tuple(sorted(floats)), widest, _step(graph))


def loss(a: Precision, b: Precision) -> Loss:
    """What is lost between two models."""
    return Loss(max(a.rounding, b.rounding), 0.0 if bool(a.step) == bool(b.step) else max(a.step, b.step))


def moved(source: Source, feeds: Mapping[str, Any], by: Loss, ops: Ops, seed: int) -> tuple[Source, dict[str, Any]]:
    """A model and what it is fed, with numbers moved by chance, as far as `by` says.

    Whole numbers stay, since they are exact in any dtype, and so does what decides on shapes and axes.
    """
    rng, fixed = np.random.default_rng([seed, 6]), {n for each in _graphs(source.graph) for n in _deciding(each, ops)}

    def other(name: str, value: Any) -> Any:
        if isinstance(value, Graph):
            constants = {n: other(n, v) for n, v in value.constants.items()}
            return replace(value, constants=constants, nodes=tuple(map(inside, value.nodes)))
        if name in fixed or not isinstance(value, np.ndarray) or not is_inexact(value.dtype):
            return value
        return _moved(value, by, rng)

    def inside(node: Node) -> Node:
        if not any(node.subgraphs):
            return node
        return replace(node, attrs={k: other(k, v) if isinstance(v, Graph) else v for k, v in node.attrs.items()})

    return replace(source, graph=other("", source.graph)), {n: other(n, v) for n, v in feeds.items()}


def _moved(value: Array, by: Loss, rng: np.random.Generator) -> Array:
    wide = value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)
    largest = np.max(np.abs(wide), initial=0.0, where=np.isfinite(wide))
    with np.errstate(all="ignore"):
        whole = (wide == np.rint(wide)) & (np.abs(wide) < 1 << 11)
        off = by.rounding * rng.uniform(-1, 1, value.shape) * wide + by.step * largest * rng.uniform(-1, 1, value.shape)
        return np.where(whole | ~np.isfinite(wide), wide, wide + off)


def _deciding(graph: Graph, ops: Ops) -> set[str]:
    """Tensors that operators read as settings."""
    found: set[str] = set()
    for node in graph.nodes:
        if (op := ops.get(node.key)) is not None:
            found.update(node.inputs[i] for i in op.static.values() if i < len(node.inputs))
    return found


def _step(graph: Graph) -> float:
    """Half a step of the coarsest quantizer; 0 where nothing quantizes."""
    names = [node.op for node in _nodes(graph) if _QUANTIZED.search(node.op)]
    if not names:
        return 0.0
    held = {v.dtype.name for each in _graphs(graph) for v in each.constants.values()}
    few = any(_FEW.search(text) for text in [*names, *held])
    return _BITS[4 if few else 8]


def _cast_to(node: Node) -> np.dtype[Any] | None:
    from gradcheck_cli.op import DTYPES

    to = node.attrs.get("to") if node.op == "Cast" else None
    return DTYPES.get(to) if isinstance(to, int) else None


def _nodes(graph: Graph) -> Iterator[Node]:
    """Those of inner graphs too."""
    return (node for each in _graphs(graph) for node in each.nodes)


def _graphs(graph: Graph) -> Iterator[Graph]:
    """A graph, and those inside of its nodes."""
    yield graph
    for node in graph.nodes:
        for body in node.subgraphs:
            yield from _graphs(body)
