"""Layers between x and y: the norm of the gradient from one to the next, and units that no longer learn.

A layer has weights or is not linear.  The flow at a level is the largest cotangent among the outputs of its layers and
the tensors that lead past it, so that a branch with small cotangents does not stand for the trunk.

A unit is a channel of an image, or a feature of a vector, judged by all its values over the batch, the positions and
the points.  A dead unit's output is always on the flat part at 0 of Relu, Clip at 0, ThresholdedRelu, HardSigmoid or
HardSwish.  A saturated unit's local slope of Sigmoid, Tanh, HardSigmoid or of a bounded Clip is below SATURATED_SLOPE;
for Softmax the largest slope y (1 - y) among the entries that share a sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from msgspec import Struct, field

from gradcheck_cli.autodiff.reach import Makers
from gradcheck_cli.autodiff.tape import Step, Tape, Unit
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.op import Op
from gradcheck_cli.op.batching import elementwise, linearity
from gradcheck_cli.results.measures import SAMPLES, SATURATED_SLOPE, Jump, Spot

Key = tuple[int, int, str]  # see `NodePlace.key`
_HOPS = 16  # elementwise steps, at most, between an activation and its layer


class LayerDraft(Struct):
    """A node of the model, from its units: its outputs, and the parameters it reads.

    A node that is constant at its sizes, such as a Softmax of single numbers, lets no gradient through.
    """

    spot: Spot
    outputs: list[str] = field(default_factory=list)
    parameters: set[str] = field(default_factory=set)
    weighted: bool = False
    bends: bool = False
    constant: bool = False
    squashes: bool = False


def drafts(tape: Tape, units: Iterable[Unit], data: AbstractSet[str]) -> dict[Key, LayerDraft]:
    """The nodes that units come from, in order; `data` are tensors that depend on the model's inputs."""
    found: dict[Key, LayerDraft] = {}
    for unit in units:
        draft = found.setdefault(unit.place.key, LayerDraft(spot_of(unit)))
        numbers = [n for n in dict.fromkeys(unit.operands) if n and is_inexact(tape.values.like(n).dtype)]
        parameters = [n for n in numbers if n not in data and tape.values.like(n).size > 1]
        draft.parameters.update(parameters)
        draft.weighted |= unit.op.is_layer and bool(parameters) and len(numbers) > len(parameters)
        draft.bends |= _bends(unit, data)
        axis = unit.metadata.get("axis") if unit.op.squashes else None
        draft.constant |= axis is not None and tape.values[unit.outputs[0]].shape[axis] == 1
        draft.squashes |= tape.operator_at(unit.place, unit.op).squashes
        draft.outputs = [*(draft.outputs if _is_step(unit) else ()), *unit.outputs]  # of the parts of a node, the last
    return {key: draft for key, draft in found.items() if key[0] >= 0}


def spot_of(part: Unit | Step) -> Spot:
    """The node that a part of a tape comes from, as records name it."""
    place = part.place
    return Spot(place.index, place.op or part.op.name, place.label or part.label, place.inside)


def _is_step(unit: Unit) -> bool:
    """True for a node of a body as a whole, which a loop runs once in each of its steps."""
    return bool(unit.place.inside) and unit.op.name == unit.place.op


def _bends(unit: Unit, data: AbstractSet[str]) -> bool:
    """True for a unit that is not linear in the data that it reads."""
    linear = linearity(unit.op.linear, unit.metadata)
    if linear == "each":
        return False
    if unit.op.bends:
        return any(all(unit.operands[i] in data for i in group) for group in unit.op.bends)
    groups = [[i for i in group if i < len(unit.operands)] for group in linear]
    return not groups or any(sum(unit.operands[i] in data for i in group) > 1 for group in groups)


class FlowCurve(Struct, frozen=True):
    """The flow at levels 1 to n of some layers, from x on, and the node with the largest cotangent at each."""

    flow: Sequence[float]
    keys: Sequence[Key | None]

    @property
    def ratio(self) -> float | None:
        """The flow at the first level over that at the last."""
        if len(self.flow) < 2 or not all(map(math.isfinite, (self.flow[0], self.flow[-1]))):
            return None
        return self.flow[0] / self.flow[-1] if self.flow[-1] else 0.0

    def steepest(self, spots: Mapping[Key, Spot]) -> Jump | None:
        """The node at whose level the flow changes most on the way back."""
        steps = [(below, above, key) for below, above, key in zip(self.flow, self.flow[1:], self.keys[1:], strict=False)
                 if above and key is not None and math.isfinite(below + above)]  # fmt: skip
        if not steps:
            return None
        below, above, key = max(steps, key=lambda s: abs(math.log(s[0] / s[1])) if s[0] / s[1] else math.inf)
        return Jump(below / above, spots[key])


def curve(units: Sequence[Unit], x: str, layers: AbstractSet[Key], norms: Mapping[str, float]) -> FlowCurve:
    """The flow along some layers on the way from x; `norms` are those of the cotangents of all tensors."""
    levels = _levels(units, x, layers)
    top = max((level for level, _ in levels.values()), default=0)
    flow, keys = np.zeros(top + 1), [None] * (top + 1)  # type: tuple[np.ndarray, list[Key | None]]
    reach: dict[str, int] = {}
    for unit in units:
        for name in (n for n in unit.outputs if n in levels and n in norms):
            level, key = levels[name][0], unit.place.key
            if key in layers and norms[name] >= flow[level]:
                flow[level], keys[level] = norms[name], key
        highest = max((levels[n][0] for n in unit.outputs if n in levels), default=0)
        reach.update((n, max(highest, reach.get(n, 0))) for n in unit.operands if n in levels)
        if unit.place.key not in layers:  # what joins a branch here passes the last layers of that branch by
            joined = max((norms.get(n, 0.0) for n in unit.outputs), default=0.0)
            beside = (norms.get(n, 0.0) for n in unit.operands if n in levels and levels[n][0] < highest)
            flow[highest] = max(flow[highest], min(joined, max(beside, default=0.0)))
    for name, highest in reach.items():
        past = slice(levels[name][0] + 1, highest)
        np.maximum(flow[past], norms.get(name, 0.0), out=flow[past])
    return FlowCurve(flow[1:].tolist(), keys[1:])


def _levels(units: Sequence[Unit], x: str, layers: AbstractSet[Key]) -> dict[str, tuple[int, Key | None]]:
    """Tensors reached from x: the largest number of layers on a way there, and the last of them.

    A node in a body counts in each step of its loop, its parts once.
    """
    levels: dict[str, tuple[int, Key | None]] = {x: (0, None)}
    for unit in units:
        read = [levels[n] for n in unit.operands if n in levels]
        if not read:
            continue
        key = unit.place.key
        if key in layers:
            here: tuple[int, Key | None] = (max(level + (last != key or _is_step(unit)) for level, last in read), key)
        else:
            here = max(read, key=lambda entry: entry[0])
        levels.update((n, here) for n in unit.outputs if n and n not in levels)
    return levels


class Activity:
    """Activity of all units over several runs."""

    def __init__(self) -> None:
        self._units: dict[tuple[Key, str], _Units] = {}

    def show(self, tape: Tape, program: Program, values: Mapping[str, Array]) -> None:
        """Adds a run: the steps of `program` with their `values`."""
        makers = Makers.of(tape).step
        for _, step in program.steps:
            if step.op.inside is not None and step.op.inside.activations is not None:
                operands = (values[n] if n else None for n in step.operands)
                self._look_inside(tape, step.place.key, step.op.inside.activations(*operands, **step.metadata))
            states = _states(values, step, program) if _flattens(step.op) else None
            if states is None:
                continue
            axis = _channel_axis(tape, step, makers)
            alive, steep = (_by_unit(mask, axis) for mask in states)
            self._add((step.place.key, step.op.name), _Units(alive, steep, states[0].size // max(alive.size, 1)))

    def _look_inside(self, tape: Tape, key: Key, found: Iterable[tuple[str, Array]]) -> None:
        """Adds activations inside of a node, by name, whose units lie along the last axis."""
        for name, y in found:
            slope = tape.ops["", name].slope if ("", name) in tape.ops else None
            if slope is not None and y.size:
                steep = _by_unit(slope(y) >= SATURATED_SLOPE, -1)
                self._add((key, name), _Units(np.ones_like(steep), steep, y.size // steep.size))

    def _add(self, key: tuple[Key, str], units: _Units) -> None:
        known = self._units.get(key)
        if known is None or known.alive.shape != units.alive.shape:
            self._units[key] = units
        else:
            known.alive |= units.alive
            known.steep |= units.steep
            known.seen += units.seen

    @property
    def least(self) -> int:
        """Number of values seen of the unit seen least, of outputs with one that may stand still; SAMPLES if none."""
        open_ = (units.seen for units in self._units.values() if units.alive.size and not units.moving)
        return min(open_, default=SAMPLES)

    def counts(self) -> Mapping[Key, tuple[int, int | None, int | None]]:
        """By node: the number of units, of dead and of saturated ones; None if too few values were seen."""
        found: dict[Key, tuple[int, int | None, int | None]] = {}
        for (key, _), units in self._units.items():
            number, dead, saturated = found.get(key, (0, 0, 0))
            seen: tuple[int | None, int | None] = None, None
            if (units.seen >= SAMPLES or units.moving) and dead is not None and saturated is not None:
                seen = dead + int((~units.alive).sum()), saturated + int((units.alive & ~units.steep).sum())
            found[key] = number + units.alive.size, *seen
        return found


class _Units(Struct):
    """Units of one output: those seen off zero and on a slope, and the number of values seen of each."""

    alive: Array
    steep: Array
    seen: int

    @property
    def moving(self) -> bool:
        """True if no more values can tell anything: each unit was seen off zero, and on a slope."""
        return bool(self.alive.all() and self.steep.all())


def looked_at(program: Program) -> Iterator[str]:
    """The tensors that `Activity.show` reads."""
    for _, step in program.steps:
        if _flattens(step.op):
            yield from (n for n in (*step.operands, step.node.outputs[0]) if n in program.reached)


def _flattens(op: Op) -> bool:
    """True if units of an operator may stand still, by itself or by a condition of the operator that it is part of."""
    return bool(op.flat or op.slope or op.inside) or op.sides == "condition"


def _states(values: Mapping[str, Array], step: Step, program: Program) -> tuple[Array, Array] | None:
    """Masks of outputs off the flat part at 0, and of slopes that are not small; None for other operators."""
    operands = [values[n] if n else None for n in step.operands]
    x, y = operands[0] if operands else None, values.get(step.node.outputs[0])
    if x is None or y is None or y.dtype.kind != "f" or not y.size:
        return None
    whole = program.tape.operator_at(step.place, step.op).flat
    match step.op.flat:
        case "zero":
            return y > 0, y > 0
        case "larger" if len(operands) == 2:
            return _against_zero(step, operands, program.reached)
        case "bounded":
            return _clipped(operands, grows=whole == "below")
        case "" if whole == "gated" and step.op.sides == "condition":
            return x.astype(bool), x.astype(bool)
    if step.op.slope is None or ("axis" in step.metadata and y.shape[step.metadata["axis"]] == 1):
        return None
    steep = step.op.slope(y, **step.metadata) >= SATURATED_SLOPE
    return np.ones(steep.shape, bool), steep


def _against_zero(step: Step, values: list[Array | None], data: set[str]) -> tuple[Array, Array] | None:
    """The masks for Max of data and the constant 0, which is a Relu."""
    moving = [v for n, v in zip(step.operands, values, strict=True) if n in data]
    fixed = [v for n, v in zip(step.operands, values, strict=True) if n not in data]
    if len(moving) != 1 or moving[0] is None or fixed[0] is None or fixed[0].any():
        return None
    return moving[0] > 0, moving[0] > 0


def _clipped(values: list[Array | None], grows: bool) -> tuple[Array, Array] | None:
    """The same of a Clip; what it is part of may grow on beyond the upper bound."""
    x, low, high = [*values, None, None][:3]
    if x is None or low is None:
        return None
    above = np.ones(x.shape, bool) if low.any() else x > low
    if grows:  # above the upper bound
        return above, above
    return above, (x > low) & (True if high is None else x < high)


def _by_unit(mask: Array, axis: int | None) -> Array:
    """True for each unit that has any value in the mask."""
    if axis is None or not -mask.ndim <= axis < mask.ndim:
        return mask.any(keepdims=True).reshape(1)
    return np.asarray(mask.any(axis=tuple(i for i in range(mask.ndim) if i != axis % mask.ndim)))


def _channel_axis(tape: Tape, step: Step, makers: Mapping[str, int]) -> int | None:
    """The axis of a step's output whose entries are units; None where all of it is one unit."""
    rank = tape.values[step.node.outputs[0]].ndim
    if step.op.slope is not None and "axis" in step.metadata:
        return 1 if rank > 2 and step.metadata["axis"] % rank != 1 else None
    if rank < 2:
        return 0 if rank else None
    moves, here = list[tuple[int, ...]](), step
    for _ in range(_HOPS):
        axes = {here.op.channels, tape.operator_at(here.place, here.op).channels}  # behind an operator that makes them
        if axes & {1, -1}:
            return _moved(1 if 1 in axes else rank - 1, moves)
        name = _main_operand(tape, here)
        if name is None or name not in makers:
            break
        if here.op.name == "Transpose" and here.metadata.get("perm"):
            moves.append(tuple(int(a) % rank for a in here.metadata["perm"]))
        here = tape.steps[makers[name]]
    return _moved(1, moves)


def _main_operand(tape: Tape, step: Step) -> str | None:
    """The first operand of the result's size and rank, for an elementwise step or a transposition."""
    if step.op.batching is not elementwise and step.op.name != "Transpose":
        return None
    made = tape.values[step.node.outputs[0]]
    operands = ((n, tape.values.like(n)) for n in step.operands if n in tape.values)
    return next((n for n, value in operands if (value.size, value.ndim) == (made.size, made.ndim)), None)


def _moved(axis: int, moves: list[tuple[int, ...]]) -> int:
    """Position of an axis after transpositions, of which the last one is applied first."""
    for perm in reversed(moves):
        axis = perm.index(axis)
    return axis
