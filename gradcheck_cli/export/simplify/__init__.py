"""Graphs made smaller: nothing is computed twice, and nothing for nothing.

A sweep visits the nodes in order and rewrites them by the rules of `RULES`; each has a docstring that says why the
values stay.  Sweeps are repeated until one changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gradcheck_cli.export.simplify.arithmetic import ARITHMETIC, PRODUCTS
from gradcheck_cli.export.simplify.draft import Names, Rules, Scope, known_types, names_in, swept
from gradcheck_cli.export.simplify.moves import COPIES, FOLDING, MOVES, SIZES
from gradcheck_cli.graph import Graph


def _joined(*tables: Rules) -> Rules:
    ops = {op for table in tables for op in table}
    return {op: tuple(rule for table in tables for rule in table.get(op, ())) for op in ops}


RULES: Rules = _joined(SIZES, MOVES, COPIES, ARITHMETIC, PRODUCTS, FOLDING)  # "" are those for every operator


def simplified(graph: Graph, *, kept: Collection[str] = (), rules: Rules = RULES) -> Graph:
    """The same function of the same inputs by fewer nodes.

    Names and types of inputs and outputs stay, and so do `kept` tensors: nodes that compute them and constants are
    left as they are, unless no output needs them.  Values stay up to rounding and the sign of a zero.
    """
    scope = Scope(frozenset(kept), Names(set(names_in(graph))), rules)
    for _ in range(len(graph.nodes) + 1):  # every round spares a node or brings one closer to the outputs
        smaller = _settled(graph, scope)
        if smaller is graph:
            break
        graph = smaller
    return graph


def _settled(graph: Graph, scope: Scope) -> Graph:
    """The graph after all that follows from types that are known now; itself where nothing does."""
    known = known_types(graph)
    for _ in range(len(graph.nodes) + 1):
        draft = swept(graph, known, scope)
        smaller = draft.finished()
        if not draft.changes:
            break
        graph, known = smaller, replace(known, own=draft.types)
    return graph
