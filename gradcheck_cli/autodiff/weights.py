"""The values of a tape.  Large constants stay in the model's own dtype and are widened when they are read.

A model of 1 GB in float32 is one of 2 GB in float64, and no step needs more than a tensor or two of that.  So beyond
`KEPT` bytes, a weight is widened for the step that reads it and dropped after that, and results that depend on weights
alone (a transpose, a constant fill) are computed anew as well.  Products and convolutions read the narrow numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from threading import Lock
from typing import Any
from weakref import ref

import numpy as np

from gradcheck_cli.graph import Array
from gradcheck_cli.graph.memory import Owned
from gradcheck_cli.op import Op

LARGE = 1 << 20  # bytes: smaller tensors are always kept
KEPT = 64 << 20  # bytes of widened constants that are kept, first come, first served


class Recipe:
    """A tensor that is computed when it is read, and shared while anybody holds it.

    `like` is an array of its shape and dtype without numbers of its own; `narrow` are its numbers in the model's dtype.
    """

    __slots__ = ("_held", "_lock", "_make", "like", "narrow")

    def __init__(self, like: Array, make: Callable[[], Array], narrow: Array | None = None) -> None:
        self.narrow = narrow
        self.like = np.broadcast_to(np.empty((), like.dtype), like.shape)
        self._make, self._lock = make, Lock()
        self._held: ref[Array] | None = None

    def made(self) -> Array:
        with self._lock:  # two threads that need it compute it once
            made = None if self._held is None else self._held()
            if made is None:
                made = self._make()
                self._held = ref(made)
            return made


def _reset(mine: dict[str, Any], kept: Mapping[str, Any]) -> None:
    for name in [name for name in mine if name not in kept]:
        del mine[name]
    mine.update(kept)


class TapeValues(dict[str, Array]):
    """Arrays by name; some have a recipe instead, which readers do not notice."""

    def __init__(self) -> None:
        super().__init__()
        self.recipes: dict[str, Recipe] = {}
        self._left = KEPT
        self._owned, self._counted = Owned(), 0

    def __missing__(self, name: str) -> Array:
        return self.recipes[name].made()

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or name in self.recipes

    def __len__(self) -> int:
        return super().__len__() + len(self.recipes)

    def owned(self) -> int:
        """Bytes of its arrays, views counted once; a look at those alone that were added since the last call."""
        first, self._counted = self._counted, super().__len__()
        return self._owned.add(islice(self.values(), first, None))

    def like(self, name: str) -> Array:
        """An array of a tensor's shape and dtype, with arbitrary numbers."""
        recipe = self.recipes.get(name)
        return self[name] if recipe is None else recipe.like

    def operand(self, op: Op, name: str) -> Array:
        """A tensor as an operand of an operator; one that widens its operands gets the narrow numbers."""
        return self.narrowest(name) if op.widens else self[name]

    def narrowest(self, name: str) -> Array:
        """A tensor, in the model's dtype if it is widened whenever it is read."""
        recipe = self.recipes.get(name)
        return self[name] if recipe is None or recipe.narrow is None else recipe.narrow

    def copy(self) -> TapeValues:
        """A copy to which tensors can be added."""
        return self._only(super().copy(), self.recipes)

    def restore(self, kept: TapeValues) -> None:
        """Makes it what it was when it was copied: whoever holds it does not keep alive what was added since."""
        _reset(self, dict(kept))
        _reset(self.recipes, kept.recipes)
        self._left, self._owned, self._counted = kept._left, Owned(), 0

    def part(self, names: Iterable[str]) -> TapeValues:
        """The tensors among `names` that exist."""
        names = list(names)
        return self._only(
            {n: dict.__getitem__(self, n) for n in names if super(TapeValues, self).__contains__(n)},
            {n: self.recipes[n] for n in names if n in self.recipes},
        )

    def _only(self, values: Mapping[str, Array], recipes: Mapping[str, Recipe]) -> TapeValues:
        made = TapeValues()
        made.update(values)
        made.recipes.update(recipes)
        made._left = self._left
        return made

    def widened(self, name: str, narrow: Array, dtype: np.dtype[Any]) -> None:
        """Adds a constant in a wider dtype: widened once, or whenever it is read."""
        size = narrow.size * dtype.itemsize
        if narrow.dtype == dtype or not self._spare(size):
            self[name] = narrow.astype(dtype, copy=False)
        else:
            like = np.broadcast_to(np.empty((), dtype), narrow.shape)
            exact = narrow.dtype == np.float32 and dtype == np.float64
            self.recipes[name] = Recipe(like, lambda: narrow.astype(dtype), narrow if exact else None)

    def derived(
        self, op: Op, operands: Sequence[str], metadata: Mapping[str, Any], names: Sequence[str], made: Sequence[Array]
    ) -> bool:
        """Adds recipes for results of constants alone, if they are large; False if the caller has to keep the arrays."""
        if not any(n in self.recipes for n in operands) and not self._spare(sum(y.nbytes for y in made)):
            return False
        narrow = recipe.narrow if turns(op) and (recipe := self.recipes.get(operands[0])) is not None else None
        for index, (name, y) in enumerate(zip(names, made, strict=False)):
            if name:  # the narrow numbers of a transpose are a view of its operand's
                turned = None if narrow is None else np.asarray(op.forward(narrow, **metadata))
                self.recipes[name] = Recipe(y, self._again(op, operands, metadata, index, y.dtype), turned)
        return True

    def _again(
        self, op: Op, operands: Sequence[str], metadata: Mapping[str, Any], index: int, dtype: np.dtype[Any]
    ) -> Callable[[], Array]:
        sources = self.part(n for n in operands if n)

        def make() -> Array:
            with np.errstate(all="ignore"):
                results = op.forward(*[sources[n] if n else None for n in operands], **metadata)
            return np.asarray(results[index] if op.many else results).astype(dtype, copy=False)

        return make

    def _spare(self, size: int) -> bool:
        """True if a tensor of this many bytes is not to be kept; otherwise counts them as kept."""
        if size < LARGE or size > self._left:
            return size >= LARGE
        self._left -= size
        return False


def turns(op: Op) -> bool:
    """True for an operator whose results are the numbers of its one operand, in another order in memory."""
    return (op.domain, op.name) == ("", "Transpose")
