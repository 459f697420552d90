"""Entries of y by the reals of x that they may depend on, and colors of rows that meet in no column.

The pattern is made of sets of indices, sent forward through a program.  Decisions count like numbers: what y takes from
two places depends on the comparison that chooses between them.  A single probe serves all rows of one color: every
column of its answer belongs to one of them at most, and no decision on the way to y depends on two of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property, lru_cache, partial
from operator import itemgetter
from typing import Any

import numpy as np
from msgspec import Struct

from gradcheck_cli.autodiff.tape import Step
from gradcheck_cli.engine.chunks import Budget, in_chunks
from gradcheck_cli.engine.complex_step import linear_groups, selecting
from gradcheck_cli.engine.lines import LinePart
from gradcheck_cli.engine.program import FAILURES, Program
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.jacobian.cost import ENTRY, SOON, forward_work, pattern_work, step_work
from gradcheck_cli.jacobian.directions import reach, reals, taken
from gradcheck_cli.native import nonzeros
from gradcheck_cli.op.batching import Operands, elementwise
from gradcheck_cli.op.fusion import divide
from gradcheck_cli.op.sparsity import EvaluatedNode, SparsityRule, everything, same_place
from gradcheck_cli.verdict.rule import Nonzeros, cells_of

BITS = 64  # of a word


class Pattern(Struct, frozen=True):
    """A superset of the entries of a Jacobian `(rows, columns)` that can be other than zero.

    Bit r % 64 of `words[r // 64, k]` stands for row r and column k.
    """

    words: Array
    rows: int

    @property
    def columns(self) -> int:
        return int(self.words.shape[1])

    def fullest(self) -> int:
        """The most rows that meet in one column: no fewer colors do."""
        return int(np.max(np.sum(np.bitwise_count(self.words), axis=0, dtype=np.int64), initial=0))

    def blocks(self) -> Iterator[tuple[range, Array, Array]]:
        """Some rows at a time: the entries `(row, column)` of these rows in their order, counted from the first."""
        for number, word in enumerate(self.words):
            yield range(BITS * number, min(BITS * (number + 1), self.rows)), *_entries_of(word)

    def holds(self, rows: Array, columns: Array) -> Array:
        """Mask of single entries that belong to it."""
        shifts = (rows % BITS).astype(np.uint64)
        return np.asarray((self.words[rows // BITS, columns] >> shifts) & np.uint64(1), bool)


def _entries_of(word: Array) -> tuple[Array, Array]:
    """Row and column of the entries that one word for each column stands for, by row."""
    columns = np.flatnonzero(word)
    bits = np.unpackbits(word[columns].astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
    rows, which = np.divmod(np.flatnonzero(bits.T.copy().view(bool)), max(len(columns), 1))
    return rows, columns[which]


class Entries(Struct, frozen=True, dict=True):
    """The same as places: `row` and `column` of each entry that may differ from zero, by row, then by column.

    `meeting` is the most rows that meet in one column: no fewer colors do.
    """

    row: Array
    column: Array
    rows: int
    columns: int
    meeting: int

    @cached_property
    def starts(self) -> Array:
        """The number of entries before each row, and before the end, `(rows + 1,)`."""
        return np.searchsorted(self.row, np.arange(self.rows + 1, dtype=self.row.dtype))

    @staticmethod
    def transposed(some: Sequence[Entries]) -> Entries:
        """Several with the same columns, one below the other, transposed."""
        ends = np.cumsum([each.starts[-1] for each in some])
        starts = np.concatenate([[0], *(e.starts[1:] + end - e.starts[-1] for e, end in zip(some, ends, strict=True))])
        column = np.concatenate([each.column for each in some])
        row, column = nonzeros.by_column(starts, column, some[0].columns)
        return Entries(column, row, some[0].columns, len(starts) - 1, int(np.max(np.diff(starts), initial=0)))


def pattern(program: Program, budget: Budget) -> Pattern:
    """The sparsity pattern of what a program leads from its one probed tensor to its one output."""
    x, y = program.x, program.y
    words = np.zeros((-(-reals(x) // BITS), reals(y)), np.uint64)
    for piece, part in _pieces(program, budget):
        words[piece.start : piece.stop] = part()
    return Pattern(words, reals(x))


def entries(program: Program, budget: Budget, most: float) -> Entries | None:
    """The entries of the pattern, whose words are not kept; None where more than `most` rows meet in a column."""
    x, y = program.x, program.y
    found: list[tuple[Array, Array]] = []
    meeting = np.zeros(reals(y), np.int64)
    for piece, part in _pieces(program, budget):
        for number, word in enumerate(part(), piece.start):
            meeting += np.bitwise_count(word)
            if int(np.max(meeting, initial=0)) > most:
                return None
            rows, columns = _entries_of(word)
            found.append(((rows + BITS * number).astype(np.int32), columns.astype(np.int32)))
    row, column = (np.concatenate(each) for each in zip(*found, strict=True)) if found else (np.zeros(0, np.int32),) * 2
    return Entries(row, column, reals(x), reals(y), int(np.max(meeting, initial=0)))


def _pieces(program: Program, budget: Budget) -> Iterable[tuple[range, Callable[[], Array]]]:
    """The words of the pattern, some at a time."""
    rows = np.arange(reals(program.x))
    return in_chunks(partial(_reached, program, rows), -(-len(rows) // BITS), program.bytes_per_probe(), budget)


def sample(program: Program, seed: int = 0) -> Pattern:
    """The pattern of 64 rows, or fewer, drawn at random."""
    count = reals(program.x)
    rows = np.sort(np.random.default_rng(seed).permutation(count)[:BITS])
    return Pattern(_reached(program, rows, range(min(1, len(rows)))), len(rows))


def _reached(program: Program, rows: Array, piece: range) -> Array:
    """Words `piece` of the sets of all reals of y, `(len(piece), y_size)`: its real and imaginary parts alike."""
    sets = {program.probes[0]: _seeds(program.x, rows, piece)}
    guarding, guards = np.zeros(len(piece), np.uint64), {*program.tape.guards}  # control flow reaches all of y
    for position, (_, step) in enumerate(program.steps):
        made = _step(program, step, sets)
        for name in guards.intersection(made):
            guarding |= np.bitwise_or.reduce(made[name].reshape(len(piece), -1), axis=1)
        sets.update(made)
        for name in program.dies.get(position, ()):
            sets.pop(name, None)
    y = program.y
    if program.outputs[0] not in sets:
        return np.repeat(guarding[:, None], reals(y), axis=1)
    found = np.broadcast_to(sets[program.outputs[0]], (len(piece), *y.shape)).reshape(len(piece), y.size)
    found = found | guarding[:, None]
    return np.concatenate([found, found], axis=1) if y.dtype.kind == "c" else found


def _seeds(x: Array, rows: Array, piece: range) -> Array:
    """For each entry of x the rows that are its own: one, or two of a complex one; `(len(piece), *x.shape)`."""
    seeds = np.zeros((len(piece), x.size), np.uint64)
    here = np.arange(BITS * piece.start, min(BITS * piece.stop, len(rows)))
    bits = np.left_shift(np.uint64(1), (here % BITS).astype(np.uint64))
    np.bitwise_or.at(seeds, (here // BITS - piece.start, rows[here] % max(x.size, 1)), bits)
    return seeds.reshape(len(piece), *x.shape)


def _step(program: Program, step: Step, sets: Mapping[str, Array]) -> dict[str, Array]:
    """Sets of a step's outputs."""
    values = program.tape.values
    outputs = [(i, n) for i, n in enumerate(step.node.outputs) if n and n in values]
    own = [sets.get(n) for n in step.operands]
    given = [*own, *(sets.get(n) for n in step.statics)]
    live = [s for s in given if s is not None]
    if not live:
        return {}
    shapes = tuple(values[n].shape if n and n in values else () for n in step.node.outputs)
    operands = tuple(values[n] if n else None for n in step.operands)
    node = EvaluatedNode(operands, step.metadata, shapes, selecting(step), partial(_batched, step))
    rule = sparsity_rule(step)
    if any(n in sets for n in step.statics) or _alike(step, sets, program):
        rule, own = everything, given  # of metadata nothing is known; of equal sets there is one union
    made = rule(own, node)
    by_output = [made] * len(shapes) if isinstance(made, np.ndarray) else made
    return {name: _fitting(by_output[i], shapes[i]) for i, name in outputs}


def sparsity_rule(step: Step) -> SparsityRule:
    """The sparsity rule of a step: its operator's own, that of elementwise ones, or `everything`."""
    return step.op.sparsity or (same_place if step.op.batching is elementwise else everything)


def _alike(step: Step, sets: Mapping[str, Array], program: Program) -> bool:
    """All entries of all operands that depend on anything have the same set."""
    live = [n for n in step.operands if n in sets]
    if any(sets[n].size != len(sets[n]) or program.tape.values[n].size < 2 for n in live):
        return False
    first, *others = (sets[n].reshape(-1) for n in live)
    return all(np.array_equal(first, other) for other in others)


def _batched(step: Step, operands: Operands, probed: Sequence[bool]) -> Any:
    return step.op.batching(step.op.forward, operands, probed, step.metadata)


def _fitting(sets: Array, shape: tuple[int, ...]) -> Array:
    """The sets, if they are those of a tensor of this shape: a program that they do not fit has no pattern."""
    if sets.ndim != 1 + len(shape) or any(n not in (1, d) for n, d in zip(sets.shape[1:], shape, strict=True)):
        raise ValueError(f"sets {list(sets.shape)} do not fit {list(shape)}")
    return sets


_PIECE = 1 << 17  # entries that are added up at once, or more, where the columns are many: each time all get a sum
_LONGEST = 500_000_000  # words that are looked at for colors: some two seconds
_WORTH = 0.5  # of the rows: more colors save too little
_MEETING = 0.75  # of rows drawn at random, in one column: all of them will not do with few colors
_CHANCE = 0.125  # of these, by which one column of thousands may well have more than its share
_NO_PATTERN = (*FAILURES, MemoryError)
_LINES_WORTH = 1e8  # operations of all probes: what fewer could spare, looking for lines takes
_LINES_FEWEST = 8  # probes: random directions are fewer, for which no Jacobian of a line repays
_LINES_HELD = 32 << 20  # bytes: larger Jacobians of lines leave the caches
_LINES_ROOM = 256 << 20  # bytes of those of all parts
_LONGEST_PART = 128  # steps: longer parts are found in pieces
_FUSED = 5.0  # operations that an entry counts as which is computed with others in one pass
_MOVED = 20.0  # and one that goes into a product with Jacobians, or comes out of it
_LINEAR = {np.multiply: ((0, 1),), divide: ((0,),)}  # of elementwise kernels that have slopes: groups as of others
_SPARED = 0.2  # of the work of a part: with less its steps are run


class Coloring(Struct, frozen=True, dict=True):
    """Colors of the rows of a Jacobian `(rows, columns)`, and its entries that may differ from zero: `row` and `column`
    of each, by row."""

    colors: Array
    count: int
    columns: int
    row: Array
    column: Array

    @cached_property
    def cells(self) -> Nonzeros | None:
        """The entries as cells of their rows; None where these are not few."""
        found = cells_of(self.row, self.column, (len(self.colors), self.columns))
        return found if found.sparse else None

    def entries(self, answers: Array) -> Array:
        """The entries out of what the probes of all colors give, `(..., count, columns)`."""
        return np.asarray(answers[..., self.colors[self.row], self.column])

    def whole(self, entries: Array, elsewhere: Array | float = 0.0) -> Array:
        """The Jacobian; what no probe gives is `elsewhere`."""
        jacobian = np.zeros((len(self.colors), self.columns))
        if np.ndim(elsewhere):
            jacobian += elsewhere
        jacobian[self.row, self.column] = entries
        return jacobian

    def along(self, entries: Array, direction: Array, *, sized: bool = False) -> Array:
        """The sum of the rows, or of their magnitudes, each by a number, `(columns,)`."""
        total, size = np.zeros(self.columns), max(_PIECE, 8 * self.columns)
        for some in (slice(start, start + size) for start in range(0, len(self.row), size)):
            part = np.abs(entries[some]) if sized else entries[some]
            total += np.bincount(self.column[some], part * direction[self.row[some]], self.columns)
        return total


def line_parts(program: Program, count: int, *, linear: bool = False) -> tuple[LinePart, ...]:
    """Parts of a program by whose lines `count` probes take less work than by their steps.

    linear  the probes are values of a program of zeros at zeros, in which the parts have to be linear
    """
    found: list[LinePart] = []
    if count < _LINES_FEWEST or count * forward_work(program) < _LINES_WORTH:
        return ()
    search, position = _LineSearch(program, count, linear), 0
    while position < len(program.steps):
        part = search.part_at(position)
        position = position + 1 if part is None else part.stop
        found.extend([] if part is None else [part])
    return tuple(found)


class _LineSearch:
    """Looks for parts that spare work, and sends each line through their steps, as one index: none may meet another."""

    def __init__(self, program: Program, count: int, linear: bool) -> None:
        self.program, self.count, self.linear = program, count, linear
        self.steps, self.values = [step for _, step in program.steps], program.tape.values
        self.moving = [program.reached.intersection((*step.operands, *step.statics)) for step in self.steps]
        self.last = {n: i for i, names in enumerate(self.moving) for n in names}
        self.last.update(dict.fromkeys((*program.outputs, *program.tape.guards), len(self.steps)))
        self.work = [self._work(step) for step in self.steps]
        self.barred: dict[str, int] = {}  # tensors from which no part leads beyond a step, where lines meet
        self.room = _LINES_ROOM

    def part_at(self, start: int) -> LinePart | None:
        """The part that begins with a step and spares most; None where none does."""
        name = next(iter(self.moving[start]))
        x = self.values.like(name)
        if len(self.moving[start]) > 1 or x.ndim < 2 or not 0 < 2 * x.shape[-1] <= self.count or x.size == x.shape[-1]:
            return None
        most = min(len(self.steps), start + _LONGEST_PART, self.barred.get(name, len(self.steps)))
        drafts = {draft.stop: (spared, draft) for spared, draft in self._drafts(name, range(start, most))}
        part = self._best(drafts, name, start) if drafts and x.dtype == np.float64 else None
        self.room -= 0 if part is None else _held(x, self.values.like(part.made))
        return part

    def _drafts(self, name: str, some: range) -> Iterator[tuple[float, LinePart]]:
        """Parts that read one tensor and make one, with the operations that they spare if they work line by line."""
        inside, left, work, x = {name}, set[str](), 0.0, self.values.like(name)
        for position in some:
            if not self.moving[position] <= inside:
                break
            made = self.steps[position].node.outputs
            inside.update(made)
            left.difference_update(n for n in self.moving[position] if self.last[n] == position)
            left.update(n for n in made if self.last.get(n, -1) > position)
            work += self.work[position]
            if len(left) == 1:
                spared = self._spared(x, self.values.like(*left), work)
                if spared > _SPARED * self.count * work:
                    yield spared, LinePart(some.start, position + 1, name, *left)

    def _best(self, drafts: Mapping[int, tuple[float, LinePart]], name: str, start: int) -> LinePart | None:
        """The draft that spares most of those that work line by line."""
        lines = _line_codes(self.values.like(name).shape[:-1])
        sets, bits, good = {name: lines}, int(np.bitwise_count(lines).max()), []
        for position in range(start, max(drafts)):
            made = self._made(position, sets)
            if made is None or any(np.bitwise_count(each).max(initial=0) > bits for each in made.values()):
                self.barred.update((n, position) for n, each in sets.items() if np.array_equal(each, lines))
                break
            sets.update(made)
            if position + 1 in drafts:
                spared, draft = drafts[position + 1]
                good += [] if np.any(sets[draft.made] & ~lines) else [(spared, draft)]
        return max(good, key=itemgetter(0))[1] if good else None

    def _made(self, position: int, sets: Mapping[str, Array]) -> dict[str, Array] | None:
        """Sets of the outputs of a step; None of one that cannot be in a part: of a foreign kernel much is only said."""
        step = self.steps[position]
        if step.trial is not None or (self.linear and not self._is_linear(step, self.moving[position])):
            return None
        try:
            return _step(self.program, step, sets)
        except _NO_PATTERN:
            return None

    def _is_linear(self, step: Step, moving: Set[str]) -> bool:
        """True if a step is linear in these operands together, and decides nothing by them."""
        known = linear_groups(step) or _LINEAR.get(step.op.forward, ())
        groups = [[step.operands[i] for i in group if i < len(step.operands)] for group in known]
        alone = all(sum(n in moving for n in group) == 1 or self._is_zero(group) for group in groups)
        numbers = all(is_inexact(self.values.like(n).dtype) for n in step.node.outputs if n)
        return alone and numbers and moving <= {n for group in groups for n in group}

    def _is_zero(self, names: Sequence[str]) -> bool:
        """True for a term that no probe reaches and that adds nothing."""
        given = [n for n in names if n]
        return not given or (self.program.reached.isdisjoint(given) and not all(np.any(self.values[n]) for n in given))

    def _work(self, step: Step) -> float:
        """Operations of a step; an entry that may be computed with others in one pass counts as few."""
        made = sum(self.values.like(n).size for n in step.node.outputs if n)
        work = step_work(self.program.tape, step)
        return work if step.op.cost == "products" else min(work, _FUSED * made)

    def _spared(self, x: Array, y: Array, work: float) -> float:
        """Operations that are spared: those of the steps, less products with Jacobians, less those of finding these.

        None at all where there are no such Jacobians, or no room for them.
        """
        alike = y.size and y.dtype == np.float64 and y.shape[:-1] == x.shape[:-1]
        if not alike or _held(x, y) > min(_LINES_HELD, self.room):
            return -math.inf
        product = 2.0 * x.size * y.shape[-1] + _MOVED * (x.size + y.size)
        return self.count * (work - product) - x.shape[-1] * work


def _held(x: Array, y: Array) -> int:
    """Bytes of the Jacobians of all lines of y by those of x."""
    return 8 * x.size * y.shape[-1]


@lru_cache(maxsize=64)
def _line_codes(shape: tuple[int, ...]) -> Array:
    """A word `(1, *shape, 1)` for each line: what follows from two of them fits neither.

    Of the two bits for each binary digit of the line's number a word has the one that stands for the digit.
    """
    number = np.arange(math.prod(shape), dtype=np.uint64)
    word = np.zeros_like(number)
    for digit in map(np.uint64, range(max(1, (len(number) - 1).bit_length()))):
        word |= np.left_shift(np.uint64(1), np.uint64(2) * digit + (number >> digit & np.uint64(1)))
    return word.reshape(1, *shape, 1)


class Structure:
    """The sparsity of what a program computes, found once it is asked for; None where there is none to be had.

    More than `most` colors would not be used.
    """

    def __init__(self, program: Program, budget: Budget, *, colors: bool = True, most: float = math.inf) -> None:
        self.program, self.budget, self.colors = program, budget, colors
        self.rows = reals(program.x)
        self.most = min(most, _WORTH * self.rows)

    @cached_property
    def pattern(self) -> Pattern | None:
        """The entries that may differ from zero."""
        try:
            return pattern(self.program, self.budget)
        except _NO_PATTERN:
            return None

    @cached_property
    def known(self) -> Entries | None:
        """The entries of the pattern, where colors are wanted and may be few, and it is worth its work."""
        if not self.colors or self._idle or self._crowded:
            return None
        try:
            return entries(self.program, self.budget, self.most)
        except _NO_PATTERN:
            return None

    @cached_property
    def coloring(self) -> Coloring | None:
        """Colors of the rows, where they are wanted and few, and take less than probes of single rows, which may reach
        little, and give all entries."""
        found = None if self.known is None else colored(self.known)
        if found is None:
            return None
        spared = 0 if found.cells is None else len(found.colors) * found.columns - found.cells.columns.size
        together = found.count * forward_work(self.program)
        return found if together <= self.alone * reach(self.program).work + ENTRY * spared else None

    @property
    def alone(self) -> int:
        """Rows that are probed where each is on its own: those that are not known to reach nothing."""
        reached = taken(self.program)
        return self.rows if reached is None else int(np.count_nonzero(reached))

    @property
    def _idle(self) -> bool:
        """Most rows are known to reach nothing, and the pattern of all of them takes long."""
        return taken(self.program) is not None and pattern_work(self.program, self.rows) > SOON

    @cached_property
    def _crowded(self) -> bool:
        """Of some rows, drawn at random, so many meet in one column that of all rows too many will."""
        try:
            some = sample(self.program)
        except _NO_PATTERN:
            return True
        return some.rows == BITS and some.fullest() > BITS * min(_MEETING, 2 * self.most / self.rows + _CHANCE)


def colored(known: Entries) -> Coloring | None:
    """A color for each row, the first that no row which it meets has; None if that takes too many."""
    most = int(_WORTH * known.rows)
    if not known.columns or known.meeting > most:
        return None
    colors = nonzeros.first_free(known.starts, known.column, known.columns, most, _LONGEST)
    if colors is None:
        return None
    return Coloring(colors, int(np.max(colors, initial=-1)) + 1, known.columns, known.row, known.column)
