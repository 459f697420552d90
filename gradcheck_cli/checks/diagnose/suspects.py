"""Which node is at fault: every rule on the way is held against its own forward kernel, alone, at its own values.

Where every node is right, what is left is how gradients are added up: at tensors with several consumers.

What a survey of the nodes adds to a record: the suspect, and how many nodes there are.

The trap of 0 * inf: a cotangent of zero, of a result that nobody uses, becomes NaN at a slope that is not finite.

`where(x > 0, log(x), 0)` is finite everywhere, and its gradient is NaN where x is not positive: Where hands log a
cotangent of 0 there, and 0 / 0 or 0 * NaN is no number.  Every rule is right by itself; the model has to keep the operand
inside of the domain.

Which wrong rules make a failure: with the numerical derivative of such a node in place of its rule it goes away.

A failing entry is <u, J v>.  Kernels carry v from x on, rules carry u back from y.  At each node both meet: what leaves
it by its kernel less what enters it, weighed by the cotangents that the rules give there, is what the entry changes by
where the node's own derivative takes the place of its rule.  Over all nodes that adds up to the whole failure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.autodiff.backward import Unit, gradients, inexact, pull_back, units_between
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.checks.diagnose.diagnosis import Symptom, symptom
from gradcheck_cli.checks.diagnose.laws import Broken
from gradcheck_cli.checks.diagnose.nodes_alone import Local, check_unit, part_of, pulled
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array, Graph, is_inexact
from gradcheck_cli.jacobian.directions import flat, reals, shaped
from gradcheck_cli.results.record import Suspect
from gradcheck_cli.verdict.differences import rms, scales
from gradcheck_cli.verdict.rule import RTOL

Node: TypeAlias = tuple[int, int, str]  # its units are those of all turns of a loop
Entry: TypeAlias = tuple[Array, Array]  # a direction of x `(x_size,)` and a weighted sum of y `(y_size,)`
_NEAR, _NEARER = 2.0**-7, 2.0**-9  # steps of differences, in units of the scale of x
_SHARE = 4  # of the memory: what slopes of all tensors may take
_SLIGHT = 1e-3  # of the failure: less is no part of it


class Standing(IntEnum):
    """How a node stands to a failing entry."""

    MENDS = 0  # with its numerical derivative in place of its rule the failure goes away
    SHARES = 1  # what is left then is another failure: there are more wrong rules
    ASIDE = 2  # nothing changes
    SINGULAR = 3  # its kernel has no slope there either


def standings(
    tape: Tape, nodes: Mapping[Node, Sequence[Unit]], x: str, y: str, entry: Entry, budget: Budget
) -> dict[Node, Standing]:
    """How each node between x and y, with all its units, stands to a failing entry; alike where that cannot be told."""
    units = sorted((unit for each in nodes.values() for unit in each), key=lambda unit: unit.steps.start)
    slopes = _slopes(tape, units, x, entry[0], budget)
    by_unit = {} if slopes is None else _gains(tape, units, y, entry[1], slopes)
    gains = {node: sum(by_unit.get(unit.steps, 0.0) for unit in each) for node, each in nodes.items()}
    finite = [gain for gain in gains.values() if np.isfinite(gain)]
    total, least = sum(finite), _SLIGHT * max(map(abs, finite), default=0.0)
    whole = not any(map(np.isinf, gains.values()))

    def standing(gain: float) -> Standing:
        if np.isnan(gain):
            return Standing.SINGULAR
        if np.isinf(gain) or (whole and gain and abs(total - gain) <= _SLIGHT * abs(total)):
            return Standing.MENDS
        return Standing.SHARES if abs(gain) > least else Standing.ASIDE

    return {node: standing(gain) for node, gain in gains.items()}


def _slopes(tape: Tape, units: Sequence[Unit], x: str, v: Array, budget: Budget) -> dict[str, Array] | None:
    """Derivatives of all tensors on the way along a direction of x, by the kernels alone; None of too many."""
    every = dict.fromkeys(n for unit in units for n in (*unit.operands, *unit.outputs) if n and n in tape.values)
    names = [n for n in every if inexact(tape.var(n))]
    if _SHARE * sum(tape.values[n].nbytes for n in names) > budget.memory:
        return None
    program, here = Program(tape, [x], names), tape.values[x]
    if program.analytic:
        made: Sequence[Array] = program.tangents({x: shaped(v[None], here)})
        return {n: np.asarray(t)[0] for n, t in zip(names, made, strict=True)}
    size = rms(scales(flat(here))) or 1.0
    steps = size * np.array([_NEAR, -_NEAR, _NEARER, -_NEARER])
    outputs = program.run({x: shaped(flat(here) + steps[:, None] * v, here)}).outputs
    with np.errstate(all="ignore"):
        near, nearer = ([(t[i] - t[i + 1]) / (2 * steps[i]) for t in outputs] for i in (0, 2))
        ratio = (_NEAR / _NEARER) ** 2
        return {n: (ratio * b - a) / (ratio - 1) for n, a, b in zip(names, near, nearer, strict=True)}


def _gains(tape: Tape, units: Sequence[Unit], y: str, u: Array, slopes: Mapping[str, Array]) -> dict[range, float]:
    """What each unit's derivative in place of its rule adds: infinite for a rule without a number, NaN without a slope.

    Rules behind one that gives no number get some number instead, which tells as well whether they are off.
    """
    pending = {y: shaped(u[None], tape.values[y])[0].conj()}
    gains: dict[range, float] = {}
    for unit in reversed(units):
        given = {n: pending[n] for n in unit.outputs if n in pending}
        made = pulled(tape, unit, given) if given else []
        if made is None:  # its rule cannot be run
            return {**gains, unit.steps: np.inf}
        leaves = sum(_met(ct, slopes[n]) for n, ct in given.items() if n in slopes)
        enters = sum(_met(ct, slopes[n]) for n, ct in made if n in slopes)
        gains[unit.steps] = np.nan if not np.isfinite(leaves) else leaves - enters if np.isfinite(enters) else np.inf
        for name, ct in made:
            known = np.where(np.isfinite(ct), ct, 1.0)
            pending[name] = pending[name] + known if name in pending else known
    return gains


def _met(ct: Array, slope: Array) -> float:
    """A cotangent on a slope; where either is zero the other is of no matter."""
    with np.errstate(all="ignore"):
        return float(np.sum(np.where((ct == 0) | (slope == 0), 0.0, ct * slope)).real)


_CURE = "clamp its operand inside of the branch, as in where(c, f(where(c, x, 1)), ...), not its result"


@dataclass(frozen=True, slots=True)
class Trap:
    """The node whose slope, or result, is not finite where nobody uses it, and what is to be said of it."""

    unit: Unit
    position: int  # among the nodes on the way
    what: str  # "0 * inf = NaN in the branch that node 3 Where 'd' does not take"

    @property
    def diagnosis(self) -> str:
        """What is wrong with the node, and its cure."""
        return f"the gradient is {self.what}: {_CURE}"

    @property
    def message(self) -> str:
        """What is wrong with the model."""
        return f"the gradient is not finite: {self.what}, behind {_where(self.unit)}"


def trap_of(tape: Tape, units: Sequence[Unit], cts: dict[str, Array]) -> Trap | None:
    """Where the first NaN of a backward pass from some cotangents on comes from, if from cotangents of zero."""
    pending = {name: np.array(ct) for name, ct in cts.items()}
    for at in reversed(range(len(units))):
        unit = units[at]
        given = {n: pending[n] for n in unit.outputs if n in pending}
        if not given:
            continue
        made = pulled(tape, unit, given)
        if made is None:
            return None
        if any(not np.isfinite(ct).all() for _, ct in made):
            silent = any((ct == 0).any() for ct in given.values())
            return _named(tape, units, at, pending) if silent else None
        for name, ct in made:
            pending[name] = pending[name] + ct if name in pending else ct
    return None


def _named(tape: Tape, units: Sequence[Unit], at: int, pending: dict[str, Array]) -> Trap:
    """The trap whose NaN unit number `at` makes: the node that left its domain first, and the one that hides it."""
    root = _root(tape, units, at)
    unit, selector = units[root], _selector(units, at, pending)
    where = f" in what {_where(selector)} does not take" if selector is not None else " where nobody uses its result"
    if selector is not None and (selector.place.op or selector.op.name) == "Where":
        where = f" in the branch that {_where(selector)} does not take"
    what = "0 * NaN" if not _finite(tape, units[at].operands) or not _finite(tape, unit.outputs) else "0 * inf"
    return Trap(unit, root, f"{what} = NaN{where}")


def _root(tape: Tape, units: Sequence[Unit], at: int) -> int:
    """The first unit on the way to unit `at` that makes something that is not finite; itself where none does."""
    wanted, found = set(units[at].operands), at
    for i in reversed(range(at)):
        if wanted.isdisjoint(units[i].outputs) or _finite(tape, [n for n in units[i].outputs if n in wanted]):
            continue
        found = i
        wanted.update(units[i].operands)
    return found


def _selector(units: Sequence[Unit], at: int, pending: dict[str, Array]) -> Unit | None:
    """The unit behind unit `at` that gets a cotangent at every entry and hands on zeros."""
    names = set(units[at].outputs)
    for unit in units[at + 1 :]:
        if names.isdisjoint(unit.operands):
            continue
        full = all(bool(np.asarray(pending[n]).all()) for n in unit.outputs if n in pending)
        if full and any(not np.asarray(pending[n]).all() for n in names.intersection(unit.operands) if n in pending):
            return unit
        names.update(unit.outputs)
    return None


def _finite(tape: Tape, names: Sequence[str]) -> bool:
    values = (tape.values[n] for n in names if n and n in tape.values)
    return all(bool(np.isfinite(value).all()) for value in values if is_inexact(value.dtype))


def _where(unit: Unit) -> str:
    return unit.place.of(unit.place.op or unit.op.name, unit.place.label or unit.label)


_SHOWN = 3  # wrong nodes that are looked at closely
_SUMMED = 1e-9  # of the cotangents of a tensor: how far their sum may be off


@dataclass(frozen=True, slots=True)
class Wrong:
    """A wrong node: the unit that failed, and what is wrong with it."""

    unit: Unit
    symptom: Symptom
    position: int  # among the nodes on the way


@dataclass(frozen=True, slots=True)
class Survey:
    """All nodes on the way from x to y, each checked on its own."""

    total: int
    open: int  # could not be checked
    wrong: tuple[Wrong, ...] = ()  # the first ones
    failed: int = 0  # how many are wrong
    errors: tuple[float, float] = (0.0, 0.0)  # the largest ones of right nodes, absolute and relative

    @property
    def checked(self) -> int:
        """Nodes of which something could be said."""
        return self.total - self.open


class Surveyor:
    """Checks the nodes of a tape, each of them once for all pairs that it lies between."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._found: dict[tuple[object, ...], Local] = {}
        self._symptoms: dict[int, Symptom] = {}

    def survey(self, x: str, y: str, seed: int, budget: Budget, failing: Sequence[Entry] = ()) -> Survey:
        """Every node between x and y on its own; of several wrong ones those first that make the `failing` entries."""
        units = units_between(self.tape, [x], [y])
        over: list[Unit] = []
        quiet = replace(budget, progress=lambda done, total: budget.progress(len(over), len(units)))  # it may end it
        flowing = _Flow(self.tape, units, [x], [y], seed)
        locals_: dict[Node, list[Local]] = {}
        for unit in units:
            locals_.setdefault(_key(unit), []).extend(self._locals(unit, flowing, seed, quiet))
            over.append(unit)
            budget.progress(len(over), len(units))
        worst = {node: max(found, key=_severity) for node, found in locals_.items()}
        wrong = [(i, node, local) for i, (node, local) in enumerate(worst.items()) if local.status == "wrong"]
        if len(wrong) > 1:
            entries = failing or [_anywhere(self.tape, x, y, seed)]
            every = [standings(self.tape, _nodes(units), x, y, entry, quiet) for entry in entries]
            # what hardly matters on the way to y is not what fails at the end either
            wrong.sort(key=lambda each: ([found[each[1]] for found in every], _is_slight(each[2])))
        told = tuple(Wrong(local.unit, self._symptom(local), i) for i, _, local in wrong[:_SHOWN])
        errors = [local.errors for found in locals_.values() for local in found] or [(0.0, 0.0)]
        largest = max(e[0] for e in errors), max(e[1] for e in errors)
        return Survey(len(worst), sum(local.status == "open" for local in worst.values()), told, len(wrong), largest)

    def _locals(self, unit: Unit, flowing: _Flow, seed: int, budget: Budget) -> Iterator[Local]:
        operands = flowing.operands(unit)
        for outputs in flowing.outputs(unit):
            key = (unit.steps, operands, outputs, seed)
            if key not in self._found:
                self._found[key] = check_unit(self.tape, unit, operands, outputs, seed, budget, flowing.live)
                if self._found[key].status != "wrong":  # what it was found by is no longer needed
                    self._found[key] = replace(self._found[key], compared=None)
            yield self._found[key]

    def _symptom(self, local: Local) -> Symptom:
        if id(local) not in self._symptoms:
            self._symptoms[id(local)] = symptom(local)
        return self._symptoms[id(local)]

    def trap(self, xs: Sequence[str], ys: Sequence[str], seed: int) -> Trap | None:
        """Where a NaN comes from that no rule is to blame for; None if there is none such."""
        return trap_of(self.tape, units_between(self.tape, xs, ys), _random(self.tape, ys, seed))

    def unsummed(self, xs: Sequence[str], ys: Sequence[str], seed: int) -> str:
        """Which tensor's gradients are not added up, in a sentence; nothing if they all are."""
        return _unsummed(self.tape, xs, ys, seed)


class _Flow:
    """Where a derivative of ys by xs flows: operands that depend on xs, outputs that ys depend on as well."""

    def __init__(self, tape: Tape, units: Sequence[Unit], xs: Sequence[str], ys: Sequence[str], seed: int = 0) -> None:
        self.tape, self.units, self.ys, self.seed = tape, units, ys, seed
        self.reached = {*xs, *(n for unit in units for n in unit.outputs if n in tape.values and inexact(tape.var(n)))}
        self.needed = {*ys, *(n for unit in units for n in unit.operands)}

    def operands(self, unit: Unit) -> tuple[str, ...]:
        names = dict.fromkeys(n for n in unit.operands if n in self.reached and inexact(self.tape.var(n)))
        return tuple(names)

    def live(self, outputs: Sequence[str]) -> Array | None:
        """Reals of some outputs that get a cotangent, `(m,)`; None where that cannot be told."""
        parts = [self._reached.get(name) for name in outputs]
        return None if any(p is None for p in parts) else np.concatenate([p for p in parts if p is not None])

    @cached_property
    def _reached(self) -> dict[str, Array]:
        """Reals of all tensors that get a cotangent, from random ones of ys on backwards."""
        found: dict[str, Array] = {}
        try:
            for name, parts in _flows(self.tape, self.units, _random(self.tape, self.ys, self.seed)):
                found[name] = flat(sum(parts)) != 0  # type: ignore[arg-type]
        except (GradcheckError, ValueError, TypeError, LookupError, ArithmeticError, RuntimeError):
            return {}
        return found

    def outputs(self, unit: Unit) -> list[tuple[str, ...]]:
        """Those of one dtype together."""
        live = [n for n in unit.outputs if n in self.reached and n in self.needed]
        dtypes = dict.fromkeys(self.tape.values[n].dtype for n in live)
        return [tuple(n for n in live if self.tape.values[n].dtype == dtype) for dtype in dtypes]


def _anywhere(tape: Tape, x: str, y: str, seed: int) -> Entry:
    """A random entry, for where none is known to fail."""
    v, u = (np.random.default_rng([seed, 12]).normal(size=reals(tape.values[n])) for n in (x, y))
    return v, u


def _nodes(units: Sequence[Unit]) -> dict[Node, list[Unit]]:
    """The units of each node."""
    found: dict[Node, list[Unit]] = {}
    for unit in units:
        found.setdefault(_key(unit), []).append(unit)
    return found


def _key(unit: Unit) -> Node:
    """The model's node that a unit comes from: those of a loop's body count once."""
    return unit.place.origin, unit.place.index, unit.place.inside


def _severity(local: Local) -> int:
    """What of a node's units counts: the first one that is wrong, else one that is open."""
    return ("right", "open", "wrong").index(local.status)


def _is_slight(local: Local) -> bool:
    """A node is wrong by less than what matters on the way to y: others are to blame before it."""
    return local.compared is not None and local.compared.gap < RTOL


def _unsummed(tape: Tape, xs: Sequence[str], ys: Sequence[str], seed: int) -> str:
    units = units_between(tape, xs, ys)
    flows = dict.fromkeys((n for unit in units for n in unit.operands if n), 0)
    for unit in units:
        for name in unit.operands:
            flows[name] = flows.get(name, 0) + 1
    reached = _Flow(tape, units, xs, ys).reached
    shared = [n for n, count in flows.items() if count > 1 and n in reached and inexact(tape.var(n))]
    if not shared:
        return ""
    cts = _random(tape, ys, seed)
    beside = part_of(tape, range(len(tape.steps)))
    try:
        given = gradients(beside, {y: beside.hold(beside.fresh(f"{y}/seed"), ct) for y, ct in cts.items()}, shared)
    except (GradcheckError, ValueError, TypeError):
        return ""
    theirs = {name: ct.value for name, ct in zip(shared, given, strict=True) if ct is not None}
    for name, parts in _flows(tape, units, cts):
        own, size = sum(parts), sum(np.abs(part) for part in parts)
        if len(parts) > 1 and name in theirs and (np.abs(theirs[name] - own) > _SUMMED * np.max(size)).any():
            return f"gradients of {len(parts)} consumers of tensor {name!r} are not summed"
    return ""


def _random(tape: Tape, ys: Sequence[str], seed: int) -> dict[str, Array]:
    """Random cotangents of ys."""
    rng = np.random.default_rng(seed)
    return {y: np.asarray(rng.normal(size=tape.values[y].shape), tape.values[y].dtype) for y in ys}


def _flows(tape: Tape, units: Sequence[Unit], cts: dict[str, Array]) -> Iterator[tuple[str, list[Array]]]:
    """Cotangents that each tensor gets, from y on backwards, added up here."""
    pending = {name: [ct] for name, ct in cts.items()}
    for unit in reversed(units):
        alone = part_of(tape, unit.steps, (*unit.operands, *unit.outputs))
        given = []
        for name in unit.outputs:
            parts = pending.pop(name, None)
            if parts is not None:
                yield name, parts
            given.append(None if parts is None else alone.hold(alone.fresh(f"{name}/ct"), sum(parts)))
        if any(ct is not None for ct in given):
            for name, flow in pull_back(alone, unit, given):
                pending.setdefault(name, []).append(flow.value)
    yield from pending.items()


_UNTOLD = {"GC301": "a tie of the model", "GC303": "rounding"}  # what may leave a dot test open, by code


def lawless_suspect(broken: Sequence[Broken], graph: Graph) -> Suspect | None:
    """What broke a law, where that is known and no node fails otherwise."""
    unit = next((each.unit for each in broken if each.unit is not None), None)
    return None if unit is None else Suspect(**identity(unit, graph))


def identity(unit: Unit, graph: Graph) -> dict[str, Any]:
    """Which node a unit is, as a record says it."""
    place = unit.place
    node = graph.nodes[place.origin] if 0 <= place.origin < len(graph.nodes) and not place.inside else None
    return {
        "node": place.index,
        "op": unit.op.name,
        "name": node.name if node else place.label or unit.label,
        "outputs": node.outputs if node else unit.outputs,
        "inputs": node.inputs if node else unit.operands,
        "inside": place.inside,
        "part_of": place.op if place.op != unit.op.name else "",
    }


def suspect_record(survey: Survey, graph: Graph) -> Suspect | None:
    """The first node whose own rule is wrong, as the record names it; None if there is none."""
    if not survey.wrong:
        return None
    first, *others = survey.wrong
    found = first.symptom
    return Suspect(
        **identity(first.unit, graph),
        rel_err=found.error,
        at=found.operand,
        passed=survey.checked - survey.failed,
        tried=survey.checked,
        index=found.index,
        diagnosis=found.diagnosis,
        before=first.position,
        after=survey.total - first.position - 1,
        unchecked=survey.open,
        others=tuple(each.unit.place.of(each.unit.op.name, each.unit.place.label) for each in others),
    )


def trapped(trap: Trap, survey: Survey, graph: Graph) -> Suspect:
    """The node whose slope, or result, is not finite where nobody uses it."""
    return Suspect(
        **identity(trap.unit, graph),
        passed=survey.checked,
        tried=survey.checked,
        diagnosis=trap.diagnosis,
        before=trap.position,
        after=survey.total - trap.position - 1,
        unchecked=survey.open,
    )


def surveyed(
    surveys: Sequence[Survey], fields: Mapping[str, Any], max_inconclusive: float, doubted: bool = False
) -> dict[str, Any]:
    """The fields of a record that surveys at all points change: a wrong node fails a check, whatever the rest says.

    doubted  what the dot test leaves open speaks against the gradient
    """
    if not surveys:
        return {}
    worst = max(surveys, key=lambda survey: (survey.failed, survey.open))
    counts = {"total": worst.total, "checked": worst.checked, "failed": worst.failed}
    left = f"{worst.open} node{'s could not be checked on their' if worst.open > 1 else ' could not be checked on its'} own"
    notes = (left, *fields["notes"]) if worst.open else fields["notes"]
    errors = [max(survey.errors[i] for survey in surveys) for i in (0, 1)]
    own = {"nodes": counts, "notes": notes, "max_abs_err": errors[0], "max_rel_err": errors[1]}
    if not worst.failed and fields["status"] == "fail":
        return {"nodes": counts, "notes": notes}
    if not (worst.failed or doubted) and fields["code"] in _UNTOLD and worst.open <= max_inconclusive * worst.total:
        untold = f"how gradients add up from node to node was not seen: {_UNTOLD[fields['code']]} hides the dot test"
        return {**own, "status": "pass", "code": "", "notes": (*notes, untold)}
    if not worst.failed:
        return own
    error = max(each.symptom.error for each in worst.wrong)
    code = "GC101" if np.isfinite(error) else "GC103"
    failed = {"status": "fail", "code": fields["code"] if fields["status"] == "fail" else code}
    return {"nodes": counts, "notes": notes, "max_rel_err": max(error, fields["max_rel_err"]), "needed": {}, **failed}
