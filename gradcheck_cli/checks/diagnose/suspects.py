"""The node at fault for a failure: every rule between x and y is compared with its own forward kernel, alone.

Of several wrong nodes the one comes first whose numerical derivative, in place of its rule, makes the failing entry <u,
J v> right.  Kernels carry v forward from x, rules carry u back from y; at each node the tangents that leave it, less
those that enter it, weighed by the cotangents there, are the change of the entry by replacing its rule.  The changes of
all nodes add up to the whole failure.

If every node is right, either cotangents are not summed at a tensor with several consumers, or the trap of 0 * inf
makes NaN: `where(x > 0, sqrt(x), 0)` is finite everywhere, but Where hands sqrt a cotangent of 0 where x is 0,
and 0 / 0 is NaN.  There the model has to keep the operand inside of the domain; so it has where a slope is infinite at
the edge of a domain: sqrt(x * x) at 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from msgspec import Struct, structs

from gradcheck_cli.autodiff.backward import gradients, inexact, pull_back, units_between
from gradcheck_cli.autodiff.tape import Tape, Unit
from gradcheck_cli.checks.diagnose.diagnosis import Symptom, symptom
from gradcheck_cli.checks.diagnose.laws import Broken
from gradcheck_cli.checks.diagnose.nodes_alone import FAULTS, Local, check_unit, part_of, pulled
from gradcheck_cli.engine.chunks import Budget, shared_out
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array, Graph, is_inexact
from gradcheck_cli.jacobian.directions import flat, reals, shaped
from gradcheck_cli.op import zero
from gradcheck_cli.op.batching import is_ours
from gradcheck_cli.results.record import Suspect
from gradcheck_cli.verdict.differences import rms, scales
from gradcheck_cli.verdict.rule import RTOL

Node: TypeAlias = tuple[int, int, str]  # see `NodePlace.key`
Entry: TypeAlias = tuple[Array, Array]  # a direction of x `(x_size,)` and a weighted sum of y `(y_size,)`
Way: TypeAlias = tuple[range, tuple[str, ...], tuple[str, ...], int]  # steps, operands, outputs, and the seed
_SHOWN = 3  # wrong nodes that get a symptom
_AT_ONCE = 32  # tensors of the largest size that a node takes which is checked alone
_SUMMED = 1e-9  # relative error of a sum of cotangents
_NEAR, _NEARER = 2.0**-7, 2.0**-9  # steps of differences, in units of the scale of x
_SHARE = 4  # slopes of all tensors may take one fourth of the memory
_SLIGHT = 1e-3  # share of the failure below which a node has no part in it
_CURE = "clamp its operand inside of the branch, as in where(c, f(where(c, x, 1)), ...), not its result"
_AWAY = "keep its operand away from there, as in f(x + eps) or f(clip(x, low + eps, high - eps))"
_UNTOLD = {"GC301": "a tie of the model", "GC303": "rounding"}  # reasons for an inconclusive dot test, by code


class WrongNode(Struct, frozen=True):
    """A wrong node: the unit that failed, and its symptom."""

    unit: Unit
    symptom: Symptom
    position: int  # among the nodes on the way


class Survey(Struct, frozen=True):
    """All nodes on the way from x to y, each checked on its own."""

    total: int
    open: int  # could not be checked
    wrong: tuple[WrongNode, ...] = ()  # the first ones
    failed: int = 0  # how many are wrong
    errors: tuple[float, float] = (0.0, 0.0)  # the largest of nodes that are not wrong, absolute and relative

    @property
    def checked(self) -> int:
        """Number of nodes that are right or wrong, not open."""
        return self.total - self.open


class Surveyor:
    """Checks the nodes of a tape, each of them once for all pairs that it lies between."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._found: dict[Way, Local] = {}
        self._symptoms: dict[int, Symptom] = {}

    def survey(self, x: str, y: str, seed: int, budget: Budget, failing: Sequence[Entry] = ()) -> Survey:
        """Survey of every node between x and y; wrong nodes that make the `failing` entries come first."""
        units = units_between(self.tape, [x], [y])
        over: list[Unit] = []
        # progress of single comparisons still has to reach the budget, which raises at the time limit
        quiet = structs.replace(budget, progress=lambda done, total: budget.progress(len(over), len(units)))
        locals_: dict[Node, list[Local]] = {}
        for unit, found in zip(units, self._every(units, _Flow(self.tape, units, [x], [y], seed), quiet), strict=True):
            locals_.setdefault(unit.place.key, []).extend(found)
            over.append(unit)
            budget.progress(len(over), len(units))
        severity = ("right", "open", "wrong").index
        worst = {node: max(found, key=lambda local: severity(local.status)) for node, found in locals_.items()}
        wrong = [(i, node, local) for i, (node, local) in enumerate(worst.items()) if local.status == "wrong"]
        if len(wrong) > 1:
            v, u = (np.random.default_rng([seed, 12]).normal(size=reals(self.tape.values[n])) for n in (x, y))
            every = [standings(self.tape, _nodes(units), x, y, entry, quiet) for entry in failing or [(v, u)]]
            # a slight error on the way is not the cause of the failure
            wrong.sort(key=lambda each: ([found[each[1]] for found in every], each[2].gap < RTOL))
        told = tuple(WrongNode(local.unit, self._symptom(local), i) for i, _, local in wrong[:_SHOWN])
        errors = [local.errors for found in locals_.values() for local in found] or [(0.0, 0.0)]
        largest = max(e[0] for e in errors), max(e[1] for e in errors)
        return Survey(len(worst), sum(local.status == "open" for local in worst.values()), told, len(wrong), largest)

    def _every(self, units: Sequence[Unit], flowing: _Flow, budget: Budget) -> Iterator[list[Local]]:
        """The results of all units, which processes share where they take long and no code of others runs."""
        ours = all(is_ours(u.op.vjp or zero) for u in units) and not any(s.trial for s in self.tape.steps)
        new = [unit for unit in units if any(key not in self._found for key in flowing.keys(unit))]

        def seen(number: int, given: Budget) -> list[tuple[Literal["right", "wrong", "open"], tuple[float, float]]]:
            return [(local.status, local.errors) for local in self._locals(new[number], flowing, given)]

        values, names = self.tape.values, {n for unit in new for n in (*unit.operands, *unit.outputs)}
        largest = max((values.like(n).nbytes for n in names if n in values), default=0)
        fits = budget.jobs * _AT_ONCE * largest <= budget.memory
        told = shared_out(seen, len(new), budget, forks=ours and fits)
        for unit in units:
            keys = flowing.keys(unit)
            if any(key not in self._found for key in keys):
                for key, (status, errors) in zip(keys, next(told), strict=True):
                    if status != "wrong":  # else it is looked at again here, and its tape is kept
                        self._found.setdefault(key, Local(unit, status, errors=errors))
            yield self._locals(unit, flowing, budget)

    def _locals(self, unit: Unit, flowing: _Flow, budget: Budget) -> list[Local]:
        for key in flowing.keys(unit):
            if key not in self._found:
                _, operands, outputs, seed = key
                self._found[key] = check_unit(self.tape, unit, operands, outputs, seed, budget, flowing.live)
                if self._found[key].status != "wrong":  # frees its tape
                    self._found[key] = structs.replace(self._found[key], compared=None)
        return [self._found[key] for key in flowing.keys(unit)]

    def _symptom(self, local: Local) -> Symptom:
        if id(local) not in self._symptoms:
            self._symptoms[id(local)] = symptom(local)
        return self._symptoms[id(local)]

    def trap(self, xs: Sequence[str], ys: Sequence[str], seed: int) -> Trap | None:
        """The trap behind the first cotangent of a backward pass that is not finite; None if a rule cannot be run."""
        tape, units = self.tape, units_between(self.tape, xs, ys)
        for at, given, made, pending in _backwards(tape, units, _random(tape, ys, seed)):
            if made is not None and any(not np.isfinite(ct).all() for _, ct in made):
                return _named(tape, units, at, pending) if _silent(given, made) else _at_edge(tape, units, at, made)
        return None

    def unsummed(self, xs: Sequence[str], ys: Sequence[str], seed: int) -> str:
        """Sentence on a tensor whose consumers' cotangents are not summed; "" if there is none."""
        tape, units = self.tape, units_between(self.tape, xs, ys)
        consumers = Counter(n for unit in units for n in unit.operands if n)
        reached = _Flow(tape, units, xs, ys).reached
        shared = [n for n, count in consumers.items() if count > 1 and n in reached and inexact(tape.var(n))]
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


class _Flow:
    """Tensors that carry the derivative of ys by xs: operands that depend on xs, outputs that ys depend on."""

    def __init__(self, tape: Tape, units: Sequence[Unit], xs: Sequence[str], ys: Sequence[str], seed: int = 0) -> None:
        self.tape, self.units, self.ys, self.seed = tape, units, ys, seed
        self.reached = {*xs, *(n for unit in units for n in unit.outputs if n in tape.values and inexact(tape.var(n)))}
        self.needed = {*ys, *(n for unit in units for n in unit.operands)}

    def operands(self, unit: Unit) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n for n in unit.operands if n in self.reached and inexact(self.tape.var(n))))

    def keys(self, unit: Unit) -> list[Way]:
        """Keys of a unit's results: its operands by its outputs of each dtype."""
        return [(unit.steps, self.operands(unit), outputs, self.seed) for outputs in self.outputs(unit)]

    def live(self, outputs: Sequence[str]) -> Array | None:
        """Reals of some outputs that get a cotangent, `(m,)`; None where that is unknown."""
        parts = [self._reached.get(name) for name in outputs]
        return None if any(p is None for p in parts) else np.concatenate([p for p in parts if p is not None])

    @cached_property
    def _reached(self) -> dict[str, Array]:
        """Reals that get a cotangent, by tensor, for random cotangents of ys."""
        found: dict[str, Array] = {}
        try:
            for name, parts in _flows(self.tape, self.units, _random(self.tape, self.ys, self.seed)):
                found[name] = flat(sum(parts)) != 0  # type: ignore[arg-type]
        except FAULTS:
            return {}
        return found

    def outputs(self, unit: Unit) -> list[tuple[str, ...]]:
        """Outputs of a unit that carry the derivative, grouped by dtype."""
        live = [n for n in unit.outputs if n in self.reached and n in self.needed]
        dtypes = dict.fromkeys(self.tape.values[n].dtype for n in live)
        return [tuple(n for n in live if self.tape.values[n].dtype == dtype) for dtype in dtypes]


def _nodes(units: Sequence[Unit]) -> dict[Node, list[Unit]]:
    """The units of each node."""
    found: dict[Node, list[Unit]] = {}
    for unit in units:
        found.setdefault(unit.place.key, []).append(unit)
    return found


class NodeStanding(IntEnum):
    """The part of a node in a failing entry."""

    MENDS = 0  # its numerical derivative in place of its rule removes the failure
    SHARES = 1  # that removes a part of it: there are more wrong rules
    ASIDE = 2  # that changes nothing
    SINGULAR = 3  # its kernel has no finite slope


def standings(
    tape: Tape, nodes: Mapping[Node, Sequence[Unit]], x: str, y: str, entry: Entry, budget: Budget
) -> dict[Node, NodeStanding]:
    """Standing in a failing entry of each node between x and y, with all its units; all alike if unknown."""
    units = sorted((unit for each in nodes.values() for unit in each), key=lambda unit: unit.steps.start)
    slopes = _slopes(tape, units, x, entry[0], budget)
    by_unit = {} if slopes is None else _gains(tape, units, y, entry[1], slopes)
    gains = {node: sum(by_unit.get(unit.steps, 0.0) for unit in each) for node, each in nodes.items()}
    finite = [gain for gain in gains.values() if np.isfinite(gain)]
    total, least = sum(finite), _SLIGHT * max(map(abs, finite), default=0.0)
    whole = not any(map(np.isinf, gains.values()))

    def standing(gain: float) -> NodeStanding:
        if np.isnan(gain):
            return NodeStanding.SINGULAR
        if np.isinf(gain) or (whole and gain and abs(total - gain) <= _SLIGHT * abs(total)):
            return NodeStanding.MENDS
        return NodeStanding.SHARES if abs(gain) > least else NodeStanding.ASIDE

    return {node: standing(gain) for node, gain in gains.items()}


def _slopes(tape: Tape, units: Sequence[Unit], x: str, v: Array, budget: Budget) -> dict[str, Array] | None:
    """Derivatives of all tensors on the way along a direction of x, by the kernels alone; None if memory is short."""
    every = dict.fromkeys(n for unit in units for n in (*unit.operands, *unit.outputs) if n and n in tape.values)
    names = [n for n in every if inexact(tape.var(n))]
    if _SHARE * sum(tape.values[n].nbytes for n in names) > budget.memory:
        return None
    program, here = Program(tape, [x], names), tape.values[x]
    if program.analytic:
        made: Sequence[Array] = program.jvp({x: shaped(v[None], here)})
        return {n: np.asarray(t)[0] for n, t in zip(names, made, strict=True)}
    size = rms(scales(flat(here))) or 1.0
    steps = size * np.array([_NEAR, -_NEAR, _NEARER, -_NEARER])
    outputs = program.run({x: shaped(flat(here) + steps[:, None] * v, here)}).outputs
    with np.errstate(all="ignore"):
        near, nearer = ([(t[i] - t[i + 1]) / (2 * steps[i]) for t in outputs] for i in (0, 2))
        ratio = (_NEAR / _NEARER) ** 2
        return {n: (ratio * b - a) / (ratio - 1) for n, a, b in zip(names, near, nearer, strict=True)}


def _gains(tape: Tape, units: Sequence[Unit], y: str, u: Array, slopes: Mapping[str, Array]) -> dict[range, float]:
    """The change of the entry by each unit's own derivative in place of its rule.

    It is infinite for a rule that gives no finite number, and NaN where the kernel has no finite slope.  NaN and
    infinity are replaced by 1 for the rules that follow, which still shows whether those are off.
    """
    gains: dict[range, float] = {}
    start = {y: shaped(u[None], tape.values[y])[0].conj()}
    for at, given, made, _ in _backwards(tape, units, start, lambda ct: np.where(np.isfinite(ct), ct, 1.0)):
        leaves = sum(_met(ct, slopes[n]) for n, ct in given.items() if n in slopes)
        enters = np.inf if made is None else sum(_met(ct, slopes[n]) for n, ct in made if n in slopes)
        lost = np.nan if made is not None and not np.isfinite(leaves) else np.inf
        gains[units[at].steps] = leaves - enters if np.isfinite(leaves) and np.isfinite(enters) else lost
    return gains


def _backwards(
    tape: Tape, units: Sequence[Unit], cts: Mapping[str, Array], kept: Callable[[Array], Array] = lambda ct: ct
) -> Iterator[tuple[int, dict[str, Array], list[tuple[str, Array]] | None, Mapping[str, Array]]]:
    """A backward pass: the number of each unit, the cotangents of its outputs and operands, and those of all tensors.

    A rule that cannot be run gives None and ends it.  Cotangents are passed on as `kept` gives them.
    """
    pending = dict(cts)
    for at in reversed(range(len(units))):
        if given := {n: pending[n] for n in units[at].outputs if n in pending}:
            made = pulled(tape, units[at], given)
            yield at, given, made, pending
            if made is None:
                return
            for name, ct in ((name, kept(ct)) for name, ct in made):
                pending[name] = pending[name] + ct if name in pending else ct


def _met(ct: Array, slope: Array) -> float:
    """Inner product of a cotangent and a slope, in which 0 * inf is 0."""
    with np.errstate(all="ignore"):
        return float(np.sum(np.where((ct == 0) | (slope == 0), 0.0, ct * slope)).real)


def _random(tape: Tape, ys: Sequence[str], seed: int) -> dict[str, Array]:
    """Random cotangents of ys."""
    rng = np.random.default_rng(seed)
    return {y: np.asarray(rng.normal(size=tape.values[y].shape), tape.values[y].dtype) for y in ys}


def _flows(tape: Tape, units: Sequence[Unit], cts: dict[str, Array]) -> Iterator[tuple[str, list[Array]]]:
    """All cotangents that each tensor gets from its consumers, from y backwards."""
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


class Trap(Struct, frozen=True):
    """The node with a result, or a slope, that is not finite: where nobody uses it, or at the edge of its domain."""

    unit: Unit
    position: int  # among the nodes on the way
    what: str  # "0 * inf = NaN in the branch that node 3 Where 'd' does not take"
    cure: str = _CURE

    @property
    def message(self) -> str:
        """The fault of the model."""
        return f"the gradient is not finite: {self.what}, behind {self.unit.where}"


def _silent(given: Mapping[str, Array], made: Sequence[tuple[str, Array]]) -> bool:
    """True if cotangents of zero become some that are not finite, entry by entry where shapes tell them apart."""
    lost = [~np.isfinite(ct) for _, ct in made]
    return any((ct[each] == 0).any() if each.shape == ct.shape else (ct == 0).any()
               for ct in given.values() for each in lost if each.any())  # fmt: skip


def _at_edge(tape: Tape, units: Sequence[Unit], at: int, made: Sequence[tuple[str, Array]]) -> Trap | None:
    """The trap of a unit whose slope is infinite: it says at which number, and where 0 * inf makes NaN of it."""
    name, ct = next((name, ct) for name, ct in made if not np.isfinite(ct).all())
    if not _finite(tape, [*units[at].operands, *units[at].outputs]):
        return None
    place = tuple(int(i) for i in np.argwhere(~np.isfinite(ct))[0])
    at_place = f" at {list(place)}" if place else ""
    slope = "NaN" if np.isnan(ct[place]) else "infinite"
    what = f"{slope} where {name!r} is {tape.values[name][place]:.6g}{at_place}, the edge of a domain"
    before = next((unit for unit in reversed(units[:at]) if name in unit.outputs), None)
    if before is not None and np.isinf(ct).any():
        spoiled = any(np.isnan(flow).any() for _, flow in pulled(tape, before, {name: ct}) or [])
        what += f", and 0 * inf = NaN at {before.where}" if spoiled else ""
    return Trap(units[at], _place_of(units, at), what, _AWAY)


def _named(tape: Tape, units: Sequence[Unit], at: int, pending: Mapping[str, Array]) -> Trap:
    """The trap for the NaN made by unit number `at`: the node that left its domain first, and the one that hides it."""
    root = _root(tape, units, at)
    unit, selector = units[root], _selector(units, at, pending)
    where = f" in what {selector.where} does not take" if selector is not None else " where nobody uses its result"
    if selector is not None and (selector.place.op or selector.op.name) == "Where":
        where = f" in the branch that {selector.where} does not take"
    what = "0 * NaN" if not _finite(tape, units[at].operands) or not _finite(tape, unit.outputs) else "0 * inf"
    return Trap(unit, _place_of(units, root), f"{what} = NaN{where}")


def _place_of(units: Sequence[Unit], at: int) -> int:
    """The number of the node that a unit is of, among the nodes on the way, of which some have several units."""
    return list(dict.fromkeys(unit.place.key for unit in units)).index(units[at].place.key)


def _root(tape: Tape, units: Sequence[Unit], at: int) -> int:
    """The first unit on the way to unit `at` whose result is not finite; `at` itself if there is none."""
    wanted, found = set(units[at].operands), at
    for i in reversed(range(at)):
        if wanted.isdisjoint(units[i].outputs) or _finite(tape, [n for n in units[i].outputs if n in wanted]):
            continue
        found = i
        wanted.update(units[i].operands)
    return found


def _selector(units: Sequence[Unit], at: int, pending: Mapping[str, Array]) -> Unit | None:
    """The unit after unit `at` that gets a cotangent at every entry and passes zeros on."""
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


def suspect_record(survey: Survey, graph: Graph) -> Suspect | None:
    """The first wrong node as the record names it; None if there is none."""
    if not survey.wrong:
        return None
    first, *others = survey.wrong
    seen, named = first.symptom, tuple(each.unit.place.of(each.unit.op.name, each.unit.place.label) for each in others)
    found = _suspect(first, seen.diagnosis, survey, graph)
    return replace(found, at=seen.operand, rel_err=seen.error, index=seen.index, others=named)


def trapped(trap: Trap, survey: Survey, graph: Graph) -> Suspect:
    """The node of a trap as the record names it."""
    return _suspect(trap, f"the gradient is {trap.what}: {trap.cure}", survey, graph)


def _suspect(node: WrongNode | Trap, diagnosis: str, survey: Survey, graph: Graph) -> Suspect:
    """A node as the record names it, with the number of nodes around it that are right."""
    after = survey.total - node.position - 1
    return Suspect(
        **_identity(node.unit, graph), passed=survey.checked - survey.failed, tried=survey.checked,
        diagnosis=diagnosis, before=node.position, after=after, unchecked=survey.open,
    )  # fmt: skip


def lawless_suspect(broken: Sequence[Broken], graph: Graph) -> Suspect | None:
    """Suspect for a broken law, if the unit that broke it is known."""
    unit = next((each.unit for each in broken if each.unit is not None), None)
    return None if unit is None else Suspect(**_identity(unit, graph))


def _identity(unit: Unit, graph: Graph) -> dict[str, Any]:
    """The fields of a record that identify a node."""
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


def surveyed(
    surveys: Sequence[Survey], fields: Mapping[str, Any], max_inconclusive: float, doubted: bool = False
) -> dict[str, Any]:
    """The fields of a record that surveys at all points change: a wrong node fails a check, whatever the rest says.

    doubted  inconclusive entries of the dot test speak against the gradient
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
