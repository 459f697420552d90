"""Directions in which a tensor is probed, and tensors as vectors of reals: of a complex one the real parts come first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian import spread as units
from gradcheck_cli.jacobian.spread import Room, reach
from gradcheck_cli.op.boxes import Stack
from gradcheck_cli.verdict.differences import representable, rms, scales


class Directions:
    """Directions in which x is probed, one a row: unit vectors of some of its reals, or given ones `(rows, x_size)`."""

    def __init__(self, here: Array, chosen: Sequence[int] | Array) -> None:
        self.here = flat(here)
        self.given = chosen if isinstance(chosen, np.ndarray) and chosen.ndim == 2 else None
        self.rows = np.arange(len(chosen)) if self.given is not None else np.asarray(chosen, np.int64)
        self.count = len(self.rows)
        self.weighed = False  # given ones are in units of each entry's size
        self.tied = False  # given ones keep the ties of the point

    def block(self, piece: range) -> Array:
        """Some of the directions, `(len(piece), x_size)`."""
        if self.given is not None:
            return self.given[piece.start : piece.stop]
        unit = np.zeros((len(piece), self.here.size))
        unit[np.arange(len(piece)), self.rows[piece.start : piece.stop]] = 1
        return unit

    def entries(self, piece: range) -> Array | None:
        """The real of x that moves in each of some directions; None where several do."""
        return None if self.given is not None else self.rows[piece.start : piece.stop]

    def tangents(self, piece: range, x: Array, room: Room | None) -> Stack:
        """Some of the directions as tangents of x; a box stack of single entries if there is room for them."""
        entries = self.entries(piece)
        if entries is None or room is None:
            return shaped(self.block(piece), x)
        return units.tangents(x, entries, room)

    def beside(self, piece: range, x: Array, offsets: Array, room: Room | None) -> Stack:
        """x moved by offsets, one for each of some directions."""
        entries = self.entries(piece)
        if entries is not None and room is not None:
            return units.values(x, entries, offsets, room)
        moved = self.here + offsets[:, None] * self.block(piece)
        return shaped(moved.astype(self.here.dtype, copy=False), x)

    def room(self, program: Program, budget: Budget, doubled: int = 1) -> tuple[int, Room | None]:
        """Bytes that one of them counts as, and the room that box stacks have; see `units`."""
        whole, x = doubled * program.bytes_per_probe(), program.tape.values[program.probes[0]]
        narrow = self.entries(range(0)) is not None
        room = units.wanted_room(program, x, self.count, whole, budget) if narrow else None
        if room is None:
            return whole, None
        return units.bytes_each(
            whole, room, reach(program).entries + program.tape.values[program.outputs[0]].size
        ), room

    def slopes(self, cotangents: Array) -> Array:
        """Derivatives along the directions, `(P, rows)`, from cotangents of x `(P, x_size)`."""
        return cotangents[:, self.rows] if self.given is None else cotangents @ self.given.T

    @property
    def sizes(self) -> Array | None:
        """Magnitude of the real of x that moves in each direction, `(rows,)`; None where several do."""
        return None if self.given is not None else np.abs(self.here)[self.rows]

    def part(self, rows: Array) -> Directions:
        """Some of the directions."""
        return Directions(self.here, self.rows[rows] if self.given is None else self.given[rows])

    def representable(self, h: Array | float, side: float = 1.0) -> Array:
        """Steps h times the scale of x along each direction, (rows,); along a unit vector x + side * step is exact."""
        if self.given is None:
            return self._exact(scales(self.here)[self.rows] * h, side)
        return np.full(self.count, h * self._typical)

    @cached_property
    def _typical(self) -> float:
        """The root mean square of the scales of all entries that move, 1 of nothing."""
        here = self.here if self.given is None else self.here[self.given.any(axis=0)]
        return rms(scales(here)) if here.size else 1.0

    def fixed(self, delta: float) -> Array:
        """The same step for every direction, (rows,), made exact along unit vectors."""
        steps = np.full(self.count, float(delta))
        return steps if self.given is not None else self._exact(steps)

    def _exact(self, steps: Array, side: float = 1.0) -> Array:
        here = self.here[self.rows]
        exact = side * representable(here, (side * steps).astype(here.dtype)).astype(np.float64)
        return np.where(exact > 0, exact, steps)


class Joined(Directions):
    """Several kinds of directions of one x, one after the other."""

    def __init__(self, parts: Sequence[Directions]) -> None:
        self.here, self.parts, self.count = parts[0].here, parts, sum(part.count for part in parts)
        self.weighed = self.tied = False

    def block(self, piece: range) -> Array:
        """Some of the directions, `(len(piece), x_size)`."""
        return np.concatenate([part.block(mine) for part, mine in self._shares(piece)])

    def entries(self, piece: range) -> Array | None:
        """The real of x that moves in each of some directions; None where several do."""
        found = [entries for part, mine in self._shares(piece) if (entries := part.entries(mine)) is not None]
        return np.concatenate(found) if len(found) == len(self.parts) else None

    def _shares(self, piece: range) -> Iterator[tuple[Directions, range]]:
        """The share of a piece that belongs to each kind."""
        start = 0
        for part in self.parts:
            yield part, range(max(piece.start - start, 0), max(min(piece.stop - start, part.count), 0))
            start += part.count


def reals(x: Array) -> int:
    """Number of reals that a tensor counts as."""
    return x.size * (2 if x.dtype.kind == "c" else 1)


def flat(x: Array) -> Array:
    """A tensor as a vector of reals: real parts, then imaginary parts."""
    flat = x.reshape(-1)
    return np.concatenate([flat.real, flat.imag]) if x.dtype.kind == "c" else flat


def flat_stack(stack: Array) -> Array:
    flat = stack.reshape(stack.shape[0], -1) if stack.size else stack.reshape(stack.shape[0], 0)
    flat = np.concatenate([flat.real, flat.imag], axis=1) if stack.dtype.kind == "c" else flat
    return flat.astype(np.result_type(flat.dtype, np.float64), copy=False)


def shaped(stack: Array, like: Array) -> Array:
    """The inverse of `_flat_stack` for tensors like `like`."""
    if like.dtype.kind == "c":
        stack = stack[:, : like.size] + 1j * stack[:, like.size :]
    return stack.reshape(len(stack), *like.shape)
