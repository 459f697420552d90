"""Simplifies graphs: nothing is computed twice, and nothing that no output needs.

A sweep visits the nodes in order and rewrites them by the rules of `RULES`; the docstring of a rule says why values
stay the same.  Sweeps are repeated until one changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gradcheck_cli.export.simplify.arithmetic import ARITHMETIC, PRODUCTS
from gradcheck_cli.export.simplify.draft import Rules, SweepScope, known_types, swept
from gradcheck_cli.export.simplify.moves import COPIES, FOLDING, MOVES, SIZES
from gradcheck_cli.graph import FreshNames, Graph

_TABLES = (SIZES, MOVES, COPIES, ARITHMETIC, PRODUCTS, FOLDING)
RULES: Rules = {  # those under "" are for every operator
    op: tuple(rule for table in _TABLES for rule in table.get(op, ()))
    for op in {op for table in _TABLES for op in table}
}


def simplified(graph: Graph, *, kept: Collection[str] = (), rules: Rules = RULES) -> Graph:
    """A graph that computes the same by fewer nodes.

    Names and types of inputs and outputs stay.  `kept` tensors and the nodes that compute them stay too, unless no
    output needs them.  Values change by rounding and the sign of a zero at most.
    """
    scope = SweepScope(frozenset(kept), FreshNames(graph.all_tensors), rules)
    for _ in range(len(graph.nodes) + 1):  # every round saves a node or moves one closer to the outputs
        smaller = _settled(graph, scope)
        if smaller is graph:
            break
        graph = smaller
    return graph


def _settled(graph: Graph, scope: SweepScope) -> Graph:
    """The graph after all sweeps that the types known now allow; the same object if nothing changes."""
    known = known_types(graph)
    for _ in range(len(graph.nodes) + 1):
        draft = swept(graph, known, scope)
        smaller = draft.finished()
        if not draft.changes:
            break
        graph, known = smaller, replace(known, own=draft.types)
    return graph
