"""Units that no longer learn: dead ones, whose output stays on its flat part at 0, and saturated ones.

A unit is a channel of an image, or a feature of a vector; it is judged by all its values over the batch, the positions
and the points that were tried.  Dead: the output of Relu, Clip at 0, ThresholdedRelu, HardSigmoid or HardSwish is on
its flat part at 0 (the dying Relu).  Saturated: the local slope of Sigmoid, Tanh, HardSigmoid or of a bounded Clip is
below SATURATED_SLOPE; of Softmax the largest slope y (1 - y) among the entries that share a sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from gradcheck_cli.autodiff.step import Step
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.checks.health.layers import Key, key_of
from gradcheck_cli.engine.program import Program
from gradcheck_cli.graph import Array
from gradcheck_cli.op.batching import elementwise
from gradcheck_cli.results.measures import SAMPLES, SATURATED_SLOPE

_CHANNELS_SECOND = {
    "Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv", "BatchNormalization", "InstanceNormalization",
    "GroupNormalization", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "LpPool", "LRN",
}  # fmt: skip
_CHANNELS_LAST = {"MatMul", "Gemm", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "LSTM",
                  "GRU", "RNN"}  # fmt: skip
_FLAT = {"Relu", "Max", "Where", "Clip", "Sigmoid", "Tanh", "Softmax"}  # steps whose units may stand still
_HOPS = 16  # elementwise steps between a layer and what makes its channels


@dataclass(slots=True)
class _Units:
    """Units of one output: which of them were seen on a slope, how often each was seen."""

    alive: Array
    steep: Array
    seen: int


class Activity:
    """What all units did in the runs that were shown."""

    def __init__(self) -> None:
        self._units: dict[tuple[Key, str], _Units] = {}

    def show(self, tape: Tape, program: Program, values: Mapping[str, Array]) -> None:
        """One more run: the steps of `program`, with values as they are there."""
        makers = {name: step for step in tape.steps for name in step.node.outputs if name}
        for _, step in program.steps:
            states = _states(values, step, program.reached) if step.op.name in _FLAT else None
            if states is None:
                continue
            axis = _channel_axis(tape, step, makers)
            alive, steep = (_by_unit(mask, axis) for mask in states)
            self._add((key_of(step.place), step.op.name), _Units(alive, steep, states[0].size // max(alive.size, 1)))

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
        """How often the units that were seen least were seen; SAMPLES if there are none."""
        return min((units.seen for units in self._units.values() if units.alive.size), default=SAMPLES)

    def counts(self) -> Mapping[Key, tuple[int, int | None, int | None]]:
        """By node: how many units there are, and of them how many are dead and saturated, None if seen too seldom."""
        found: dict[Key, tuple[int, int | None, int | None]] = {}
        for (key, _), units in self._units.items():
            number, dead, saturated = found.get(key, (0, 0, 0))
            enough = units.seen >= SAMPLES and dead is not None and saturated is not None
            gone = int((~units.alive).sum())
            flat = int((units.alive & ~units.steep).sum())
            found[key] = (
                number + units.alive.size,
                (dead or 0) + gone if enough else None,
                (saturated or 0) + flat if enough else None,
            )
        return found


def looked_at(program: Program) -> Iterator[str]:
    """The tensors whose values say what units do."""
    for _, step in program.steps:
        if step.op.name in _FLAT:
            yield from (n for n in (*step.operands, step.node.outputs[0]) if n in program.reached)


def _states(values: Mapping[str, Array], step: Step, data: set[str]) -> tuple[Array, Array] | None:
    """Where an output is off its flat part at 0, and where its slope is no trifle; None for one that never goes flat."""
    operands = [values[n] if n else None for n in step.operands]
    x, y = operands[0] if operands else None, values.get(step.node.outputs[0])
    if x is None or y is None or y.dtype.kind != "f" or not y.size:
        return None
    match step.op.name:
        case "Relu":
            return y > 0, y > 0
        case "Max" if len(operands) == 2:
            return _against_zero(step, operands, data)
        case "Where" if step.place.op == "ThresholdedRelu" and operands[0] is not None:
            return operands[0].astype(bool), operands[0].astype(bool)
        case "Clip":
            return _clipped(step, operands)
        case "Sigmoid":
            return np.ones(y.shape, bool), y * (1 - y) >= SATURATED_SLOPE
        case "Tanh":
            return np.ones(y.shape, bool), 1 - y * y >= SATURATED_SLOPE
        case "Softmax" if y.shape[step.metadata["axis"]] > 1:
            steep = np.max(y * (1 - y), axis=step.metadata["axis"], keepdims=True) >= SATURATED_SLOPE
            return np.ones(steep.shape, bool), steep
    return None


def _against_zero(step: Step, values: list[Array | None], data: set[str]) -> tuple[Array, Array] | None:
    """The larger of data and the constant 0 is a Relu."""
    moving = [v for n, v in zip(step.operands, values, strict=True) if n in data]
    fixed = [v for n, v in zip(step.operands, values, strict=True) if n not in data]
    if len(moving) != 1 or moving[0] is None or fixed[0] is None or fixed[0].any():
        return None
    return moving[0] > 0, moving[0] > 0


def _clipped(step: Step, values: list[Array | None]) -> tuple[Array, Array] | None:
    x, low, high = [*values, None, None][:3]
    if x is None or low is None:
        return None
    above = np.ones(x.shape, bool) if low.any() else x > low
    if step.place.op == "HardSwish":  # beyond the upper bound it grows on
        return above, above
    return above, (x > low) & (True if high is None else x < high)


def _by_unit(mask: Array, axis: int | None) -> Array:
    """Whether any value of each unit is in the state."""
    if axis is None or not -mask.ndim <= axis < mask.ndim:
        return mask.any(keepdims=True).reshape(1)
    return np.asarray(mask.any(axis=tuple(i for i in range(mask.ndim) if i != axis % mask.ndim)))


def _channel_axis(tape: Tape, step: Step, makers: Mapping[str, Step]) -> int | None:
    """The axis of a step's output whose entries are units; None where all of it is one."""
    rank = tape.values[step.node.outputs[0]].ndim
    if step.op.name == "Softmax":
        return 1 if rank > 2 and step.metadata["axis"] % rank != 1 else None
    if rank < 2:
        return 0 if rank else None
    moves, here = list[tuple[int, ...]](), step
    for _ in range(_HOPS):
        if axis := _of_maker(here, rank):
            return _moved(axis, moves)
        name = _main_operand(tape, here)
        if name is None or name not in makers:
            break
        if here.op.name == "Transpose" and here.metadata.get("perm"):
            moves.append(tuple(int(a) % rank for a in here.metadata["perm"]))
        here = makers[name]
    return _moved(1, moves)


def _of_maker(step: Step, rank: int) -> int:
    """The axis of channels behind an operator that makes them; 0 for others."""
    names = {step.op.name, step.place.op}
    return 1 if names & _CHANNELS_SECOND else rank - 1 if names & _CHANNELS_LAST else 0


def _main_operand(tape: Tape, step: Step) -> str | None:
    """What an elementwise step, or a transposition, goes on with: the first operand of the result's size and rank."""
    if step.op.lift is not elementwise and step.op.name != "Transpose":
        return None
    made = tape.values[step.node.outputs[0]]
    operands = ((n, tape.values.like(n)) for n in step.operands if n in tape.values)
    return next((n for n, value in operands if (value.size, value.ndim) == (made.size, made.ndim)), None)


def _moved(axis: int, moves: list[tuple[int, ...]]) -> int:
    """Where an axis is after transpositions, the last of which comes first."""
    for perm in reversed(moves):
        axis = perm.index(axis)
    return axis
