"""Which nodes on the way from x to y are layers, and how the flow of a backward pass changes from one to the next.

A layer has weights, or bends what goes through it.  The flow at a level is the largest cotangent among the outputs of
its layers and the tensors that lead past it, so that a branch which carries little does not stand for its trunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

from gradcheck_cli.autodiff.backward import Unit
from gradcheck_cli.autodiff.step import Place
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.graph import is_inexact
from gradcheck_cli.op.batching import elementwise
from gradcheck_cli.results.measures import Jump, Spot

Key = tuple[int, str, int]  # of a node: which one of the model it is or lies in, inside of which graph, which one there


def key_of(place: Place) -> Key:
    """What tells nodes of the model apart; a node of a loop's body is one, however often it runs."""
    return place.origin, place.inside, place.index


def spot_of(place: Place, op: str, name: str) -> Spot:
    """A node as records name it."""
    return Spot(place.index, place.op or op, place.label or name, place.inside)


@dataclass(slots=True)
class Draft:
    """A node of the model as the units that it is made of: which tensors it gives, which parameters it reads.

    One that is constant at the sizes it has lets nothing through: a Softmax of single numbers.
    """

    spot: Spot
    outputs: list[str] = field(default_factory=list)
    parameters: set[str] = field(default_factory=set)
    weighted: bool = False
    bends: bool = False
    constant: bool = False


def drafts(tape: Tape, units: Iterable[Unit], data: AbstractSet[str]) -> dict[Key, Draft]:
    """The nodes that units come from, in order; `data` is what depends on the model's inputs, parameters do not."""
    found: dict[Key, Draft] = {}
    for unit in units:
        draft = found.setdefault(key_of(unit.place), Draft(spot_of(unit.place, unit.op.name, unit.label)))
        numbers = [n for n in dict.fromkeys(unit.operands) if n and is_inexact(tape.values.like(n).dtype)]
        parameters = [n for n in numbers if n not in data and tape.values.like(n).size > 1]
        draft.parameters.update(parameters)
        mixes = (unit.op.lift is not elementwise and unit.op.linear != "each") or unit.op.name == "Mul"
        draft.weighted |= mixes and bool(parameters) and len(numbers) > len(parameters)
        draft.bends |= _bends(unit, data)
        draft.constant |= _constant(tape, unit)
        if _alone(unit):
            draft.outputs += unit.outputs
        else:
            draft.outputs = [*unit.outputs]  # of what a node is composed of, the last
    return {key: draft for key, draft in found.items() if key[0] >= 0}


def _constant(tape: Tape, unit: Unit) -> bool:
    squashes = unit.op.name in ("Softmax", "LogSoftmax")
    return squashes and tape.values[unit.outputs[0]].shape[unit.metadata["axis"]] == 1


def _alone(unit: Unit) -> bool:
    """It is a whole node of a body that runs many times."""
    return bool(unit.place.inside) and unit.op.name == unit.place.op


def _bends(unit: Unit, data: AbstractSet[str]) -> bool:
    """It is not linear in the data that it reads."""
    if unit.op.linear == "each":
        return False
    if unit.op.name == "Where":
        return unit.operands[0] in data
    if unit.op.name in ("Mul", "Div"):  # of data by a constant
        return unit.operands[1] in data and (unit.op.name == "Div" or unit.operands[0] in data)
    groups = [[i for i in group if i < len(unit.operands)] for group in unit.op.linear]
    return not groups or any(sum(unit.operands[i] in data for i in group) > 1 for group in groups)


@dataclass(frozen=True, slots=True)
class Curve:
    """The flow at levels 1 to n of some layers, from x on, and the node whose output is the largest at each."""

    flow: Sequence[float]
    keys: Sequence[Key | None]

    @property
    def ratio(self) -> float | None:
        """The flow at the first level over that at the last."""
        if len(self.flow) < 2 or not all(map(math.isfinite, (self.flow[0], self.flow[-1]))):
            return None
        return self.flow[0] / self.flow[-1] if self.flow[-1] else 0.0

    def steepest(self, spots: Mapping[Key, Spot]) -> Jump | None:
        """The node at whose level the flow changes most, backwards."""
        steps = [(below, above, key) for below, above, key in zip(self.flow, self.flow[1:], self.keys[1:], strict=False)
                 if above and key is not None and math.isfinite(below + above)]  # fmt: skip
        if not steps:
            return None
        below, above, key = max(steps, key=lambda s: abs(math.log(s[0] / s[1])) if s[0] / s[1] else math.inf)
        return Jump(below / above, spots[key])


def curve(units: Sequence[Unit], x: str, layers: AbstractSet[Key], norms: Mapping[str, float]) -> Curve:
    """The flow along some layers on the way from x; `norms` are those of the cotangents of all tensors."""
    levels = _levels(units, x, layers)
    top = max((level for level, _ in levels.values()), default=0)
    flow, keys = np.zeros(top + 1), [None] * (top + 1)  # type: tuple[np.ndarray, list[Key | None]]
    reach: dict[str, int] = {}
    for unit in units:
        for name in (n for n in unit.outputs if n in levels and n in norms):
            level, key = levels[name][0], key_of(unit.place)
            if key in layers and norms[name] >= flow[level]:
                flow[level], keys[level] = norms[name], key
        highest = max((levels[n][0] for n in unit.outputs if n in levels), default=0)
        reach.update((n, max(highest, reach.get(n, 0))) for n in unit.operands if n in levels)
    for name, highest in reach.items():
        past = slice(levels[name][0] + 1, highest)
        np.maximum(flow[past], norms.get(name, 0.0), out=flow[past])
    return Curve(flow[1:].tolist(), keys[1:])


def _levels(units: Sequence[Unit], x: str, layers: AbstractSet[Key]) -> dict[str, tuple[int, Key | None]]:
    """Tensors reached from x: how many layers lie on the longest way there, and the last of them."""
    levels: dict[str, tuple[int, Key | None]] = {x: (0, None)}
    for unit in units:
        read = [levels[n] for n in unit.operands if n in levels]
        if not read:
            continue
        key = key_of(unit.place)
        if key in layers:
            here: tuple[int, Key | None] = (max(level + (last != key) for level, last in read), key)
        else:
            here = max(read, key=lambda entry: entry[0])
        levels.update((n, here) for n in unit.outputs if n and n not in levels)
    return levels
