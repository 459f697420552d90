"""Runs a model with its derivatives at several sizes of its open dimensions, to learn what depends on them.

Each dimension gets its own size in every run: odd and even, small and large ones, so that remainders and numbers of
windows differ.  Dimensions that must be equal change together, and a dimension for which no other size works stays
fixed.  Integer inputs that shapes depend on are varied in the same way.  Derivatives that would be wrong for
other inputs are refused.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, combinations, islice, pairwise
from random import Random
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.outlined import OutlinedTape
from gradcheck_cli.autodiff.reach import Dependence
from gradcheck_cli.autodiff.tape import Loose, NodePlace, Tape
from gradcheck_cli.errors import GradcheckError, UnsupportedError, shown
from gradcheck_cli.export import runs as of_runs
from gradcheck_cli.export.inner import FileOps
from gradcheck_cli.export.runs import (
    COUNTS,
    AlignedRuns,
    Count,
    Names,
    TapeRun,
    aligned,
    counts,
    needed,
    other_integers,
)
from gradcheck_cli.export.size_formulas import formula
from gradcheck_cli.graph import Array, FreshNames, Graph, Node
from gradcheck_cli.graph.containers import inside
from gradcheck_cli.model import Model
from gradcheck_cli.op import Ops
from gradcheck_cli.points.dims import declared_shape, formula_value, open_dims, roles, sizes_given, symbol
from gradcheck_cli.points.elements import ready_to_draw
from gradcheck_cli.settings import Settings

_FAR = 8.0  # times what is drawn: beyond thresholds that draws do not cross
_FEWEST = 4  # runs that are needed to tell a formula
_BEYOND_ONNX = {"Cofactors": "takes the place of determinants of more minors than a file should compute"}
RUNS = 6  # three runs determine a sum of two dimensions; the others confirm it
_BATCHES = tuple(range(5, 40))
_LENGTHS = (*range(5, 14), *range(14, 90, 3))
_REMAINDERS = {2: 2, 3: 2, 4: 3}  # modulus -> number of different remainders that the sizes must have
_FACTORS = (1, 2, 4, 8, 16, 32)  # numbers of which a size may have to be a multiple
_STEPS = 4  # that lead to twice the size
_ATTEMPTS = 300
_DIFFERENT = 3  # values of a vector of integers from which shapes at others are inferred
_ENOUGH = 8  # values of a vector of integers at which a model runs
_MOST_EQUAL = 4  # further dimensions that are tried as equal to one


@dataclass(frozen=True, slots=True)
class Trials:
    """Sizes for each run, with spare ones in case derivatives do not run at some.

    `equal` maps dimensions to the dimension that they must equal, `fixed` maps others to their only size.  The sizes
    include values of `counted` inputs.  `small` are smaller sizes, which are used if the model runs there, by the same
    operators.  `loose` maps dimensions that are equal or 1 to the one that they broadcast with.  `by_values`: shapes
    follow from values, which differ between runs even where no size does, those of `deciding` floats and of `integers`.
    `stated` dimensions have the size that the formula in their name gives.
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


def trials(model: Model, targets: Sequence[str], settings: Settings, ops: Ops) -> Trials:
    """Chooses sizes for a model that is run to compute some targets."""
    point = model.point(targets, settings, ops, OutlinedTape)
    base, counted = dict(point.dims), tuple(counts(model.graph, point.tape, settings.extra_feed_dict))
    given = {*model.dims, *settings.dims, *sizes_given(model.graph, settings), *model.source.dims}
    stated = {d: text for d, text in roles(model.graph, model.ops).following.items() if d not in given}
    trial = _Trial(model, targets, settings, model.ops, counted, base, stated)
    needed = model.graph.needed_for([*targets, *(n for r in model.requests_for(targets) for n in r.reads)])
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
    added = [DimGroup((count.symbol,), COUNTS) for count in counted]
    if not trial.go(groups):
        groups, added = [], [*_moving(trial, groups), *added]
    if not added or trial.go([*groups, *added]):
        groups.extend(added)
    else:
        for group in added:
            kept = next((some for some in (groups, _larger(groups)) if trial.go([*some, group])), None)
            groups = groups if kept is None else [*kept, group]
    if bounded := _bounded(trial, groups, [d for d in free if not any(d in group.dims for group in groups)], fixed):
        groups = [*_larger(groups), *bounded]
    moved = {d for group in groups for d in group.dims}
    near = [DimGroup(group.dims, group.sizes[: RUNS + len(groups)]) for group in groups]
    runs = tuple(map(trial.sizes, (*_assigned(groups), *_assigned(near)))) if groups else (base,)
    loose = {d for group in groups for d in group.dims[1:] if trial.broadcasts(group, d)}
    equal = {d: group.dims[0] for group in groups for d in group.dims[1:]}
    found = tuple(count for count in counted if count.symbol in moved)
    ones = [{**runs[0], **each} for each in of_one({d: equal[d] for d in loose})]
    small = tuple(map(trial.sizes, (*_below(groups, fixed), *ones)))
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
    )


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


def _deciding(model: Model, tape: Tape, names: Collection[str]) -> Iterator[str]:
    """Inputs of real numbers on whose values shapes depend."""
    for name in sorted(names):
        like = tape.values.get(name)
        if like is not None and like.dtype.kind == "f" and Dependence.on([name], tape, model.graph).shapes:
            yield name


def otherwise(
    model: Model, outputs: Sequence[str], settings: Settings, ops: Ops, names: Sequence[str], index: int
) -> Settings:
    """Settings that feed some inputs otherwise than they are drawn: with zeros, as masks of numbers have, or far larger."""
    if not names or index % 3 == 0:
        return settings
    drawn = model.point(outputs, settings, ops, OutlinedTape).tape.values
    half = {n: np.arange(drawn[n].size).reshape(drawn[n].shape) % 2 == 0 for n in names}
    fed = {n: drawn[n] * (half[n] if index % 3 == 1 else np.where(half[n], _FAR, 1)) for n in names}
    return replace(settings, extra_feed_dict={**settings.extra_feed_dict, **fed})


def with_other_integers(
    model: Model, outputs: Sequence[str], settings: Settings, ops: Ops, names: Sequence[str], index: int
) -> Settings:
    """Settings that feed vectors of integers otherwise than they are drawn, where the model runs with such ones."""
    if not names:
        return settings
    drawn = model.point(outputs, settings, ops, OutlinedTape).tape.values
    for name in names:
        made = (replace(settings, extra_feed_dict={**settings.extra_feed_dict, name: value})
                for value in other_integers(drawn[name], index))  # fmt: skip
        found = [*islice((each for each in made if _runs(model, outputs, each, ops)), _ENOUGH)]
        settings = Random(index).choice(found) if found else settings
    return settings


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


def _runs(model: Model, targets: Sequence[str], settings: Settings, ops: Ops) -> bool:
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
            self.known[key] = _runs(self.model, self.targets, at(self.settings, here, self.counted), self.ops)
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

    def go(self, groups: Sequence[DimGroup]) -> bool:
        """True if the groups have enough sizes, and the model runs at those that they would be assigned."""
        return all(len(group.sizes) >= RUNS for group in groups) and all(map(self.runs, _telling(_assigned(groups))))

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


def _is_read(model: Model, dim: str, needed: set[str]) -> bool:
    """True if an input that the targets need has the dimension."""
    shapes = ((n, declared_shape(model.graph, n) or ()) for n in model.graph.free_inputs if n in needed)
    return any(
        symbol(n, axis, d) == dim for n, shape in shapes for axis, d in enumerate(shape) if not isinstance(d, int)
    )


class Untried(UnsupportedError):
    """The derivatives depend on values of which no others were tried."""


@dataclass(frozen=True, slots=True)
class Traced:
    """The steps of a model and its derivatives, with names of the file, and the trials that they were learned from.

    - `passing`: tensors whose shapes depend on values of inputs.
    - `fed`: values of fed tensors; `filled`: fed tensors that are one number, whatever their size.
    - `aliases`: names in the file of those tensors of the model that are identical to another one.
    - `statistics`: by the first output of a node, inner tensors that its operator can give as further outputs.
    - `seeds`: inputs of derivatives.
    - `ahead`: nodes that a run has before those of the model, as they put together inputs that are no tensors.
    """

    aligned: AlignedRuns
    trials: Trials
    passing: frozenset[str] = frozenset()
    fed: Mapping[str, Array] = field(default_factory=dict)
    filled: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    statistics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seeds: tuple[str, ...] = ()
    ahead: int = 0


def traced(model: Model, outputs: Sequence[str], feeds: Mapping[str, Any], ops: Ops, found: Trials) -> Traced:
    """Runs derivatives of a model at several sizes of its open dimensions, also small ones, and aligns the runs."""
    settings = Settings(extra_feed_dict=feeds, dtype="model")
    ops = FileOps(ops, feeds, [count.name for count in found.counted])
    runs: list[TapeRun] = []
    names: list[Names] = []
    passing: frozenset[str] = frozenset()
    fed: list[dict[str, Array]] = []
    given: Mapping[str, tuple[str, ...]] = {}
    done: list[Mapping[str, int]] = []
    sizes_by: dict[str, list[Array]] = {}
    modes_by: dict[str, list[Array]] = {}
    known_to_vary = {*feeds, *(count.name for count in found.counted)}
    ahead = len(ready_to_draw(model.source, feeds).graph.nodes) - len(model.graph.nodes)
    for sizes, tape in _tapes(model, outputs, settings, ops, found):
        done.append(sizes)
        known = _names(model, tape, outputs)
        if not runs:
            passing = frozenset(known.get(n, n) for n in _passing(model, tape, outputs, known_to_vary))
            given = dict(_statistics(model, tape, ahead))
            sizes_by = {n: [] for n in of_runs.sizing(model.graph, tape, outputs, known_to_vary)}
            modes_by = {n: [] for n in of_runs.settling(model.graph, tape, known_to_vary)}
        for name, values in (*sizes_by.items(), *modes_by.items()):
            values.append(tape.values[name])
        fed.append({n: tape.values[n] for n in _fed(tape, feeds)})
        runs.append(TapeRun.of(tape, outputs))
        names.append(known)
    if stuck := of_runs.unchanged(sizes_by, _DIFFERENT):
        where = of_runs.sized_first(model.graph, tape, stuck[0])
        raise Untried(str(to_fix(f"{where}: shapes follow from values that were the same in all runs", stuck)))
    if stuck := of_runs.unchanged(modes_by):
        where = of_runs.settled_first(model.graph, tape, stuck[0])
        what = "what an operator does follows from values that were the same in all runs"
        raise Untried(str(to_fix(f"{where}: {what}", stuck)))
    found = replace(found, runs=tuple(done))
    seeds = tuple(seed.name for request in model.requests_for(outputs) for seed in request.seeds if seed.open)
    result = aligned(runs, names, FreshNames({*model.graph.tensors, *outputs, *seeds}), partial(refused, found=found))
    if found.deciding and (alike := _agreeing(model, result, found, passing)):
        what = f"the shape of {alike!r} follows from values, of which all that were tried gave the same sizes"
        raise Untried(str(to_fix(what, found.deciding)))
    filled = tuple(n for n, value in fed[0].items() if any(each[n].shape != value.shape for each in fed))
    result.varying.update({n: tuple(each[n] for each in fed) for n in filled})
    held = {n: value for n, value in fed[0].items() if n not in filled}
    aliases = {n: own for n in model.graph.tensors if (own := names[0].get(runs[0].named.get(n, ""), n)) != n}
    statistics = {name: tuple(names[0].get(n, "") for n in inner) for name, inner in given.items()}
    return Traced(result, found, passing, held, filled, aliases, statistics, tuple(dict.fromkeys(seeds)), ahead)


def _tapes(
    model: Model, outputs: Sequence[str], settings: Settings, ops: Ops, found: Trials
) -> Iterator[tuple[Mapping[str, int], Tape]]:
    """Runs with different sizes and values; further sizes replace those at which derivatives do not run."""
    if not found.symbols and not found.by_values:
        yield found.runs[0], model.tape(outputs, replace(settings, dims=found.runs[0]), ops, on=OutlinedTape)
        return
    done, last, loose = 0, None, Loose(chance=found.by_values or bool(found.counted))
    for index, sizes in enumerate(found.runs):
        for seed in dict.fromkeys((index, 0)):
            there = replace(at(settings, sizes, found.counted), seed=seed)
            known = Loose(frozenset(sizes[d] for d in found.loose), loose.names, loose.chance)
            try:
                there = otherwise(model, outputs, there, ops, found.deciding, index)
                there = with_other_integers(model, outputs, there, ops, found.integers, index)
                tape = model.tape(outputs, there, ops, general=True, loose=known, on=OutlinedTape)
            except GradcheckError as error:
                last = error
                continue
            yield sizes, tape
            done += 1
            break
        if done == RUNS:
            break
    for sizes in found.small if done == RUNS else ():
        with suppress(GradcheckError):
            there = at(settings, sizes, found.counted)
            yield sizes, model.tape(outputs, there, ops, general=True, loose=loose, on=OutlinedTape)
    if last is not None and done < _FEWEST:
        raise last


def refused(what: str, found: Trials) -> UnsupportedError:
    """The error for a derivative that differs between sizes, with the dimensions to fix."""
    dims, named = found.dims, [*map(shown, found.dims), *(count.symbol for count in found.counted)]
    fixed = " ".join(f"--dim {shown(d)}={found.runs[0][d]}" for d in dims)
    python = ", ".join(f"{d!r}: {found.runs[0][d]}" for d in dims)
    ways = [f"{fixed}, in Python load(path, dims={{{python}}})"] if dims else []
    if found.counted:
        ways.append(fed(count.name for count in found.counted))
    if not dims and not found.counted and found.integers:
        ways.append(fed(found.integers))
    if not ways:
        by = "differ between values" if found.by_values else "lie inside of inputs that are no tensors"
        return UnsupportedError(f"{what}, which {by}: a file cannot hold them.")
    of, each = f"the size of {', '.join(named)}", "size"
    if not named:
        of, each = f"values of {', '.join(map(shown, found.integers))}", "value"
    what = f"{what} that depends on {of}, which a file cannot hold for every {each}."
    return UnsupportedError(f"{what} Fix it: {'; '.join(ways)}.")


def _statistics(model: Model, tape: Tape, ahead: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """All outputs that a LayerNormalization or a Dropout can have, by the name of the first.

    Those of a LayerNormalization only in float32, ONNX's type for them; of a Dropout the mask.
    """

    def node_at(place: NodePlace) -> Node | None:
        return model.graph.nodes[place.origin - ahead] if place.origin >= ahead and not place.inside else None

    for region in tape.regions:
        node = node_at(region.place)
        if node is None or node.key != ("", "LayerNormalization") or region.op.key != node.key:
            continue
        if {tape.values.like(n).dtype.name for n in region.outputs} == {"float32"}:
            yield node.outputs[0], region.outputs
    for step in tape.steps:
        node = node_at(step.place)
        if node is not None and node.key == ("", "Dropout") and step.node.op == "GreaterOrEqual":
            yield node.outputs[0], ("", *step.outputs)


def _names(model: Model, tape: Tape, outputs: Sequence[str]) -> Names:
    """Names on a tape with the names in the file: those of the model, of seeds and of requested outputs."""
    found: Names = {}
    for name in model.graph.tensors:
        if name in tape.named:
            found.setdefault(tape.named[name].name, name)
    seeds = [seed.name for request in model.requests_for(outputs) for seed in request.seeds]
    for name in (*seeds, *outputs):
        if name not in tape.named:
            reason = UnsupportedError(f"{name!r} is no tensor; a file of derivatives holds those.")
            raise tape.blocked.get(name) or reason
        if tape.named[name].name not in tape.constants:
            found.setdefault(tape.named[name].name, name)
    return found


def _fed(tape: Tape, feeds: Mapping[str, Any]) -> set[str]:
    """Names of fed tensors, with the tensors inside fed containers."""
    return {*(n for n in feeds if n in tape.values),
            *(v.name for n in feeds if n in tape.containers for v in inside(tape.containers[n]))}  # fmt: skip


def _passing(model: Model, tape: Tape, outputs: Sequence[str], feeds: Collection[str]) -> frozenset[str]:
    """Tensors whose shapes depend on values of inputs; an UnsupportedError if derivatives depend on such a branch."""
    steps = needed(tape, [tape.named[name].name for name in outputs])
    inputs = {n for n in model.graph.inputs if n not in feeds}
    found = Dependence.on(inputs, tape, model.graph)
    for step in steps:
        if step.node.domain == "gradcheck":
            reason = _BEYOND_ONNX.get(step.node.op, "works on complex numbers, which ONNX operators do not")
            raise UnsupportedError(f"{step.node.op} {reason}.")
    for guard in tape.guards:
        if guard in found.values:
            raise _fleeting(model, tape, inputs, f"the way through a branch or a loop follows from {guard!r}", guard)
    return found.shapes


def _agreeing(model: Model, result: AlignedRuns, found: Trials, passing: Collection[str]) -> str:
    """A tensor whose shape follows from values, though it had the sizes of other dimensions in all runs; "" for none."""
    known = {sizes for d, sizes in found.symbols.items() if d in found.dims}
    shapes = {n: result.shapes.get(n, ()) for n in model.graph.tensors if n in passing}
    agree = (n for n, axes in shapes.items() if axes and all(len({*each}) == 1 or each in known for each in axes))
    return next(agree, "")


def _fleeting(model: Model, tape: Tape, inputs: Iterable[str], what: str, name: str) -> UnsupportedError:
    """The error for derivatives that depend on values of inputs, with the inputs to fix."""
    found = {n: Dependence.on([n], tape, model.graph) for n in sorted(inputs)}
    causes = [n for n, dependence in found.items() if name in dependence.values | dependence.shapes]
    return to_fix(f"{what}, which a file cannot hold for every value", causes)


def to_fix(what: str, inputs: Iterable[str]) -> UnsupportedError:
    """The error for derivatives that are right at some values of inputs alone."""
    return UnsupportedError(f"{what}. Fix it: {fed(inputs)}.")


def fed(names: Iterable[str]) -> str:
    """The words that give tensors a value in the file, for the command and in Python."""
    names = list(names)
    python = ", ".join(f"{n!r}: ..." for n in names)
    return f"{' '.join(f'--feed {shown(n)}=VALUE' for n in names)}, in Python save(..., feeds={{{python}}})"
