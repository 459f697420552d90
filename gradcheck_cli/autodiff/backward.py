"""The backward pass: adds the nodes of a derivative to the tape that holds the forward run.

Rules are plain transposes.  Summing to an operand's shape, matching its dtype and taking the real part happen here,
once, never in a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.reach import onward, parts_between
from gradcheck_cli.autodiff.tape import Step, Tape, Unit, Var, quietly
from gradcheck_cli.autodiff.trace import GraphFunction
from gradcheck_cli.errors import GradcheckError, MisshapenError, ModelError, NoGradientError, counted, spelled
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.op.batching import is_ours

Aggregate: TypeAlias = Callable[[Sequence[Var]], Var]


class Descended(Struct, frozen=True):
    """The cotangent of y that a backward pass started from, and those of xs that it gave, by name on the tape."""

    start: Array
    ends: dict[str, Array]


def add_n(cts: Sequence[Var]) -> Var:
    """The sum of all cotangents of a tensor, as one `Sum` node."""
    return cts[0] if len(cts) == 1 else cts[0].tape.emit("Sum", cts, {}, outputs=[cts[0].tape.fresh("AddN")])[0]


def gradients(
    tape: Tape,
    cotangents: Mapping[str, Var],
    xs: Sequence[str],
    *,
    stop: Collection[str] = (),
    aggregate: Aggregate = add_n,
    gate: bool = False,
    colocate: bool = False,
) -> list[Var | None]:
    """The cotangents of `xs`, the sum over y of (dy/dx)^T ct_y; None for an x that no y depends on.

    `cotangents` holds ct_y by the name of y.  `stop` are tensors that count as constants; `gate` computes all
    cotangents of an operator before any is used; `colocate` gives added nodes the metadata of their forward node.
    NoGradientError names every operator on the way that has no rule.
    """
    units = units_between(tape, xs, cotangents, stop)
    check_rules(units)
    pending = {name: [ct] for name, ct in cotangents.items()}
    wanted = {*xs, *(name for unit in units for name in unit.outputs)}
    total: dict[str, Var | None] = {}

    def collect(name: str) -> Var | None:
        if name not in total and name in pending:
            total[name] = aggregate(pending[name])
        return total.get(name)

    with quietly():
        for unit in reversed(units):
            cts = [None if name in stop else collect(name) for name in unit.outputs]
            if all(ct is None for ct in cts):
                continue
            metadata = unit.node.metadata if colocate and unit.node is not None else {}
            with tape.within(scope=f"{unit.label}_grad", place=unit.place.gradient(unit.op.name, unit.label, metadata)):
                flows = pull_back(tape, unit, cts, wanted)
                flows = [(name, sym.identity(ct)) for name, ct in flows] if gate else flows
            for name, ct in flows:
                pending.setdefault(name, []).append(ct)
        return [collect(x) for x in xs]


def pull_back(
    tape: Tape, unit: Unit, cts: Sequence[Var | None], wanted: Collection[str] | None = None
) -> list[tuple[str, Var]]:
    """The cotangents of a unit's operands, by name, from those of its outputs.

    Only the `wanted` operands (default: all) get one; rules may skip the work for others.
    """
    op, ans = unit.op, [tape.var(name) if name in tape.values else None for name in unit.outputs]
    primals = [tape.var(name) if name else None for name in unit.operands]
    many = op.many or len(unit.outputs) > 1
    given = cts if op.vjp is None or is_ours(op.vjp) else [_or_zeros(ct, y) for ct, y in zip(cts, ans, strict=True)]
    spared = frozenset(unit.operands).difference(unit.operands if wanted is None else wanted)
    # a rule may run on another tape than the unit's: subgraphs are called on that
    metadata = {k: v.on(tape) if isinstance(v, GraphFunction) and v.tape is not tape else v
                for k, v in unit.metadata.items()}  # fmt: skip
    with tape.within(spared=spared):
        flows = _flows(unit, (*((tuple(given), tuple(ans)) if many else (given[0], ans[0])), *primals), metadata)
    _require_cotangents(unit, flows, primals)
    alone = len(primals) - primals.count(None) == 1  # with nothing that it would be broadcast to
    found = []
    for number, (x, ct) in enumerate(zip(primals, flows, strict=True)):
        if x is not None and ct is not None and x.name not in spared and inexact(x):
            if not sums_to(ct.shape, x.shape):
                raise misshapen(op.full_name, f"operand {number}", ct.shape, x.shape)
            found.append((x.name, fit(ct, x, loose=not alone)))
    return found


def _or_zeros(ct: Var | None, y: Var | None) -> Var | None:
    """The cotangent of a result for a rule of others, which need not know of results that nothing depends on."""
    return sym.zeros_like(y) if ct is None and y is not None and inexact(y) else ct


def sums_to(given: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """True if an operand of this shape may be broadcast to the shape that is given."""
    pairs = zip(given[::-1], shape[::-1], strict=False)
    return len(given) >= len(shape) and all(of in (n, 1) for n, of in pairs)


def misshapen(op: str, operand: str, given: tuple[int, ...], shape: tuple[int, ...]) -> MisshapenError:
    """The error of a rule that gives an operand a gradient of another shape."""
    gives, right = (f"[{','.join(map(str, sizes))}]" for sizes in (given, shape))
    hint = f": a sum over the axes along which {operand} is broadcast is missing" if sums_to(given, shape) else ""
    return MisshapenError(f"the rule of {op} gives {operand} a gradient of the shape {gives}, not {right}{hint}")


def _flows(unit: Unit, given: Sequence[Any], metadata: Mapping[str, Any]) -> Any:
    """Gives the results of a unit's rule; ModelError if a rule of others raises."""
    op = unit.op
    assert op.vjp is not None
    try:
        return op.vjp(*given, **metadata)
    except (GradcheckError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if is_ours(op.vjp):
            raise
        raise ModelError(f"{unit.where}: the rule of {op.full_name} raises {spelled(error)}", op=op.name) from error


def _require_cotangents(unit: Unit, flows: Any, primals: Sequence[Var | None]) -> None:
    """Raises ModelError unless a rule gives a cotangent, or None, for each operand."""
    wrong = ""
    if not isinstance(flows, tuple | list):
        wrong = f"{_kind(flows)}, no tuple of cotangents"
    elif len(flows) != len(primals):
        wrong = f"{counted(len(flows), 'cotangent')} for {counted(len(primals), 'operand')}"
    elif (odd := next((i for i, ct in enumerate(flows) if not isinstance(ct, Var | None)), None)) is not None:
        wrong = f"{_kind(flows[odd])} for operand {odd}, where a cotangent is a tensor (Var) or None"
    if wrong:
        raise ModelError(f"{unit.where}: the rule of {unit.op.full_name} gives {wrong}", op=unit.op.name)


def _kind(value: Any) -> str:
    """A value that is no cotangent, for messages."""
    return "one tensor" if isinstance(value, Var) else f"a value of type {type(value).__name__}"


def fit(ct: Var, x: Var, *, loose: bool = True) -> Var:
    """A cotangent summed to the shape of its operand, of its dtype, real if the operand is real.

    Where x is loose and may be broadcast, the axes to sum over are found when the tape runs.
    """
    shape, dtype = x.shape, x.dtype
    if dtype.kind != "c":
        ct = sym.real(ct)
    return sym.cast(sym.sum_like(ct, x) if loose and x.tape.loose.holds(x) else unbroadcast(ct, shape), dtype)


def unbroadcast(ct: Var, shape: tuple[int, ...]) -> Var:
    """The sum over the axes along which an operand of this shape was broadcast."""
    if ct.shape == shape:
        return ct
    front = ct.ndim - len(shape)
    axes = [i for i in range(ct.ndim) if i < front or (shape[i - front] == 1 and ct.shape[i] != 1)]
    return sym.reshape(sym.sum(ct, axes, keepdims=len(axes) > front), shape)


def inexact(x: Var) -> bool:
    """True if x holds floating-point or complex numbers, so that a derivative can flow through it."""
    return is_inexact(x.dtype)


def units_between(tape: Tape, xs: Iterable[str], ys: Iterable[str], stop: Collection[str] = ()) -> list[Unit]:
    """The units through which a derivative of ys by xs flows, in order."""
    halted = set(stop)

    def flows(name: str) -> bool:
        return name not in halted and name in tape.values and is_inexact(tape.values.like(name).dtype)

    return [unit_of(part, index) if isinstance(part, Step) else replace(part, node=tape.steps[index].node)
            for index, part in parts_between(tape, xs, ys, flows)]  # fmt: skip


class Course(Struct, frozen=True, dict=True):
    """The units that lie between some xs and ys, in order."""

    units: Sequence[Unit]

    @cached_property
    def _readers(self) -> dict[str, list[int]]:
        readers: dict[str, list[int]] = {}
        for number, unit in enumerate(self.units):
            for name in dict.fromkeys(unit.operands):
                readers.setdefault(name, []).append(number)
        return readers

    def onward(self, x: str) -> list[Unit]:
        """The ones that lie between one x and the ys, in order."""
        return [self.units[number] for number in sorted(onward([x], self._through))]

    def _through(self, name: str) -> Iterator[tuple[int, Sequence[str]]]:
        for number in self._readers.get(name, ()):
            yield number, [n for n in self.units[number].outputs if n]


def check_rules(units: Iterable[Unit]) -> None:
    """Raises NoGradientError that lists every unit without a rule."""
    missing = [u for u in units if u.op.vjp is None]
    if missing:
        added = [f"in the {u.place.inside}" if u.place.origin < 0 and u.place.inside else "" for u in missing]
        places = [place or f"node {u.place.origin} {u.label!r}" for u, place in zip(missing, added, strict=True)]
        named = ", ".join(dict.fromkeys(f"'{u.op.full_name}' ({at})" for u, at in zip(missing, places, strict=True)))
        records = [(u.place.origin, u.op.name, u.op.domain, u.label) for u in missing]
        raise NoGradientError(f"no gradient for {named}", records)


def unit_of(step: Step, index: int) -> Unit:
    """The unit of a step, which has number `index`."""
    steps = range(index, index + 1)
    return Unit(step.op, step.operands, step.outputs, step.metadata, step.label, step.place, steps, step.node)
