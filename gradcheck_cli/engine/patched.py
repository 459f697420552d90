"""How a step of a tape carries patches: values that differ from those of one run in a box for each probe.

That run is the one at the point, or, for patches without a base, one in which all is zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.step import Step
from gradcheck_cli.engine.jvp import Pushforward, lifted
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.op.box_rules import VALUES
from gradcheck_cli.op.boxes import Patch, Stack, dense, filled, in_any_entry, part, windows
from gradcheck_cli.op.restricted import Restricted


def carries(step: Step, live: Mapping[str, Stack]) -> bool:
    """A patch is among what the step reads."""
    return any(isinstance(live.get(n), Patch) for n in step.operands)


def whole(step: Step, live: Mapping[str, Stack]) -> dict[str, Array]:
    """What a step reads of the live stacks, made whole."""
    return {n: dense(live[n]) for n in step.node.inputs if n in live}


def pieces(live: Mapping[str, Stack], count: int, more: float = 1.0) -> Iterator[tuple[int, dict[str, Any]]]:
    """The live stacks, made whole, in parts of as many probes as may be so at once, with their number.

    These are `more` times as many as patches know: what is left to be computed is smaller.
    """
    most = min([count, *(max(1, int(x.most * more)) for x in live.values() if isinstance(x, Patch))])
    for start in range(0, count, most):
        piece = range(start, min(start + most, count))
        yield len(piece), {n: filled(part(x, piece)) for n, x in live.items()}


def through(pushforward: Pushforward, step: Step, live: Mapping[str, Stack], *, rounded: bool) -> Any:
    """Results of a step, for stacks of which some are patches; None where it has to run on whole ones.

    A linear step adds to its result what it makes of the moves: that rounds no worse than computing all anew.
    `rounded` says that rounding is measured, to which an operator may have to be looked at as a whole.
    """
    stacks = {n: live[n] for n in step.operands if n in live}
    patches = [x for x in stacks.values() if isinstance(x, Patch)]
    if rounded and step.op.backward_stable:
        return None
    if step.op.way is None or len(patches) < len(stacks) or not live.keys().isdisjoint(step.statics):
        return None
    bases = None if any(p.base is None for p in patches) else pushforward.tape.values
    if step.op.linear and step.op.way not in VALUES:
        moves = {n: p.moves() for n, p in stacks.items() if isinstance(p, Patch)}
        return _moved_box(pushforward, step, moves, bases)
    operands = [stacks.get(n, pushforward.tape.values[n]) if n else None for n in step.operands]
    probed = [n in stacks for n in step.operands]
    known = [] if bases is None else [bases[n] if n else None for n in step.node.outputs]
    return lifted(step, step.op.forward, operands, probed, pushforward.shapes(step), known)


def _moved_box(
    pushforward: Pushforward, step: Step, moves: Mapping[str, Any], bases: Mapping[str, Array] | None
) -> Any:
    """What a linear step makes of moves, added to its result; None where it is not linear in all of them together."""
    groups = [(i,) for i in range(len(step.operands))] if step.op.linear == "each" else step.op.linear
    live = [[step.operands[i] in moves for i in group if i < len(step.operands)] for group in groups]
    held = [*step.operands, *step.node.outputs]
    if step.op.many or any(sum(found) > 1 for found in live) or sum(map(sum, live)) < len(moves):
        return None
    if not pushforward.finite(held):
        return None
    made = pushforward.linear(step, moves)
    if bases is None:
        return made
    base = bases[step.node.outputs[0]]
    return made.upon(base) if isinstance(made, Patch) else base + made


def deviating(pushforward: Pushforward, step: Step, live: Mapping[str, Stack], results: Sequence[Stack]) -> Array:
    """The probes, in order, that may decide something otherwise than at the point."""
    values = pushforward.tape.values
    found = [np.zeros(0, np.int64)]
    for name, result in zip(step.node.outputs, results, strict=False):
        if name and not is_inexact(values[name].dtype):
            found.append(_other(result, values[name]))
    if step.op.branch is not None:
        found.append(_branching(pushforward, step, live))
    return reduce(np.union1d, found)


def _other(result: Stack, here: Array) -> Array:
    """The probes in which a result is not as at the point."""
    if not isinstance(result, Patch):
        return np.flatnonzero(in_any_entry(result != here))
    return result.probes[in_any_entry(result.values != windows(here, result.box, len(result.probes)))]


def _branching(pushforward: Pushforward, step: Step, live: Mapping[str, Stack]) -> Array:
    """The probes that take another branch; all where that is not to be seen in their boxes."""
    operands = [live.get(n, pushforward.tape.values[n]) if n else None for n in step.operands]
    probed, differing = [live[n] for n in step.operands if n in live], None
    plain = step.op.way is not None and pushforward.finite(step.operands)  # NaN is not even like itself
    if plain and all(isinstance(x, Patch) and x.base is not None for x in probed):
        assert step.op.way is not None
        assert step.op.branch is not None
        way = Restricted(step.op.way, step.op.branch, step.op.lift, step.metadata, pushforward.shapes(step))
        differing = way.differing(operands)
    return np.arange(probed[0].shape[0]) if differing is None else differing
