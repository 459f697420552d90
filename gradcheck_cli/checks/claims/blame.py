"""The node whose derivative is wrong in a claimed gradient, as far as what was given lets one tell.

A node is the suspect if the claim has the right cotangents of its outputs, but not of its operands.  Where nothing is
known in between, several nodes may be at fault, and the one whose derivative has most in it to get wrong is named.

A cotangent of the claim is known to be right or wrong by its name, by its numbers occurring anywhere in the graph that
computes the claim, by claims about other tensors, which are right only if every cotangent they went through was, and by
whether any cotangent of a tensor could have led to the claimed numbers.

A wrong claim that is the right gradient in another form, or of another scale, is told as that (`likeness`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import permutations

import numpy as np

from gradcheck_cli.autodiff.backward import pull_back, units_between
from gradcheck_cli.autodiff.tape import Tape, Unit
from gradcheck_cli.checks.claims.claim import gradient_names, layouts
from gradcheck_cli.checks.diagnose import diagnosis as faults
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.errors import listed
from gradcheck_cli.graph import Array, Graph, Node, computing, describe
from gradcheck_cli.jacobian.jacobian import Backward
from gradcheck_cli.op.batching import elementwise
from gradcheck_cli.results.record import Suspect

_NEAR = 1e-6  # share of the largest entry that counts as rounding
_LEFT = 1e-4  # relative residual above which numbers cannot have come through a tensor
_MOST_ENTRIES = 1 << 22  # of a Jacobian that is solved for a cotangent, and of a gradient in other forms
_SAME = 1e-3  # relative distance of two gradients that are the same but for rounding
_MOST_AXES, _LARGEST = 5, 4096
_NAMED = {
    (1, 0): "the transpose of {}",
    (0, 2, 3, 1): "{} with its channels last",
    (0, 3, 1, 2): "{} with its channels first",
}
_MOST_NODES = 400  # between x and y, above which no suspect is looked for
_SHOWN = 3  # nodes named in a sentence


def blame(
    tape: Tape, y: str, x: str, claims: Mapping[str, tuple[bool, Array | None]], graph: Graph, other: Tape | None,
    theirs: Graph | None,
) -> Suspect | None:  # fmt: skip
    """The suspect for a claim about y by x; `claims` are verdict and Jacobian of the claim by each tensor.

    `other` is the tape that computes the claim, and `theirs` its graph, if there is one.
    """
    with tape.aside():
        paths = paths_between(tape, [x, *(other for other in claims if other != x)], y, graph)
        if paths is None or len(paths.blocks) > _MOST_NODES:
            return None
        found = gathered(paths, other, claims)
        some = _suspects(found, x)
    if not some:
        return None
    block, operand = some[0]
    what, node, others = _words(found, block, operand, theirs, graph), block.node, [each.where for each, _ in some[1:]]
    also = f"; nothing that was given tells it from {listed(others, _SHOWN)}" if others else ""
    return Suspect(
        block.index, node.op, node.name, node.outputs, node.inputs, at=operand, index=_worst(found, operand),
        diagnosis=f"{what}{also}",
    )  # fmt: skip


def other_forward(tape: Tape, other: Tape | None, graph: Graph) -> Suspect | None:
    """The first node whose result differs in the model of the claim: that model differentiates something else."""
    if other is None or other is tape:
        return None
    for index, node in enumerate(graph.nodes):
        for name in node.outputs:
            ours, theirs = tape.named.get(name), other.named.get(name)
            if ours is None or theirs is None or not ours.dtype.kind == theirs.dtype.kind == "f":
                continue
            if not near(ours.value, theirs.value):
                what = f"the model of the gradient computes another {name}: it differentiates something else"
                return Suspect(index, node.op, node.name, node.outputs, node.inputs, at=name, diagnosis=what)
    return None


def _suspects(found: ClaimEvidence, x: str) -> list[tuple[Block, str]]:
    """The nodes that may be at fault with an operand of each, the most likely one first."""
    resolved, reached, cleared = found.resolved(), found.paths.reached(x), list[tuple[Block, str]]()
    for block in reversed(found.paths.blocks):
        lacking = [n for n in block.operands if n in reached and n not in resolved]
        if not lacking or not found.right.issuperset(block.outputs):
            continue
        flows = found.paths.flows(block)
        open_ = [n for n in lacking if n not in flows or not found.occurs(flows[n])]
        operand = next((n for n in open_ or lacking if n in found.wrong), (open_ or lacking)[0])
        if open_:
            return _region(found, block, operand, resolved)
        cleared.append((block, operand))  # its part of a sum is there: another one is missing, or the sum
    return cleared[:1]


def _region(found: ClaimEvidence, block: Block, operand: str, resolved: set[str]) -> list[tuple[Block, str]]:
    """A node and those before it, as far as nothing is known of the cotangents between them."""
    some, open_ = [(block, operand)], {n for n in block.operands if n not in resolved and n not in found.wrong}
    for each in reversed(found.paths.blocks):
        if not open_.isdisjoint(each.outputs):
            lacking = [n for n in each.operands if n not in resolved]
            some += [(each, lacking[0])] if lacking else []
            open_.update(n for n in lacking if n not in found.wrong)
    return sorted(some, key=lambda pair: (found.paths.is_total(pair[0]), pair[0].plain, -len(pair[0].node.attrs)))


def _worst(found: ClaimEvidence, operand: str) -> tuple[int, ...] | None:
    """The index of the largest error in the claimed cotangent of an operand."""
    if operand not in found.theirs:
        return None
    gap = np.abs(found.theirs[operand] - found.paths.ours[operand])
    shape = found.paths.shape(operand)
    at = int(np.argmax(np.max(np.nan_to_num(gap, nan=np.inf), axis=1, initial=0.0)))
    return tuple(int(i) for i in np.unravel_index(at, shape)) if shape else ()


def _words(found: ClaimEvidence, block: Block, operand: str, theirs: Graph | None, graph: Graph) -> str:
    """The fault in the claimed cotangent of the operand, and the nodes that compute it."""
    given, right, shape = found.theirs.get(operand), found.paths.ours[operand], found.paths.shape(operand)
    if given is None:
        seen = found.right.issuperset(block.outputs)
        has = "what was given has the gradient by its output, and not" if seen else "what was given does not have"
        return f"{has} that by {operand}" if seen else f"{has} the gradient by {operand}"
    shapes = [found.paths.shape(n) for n in (*block.operands, *block.outputs)]
    numbers = faults.numbers_of(block.node.attrs, shapes)
    clause = faults.diagnosis(faults.Evidence(given.T, right.T, shape, numbers)) or "is not what it should be"
    nodes = [] if theirs is None else _nodes(found, operand, theirs, graph)
    return f"the gradient by {operand} {clause}{f'; it is computed by {listed(nodes, _SHOWN)}' if nodes else ''}"


def _nodes(found: ClaimEvidence, operand: str, theirs: Graph, graph: Graph) -> list[str]:
    """The nodes that compute the claimed cotangent of an operand from right ones, in order."""
    forward = graph.needed_for(found.paths.ends)
    fine = {name for n in found.right for name in gradient_names(n)}
    taken = computing(theirs.nodes, gradient_names(operand), fine | forward)[0]
    return [describe(i, theirs.nodes[i]) for i in taken]


@dataclass(slots=True)
class ClaimEvidence:
    """Tensors on the paths of which the claim has, or does not have, the right cotangent.

    `theirs` are the claimed cotangents that are known, as Jacobians.
    """

    paths: Paths
    right: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)
    theirs: dict[str, Array] = field(default_factory=dict)
    pool: dict[int, list[Array]] = field(default_factory=dict)  # see `_pool`

    def occurs(self, cotangent: Array) -> bool:
        """True if the numbers of a cotangent are those of some tensor that computes the claim, in any order."""
        wanted = np.sort(cotangent, axis=None)
        return bool(cotangent.any()) and any(near(wanted, each) for each in self.pool.get(wanted.size, ()))

    def resolved(self) -> set[str]:
        """Tensors with the right cotangent, and those behind them: nothing up to there is wrong."""
        found = {*self.right}
        for block in self.paths.blocks:
            if found.issuperset(block.operands):
                found.update(n for n in block.outputs if n not in self.wrong)
        return found


def gathered(paths: Paths, other: Tape | None, claims: Mapping[str, tuple[bool, Array | None]]) -> ClaimEvidence:
    """The evidence on claims by x (verdict and numbers); `other` is the tape that computes the claim."""
    found = ClaimEvidence(paths)
    if other is not None:
        found.pool = _pool(other)
        _by_name(found, other)
        found.right.update(n for n, ct in paths.ours.items() if n not in found.theirs and found.occurs(ct))
    fine = [x for x, (right, _) in claims.items() if right]
    for x, (right, numbers) in claims.items():
        (found.right if right else found.wrong).add(x)
        if numbers is not None and x in paths.ours and numbers.shape == paths.ours[x].shape:
            found.theirs[x] = numbers
    found.right.update(n for n in paths.ours for x in fine if n != x and paths.all_through(x, n))
    found.right.update(paths.ends)
    found.right -= found.wrong - paths.ends
    if other is None:
        _by_range(found, claims)
    return found


def near(one: Array, other: Array) -> bool:
    """True if two arrays are the same except for rounding."""
    if one.shape != other.shape or not np.isfinite(other).all():
        return False
    return bool(np.max(np.abs(one - other), initial=0.0) <= _NEAR * np.max(np.abs(one), initial=0.0))


def _pool(tape: Tape) -> dict[int, list[Array]]:
    """Sorted numbers of every tensor of the graph that computes the claim, by count."""
    pool: dict[int, list[Array]] = {}
    for var in tape.named.values():
        if var.size and var.dtype.kind == "f":
            pool.setdefault(var.size, []).append(np.sort(var.value, axis=None))
    return pool


def _by_name(found: ClaimEvidence, other: Tape) -> None:
    """Evidence from tensors named as cotangents, right or wrong."""
    paths, y = found.paths, found.paths.tape.named[found.paths.y].shape
    for name, ours in paths.ours.items():
        called = next((n for n in gradient_names(name) if n in other.named), None)
        if called is None:
            continue
        value = other.named[called].value
        fits = layouts(value.shape, paths.shape(name), y)
        theirs = fits[0].read(value) if fits else None
        if theirs is not None and theirs.shape == ours.shape:
            found.theirs[name] = theirs
        (found.right if theirs is not None and near(ours, theirs) else found.wrong).add(name)


def _by_range(found: ClaimEvidence, claims: Mapping[str, tuple[bool, Array | None]]) -> None:
    """Evidence from the first tensor, from x on, whose cotangents cannot have led to the claimed numbers.

    One of a tensor before it may have, and is wrong then.  That one of a later tensor may have as well tells more only if
    it had less room for it: behind an elementwise operator any error may have been made.
    """
    last, least = None, math.inf
    for name in _common(found, claims):
        here = {x: n for x, (_, n) in claims.items() if n is not None and found.paths.all_through(x, name)}
        room = math.inf if name in found.right else _room(found.paths, name, here)
        if not room or name in found.right:
            found.right.add(name)
            break
        last, least = (name, room) if room < least else (last, least)
    if last is not None:
        found.wrong.add(last)


def _common(found: ClaimEvidence, claims: Mapping[str, tuple[bool, Array | None]]) -> Iterator[str]:
    """Tensors that all wrong claims go through, from x to y."""
    wrong = [x for x, (right, numbers) in claims.items() if not right and x in found.paths.ours]
    names = dict.fromkeys(n for block in found.paths.blocks for n in block.outputs)
    return (n for n in names if wrong and all(found.paths.all_through(x, n) for x in wrong))


def _room(paths: Paths, name: str, claims: Mapping[str, Array]) -> float:
    """Dimensions of what cotangents of a tensor can lead to: 0 if not to the claimed numbers, infinite if to any."""
    numbers = np.concatenate([*claims.values()]) if claims else np.zeros((0, 1))
    entries = numbers.size * paths.tape.named[name].size
    if not numbers.any() or not np.isfinite(numbers).all() or entries > _MOST_ENTRIES:
        return math.inf
    jacobian = jacobian_between(paths.tape, [*claims], name)
    if not np.isfinite(jacobian).all():
        return math.inf
    cotangent, _, rank, _ = np.linalg.lstsq(jacobian, numbers, rcond=1e-9)
    left = float(np.linalg.norm(jacobian @ cotangent - numbers)) / float(np.linalg.norm(numbers))
    return math.inf if rank == len(numbers) else float(rank) if left <= _LEFT else 0.0


def jacobian_between(tape: Tape, xs: Sequence[str], name: str) -> Array:
    """The Jacobian of a tensor by several xs, whose entries are concatenated."""
    with tape.aside():
        found = Backward(tape, tape.named[name].name, [tape.named[x].name for x in xs]).jacobians(Budget())
    return np.concatenate(found)


@dataclass(frozen=True, slots=True)
class Block:
    """A node of the model between x and y: its operands and outputs that lie there too, and its units on the tape."""

    index: int
    node: Node
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    units: tuple[Unit, ...]

    @property
    def where(self) -> str:
        return describe(self.index, self.node)

    @property
    def plain(self) -> bool:
        """True for an elementwise operator."""
        return all(unit.op.batching is elementwise for unit in self.units)


@dataclass(frozen=True, slots=True)
class Paths:
    """The blocks between some xs and y in order, and the Jacobian `(size, y_size)` of y by each tensor there."""

    tape: Tape
    y: str
    blocks: Sequence[Block]
    ends: frozenset[str]  # tensors that y is the weighed sum of: their cotangent is the seed
    ours: Mapping[str, Array]

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tape.named[name].shape

    def is_total(self, block: Block) -> bool:
        """True for a sum of all entries, which hands its cotangent on as it is."""
        return block.node.op == "ReduceSum" and all(self.tape.named[n].size == 1 for n in block.outputs)

    def reached(self, x: str, without: Collection[str] = ()) -> set[str]:
        """Tensors that depend on x, other than through some tensors."""
        found = {x}.difference(without)
        for block in self.blocks:
            if not found.isdisjoint(block.operands):
                found.update(n for n in block.outputs if n not in without)
        return found

    def all_through(self, x: str, name: str) -> bool:
        """True if every path from x to y goes through a tensor."""
        return name in self.reached(x) and self.ends.isdisjoint(self.reached(x, {name}))

    def flows(self, block: Block) -> dict[str, Array]:
        """Cotangents from one node alone to each of its operands, for a block of one unit and a scalar y."""
        if len(block.units) > 1 or any(each.shape[1] != 1 for each in self.ours.values()):
            return {}
        tape, (unit,) = self.tape, block.units
        names = {tape.named[n].name: n for n in (*block.operands, *block.outputs)}
        cts = [tape.hold(tape.fresh("ct"), self.ours[names[n]].reshape(tape.values[n].shape)) if n in names else None
               for n in unit.outputs]  # fmt: skip
        return {names[n]: ct.value.reshape(-1, 1) for n, ct in pull_back(tape, unit, cts) if n in names}


def paths_between(tape: Tape, xs: Sequence[str], y: str, graph: Graph) -> Paths | None:
    """All paths from some xs to y in a graph; None where a rule is missing on them."""
    units = units_between(tape, [tape.named[x].name for x in xs], [tape.named[y].name])
    if any(unit.op.vjp is None for unit in units):
        return None
    flow = {tape.named[x].name for x in xs}.union(n for unit in units for n in unit.outputs if n)
    called = {var.name: name for name, var in tape.named.items() if name in graph.tensors and var.name in flow}
    by_origin: dict[int, list[Unit]] = {}
    for unit in units:
        by_origin.setdefault(unit.place.origin, []).append(unit)
    ends = {called[n] for unit in by_origin.pop(-1, []) for n in unit.operands if n in called} or {y}
    there, blocks = set(called.values()), []
    for index, some in sorted(by_origin.items()):
        node = graph.nodes[index]
        operands, outputs = (tuple(n for n in names if n in there) for names in (node.reads, node.outputs))
        blocks.append(Block(index, node, operands, outputs, tuple(some)))
    names = dict.fromkeys([*xs, *(n for block in blocks for n in (*block.operands, *block.outputs)), *ends])
    found = Backward(tape, tape.named[y].name, [tape.named[n].name for n in names]).jacobians(Budget())
    return Paths(tape, y, blocks, frozenset(ends), dict(zip(names, found, strict=True)))


def likeness(claimed: Array, own: Array, of: str) -> str:
    """The form of our own gradient that a claim equals, such as "the transpose of d loss / d W"; "" for none.

    Looked for are transposed and flat ones, sums over a batch, and any of them times a number.
    """
    if not 1 < claimed.size <= _MOST_ENTRIES or not np.isfinite(claimed).all() or not np.isfinite(own).all():
        return ""
    for form, words in _forms(own):
        if form.shape == claimed.shape and (scale := _scale(claimed, form)) is not None:
            said = words.format(of)
            if abs(scale - 1) <= _SAME:
                return said if form is not own else ""
            factor = Fraction(scale).limit_denominator(_LARGEST)
            whole = factor and abs(float(factor) - scale) <= _SAME * abs(scale)
            return f"{factor if whole else f'{scale:.4g}'} times {said}"
    return ""


def _scale(claimed: Array, form: Array) -> float | None:
    """The number by which a form has to be multiplied to be the claim; None if none does."""
    square = float(np.vdot(form, form))
    if not square:
        return None
    scale = float(np.vdot(form, claimed)) / square
    off = float(np.linalg.norm(claimed - scale * form))
    return scale if scale and off <= _SAME * float(np.linalg.norm(claimed)) else None


def _forms(own: Array) -> Iterator[tuple[Array, str]]:
    """Our gradient, then its other forms, each with its words."""
    yield own, "{}"
    if 1 < own.ndim <= _MOST_AXES:
        for order in permutations(range(own.ndim)):
            if order != tuple(range(own.ndim)):
                yield own.transpose(order), _NAMED.get(order, f"{{}} with its axes in the order {list(order)}")
    if own.ndim > 1:
        yield own.reshape(-1), "{}, flat"
        yield own.reshape(len(own), -1), "{} as a matrix"
        yield own.sum(0), "{}, summed over its first axis"
        yield own.sum(0, keepdims=True), "{}, summed over its first axis"
    yield own.reshape(-1, 1), "{} as a column"
    yield own.reshape(1, -1), "{} as a row"
