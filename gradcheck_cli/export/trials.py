"""Chooses the sizes at which a model is run to learn what depends on its open dimensions.

Each dimension gets its own size in every run: odd and even, small and large ones, so that remainders and numbers of
windows differ.  Dimensions that must be equal change together, and a dimension for which no other size works stays
fixed.  Integer inputs that shapes depend on (counts) are varied in the same way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from random import Random

import numpy as np

from gradcheck_cli.autodiff.reach import Dependence
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.export.size_formulas import formula
from gradcheck_cli.graph import Array
from gradcheck_cli.model import Model
from gradcheck_cli.op import Ops
from gradcheck_cli.points.dims import declared_shape, open_dims, sizes_given, symbol
from gradcheck_cli.settings import Settings

RUNS = 6  # three runs determine a sum of two dimensions; the others confirm it
COUNTS = tuple(range(2, 14))  # values that are tried
_BATCHES = tuple(range(5, 40))
_LENGTHS = (*range(5, 14), *range(14, 90, 3))
_REMAINDERS = {2: 2, 3: 2, 4: 3}  # modulus -> number of different remainders that the sizes must have
_FACTORS = (1, 2, 4, 8, 16, 32)  # numbers of which a size may have to be a multiple
_STEPS = 4  # that lead to twice the size
_ATTEMPTS = 300
_MOST_EQUAL = 4  # further dimensions that are tried as equal to one


@dataclass(frozen=True, slots=True)
class Trials:
    """Sizes for each run, with spare ones in case derivatives do not run at some.

    `equal` maps dimensions to the dimension that they must equal, `fixed` maps others to their only size.  The sizes
    include values of `counted` inputs.  `small` are smaller sizes, which are used if the same operators run there.
    """

    runs: tuple[Mapping[str, int], ...]
    small: tuple[Mapping[str, int], ...] = ()
    equal: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=dict)
    counted: tuple[Count, ...] = ()

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions that stay open."""
        return tuple(d for d in self.symbols if d not in {count.symbol for count in self.counted})

    @property
    def symbols(self) -> dict[str, tuple[int, ...]]:
        """Dimensions that stay open, and counts, with their size in each run."""
        sizes = {d: tuple(run[d] for run in self.runs) for d in self.runs[0] if d not in self.equal}
        return {d: each for d, each in sizes.items() if len(set(each)) > 1}


def trials(model: Model, targets: Sequence[str], settings: Settings, ops: Ops) -> Trials:
    """Chooses sizes for a model that is run to compute some targets."""
    point = model.point(targets, settings, ops)
    base, counted = dict(point.dims), tuple(counts(model, point.tape, settings.extra_feed_dict))
    trial = _Trial(model, targets, settings, model.ops, counted)
    given = {*model.dims, *settings.dims, *sizes_given(model.graph, settings), *model.source.dims}
    needed = model.graph.needed_for([*targets, *(n for r in model.requests_for(targets) for n in r.reads)])
    batches = open_dims(model.graph)
    free = [d for d in batches if d not in given and d in base and _is_read(model, d, needed)]
    if not free and not counted:
        return Trials((base,))
    fixed = _fixed_sizes(model)
    groups = [DimGroup((d,), tuple(n for n in (_BATCHES if batches[d] else _LENGTHS) if n not in fixed)) for d in free]
    if not trial.go(groups, base):
        groups = trial.joined(list(_moving(trial, base, groups)), base)
    for group in (DimGroup((count.symbol,), COUNTS) for count in counted):
        if trial.go([*groups, group], base):
            groups.append(group)
    moved = {d for group in groups for d in group.dims}
    near = [DimGroup(group.dims, group.sizes[: RUNS + len(groups)]) for group in groups]
    runs = tuple({**base, **each} for each in (*_assigned(groups), *_assigned(near))) if groups else (base,)
    equal = {d: group.dims[0] for group in groups for d in group.dims[1:]}
    found = tuple(count for count in counted if count.symbol in moved)
    small = tuple({**base, **each} for each in _below(groups, fixed) if trial.runs({**base, **each}))
    return Trials(runs, small, equal, {d: base[d] for d in free if d not in moved}, found)


def at(settings: Settings, sizes: Mapping[str, int], counted: Collection[Count]) -> Settings:
    """Settings for a run at these sizes of dimensions and values of counts."""
    values = {c.name: np.full_like(c.like, sizes[c.symbol]) for c in counted if c.symbol in sizes}
    dims = {d: size for d, size in sizes.items() if d not in {c.symbol for c in counted}}
    return replace(settings, dims=dims, extra_feed_dict={**settings.extra_feed_dict, **values})


@dataclass(frozen=True, slots=True)
class Count:
    """An integer input on whose value shapes depend, such as a number of iterations; `like` has its shape and dtype."""

    name: str
    like: Array

    @property
    def symbol(self) -> str:
        """The name of its value among the sizes of dimensions."""
        return f"value of {self.name!r}"


def counts(model: Model, tape: Tape, given: Collection[str]) -> Iterator[Count]:
    """Integer inputs without given values, on whose values shapes depend in a run of the model."""
    for name in model.graph.free_inputs:
        like = tape.values.get(name) if name not in given else None
        if like is None or like.dtype.kind != "i" or like.size != 1:
            continue
        if Dependence.on([name], tape, model.graph).shapes:
            yield Count(name, like)


@dataclass(frozen=True, slots=True)
class DimGroup:
    """Dimensions that must be equal, and the sizes that they may have."""

    dims: tuple[str, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Trial:
    """Finds out at which sizes the model runs."""

    model: Model
    targets: Sequence[str]
    settings: Settings
    ops: Ops
    counted: tuple[Count, ...]

    def runs(self, sizes: Mapping[str, int]) -> bool:
        """True if the model runs at these sizes."""
        try:
            self.model.point(self.targets, at(self.settings, sizes, self.counted), self.ops)
        except GradcheckError:
            return False
        return True

    def go(self, groups: Sequence[DimGroup], base: Mapping[str, int]) -> bool:
        """True if the model runs at all sizes that the groups would be assigned."""
        return all(self.runs({**base, **sizes}) for sizes in _assigned(groups))

    def moves(self, group: DimGroup, base: Mapping[str, int]) -> DimGroup | None:
        """The group with the sizes at which the model runs; None if those are too few."""

        def runs(place: int) -> bool:
            return self.runs({**base, **dict.fromkeys(group.dims, group.sizes[place])})

        if not (runs(0) and runs(1)):
            return None
        low, high = 1, len(group.sizes) - 1
        if runs(high) and runs(high // 2):
            return group
        while low < high - 1:
            low, high = ((low + high) // 2, high) if runs((low + high) // 2) else (low, (low + high) // 2)
        return DimGroup(group.dims, group.sizes[: low + 1]) if low + 1 >= RUNS else None

    def joined(self, groups: Sequence[DimGroup], base: Mapping[str, int]) -> list[DimGroup]:
        """The groups that can change all at once."""
        kept: list[DimGroup] = []
        for group in groups:
            if self.go([*kept, group], base):
                kept.append(group)
        return kept


def _moving(trial: _Trial, base: Mapping[str, int], groups: Sequence[DimGroup]) -> Iterator[DimGroup]:
    """Groups of dimensions that can have other sizes: single ones, else together with others of the same size."""
    stuck: list[DimGroup] = []
    for group in groups:
        found = _first(trial, base, group)
        if found is None:
            stuck.append(group)
        else:
            yield found
    while stuck:
        first, *others = stuck
        alike = [o for o in others if base[o.dims[0]] == base[first.dims[0]]][:_MOST_EQUAL]
        sets = [alike, *(list(c) for n in range(1, len(alike)) for c in combinations(alike, n))]
        tried = (_first(trial, base, _together([first, *each])) for each in sets if each)
        group = next((found for found in tried if found is not None), None) or DimGroup(first.dims, ())
        if group.sizes:
            yield group
        stuck = [each for each in stuck if each.dims[0] not in group.dims]


def _together(groups: Sequence[DimGroup]) -> DimGroup:
    return DimGroup(tuple(d for group in groups for d in group.dims), groups[0].sizes)


def _first(trial: _Trial, base: Mapping[str, int], group: DimGroup) -> DimGroup | None:
    """The group with a kind of sizes at which the model runs, preferably at all of them."""
    size = base[group.dims[0]]
    above = (
        tuple(size + factor * (k + size * k // (_STEPS * factor)) for k in range(1, RUNS + 3)) for factor in _FACTORS
    )
    multiples = (tuple(factor * k for k in range(2, RUNS + 3)) for factor in (size, *_FACTORS) if factor > 1)
    short: DimGroup | None = None
    for sizes in (group.sizes, *above, *multiples):
        found = trial.moves(DimGroup(group.dims, sizes), base)
        if found is not None and found.sizes == sizes:
            return found
        short = short or found
    return short


def _assigned(groups: Sequence[DimGroup]) -> list[dict[str, int]]:
    """Sizes for each run, so that no dimension is a formula of the others."""
    pools = [group.sizes[: 3 * RUNS + len(groups)] for group in groups]
    for attempt in range(_ATTEMPTS):
        random = Random(attempt)
        chosen = [_spread(pool, random) for pool in pools]
        if _apart(chosen, pools) or attempt == _ATTEMPTS - 1:
            break
    return [
        {d: sizes[run] for group, sizes in zip(groups, chosen, strict=True) for d in group.dims} for run in range(RUNS)
    ]


def _below(groups: Sequence[DimGroup], fixed: Collection[int]) -> Iterator[dict[str, int]]:
    """Small sizes from 2 on, all different, once ascending and once descending."""
    sizes = [n for n in range(2, 2 * len(groups) + len(fixed) + 4) if n not in fixed]
    for order in (sizes[: len(groups)], sizes[1 : len(groups) + 1][::-1]) if groups else ():
        yield {d: size for group, size in zip(groups, order, strict=True) for d in group.dims}


def _spread(pool: Sequence[int], random: Random) -> tuple[int, ...]:
    """Sizes from all parts of a pool, in random order."""
    cuts = [len(pool) * i // RUNS for i in range(RUNS + 1)]
    found = [random.choice(pool[low:high]) for low, high in pairwise(cuts)]
    random.shuffle(found)
    return tuple(found)


def _apart(chosen: Sequence[tuple[int, ...]], pools: Sequence[Sequence[int]]) -> bool:
    """True if sizes differ in every run, no dimension is a formula of others, and remainders vary enough."""
    mixed = all(
        len({n % m for n in sizes}) >= min(least, len({n % m for n in pool}))
        for sizes, pool in zip(chosen, pools, strict=True)
        for m, least in _REMAINDERS.items()
    )
    different = all(len(set(each)) == len(each) for each in zip(*chosen, strict=True))
    return mixed and different and all(formula(c, [o for o in chosen if o is not c]) is None for c in chosen)


def _is_read(model: Model, dim: str, needed: set[str]) -> bool:
    """True if an input that the targets need has the dimension."""
    shapes = ((n, declared_shape(model.graph, n) or ()) for n in model.graph.free_inputs if n in needed)
    return any(
        symbol(n, axis, d) == dim for n, shape in shapes for axis, d in enumerate(shape) if not isinstance(d, int)
    )


def _fixed_sizes(model: Model) -> set[int]:
    """Sizes that tensors of the model always have, and that open dimensions should therefore not get."""
    shapes = [array.shape for array in model.graph.constants.values()]
    declared = [t.shape for t in model.graph.types.values() if t.shape is not None]
    return {d for shape in (*shapes, *declared) for d in shape if isinstance(d, int)}
