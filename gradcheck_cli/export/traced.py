"""Runs a model with its derivatives at the sizes of all trials, and refuses what other inputs would make wrong.

`Declarations` are the types that a gradient file declares for its inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from gradcheck_cli.autodiff.backward import units_between
from gradcheck_cli.autodiff.reach import Dependence
from gradcheck_cli.autodiff.tape import Step, Tape
from gradcheck_cli.errors import GradcheckError, UnsupportedError, shown
from gradcheck_cli.export.inner import FileOps
from gradcheck_cli.export.runs import AlignedRuns, Names, TapeRun, aligned, needed
from gradcheck_cli.export.trials import RUNS, Trials, at
from gradcheck_cli.graph import Array, Dim, TensorType
from gradcheck_cli.graph.containers import inside
from gradcheck_cli.model import Model
from gradcheck_cli.op import Ops
from gradcheck_cli.op.batching import shape_only
from gradcheck_cli.points.dims import symbol
from gradcheck_cli.settings import Settings

_FEWEST = 4  # runs that are needed to tell a formula
_BEYOND_ONNX = {"Cofactors": "takes the place of determinants of more minors than a file should compute"}


@dataclass(frozen=True, slots=True)
class Traced:
    """The steps of a model and its derivatives, with names of the file, and the trials that they were learned from.

    - `passing`: tensors whose shapes depend on values of inputs.
    - `fed`: values of fed tensors; `filled`: fed tensors that are one number, whatever their size.
    - `aliases`: names in the file of those tensors of the model that are identical to another one.
    - `statistics`: by the first output of a node, inner tensors that its operator can give as further outputs.
    - `seeds`: inputs of derivatives.
    """

    aligned: AlignedRuns
    trials: Trials
    passing: frozenset[str] = frozenset()
    fed: Mapping[str, Array] = field(default_factory=dict)
    filled: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    statistics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seeds: tuple[str, ...] = ()


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
    for sizes, tape in _tapes(model, outputs, settings, ops, found):
        done.append(sizes)
        _require_tensors(tape, outputs)
        known = _names(model, tape, outputs)
        if not runs:
            known_to_vary = {*feeds, *(count.name for count in found.counted)}
            passing = frozenset(known.get(n, n) for n in _passing(model, tape, outputs, known_to_vary))
            given = dict(_statistics(model, tape))
        fed.append({n: tape.values[n] for n in _fed(tape, feeds)})
        runs.append(TapeRun.of(tape, outputs))
        names.append(known)
    found = replace(found, runs=tuple(done))
    refuse = _Refusal(model, found)
    seeds = tuple(seed.name for request in model.requests_for(outputs) for seed in request.seeds if seed.open)
    result = aligned(runs, names, {*model.graph.tensors, *outputs, *seeds}, refuse)
    filled = tuple(n for n, value in fed[0].items() if any(each[n].shape != value.shape for each in fed))
    result.varying.update({n: tuple(each[n] for each in fed) for n in filled})
    held = {n: value for n, value in fed[0].items() if n not in filled}
    aliases = {n: own for n in model.graph.tensors if (own := names[0].get(runs[0].named.get(n, ""), n)) != n}
    statistics = {name: tuple(names[0].get(n, "") for n in inner) for name, inner in given.items()}
    return Traced(result, found, passing, held, filled, aliases, statistics, tuple(dict.fromkeys(seeds)))


def _tapes(
    model: Model, outputs: Sequence[str], settings: Settings, ops: Ops, found: Trials
) -> Iterator[tuple[Mapping[str, int], Tape]]:
    """Runs with different sizes and values; further sizes replace those at which derivatives do not run."""
    if not found.symbols:
        yield found.runs[0], model.tape(outputs, replace(settings, dims=found.runs[0]), ops)
        return
    done, last = 0, None
    for index, sizes in enumerate(found.runs):
        for seed in dict.fromkeys((index, 0)):
            try:
                tape = model.tape(outputs, replace(at(settings, sizes, found.counted), seed=seed), ops, general=True)
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
            yield sizes, model.tape(outputs, at(settings, sizes, found.counted), ops, general=True)
    if last is not None and done < _FEWEST:
        raise last


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The error for a derivative that a file cannot hold for all sizes."""

    model: Model
    trials: Trials

    def __call__(self, what: str) -> UnsupportedError:
        return refused(what, self.trials)


def refused(what: str, found: Trials) -> UnsupportedError:
    """The error for a derivative that differs between sizes, with the dimensions to fix."""
    dims, named = found.dims, [*map(shown, found.dims), *(count.symbol for count in found.counted)]
    fixed = " ".join(f"--dim {shown(d)}={found.runs[0][d]}" for d in dims)
    python = ", ".join(f"{d!r}: {found.runs[0][d]}" for d in dims)
    ways = [f"{fixed}, in Python load(path, dims={{{python}}})"] if dims else []
    if found.counted:
        ways.append(f"save(..., feeds={{{', '.join(f'{count.name!r}: ...' for count in found.counted)}}})")
    what = f"{what} that depends on the size of {', '.join(named)}, which a file cannot hold for every size."
    return UnsupportedError(f"{what} Fix it: {'; '.join(ways)}.")


def _statistics(model: Model, tape: Tape) -> Iterator[tuple[str, tuple[str, ...]]]:
    """All outputs that a LayerNormalization can have, by the name of the first; only in float32, ONNX's type for them."""
    for region in tape.regions:
        node = model.graph.nodes[region.place.origin] if region.place.origin >= 0 and not region.place.inside else None
        if node is None or node.key != ("", "LayerNormalization") or region.op.key != node.key:
            continue
        if {tape.values.like(n).dtype.name for n in region.outputs} == {"float32"}:
            yield node.outputs[0], region.outputs


def _require_tensors(tape: Tape, outputs: Sequence[str]) -> None:
    for name in outputs:
        if name not in tape.named:
            raise tape.blocked.get(name) or UnsupportedError(
                f"{name!r} is no tensor; a file of derivatives holds those."
            )


def _names(model: Model, tape: Tape, outputs: Sequence[str]) -> Names:
    """Names on a tape with the names in the file: those of the model, of seeds and of requested outputs."""
    found: Names = {}
    for name in model.graph.tensors:
        if name in tape.named:
            found.setdefault(tape.named[name].name, name)
    seeds = [seed.name for request in model.requests_for(outputs) for seed in request.seeds]
    for name in (*seeds, *outputs):
        if tape.named[name].name not in tape.constants:
            found.setdefault(tape.named[name].name, name)
    return found


def _fed(tape: Tape, feeds: Mapping[str, Any]) -> set[str]:
    """Names of fed tensors, with the tensors inside fed containers."""
    return {*(n for n in feeds if n in tape.values),
            *(v.name for n in feeds if n in tape.containers for v in inside(tape.containers[n]))}  # fmt: skip


def _passing(model: Model, tape: Tape, outputs: Sequence[str], feeds: Collection[str]) -> frozenset[str]:
    """Tensors whose shapes depend on values of inputs; an UnsupportedError if derivatives depend on those shapes."""
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
    for name in _shapes_read(model, tape, outputs, steps):
        if name in found.shapes:
            raise _fleeting(model, tape, inputs, f"the shape of {name!r} follows from values", name)
    return found.shapes


def _shapes_read(model: Model, tape: Tape, outputs: Sequence[str], steps: Sequence[Step]) -> Iterator[str]:
    """Tensors whose shapes became constants of rules and compositions."""
    for request in model.requests_for(outputs):
        xs, ys = ([tape.named[name].name for name in names] for names in (request.xs, request.ys))
        yield from (*xs, *ys)
        for unit in units_between(tape, xs, ys, request.stop):
            if "kept" not in unit.metadata:  # nodes with subgraphs read shapes when the file is run
                yield from (*unit.operands, *unit.outputs)
    own = set(model.graph.tensors)
    for step in steps:
        if own.isdisjoint(step.node.outputs) and "kept" not in step.metadata and step.op.batching is not shape_only:
            yield from (*step.operands, *step.node.outputs)


def _fleeting(model: Model, tape: Tape, inputs: Iterable[str], what: str, name: str) -> UnsupportedError:
    """The error for derivatives that depend on values of inputs, with the inputs to fix."""
    found = {n: Dependence.on([n], tape, model.graph) for n in sorted(inputs)}
    causes = [n for n, dependence in found.items() if name in dependence.values | dependence.shapes]
    fixed = ", ".join(f"{n!r}: ..." for n in causes)
    return UnsupportedError(f"{what}, which a file cannot hold for every value. Fix it: save(..., feeds={{{fixed}}}).")


@dataclass(frozen=True, slots=True)
class Declarations:
    """The declared types of a gradient file, and notes on its dimensions."""

    model: Model
    found: Traced

    def type(self, name: str) -> TensorType:
        """The type of an input or output: the model's own declaration, completed by what the runs have shown."""
        graph, aligned = self.model.graph, self.found.aligned
        declared = graph.types.get(name, TensorType())
        if declared.kind != "tensor":
            return declared
        if name in graph.constants and declared.dtype is None:
            declared = TensorType(graph.constants[name].dtype, graph.constants[name].shape)
        dtype = declared.dtype if declared.dtype is not None else aligned.dtypes.get(name)
        dtype = self.model.known_dtype(name) if dtype is None else dtype
        if declared.shape is None:
            return TensorType(dtype, self._shown(name))
        return TensorType(dtype, tuple(self._dim(name, axis, d) for axis, d in enumerate(declared.shape)))

    def _dim(self, name: str, axis: int, dim: Dim) -> Dim:
        """A declared dimension as its size if it is fixed, or as the dimension that it has to equal."""
        if isinstance(dim, int):
            return dim
        trials, key = self.found.trials, symbol(name, axis, dim)
        sizes = {**self.model.source.dims, **self.model.dims, **trials.fixed}
        return sizes.get(key, trials.equal.get(key, dim))

    def _shown(self, name: str) -> tuple[Dim, ...] | None:
        """The shape of a tensor in the runs, with names for the open dimensions that it has."""
        shape = self.found.aligned.shapes.get(name)
        if shape is None:
            return self.model.known_shape(name)
        if name in self.found.passing:
            return (None,) * len(shape)
        by_sizes = {sizes: d for d, sizes in self.found.trials.symbols.items()}
        return tuple(sizes[0] if len(set(sizes)) == 1 else self._named(by_sizes.get(sizes)) for sizes in shape)

    def _named(self, dim: str | None) -> str | None:
        """The dimension, if its name is the model's own."""
        named = {d for t in self.model.graph.types.values() for d in t.shape or () if isinstance(d, str)}
        return dim if dim in named else None

    def notes(self) -> Iterator[str]:
        """Sentences about dimensions that are not independent or not open."""
        trials = self.found.trials
        for dim, other in trials.equal.items():
            yield f"{dim} has to equal {other}"
        for dim, size in trials.fixed.items():
            yield f"{dim} is {size}: the model does not run at other sizes that were tried"
