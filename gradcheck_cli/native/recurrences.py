"""Linear recurrences: tangents and cotangents of a recurrent layer over all of its steps at once.

A layer is linear in its tangents: each step adds what goes into its gates, a row of `gates * H` numbers, to R times the
state, and mixes the sums by coefficients `(..., T, N, H)` of the point.  `push` follows the states in the order of the
steps, `pull` their cotangents the other way.  In the letters of `push`, with z = row + R h, split by gates:

    rnn        h' = a z                                                                      coefficients a
    gru        h' = keep h + a_u z_u + a_n (row_n + R_n (r h + a_r z_r))                     keep, a_u, a_n, a_r, r
    gru after  h' = keep h + a_u z_u + a_n (row_n + r (R_n h) + a_r z_r)                     the same
    lstm       c' = keep c + a_i z_i + a_f z_f + a_g z_g,  h' = shown c' + a_o z_o           keep, a_i, a_f, a_g, shown, a_o

Gates are in the order of W: update u, reset r and new n of a GRU; i, o, f and g of an LSTM.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .products import matmul
from .selection import kernels, native

Array = NDArray[Any]

KINDS = {"rnn": (1, 1), "gru": (3, 5), "gru after": (3, 5), "lstm": (4, 6)}  # gates, coefficients; in the order of C++
_DTYPES = {np.dtype(np.float32): False, np.dtype(np.float64): True}


class Recurrence(Struct, frozen=True, dict=True):
    """The steps of a layer in one direction, linear at a point.

    coefficients  of a kind, each `(..., T, N, H)`
    r             the matrix of the states, `(..., gates * H, H)`
    counts        the number of steps of each sequence, `(..., N)`; None for all
    backwards     the last step that counts runs first
    """

    kind: str
    coefficients: Sequence[Array]
    r: Array
    counts: Array | None
    backwards: bool

    @property
    def steps(self) -> int:
        return int(self.coefficients[0].shape[-3])

    @property
    def gates(self) -> int:
        return KINDS[self.kind][0]

    @property
    def times(self) -> range:
        """The steps in their order."""
        return range(self.steps)[:: -1 if self.backwards else 1]

    @cached_property
    def point(self) -> list[Array] | None:
        """The coefficients and r, dense, if the native kernels take them: of one real dtype, finite, without probes."""
        dtype, given = self.r.dtype, [*self.coefficients, self.r]
        alike = self.r.ndim == 2 and all(k.ndim == 3 and k.size for k in self.coefficients)
        alike = alike and (self.counts is None or self.counts.ndim == 1)
        if not alike or not self.r.size or dtype not in _DTYPES or any(k.dtype != dtype for k in given):
            return None
        finite = all(bool(np.isfinite(k).all()) for k in given)
        return [np.ascontiguousarray(k) for k in given] if finite else None

    def running(self, t: int) -> Array | None:
        """Sequences that have a step t, `(..., N, 1)`; None for all."""
        return None if self.counts is None else (self.counts > t)[..., None]


def push(x: Recurrence, rows: Array, index: Array, h: Array, c: Array | None, *, all_steps: bool) -> list[Array | None]:
    """Tangents of the state after each step, `(P, T, N, H)`, if all are asked for, and of the last h and c, `(P, N, H)`.

    rows   what goes into the gates, `(M, gates * H)`; `index` `(P, T, N)` says which goes where, -1 for zeros.
    h, c   tangents of the states before the first step, `(P, N, H)`; c of an LSTM alone.
    """
    if _fits(x, [rows, h, c]):
        return _natively(x, rows, index, h, c, all_steps=all_steps)
    source = np.zeros((*index.shape, x.r.shape[-2]), np.result_type(rows, *x.coefficients))
    source[index >= 0] = rows[index[index >= 0]]
    made_h: list[Array] = []
    for t in x.times:
        new = _pushed(x, t, source[..., t, :, :], h, c)
        on = x.running(t)
        made_h.append(new[0] if on is None else np.where(on, new[0], 0))
        h, c = new if on is None else (np.where(on, new[0], h), c if c is None else np.where(on, new[1], c))
    ys = np.stack(np.broadcast_arrays(*made_h[:: x.times.step]), -3) if all_steps else None
    return [ys, h, c]


def pull(x: Recurrence, ys: Array | None, h: Array, c: Array | None) -> list[Array | None]:
    """Cotangents of what goes into the gates of each step, `(P, T, N, gates * H)`, and of the states before the first.

    ys are cotangents of the state after each step, `(P, T, N, H)`; h and c of the last states, `(P, N, H)`.
    """
    if _fits(x, [ys, h, c]):
        return _natively_back(x, ys, h, c)
    sent: list[Array] = []
    for t in reversed(x.times):
        on = x.running(t)
        flow = h if ys is None else h + ys[..., t, :, :]
        z, *new = _pulled(x, t, flow, c)
        sent.append(z if on is None else np.where(on, z, 0))
        h = new[0] if on is None else np.where(on, new[0], h)
        c = new[1] if on is None or c is None else np.where(on, new[1], c)
    return [np.stack(np.broadcast_arrays(*sent[:: -x.times.step]), -3), h, c]


def _swapped(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


def _pushed(x: Recurrence, t: int, row: Array, h: Array, c: Array | None) -> tuple[Array, Any]:
    """Tangents of h and c after step t."""
    size, at = x.r.shape[-1], [k[..., t, :, :] for k in x.coefficients]
    if x.kind == "rnn":
        return at[0] * (row + matmul(h, _swapped(x.r))), None
    if x.kind == "lstm":
        keep, a_i, a_f, a_g, shown, a_o = at
        i, o, f, g = np.split(row + matmul(h, _swapped(x.r)), 4, -1)
        c = keep * c + a_i * i + a_f * f + a_g * g
        return shown * c + a_o * o, c
    keep, a_u, a_n, a_r, reset = at
    if x.kind == "gru after":
        back = matmul(h, _swapped(x.r))
        u, r = np.split(row[..., : 2 * size] + back[..., : 2 * size], 2, -1)
        n = row[..., 2 * size :] + reset * back[..., 2 * size :] + a_r * r
    else:
        gates = row[..., : 2 * size] + matmul(h, _swapped(x.r[..., : 2 * size, :]))
        u, r = np.split(gates, 2, -1)
        n = row[..., 2 * size :] + matmul(reset * h + a_r * r, _swapped(x.r[..., 2 * size :, :]))
    return keep * h + a_u * u + a_n * n, None


def _pulled(x: Recurrence, t: int, flow: Array, c: Array | None) -> tuple[Array, Array, Any]:
    """Cotangents of what goes into step t, and of h and c before it."""
    size, at = x.r.shape[-1], [k[..., t, :, :] for k in x.coefficients]
    if x.kind == "rnn":
        z = at[0] * flow
        return z, matmul(z, x.r), None
    if x.kind == "lstm":
        keep, a_i, a_f, a_g, shown, a_o = at
        c = c + shown * flow
        z = _joined(a_i * c, a_o * flow, a_f * c, a_g * c)
        return z, matmul(z, x.r), keep * c
    keep, a_u, a_n, a_r, reset = at
    u, n = a_u * flow, a_n * flow
    if x.kind == "gru after":
        r = a_r * n
        back = matmul(_joined(u, r, reset * n), x.r)
        return _joined(u, r, n), keep * flow + back, None
    back = matmul(n, x.r[..., 2 * size :, :])
    r = a_r * back
    before = keep * flow + reset * back + matmul(_joined(u, r), x.r[..., : 2 * size, :])
    return _joined(u, r, n), before, None


def _joined(*parts: Array) -> Array:
    return np.concatenate(np.broadcast_arrays(*parts), -1)


def _fits(x: Recurrence, arrays: Sequence[Array | None]) -> bool:
    """True if the native kernels run it: of one real dtype, all numbers of the point finite and the same for all probes."""
    given = (a for a in arrays if a is not None)
    return native() and x.point is not None and all(a.dtype == x.r.dtype and a.ndim <= 4 for a in given)


def _natively(
    x: Recurrence, rows: Array, index: Array, h: Array, c: Array | None, *, all_steps: bool
) -> list[Array | None]:
    """The same as `push`."""
    steps, batch, size = x.coefficients[0].shape
    ys = np.zeros((len(index), steps, batch, size), x.r.dtype) if all_steps else None
    ends = [None if s is None else np.empty((len(index), batch, size), x.r.dtype) for s in (h, c)]
    given = [
        *(_stacked(s, len(index)) for s in (h, c)),
        np.ascontiguousarray(rows),
        np.ascontiguousarray(index, np.int32),
    ]
    _run(x, len(index), True, given, [*ends, ys])
    return [ys, *ends]


def _natively_back(x: Recurrence, ys: Array | None, h: Array, c: Array | None) -> list[Array | None]:
    """The same as `pull`."""
    leads = [s.shape[: s.ndim - rank] for s, rank in ((ys, 3), (h, 2), (c, 2)) if s is not None]
    lead = np.broadcast_shapes(*leads)
    count = lead[0] if lead else 1
    steps, batch, size = x.coefficients[0].shape
    sent = np.zeros((count, steps, batch, x.gates * size), x.r.dtype)
    ends = [None if s is None else np.empty((count, batch, size), x.r.dtype) for s in (h, c)]
    _run(x, count, False, [_stacked(h, count), _stacked(c, count), _stacked(ys, count, 3)], [*ends, sent])
    return [y if y is None or lead else y[0] for y in (sent, *ends)]


def _stacked(x: Array | None, count: int, rank: int = 2) -> Array | None:
    """A stack of so many probes, in order."""
    return None if x is None else np.ascontiguousarray(np.broadcast_to(x, (count, *x.shape[x.ndim - rank :])))


def _run(x: Recurrence, count: int, forth: bool, given: list[Array | None], made: list[Array | None]) -> None:
    counts = None if x.counts is None else np.ascontiguousarray(x.counts, np.int64)
    sizes, number = [count, *x.coefficients[0].shape], list(KINDS).index(x.kind)
    kernels.recurrence(number, forth, x.backwards, sizes, x.point, counts, given, made, _DTYPES[x.r.dtype])
