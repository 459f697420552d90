"""RNN, GRU and LSTM as one step of a tape each way: values, tangents and cotangents over all time steps.

Layers whose activations are smooth run here; those with kinks are unrolled in `recurrent`, so that each kink is a step.
Inside, sequences are `(..., T, N, size)`, and leading axes broadcast, so that any operand may be a stack.  At a point a
layer is linear in tangents and cotangents of the gates, and `native.recurrences` follows them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.native import matmul
from gradcheck_cli.native.recurrences import KINDS, Recurrence, pull, push
from gradcheck_cli.op.batching import Move
from gradcheck_cli.ops.activation import sigmoid, softplus, softsign, softsign_step

Operands: TypeAlias = Sequence[Any]  # x, W, R, B, lengths, initial h, initial c, peepholes; None for one left out
Slope: TypeAlias = Callable[["Activation", Array], Array]
X, W, R, B, LENGTHS, H, C, P = range(8)
RANKS = (3, 3, 3, 2, 1, 3, 3, 2)  # of the operands
DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_KNOWN, _HELD = 4, 1 << 24  # points that are kept, and bytes of each
_ARRAYS = 5  # of all gates of all steps, that are known of a point
_FEW = 4  # entries of a matrix that are not zero
_OPERATIONS = 4  # one after the other that a coefficient stands for: two products, two sums


def still(op: str, y: Array) -> Array:
    """A result as it is."""
    return y


@dataclass(frozen=True, slots=True)
class Activation:
    """A smooth function, applied to each entry."""

    name: str
    alpha: float
    beta: float

    def __call__(self, x: Array) -> Array:
        match self.name:
            case "Tanh":
                return np.asarray(np.tanh(x))
            case "Sigmoid":
                return sigmoid(x)
            case "Softsign":
                return softsign_step(x) if x.dtype.kind == "c" else softsign(x)
            case "Softplus":
                return softplus(x)
            case "Affine":
                return np.asarray(self.alpha * x + self.beta).astype(x.dtype, copy=False)
            case _:
                return np.asarray(self.alpha * np.tanh(self.beta * x)).astype(x.dtype, copy=False)

    def slope(self, x: Array) -> Array:
        """Its derivative, without the cancellation of 1 - y where y is near 1."""
        match self.name:
            case "Tanh":
                return 4 * sigmoid(2 * x) * sigmoid(-2 * x)
            case "Sigmoid":
                return sigmoid(x) * sigmoid(-x)
            case "Softsign":
                return 1 / (1 + np.where(x.real < 0, -x, x)) ** 2
            case "Softplus":
                return sigmoid(x)
            case "Affine":
                return np.full_like(x, self.alpha)
            case _:
                z = 2 * self.beta * x
                return np.asarray(4 * self.alpha * self.beta * sigmoid(z) * sigmoid(-z)).astype(x.dtype, copy=False)


# those that run here, by their names in lower case: operator, then alpha and beta by default, None where it takes none
SMOOTH: Mapping[str, tuple[str, float | None, float | None]] = {
    "tanh": ("Tanh", None, None), "sigmoid": ("Sigmoid", None, None), "softsign": ("Softsign", None, None),
    "softplus": ("Softplus", None, None), "affine": ("Affine", 1.0, 0.0), "scaledtanh": ("ScaledTanh", 1.0, 1.0),
}  # fmt: skip


def chosen(names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]) -> Iterator[Activation]:
    """Activations by name; alpha and beta are handed in turn to those that take one."""
    alpha, beta = iter(alphas), iter(betas)
    for name in names:
        op, a, b = SMOOTH[name.lower()]
        yield Activation(op, 1.0 if a is None else next(alpha, a), 0.0 if b is None else next(beta, b))


@dataclass(frozen=True, slots=True)
class Steps:
    """All that one direction of a layer does in its steps, kept for its derivative: arrays `(..., T, N, H)`.

    before, after  the states h before each step, and h or c after it
    inner    the state c before each step of an LSTM; of a GRU, what the reset gate is multiplied by
    sums     what goes into each activation, and `values` what comes out of it
    """

    before: Array
    after: Array
    inner: Array
    sums: Mapping[str, Array]
    values: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Way:
    """One direction of a layer with its operands: x `(..., T, N, D)`, w `(..., gates * H, D)`, states `(..., N, H)`.

    bias and apart are those of the input and of the state, `(..., gates * H)`; `peepholes` `(..., 3 * H)`.
    """

    op: str
    x: Array
    w: Array
    r: Array
    bias: Array | None
    apart: Array | None
    peepholes: Array | None
    counts: Array | None
    h: Array
    c: Array | None
    activations: tuple[Activation, ...]
    backwards: bool
    variant: bool  # input_forget, linear_before_reset

    @property
    def kind(self) -> str:
        """Its kind among linear recurrences."""
        return "gru after" if self.op == "GRU" and self.variant else self.op.lower()

    def inputs(self, move: Move) -> Array:
        """The part of the gates of each step that x gives, `(..., T, N, gates * H)`."""
        rows = move("MatMul", matmul(move("Transpose", self.x), swapped(self.w)[..., None, :, :]))
        bias = self.bias
        if bias is not None and self.apart is not None:
            bias = bias + (without_new(self.apart) if self.kind == "gru after" else self.apart)
        return rows if bias is None else move("Add", rows + bias[..., None, None, :])

    def run(self, move: Move = still, *, kept: bool = False) -> tuple[list[Array], Array, Array | None, list[Any]]:
        """States after each step in order of time, the last h and c, and if they are kept the facts of each step."""
        rows, back = self.inputs(move), swapped(self.r)
        back = np.ascontiguousarray(back) if back.ndim == 2 else back  # each step reads it
        lead = rows.shape[:-3] if move is not still else ()  # each probe has states of its own to be moved
        h, c = (s if s is None or s.ndim > 2 else np.broadcast_to(s, (*lead, *s.shape)) for s in (self.h, self.c))
        assert h is not None
        ys: list[Array] = []
        facts: list[Any] = []
        times = range(self.x.shape[-3])[:: -1 if self.backwards else 1]
        step = {"RNN": self._rnn, "GRU": self._gru, "LSTM": self._lstm}[self.op]
        for t in times:
            new, inner, fact = step(rows[..., t, :, :], back, h, c, move)
            if kept:
                facts.append((h, c, new, inner, fact))
            on = None if self.counts is None else (self.counts > t)[..., None]
            ys.append(new if on is None else np.where(on, new, 0))
            h = new if on is None else np.where(on, new, h)
            c = inner if on is None or c is None else np.where(on, inner, c)
        return ys[:: times.step], h, c, facts[:: times.step]

    def _rnn(self, row: Array, back: Array, h: Array, c: Any, move: Move) -> tuple[Array, Any, Any]:
        (f,) = self.activations
        z = move("Add", row + move("MatMul", matmul(h, back)))
        y = move(f.name, f(z))
        return y, None, ({"h": z}, {"h": y})

    def _gru(self, row: Array, back: Array, h: Array, c: Any, move: Move) -> tuple[Array, Any, Any]:
        f, g = self.activations
        gates, cut = slice(0, 2 * h.shape[-1]), slice(2 * h.shape[-1], None)
        if self.variant:
            sent = move("MatMul", matmul(h, back))
            z = move("Add", row[..., gates] + sent[..., gates])
            held = sent[..., cut]
            if self.apart is not None:
                held = move("Add", held + self.apart[..., None, cut])
            u, r = parted(move(f.name, f(z)), 2)
            z_n = move("Add", row[..., cut] + move("Mul", r * held))
        else:
            z, held = move("Add", row[..., gates] + move("MatMul", matmul(h, back[..., gates]))), h
            u, r = parted(move(f.name, f(z)), 2)
            z_n = move("Add", row[..., cut] + move("MatMul", matmul(move("Mul", r * h), back[..., cut])))
        n = move(g.name, g(z_n))
        z_u, z_r = parted(z, 2)
        y = move("Add", n + move("Mul", u * move("Sub", h - n)))
        return y, held, ({"u": z_u, "r": z_r, "n": z_n}, {"u": u, "r": r, "n": n})

    def _lstm(self, row: Array, back: Array, h: Array, c: Any, move: Move) -> tuple[Array, Any, Any]:
        f, g, last = self.activations
        size = h.shape[-1]
        z = move("Add", row + move("MatMul", matmul(h, back)))
        z_i, z_o, z_f, z_g = parted(z, 4)
        if self.peepholes is None and not self.variant:  # one call for the three gates
            i, o, forget = parted(move(f.name, f(z[..., : 3 * size])), 3)
        else:
            z_i, z_f = self._seen(z_i, 0, c, move), self._seen(z_f, 2, c, move)
            i, o = move(f.name, f(z_i)), None
            forget = 1 - i if self.variant else move(f.name, f(z_f))
        new = move(g.name, g(z_g))
        after = move("Add", move("Mul", forget * c) + move("Mul", i * new))
        if o is None:
            z_o = self._seen(z_o, 1, after, move)
            o = move(f.name, f(z_o))
        shown = move(last.name, last(after))
        values = {"i": i, "o": o, "f": forget, "g": new, "c": shown}
        return move("Mul", o * shown), after, ({"i": z_i, "o": z_o, "f": z_f, "g": z_g, "c": after}, values)

    def _seen(self, z: Array, gate: int, c: Array, move: Move) -> Array:
        """A gate that looks at the cell state through its peephole."""
        if self.peepholes is None:
            return z
        return move("Add", z + move("Mul", c * self.peephole(gate)[..., None, :]))

    def peephole(self, gate: int) -> Array:
        """The weights of i, o or f, `(..., H)`."""
        assert self.peepholes is not None
        return np.asarray(np.split(self.peepholes, 3, -1)[gate])

    def steps(self, facts: Sequence[Any]) -> Steps:
        """Everything that its derivative needs to know of its steps, from the facts of a run."""
        h, c, after, inner, parts = zip(*facts, strict=True)
        sums = {key: over_time([sums[key] for sums, _ in parts]) for key in parts[0][0]}
        values = {key: over_time([values[key] for _, values in parts]) for key in parts[0][1]}
        held = over_time(c) if self.op == "LSTM" else over_time(inner) if self.op == "GRU" else over_time(h)
        return Steps(over_time(h), over_time(inner if self.op == "LSTM" else after), held, sums, values)

    def linear(self, steps: Steps, slope: Slope, move: Move = still) -> Recurrence:
        """The layer as it is linear in what goes into its gates."""
        made = {"RNN": self._rnn_slopes, "GRU": self._gru_slopes, "LSTM": self._lstm_slopes}[self.op](steps, slope)
        like = steps.before
        shaped = (np.ascontiguousarray(np.broadcast_to(k, np.broadcast_shapes(k.shape, like.shape))) for k in made)
        moved = shaped if move is still else (_often(move, k, like.ndim) for k in shaped)
        return Recurrence(self.kind, list(moved), self.r, self.counts, self.backwards)

    def _rnn_slopes(self, steps: Steps, slope: Slope) -> list[Array]:
        return [slope(self.activations[0], steps.sums["h"])]

    def _gru_slopes(self, steps: Steps, slope: Slope) -> list[Array]:
        f, g = self.activations
        u, r, n = (steps.values[key] for key in "urn")
        a_u = (steps.before - n) * slope(f, steps.sums["u"])
        return [u, a_u, (1 - u) * slope(g, steps.sums["n"]), slope(f, steps.sums["r"]) * steps.inner, r]

    def _lstm_slopes(self, steps: Steps, slope: Slope) -> list[Array]:
        f, g, last = self.activations
        i, o, keep, new, shown = (steps.values[key] for key in "iofgc")
        a_i = (new - steps.inner if self.variant else new) * slope(f, steps.sums["i"])
        a_f = np.zeros_like(a_i) if self.variant else steps.inner * slope(f, steps.sums["f"])
        a_g, a_o = i * slope(g, steps.sums["g"]), shown * slope(f, steps.sums["o"])
        to_h = o * slope(last, steps.sums["c"])
        if self.peepholes is not None:
            at_i, at_o, at_f = (self.peephole(gate)[..., None, None, :] for gate in range(3))
            keep, to_h = keep + a_i * at_i + a_f * at_f, to_h + a_o * at_o
        return [keep, a_i, a_f, a_g, to_h, a_o]


def _often(move: Move, k: Array, rank: int) -> Array:
    """A coefficient moved as by the roundings of all operations of a step that it stands for."""
    k = k if k.ndim > rank else k[None]
    for _ in range(_OPERATIONS):
        k = move("Mul", k)
    return k[0] if len(k) == 1 else k


class AtPoint:
    """The directions of a layer at a point, with all that is known of their steps."""

    def __init__(self, layer: LayerForm, operands: Operands) -> None:
        self.layer, self.operands = layer, operands
        self.ways = layer.ways(self.operands)
        runs = [way.run(kept=True) for way in self.ways]
        self.states = [run[:3] for run in runs]  # after each step, and the last h and c
        self.steps = [way.steps(run[3]) for way, run in zip(self.ways, runs, strict=True)]
        self._linear: dict[tuple[int, bool], Recurrence] = {}

    def holds(self, layer: LayerForm, operands: Operands) -> bool:
        """True if this is the point of a layer at these operands."""
        pairs = zip(self.operands, operands, strict=True)
        return layer == self.layer and all(a is b if a is None or b is None else _same(a, b) for a, b in pairs)

    def linear(self, d: int, slope: Slope, move: Move, *, by_rule: bool) -> Recurrence:
        """A direction as it is linear at the point, by the slopes of the rules or by those of the kernels."""
        if move is not still:
            return self.ways[d].linear(self.steps[d], slope, move)
        if (d, by_rule) not in self._linear:
            self._linear[d, by_rule] = self.ways[d].linear(self.steps[d], slope)
        return self._linear[d, by_rule]


_points: list[AtPoint] = []  # those asked for last


def at_point(layer: LayerForm, operands: Operands) -> AtPoint:
    """The directions of a layer, found once for the same numbers: comparing those is far less work."""
    known = next((point for point in _points[:] if point.holds(layer, operands)), None)
    if known is not None:
        return known
    kept = _is_kept(operands)
    made = AtPoint(layer, [None if x is None else np.array(x) for x in operands] if kept else operands)
    if kept:
        _points[:] = [made, *_points[: _KNOWN - 1]]
    return made


def _is_kept(operands: Operands) -> bool:
    """True for operands of one point whose steps take little memory."""
    given = [(x, rank) for x, rank in zip(operands, RANKS, strict=True) if x is not None]
    inside = _ARRAYS * math.prod(operands[X].shape[:-1]) * math.prod(operands[W].shape[:-1]) * operands[W].itemsize
    return all(y.ndim == rank for y, rank in given) and 0 < inside <= _HELD - sum(y.nbytes for y, _ in given)


def _same(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(np.array_equal(a, b))


@dataclass(frozen=True, slots=True)
class LayerForm:
    """The attributes of a layer."""

    op: str
    activations: tuple[Activation, ...]
    direction: str
    layout: int
    variant: bool

    @property
    def directions(self) -> int:
        """The number of directions."""
        return 2 if self.direction == "bidirectional" else 1

    @property
    def gates(self) -> int:
        """The number of matrices stacked in W."""
        return KINDS[self.op.lower()][0]

    def timed(self, x: Array) -> Array:
        """x with time in front of the batch."""
        return np.swapaxes(x, -3, -2) if self.layout else x

    def state(self, x: Array, d: int) -> Array:
        """A state of one direction, `(..., N, H)`."""
        return x[..., d, :] if self.layout else x[..., d, :, :]

    def states(self, parts: Sequence[Array]) -> Array:
        """States of all directions."""
        return np.stack(np.broadcast_arrays(*parts), -2 if self.layout else -3)

    def part(self, ys: Array, d: int) -> Array:
        """All states of one direction, `(..., T, N, H)`."""
        return (np.moveaxis(ys, -4, -2) if self.layout else ys)[..., d, :, :]

    def sequence(self, parts: Sequence[Array]) -> Array:
        """All states of all directions."""
        ys = parts[0][..., None, :, :] if len(parts) == 1 else np.stack(np.broadcast_arrays(*parts), -3)
        return np.moveaxis(ys, -2, -4) if self.layout else ys

    def way(self, d: int, operands: Operands) -> Way:
        """One direction with its operands."""
        x, w, r, b, counts, h, c, p = operands
        x, size, count = self.timed(x), self.gates * r.shape[-1], len(self.activations) // self.directions
        zeros = np.zeros((x.shape[-2], r.shape[-1]), np.result_type(x, w, r))
        h, c = (zeros if s is None else self.state(s, d) for s in (h, c))
        own = [None if y is None else y[..., d, :] for y in (b, p)]
        bias, apart = (None, None) if own[0] is None else (own[0][..., :size], own[0][..., size:])
        activations = self.activations[d * count : (d + 1) * count]
        return Way(
            self.op, x, w[..., d, :, :], r[..., d, :, :], bias, apart, own[1], counts, h,
            c if self.op == "LSTM" else None, activations, self.direction == "reverse" or d == 1, self.variant,
        )  # fmt: skip

    def ways(self, operands: Operands) -> list[Way]:
        """All directions."""
        return [self.way(d, operands) for d in range(self.directions)]


def layer_of(
    op: str, *, activations: tuple[str, ...] = (), activation_alpha: tuple[float, ...] = (),
    activation_beta: tuple[float, ...] = (), direction: str = "forward", layout: int = 0, input_forget: int = 0,
    linear_before_reset: int = 0, wanted: tuple[int, ...] = (),
) -> LayerForm:  # fmt: skip
    """A layer by its attributes."""
    count = 2 if direction == "bidirectional" else 1
    names = (activations or DEFAULTS[op] * count)[: len(DEFAULTS[op]) * count]
    functions = tuple(chosen(names, activation_alpha, activation_beta))
    return LayerForm(op, functions, direction, layout, bool(input_forget or linear_before_reset))


def values(layer: LayerForm, operands: Operands, move: Move = still) -> tuple[Array, ...]:
    """The outputs Y, Y_h and, of an LSTM, Y_c."""
    shared = move is still and _is_kept(operands)  # a derivative asks for the same point
    made = at_point(layer, operands).states if shared else [way.run(move)[:3] for way in layer.ways(operands)]
    ys = layer.sequence([over_time(ys) for ys, _, _ in made])
    ends = [layer.states([h for _, h, _ in made])]
    if layer.op == "LSTM":
        ends.append(layer.states([c for _, _, c in made if c is not None]))
    return led((ys, *ends), operands, RANKS, (4, 3, 3)[: 1 + len(ends)])


def tangents(
    layer: LayerForm, operands: Operands, moving: Operands, wanted: Sequence[bool], slope: Slope, move: Move = still
) -> list[Array | None]:
    """Tangents of the outputs along those of operands, `(P, *shape)`, at a point; `wanted` says of which."""
    count = next(len(t) for t in moving if t is not None)
    made = []
    point = at_point(layer, operands)
    for d, (way, steps) in enumerate(zip(point.ways, point.steps, strict=True)):
        x = point.linear(d, slope, move, by_rule=False)
        rows, index = _rows(layer, d, way, steps, moving, count)
        rows = rows if move is still else rows * _by_place(move, index, rows.shape[-1])
        zeros = np.zeros((count, *way.h.shape), way.h.dtype)
        h, c = (zeros if t is None else np.ascontiguousarray(layer.state(t, d)) for t in (moving[H], moving[C]))
        made.append(push(x, rows, index, h, None if way.c is None else c, all_steps=wanted[0]))
    outputs: list[Array | None] = [None] * len(wanted)
    if wanted[0]:
        outputs[0] = layer.sequence([ys for ys, _, _ in made if ys is not None])
    for i in range(1, len(wanted)):
        outputs[i] = layer.states([end for ends in made if (end := ends[i]) is not None])
    return outputs


def _by_place(move: Move, index: Array, width: int) -> Array:
    """Factors near 1 for rows: those of one step and sequence are moved alike, whichever probes there are."""
    places = index[0].size
    return np.asarray(move("Add", np.ones((1, places, width)))[0][np.flatnonzero(index >= 0) % places])


def _rows(layer: LayerForm, d: int, way: Way, steps: Steps, moving: Operands, count: int) -> tuple[Array, Array]:
    """Rows that tangents of operands add to the gates, without zeros, and the number of each step's row, -1 for none."""
    x, w, r, b, _, _, _, p = moving
    *_, length, batch, _ = way.x.shape
    index = np.full((count, length, batch), -1, np.int32)
    if any(t is not None for t in (w, r, b, p)):
        index = np.arange(index.size, dtype=np.int32).reshape(index.shape)
        found = np.zeros((count, length, batch, way.w.shape[-2]), way.h.dtype)
        if x is not None:
            found += matmul(layer.timed(x), swapped(way.w))
        for source in _by_weights(way, steps, *(None if t is None else t[:, d] for t in (w, r, b, p))):
            found += source
        return found.reshape(index.size, found.shape[-1]), index
    if x is None:
        return np.zeros((0, way.w.shape[-2]), way.h.dtype), index
    timed = layer.timed(x)
    places = np.flatnonzero((timed != 0).any(axis=-1).reshape(-1))
    index.reshape(-1)[places] = np.arange(len(places), dtype=np.int32)
    return matmul(timed.reshape(index.size, timed.shape[-1])[places], swapped(way.w)), index


def _by_weights(way: Way, steps: Steps, w: Any, r: Any, b: Any, p: Any) -> Iterator[Array]:
    """Parts that tangents of weights `(P, ...)` add to the gates, `(P, T, N, gates * H)` or broadcasting to it."""
    reset = steps.values["r"] if way.op == "GRU" else None
    if w is not None:
        yield _times(way.x, w)
    if r is not None and reset is not None:
        size = 2 * reset.shape[-1]
        yield _on(slice(0, size), _times(steps.before, r[:, :size]), way.w.shape[-2])
        new = r[:, size:]
        held = reset * _times(steps.before, new) if way.variant else _times(reset * steps.before, new)
        yield _on(slice(size, None), held, way.w.shape[-2])
    elif r is not None:
        yield _times(steps.before, r)
    if b is not None:
        first, second = (y[:, None, None] for y in np.split(b, 2, -1))
        yield first
        if way.kind == "gru after":
            assert reset is not None
            cut = slice(2 * reset.shape[-1], None)
            second = without_new(second) + _on(cut, reset * second[..., cut], second.shape[-1])
        yield second
    if p is not None:
        i, o, f = (y[:, None, None] for y in np.split(p, 3, -1))
        seen = [i * steps.inner, o * steps.after, f * steps.inner]
        yield np.concatenate([*seen, np.zeros_like(seen[0])], -1)


def _times(x: Array, matrices: Array) -> Array:
    """Rows `(T, N, size)` by each of some matrices `(P, columns, size)` transposed, `(P, T, N, columns)`.

    Matrices of few entries, as those of probes of a single weight are, need no product.
    """
    places = np.nonzero(matrices)
    if len(places[0]) > _FEW * len(matrices):
        return matmul(x, swapped(matrices)[:, None])
    made = np.zeros((len(matrices), matrices.shape[1], *x.shape[:2]), x.dtype)
    np.add.at(made, places[:2], matrices[places][:, None, None] * np.moveaxis(x, -1, 0)[places[2]])
    return np.moveaxis(made, 1, -1)


def _on(columns: slice, rows: Array, count: int) -> Array:
    """Rows as some of so many columns, the others of which are zero."""
    made = np.zeros((*rows.shape[:-1], count), rows.dtype)
    made[..., columns] = rows
    return made


def cotangents(
    layer: LayerForm, cts: Sequence[Any], operands: Operands, wanted: Collection[int], slope: Slope, move: Move = still
) -> list[Any]:
    """Cotangents of the operands `wanted`, by position, from those of Y, Y_h and Y_c."""
    made: list[dict[int, Array]] = []
    ct_y, ct_h, ct_c = [*cts, None][:3]
    point = at_point(layer, operands)
    for d, (way, steps) in enumerate(zip(point.ways, point.steps, strict=True)):
        x = point.linear(d, slope, move, by_rule=True)
        zeros = np.zeros_like(way.h)
        h, c = (zeros if ct is None else layer.state(ct, d) for ct in (ct_h, ct_c))
        rows, before, inner = pull(x, None if ct_y is None else layer.part(ct_y, d), h, None if way.c is None else c)
        assert rows is not None
        found = dict(_to_operands(way, steps, rows, wanted))
        found.update({i: s for i, s in ((H, before), (C, inner)) if s is not None and i in wanted})
        made.append(found)
    outputs: list[Any] = [None] * 8
    for i in wanted:
        parts = [found[i] for found in made]
        if i == X:
            outputs[i] = layer.timed(sum(parts[1:], start=parts[0]))
        elif i in (H, C):
            outputs[i] = layer.states(parts)
        else:
            outputs[i] = np.stack(np.broadcast_arrays(*parts), -2 if i in (B, P) else -3)
    return outputs


def _to_operands(way: Way, steps: Steps, rows: Array, wanted: Collection[int]) -> Iterator[tuple[int, Array]]:
    """Cotangents of x and of weights by position, from those of the gates, `(..., T, N, gates * H)`."""
    flat = merged(rows)
    if X in wanted:
        ct = matmul(flat, way.w)
        yield X, ct.reshape(*ct.shape[:-2], *rows.shape[-3:-1], ct.shape[-1])
    if W in wanted:
        yield W, matmul(swapped(flat), merged(way.x))
    back = flat
    if way.kind == "gru after" and not {R, B}.isdisjoint(wanted):
        back = merged(np.concatenate(_split_new(rows, steps.values["r"]), -1))
    if R in wanted and way.kind == "gru":
        size = 2 * steps.before.shape[-1]
        parts = [(flat[..., :size], steps.before), (flat[..., size:], steps.values["r"] * steps.before)]
        made = [matmul(swapped(part), merged(y)) for part, y in parts]
        yield R, np.concatenate(made, -2)
    elif R in wanted:
        yield R, matmul(swapped(back), merged(steps.before))
    if B in wanted:
        yield B, np.concatenate([flat.sum(axis=-2), back.sum(axis=-2)], -1)
    if P in wanted:
        i, o, f, _ = np.split(rows, 4, -1)
        seen = [i * steps.inner, o * steps.after, f * steps.inner]
        yield P, np.concatenate([y.sum(axis=(-3, -2)) for y in seen], -1)


def _split_new(rows: Array, reset: Array) -> list[Array]:
    """Cotangents of a GRU's gates, that of the new state times the reset gate."""
    size = 2 * reset.shape[-1]
    held = reset * rows[..., size:]
    return [np.broadcast_to(rows[..., :size], (*held.shape[:-1], size)), held]


def parted(x: Array, count: int) -> list[Array]:
    """Equal parts along the last axis."""
    size = x.shape[-1] // count
    return [x[..., i * size : (i + 1) * size] for i in range(count)]


def over_time(parts: Sequence[Array]) -> Array:
    """Arrays `(..., N, H)` of all steps as `(..., T, N, H)`."""
    if all(part.shape == parts[0].shape for part in parts):
        made = np.empty((len(parts), *parts[0].shape), np.result_type(*parts[:2]))
        for t, part in enumerate(parts):
            made[t] = part
        return np.moveaxis(made, 0, -3) if made.ndim > 3 else made
    return np.stack(np.broadcast_arrays(*parts), -3)


def merged(x: Array) -> Array:
    """`(..., T, N, size)` with its steps and sequences as rows."""
    return x.reshape(*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1])


def swapped(x: Array) -> Array:
    """Matrices transposed."""
    return np.swapaxes(x, -1, -2)


def without_new(bias: Array) -> Array:
    """A bias of a GRU's gates with zeros for that of the new state."""
    made = bias.copy()
    made[..., 2 * (bias.shape[-1] // 3) :] = 0
    return made


def led(results: Sequence[Array], operands: Operands, ranks: Sequence[int], own: Sequence[int]) -> tuple[Array, ...]:
    """Results of ranks `own` with the leading axes that operands of some ranks have, whatever they were made of."""
    pairs = zip(operands, ranks, strict=False)
    lead = np.broadcast_shapes(*(x.shape[: x.ndim - rank] for x, rank in pairs if x is not None))
    if not lead:
        return tuple(results)
    return tuple(np.broadcast_to(y, (*lead, *y.shape[y.ndim - rank :])) for y, rank in zip(results, own, strict=True))
