"""A model run with its derivatives at the sizes of all trials, and what such runs do not tell of other inputs.

What a file of derivatives declares of its inputs and outputs, and what is to be said of dimensions.
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
from gradcheck_cli.export.runs import Laid, Names, Run, laid, needed
from gradcheck_cli.export.trials import RUNS, Trials, at
from gradcheck_cli.graph import Array, Dim, TensorType
from gradcheck_cli.graph.containers import inside
from gradcheck_cli.model import Model
from gradcheck_cli.op import Ops
from gradcheck_cli.op.batching import shape_only
from gradcheck_cli.points.dims import symbol
from gradcheck_cli.settings import Settings

_FEWEST = 4  # runs from which a formula is told
_BEYOND_ONNX = {"Cofactors": "takes the place of determinants of more minors than a file should compute"}


@dataclass(frozen=True, slots=True)
class Traced:
    """What derivatives are made of: steps with the names of the file, and how the model was run to learn them.

    `passing` are tensors whose shapes follow from values of inputs; `fed` has the values of tensors that were fed,
    `filled` are those among them that a number fills at any size;
    `aliases` the names in the file of tensors of the model that are others as well; `statistics` what a node, by its
    first output, could also give of what it is composed of; `seeds` are inputs of derivatives.
    """

    laid: Laid
    trials: Trials
    passing: frozenset[str] = frozenset()
    fed: Mapping[str, Array] = field(default_factory=dict)
    filled: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    statistics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seeds: tuple[str, ...] = ()


def traced(model: Model, outputs: Sequence[str], feeds: Mapping[str, Any], ops: Ops, found: Trials) -> Traced:
    """Derivatives of a model, run at several sizes of its open dimensions, `small` ones included."""
    settings = Settings(extra_feed_dict=feeds, dtype="model")
    ops = FileOps(ops, feeds, [count.name for count in found.counted])
    runs: list[Run] = []
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
        runs.append(Run.of(tape, outputs))
        names.append(known)
    found = replace(found, runs=tuple(done))
    refuse = _Refusal(model, found)
    seeds = tuple(seed.name for request in model.requests_for(outputs) for seed in request.seeds if seed.open)
    result = laid(runs, names, {*model.graph.tensors, *outputs, *seeds}, refuse)
    filled = tuple(n for n, value in fed[0].items() if any(each[n].shape != value.shape for each in fed))
    result.varying.update({n: tuple(each[n] for each in fed) for n in filled})
    held = {n: value for n, value in fed[0].items() if n not in filled}
    aliases = {n: own for n in model.graph.tensors if (own := names[0].get(runs[0].named.get(n, ""), n)) != n}
    statistics = {name: tuple(names[0].get(n, "") for n in inner) for name, inner in given.items()}
    return Traced(result, found, passing, held, filled, aliases, statistics, tuple(dict.fromkeys(seeds)))


def _tapes(
    model: Model, outputs: Sequence[str], settings: Settings, ops: Ops, found: Trials
) -> Iterator[tuple[Mapping[str, int], Tape]]:
    """Runs at sizes, and at values, of their own; at further sizes where derivatives do not run at some."""
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
    """The error for something of a derivative that is another one at other sizes, with the dimensions to fix."""
    dims, named = found.dims, [*map(shown, found.dims), *(count.symbol for count in found.counted)]
    fixed = " ".join(f"--dim {shown(d)}={found.runs[0][d]}" for d in dims)
    python = ", ".join(f"{d!r}: {found.runs[0][d]}" for d in dims)
    ways = [f"{fixed}, in Python load(path, dims={{{python}}})"] if dims else []
    if found.counted:
        ways.append(f"save(..., feeds={{{', '.join(f'{count.name!r}: ...' for count in found.counted)}}})")
    what = f"{what} that depends on the size of {', '.join(named)}, which a file cannot hold for every size."
    return UnsupportedError(f"{what} Fix it: {'; '.join(ways)}.")


def _statistics(model: Model, tape: Tape) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The outputs that a layer normalization can have, by the name of the first; in float32, as ONNX has the others."""
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
    """What tensors on a tape are called in the file: as in the model, and as what was asked for."""
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
    """Names of what was fed, and of all tensors inside of it."""
    return {*(n for n in feeds if n in tape.values),
            *(v.name for n in feeds if n in tape.compounds for v in inside(tape.compounds[n]))}  # fmt: skip


def _passing(model: Model, tape: Tape, outputs: Sequence[str], feeds: Collection[str]) -> frozenset[str]:
    """Tensors whose shapes follow from values; UnsupportedError for what is right at the values of this run only."""
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
    """Tensors whose shapes rules and compositions have as constants."""
    for request in model.requests_for(outputs):
        xs, ys = ([tape.named[name].name for name in names] for names in (request.xs, request.ys))
        yield from (*xs, *ys)
        for unit in units_between(tape, xs, ys, request.stop):
            if "kept" not in unit.metadata:  # what is kept whole reads shapes when the file is run
                yield from (*unit.operands, *unit.outputs)
    own = set(model.graph.tensors)
    for step in steps:
        if own.isdisjoint(step.node.outputs) and "kept" not in step.metadata and step.op.lift is not shape_only:
            yield from (*step.operands, *step.node.outputs)


def _fleeting(model: Model, tape: Tape, inputs: Iterable[str], what: str, name: str) -> UnsupportedError:
    """The error for what only these values of the inputs make right, with the inputs to fix."""
    found = {n: Dependence.on([n], tape, model.graph) for n in sorted(inputs)}
    causes = [n for n, dependence in found.items() if name in dependence.values | dependence.shapes]
    fixed = ", ".join(f"{n!r}: ..." for n in causes)
    return UnsupportedError(f"{what}, which a file cannot hold for every value. Fix it: save(..., feeds={{{fixed}}}).")


@dataclass(frozen=True, slots=True)
class Declarations:
    """The declarations of a file that was made of a model's runs."""

    model: Model
    found: Traced

    def type(self, name: str) -> TensorType:
        """What the file declares of an input or an output: what the model does, else what the runs have shown."""
        graph, laid = self.model.graph, self.found.laid
        declared = graph.types.get(name, TensorType())
        if declared.kind != "tensor":
            return declared
        if name in graph.constants and declared.dtype is None:
            declared = TensorType(graph.constants[name].dtype, graph.constants[name].shape)
        dtype = declared.dtype if declared.dtype is not None else laid.dtypes.get(name)
        dtype = self.model.known_dtype(name) if dtype is None else dtype
        if declared.shape is None:
            return TensorType(dtype, self._shown(name))
        return TensorType(dtype, tuple(self._dim(name, axis, d) for axis, d in enumerate(declared.shape)))

    def _dim(self, name: str, axis: int, dim: Dim) -> Dim:
        """A declared dimension, with its size where it got one, by the name of the one that it equals."""
        if isinstance(dim, int):
            return dim
        trials, key = self.found.trials, symbol(name, axis, dim)
        sizes = {**self.model.source.dims, **self.model.dims, **trials.fixed}
        return sizes.get(key, trials.equal.get(key, dim))

    def _shown(self, name: str) -> tuple[Dim, ...] | None:
        """The shape that a tensor had in the runs, by the names of the dimensions that it follows."""
        shape = self.found.laid.shapes.get(name)
        if shape is None:
            return self.model.known_shape(name)
        if name in self.found.passing:
            return (None,) * len(shape)
        by_sizes = {sizes: d for d, sizes in self.found.trials.symbols.items()}
        return tuple(sizes[0] if len(set(sizes)) == 1 else self._named(by_sizes.get(sizes)) for sizes in shape)

    def _named(self, dim: str | None) -> str | None:
        """A dimension that the model gives a name."""
        named = {d for t in self.model.graph.types.values() for d in t.shape or () if isinstance(d, str)}
        return dim if dim in named else None

    def notes(self) -> Iterator[str]:
        trials = self.found.trials
        for dim, other in trials.equal.items():
            yield f"{dim} has to equal {other}"
        for dim, size in trials.fixed.items():
            yield f"{dim} is {size}: the model does not run at other sizes that were tried"
