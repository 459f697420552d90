"""Sizes for open dimensions that nobody gave: large enough that there is something to check, and such that the model runs.

A batch has two entries, an image 32 x 40, every other dimension a small size of its own.  Where the model does not run
at those, its failure says what has to be equal or what is too small: trial runs follow it, up to a fixed number.

`outlook` estimates the memory that a model asks for from its file alone, in 8 bytes an entry: tensors whose shapes are
declared, weights, and results whose size stands in the file.  Nothing is run, and nothing of that size is made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import TypeAlias

import numpy as np
from msgspec import Struct, field

from gradcheck_cli.errors import GradcheckError, LimitError
from gradcheck_cli.graph import Array, Graph, Node, TensorType
from gradcheck_cli.op import Ops
from gradcheck_cli.points.dims import BATCH, Roles, formula_names, open_dims, roles, symbol

SIZES = (5, 3, 8, 7, 16, 4, 2, 32, 64, 128, 224)  # of neither batches nor images, in the order of trial
SIGNALS = (1024, 16384)  # and of what is convolved along one axis
IMAGES = ((32, 40), (32, 48), (32, 64), (32, 32), (64, 72), (64, 64), (224, 224))  # height and width
SMALL_IMAGES = ((16, 24), (16, 16), (8, 8))
MOST = 32  # trial runs
_STATED = 8  # of them, at most, that follow what failures state
_KEPT = 4  # that are kept for sizes of 1
_OWN = 6  # sizes that dimensions get at first, each another
_PAIRS = 4  # of sizes that do not agree
_PRODUCTS = ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul")
_NUMBERS = 3  # of a message that are tried
_LARGEST = 4096  # of these
_SPAN = re.compile(r"windows that span \[([\d, ]+)\] do not fit the padded input \[([\d, ]+)\]")


class Failure(Struct, frozen=True):
    """One trial run that failed: at which node, at operands of which shapes, and the dimensions that lead there.

    `windows` if its operator reads operands through windows, whose sizes say nothing of each other; `inside` if it is
    part of the node.
    """

    error: GradcheckError | None
    position: tuple[int, int]  # of the node, and how many steps inside of it
    op: str = ""
    shapes: tuple[tuple[int, ...], ...] = ()
    dims: frozenset[str] = frozenset()
    windows: bool = False
    inside: bool = False

    @property
    def numbers(self) -> list[int]:
        """Numbers that the message states."""
        return [int(n) for n in re.findall(r"(?<![\w.])\d{1,4}(?![\w.])", str(self.error or "").partition(":")[2])]


Sizes: TypeAlias = dict[str, int]
Attempt: TypeAlias = Callable[[Mapping[str, int]], "Failure | None"]


def smaller(
    graph: Graph, sizes: Mapping[str, int], known: Mapping[str, int], ops: Ops, *, images_alone: bool = False
) -> Iterator[Sizes]:
    """Sizes to fall back to, one after the other, where a check at `sizes` takes more than it may: none below 2.

    Those in `known` were given and stay.  Images shrink before the other dimensions do, each down the order in which
    sizes are tried; dimensions that are equal stay equal, and formulas in their names hold.  With `images_alone` they
    become 16 x 24 or 16 x 16, and nothing else does.  The model need not run at all of them: `find_point(...,
    dims=...)` raises where it does not.
    """
    each, current = roles(graph, ops), dict(sizes)
    images = _flattened(each, current, known, SMALL_IMAGES[:2])
    for shrunk in images if images_alone else _shrinking(each, current, known):
        own = {d: n for d, n in shrunk.items() if d in known or (d not in each.stated and d not in each.alike)}
        completed = each.completed(own)
        if completed is not None:
            yield {**current, **completed}


def _flattened(
    each: Roles, sizes: Mapping[str, int], known: Mapping[str, int], levels: Iterable[tuple[int, int]]
) -> Iterator[Sizes]:
    current = dict(sizes)
    for level in levels:
        before = current
        current = {
            d: min(n, level[d not in each.tall]) if d in each.images and d not in known else n
            for d, n in before.items()
        }
        if current != before:
            yield current


def _shrinking(each: Roles, sizes: Mapping[str, int], known: Mapping[str, int]) -> Iterator[Sizes]:
    current = dict(sizes)
    for shrunk in _flattened(each, sizes, known, (*IMAGES[::-1], *SMALL_IMAGES)):
        current = shrunk
        yield current
    for size in sorted(SIZES, reverse=True):
        before = current
        current = {d: min(n, size) if d in each.others and d not in known else n for d, n in before.items()}
        if current != before:
            yield current


class Search(Struct):
    """One search for sizes at which a model runs.

    `attempt` runs it once and says how that failed, or None; it is asked `MOST` times at most, and never twice the same.
    `best` is the trial that got furthest of those that failed, and `failure` how it did.  `over` are the first sizes
    that memory had no room for, from which smaller ones are tried, none below 2.
    """

    roles: Roles
    known: Mapping[str, int]
    attempt: Attempt
    left: int = MOST
    following: int = _STATED
    tried: list[Sizes] = field(default_factory=list)
    best: Sizes = field(default_factory=dict)
    over: Sizes = field(default_factory=dict)
    failure: Failure | None = None
    failed: set[str] = field(default_factory=set)  # operators at which better and better trials failed
    grown: tuple[str, ...] = ()  # dimensions that were made equal by trial, not since a failure stated it

    def run(self) -> Sizes | None:
        """Sizes of all open dimensions at which the model runs; None where it runs at none of those tried."""
        for candidate in self._candidates():
            if self._runs(candidate):
                return self._all(self._improved(candidate))
        return None

    def _all(self, own: Sizes) -> Sizes | None:
        return self.roles.completed({**self.known, **own})

    def _runs(self, own: Sizes) -> bool:
        """True if the model runs at these sizes; False too for sizes tried before, and when no trial is left."""
        sizes = self._all(own)
        if sizes is None or own in self.tried or not self.left:
            return False
        self.left -= 1
        self.tried.append(own)
        failure = self.attempt(sizes)
        if failure is not None and isinstance(failure.error, LimitError) and not self.over:
            self.over = own
        if failure is not None and self._is_further(failure):
            self.best, self.failure = own, failure
            self.failed.add(failure.op)
        return failure is None

    def _is_further(self, failure: Failure) -> bool:
        """True for a failure behind that of the best trial; of two inside of one node, for that of another operator."""
        if self.failure is None or failure.position > self.failure.position:
            return True
        return failure.position == self.failure.position and failure.inside and failure.op not in self.failed

    def _candidates(self) -> Iterator[Sizes]:
        first = self._first()
        larger = (
            {d: n if d in self.roles.batches else max(n, size) for d, n in first.items()} for size in sorted(SIZES)
        )
        start = next((each for each in (first, *larger) if self._all(each) is not None), first)
        yield start
        if not start or self.failure is None:
            return
        if not self.over:
            yield from self._others(start)
        if self.over:
            self.left = MOST  # those until here may have been for something else
            yield from _shrinking(self.roles, self.over, self.known)

    def _others(self, start: Sizes) -> Iterator[Sizes]:
        """Sizes to try instead of those that a search starts from."""
        yield from self._following()
        for candidate in chain(self._growing(), self._spanned(), self._many()):
            before = self.best
            yield candidate
            if self.best is not before:
                yield from self._following()
        yield from self._counted()
        yield from self._least(start)

    def _first(self) -> Sizes:
        """A size of its own for each dimension that nobody gave."""
        free = [d for d in self.roles.others if d not in self.known]
        return {
            **{d: self.roles.batch for d in self.roles.batches if d not in self.known},
            **self._image(IMAGES[0]),
            **{d: SIZES[i % _OWN] for i, d in enumerate(free)},
        }

    def _image(self, level: tuple[int, int]) -> Sizes:
        return {d: level[d not in self.roles.tall] for d in self.roles.images if d not in self.known}

    def _following(self) -> Iterator[Sizes]:
        """Sizes that the failure of the best trial states, and of every better one found on the way."""
        queue = list(self._mended())
        while queue and self.following:
            before = self.best
            self.following -= 1
            yield queue.pop(0)
            if self.best is not before:
                queue = [*self._mended(), *queue]

    def _mended(self) -> Iterator[Sizes]:
        """The sizes of the best trial, changed so that what did not fit there would."""
        assert self.failure is not None
        if self.failure.windows:
            return
        pairs = _mismatches(self.failure.shapes, self.failure.op in _PRODUCTS)
        stated = (list(way(*pair)) for way in (self._equal, self._constant, self._related) for pair in pairs)
        yield from (sizes for each in stated for sizes in each if sizes not in self.tried)
        if any(self.roles.batch in shape for shape in self.failure.shapes):
            yield {**self.best, **{d: 1 for d in self.roles.batches if d in self.best}}

    def _spanned(self) -> Iterator[Sizes]:
        """Each dimension as much longer as windows span more than there is, where no size for all of them does."""
        assert self.failure is not None
        said = _SPAN.search(str(self.failure.error))
        spans, spaces = (map(int, part.split(",")) for part in said.groups()) if said else ((), ())
        lacking = max((span - space for span, space in zip(spans, spaces, strict=False)), default=0)
        if 0 < lacking <= _LARGEST:
            sizes = [{**self.best, d: self.best[d] + lacking} for d in self._leading(self.roles.others)]
            yield from (each for each in sizes if self.left > _KEPT)

    def _owners(self, size: int) -> list[str]:
        return [d for d, n in self.best.items() if n == size]

    def _equal(self, one: int, other: int) -> Iterator[Sizes]:
        """Two dimensions that should be equal: the size of the first counts.  Images change both sides at once."""
        order = [d for d in self.best if d not in self.roles.images]
        left, right = ([d for d in self._owners(size) if d in order] for size in (one, other))
        if left and right:
            first, later, size = (
                (left, right, one) if order.index(left[0]) < order.index(right[0]) else (right, left, other)
            )
            yield from ({**self.best, name: size} for name in later)
            yield {**self.best, **dict.fromkeys(later, size)}
            yield {**self.best, **dict.fromkeys(first, self.best[later[0]])}

    def _constant(self, one: int, other: int) -> Iterator[Sizes]:
        """Dimensions that should have a size that the model has inside."""
        for here, there in ((one, other), (other, one)):
            if not self._owners(there):
                names = self._owners(here)
                yield from ({**self.best, name: there} for name in names)
                yield {**self.best, **dict.fromkeys(names, there)}

    def _related(self, one: int, other: int) -> Iterator[Sizes]:
        """Other sizes for a dimension of which a sum or a multiple does not fit."""
        for dim in self._leading(self.roles.others):
            size = self.best[dim]
            for here, there in ((one, other), (other, one)) if size not in (one, other) else ():
                if size + there - here > 1:
                    yield {**self.best, dim: size + there - here}
                times = here // size
                if here % size == 0 and times > 1 and there % times == 0 and there > times:
                    yield {**self.best, dim: there // times}

    def _counted(self) -> Iterator[Sizes]:
        """Sizes that stand in the failure's message."""
        assert self.failure is not None
        numbers = [n for n in dict.fromkeys(self.failure.numbers) if 1 < n <= _LARGEST and n not in self.best.values()]
        for dim in self._blamed(self.roles.others):
            yield from ({**self.best, dim: n} for n in numbers[:_NUMBERS] if self.left > _KEPT)

    def _leading(self, names: Iterable[str]) -> list[str]:
        """Dimensions among `names` whose sizes were chosen here and that lead to the failure."""
        assert self.failure is not None
        lead = {self.roles.alike.get(d, d) for d in self.failure.dims}
        lead |= {n for d in self.failure.dims if d in self.roles.stated for n in formula_names(self.roles.stated[d])}
        return [d for d in names if d in self.best and (d in lead or not lead)]

    def _blamed(self, names: Iterable[str]) -> list[str]:
        """The leading dimensions whose size some operand there has; all of them if none has."""
        assert self.failure is not None
        leading = self._leading(names)
        seen = {n for shape in self.failure.shapes for n in shape}
        return [d for d in leading if self.best[d] in seen] or leading

    def _growing(self) -> Iterator[Sizes]:
        """Other sizes of images, then one size for all other dimensions that may be at fault."""
        images = [d for d in self.roles.images if d in self.best]
        for level in (*IMAGES, *SMALL_IMAGES) if images and self._leading(images) else ():
            if self.left > _KEPT:
                yield {**self.best, **self._image(level)}
        others = self._blamed(self.roles.others)
        signals = SIGNALS if self.roles.signals.intersection(others) else ()
        for size in (*SIZES, *signals) if others else ():
            if self.left > _KEPT:
                self.grown = tuple(self._blamed(self.roles.others))
                yield {**self.best, **dict.fromkeys(self.grown, size)}

    def _many(self) -> Iterator[Sizes]:
        """More entries of what looks like a batch and leads to the failure, as values that are given may ask for."""
        for size in sorted(SIZES)[1:]:
            if self.left > _KEPT and (batches := self._leading(self.roles.batches)):
                yield {**self.best, **dict.fromkeys(batches, size)}

    def _least(self, start: Sizes) -> Iterator[Sizes]:
        """Batches of 1, and as a last resort sizes of 1."""
        batches = {d: 1 for d in self.roles.batches if d in start}
        others = [d for d in self.roles.others if d in start]
        self.grown = tuple(others)
        yield {**start, **batches}
        yield {**start, **batches, **dict.fromkeys(others, 8)}
        yield {**start, **batches, **dict.fromkeys(others, 1)}
        yield dict.fromkeys(start, 1)

    def _improved(self, found: Sizes) -> Sizes:
        """Sizes of 1 made larger, and equal ones different, as far as the model runs and trials are left."""
        for dim, size in list(found.items()):
            equal = dim in self.grown[1:] and size == found[self.grown[0]]
            if size == 1 or equal:
                batches = dict.fromkeys((self.roles.batch, BATCH, 3))
                wanted = batches if dim in self.roles.batches else SIZES if size == 1 else _after(size)
                found = next(({**found, dim: n} for n in wanted if self._runs({**found, dim: n})), found)
        return found


def _after(size: int) -> Sequence[int]:
    """A few other sizes for a dimension that runs at the size of another one."""
    larger = [n for n in sorted(SIZES) if n > size]
    return larger[:2] or (size + 32,)


def _mismatches(shapes: Sequence[tuple[int, ...]], product: bool) -> list[tuple[int, int]]:
    """Pairs of sizes that stand where operands would have to agree: axes from the end, the inner ones of a product."""
    found: dict[tuple[int, int], None] = {}
    for a, b in combinations([s for s in shapes if s], 2):
        pairs = zip(a[::-1], b[::-1], strict=False)
        for pair in [(a[-1], b[-2:][0]), *list(pairs)[2:]] if product else pairs:
            if pair[0] != pair[1] and min(pair) > 1:
                found.setdefault(pair)
    return list(found)[:_PAIRS]


_ENTRY = 8.0  # bytes
_OPEN = 32  # entries of an open dimension that is no batch
_FILLED = {"ConstantOfShape": 0, "Expand": 1, "Reshape": 1, "Tile": 1, "Upsample": 1, "Resize": 3}  # operand of sizes
_DRAWN = ("RandomNormal", "RandomUniform")


def outlook(graph: Graph, dims: Mapping[str, int]) -> float:
    """Bytes of all tensors that a graph is known to hold, with sizes of open dimensions that were given."""
    batches = {name for name, is_batch in open_dims(graph).items() if is_batch}
    total = sum(2.0 * value.nbytes for value in graph.constants.values())
    total += _ENTRY * sum(_entries(declared, name, dims, batches) for name, declared in graph.types.items())
    return total + _ENTRY * sum(_made(node, graph) for node in graph.nodes)


def _entries(declared: TensorType, name: str, dims: Mapping[str, int], batches: set[str]) -> float:
    """Entries of a declared tensor; none where nothing is said of its shape."""
    sizes = 1.0
    for axis, dim in enumerate(declared.shape or ()):
        key = symbol(name, axis, dim)
        sizes *= dim if isinstance(dim, int) else dims.get(key, BATCH if key in batches else _OPEN)
    return sizes if declared.shape else 0.0


def _made(node: Node, graph: Graph) -> float:
    """Entries of what a node makes to a size that the file gives, those of its subgraphs among them."""
    inside = sum(_made(each, sub) for sub in node.subgraphs for each in sub.nodes)
    return inside + max(_sizes(node, graph), default=0.0)


def _sizes(node: Node, graph: Graph) -> Iterator[float]:
    if node.op in _DRAWN:
        yield math.prod(float(size) for size in node.attrs.get("shape", ()))
    known = [_constant(name, graph) for name in node.inputs]
    if node.op == "Range" and len(known) == 3 and all(x is not None and x.size == 1 for x in known):
        start, limit, step = (float(x.reshape(())) for x in known if x is not None)
        yield (limit - start) / step if step else 0.0
    at = _FILLED.get(node.op, len(known))
    sizes = known[at] if at < len(known) else None
    if sizes is not None and sizes.dtype.kind in "iu" and sizes.size < _OPEN:
        yield math.prod(float(size) for size in sizes.ravel() if size > 0)


def _constant(name: str, graph: Graph) -> Array | None:
    """The value of a tensor that stands in the file."""
    if name in graph.constants:
        return graph.constants[name]
    at = graph.producer(name) if name else None
    value = graph.nodes[at].attrs.get("value") if at is not None and graph.nodes[at].op == "Constant" else None
    return value if isinstance(value, np.ndarray) else None
