"""Two tensors compared entry by entry, and the differences that the precision of both models explains.

Tools that rewrite a model compute with its weights in another dtype: the same function then has weights that are off by
a rounding.  The effect on results is measured, by runs of the model with weights moved by as much.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, Node, is_inexact
from gradcheck_cli.op import Ops
from gradcheck_cli.points.test_data import gaps, wide
from gradcheck_cli.results.record import Entry
from gradcheck_cli.verdict.rule import RTOL, epsilon, ground_of, magnitude, pattern

KEPT = 1000  # worst entries of a record
MEASURED = 8  # factor on the measured effect of rounding
ROUNDINGS = 8  # of the less precise model: the default relative tolerance
_QUANTIZED = re.compile("Quant|QLinear|Integer|NBits|^Q(Gemm|Attention|Embed|Ordered)")
_BITS = {8: 2.0**-8, 4: 2.0**-5}  # half a step by bits, relative to the largest entry
_FEW = re.compile("NBits|Bnb4|int4|uint4|int2|uint2|float4")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Differences that do not matter: relative to an entry or a tenth of its row's ground, and absolute."""

    rtol: float
    atol: float = 0.0


@dataclass(frozen=True, slots=True)
class Place:
    """Shapes of x and of y that rows and entries are indices of, and flags of complex tensors."""

    x: tuple[int, ...] | None = None
    y: tuple[int, ...] | None = None
    complex_x: bool = False
    complex_y: bool = False


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts, largest errors and worst entries of a comparison; small however many entries there were."""

    entries: int
    open: int  # not finite in either model
    failed: int
    errors: tuple[float, float]  # the largest, absolute and relative
    needed: tuple[float, float]  # the rtol, or the atol, that alone would let all pass
    noise: float  # the largest error that rounding explains
    worst: tuple[Entry, ...]


@dataclass(frozen=True)
class Compared:
    """Rows of A and rows of B, `(rows, entries)`: an output is one row, a derivative has one row for each cotangent.

    `noise` bounds the change of an entry of A when A's numbers move by as much as B may have lost; 0 until measured.
    """

    a: Array
    b: Array
    tolerance: Tolerance
    place: Place = Place()
    noise: Array | float = 0.0
    scale: Array | None = None  # of derivatives: the sizes of x, `(entries,)`

    @cached_property
    def gap(self) -> Array:
        """Absolute difference of each entry."""
        return gaps(self.a, self.b)

    @cached_property
    def size(self) -> Array:
        """The size that errors are relative to: the larger of both, or a tenth of the ground of its row."""
        size = magnitude(self.a, self.b)
        ground = ground_of(size.T, size.T, self.scale).at()
        return np.asarray(np.maximum(size, np.atleast_2d(ground.T).reshape(len(size), -1) / 10))

    @cached_property
    def failed(self) -> Array:
        """Entries that differ."""
        allowed = self.tolerance.rtol * self.size + self.tolerance.atol + MEASURED * self.noise
        return np.asarray(self.gap > allowed)

    @property
    def error(self) -> float:
        """The largest relative error."""
        return _largest(self._relative)

    def counted(self, point: int) -> Counted:
        """The counts at a point."""
        failed = self.failed & np.isfinite(self.gap)
        return Counted(
            entries=self.gap.size,
            open=int((~np.isfinite(self.a) & ~np.isfinite(self.b)).sum()),
            failed=int(self.failed.sum()),
            errors=(_largest(self.gap), self.error),
            needed=(_largest(self._relative[failed]), _largest(self.gap[failed])),
            noise=MEASURED * float(np.max(self.noise, initial=0.0)),
            worst=self._worst(point),
        )

    def _worst(self, point: int) -> tuple[Entry, ...]:
        """The entries that differ most."""
        rows, columns = np.nonzero(self.failed)
        order = np.argsort(-self.gap[rows, columns], kind="stable")[:KEPT]
        return tuple(self._entry(int(rows[i]), int(columns[i]), point) for i in order)

    @property
    def _relative(self) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.gap == 0, 0.0, self.gap / self.size)

    def _entry(self, row: int, column: int, point: int) -> Entry:
        a, b = float(self.a[row, column]), float(self.b[row, column])
        x, y = self.place.x, self.place.y
        at_x, at_y = (_index(column, x), _index(row, y)) if x is not None else ((), _index(column, y))
        noise = MEASURED * float(np.broadcast_to(self.noise, self.a.shape)[row, column])
        return Entry(
            at_x, at_y, point, a, b, noise, pattern(b, a, (*(x or ()), *(y or ()))), part=self._part(row, column)
        )

    def _part(self, row: int, column: int) -> str:
        """Real or imaginary part of x and y that an entry belongs to."""
        place, rows_y = self.place, self.place.x is not None
        parts = [("x", column, self.a.shape[1])] if place.complex_x else []
        parts += [("y", row, len(self.a)) if rows_y else ("y", column, self.a.shape[1])] if place.complex_y else []
        return ", ".join(f"{'im' if 2 * at >= size else 're'} {name}" for name, at, size in parts)


def of_values(a: Array, b: Array, tolerance: Tolerance) -> Compared:
    """Two outputs of one shape; integers, booleans and strings must be equal."""
    place = Place(y=a.shape, complex_y=a.dtype.kind == "c")
    if is_inexact(a.dtype) and is_inexact(b.dtype):
        return Compared(row_of(a), row_of(b), tolerance, place)
    if a.dtype == object or b.dtype == object:
        other = np.asarray(a.astype(str) != b.astype(str)).reshape(1, -1)
        return Compared(np.zeros(other.shape), other.astype(float), Tolerance(0.0), place)
    here, there, same = row_of(a), row_of(b), (a == b).reshape(1, -1)
    there = np.where((here == there) & ~same, np.nextafter(there, np.inf), there)  # integers beyond 2^53
    return Compared(here, there, Tolerance(0.0), place)


def row_of(value: Array) -> Array:
    """A tensor as one row of reals."""
    flat = wide(value).reshape(1, -1)
    return np.concatenate([flat.real, flat.imag], axis=1) if flat.dtype.kind == "c" else flat


def spread(a: Array, others: Iterable[tuple[Array, bool]]) -> Array:
    """Bounds of the change of rows in other runs; each comes with a flag: True if it took every branch alike.

    A few runs do not move every entry as far as possible: each counts as moving by the root mean square of its row at
    least, and, where branches differ, by as much as the entry that moves most.
    """
    found = np.zeros(a.shape)
    for other, alike in others:
        if other.shape == a.shape:
            gap = gaps(a, other)
            gap = np.where(np.isfinite(gap), gap, 0.0)
            usual = np.sqrt(np.mean(gap * gap, axis=1, keepdims=True)) if gap.size else gap
            found = np.maximum(
                found, np.maximum(gap, usual if alike else np.max(gap, axis=1, keepdims=True, initial=0.0))
            )
    return found


def _index(position: int, shape: tuple[int, ...] | None) -> tuple[int, ...]:
    size = int(np.prod(shape or ()))
    return tuple(int(i) for i in np.unravel_index(position % size, shape)) if shape and size else ()


def _largest(values: Array) -> float:
    return float(np.max(values, initial=0.0))


@dataclass(frozen=True, slots=True)
class Precision:
    """The floating-point dtypes of a model, its widest rounding, and half a step of its quantizers, if any."""

    dtypes: tuple[str, ...]
    rounding: float
    step: float = 0.0

    def __str__(self) -> str:
        quantized = {0.0: (), _BITS[8]: ("8 bits",), _BITS[4]: ("4 bits",)}[self.step]
        return " and ".join((*self.dtypes, *quantized)) or "no floats"


@dataclass(frozen=True, slots=True)
class Loss:
    """Errors of one model's numbers in the other, relative to themselves and to the largest of a tensor.

    They are a rounding of the less precise model, and the step of a quantizer where one of the two quantizes.
    """

    rounding: float
    step: float

    @property
    def rtol(self) -> float:
        """The default relative tolerance."""
        return max(RTOL, ROUNDINGS * max(self.rounding, self.step))

    @property
    def atol(self) -> float:
        """The default absolute tolerance for models run in their own dtypes, for results computed from ones."""
        return ROUNDINGS * max(self.rounding, self.step)


def precision(source: Source) -> Precision:
    """The precision that a model declares."""
    graph = source.graph
    declared = [t.dtype for n, t in graph.types.items() if n in (*graph.inputs, *graph.outputs) and t.dtype is not None]
    cast = [dtype for node in _nodes(graph) if (dtype := _cast_to(node)) is not None]
    held = [v.dtype for each in _graphs(graph) for v in each.constants.values()]
    floats = {d.name: d for d in [*declared, *held, *cast] if is_inexact(d)}
    widest = max((epsilon(dtype) / 2 for dtype in floats.values()), default=0.0)
    return Precision(tuple(sorted(floats)), widest, _step(graph))


def loss(a: Precision, b: Precision) -> Loss:
    return Loss(max(a.rounding, b.rounding), 0.0 if bool(a.step) == bool(b.step) else max(a.step, b.step))


def moved(source: Source, feeds: Mapping[str, Any], by: Loss, ops: Ops, seed: int) -> tuple[Source, dict[str, Any]]:
    """A model and its feeds, with numbers moved at random, as far as `by` says.

    Integers stay, since they are exact in any dtype, and so do operands that decide on shapes and axes.
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
    """Half a step of the coarsest quantizer; 0 if there is none."""
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
    """Nodes of a graph and of its subgraphs."""
    return (node for each in _graphs(graph) for node in each.nodes)


def _graphs(graph: Graph) -> Iterator[Graph]:
    """A graph and its subgraphs."""
    yield graph
    for node in graph.nodes:
        for body in node.subgraphs:
            yield from _graphs(body)
