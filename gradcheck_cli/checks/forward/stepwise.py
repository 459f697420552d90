"""Differences between onnxruntime's results and our own that rounding explains, of whole runs and node by node.

A model may magnify rounding without limit, for example a variance as the difference of two means, and the error of one
run is one random draw.  So the model is run in its own dtype several times (`Roundings`), each time with inputs and
parameters changed in the last place, by more for long sums, as sqrt(n) roundings of a plain sum of n terms do.  Numbers
with few binary digits, such as halves and integers, stay: the result of an operator at a tie is not a matter of
rounding.

In a whole run rounding grows from node to node, and ties and comparisons turn it into jumps.  A single node with operands
that onnxruntime computed (`Stepwise`) adds a few roundings at most, so that a misreading shows wherever it is.  Where
onnxruntime does not give out some results, a piece of several nodes is run instead.  Operators that choose among equal
entries are judged by the values they choose.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from msgspec import structs

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.checks.forward.runtime import PATIENCE, WORKER, Question, Refused, Unanswered
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.graph import Array, Graph, Node, is_inexact, is_inexact_array
from gradcheck_cli.jacobian.cost import terms
from gradcheck_cli.op import Ops, operator_of
from gradcheck_cli.verdict.agreement import agree, difference, farthest, gaps, least_step, sizes, wide
from gradcheck_cli.verdict.rule import epsilon

FLOORS = {"float32": 1e-4, "float16": 1e-2, "float64": 1e-7, "bfloat16": 5e-2}  # of the largest entry of an output
SHARE = 0.1  # of a floor, which measured rounding has to explain
MEASURED = 8  # factor on our own rounding error
_ROUNDINGS = 32  # of the model's dtype, by which sums in another order differ
CLOSE = 4  # roundings up to which results agree closely
_ABSOLUTE = 8  # roundings of 1, since results of numbers near 1 have no digits below
_DRAWS, _MORE_DRAWS = 5, 25  # runs that measure rounding; where a node alone seems to differ
_WIDTH = 3**0.5  # of a distribution of variance 1: moves by signs alone cancel in all draws for one pair of 32
_SHORT = 2.0**10  # multiples of its inverse have few digits
_BYTES = 128 << 20  # of results that one run returns
_SMALLER = 20.0  # factor by which floors of single nodes are lower than those of whole runs
# relative to entries, or to a tenth of the largest
_BY_DTYPE = {"float32": 16.0, "float64": 16.0, "float16": 6.0, "bfloat16": 6.0}
_HALVES = ("float16", "bfloat16")
_END = 65504.0 * (1 - 2 * 2.0**-10)  # of the range of float16, two roundings before it
_OF_SMALLEST = 16.0  # of the smallest number: below the normal range products are rounded to multiples of it
_OF_ONE = 8.0  # roundings of 1, or of the largest operand
_LONG, _OF_SUM = 1024, 4.0  # terms of a long sum, and roundings of it times the root of their number
_USUAL = 0.9  # quantile of measured rounding that counts for all entries
_CHOOSING = {"TopK": 1, "ArgMax": 0, "ArgMin": 0}  # position of the result that holds indices


@dataclass(frozen=True)
class Roundings:
    """Runs of one graph at inputs in its own dtype, made when they are first used."""

    graph: Graph
    seed: int
    ops: Ops
    feeds: Mapping[str, Array]
    targets: tuple[str, ...]
    draws: int = _DRAWS

    @cached_property
    def exact(self) -> Tape:
        """The run in float64."""
        return self._run("float64", self.feeds)

    @cached_property
    def own(self) -> Tape:
        """The run in the model's dtype."""
        return self._run("model", self.feeds)

    @cached_property
    def drawn(self) -> tuple[Tape, ...]:
        """Runs in the model's dtype with inputs and parameters changed in the last place."""
        return tuple(self._run("model", dict(self._rounded(number))) for number in range(self.draws))

    def known(self, name: str) -> bool:
        """True if a tensor has been computed here."""
        return name in self.exact.named

    def close(self, name: str, theirs: Array) -> bool:
        """True if `theirs` differs from one of our results only in the last digits."""
        return any(near(each, theirs, CLOSE) for each in self._ours(name))

    def small(self, name: str, theirs: Array) -> bool:
        """True if they differ as sums in another order do, or by little that measured rounding explains."""
        ours = self._ours(name)
        if any(agree(each, theirs, slack(each, theirs, _ROUNDINGS * epsilon(theirs.dtype))) for each in ours):
            return True
        if not is_inexact(theirs.dtype) or not any(each.shape == theirs.shape for each in ours):
            return False
        floor = FLOORS.get(theirs.dtype.name, 0.0) * float(np.max(sizes(theirs), initial=0.0))
        limit = np.minimum(floor, self.measured(name) / SHARE * sizes(ours[0]))
        return any(agree(each, theirs, limit) for each in ours)

    def difference(self, name: str, theirs: Array) -> str:
        """Sentence on a difference beyond measured rounding; "" if there is none."""
        ours, bound = self._ours(name), self.bound(name, theirs)
        if not ours or any(agree(each, theirs, slack(each, theirs, bound)) for each in ours):
            return ""
        return difference(ours[0], theirs, slack(ours[0], theirs, bound))

    def nearest(self, name: str, theirs: Array) -> Array:
        """The one of our results that is nearest to `theirs`."""
        return min(self._ours(name), key=lambda each: relative(each, theirs))

    def bound(self, name: str, theirs: Array, *, quick: bool = False) -> float:
        """The relative error that rounding explains, without a run if `quick`; 0 for integers."""
        if not is_inexact(theirs.dtype):
            return 0.0
        return max(0.0 if quick else MEASURED * self.measured(name), _ROUNDINGS * epsilon(theirs.dtype))

    def measured(self, name: str) -> float:
        """The largest relative error of our own runs in the model's dtype."""
        exact = self.exact.named[name].value
        return max([0.0, *(e for run in self._narrow(name) if np.isfinite(e := relative(run, exact)))])

    def spread(self, name: str) -> Array:
        """The largest error of runs in the model's dtype, entry by entry."""
        exact = self.exact.named[name].value
        apart = [gaps(exact, run) for run in self._narrow(name) if run.shape == exact.shape]
        return np.max([np.zeros(exact.shape), *(np.where(np.isfinite(gap), gap, 0.0) for gap in apart)], axis=0)

    def _narrow(self, name: str) -> list[Array]:
        """Results of the runs in the model's dtype."""
        return [run.named[name].value for run in (self.own, *self.drawn) if name in run.named]

    def _ours(self, name: str) -> list[Array]:
        return [run.named[name].value for run in (self.exact, self.own) if name in run.named]

    @cached_property
    def longest_sum(self) -> float:
        """The most terms in a sum; a plain sum of n is off by about sqrt(n) roundings."""
        added = (n for n in self.graph.nodes if operator_of(self.ops, n).elsewhere == "one by one")
        # here a Sum of many tensors is a tree of sums, which rounds less than one by one
        return max([1.0, *(terms(self.own, step) for step in self.own.steps), *(float(len(n.inputs)) for n in added)])

    def _rounded(self, number: int) -> Iterator[tuple[str, Array]]:
        rng, move = np.random.default_rng([self.seed, number]), np.sqrt(self.longest_sum)
        constants = {n: v for n, v in self.graph.constants.items() if n not in self.feeds}
        for name, value in {**constants, **self.feeds}.items():
            if is_inexact_array(value):
                by = np.maximum(move * epsilon(value.dtype) * np.abs(value), least_step(value.dtype) * (value != 0))
                moved = value + rng.uniform(-_WIDTH, _WIDTH, value.shape) * by
                yield name, np.where(_short(value), value, moved).astype(value.dtype)
            elif name in self.feeds:
                yield name, value

    def _run(self, dtype: str, feeds: Mapping[str, Array]) -> Tape:
        return trace(self.graph, feeds, ops=self.ops, dtype=dtype, seed=self.seed, targets=self.targets, lenient=True)


def _short(value: Array) -> Array:
    """Entries with few binary digits."""
    if value.dtype.itemsize <= 2:  # onnxruntime keeps float32 between nodes: halves of it are known to half a unit
        return np.zeros(value.shape, bool)
    scaled = value.real.astype(np.float64) * _SHORT
    with np.errstate(invalid="ignore"):
        return np.asarray((scaled == np.rint(scaled)) & (np.abs(scaled) < _SHORT**2))


def near(ours: Array, theirs: Array, roundings: float) -> bool:
    """True if two results differ by some roundings only, relative to an entry or to a tenth of the largest one."""
    return agree(ours, theirs, roundings * epsilon(theirs.dtype) * sizes(theirs))


def relative(ours: Array, theirs: Array) -> float:
    """The largest error relative to an entry, or to a tenth of the largest one."""
    return farthest(ours, theirs, sizes(ours))[1]


def slack(ours: Array, theirs: Array, bound: float) -> Array:
    """The error that is allowed for each entry by a relative bound, and for results that have no digits below."""
    return np.asarray(bound * sizes(ours) + _ABSOLUTE * epsilon(theirs.dtype))


@dataclass(frozen=True, slots=True)
class Differing:
    """A node that computes something else on its own: its index, the first result that differs, and how."""

    index: int
    name: str
    how: str


class Stepwise:
    """Comparison of the nodes that `ys` need; `question` is the one that asked for these tensors.

    `unseen` are nodes that could not be compared.
    """

    def __init__(
        self, graph: Graph, ops: Ops, seed: int, question: Question, fed: Mapping[str, Any], ys: Sequence[str]
    ) -> None:
        self.graph, self.ops, self.seed, self.question = graph, ops, seed, question
        self.known = dict(fed)
        self.producers = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs if name}
        self.needed = graph.needed_for(ys)
        self.last = {name: index for index, node in enumerate(graph.nodes) for name in node.reads}  # node that reads it
        self.unseen: list[int] = []
        self.looked = 0

    def differing(self, likes: Mapping[str, Array], until: float) -> Iterator[Differing]:
        """The nodes that differ, in order; `likes` are our values of the results to ask for."""
        for indices in self._portions(likes):
            answer = self._answer([n for i in indices for n in self.graph.nodes[i].outputs if n in likes], until)
            self.known.update(answer)
            for index in indices:
                yield from self._at(index, until)
            for name in [n for n in answer if self.last.get(n, -1) <= indices[-1]]:
                del self.known[name]

    def _portions(self, likes: Mapping[str, Array]) -> Iterator[list[int]]:
        """Nodes in order, as many at a time as one run can return the results of."""
        portion, size = list[int](), 0
        for index, node in enumerate(self.graph.nodes):
            if self.needed.isdisjoint(node.outputs):
                continue
            more = sum(likes[n].nbytes for n in node.outputs if n in likes)
            if portion and size + more > _BYTES:
                yield portion
                portion, size = [], 0
            portion.append(index)
            size += more
        if portion:
            yield portion

    def _answer(self, names: Sequence[str], until: float) -> Mapping[str, Array]:
        """onnxruntime's values of inner tensors; where it refuses, those that it does give."""
        if not names:
            return {}
        from gradcheck_cli.formats.onnx.file import part_of  # brings onnx

        if (left := until - time.monotonic()) <= 0:
            raise Unanswered("looking at every node takes too long")
        data = part_of(self.question.path, names)
        key = "\0".join((self.question.key, "inside", *names))
        try:
            return WORKER.ask(structs.replace(self.question, key=key, data=data, outputs=names), left)
        except Refused:
            if len(names) == 1:
                return {}
            half = len(names) // 2
            return {**self._answer(names[:half], until), **self._answer(names[half:], until)}

    def _at(self, index: int, until: float) -> Iterator[Differing]:
        """The node on its own, if it differs."""
        if not any(name in self.known for name in self.graph.nodes[index].outputs):
            return  # it becomes part of a later piece
        if time.monotonic() > until:
            raise Unanswered("looking at every node takes too long")
        piece = self._piece(index)
        if piece is None:
            self.unseen.append(index)
            return
        self.looked += 1
        alone = PieceRuns(piece, Roundings(piece.graph, self.seed, self.ops, piece.feeds, piece.results))
        try:
            found = [(name, how) for name in piece.results if (how := alone.difference(name, self.known[name]))]
        except (GradcheckError, MemoryError):
            self.unseen.append(index)
            return
        if alone.blocked:
            self.unseen.append(index)
        if found:
            yield Differing(index, *found[0])

    def _piece(self, index: int) -> Piece | None:
        """The piece that ends with a node; None if no result of it is known, or an operand is missing."""
        graph, known = self.graph, self.known
        results = tuple(name for name in graph.nodes[index].outputs if name in known)
        indices, read = self._before(index)
        if not results or any(n not in known and n not in graph.constants for n in read):
            return None
        feeds = {name: known[name] for name in read if name in known}
        constants = {name: graph.constants[name] for name in read if name not in feeds}
        types = {name: graph.types[name] for name in feeds if name in graph.types}
        nodes = tuple(graph.nodes[i] for i in sorted(indices))
        return Piece(Graph(tuple(feeds), results, nodes, constants, types, graph.opset, graph.name), feeds, results)

    def _before(self, index: int) -> tuple[set[int], list[str]]:
        """A node with those before it whose results are not known, and the tensors they read from outside."""
        indices, read, ahead = {index}, dict[str, None](), [*self.graph.nodes[index].reads]
        while ahead:
            name = ahead.pop()
            if name in self.known or name not in self.producers:
                read[name] = None
            elif self.producers[name] not in indices:
                indices.add(self.producers[name])
                ahead.extend(self.graph.nodes[self.producers[name]].reads)
        return indices, list(read)


def first_differing(data: bytes, graph: Graph, ops: Ops, feeds: Mapping[str, Array]) -> tuple[int | None, str]:
    """The first node of a model in bytes that differs on its own, and how.

    None, with the reason if not all nodes could be compared, where no node differs.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "graph.onnx"
        path.write_bytes(data)
        question = Question(hashlib.sha256(data).hexdigest(), str(path), feeds, graph.outputs)
        step = Stepwise(graph, ops, 0, question, feeds, graph.outputs)
        try:
            ours = trace(graph, feeds, ops=ops, dtype="model", targets=graph.outputs).named
            until = time.monotonic() + PATIENCE
            for found in step.differing({n: ours[n].value for n in step.producers if n in ours}, until):
                return found.index, found.how
        except (Unanswered, GradcheckError, MemoryError) as error:
            return None, str(error)
    return None, "some nodes could not be compared" if step.unseen else ""


@dataclass(slots=True)
class PieceRuns:
    """One piece and our runs of it; `blocked` if some of its results could not be computed here."""

    piece: Piece
    runs: Roundings
    blocked: bool = False

    def difference(self, name: str, theirs: Array) -> str:
        """Sentence on a result that differs by more than rounding explains; "" if it does not."""
        if not self.runs.known(name):
            self.blocked = True
            return ""
        node, theirs = self.piece.node, in_order(self.piece.node, name, theirs)
        ours = self._in_range(in_order(node, name, self.runs.exact.named[name].value), theirs)
        if self._near(ours, theirs):
            return ""
        own = self._in_range(in_order(node, name, self.runs.own.named[name].value), theirs)
        if self._near(own, theirs) or chosen_alike(node, name, self.piece.feeds, own, theirs):
            return ""
        if ours.shape != theirs.shape or node.op == "TopK":
            return difference(ours, theirs, 0.0)
        allowed = self._allowed(name, ours, theirs)
        if not any(agree(each, theirs, allowed) for each in (ours, own)):
            self.runs = replace(self.runs, draws=_MORE_DRAWS)  # few may leave one of very many entries where it is
            allowed = self._allowed(name, ours, theirs)
        if agree(ours, theirs, allowed) or agree(own, theirs, allowed):
            return ""
        if self._narrow_inside(name, ours, theirs):
            return ""
        return difference(ours, theirs, allowed) + self._of_nan(theirs)

    def _of_nan(self, theirs: Array) -> str:
        """Words on a difference in integers that NaN has become: either is right; "" for others."""
        if theirs.dtype.kind not in "iu" or not any(map(_has_nan, self.piece.feeds.values())):
            return ""
        return "; NaN goes into it, and ONNX leaves open which integer that becomes"

    def _in_range(self, ours: Array, theirs: Array) -> Array:
        """Our result, with theirs where only one of them is finite, for the range of half precision alone.

        onnxruntime keeps float32 between nodes in half precision: an operand that overflows when returned did not
        inside, and a result at the end of the range may be returned as infinite.
        """
        half = [x for x in self.piece.feeds.values() if isinstance(x, np.ndarray) and x.dtype.name in _HALVES]
        if ours.shape != theirs.shape or not half:
            return ours
        if theirs.dtype == np.float16:
            ours = np.where(np.isinf(theirs) & (np.sign(ours) == np.sign(theirs)) & (abs(ours) > _END), theirs, ours)
        if all(np.isfinite(x).all() for x in half):
            return ours
        return np.where(np.isfinite(theirs) & ~np.isfinite(ours), theirs, ours)

    def _near(self, ours: Array, theirs: Array) -> bool:
        return near(ours, theirs, _BY_DTYPE.get(theirs.dtype.name, 0.0))

    def _allowed(self, name: str, ours: Array, theirs: Array) -> Array:
        """The error allowed for each entry: its own measured rounding, or that of most entries."""
        spread = self.runs.spread(name)
        if not is_inexact(theirs.dtype):
            return spread  # rounding decides at the middle of two integers
        size, dtype = sizes(theirs), theirs.dtype.name
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where((spread == 0) | (size == 0), 0.0, spread / size)
        usual = float(np.quantile(shares, _USUAL)) if spread.size else 0.0
        measured = MEASURED * np.maximum(spread, usual * size)
        allowed = np.maximum(measured, _BY_DTYPE.get(dtype, 0.0) * epsilon(theirs.dtype) * size)
        allowed = allowed + _OF_SMALLEST * least_step(theirs.dtype)
        # random rounding of many terms of one sign averages out, so measured rounding is too small there
        if (terms := self.runs.longest_sum) > _LONG:
            allowed = np.maximum(allowed, _OF_SUM * np.sqrt(terms) * epsilon(theirs.dtype) * size)
        if self._any_of("one by one"):
            allowed = np.maximum(allowed, self._of_running_sums(ours, theirs.dtype))
        if self._any_of("rough", "narrow"):
            allowed = np.maximum(allowed, FLOORS.get(dtype, 0.0) / _SMALLER * float(np.max(size, initial=0.0)))
        if self._any_of("to one") or len(self.piece.graph.nodes) > 1:
            floats = (x for x in self.piece.feeds.values() if isinstance(x, np.ndarray) and x.dtype.kind == "f")
            largest = max([1.0, *(float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x))) for x in floats)])
            allowed = allowed + _OF_ONE * min(epsilon(theirs.dtype), float(np.finfo(np.float32).eps)) * largest
        return np.asarray(allowed + self._of_formulas(epsilon(theirs.dtype)))

    def _of_formulas(self, unit: float) -> float:
        """The error of formulas of onnxruntime's own."""
        values = {**self.piece.graph.constants, **self.piece.feeds}
        values |= {n: held.value for n, held in self.runs.exact.named.items()}
        rules = ((operator_of(self.runs.ops, node).elsewhere_off, node) for node in self.piece.graph.nodes)
        return sum(
            rule(unit, values[node.outputs[0]], *(values.get(n) for n in node.inputs), **node.attrs)
            for rule, node in rules
            if rule is not None and node.outputs[0] in values
        )

    def _of_running_sums(self, ours: Array, dtype: np.dtype[Any]) -> Array:
        """The largest error of sums that are added up one by one: half a rounding of every sum before and of its own."""
        size, half = np.abs(wide(ours)), epsilon(dtype) / 2
        running = [s for s in self.runs.exact.steps if s.op.elsewhere == "one by one" and s.op.same_axes]
        if len(self.piece.graph.nodes) > 1 or not running:
            return np.asarray(half * self.runs.longest_sum * size)
        return np.asarray(half * sum((step.op.forward(size, **step.metadata) for step in running), size))

    def _any_of(self, *words: str) -> bool:
        """True if an operator of the piece rounds in one of these ways, or has no single steps."""
        return any(
            operator_of(self.runs.ops, n).elsewhere in words or n.domain == "com.microsoft" or any(n.subgraphs)
            for n in self.piece.graph.nodes
        )

    def _narrow_inside(self, name: str, ours: Array, theirs: Array) -> bool:
        """True if float32 explains the error of a float64 result, for operators that compute in float32."""
        if theirs.dtype != np.float64:
            return False
        graph = self.piece.graph
        constants = {n: _narrow(x) for n, x in graph.constants.items()}
        feeds = {n: _narrow(x) for n, x in self.piece.feeds.items()}
        runs = Roundings(replace(graph, constants=constants), self.runs.seed, self.runs.ops, feeds, (name,))
        if not runs.known(name) or name not in runs.own.named or runs.own.named[name].shape != theirs.shape:
            return False
        apart, largest = MEASURED * runs.measured(name) * sizes(ours), float(np.max(sizes(theirs), initial=0.0))
        if not self._any_of("narrow"):
            apart = np.minimum(apart, FLOORS["float64"] * largest)
        return agree(ours, theirs, apart)


def _has_nan(value: Any) -> bool:
    return is_inexact_array(value) and bool(np.isnan(value).any())


def _narrow(value: Any) -> Any:
    is_wide = isinstance(value, np.ndarray) and value.dtype == np.float64
    return value.astype(np.float32) if is_wide else value


def in_order(node: Node, name: str, values: Array) -> Array:
    """Values of a result in an order that can be compared: TopK need not sort its values."""
    if node.op == "TopK" and node.attrs.get("sorted", 1) == 0 and name == node.outputs[0]:
        return np.sort(values, axis=int(node.attrs.get("axis", -1)))
    return values


def chosen_alike(node: Node, name: str, operands: Mapping[str, Any], ours: Array, theirs: Array) -> bool:
    """True if two results are indices by an operator that chooses, and stand for the same values."""
    position = _CHOOSING.get(node.op)
    if node.domain or position is None or list(node.outputs).index(name) != position or ours.shape != theirs.shape:
        return False
    x = operands.get(node.inputs[0])
    if not isinstance(x, np.ndarray) or not x.ndim:
        return False
    axis = int(node.attrs.get("axis", 0 if position == 0 else -1))
    if position == 0 and not node.attrs.get("keepdims", 1):
        ours, theirs = np.expand_dims(ours, axis), np.expand_dims(theirs, axis)
    size = x.shape[axis]
    if theirs.size and not (-size <= theirs.min() and theirs.max() < size):
        return False
    here, there = (np.sort(np.take_along_axis(x, each.astype(np.int64), axis), axis) for each in (ours, theirs))
    twice = np.diff(np.sort(theirs % size, axis), axis=axis) == 0
    return np.array_equal(here, there, equal_nan=x.dtype.kind == "f") and not twice.any()


@dataclass(frozen=True, slots=True)
class Piece:
    """Some nodes of a graph, what they read, and the known results of the last one."""

    graph: Graph
    feeds: Mapping[str, Any]
    results: tuple[str, ...]

    @property
    def node(self) -> Node:
        """The last node, which computes the results."""
        return self.graph.nodes[-1]
