"""Roles of constants: weights, which are trained, and others: statistics, quantization, constants of the algorithm.

Files keep all of them alike, as initializers or Constant nodes.  The first of five rules that holds decides; a role
carries it, so that one sees why.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from gradcheck_cli.autodiff.custom import with_installed
from gradcheck_cli.autodiff.reach import Flow, Selecting
from gradcheck_cli.graph import Array, Graph, Node, is_inexact
from gradcheck_cli.op import DTYPES, QUANTIZATION, STATISTIC, WEIGHT, Op, Ops, operator_of
from gradcheck_cli.ops import OPS

CONSTANT = "constant"
_EXPORTED = re.compile(r"constant|const(_|\d|$)|onnx::|val_", re.IGNORECASE)  # how exporters call what has no name
_LARGE_NEGATIVE = -1e3  # what an attention mask adds
_AT_ONCE = 1 << 16  # entries


@dataclass(frozen=True, slots=True)
class ConstantRole:
    """The role of a constant, the number of the rule that gave it, and that rule in words."""

    role: str
    rule: int
    why: str


def constant_roles(
    graph: Graph, ys: Collection[str], named: Collection[str] = (), ops: Ops = OPS
) -> dict[str, ConstantRole]:
    """The roles of all constants of a floating-point type; `named` are those that a user calls by their names."""
    floats = [n for n, v in graph.constants.items() if is_inexact(v.dtype) and v.size]
    ops = with_installed(ops, graph)
    uses, needed = _uses(graph, floats, ops), graph.needed_for(ys)
    several = [n for n in floats if graph.constants[n].size > 1]
    rule = Selecting(Flow(graph, ops), graph.free_inputs, several, ys)
    return {n: _role(graph, n, uses.get(n, ()), needed, rule, named) for n in floats}


def weights(graph: Graph, ys: Collection[str], named: Collection[str] = (), ops: Ops = OPS) -> tuple[str, ...]:
    """The constants that are trained, wherever the file keeps them, as far as some y depends on them."""
    return tuple(n for n, found in constant_roles(graph, ys, named, ops).items() if found.role == WEIGHT)


def _role(
    graph: Graph,
    name: str,
    uses: Sequence[tuple[Op, int]],
    needed: Collection[str],
    rule: Selecting,
    named: Collection[str],
) -> ConstantRole:
    if name in named or name in graph.trained:
        return ConstantRole(WEIGHT, 1, "it was named" if name in named else "the file declares it so")
    of_operand = _by_operand(uses)
    if of_operand is not None:
        return of_operand
    if name not in needed:
        return ConstantRole(CONSTANT, 3, "no y depends on it")
    if rule.only_selects(name):
        return ConstantRole(CONSTANT, 3, "it only selects")
    value = graph.constants[name]
    if value.size == 1:
        module = name not in graph.inline and _is_of_module(name)
        why = "one entry, called as a module's" if module else "one entry, not called as a module's"
        return ConstantRole(WEIGHT if module else CONSTANT, 4, why)
    if _varies(value):
        return ConstantRole(WEIGHT, 5, "several values, on a path to y")
    return ConstantRole(CONSTANT, 5, "all values are equal, or a mask's")


def _by_operand(uses: Iterable[tuple[Op, int]]) -> ConstantRole | None:
    """The role of an operand of known operators; of several roles a weight counts last."""
    found: dict[str, str] = {}
    for op, index in uses:
        for role, operands in op.roles.items():
            if index in operands:
                found.setdefault(role, f"operand {index} of {op.name}")
    first = next((r for r in (STATISTIC, QUANTIZATION, WEIGHT) if r in found), None)
    return None if first is None else ConstantRole(first, 2, found[first])


def _uses(graph: Graph, names: Iterable[str], ops: Ops) -> dict[str, list[tuple[Op, int]]]:
    """Operators that read constants, and as which operand, through casts and changes of layout."""
    behind: dict[str, set[str]] = {n: {n} for n in names}
    found: dict[str, list[tuple[Op, int]]] = {}
    for node in graph.all_nodes:
        op = operator_of(ops, node)
        for index, read in enumerate(node.inputs):
            for name in behind.get(read, ()):
                found.setdefault(name, []).append((op, index))
                if op.lays_out(index):
                    for output in node.outputs:
                        behind.setdefault(output, set()).add(name)
    return found


def to_integers(node: Node, ops: Ops) -> bool:
    """True if a node makes integers or truth values of numbers."""
    if 0 in operator_of(ops, node).integral:
        return True
    dtype = DTYPES.get(node.attrs.get("to", 0)) if node.op == "Cast" else None
    return dtype is not None and not is_inexact(dtype)


def _is_of_module(name: str) -> bool:
    """True for a name such as encoder.scale: parts, of which the last is none that an exporter makes up."""
    *parts, last = re.split(r"[./]", name)
    return bool(parts) and bool(last) and _EXPORTED.match(last) is None


def _varies(value: Array) -> bool:
    """True for two different values or more, some other than 0, 1 and the large negative ones of a mask."""
    flat, first, differs, other = value.reshape(-1), value.reshape(-1)[0], False, False
    for start in range(0, flat.size, _AT_ONCE):
        part = flat[start : start + _AT_ONCE]
        differs = differs or bool((part != first).any())
        real = part.real
        other = other or bool((~((part == 0) | (part == 1) | (real <= _LARGE_NEGATIVE))).any())
        if differs and other:
            return True
    return False
