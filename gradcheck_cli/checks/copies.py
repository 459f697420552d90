"""Models of one structure, of which one gets the check of the gradient, and the others a glance at their own weights.

A check holds rules against differences at one point of one model.  The rules that run, their operands' sizes and their
attributes are the same in every model of a structure: what differs is the values of weights.  Hence a copy passes if
nothing that its weights could change has changed:

- what runs at its point is what ran in the first check, step by step (`RunTold`): integers, truth values,
  constants that nobody trains, and values that are read by operands without a derivative, such as the scales of a Resize
  or a threshold, are part of that, and so are the roles of constants, which decide what is differentiated;
- it takes no branch of a piecewise node that the first check has not taken;
- its forward run and its gradient are finite, and its forward run is compared with onnxruntime's as in every check.

Its points are drawn anew, at its own weights, so that kinks are not met at the same values.  A model for which one of this
does not hold is checked itself, in the same run.  What a copy does not tell is that differences agree with the gradient
at its own weights: rounding, or a rule that is wrong for some values alone, within one branch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.tape import Step
from gradcheck_cli.checks.procedure import Procedure
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import STATISTIC, WEIGHT
from gradcheck_cli.points.point import Point
from gradcheck_cli.points.targets import constant_roles
from gradcheck_cli.results.record import Check, FirstCheck

_VARYING = (WEIGHT, STATISTIC)  # roles of constants whose values are no part of a structure
_LABEL = re.compile(r" '.*': ", re.DOTALL)  # of a node, between its operator and a branch of it


def records(request: Mapping[str, Any], name: str, first: FirstCheck) -> tuple[Check, ...]:
    """The records of a model: those of a copy where it is like the first check, else those of a check of its own."""
    if first.job:
        with suppress(GradcheckError):  # as the check will say
            glanced = _run(request, name, glances=True)
            if _is_like(glanced, first):
                return tuple(replace(check, copy_of=first.job) for check in glanced)
    return _run(request, name, glances=False)


def _run(request: Mapping[str, Any], name: str, *, glances: bool) -> tuple[Check, ...]:
    """The records of one check, each with the digest of what ran at all points."""
    told = hashlib.sha256()

    def see(index: int, point: Point) -> None:
        request["see"](index, point)
        told.update(repr(RunTold(procedure, point).told).encode("utf-8", "surrogatepass"))

    procedure = Procedure(**{**request, "see": see})
    procedure.glances = glances
    found = procedure.run(name)
    digest = told.hexdigest()[:32] if _is_comparable(procedure) else ""
    return tuple(replace(check, structure=digest) for check in found)


def _is_comparable(procedure: Procedure) -> bool:
    """True if a glance sees all that a check of this kind would: not a second derivative, a claim, or half precision."""
    return not procedure.claims and not procedure.settings.second_order and procedure.precisions is None


def _is_like(glanced: Sequence[Check], first: FirstCheck) -> bool:
    """True if a check would meet nothing that the first one did not."""
    return len(glanced) == len(first.missed) and all(
        check.structure == first.structure and check.status in ("pass", "severed")
        and bool(check.gradient.get("finite")) and _of_the_same_branches(check, missed)
        for check, missed in zip(glanced, first.missed, strict=True)
    )  # fmt: skip


def _of_the_same_branches(check: Check, missed: Sequence[str]) -> bool:
    """True if a check is seen to have missed each branch that was missed before, whatever its nodes are called."""
    here = {_LABEL.sub(": ", text) for text in check.branches.get("missed", ())}
    return here.issuperset(_LABEL.sub(": ", text) for text in missed)


class RunTold:
    """The steps that ran at a point without names: tensors are numbers, in the order in which steps read or make them.

    `told` are operators, attributes, wiring, shapes, dtypes, and the values of constants but for those of weights.
    """

    def __init__(self, procedure: Procedure, point: Point) -> None:
        self.graph, self.tape = procedure.graph, point.tape
        self.roles = constant_roles(self.graph, procedure.ys, (), procedure.ops)
        named = self.tape.named
        self.constants = {named[n].name: n for n in self.graph.constants if n in named}
        self.computed = {named[n].name for n in point.feeds if n in named}
        self.computed.update(name for step in self.tape.steps for name in step.outputs)
        self.numbers: dict[str, int] = {"": -1}
        self.told: list[Any] = [[*point.dims.values()]]
        for step in self.tape.steps:
            self._tell(step)
        ends = (*procedure.xs, *procedure.ys)
        self.told.append([self._number(named[n].name) if n in named else n for n in ends])

    def _tell(self, step: Step) -> None:
        """Adds a step; static inputs, by which there is no derivative, count with the values that are always the same."""
        read = [*map(self._number, step.operands)], [*map(self._number, step.statics)]
        fixed = [_content(self.tape.values[n]) for n in step.statics if n not in self.computed]
        self.told.append((step.op.key, *read, [*map(self._number, step.outputs)], _encoded(step.metadata), fixed))

    def _number(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = len(self.numbers)
            self.told.append(self._value(name))
        return self.numbers[name]

    def _value(self, name: str) -> Any:
        if name in self.computed:
            return _shaped(self.tape.values[name])
        if name not in self.constants:
            return _shaped(self.tape.values[name]), _content(self.tape.values[name])
        constant = self.constants[name]
        value, role = self.graph.constants[constant], self.roles[constant].role if constant in self.roles else ""
        return role, _shaped(value), "" if role in _VARYING else _content(value)


def _shaped(value: Array) -> tuple[str, tuple[int, ...]]:
    return value.dtype.name, value.shape


def _content(value: Array) -> str:
    """A digest of an array's entries."""
    data = repr(value.tolist()).encode() if value.dtype == object else np.ascontiguousarray(value).tobytes()
    return hashlib.sha256(data).hexdigest()


def _encoded(value: Any) -> Any:
    """Metadata in a form that reads the same in every process; what has none makes two runs differ, which is safe."""
    if isinstance(value, Mapping):
        return [(str(name), _encoded(value[name])) for name in sorted(value, key=str)]
    if isinstance(value, tuple | list):
        return [_encoded(each) for each in value]
    if isinstance(value, np.ndarray):
        return _shaped(value), _content(value)
    return repr(value)
