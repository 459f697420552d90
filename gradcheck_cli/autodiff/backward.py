"""The backward pass: adds the nodes of a derivative to the tape that holds the forward run.

Rules are plain transposes.  Summing to an operand's shape, matching its dtype and taking the real part happen here,
once, never in a rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import NodePlace, Region, Step, Tape, Var
from gradcheck_cli.autodiff.trace import GraphFunction
from gradcheck_cli.errors import NoGradientError
from gradcheck_cli.graph import Array, Node, between, is_inexact
from gradcheck_cli.op import Op

Aggregate: TypeAlias = Callable[[Sequence[Var]], Var]


@dataclass(frozen=True, slots=True)
class Unit:
    """The part of a tape that one rule differentiates: a step, or a region of steps."""

    op: Op
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    metadata: Mapping[str, Any]
    label: str
    node: Node | None
    place: NodePlace
    steps: range  # of the tape

    @property
    def origin(self) -> int:
        """Index of the model's node that it comes from, -1 for a node of a gradient."""
        return self.place.origin


@dataclass(frozen=True, slots=True)
class Descended:
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

    for unit in reversed(units):
        cts = [None if name in stop else collect(name) for name in unit.outputs]
        if all(ct is None for ct in cts):
            continue
        metadata = unit.node.metadata if colocate and unit.node is not None else {}
        with tape.within(scope=f"{unit.label}_grad", place=unit.place.gradient(unit.op.name, unit.label, metadata)):
            flows = pull_back(tape, unit, cts, wanted)
            flows = _gated(flows) if gate else flows
        for name, ct in flows:
            pending.setdefault(name, []).append(ct)
    return [collect(x) for x in xs]


def pull_back(
    tape: Tape, unit: Unit, cts: Sequence[Var | None], wanted: Collection[str] | None = None
) -> list[tuple[str, Var]]:
    """The cotangents of a unit's operands, by name, from those of its outputs.

    Only the `wanted` operands (default: all) get one; rules may skip the work for others.
    """
    op, ans = unit.op, [tape.find(name) for name in unit.outputs]
    primals = [tape.var(name) if name else None for name in unit.operands]
    assert op.vjp is not None
    many = op.many or len(unit.outputs) > 1
    spared = frozenset(unit.operands).difference(unit.operands if wanted is None else wanted)
    with tape.within(spared=spared):
        flows = op.vjp(*((tuple(cts), tuple(ans)) if many else (cts[0], ans[0])), *primals, **_metadata_on(tape, unit))
    if len(flows) != len(primals):
        raise ValueError(f"the rule of {op.name} gives {len(flows)} cotangents for {len(primals)} operands")
    flowing = [(x, ct) for x, ct in zip(primals, flows, strict=True) if x is not None and ct is not None]
    return [(x.name, fit(ct, x)) for x, ct in flowing if x.name not in spared and inexact(x)]


def _metadata_on(tape: Tape, unit: Unit) -> Mapping[str, Any]:
    """The metadata of a unit whose rule runs on a tape, perhaps another one: subgraphs among them are called on that."""
    return {
        k: v.on(tape) if isinstance(v, GraphFunction) and v.tape is not tape else v for k, v in unit.metadata.items()
    }


def fit(ct: Var, x: Var) -> Var:
    """A cotangent summed to the shape of its operand, of its dtype, real if the operand is real."""
    shape, dtype = x.shape, x.dtype
    if dtype.kind != "c":
        ct = sym.real(ct)
    return sym.cast(unbroadcast(ct, shape), dtype)


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
    parts, halted = list(_parts(tape)), set(stop)

    def through(item: tuple[int, Step | Region], reached: Collection[str]) -> list[str]:
        arriving = any(n in reached for n in item[1].operands)
        return [n for n in item[1].outputs if n not in halted and _carries(tape, n)] if arriving else []

    found = (parts[i] for i in between(parts, xs, ys, through, lambda item: item[1].operands))
    return [unit_of(part, index, tape.steps[index].node) for index, part in found]


def onward(units: Iterable[Unit], x: str) -> list[Unit]:
    """The given units (which lie between some xs and ys) that also lie between one x and the ys, in order."""
    names, found = {x}, []
    for unit in units:
        if not names.isdisjoint(unit.operands):
            names.update(n for n in unit.outputs if n)
            found.append(unit)
    return found


def check_rules(units: Iterable[Unit]) -> None:
    """Raises NoGradientError that lists every unit without a rule."""
    missing = [u for u in units if u.op.vjp is None]
    if missing:
        named = ", ".join(dict.fromkeys(f"'{u.op.full_name}' ({_numbered(u)})" for u in missing))
        records = [(u.origin, u.op.name, u.op.domain, u.label) for u in missing]
        raise NoGradientError(f"no gradient for {named}", records)


def _parts(tape: Tape) -> Iterator[tuple[int, Step | Region]]:
    """Steps and outermost regions of a tape in order, each with the number of its first step."""
    regions = {region.start: region for region in tape.regions}  # of nested ones the outermost, which ends last
    index = 0
    while index < len(tape.steps):
        region = regions.get(index)
        part = region if region is not None and region.stop > index else tape.steps[index]
        yield index, part
        index = part.stop if isinstance(part, Region) else index + 1


def unit_of(part: Step | Region, index: int, node: Node | None = None) -> Unit:
    """The unit of a step, or of a region of steps that begins with number `index`."""
    node, stop = (part.node, index + 1) if isinstance(part, Step) else (node, part.stop)
    steps = range(index, stop)
    return Unit(part.op, part.operands, part.outputs, part.metadata, part.label, node, part.place, steps)


def _carries(tape: Tape, name: str) -> bool:
    """True if a tensor of this name is on the tape and holds numbers with a derivative."""
    return name in tape.values and is_inexact(tape.values.like(name).dtype)


def _numbered(unit: Unit) -> str:
    added = unit.origin < 0 and bool(unit.place.inside)
    return f"in the {unit.place.inside}" if added else f"node {unit.origin} {unit.label!r}"


def _gated(flows: list[tuple[str, Var]]) -> list[tuple[str, Var]]:
    return [(name, sym.identity(ct)) for name, ct in flows]
