"""Operators from outside: defined by a spec, or added by other installed packages.

A spec defines one by a forward graph and, optionally, the gradient graph that is under test.  A package names an `Op`,
several of them, or a function that returns either, as an entry point:

    [project.entry-points."gradcheck.operators"]
    acme = "acme.gradients:OPERATORS"

Packages are asked only where a model has an operator that gradcheck does not know.  Its own come first: a rule for one
of those is handed over as `check(..., ops=...)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import misshapen
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.autodiff.trace import GraphFunction
from gradcheck_cli.errors import SpecError, UsageError, counted, spelled
from gradcheck_cli.formats.source import OperatorBody, Source
from gradcheck_cli.graph import Graph
from gradcheck_cli.op import Along, Interval, Op, Ops, deciding

GROUP = "gradcheck.operators"


def ops_for(source: Source, ops: Ops) -> Ops:
    """The operator table for a source: with the operators that its spec defines, and those of installed packages."""
    made = [custom_op(body) for body in source.operators]
    return with_installed({**ops, **{op.key: op for op in made}} if made else ops, source.graph)


def with_installed(ops: Ops, graph: Graph) -> Ops:
    """The operator table, extended by installed packages if the graph has an operator that it lacks."""
    if all(node.key in ops for node in graph.all_nodes):
        return ops
    added = installed()
    return {**added, **ops} if added else ops


def unused_operators(source: Source, own: Ops) -> Iterator[str]:
    """Notes on operators from outside that a check does not use, so that their rules are not checked; `own` come first."""
    for name in source.unused:
        yield f"the operator {name} under 'ops' is used by no model of the spec: its rule is not checked"
    keys = {node.key for node in source.graph.all_nodes}
    if keys <= own.keys() or not installed.cache_info().currsize:  # no package was asked
        return
    for key in sorted(keys & own.keys() & installed().keys()):
        name = installed()[key].full_name
        yield f"the rule for {name} of an installed package is not used: gradcheck's own comes first"


@cache
def installed() -> Mapping[tuple[str, str], Op]:
    """The operators of all installed packages; UsageError if one cannot be loaded, or two define the same."""
    found: dict[tuple[str, str], Op] = {}
    origin: dict[tuple[str, str], str] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda e: (e.name, e.value)):
        for op in _operators(entry):
            if op.key in found:
                raise UsageError(f"{op.full_name} is defined by {origin[op.key]} and by {_described(entry)}")
            found[op.key], origin[op.key] = op, _described(entry)
    return found


def _operators(entry: EntryPoint) -> Iterable[Op]:
    try:
        value = entry.load()
        value = value() if callable(value) and not isinstance(value, Op) else value
    except (Exception, SystemExit) as error:  # foreign code may raise anything
        raise UsageError(f"{_described(entry)} cannot be loaded: {spelled(error)}") from error
    values = [value] if isinstance(value, Op) else list(value) if isinstance(value, Iterable) else [value]
    wrong = next((v for v in values if not isinstance(v, Op)), None)
    if wrong is not None:
        raise UsageError(f"{_described(entry)} gives {type(wrong).__name__} {wrong!r}, which is no gradcheck_cli.Op")
    return values


def _described(entry: EntryPoint) -> str:
    package = f" of {entry.dist.name}" if entry.dist is not None else ""
    return f"{GROUP} '{entry.name} = {entry.value}'{package}"


def custom_op(body: OperatorBody) -> Op:
    """The operator of a spec: a composed one, whose rule is the gradient body."""

    def forward(*operands: Var | None) -> tuple[Var, ...]:
        given = [x for x in operands if x is not None]
        if len(given) != len(body.forward.inputs):
            raise SpecError(f"{body.name} takes {counted(len(body.forward.inputs), 'input')}, not {len(given)}")
        return GraphFunction(given[0].tape, body.forward, {}, f"forward of {body.name}")(*given)

    return Op(
        body.name,
        forward,
        _rule(body) if body.gradient is not None else None,
        domain=body.domain,
        composed=True,
        inner=body.forward if body.gradient is None else None,
        cuts=deciding(*body.cuts) if body.cuts else None,
        **_facts(body.facts),
    )


def _facts(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an `Op` for the facts that a spec states."""
    found = {key: value for key, value in stated.items() if key not in ("domain", "integers", "roles")}
    if "domain" in stated:
        found["valid"] = {operand: Interval.inside(*ends) for operand, ends in stated["domain"].items()}
    if "integers" in stated:
        found["integers"] = {operand: _integers(value) for operand, value in stated["integers"].items()}
    roles = stated.get("roles", {})
    if roles:
        found["roles"] = {role: tuple(i for i, each in roles.items() if each == role) for role in roles.values()}
    return found


def _integers(value: Any) -> tuple[int, int] | Along:
    if not isinstance(value, Mapping):
        return value[0], value[1]
    return Along(value["axis"], value["along"], value["lengths"])


def _rule(body: OperatorBody) -> Any:
    """The gradient body as a rule: it reads the operator's inputs x, outputs y and cotangents dy by name."""
    gradient = body.gradient
    assert gradient is not None

    def vjp(ct: Any, ans: Any, *primals: Var) -> tuple[Var | None, ...]:
        cts, answers = _as_tuple(ct), _as_tuple(ans)
        known = dict(zip(body.forward.inputs, primals, strict=True))
        known.update(zip(body.forward.outputs, answers, strict=True))
        pairs = zip(body.forward.outputs, cts, answers, strict=True)
        known.update({f"d{name}": sym.zeros_like(y) if ct is None else ct for name, ct, y in pairs})
        function = GraphFunction(primals[0].tape, gradient, known, f"gradient of {body.name}")
        made = function(*[known[name] for name in gradient.inputs])
        by_input = {body.gradient_of[o]: v for o, v in zip(gradient.outputs, made, strict=True)}
        for name, ct in by_input.items():
            if ct.shape != known[name].shape and sym.wanted(known[name]):
                raise misshapen(f"{body.domain}.{body.name}", repr(name), ct.shape, known[name].shape)
        return tuple(by_input.get(name) for name in body.forward.inputs)

    return vjp


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
