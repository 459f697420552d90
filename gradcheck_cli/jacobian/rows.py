"""Some rows of a numerical Jacobian, with what they can have wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.verdict.differences import Estimate


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a numerical Jacobian.

    `estimate` has shape `(rows, y_size)`; `crossed` names the steps of the tape at which even the smallest
    perturbation of a row crossed a branch: step -> `(rows,)`.
    """

    estimate: Estimate
    crossed: dict[int, Array]

    @staticmethod
    def joined(parts: Iterable[Rows], count: int) -> Rows:
        """Several as one, of so many rows; no two of them have to exist at once."""
        start, crossed, whole = 0, dict[int, Array](), list[Array]()
        for part in parts:
            rows = slice(start, start + len(part.estimate.value))
            if rows.stop - start == count:
                return part
            whole = whole or [np.empty((count, part.estimate.value.shape[1])) for _ in range(3)]
            for all_, some in zip(whole, _parts(part.estimate), strict=True):
                all_[rows] = some
            for step, changed in part.crossed.items():
                crossed.setdefault(step, np.zeros(count, bool))[rows] = changed
            start = rows.stop
        return Rows(Estimate(*whole), crossed)

    def replaced(self, at: Array, by: Rows) -> Rows:
        """The rows with others in their places `at`."""
        parts = [np.array(part) for part in _parts(self.estimate)]
        for part, new in zip(parts, _parts(by.estimate), strict=True):
            part[at] = new
        crossed = {step: np.zeros(len(parts[0]), bool) for step in {*self.crossed, *by.crossed}}
        for step, changed in crossed.items():
            changed[:] = self.crossed.get(step, False)
            changed[at] = by.crossed.get(step, False)
        return Rows(Estimate(*parts), crossed)

    def bettered(self, at: Array, by: Rows) -> Rows:
        """The rows with those in places `at` replaced by others, entry by entry, where these have the smaller error."""
        better = by.estimate.error < self.estimate.error[at]
        pairs = zip(_parts(self.estimate), _parts(by.estimate), strict=True)
        mixed = [np.where(better, new, old[at]) for old, new in pairs]
        return self.replaced(at, Rows(Estimate(*mixed), by.crossed))


def _parts(estimate: Estimate) -> tuple[Array, ...]:
    """Value, error and rounding, each of the shape of the value."""
    return tuple(
        np.broadcast_to(part, estimate.value.shape) for part in (estimate.value, estimate.error, estimate.rounding)
    )
