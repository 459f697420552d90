"""Parts of a program that work line by line: stacks of tangents are multiplied by a Jacobian for each line.

A feed-forward layer with the normalizations around it makes each token of its result from the same token of what it
reads.  As many probes as a line has entries, of which each moves one entry of every line, tell the Jacobians of all
lines; to multiply every other probe by these takes far less than all steps of the part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock

import numpy as np
from msgspec import Struct

from gradcheck_cli import native
from gradcheck_cli.graph import Array


class LinePart(Struct, frozen=True):
    """The steps of a program from position `start` until before `stop`.

    Of all tensors that a probe reaches they take `read` alone, and of their results later steps take `made` alone.  Each
    line along the last axis of `made` follows from the line of `read` in the same place.
    """

    start: int
    stop: int
    read: str
    made: str


def pieces(start: int, stop: int, parts: Sequence[LinePart]) -> Iterator[tuple[range, LinePart | None]]:
    """Positions from `start` on in order: those of each part that lies behind it, and those between parts."""
    for part in parts:
        if part.start >= start:
            if start < part.start:
                yield range(start, part.start), None
            yield range(part.start, part.stop), part
            start = part.stop
    if start < stop:
        yield range(start, stop), None


class ByLines:
    """A part that is linear in the stacks `(P, *x.shape)` which it reads: the Jacobians of its lines are found once.

    `run` runs its steps, as is done for all stacks where those are not finite.
    """

    def __init__(self, x: Array, run: Callable[[Array], Array]) -> None:
        self.x, self.run = x, run
        self._finding = Lock()
        self._found: Array | None = None  # `(lines, n, m)`
        self._finite = True

    def __call__(self, stack: Array) -> Array:
        with self._finding:
            if self._found is None and self._finite:
                self._find(len(stack))
        return self.run(stack) if self._found is None else native.along_lines(stack, self._found, -1)

    def _find(self, probes: int) -> None:
        """Finds the Jacobians by some probes at once: so many have room."""
        unit = units(self.x, -1)
        made = [np.asarray(self.run(unit[i : i + probes])) for i in range(0, len(unit), probes)]
        found = np.ascontiguousarray(of_lines(np.concatenate(made), -1))
        self._finite = bool(np.isfinite(found).all())
        self._found = found if self._finite else None


def units(x: Array, axis: int) -> Array:
    """Tangents `(n, *x.shape)`: each of them moves one entry of every line along an axis."""
    unit = np.eye(x.shape[axis], dtype=x.dtype).reshape(-1, *(1,) * (x.ndim - 1), x.shape[axis])
    whole = np.broadcast_to(unit, (len(unit), *np.moveaxis(x, axis, -1).shape))
    return np.moveaxis(whole, -1, axis)


def of_lines(made: Array, axis: int) -> Array:
    """The Jacobians `(lines, n, m)` of all lines, from what becomes of `units`: m entries of each line."""
    moved = np.moveaxis(made, axis, -1)
    return moved.reshape(len(made), -1, moved.shape[-1]).swapaxes(0, 1)
