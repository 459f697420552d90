"""The graph of a file held against the model's own derivatives at sizes that it was not made from.

What a file does at other sizes follows from what runs had in common.  Tensors whose sizes agree in every run need not
agree at others: at very small ones dimensions of 1 broadcast where larger ones would have to be equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.errors import GradcheckError, shown
from gradcheck_cli.export.gradient_graph import Written
from gradcheck_cli.graph import Array
from gradcheck_cli.model import Model
from gradcheck_cli.points.dims import sizes_in
from gradcheck_cli.settings import Settings

_ROUNDING = 1e-4  # of the largest entry; formulas that differ are far beyond, sums in another order far below


def objections(model: Model, made: Written, feeds: Mapping[str, Any]) -> Iterator[str]:
    """Sizes at which the file computes something else, as notes; the model is run in float64 at values of its own."""
    fixed = {**model.dims, **made.trials.fixed}
    ones = dict.fromkeys(made.open_dims, 1)
    for dims in (fixed, {**fixed, **ones}) if made.open_dims else ():
        settings = Settings(dims=dims, extra_feed_dict=feeds)
        try:
            tape = model.tape(made.graph.outputs, settings)
        except GradcheckError:  # sizes at which the model does not run
            continue
        if not _agree(model, made, tape):
            there = sizes_in(model.graph, {n: tape.named[n].shape for n in model.graph.inputs if n in tape.named})
            sizes = ", ".join(f"{shown(d)}={there.get(d, 1)}" for d in made.open_dims)
            yield f"not right at {sizes}, where shapes follow otherwise than at larger sizes"
            return


def _agree(model: Model, made: Written, tape: Tape) -> bool:
    """The graph of the file gives what the tape has, from the same inputs."""
    given = {n: tape.named[n].value for n in made.graph.inputs if n in tape.named}
    if {*made.graph.free_inputs} - {*given}:
        return True  # a sequence or a seed is among them: nothing to hold against
    try:
        found = trace(made.graph, given, ops=model.ops, targets=made.graph.outputs)
    except GradcheckError:
        return False
    both = [
        (tape.named[n].value, found.named[n].value) for n in made.graph.outputs if n in found.named and n in tape.named
    ]
    return all(w.shape == f.shape and (w.dtype.kind != "f" or _near(w, f)) for w, f in both)


def _near(wanted: Array, found: Array) -> bool:
    """Equal but for rounding, wherever there is a number."""
    with np.errstate(all="ignore"):
        off = np.abs(wanted - found)
        allowed = _ROUNDING * np.max(np.abs(wanted), initial=0, where=np.isfinite(wanted))
    return bool(np.all((off <= allowed) | ~np.isfinite(wanted)))
