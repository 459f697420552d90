"""Verdicts on a wrong operator table and on the right one, and whether the suspect is right."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

import gradcheck_cli as gc
from gradcheck_cli.autodiff.backward import units_between
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from gradcheck_cli.results.record import Check
from tests.corpus.faults import FAULTS, RELATIVE, all_operands, one_operand
from tests.corpus.hosts import Host, host
from tests.corpus.kinds import Kind
from tests.corpus.networks import network, rules_of
from tests.ops.case import Case

Key: TypeAlias = tuple[str, str]
LEAST = 0.99e-6  # a relative error below this is no fault
LARGE = 1e-2  # of the largest entry for the same y: smaller ones do not count
TURNS = 4  # operands or entries that a fault is tried at, until it changes something
FEW = ("sign", "one entry 10 % off", "half precision", "relative 1e-06")  # where there is no time for all
RIGHT = {("mutant", "caught", "right"), ("mutant", "no fault", ""), ("twin", "passed", "")}


@dataclass(frozen=True)
class Score:
    """One case: which fault, at which operator of which model, and what the checker made of it."""

    fault: str
    operator: str
    model: str
    seed: int
    side: str  # mutant | twin
    outcome: str  # caught | missed | no fault, passed | false alarm, inconclusive ...
    suspect: str = ""  # right | wrong | none
    said: str = ""
    rows: int = 0
    runs: Mapping[str, int] = field(default_factory=dict)  # of the function, on "real" and on "complex" numbers

    @property
    def good(self) -> bool:
        """A fault that is caught where it is, or nothing wrong and nothing found."""
        return (self.side, self.outcome, self.suspect) in RIGHT

    def __str__(self) -> str:
        suspect = f", suspect {self.suspect}" if self.suspect else ""
        return (
            f"{self.side} '{self.fault}' of {self.operator} in {self.model}, seed {self.seed}: "
            f"{self.outcome}{suspect} ({self.said})"
        )


def of_case(case: Case, seed: int, only: Collection[str] = (), **more: Any) -> Iterator[Score]:
    """Every fault, or some, at an operator amid layers; relative errors where nothing dilutes them."""
    for kinds, make, skip in ((FAULTS, one_operand, True), (RELATIVE, all_operands, False)):
        made = host(case, seed, skip)
        if made is not None:
            yield twin(made, **more)
            yield from of_rule(made, (case.domain, case.op), chosen(kinds, only), make, **more)


def of_network(name: str, seed: int, only: Collection[str] = (), **more: Any) -> Iterator[Score]:
    """Every fault, or some, at every rule of a network."""
    made = network(name, seed)
    yield twin(made, **more)
    for key in rules_of(made):
        yield from of_rule(made, key, chosen(FAULTS, only), one_operand, **more)
        yield from of_rule(made, key, chosen(RELATIVE, only), all_operands, **more)


def chosen(kinds: Mapping[str, Any], only: Collection[str]) -> dict[str, Any]:
    """Some kinds of faults, or all."""
    return {name: fault for name, fault in kinds.items() if not only or name in only}


def of_kind(kind: Kind, seed: int, **more: Any) -> Iterator[Score]:
    """A wrong rule at each of its cases, diluted and not."""
    wrong = {**OPS, kind.key: replace(OPS[kind.key], vjp=kind.rule)}
    for case in kind.cases:
        for skip in (True, False):
            made = host(case, seed, skip)
            assert made is not None
            yield replace(twin(made, **more), fault=kind.name)
            yield mutant(kind.name, made, wrong, kind.key, jacobian(made, OPS), **more)


def of_rule(made: Host, key: Key, kinds: Mapping[str, Any], make: Callable[..., Ops], **more: Any) -> Iterator[Score]:
    """Some faults at one rule: each at the first operand and entry at which it changes anything."""
    right = jacobian(made, OPS)
    for name, fault in kinds.items():
        for turn in range(TURNS):
            score = mutant(name, made, make(key, fault, made.seed * TURNS + turn), key, right, **more)
            if score.outcome != "no fault":
                break
        yield score


def mutant(fault: str, made: Host, ops: Ops, key: Key, right: np.ndarray, **more: Any) -> Score:
    """The score of a wrong table; `right` is the Jacobian that the right one gives.

    An operator that computes with rules, Gradient, may have no value left: that is no gradient to judge.
    """
    score = Score(fault, key[1], made.name, made.seed, "mutant", "no fault")
    if difference(jacobian(made, ops), right) < LEAST or not has_values(made, ops):
        return score
    record = checked(made, ops, **more)
    outcome = {"fail": "caught", "pass": "missed"}.get(record.status, record.status)
    suspect = suspected(record, made, ops, key) if outcome == "caught" else ""
    return replace(score, outcome=outcome, suspect=suspect, said=said(record))


def twin(made: Host, **more: Any) -> Score:
    """The score of the right table; a pair without a gradient by nature is rightly severed."""
    record = checked(made, OPS, **more)
    outcome = {"fail": "false alarm", "pass": "passed"}.get(record.status, record.status)
    if outcome == "severed" and not jacobian(made, OPS).any():
        outcome = "passed"
    here = Score("twin", "", made.name, made.seed, "twin", outcome, said=said(record))
    return replace(here, rows=made.x.size, runs=record.evaluations)


def checked(made: Host, ops: Ops, **more: Any) -> Check:
    """The record of y by x."""
    [record] = gc.check(made.model, "x", "y", x_init_value={"x": made.x}, ops=ops, seed=made.seed, **more).checks
    return record


def said(record: Check) -> str:
    """Fields of a record besides its status."""
    suspect = f"suspect node {record.suspect.node} {record.suspect.op}" if record.suspect else ""
    return "; ".join(text for text in (record.code, record.message, suspect, *record.notes) if text)


def jacobian(made: Host, ops: Ops, y: str = "y") -> np.ndarray:
    """Jacobian by the rules of a table."""
    with np.errstate(all="ignore"):
        tape = trace(made.model.graph, {"x": made.x}, ops=ops, seed=made.seed)
        return Backward(tape, tape.named[y].name, [tape.named["x"].name]).jacobians(Budget(2**30, 1))[0]


def has_values(made: Host, ops: Ops) -> bool:
    """True if y is finite by the kernels and rules of a table."""
    with np.errstate(all="ignore"):
        tape = trace(made.model.graph, {"x": made.x}, ops=ops, seed=made.seed, targets=["y"])
    return bool(np.isfinite(tape.named["y"].value).all())


def difference(wrong: np.ndarray, right: np.ndarray) -> float:
    """The largest relative difference among entries that count; infinity where one is not finite."""
    if not np.isfinite(wrong).all():
        return np.inf
    sigma = np.maximum(np.abs(wrong), np.abs(right))
    counts = (sigma >= LARGE * sigma.max(axis=0, initial=0.0)) & (sigma > 0)
    return float(np.max(np.abs(wrong - right)[counts] / sigma[counts], initial=0.0))


def suspected(record: Check, made: Host, ops: Ops, key: Key) -> str:
    """True if the wrong rule has a part in the suspected node."""
    if record.suspect is None:
        return "none"
    tape = trace(made.model.graph, {"x": made.x}, ops=ops, seed=made.seed)
    units = units_between(tape, [tape.named["x"].name], [tape.named["y"].name])
    guilty = {(u.place.inside, u.place.index) for u in units if u.op.key == key}
    return "right" if (record.suspect.inside, record.suspect.node) in guilty else "wrong"
