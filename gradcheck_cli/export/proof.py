"""The proof of a file: its graph gives the model's own derivatives at sizes, values and draws that it was not made from.

The graph follows from what several runs had in common.  At very small sizes dimensions of 1 may broadcast where larger
ones have to be equal; and where shapes follow from values, what all runs had in common may be chance.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import wraps
from itertools import count
from typing import Any, Protocol, TypeAlias

import numpy as np
from msgspec import structs

from gradcheck_cli.autodiff.outlined import OutlinedTape
from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.autodiff.trace import result, trace
from gradcheck_cli.errors import GradcheckError, LimitError, UnsupportedError, shown
from gradcheck_cli.export.gradient_graph import Written, graph_of
from gradcheck_cli.export.inner import draws
from gradcheck_cli.export.rewrites import without_lists
from gradcheck_cli.export.runs import other_integers
from gradcheck_cli.export.traced import to_fix
from gradcheck_cli.export.trials import at, beyond, of_one, where_it_runs
from gradcheck_cli.formats.onnx.opset import LOWEST
from gradcheck_cli.formats.onnx.write import serialized, to_proto
from gradcheck_cli.graph import Array, Graph, describe, is_inexact
from gradcheck_cli.model import Model
from gradcheck_cli.op import DTYPES, Op, Ops
from gradcheck_cli.points.dims import sizes_in
from gradcheck_cli.settings import Settings
from gradcheck_cli.verdict.differences import blocks

_BY_RUNTIME, _NOTHING = 0.05, 1e-6  # of the largest entry, which is rounding alone where it is tiny
UNKNOWN = "onnxruntime runs neither the model nor this file"
_HALF = 0.03  # the same where numbers are rounded to 16 bits on the way
_ZERO = 1e-12  # what rounding in float64 leaves of a gradient that is 0, as that of a sum of normalized numbers
_NOISE = 16  # times what a nudge of all results changes: two ways to compute the same differ by some roundings each
_SEEDS = 8  # of values at which a model may not run
Run: TypeAlias = Mapping[str, Any]  # values of inputs and outputs, in a run of the model in float64
_ROUNDING = 1e-4  # of the largest entry: wrong formulas differ by far more, sums in another order by far less
# Other values of inputs: all of one sign, which masks take or leave as a whole, many that are equal, and far larger ones.
_OTHERWISE: tuple[tuple[Callable[[Array], Array], Callable[[Array], Array]], ...] = (
    (np.abs, np.ones_like),
    (lambda x: -np.abs(x), np.zeros_like),
    (np.round, np.logical_not),
    (lambda x: 8 * x, np.logical_not),
    (lambda x: x + 5, np.logical_not),
    (lambda x: x - 5, np.logical_not),
    (lambda x: x, np.ones_like),
    (lambda x: x, np.zeros_like),
)


class Runtime(Protocol):
    """Another implementation, which runs graphs in memory."""

    def answers(
        self, data: bytes, feeds: Mapping[str, Array], outputs: Sequence[str]
    ) -> Mapping[str, Array] | str | None:
        """Outputs of a model in bytes; a text where it is refused, None where nothing is said."""

    def differing(self, data: bytes, graph: Graph, ops: Ops, feeds: Mapping[str, Array]) -> tuple[int | None, str]:
        """The first node that it computes otherwise, and how; else None, and the reason if not all were compared."""


def require_right(model: Model, made: Written, feeds: Mapping[str, Any]) -> None:
    """Raises UnsupportedError where shapes follow from values, and the graph is wrong at other values.

    So too where it has lost an input that the derivatives are computed with.
    """
    names = [n for n in model.graph.free_inputs if n not in feeds] if made.by_values else _lost(model, made, feeds)
    if not names:
        return
    runs = [{**run, **made.trials.fixed} for run in made.trials.runs]
    runs.append({**runs[0], **dict.fromkeys(made.open_dims, 1)})
    for sizes in (each for i, each in enumerate(runs) if each not in runs[:i]):
        settings = at(Settings(extra_feed_dict=feeds), sizes, made.trials.counted)
        here = run_of(model, made, settings)
        values = {} if here is None else _arrays(here, names)
        for given in _others(values) if made.by_values and sizes is runs[0] else _other_integers(values):
            run = run_of(model, made, replace(settings, extra_feed_dict={**settings.extra_feed_dict, **given}))
            if run is not None and not _agree(model, made, run):
                what = "shapes" if made.by_values else "derivatives"
                changed = [n for n in given if not np.array_equal(given[n], values[n], equal_nan=True)]
                by = changed if here is None or _agree(model, made, here) else values
                raise to_fix(f"{what} follow from values, in a way that a file does not hold for every value", by)


def _require_right_beyond(model: Model, made: Written, feeds: Mapping[str, Any]) -> None:
    """Raises UnsupportedError where the graph is wrong at a count that is smaller than those by which it was made."""
    what = "shapes follow from values, in a way that a file does not hold for every value"
    for counted in made.trials.counted:
        for sizes in beyond(made.trials.runs[0], counted):
            run = run_of(model, made, at(Settings(extra_feed_dict=feeds), sizes, made.trials.counted))
            if run is not None and not _agree(model, made, run):
                raise to_fix(what, [counted.name])


def _lost(model: Model, made: Written, feeds: Collection[str]) -> list[str]:
    """Inputs of integers that a derivative is computed with, and that the file does not read."""
    reads = (n for request in model.requests_for(made.graph.outputs) for n in request.reads)
    needed = model.graph.needed_for([*made.graph.outputs, *reads])
    unread = needed.intersection(model.graph.free_inputs).difference(made.graph.free_inputs, feeds)
    dtypes = ((n, each.dtype) for n, each in model.graph.types.items() if n in unread)
    return [n for n, dtype in dtypes if dtype is not None and dtype.kind in "iu"]


def _others(values: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Other values of inputs: of all numbers and flags at once, then of each vector of integers."""
    for other in _OTHERWISE:
        yield {n: _changed(x, *other) for n, x in values.items()}
    yield from _other_integers(values)


def _other_integers(values: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """Other values of each vector of integers, of which one is 0 at last."""
    for name, x in values.items():
        if x.dtype.kind in "iu" and x.size:
            empty = np.where(np.arange(x.size).reshape(x.shape) == x.size - 1, 0, x).astype(x.dtype)
            yield from ({**values, name: integers} for integers in (*other_integers(x, _SEEDS), empty))


def _changed(x: Array, number: Callable[[Array], Array], flag: Callable[[Array], Array]) -> Array:
    """Other values of an input; those of integers, which may be places, stay."""
    return np.asarray(number(x) if is_inexact(x.dtype) else flag(x) if x.dtype == np.bool_ else x, x.dtype)


def proven(model: Model, made: Written, feeds: Mapping[str, Any], here: Run | None) -> Iterator[str]:
    """Notes on small sizes at which the file computes something else than the model, and on operators that runtimes read
    otherwise than the standard; `here` is a `reference` run.

    Raises UnsupportedError where the file does so at larger sizes, at values or draws by which it was not made, and where
    there is no such run.
    """
    require_right(model, made, feeds)
    _require_right_beyond(model, made, feeds)
    yield from _differing(made.graph)
    if here is None and made.added:
        raise to_fix("the model runs at no other values, by which the file could be proven", made.graph.free_inputs)
    if here is not None and not _agree(model, made, here):
        if not (made.open_dims and _right_at(model, made, feeds, made.trials.runs[0])):
            inputs = (*made.graph.free_inputs, *model.graph.free_inputs)  # the file may have lost some
            raise _wrong(here, [n for n in dict.fromkeys(inputs) if n not in feeds])
        yield _not_right(model, made, here)
        return
    fixed, loose = {**model.dims, **made.trials.fixed}, made.trials.loose
    small = (1,) if made.trials.small else (1, 2)  # without runs at small sizes other rules may apply there
    alike = [{**fixed, **dict.fromkeys(made.open_dims, size)} for size in small]
    broadcast = [{**fixed, **dict.fromkeys({*loose, *loose.values()}, 4), **each} for each in of_one(loose)]
    for dims in (*alike, *broadcast) if made.open_dims else ():
        run = run_of(model, made, Settings(dims=dims, extra_feed_dict=feeds))
        if run is not None and not _agree(model, made, run):
            yield _not_right(model, made, run)
            return


def _right_at(model: Model, made: Written, feeds: Mapping[str, Any], sizes: Mapping[str, int]) -> bool:
    """True if the file is right at some sizes, at other values than those by which it was made."""
    settings = replace(at(Settings(extra_feed_dict=feeds), sizes, made.trials.counted), seed=1)
    run = run_of(model, made, settings)
    return run is not None and _agree(model, made, run)


def _not_right(model: Model, made: Written, run: Run) -> str:
    """The note on sizes at which a file is wrong."""
    return f"not right at {_sizes(model, made, run)}, where shapes follow otherwise than at larger sizes"


def _sizes(model: Model, made: Written, run: Run) -> str:
    there = sizes_in(model.graph, {n: x.shape for n, x in _arrays(run, model.graph.inputs).items()})
    return ", ".join(f"{shown(d)}={there.get(d, 1)}" for d in made.open_dims)


def _wrong(run: Run, inputs: Iterable[str]) -> UnsupportedError:
    """The error for a file that is wrong at values by which it was not made."""
    whole = [n for n, x in _arrays(run, inputs).items() if x.dtype.kind in "iub"]
    if whole:
        return to_fix("derivatives follow from values, in a way that a file does not hold for every value", whole)
    return UnsupportedError("the file would compute something else than the model; please report it.")


def _differing(graph: Graph) -> Iterator[str]:
    """Notes on operators of a file that onnxruntime computes otherwise than ONNX defines them."""
    clipped = [node for node in graph.all_nodes if node.key == ("", "LSTM") and node.attrs.get("clip", 0) > 0]
    if clipped:
        name = shown(clipped[0].name or clipped[0].outputs[0])
        yield (f"LSTM {name}: the gradient follows ONNX, where clip bounds what goes into every activation; onnxruntime "
               "does not bound the cell before the last one")  # fmt: skip


def proven_graph(model: Model, outputs: Sequence[str], feeds: Mapping[str, Any]) -> tuple[Written, Run | None]:
    """The graph that computes `outputs`, with the notes of `proven`, and the `reference` run.

    Lists are tensors in it where that is right: those in a list may differ in size, and those of a stack may not.
    """

    def made_of(own: Model) -> tuple[Written, Run | None]:
        made = graph_of(own, outputs, feeds)
        here = reference(model, made, feeds)
        return replace(made, notes=(*made.notes, *proven(model, made, feeds, here))), here

    read = {name for request in model.requests_for(outputs) for name in request.reads}
    graph = without_lists(model.graph, {*outputs, *feeds, *read})
    if graph is model.graph:
        return made_of(model)
    listless = copy(model)
    listless.source = structs.replace(model.source, graph=graph)
    try:
        return made_of(listless)
    except LimitError:
        raise
    except GradcheckError:
        return made_of(model)


def reference(model: Model, made: Written, feeds: Mapping[str, Any]) -> Run | None:
    """A run of the model at values by which the file was not made; None where it runs at none of those tried."""
    usual = Settings(dims={**model.dims, **made.trials.fixed}, extra_feed_dict=feeds)
    tried = at(Settings(extra_feed_dict=feeds), made.trials.runs[0], made.trials.counted)
    drawn = (replace(settings, seed=seed) for settings in (usual, tried) for seed in range(1, _SEEDS))
    return next(filter(None, (run_of(model, made, settings) for settings in drawn)), None)


def run_of(model: Model, made: Written, settings: Settings) -> Run | None:
    """A run of the model, with its derivatives; None at sizes or values at which it does not run.

    The derivatives alone are computed where that is all that runs, as where other outputs read strings.
    """
    added = [n for n in made.graph.outputs if n not in model.graph.tensors]
    ends = dict.fromkeys((*model.graph.inputs, *made.graph.inputs, *made.graph.outputs))
    for targets in (made.graph.outputs, added):
        with where_it_runs():
            return values_of(model.tape(targets, settings, drawing_in_turn(model.ops), on=OutlinedTape), ends)
    return None


def values_of(tape: Tape, names: Iterable[str]) -> Run:
    """The values of those tensors, sequences, optionals and maps among some that a run on an OutlinedTape has reached."""
    names = list(names)
    own = {n: tape.named[n].name for n in names if n in tape.named and n not in tape.containers}
    assert isinstance(tape, OutlinedTape)
    numbers = tape.numbers(own.values())
    records = {n: result(tape, n) for n in names if n in tape.containers}
    return {**{n: numbers[name] for n, name in own.items()}, **records}


def _arrays(run: Run, names: Iterable[str]) -> dict[str, Array]:
    """The tensors among some values."""
    return {n: run[n] for n in names if isinstance(run.get(n), np.ndarray)}


def sample(made: Written, run: Run | None) -> dict[str, Array]:
    """Values of inputs and outputs of the file in a run of the model."""
    return {} if run is None else _arrays(run, (*made.graph.inputs, *made.graph.outputs))


def require_runs(
    data: bytes, graph: Graph, own: Graph, values: Mapping[str, Array], ops: Ops, runtime: Runtime, least: int = LOWEST
) -> str:
    """A note on the run of a file by another runtime, if there is one to make; `values` are those of a run of ours.

    `least` is the opset of the model, since a runtime may have other operators in each.
    Raises UnsupportedError where that runtime refuses the file, though it runs the model's `own` graph, or computes a
    node of it otherwise that is none of the model's.
    """
    if {*graph.free_inputs, *graph.outputs} - {*values}:
        return ""
    given = _given(graph, values)
    found = runtime.answers(data, given, graph.outputs)
    if isinstance(found, str):
        if not _runs_alone(own, given, runtime, least):
            return f"{UNKNOWN}: {found}"
        raise UnsupportedError(f"onnxruntime runs the model, but would not run this file: {found}")
    if found is None or draws(graph, ops):
        return ""
    off = {n: _distance(values[n], y) for n, y in found.items()}
    far = max(off, key=off.__getitem__, default="")
    if not off or off[far] < _BY_RUNTIME:
        return ""
    away = f"{shown(far)} of a run in onnxruntime is {off[far]:.0e} of its largest entry away from that in float64"
    return f"{away}: {_explained(data, graph, own, given, ops, runtime)}"


def not_run(
    data: bytes, model: Model, made: Written, feeds: Mapping[str, Any], runtime: Runtime, least: int
) -> Iterator[str]:
    """A note on small sizes at which another runtime runs the model but not the file: a loop may have no iterations."""
    graph, fixed = made.graph, {**model.dims, **made.trials.fixed}
    for size in (1, 0) if made.open_dims and any(any(node.subgraphs) for node in graph.nodes) else ():
        run = run_of(
            model, made, Settings(dims={**fixed, **dict.fromkeys(made.open_dims, size)}, extra_feed_dict=feeds)
        )
        if run is None or {*graph.free_inputs} - {*run}:
            continue
        given = _given(graph, run)
        found = runtime.answers(data, given, graph.outputs)
        if isinstance(found, str) and _runs_alone(model.graph, given, runtime, least):
            yield f"onnxruntime runs the model at {_sizes(model, made, run)}, but not this file: {found}"
            return


def _given(graph: Graph, values: Mapping[str, Any]) -> dict[str, Array]:
    """Values of the inputs, in the types of the file."""
    return {n: np.asarray(values[n], graph.types[n].dtype) for n in graph.inputs if n in values}


def _explained(data: bytes, graph: Graph, own: Graph, given: Mapping[str, Array], ops: Ops, runtime: Runtime) -> str:
    """The reason why a file is off in another runtime: rounding, or a node of the model itself.

    Raises UnsupportedError where it is a node that was added.
    """
    index, how = runtime.differing(data, graph, ops, given)
    if index is None and how:
        return f"its nodes were not all compared ({how})"
    if index is None:
        return "rounding alone, as each node computes the same from the same operands"
    node = graph.nodes[index]
    if {*node.outputs} & {*own.tensors}:
        return f"it computes {describe(index, node)} of the model itself otherwise: {how}"
    raise UnsupportedError(
        f"onnxruntime would not compute {describe(index, node)} of this file as ONNX defines it: {how}"
    )


def _runs_alone(graph: Graph, given: Mapping[str, Array], runtime: Runtime, least: int) -> bool:
    """True if another runtime runs the model itself, in its own opset."""
    try:
        data = serialized(to_proto(graph, least=least))
    except GradcheckError:  # operators that no opset has
        return False
    return not isinstance(runtime.answers(data, given, graph.outputs), str)


def _distance(wanted: Array, found: Array) -> float:
    """The largest difference, in units of the largest entry, wherever both are finite."""
    if wanted.shape != found.shape or not is_inexact(wanted.dtype):
        return float(wanted.shape != found.shape)
    gap, largest = largest_gap(wanted, found, lambda w, f: np.isfinite(w) & np.isfinite(f))
    return gap / largest if largest > _NOTHING else 0.0


def largest_gap(
    wanted: Array, found: Array, where: Callable[[Array, Array], Array] = lambda w, f: np.isfinite(w)
) -> tuple[float, float]:
    """The largest difference, and the largest of the wanted entries, of those that `where` keeps: the finite ones.

    Of large arrays some entries at a time, as whole ones in between would take as much memory and more time.
    """
    gap = largest = 0.0
    flat = [x.reshape(-1) if x.flags.c_contiguous else x.flat for x in (wanted, found)]  # no copies of transposed ones
    for some in blocks(wanted.size, 1):
        w, f = (x[some] for x in flat)
        if not (kept := where(w, f)).all():
            w, f = w[kept], f[kept]
        gap = float(np.maximum(gap, np.max(np.abs(w - f), initial=0)))  # NaN stays
        largest = max(largest, float(np.max(np.abs(w), initial=0)))
    return gap, largest


_COUPLED = (
    "{0} of a batch is not made of {0} of its rows: these are the derivatives of each row taken by itself, and do not "
    "add up to those of the batch"
)


def require_rows(model: Model, made: Written, rows: Graph, feeds: Mapping[str, Any]) -> list[str]:
    """Notes on `rows`, a graph for each row of a batch; UnsupportedError where it is not the model at a batch of one."""
    [each] = rows.nodes
    batch = (made.graph.types[each.inputs[0]].shape or ())[0]
    alone = Settings(dims={**model.dims, **made.trials.fixed, str(batch): 1}, extra_feed_dict=feeds, seed=1)
    first = run_of(model, made, alone)
    if first is None:
        raise UnsupportedError(
            f"--per-sample: the model does not run at {shown(str(batch))}=1, as for each row by itself."
        )
    known = _arrays(first, made.graph.inputs)
    shared = {n: v for n, v in known.items() if n not in each.inputs}
    second = run_of(model, made, replace(alone, seed=2, extra_feed_dict={**feeds, **shared}))
    runs = [first] if second is None else [first, second]
    given = {**known, **{n: np.concatenate([run[n] for run in runs]) for n in each.inputs}}
    if draws(made.graph, model.ops):
        return []
    near = _HALF if _narrows(rows) else _ROUNDING
    found = values_of(trace(rows, given, ops=model.ops, targets=rows.outputs, on=OutlinedTape), rows.outputs)
    for name in rows.outputs:
        wanted = np.stack([run[name] for run in runs])
        if not _near(wanted.reshape(found[name].shape), found[name], near):
            raise UnsupportedError(f"--per-sample: {shown(name)} of a row would not be that of the row by itself.")
    together = replace(alone, dims={**alone.dims, str(batch): len(runs)}, extra_feed_dict={**feeds, **given})
    whole = run_of(model, made, together) or {}
    coupled = [n for n in model.graph.outputs if n in whole and not _of_rows(whole[n], [r[n] for r in runs], near)]
    return [_COUPLED.format(repr(n)) for n in coupled]


def _of_rows(whole: Any, parts: Sequence[Any], near: float) -> bool:
    """True if a result for a batch is made of those of its rows: one behind the other, their sum or their mean."""
    if not isinstance(whole, np.ndarray) or whole.dtype.kind != "f":
        return True
    total = np.sum(parts, axis=0)
    made = [np.concatenate(parts)] if whole.ndim else []
    return any(m.shape == whole.shape and _near(m, whole, near) for m in (*made, total, total / len(parts)))


def _agree(model: Model, made: Written, run: Run) -> bool:
    """True if the graph of the file gives the values of a run of the model, from the same inputs.

    What differs in numbers may be rounding alone: that of a gradient that is 0, in a model of large ones.
    """
    given, wanted = {n: run[n] for n in made.graph.inputs if n in run}, _arrays(run, made.graph.outputs)
    near = _HALF if _narrows(made.graph) else _ROUNDING
    with where_it_runs():
        found = _computed(made, given, wanted, drawing_in_turn(model.ops))
        both = {n: (wanted[n], f) for n, f in found.items()}
        if any(w.shape != f.shape for w, f in both.values()):
            return False
        far = {n: pair for n, pair in both.items() if pair[0].dtype.kind == "f" and not _near(*pair, near)}
        return not far or _is_rounding(far, _computed(made, given, far, _nudging(drawing_in_turn(model.ops))))
    return False


def _computed(made: Written, given: Run, outputs: Iterable[str], ops: Ops) -> dict[str, Array]:
    """Outputs of the graph of the file."""
    ends = [*outputs]
    return _arrays(values_of(trace(made.graph, given, ops=ops, targets=ends, on=OutlinedTape), ends), ends)


def _nudging(ops: Ops) -> Ops:
    """The operators, of which each moves its results, if they are float64, to neighbors at random."""
    rng = np.random.default_rng(0)

    def moved(y: Any) -> Any:
        if not isinstance(y, np.ndarray) or y.dtype != np.float64:
            return y
        return np.nextafter(y, np.where(rng.random(y.shape) < 0.5, -np.inf, np.inf))

    def nudging(op: Op) -> Op:
        @wraps(op.forward)
        def forward(*operands: Any, **how: Any) -> Any:
            made = op.forward(*operands, **how)
            return tuple(map(moved, made)) if isinstance(made, tuple) else moved(made)

        return replace(op, forward=forward)

    return {key: op if op.composed or op.moves else nudging(op) for key, op in ops.items()}


def _is_rounding(far: Mapping[str, tuple[Array, Array]], nudged: Mapping[str, Array]) -> bool:
    """True if pairs of arrays differ by no more than what nudges of all results on the way change."""
    for name, (wanted, found) in far.items():
        if found.shape != nudged[name].shape:
            return False
        gap, _ = largest_gap(wanted, found)
        noise, _ = largest_gap(found, nudged[name])
        if not gap <= _NOISE * noise:
            return False
    return True


def _narrows(graph: Graph) -> bool:
    """True if some numbers have 16 bits."""
    dtypes = [DTYPES.get(node.attrs.get("to", 0)) for node in graph.all_nodes if node.op == "Cast"]
    dtypes += [*(t.dtype for t in graph.types.values()), *(v.dtype for v in graph.constants.values())]
    return any(d is not None and is_inexact(d) and d.itemsize == 2 for d in dtypes)


def drawing_in_turn(ops: Ops) -> Ops:
    """The operators for one run, in which what draws gets numbers by its turn alone: two runs draw the same."""
    turns = count()

    def of_turns(op: Op) -> Op:
        @wraps(op.forward)
        def forward(*operands: Any, rng: Any, **how: Any) -> Any:
            return op.forward(*operands, rng=np.random.default_rng(next(turns)), **how)

        return replace(op, forward=forward)

    drawing = {key: op for key, op in ops.items() if not op.composed and "rng" in op.signature.supplied}
    return {**ops, **{key: of_turns(op) for key, op in drawing.items()}}


def _near(wanted: Array, found: Array, near: float) -> bool:
    """True for arrays that are equal up to rounding, wherever the wanted values are finite."""
    gap, largest = largest_gap(wanted, found)
    return gap <= max(near * largest, _ZERO)
