"""Fusion of elementwise steps that follow one another: they run in one pass over memory, without the interpreter's lock.

A step is fused if its kernel is in the table `FUSIBLE`: an expression of exact operations, each of which rounds as
NumPy's does, on stacks and constants.  Results that only later fused steps read never become arrays.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import reduce
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct, field

from gradcheck_cli import native
from gradcheck_cli.graph import Array, Node
from gradcheck_cli.op.batching import raised

Shape: TypeAlias = tuple[int, ...]
Expression: TypeAlias = "str | float | Array | tuple[str, Any, Any]"  # a stack, a constant, or an operation on two
_LONGEST = 24  # formulas that are fused: their blocks share a cache
_WIDEST = 64  # stacks and constants that fused steps read
_MOST = 16  # operands in an expression


class Formula(Struct, frozen=True):
    """An elementwise step: its result, a stack of tensors of a shape, as an expression of the operands it reads."""

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    expression: Expression
    reads: Sequence[Any]


class Computation(Struct, frozen=True):
    """Compiled code with the names of its operands, and its number of results and of hidden values."""

    operands: Sequence[str]
    constants: Sequence[Array]
    code: bytes
    results: int
    hidden: int

    def run(self, arrays: Mapping[str, Array], shape: Shape) -> list[Array]:
        """The results, of a shape over which arrays broadcast."""
        given = [*(arrays[name] for name in self.operands), *self.constants]
        made = native.fused(self.code, given, shape, self.results, self.hidden)
        return native.by_numpy(self.code, given, shape, self.results, self.hidden) if made is None else made


class FusedSteps(Struct, frozen=True):
    """Formulas computed at once: from live stacks (by name, with shapes) to results."""

    live: Mapping[str, Shape]
    results: Sequence[str]
    shape: Shape
    computation: Computation

    def run(self, live: Mapping[str, Array]) -> dict[str, Array] | None:
        """The results by name; None if a live stack has another shape than expected."""
        rank, stacks = len(self.shape), []
        count = len(live[next(iter(self.live))])
        for name, shape in self.live.items():
            stack = live[name]
            if stack.shape != (count, *shape):
                return None
            stacks.append(raised(stack, rank) if len(shape) < rank else stack)
        code = self.computation
        stacks.extend(code.constants)
        made = native.fused(code.code, stacks, (count, *self.shape), code.results, code.hidden)
        return None if made is None else dict(zip(self.results, made, strict=True))


class Segment(Struct, frozen=True):
    """Steps, by number, that run at once, fused or one step alone, and the tensors that nothing reads later."""

    steps: Sequence[int]
    fused: FusedSteps | None
    dies: Sequence[str]


def segments(
    nodes: Sequence[Node],
    formulas: Sequence[Formula | None],
    outputs: Collection[str],
    shapes: Callable[[str], Shape],
    least: int,
) -> Iterator[Segment]:
    """Yields the steps as segments, in an order in which operands come first; at least `least` formulas are fused."""
    found = list(_grouped(formulas, least))
    last = {n: i for i, steps in enumerate(found) for s in steps for n in nodes[s].inputs}
    for i, steps in enumerate(found):
        named = {n for s in steps for n in (*nodes[s].inputs, *nodes[s].outputs)}
        dies = [n for n in named if n and last.get(n, i) <= i and n not in outputs]
        mine = [f for s in steps if (f := formulas[s]) is not None]
        wanted = [f.name for f in mine if f.name not in dies]
        yield Segment(steps, linked(mine, wanted, shapes) if wanted and len(mine) >= least else None, dies)


def _grouped(formulas: Sequence[Formula | None], least: int) -> Iterator[list[int]]:
    """Numbers of the steps that run at once: groups of formulas that follow one another, other steps alone."""
    for fusible, run in groupby(range(len(formulas)), key=lambda i: formulas[i] is not None):
        steps = list(run)
        if not fusible or len(steps) < least:
            yield from ([i] for i in steps)
            continue
        number = {f.name: i for i in steps if (f := formulas[i]) is not None}
        for group in grouped([f for i in number.values() if (f := formulas[i]) is not None]):
            whole = [number[f.name] for f in group]
            yield from [whole] if len(whole) >= least else [[i] for i in whole]


def grouped(formulas: Sequence[Formula]) -> list[list[Formula]]:
    """Formulas, in order, in groups of one shape and dtype; no group reads a result of a later one."""
    groups: list[list[Formula]] = []
    home: dict[str, int] = {}
    rooms: dict[Any, _Rooms] = {}  # by shape and dtype
    for formula in formulas:
        first = 0
        for name in formula.reads:
            if isinstance(name, str) and name in home:
                first = max(first, home[name] + (not _alike(groups[home[name]][0], formula)))
        room = rooms.setdefault((formula.shape, formula.dtype), _Rooms())
        home[formula.name] = index = room.take(first, len(formula.reads), len(groups))
        if index == len(groups):
            groups.append([])
        groups[index].append(formula)
        room.leave(index, len(groups[index]))
    return groups


def _alike(a: Formula, b: Formula) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype


class _Rooms:
    """Numbers of groups that take more formulas, by the number of operands for which they have room."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.by_room: dict[int, list[int]] = {}

    def take(self, first: int, reads: int, new: int) -> int:
        """The first group from number `first` on with room for so many operands, taken out; else the number `new`."""
        found = [(numbers[at], numbers, at) for room, numbers in self.by_room.items()
                 if room >= reads and (at := bisect_left(numbers, first)) < len(numbers)]  # fmt: skip
        if not found:
            self.left[new] = _WIDEST - reads
            return new
        index, numbers, at = min(found, key=itemgetter(0))
        del numbers[at]
        self.left[index] -= reads
        return index

    def leave(self, index: int, length: int) -> None:
        """Puts a group back, unless it is full."""
        if length < _LONGEST and self.left[index] >= 0:
            insort(self.by_room.setdefault(self.left[index], []), index)


def linked(formulas: Sequence[Formula], wanted: Collection[str], shapes: Callable[[str], Shape]) -> FusedSteps:
    """Formulas of one shape and dtype, fused; results `wanted` become stacks, `shapes` gives shapes of operands."""
    code, made = Code(), dict[str, int]()
    for formula in formulas:
        made[formula.name] = code.expression(formula.expression, made)
    results = [f.name for f in formulas if f.name in wanted]
    computation = code.computation([made[name] for name in results], formulas[0].dtype)
    return FusedSteps({name: shapes(name) for name in code.live}, results, formulas[0].shape, computation)


class Code(Struct):
    """Instructions under construction; values are numbers of instructions, names of operands, or constants."""

    live: list[str] = field(default_factory=list)
    constants: dict[Any, Any] = field(default_factory=dict)
    lines: list[tuple[Any, ...]] = field(default_factory=list)

    def let(self, operation: str, *read: Any) -> int:
        """Adds an operation on values; gives its number."""
        self.lines.append((operation, *(self._value(value) for value in read)))
        return len(self.lines) - 1

    def expression(self, expression: Expression, known: Mapping[str, Any]) -> int:
        """Adds the operations of an expression of known values and operands; gives the number of its result."""

        def value(part: Expression) -> Any:
            if isinstance(part, tuple):
                return self.let(part[0], value(part[1]), value(part[2]))
            return known.get(part, part) if isinstance(part, str) else part

        found = value(expression)
        return found if isinstance(expression, tuple) else self.let("copy", found)

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            if value not in self.live:
                self.live.append(value)
            return value
        if isinstance(value, int):
            return value
        key = ("constant", value if isinstance(value, float) else id(value))
        self.constants[key] = value
        return key

    def computation(self, results: Sequence[int], dtype: Any = None) -> Computation:
        """The code, ready to run on arrays; hidden values share places once they are read no more."""
        place = {value: i for i, value in enumerate([*self.live, *self.constants, *results])}
        first = most = len(place)
        last = {value: i for i, (_, *read) in enumerate(self.lines) for value in read}
        free: list[int] = []
        code = bytearray()
        for made, (operation, *read) in enumerate(self.lines):
            places = [place[value] for value in read]
            free += {place[v] for v in read if last[v] == made and place[v] >= first}
            if made not in place:
                place[made] = free.pop() if free else most
                most = max(most, place[made] + 1)
            code += bytes((native.NAMES.index(operation), place[made], *(*places, *places[:1] * 2)[:3]))
        constants = [np.asarray(value, dtype) for value in self.constants.values()]
        return Computation(tuple(self.live), constants, bytes(code), len(results), most - first)


def expressed(kernel: Callable[..., Any], operands: Sequence[Expression]) -> Expression | None:
    """The expression of a kernel on operands; None if it is not in `FUSIBLE`, or has too many operands."""
    expression = FUSIBLE.get(kernel)
    return None if expression is None or len(operands) > _MOST else expression(*operands)


def divide(a: Array, b: Array) -> Array:
    """a / b; of integers the quotient truncated towards zero, 0 where b is 0."""
    if np.result_type(a.dtype, b.dtype).kind not in "iu":
        return np.divide(a, b)
    safe = np.where(b == 0, np.ones((), b.dtype), b)
    quotient = a // safe
    return (quotient + ((a % safe != 0) & ((a < 0) != (safe < 0)))).astype(a.dtype)


def reciprocal(x: Array) -> Array:
    """1 / x in the dtype of x."""
    return (np.ones((), x.dtype) / x).astype(x.dtype, copy=False)


def added(*xs: Array) -> Array:
    """The sum of any number of operands."""
    return reduce(np.add, xs)


def total(*terms: Expression) -> Expression:
    """The sum of terms, from left to right."""
    return reduce(lambda a, b: ("add", a, b), terms)


# By kernel, not by name: an operator that is handed in with another kernel is not mistaken for this one.
FUSIBLE: Mapping[Callable[..., Any], Callable[..., Expression]] = {
    np.add: lambda a, b: ("add", a, b),
    np.subtract: lambda a, b: ("subtract", a, b),
    np.multiply: lambda a, b: ("multiply", a, b),
    np.negative: lambda x: ("negate", x, x),
    np.sqrt: lambda x: ("root", x, x),
    divide: lambda a, b: ("divide", a, b),
    reciprocal: lambda x: ("divide", 1.0, x),
    added: total,
}
