"""Runs a model with its derivatives at several sizes of its open dimensions, to learn what depends on them.

Where shapes follow from values, these differ between the runs too.  Derivatives that would be wrong for other inputs are
refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from random import Random
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.outlined import OutlinedTape
from gradcheck_cli.autodiff.tape import Loose, NodePlace, Tape
from gradcheck_cli.autodiff.trace import Dependence
from gradcheck_cli.errors import GradcheckError, UnsupportedError, quoted, shown
from gradcheck_cli.export import runs as of_runs
from gradcheck_cli.export.inner import FileOps
from gradcheck_cli.export.runs import (
    AlignedRuns,
    Names,
    TapeRun,
    aligned,
    needed,
    other_integers,
)
from gradcheck_cli.export.trials import RUNS, Trials, at, does_run
from gradcheck_cli.graph import Array, FreshNames, Node
from gradcheck_cli.graph.containers import inside
from gradcheck_cli.model import Model
from gradcheck_cli.op import Ops
from gradcheck_cli.points.elements import ready_to_draw
from gradcheck_cli.settings import Settings

_FAR = 8.0  # times what is drawn: beyond thresholds that draws do not cross
_FEWEST = 4  # runs that are needed to tell a formula
_BEYOND_ONNX = {"Cofactors": "takes the place of determinants of more minors than a file should compute"}
_DIFFERENT = 3  # values of a vector of integers from which shapes at others are inferred
_ENOUGH = 8  # values of a vector of integers at which a model runs


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
        found = [*islice((each for each in made if does_run(model, outputs, each, ops)), _ENOUGH)]
        settings = Random(index).choice(found) if found else settings
    return settings


class Untried(UnsupportedError):
    """The derivatives depend on values of which no others were tried."""


class Unhoped(UnsupportedError):
    """The model does not run, or not with its derivatives, at sizes at which it was hoped to."""


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
        else:
            if found.hoped:
                raise Unhoped(str(last)) from last
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
    fixed = " ".join(f"--dim {quoted(d)}={found.runs[0][d]}" for d in dims)
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
    return f"{' '.join(f'--feed {quoted(n)}=VALUE' for n in names)}, in Python save(..., feeds={{{python}}})"
