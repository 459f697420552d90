"""The proof of a file: its graph gives the model's own derivatives at sizes, values and draws that it was not made from.

The graph follows from what several runs had in common.  At very small sizes dimensions of 1 may broadcast where larger
ones have to be equal; and where shapes follow from values, what all runs had in common may be chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.errors import GradcheckError, shown
from gradcheck_cli.export.gradient_graph import Written
from gradcheck_cli.export.traced import at, to_fix
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.model import Model
from gradcheck_cli.points.dims import sizes_in
from gradcheck_cli.settings import Settings

_ROUNDING = 1e-4  # of the largest entry: wrong formulas differ by far more, sums in another order by far less
# Other values of inputs: all of one sign, which masks take or leave as a whole, and many that are equal.
_OTHERWISE: tuple[tuple[Callable[[Array], Array], Callable[[Array], Array]], ...] = (
    (np.abs, np.ones_like),
    (lambda x: -np.abs(x), np.zeros_like),
    (np.round, np.logical_not),
    (lambda x: x, np.ones_like),
    (lambda x: x, np.zeros_like),
)


def require_right(model: Model, made: Written, feeds: Mapping[str, Any]) -> None:
    """Raises UnsupportedError where shapes follow from values, and the graph is wrong at other values."""
    names = [n for n in made.graph.free_inputs if n in model.graph.inputs and n not in feeds]
    if not (made.by_values and names):
        return
    settings = at(Settings(extra_feed_dict=feeds), made.trials.runs[0], made.trials.counted)
    try:
        here = model.point(made.graph.outputs, settings).tape.named
    except GradcheckError:  # sizes at which the model does not run
        return
    for other in _OTHERWISE:
        given = {n: _changed(here[n].value, *other) for n in names if n in here}
        there = replace(settings, extra_feed_dict={**settings.extra_feed_dict, **given})
        try:
            tape = model.tape(made.graph.outputs, there)
        except GradcheckError:  # values at which it does not
            continue
        if not _agree(model, made, tape):
            raise to_fix("shapes follow from values, in a way that a file does not hold for every value", names)


def _changed(x: Array, number: Callable[[Array], Array], flag: Callable[[Array], Array]) -> Array:
    """Other values of an input; those of integers, which may be places, stay."""
    return np.asarray(number(x) if is_inexact(x.dtype) else flag(x) if x.dtype == np.bool_ else x, x.dtype)


def objections(model: Model, made: Written, feeds: Mapping[str, Any]) -> Iterator[str]:
    """Notes on sizes at which the file computes something else than the model, which is run in float64."""
    fixed = {**model.dims, **made.trials.fixed}
    trials, ones = made.trials, dict.fromkeys(made.open_dims, 1)
    broadcast = [{**fixed, **dict.fromkeys({*trials.loose, *trials.loose.values()}, 4), d: 1} for d in trials.loose]
    for dims in (fixed, {**fixed, **ones}, *broadcast) if made.open_dims else ():
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
    """True if the graph of the file gives the values on the tape, from the same inputs."""
    given = {n: tape.named[n].value for n in made.graph.inputs if n in tape.named}
    if {*made.graph.free_inputs} - {*given}:
        return True  # a sequence or a seed is among them: there is nothing to compare with
    given.update(_draws(model, made, tape))
    try:
        found = trace(made.graph, given, ops=model.ops, targets=made.graph.outputs)
    except GradcheckError:
        return False
    both = [
        (tape.named[n].value, found.named[n].value) for n in made.graph.outputs if n in found.named and n in tape.named
    ]
    return all(w.shape == f.shape and (w.dtype.kind != "f" or _near(w, f)) for w, f in both)


def _draws(model: Model, made: Written, tape: Tape) -> Iterator[tuple[str, Array]]:
    """The draws of all nodes on the tape, by name: another run draws others."""
    for node in made.graph.nodes:
        op = model.ops.get(node.key)
        for name in node.outputs if op is not None and "rng" in op.signature.supplied else ():
            own = tape.named[name].name if name in tape.named else name
            if own in tape.values:
                yield name, tape.values[own]


def _near(wanted: Array, found: Array) -> bool:
    """True for arrays that are equal up to rounding, wherever the wanted values are finite."""
    finite = np.isfinite(wanted)
    allowed = _ROUNDING * np.max(np.abs(wanted[finite]), initial=0)
    return np.allclose(found[finite], wanted[finite], rtol=0, atol=allowed)
