"""Sizes of a model's open dimensions at which it is run, to learn what derivatives depend on them.

Each dimension gets its own size in every run: odd and even, small and large ones, so that remainders and numbers of
windows differ.  Dimensions that must be equal change together, and a dimension for which no other size works stays
fixed.  Integer inputs that shapes depend on are varied in the same way.  Such runs also tell which dimensions of inputs
those of a result follow.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, combinations, pairwise
from random import Random

import numpy as np

from gradcheck_cli.autodiff.outlined import OutlinedTape
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import Dependence
from gradcheck_cli.errors import GradcheckError, LimitError, UsageError, quoted, shown
from gradcheck_cli.export import runs as of_runs
from gradcheck_cli.export.runs import COUNTS, Count, Sizes, counts
from gradcheck_cli.export.size_formulas import divided, formula, plus, spelled
from gradcheck_cli.graph import Dim, Graph, TensorType
from gradcheck_cli.model import Model, Tensor
from gradcheck_cli.op import Ops
from gradcheck_cli.points.dims import declared_shape, formula_value, open_dims, roles, sizes_given, symbol
from gradcheck_cli.settings import Settings

RUNS = 6  # three runs determine a sum of two dimensions; the others confirm it
_BEYOND = (1, 0, -1, -128)  # counts, one at a time: of no steps, or before the first entry of all
_BATCHES = tuple(range(5, 40))
_LENGTHS = (*range(5, 14), *range(14, 90, 3))
_REMAINDERS = {2: 2, 3: 2, 4: 3}  # modulus -> number of different remainders that the sizes must have
_FACTORS = (1, 2, 4, 8, 16, 32)  # numbers of which a size may have to be a multiple
_STEPS = 4  # that lead to twice the size
_ATTEMPTS = 300
_MOST_EQUAL = 4  # further dimensions that are tried as equal to one
_FEWEST = 4  # runs that tell a formula
_MOST_PARTS = 64  # of a dimension that a network may shrink it to
_AS_IT_IS = Settings(dtype="model")


@dataclass(frozen=True, slots=True)
class Trials:
    """Sizes for each run, with spare ones in case derivatives do not run at some.

    `equal` maps dimensions to the dimension that they must equal, `fixed` maps others to their only size.  The sizes
    include values of `counted` inputs.  `small` are smaller sizes, which are used if the model runs there, by the same
    operators.  `loose` maps dimensions that are equal or 1 to the one that they broadcast with.  `by_values`: shapes
    follow from values, which differ between runs even where no size does, those of `deciding` floats and of `integers`.
    `stated` dimensions have the size that the formula in their name gives.  `hoped`: the model was run at the first sizes
    alone.
    """

    runs: tuple[Mapping[str, int], ...]
    small: tuple[Mapping[str, int], ...] = ()
    equal: Mapping[str, str] = field(default_factory=dict)
    loose: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=dict)
    counted: tuple[Count, ...] = ()
    by_values: bool = False
    deciding: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    stated: Mapping[str, str] = field(default_factory=dict)
    hoped: bool = False

    @property
    def strict(self) -> Trials:
        """The same without small sizes, where loose dimensions have to be equal."""
        runs = self.runs if self.symbols else self.runs[:1]
        return replace(self, runs=runs, small=(), loose={}, equal={**self.equal, **self.loose}, by_values=False)

    @property
    def dims(self) -> tuple[str, ...]:
        """Dimensions that stay open, but for those whose size others state."""
        return tuple(d for d in self.symbols if d not in {*self.stated, *(count.symbol for count in self.counted)})

    @property
    def symbols(self) -> dict[str, tuple[int, ...]]:
        """Dimensions that stay open, and counts, with their size in each run."""
        sizes = {d: tuple(run[d] for run in self.runs) for d in self.runs[0] if d not in self.equal}
        return {d: each for d, each in sizes.items() if len(set(each)) > 1}


def trials(model: Model, targets: Sequence[str], settings: Settings, ops: Ops, *, hoping: bool = False) -> Trials:
    """Chooses sizes for a model that is run to compute some targets.

    Most models run at any: with `hoping`, one that runs at the largest sizes is not tried at the others.
    """
    needed = model.graph.needed_for([*targets, *(n for r in model.requests_for(targets) for n in r.reads)])
    _require_shapes(model.graph, needed - {*settings.extra_feed_dict})
    point = model.point(targets, settings, ops, OutlinedTape)
    base, counted = dict(point.dims), tuple(counts(model.graph, point.tape, settings.extra_feed_dict))
    given = {*model.dims, *settings.dims, *sizes_given(model.graph, settings), *model.source.dims}
    stated = {d: text for d, text in roles(model.graph, model.ops).following.items() if d not in given}
    trial = _Trial(model, targets, settings, model.ops, counted, base, stated)
    batches = open_dims(model.graph)
    free = [d for d in batches if d not in (*given, *stated) and d in base and _is_read(model, d, needed)]
    changing = {n for n in model.graph.free_inputs if n not in settings.extra_feed_dict} - {c.name for c in counted}
    by_values = bool(Dependence.on(changing, point.tape, model.graph).shapes)
    deciding = tuple(_deciding(model, point.tape, changing)) if by_values else ()
    integers = (
        tuple(of_runs.sized_by(model.graph, point.tape, settings.extra_feed_dict)) if by_values or counted else ()
    )
    if not free and not counted:
        return Trials((base,) * (RUNS if by_values else 1), by_values=by_values, deciding=deciding, integers=integers)
    fixed = _sizes_within(model.graph)
    groups = [DimGroup((d,), tuple(n for n in (_BATCHES if batches[d] else _LENGTHS) if n not in fixed)) for d in free]
    hoped = hoping and not counted and not by_values and trial.go(groups, 1)
    if not hoped:
        groups = _tried(trial, groups, [DimGroup((count.symbol,), COUNTS) for count in counted], fixed)
    moved = {d for group in groups for d in group.dims}
    near = [DimGroup(group.dims, group.sizes[: RUNS + len(groups)]) for group in groups]
    runs = tuple(map(trial.sizes, (*_assigned(groups), *_assigned(near)))) if groups else (base,)
    loose = {d for group in groups for d in group.dims[1:] if trial.broadcasts(group, d)}
    equal = {d: group.dims[0] for group in groups for d in group.dims[1:]}
    found = tuple(count for count in counted if count.symbol in moved)
    ones = [{**runs[0], **each} for each in of_one({d: equal[d] for d in loose})]
    further = [sizes for count in found for sizes in beyond(runs[0], count)]
    small = tuple(map(trial.sizes, (*_below(groups, fixed), *ones, *further)))
    return Trials(
        runs,
        small,
        equal={d: other for d, other in equal.items() if d not in loose},
        loose={d: equal[d] for d in loose},
        fixed={d: base[d] for d in free if d not in moved},
        counted=found,
        by_values=by_values,
        deciding=deciding,
        integers=tuple(n for n in integers if n not in {count.name for count in found}),
        stated=stated,
        hoped=hoped,
    )


def _require_shapes(graph: Graph, needed: Collection[str]) -> None:
    """Raises UsageError if an input has no declared shape: derivatives follow the number of dimensions."""
    for name in graph.free_inputs:
        declared = graph.types.get(name, TensorType())
        if name in needed and declared.kind == "tensor" and declared.shape is None:
            raise UsageError(
                f"the file declares no shape of {shown(name)}, and its derivatives are others for other numbers of "
                f"dimensions. Declare them in the model, or fix it: --feed {quoted(name)}=..."
            )


def _tried(trial: _Trial, groups: list[DimGroup], added: Sequence[DimGroup], fixed: Collection[int]) -> list[DimGroup]:
    """The groups of dimensions and those of counts at which the model runs; some get fewer sizes, or none."""
    free = [d for group in groups for d in group.dims]
    if not trial.go(groups):
        groups, added = [], [*_moving(trial, groups), *added]
    if not added or trial.go([*groups, *added]):
        groups = [*groups, *added]
    else:
        for group in added:
            kept = next((some for some in (groups, _larger(groups)) if trial.go([*some, group])), None)
            groups = groups if kept is None else [*kept, group]
    bounded = _bounded(trial, groups, [d for d in free if not any(d in group.dims for group in groups)], fixed)
    return [*_larger(groups), *bounded] if bounded else groups


def _sizes_within(graph: Graph) -> set[int]:
    """Sizes of the graph's own, which open dimensions should not get."""
    declared = [t.shape for t in graph.types.values() if t.shape is not None]
    shapes = (*declared, *(array.shape for array in graph.constants.values()))
    return {d for shape in shapes for d in shape if isinstance(d, int)}


def _larger(groups: Sequence[DimGroup]) -> list[DimGroup]:
    """The groups with those of their sizes that are larger than counts."""
    return [DimGroup(each.dims, tuple(n for n in each.sizes if n > COUNTS[-1])) for each in groups]


def _bounded(trial: _Trial, groups: Sequence[DimGroup], dims: Sequence[str], fixed: Collection[int]) -> list[DimGroup]:
    """Dimensions that have other sizes where groups have larger ones, as a number of labels has among rows."""
    found: list[DimGroup] = []
    for dim in dims if groups else ():
        few = DimGroup((dim,), tuple(n for n in COUNTS if n not in fixed))
        if trial.go([*_larger(groups), *found, few]):
            found.append(few)
    return found


def of_one(loose: Mapping[str, str]) -> Iterator[dict[str, int]]:
    """Sizes of 1 for dimensions that broadcast with one another: for each alone, then for all others than it."""
    families = {base: [base, *(d for d, other in loose.items() if other == base)] for base in loose.values()}
    for family in families.values():
        yield from ({d: 1} for d in family)
        if len(family) > 2:
            yield from ({d: 1 for d in family if d != long} for long in family)


def beyond(sizes: Mapping[str, int], count: Count) -> Iterator[dict[str, int]]:
    """Sizes with smaller values of a count, at which a loop ends early, or a slice lies elsewhere."""
    yield from ({**sizes, count.symbol: n} for n in _BEYOND)


def _deciding(model: Model, tape: Tape, names: Collection[str]) -> Iterator[str]:
    """Inputs of real numbers on whose values shapes depend."""
    for name in sorted(names):
        like = tape.values.get(name)
        if like is not None and like.dtype.kind == "f" and Dependence.on([name], tape, model.graph).shapes:
            yield name


def at(settings: Settings, sizes: Mapping[str, int], counted: Collection[Count]) -> Settings:
    """Settings for a run at these sizes of dimensions and values of counts."""
    values = {c.name: np.full_like(c.like, sizes[c.symbol]) for c in counted if c.symbol in sizes}
    dims = {d: size for d, size in sizes.items() if d not in {c.symbol for c in counted}}
    return replace(settings, dims=dims, extra_feed_dict={**settings.extra_feed_dict, **values})


@dataclass(frozen=True, slots=True)
class DimGroup:
    """Dimensions that must be equal, and the sizes that they may have."""

    dims: tuple[str, ...]
    sizes: tuple[int, ...]


@contextmanager
def where_it_runs() -> Iterator[None]:
    """In the block, a model may fail to run, but not for lack of memory or time."""
    try:
        yield
    except LimitError:
        raise
    except GradcheckError:
        return


def does_run(model: Model, targets: Sequence[str], settings: Settings, ops: Ops) -> bool:
    """True if a model runs."""
    try:
        model.point(targets, settings, ops, OutlinedTape)
    except GradcheckError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Trial:
    """Finds out at which sizes the model runs."""

    model: Model
    targets: Sequence[str]
    settings: Settings
    ops: Ops
    counted: tuple[Count, ...]
    base: Mapping[str, int]  # sizes of dimensions at which it runs
    stated: Mapping[str, str]  # dimensions -> the formula that gives their size
    known: dict[tuple[tuple[str, int], ...], bool] = field(default_factory=dict)

    def runs(self, sizes: Mapping[str, int]) -> bool:
        """True if the model runs with these sizes in place of some of `base`."""
        here = self.sizes(sizes)
        key = tuple(here.items())
        if key not in self.known:
            self.known[key] = does_run(self.model, self.targets, at(self.settings, here, self.counted), self.ops)
        return self.known[key]

    def sizes(self, some: Mapping[str, int]) -> dict[str, int]:
        """All sizes, with some in place of those of `base`; a formula that gives none leaves that."""
        here = {**self.base, **some}
        for dim, text in self.stated.items():
            here[dim] = formula_value(text, here) or here[dim]
        return here

    def broadcasts(self, group: DimGroup, dim: str) -> bool:
        """True if the model runs where a dimension is 1 and the others are not, or they are and it is not."""
        sizes, others = dict.fromkeys(group.dims, group.sizes[0]), [d for d in group.dims if d != dim]
        return self.runs({**sizes, dim: 1}) or self.runs({**sizes, **dict.fromkeys(others, 1)})

    def go(self, groups: Sequence[DimGroup], most: int = RUNS) -> bool:
        """True if the groups have enough sizes, and the model runs at those that they would be assigned, or the largest."""
        enough = all(len(group.sizes) >= RUNS for group in groups)
        return enough and all(map(self.runs, _telling(_assigned(groups))[:most]))

    def whole(self, group: DimGroup) -> bool:
        """True if the model runs at sizes from all over the group's."""
        return all(self._at(group, place) for place in (0, -1, len(group.sizes) // 2, 1))

    def part(self, group: DimGroup) -> DimGroup | None:
        """The group with its first sizes, those at which the model runs; None if they are too few."""
        if not (self._at(group, 0) and self._at(group, 1)):
            return None
        low, high = 1, len(group.sizes) - 1
        while low < high - 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._at(group, middle) else (low, middle)
        return DimGroup(group.dims, group.sizes[: low + 1]) if low + 1 >= RUNS else None

    def _at(self, group: DimGroup, place: int) -> bool:
        return self.runs(dict.fromkeys(group.dims, group.sizes[place]))


def _moving(trial: _Trial, groups: Sequence[DimGroup]) -> Iterator[DimGroup]:
    """Groups of dimensions that can have other sizes: single ones, else together with others of the same size."""
    tried = {group.dims: _first(trial, group) for group in groups}
    yield from (found for found in tried.values() if found is not None)
    stuck = [group for group in groups if tried[group.dims] is None]
    while stuck:
        first, *others = stuck
        alike = [o for o in others if trial.base[o.dims[0]] == trial.base[first.dims[0]]][:_MOST_EQUAL]
        sets = [alike, *(list(c) for n in range(1, len(alike)) for c in combinations(alike, n))]
        joined = (
            DimGroup(tuple(d for group in (first, *each) for d in group.dims), first.sizes) for each in sets if each
        )
        group = next((found for each in joined if (found := _first(trial, each)) is not None), None)
        if group is not None:
            yield group
        gone = first.dims if group is None else group.dims
        stuck = [each for each in stuck if each.dims[0] not in gone]


def _first(trial: _Trial, group: DimGroup) -> DimGroup | None:
    """The group with a kind of sizes at which the model runs, preferably at all of them."""
    size = trial.base[group.dims[0]]
    above = (
        tuple(size + factor * (k + size * k // (_STEPS * factor)) for k in range(1, RUNS + 3)) for factor in _FACTORS
    )
    multiples = (tuple(factor * k for k in range(2, RUNS + 3)) for factor in (size, *_FACTORS) if factor > 1)
    kinds = [DimGroup(group.dims, sizes) for sizes in (group.sizes, *above, *multiples)]
    whole = next(filter(trial.whole, kinds), None)
    return whole or next(filter(None, map(trial.part, kinds)), None)


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


def _telling(runs: Sequence[Mapping[str, int]]) -> list[Mapping[str, int]]:
    """Runs by falling size; of one size each the largest, the smallest, and so many that not all have a common factor."""
    told = sorted(runs, key=lambda sizes: -max(sizes.values(), default=0))
    if any(len({*sizes.values()}) != 1 for sizes in told):
        return told
    told.insert(1, told.pop())
    common = [*accumulate((max(sizes.values()) for sizes in told), math.gcd)]
    return told[: max(2, 1 + sum(n > 1 for n in common))]


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


def _is_read(model: Model, dim: str, needed: Collection[str]) -> bool:
    """True if an input that the targets need has the dimension."""
    shapes = ((n, declared_shape(model.graph, n) or ()) for n in model.graph.free_inputs if n in needed)
    return any(
        symbol(n, axis, d) == dim for n, shape in shapes for axis, d in enumerate(shape) if not isinstance(d, int)
    )


def followed(tensor: Tensor) -> tuple[Dim, ...]:
    """The dimensions of a tensor, each open one by the name, or as a formula, of those of inputs that it follows.

    Exporters give those of results names of their own, or none, or sizes that a run contradicts.  Runs at several sizes
    tell; where nothing follows, the names stay.
    """
    model, shape = tensor.model, _uncontradicted(tensor)
    known = open_dims(model.graph)
    if all(isinstance(dim, int) or dim in known for dim in shape):
        return shape
    tried_at = partial(trials, model, [tensor.name], _AS_IT_IS, model.ops)
    seen = _SizesSeen(tensor, tried_at(hoping=True))
    if seen.found.hoped and len(seen.shapes) < RUNS:
        seen = _SizesSeen(tensor, tried_at())
    return tuple(seen.formula(axis) or dim for axis, dim in enumerate(shape))


def _uncontradicted(tensor: Tensor) -> tuple[Dim, ...]:
    """The declared shape, with None for what holds at other sizes alone: PyTorch declares what it squeezes by one row."""
    ran = tensor.model.sampled_shape(tensor.name)
    if ran is None:
        return tensor.shape
    if len(ran) != len(tensor.shape):
        return (None,) * len(ran)
    return tuple(
        None if isinstance(dim, int) and dim != size else dim for dim, size in zip(tensor.shape, ran, strict=True)
    )


class _SizesSeen:
    """Sizes of a tensor in runs of its model at several sizes of open dimensions."""

    def __init__(self, tensor: Tensor, found: Trials) -> None:
        self.tensor, self.found = tensor, found
        self.left = [] if found.by_values else [*found.runs]
        self.shapes: list[tuple[Mapping[str, int], tuple[int, ...]]] = []
        self._run(RUNS)

    def _run(self, count: int) -> None:
        """Runs the model at some more of the sizes that were chosen."""
        runs, self.left = self.left[:count], self.left[count:]
        self.shapes += [(run, shape) for run in runs if (shape := self.at(run)) is not None]

    def at(self, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
        """The shape at some sizes; None where the model does not run."""
        settings = at(_AS_IT_IS, {d: n for d, n in sizes.items() if d not in self.found.stated}, self.found.counted)
        with where_it_runs():
            point = self.tensor.model.point([self.tensor.name], settings, on=OutlinedTape)
            return point.tape.named[self.tensor.name].shape
        return None

    def formula(self, axis: int) -> Dim:
        """The size along an axis: a number, a name or a formula; None where neither gives it in all runs."""
        sizes, dims = self._along(axis)
        if len(sizes) < _FEWEST and self.found.symbols:
            return None
        if len({*sizes}) < 2:
            return sizes[0] if sizes else None
        if sizes in dims:
            return dims[sizes]
        self._run(len(self.left))  # other formulas fit a few runs by chance
        sizes, dims = self._along(axis)
        named = {each: dim for each, dim in dims.items() if dim.isidentifier()}
        exact = formula(sizes, named)
        if exact is not None:
            return spelled(exact, named)
        return next(filter(None, (self._rounded(axis, sizes, each, dim) for each, dim in named.items())), None)

    def _along(self, axis: int) -> tuple[Sizes, dict[Sizes, str]]:
        """The sizes along an axis in all runs, and open dimensions by theirs."""
        dims: dict[Sizes, str] = {}
        for dim in self.found.dims:
            dims.setdefault(tuple(run[dim] for run, _ in self.shapes), dim)
        return tuple(shape[axis] for _, shape in self.shapes), dims

    def _rounded(self, axis: int, sizes: Sizes, of: Sizes, dim: str) -> str | None:
        """Sizes as a part of a dimension, rounded down, with a number added before."""
        for parts in range(2, _MOST_PARTS + 1):
            least = max(parts * size - n for size, n in zip(sizes, of, strict=True))
            most = min(parts * size + parts - 1 - n for size, n in zip(sizes, of, strict=True))
            if least <= most:
                added = self._added(axis, dim, parts, least, most)
                return spelled(divided(plus(of, 1, added), parts), {of: dim})
        return None

    def _added(self, axis: int, dim: str, parts: int, least: int, most: int) -> int:
        """The number that is added to a dimension before its parts are counted, by runs where those halve what fits."""
        run = self.shapes[0][0]
        alike = [dim, *(d for d, other in self.found.equal.items() if other == dim)]
        while least < most:
            middle = (least + most + 1) // 2
            size = max(each[dim] for each, _ in self.shapes)
            size += -(size + middle) % parts
            shape = self.at({**run, **dict.fromkeys(alike, size)})
            if shape is None:
                return min(max(least, 0), most)
            least, most = (middle, most) if shape[axis] == (size + middle) // parts else (least, middle - 1)
        return least
