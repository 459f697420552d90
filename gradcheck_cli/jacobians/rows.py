"""Some rows of a numerical Jacobian, with what they can have wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.stencil import Estimate


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a numerical Jacobian.

    `estimate` has shape `(rows, y_size)`; `crossed` names the steps of the tape at which even the smallest
    perturbation of a row crossed a branch: step -> `(rows,)`.
    """

    estimate: Estimate
    crossed: dict[int, Array]

    def replaced(self, at: Array, by: Rows) -> Rows:
        """The rows with others in their places `at`."""
        olds = self.estimate.value, self.estimate.error, self.estimate.rounding
        news = by.estimate.value, by.estimate.error, by.estimate.rounding
        parts = [np.array(np.broadcast_to(old, olds[0].shape)) for old in olds]
        for part, new in zip(parts, news, strict=True):
            part[at] = new
        crossed = {step: np.zeros(len(parts[0]), bool) for step in {*self.crossed, *by.crossed}}
        for step, changed in crossed.items():
            changed[:] = self.crossed.get(step, False)
            changed[at] = by.crossed.get(step, False)
        return Rows(Estimate(*parts), crossed)

    def bettered(self, at: Array, by: Rows) -> Rows:
        """The rows with those in places `at` replaced by others, entry by entry, where these have the smaller error."""
        olds = self.estimate.value, self.estimate.error, self.estimate.rounding
        news = by.estimate.value, by.estimate.error, by.estimate.rounding
        better, parts = by.estimate.error < self.estimate.error[at], [np.array(old) for old in olds]
        for part, new in zip(parts, news, strict=True):
            part[at] = np.where(better, new, part[at])
        crossed = {step: np.zeros(len(parts[0]), bool) for step in by.crossed}
        for step, changed in by.crossed.items():
            crossed[step][at] = changed
        return Rows(Estimate(*parts), crossed)
