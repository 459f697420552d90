"""A tape that computes numbers when somebody reads them, where shapes and dtypes follow from those of operands.

To learn how a graph of derivatives depends on sizes, a model is run at dozens of them, and almost no number is read:
only those that shapes, branches and loops follow from.  All others stay blank (`op/batching.py`).  Where the numbers of
some tensors are all that is wanted of a run (`numbers`), those in between are freed as it goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from gradcheck_cli.autodiff.tape import Held, Large, Step, Tape, Var, Where, Widen, run
from gradcheck_cli.autodiff.weights import Recipe
from gradcheck_cli.graph import Array, computing
from gradcheck_cli.op import Op
from gradcheck_cli.op.batching import Blank, blank, shape_only

_SMALL = 4096  # bytes of operands: results of smaller ones are computed at once


class Evaluation:
    """A step whose results nobody has read yet, with its operands: arrays, and recipes of what is not computed either."""

    __slots__ = ("_given", "_of", "_widen", "results")

    def __init__(self, given: Sequence[Array | Recipe | None], of: Step, widen: Widen) -> None:
        self._given, self._of, self._widen = given, of, widen
        self.results: Sequence[Array] | None = None

    def run(self) -> Sequence[Array]:
        """The results; those that they follow from are computed first, one after the other, however many they are."""
        waiting = [self]
        while self.results is None:
            last = waiting[-1]
            before = [r.step for r in last._given if isinstance(r, Later) and r.step.results is None]
            if last.results is None and before:
                waiting.extend(before)
                continue
            if last.results is None:
                given = [r.made() if isinstance(r, Recipe) else r for r in last._given]
                last.results = _results(last._of, given, last._widen)
                last._given = ()
            waiting.pop()
        return self.results


class Later(Recipe):
    """A tensor that is computed when it is read first, and kept from then on."""

    __slots__ = ("_index", "step")

    def __init__(self, like: Blank, step: Evaluation, index: int) -> None:
        self.like, self.narrow, self.step, self._index = like, None, step, index

    def made(self) -> Array:
        return self.step.run()[self._index]


class OutlinedTape(Tape):
    """A tape that leaves numbers for later."""

    def _arrays(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        if op.outlined is None and not op.composed and op.batching is not shape_only:
            return super()._arrays(op, operands)
        read = {index for _, index in op.signature.static}
        return [x.like if is_later(x) and i not in read else self._given(op, x) for i, x in enumerate(operands)]

    def _given(self, op: Op, x: Any) -> Any:
        return x.value if type(x) is Held or is_later(x) else super()._given(op, x)

    def _evaluate(
        self, op: Op, arrays: Sequence[Array | None], metadata: Mapping[str, Any], where: Where
    ) -> Sequence[Array]:
        there = [x for x in arrays if x is not None]
        if op.outlined is None or not (any(type(x) is Blank for x in there) or _are_large(there)):
            return super()._evaluate(op, arrays, metadata, where)
        self._require_evaluable(op, arrays, where)
        made = run(op.outlined, arrays, metadata, where=where, widen=self.widen)
        return [blank(y.shape, y.dtype) for y in made]

    def recorded(self, make: Callable[[], Step], results: Sequence[Array]) -> tuple[Var, ...]:
        if not any(type(y) is Blank for y in results):
            return super().recorded(make, results)
        step, values = make(), self.values
        self.steps.append(step)
        names = step.node.outputs
        if self.fixed.issuperset(step.operands + step.statics):
            self.fixed.update(names)
        values.recipes.update(self._later(step, results))
        return tuple([Large(self, n) if n else Held(self, n, y) for n, y in zip(names, results, strict=False)])

    def numbers(self, names: Iterable[str]) -> dict[str, Array]:
        """The numbers of some tensors; what they follow from is freed as soon as the last step has read it.

        ValueError if an outline was not that of the numbers.
        """
        wanted = list(names)
        steps = [self.steps[i] for i in computing([step.node for step in self.steps], wanted)[0]]
        last = {name: i for i, step in enumerate(steps) for name in (*step.outputs, *step.operands)}
        last.update(dict.fromkeys(wanted, len(steps)))
        made: dict[str, Array] = {}
        for i, step in enumerate(steps):
            waiting = [n for n in step.outputs if n and self._waits(n)]
            if waiting:
                given = [
                    made[n] if n in made else self.values.operand(step.op, n) if n else None for n in step.operands
                ]
                results = _results(step, given, self.widen)
                made.update((n, y) for n, y in zip(step.outputs, results, strict=False) if n)
                self._require_outlines(step, made, waiting)
            for name in {*step.outputs, *step.operands}:
                if last.get(name) == i:
                    made.pop(name, None)
        return {name: made[name] if name in made else self.values[name] for name in wanted}

    def _waits(self, name: str) -> bool:
        """True for a tensor that nobody has computed yet."""
        recipe = self.values.recipes.get(name)
        return isinstance(recipe, Later) and recipe.step.results is None

    def _require_outlines(self, step: Step, made: Mapping[str, Array], names: Iterable[str]) -> None:
        for name in names:
            y, like = made[name], self.values.like(name)
            if (y.shape, y.dtype) != (like.shape, like.dtype):
                where = step.place.of(step.op.name, step.label)
                raise ValueError(
                    f"{where}: {list(y.shape)} {y.dtype} where {list(like.shape)} {like.dtype} was foretold"
                )

    def extended(self, step: Step, results: Sequence[Array]) -> None:
        more = self._later(step, results)
        self.values.recipes.update((name, later) for name, later in more.items() if name not in self.values)
        if not more:
            super().extended(step, results)

    def _later(self, step: Step, results: Sequence[Array]) -> dict[str, Later]:
        """The results of a step that are computed when they are read, by name."""
        given = [self.values.recipes.get(n) or self.values[n] if n else None for n in step.operands]
        evaluation = Evaluation(given, step, self.widen)
        named = enumerate(zip(step.outputs, results, strict=False))
        return {name: Later(y, evaluation, index) for index, (name, y) in named if name and type(y) is Blank}


def is_later(x: Any) -> bool:
    """True for a tensor whose numbers are left for later; they may have been computed since."""
    return isinstance(x, Large) and type(x.like) is Blank


def _are_large(arrays: Sequence[Array]) -> bool:
    return sum(x.nbytes for x in arrays) > _SMALL and not any(x.dtype == object for x in arrays)


def _results(step: Step, given: Sequence[Any], widen: Widen) -> Sequence[Array]:
    """The results of a step for the numbers of its operands."""
    where = partial(step.place.of, step.op.name, step.label)
    made: Sequence[Array] = run(step.op, given, step.metadata, where=where, widen=widen)
    return made
