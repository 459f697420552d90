"""Which node's derivative is wrong in somebody else's gradient, as far as what they give lets one tell.

A node of whose outputs they have the cotangents, and not of its operands, is the suspect.  Where they do not show what
they have in between, it is one of several: the one whose derivative has most in it to get wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.checks.claims.evaluated import Answer
from gradcheck_cli.checks.claims.evidence import Evidence, gathered, near
from gradcheck_cli.checks.claims.names import gradient_names
from gradcheck_cli.checks.claims.way import Block, way_between
from gradcheck_cli.checks.diagnose import diagnosis as faults
from gradcheck_cli.graph import Array, Graph, describe
from gradcheck_cli.results.record import Suspect

_MOST = 400  # nodes on the way: of more one would wait too long
_SHOWN = 3  # nodes that are named


def blame(
    tape: Tape, y: str, x: str, claims: Mapping[str, tuple[bool, Array | None]], answer: Answer | None, graph: Graph
) -> Suspect | None:
    """The suspect for a claim about y by x; `claims` are outcomes and Jacobians of what is claimed by each tensor."""
    with tape.aside():
        way = way_between(tape, [x, *(other for other in claims if other != x)], y, graph)
        if way is None or len(way.blocks) > _MOST:
            return None
        found = gathered(way, None if answer is None else answer.tape, claims)
        some = _suspects(found, x)
    if not some:
        return None
    block, operand = some[0]
    what, node, others = _words(found, block, operand, answer, graph), block.node, [each.where for each, _ in some[1:]]
    also = f"; nothing that was given tells it from {_listed(others)}" if others else ""
    return Suspect(
        block.index, node.op, node.name, node.outputs, node.inputs, at=operand, index=_worst(found, operand),
        diagnosis=f"{what}{also}",
    )  # fmt: skip


def other_forward(tape: Tape, answer: Answer, graph: Graph) -> Suspect | None:
    """The first node whose result is another one in the model that a claim is from: its derivative is of that."""
    if answer.tape is None or answer.tape is tape:
        return None
    for index, node in enumerate(graph.nodes):
        for name in node.outputs:
            ours, theirs = tape.named.get(name), answer.tape.named.get(name)
            if ours is None or theirs is None or not ours.dtype.kind == theirs.dtype.kind == "f":
                continue
            if not near(ours.value, theirs.value):
                what = f"the model of the gradient computes another {name}: it differentiates something else"
                return Suspect(index, node.op, node.name, node.outputs, node.inputs, at=name, diagnosis=what)
    return None


def _suspects(found: Evidence, x: str) -> list[tuple[Block, str]]:
    """The nodes that may be at fault with their operands, the most likely one first."""
    resolved, reached, cleared = found.resolved(), found.way.reached(x), list[tuple[Block, str]]()
    for block in reversed(found.way.blocks):
        lacking = [n for n in block.operands if n in reached and n not in resolved]
        if not lacking or not found.right.issuperset(block.outputs):
            continue
        flows = found.way.flows(block)
        open_ = [n for n in lacking if n not in flows or not found.occurs(flows[n])]
        operand = next((n for n in open_ or lacking if n in found.wrong), (open_ or lacking)[0])
        if open_:
            return _region(found, block, operand, resolved)
        cleared.append((block, operand))  # its own part of a sum is there: another one lacks, or nobody adds them
    return cleared[:1]


def _region(found: Evidence, block: Block, operand: str, resolved: set[str]) -> list[tuple[Block, str]]:
    """A node and those before it, as far as nothing is known of what flows between them."""
    some, open_ = [(block, operand)], {n for n in block.operands if n not in resolved and n not in found.wrong}
    for each in reversed(found.way.blocks):
        if not open_.isdisjoint(each.outputs):
            lacking = [n for n in each.operands if n not in resolved]
            some += [(each, lacking[0])] if lacking else []
            open_.update(n for n in lacking if n not in found.wrong)
    return sorted(some, key=lambda pair: (pair[0].plain, -len(pair[0].node.attrs)))


def _worst(found: Evidence, operand: str) -> tuple[int, ...] | None:
    """Where their cotangent of an operand is off most of all."""
    if operand not in found.theirs:
        return None
    gap = np.abs(found.theirs[operand] - found.way.ours[operand])
    shape = found.way.shape(operand)
    at = int(np.argmax(np.max(np.nan_to_num(gap, nan=np.inf), axis=1, initial=0.0)))
    return tuple(int(i) for i in np.unravel_index(at, shape)) if shape else ()


def _words(found: Evidence, block: Block, operand: str, answer: Answer | None, graph: Graph) -> str:
    """What their cotangent of the operand looks like, and which nodes compute it."""
    theirs, ours, shape = found.theirs.get(operand), found.way.ours[operand], found.way.shape(operand)
    if theirs is None:
        seen = found.right.issuperset(block.outputs)
        has = "what was given has the gradient by its output, and not" if seen else "what was given does not have"
        return f"{has} that by {operand}" if seen else f"{has} the gradient by {operand}"
    shapes = [found.way.shape(n) for n in (*block.operands, *block.outputs)]
    numbers = faults.numbers_of(block.node.attrs, shapes)
    clause = faults.diagnosis(faults.Evidence(theirs.T, ours.T, shape, numbers)) or "is not what it should be"
    nodes = [] if answer is None or answer.graph is None else list(_nodes(found, operand, answer.graph, graph))
    return f"the gradient by {operand} {clause}{f'; it is computed by {_listed(nodes)}' if nodes else ''}"


def _nodes(found: Evidence, operand: str, theirs: Graph, graph: Graph) -> Iterator[str]:
    """The nodes that compute their cotangent of an operand from what is right, in the order of their graph."""
    forward = graph.needed_for(found.way.ends)
    fine = {name for n in found.right for name in gradient_names(n)}
    wanted, taken = {*gradient_names(operand)}, []
    for index in range(len(theirs.nodes) - 1, -1, -1):
        node = theirs.nodes[index]
        if not wanted.isdisjoint(node.outputs):
            taken.append(describe(index, node))
            wanted.update(n for n in node.reads if n not in fine and n not in forward)
    yield from reversed(taken)


def _listed(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return ", ".join(nodes[:_SHOWN]) + more
