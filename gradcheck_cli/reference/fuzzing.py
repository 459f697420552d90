"""Random models held against differences and other implementations; those that fail are shrunk and told apart.

gradcheck itself is judged by its verdict and by the forward runs of onnxruntime and ONNX's reference evaluator.  Another
engine is judged as by a case of the conformance suite: what it has wrong counts where gradcheck's own verdict finds the
reference right at that very point, and an implementation that is not gradcheck's confirms it.

    for answer in answers(FuzzJob(seed=1), numbers=range(1000), jobs=2, until=float("inf")): ...
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import islice
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, Literal

import numpy as np
import onnx
from msgspec import Struct, structs
from onnx.reference import ReferenceEvaluator

from gradcheck_cli.api import run
from gradcheck_cli.api.gradients import gradients
from gradcheck_cli.checks.procedure import Procedure
from gradcheck_cli.errors import GradcheckError, UsageError
from gradcheck_cli.formats.onnx.graph_proto import graphs_of
from gradcheck_cli.formats.onnx.read import read_proto
from gradcheck_cli.model import Model
from gradcheck_cli.ops import OPS
from gradcheck_cli.reference.engines import session_of
from gradcheck_cli.reference.random_models import OPSETS, ModelPlan, PlanStep, Unbuildable, built, case, use_of, used_in
from gradcheck_cli.reference.scores import START, EngineAnswer, Runner, forward_differs, judged
from gradcheck_cli.reference.suite import (
    Case,
    Dropped,
    Feeds,
    Sample,
    confirmed,
    floats,
    nodes_in,
    passes,
    referenced,
)
from gradcheck_cli.results.record import Check
from gradcheck_cli.settings import Settings

Status = Literal["right", "wrong", "forward", "crashed", "refused", "open"]
STATUSES = {
    "right": "gradients agree",
    "wrong": "a gradient is wrong, without a word",
    "forward": "an output is another than onnxruntime's, and ONNX's reference evaluator does not say otherwise",
    "crashed": "an exception or the end of the process",
    "refused": "an error that says so",
    "open": "nothing to say: a kink, nothing to differentiate, or no other implementation",
}
FAULTS = ("wrong", "forward", "crashed")
SCHEMA = "gradcheck.fuzz/1"
SHARES = {"float32": 1e-3, "float64": 1e-4}  # of an output; onnxruntime has some steps in float32
PATIENCE = 30.0  # seconds for a case
CHUNK = 8  # cases that a process takes at a time
AGAIN = 3  # draws of numbers with which a step is tried alone
TRIES = 400  # smaller models that are tried of one that fails
LATER = 15.0  # seconds past its time for which a run goes on shrinking what failed
AT_LAST = 2.0  # seconds for the cases that are at work when Ctrl-C comes
SHRUNK = 6  # models of one kind of fault that a process shrinks; more are counted
_POOLS = ("AveragePool", "LpPool", "MaxPool")
_ENDING = {"GRU", "LSTM", "RNN", "Unique"}  # onnxruntime ends its process where one of them reads no entries
_SIZES = {
    "size", "width", "n", "m", "k", "batch", "channels", "filters", "inner", "shape", "shapes", "space", "steps", "hidden",
    "kernel", "kernel_width", "rank", "count", "first", "second", "other", "length", "rows", "draw", "index", "out",
    "height", "heads", "q", "classes", "block", "n_outputs", "depth", "to", "condition",
}  # fmt: skip


class Judgement(Struct, frozen=True):
    """The outcome of a model; `kind` says which kind of a fault it is."""

    status: Status
    message: str = ""
    kind: str = ""

    def same(self, other: Judgement) -> bool:
        """True if both are the same kind of fault."""
        return (self.status, self.kind) == (other.status, other.kind)


class ShrunkFault(Struct, frozen=True):
    """A fault: the operators of the smallest model that has it, and all that is not as usual there.

    plan  the model, None if one like it was shrunk before.
    """

    operators: tuple[str, ...]
    status: Status
    kind: str
    ways: tuple[str, ...]
    message: str
    number: int
    plan: ModelPlan | None = None
    size: int = 0

    @property
    def key(self) -> tuple[Any, ...]:
        return self.operators, self.status, self.kind, self.ways


class CaseAnswer(Struct, frozen=True):
    """The outcome of a case by number."""

    number: int
    outcome: Judgement
    operators: tuple[str, ...] = ()
    fault: ShrunkFault | None = None


class FuzzJob(Struct, frozen=True):
    """All that decides on the cases and their outcomes; no engine is gradcheck itself."""

    seed: int = 0
    operators: tuple[str, ...] = ()
    engine: str = ""
    python: str = ""


# Outcomes


class Ourselves:
    """gradcheck's own gradients and forward runs."""

    def outcome(self, sample: Sample) -> Judgement:
        """The outcome of a model, whatever happens."""
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return self._judged(sample)
        except GradcheckError as error:
            return Judgement("open" if error.exit_code in (2, 3, 6, 7) else "refused", str(error))
        except Exception as error:  # any other one is a fault
            return Judgement("crashed", f"{type(error).__name__}: {error}", type(error).__name__)

    def _judged(self, sample: Sample) -> Judgement:
        tested, records = checked(sample)
        if wrong := next((r for r in records if r.status == "fail"), None):
            return Judgement("wrong", _described(wrong), "gradient")
        if message := _forward(tested, sample):
            return Judgement("forward", message, "forward")
        if error := next((r for r in records if r.status == "unsupported"), None):
            return Judgement("refused", error.message)
        return Judgement("right" if any(r.status == "pass" for r in records) else "open")

    def close(self) -> None:
        """Ends nothing: all runs in this process."""


def settings_of(sample: Sample) -> Settings:
    """The settings of the check of a model at its inputs."""
    graph = sample.model.graph
    xs = floats(graph.input)
    return Settings(
        x=tuple(xs), y=tuple(floats(graph.output)), x_init_value={x: sample.inputs[x] for x in xs}, mode="full", jobs=1,
        extra_feed_dict={n: v for n, v in sample.inputs.items() if n not in xs}, forward="internal", test_data=None,
        timeout=PATIENCE,
    )  # fmt: skip


def checked(sample: Sample) -> tuple[Model, Sequence[Check]]:
    """The model with the records of its check; none if there is nothing to differentiate."""
    tested = Model(read_proto(sample.model, sample.name), OPS, {})
    settings = settings_of(sample)
    if not settings.y or not any(sample.inputs[x].size for x in settings.x or ()):
        return tested, ()
    return tested, Procedure(tested.source, settings).run(sample.name)


def _described(record: Check) -> str:
    worst = record.worst[0] if record.worst else None
    entry = f": {worst.theoretical:.6g} instead of {worst.numerical:.6g} at {list(worst.x)}" if worst else ""
    return f"d {record.y} / d {record.x}{entry}"


def _forward(tested: Model, sample: Sample) -> str:
    """The output in which onnxruntime differs, if ONNX's reference evaluator, where it runs, says the same; or ""."""
    empty = not all(v.size for v in sample.inputs.values())
    if empty and any(node.op_type in _ENDING for node in nodes_in(sample.model.graph)):
        return ""
    names = [o.name for o in sample.model.graph.output]
    given = dict(zip(names, run([tested[n] for n in names], sample.inputs), strict=True))
    share = SHARES["float32" if any(v.dtype == np.float32 for v in sample.inputs.values()) else "float64"]
    padded = structs.replace(sample, model=with_pads(sample.model))
    wanted = _elsewhere(session_of, padded, names)
    if not forward_differs(wanted, given, share):
        return ""
    for n, value in wanted.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            continue  # in other implementations variances get below 0 by roundings
        if not forward_differs({n: value}, given, share):
            continue
        other = _elsewhere(ReferenceEvaluator, structs.replace(padded, model=_up_to(padded.model, n)), [n])
        if not forward_differs({n: value}, {n: value, **other}, share):
            return f"output {n!r} differs: {_entries(given[n])} instead of {_entries(value)}"
    return ""


def _up_to(model: onnx.ModelProto, output: str) -> onnx.ModelProto:
    """The model without nodes that an output does not need: an implementation may not run those."""
    made, needed = onnx.ModelProto(), {output}
    made.CopyFrom(model)
    kept = []
    for node in reversed(model.graph.node):
        if needed & {*node.output}:
            kept.append(node)
            needed |= {name for each in nodes_in(onnx.GraphProto(node=[node])) for name in each.input}
    del made.graph.node[:]
    made.graph.node.extend(reversed(kept))
    outputs = [value for value in model.graph.output if value.name == output]
    del made.graph.output[:]
    made.graph.output.extend(outputs)
    return made


def _elsewhere(opened: Callable[[Any], Any], sample: Sample, names: list[str]) -> Feeds:
    """The outputs of another implementation; none where it does not run the model."""
    feeds = {n: v.copy() for n, v in sample.inputs.items()}  # onnxruntime writes running statistics over its inputs
    with suppress(Exception):
        return dict(zip(names, map(np.asarray, opened(sample.model).run(names, feeds)), strict=True))
    return {}


def with_pads(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model whose dilated pools have the pads that `auto_pad` stands for, by the formula of ONNX's MaxPool.

    onnxruntime leaves dilations out where it pads to the same size; ONNX's reference evaluator rounds the size of
    SAME_LOWER down and pads its end, which ONNX says of SAME_UPPER.  With the pads written out both say the same.
    """
    made = onnx.shape_inference.infer_shapes(model, data_prop=True)
    values = (v for graph in graphs_of(made.graph) for v in (*graph.input, *graph.value_info, *graph.output))
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in values}
    for node in nodes_in(made.graph):
        if node.op_type in _POOLS and shapes.get(node.input[0]):
            _pad(node, shapes[node.input[0]][2:])
    return made


def _pad(node: onnx.NodeProto, space: Sequence[int]) -> None:
    """Writes the pads of a pool that is dilated and padded to the same size; it then has no window to round up to."""
    attrs = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    same, dilations = attrs.get("auto_pad", b""), attrs.get("dilations", ())
    if not same.startswith(b"SAME") or max(dilations, default=1) == 1:
        return
    strides = attrs.get("strides", [1] * len(space))
    reach = [(k - 1) * d + 1 for k, d in zip(attrs["kernel_shape"], dilations, strict=True)]
    sizes = zip(space, strides, reach, strict=True)
    pads = [max((-(-size // stride) - 1) * stride + reached - size, 0) for size, stride, reached in sizes]
    less, more = [p // 2 for p in pads], [p - p // 2 for p in pads]
    kept = [a for a in node.attribute if a.name not in ("auto_pad", "ceil_mode", "pads")]
    del node.attribute[:]
    written = [*less, *more] if same == b"SAME_UPPER" else [*more, *less]
    node.attribute.extend([*kept, onnx.helper.make_attribute("pads", written)])


def _entries(value: Any) -> str:
    return f"{list(value.shape)} {np.array2string(np.ravel(value)[:4], precision=5, separator=', ')}"


class OtherEngine:
    """Another engine in a process of its own."""

    def __init__(self, name: str, python: str) -> None:
        self.name, self.python = name, python
        self.folder = tempfile.TemporaryDirectory(prefix="gradcheck-")
        self.runner: Runner | None = None

    def outcome(self, sample: Sample) -> Judgement:
        """The outcome of a model; a fault is one that other implementations confirm."""
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return self._judged(sample)
        except Dropped as reason:
            return Judgement("open", str(reason))
        except Exception as error:  # the reference is gradcheck's own: what it does not have is no fault of the engine
            return Judgement("open", f"{type(error).__name__}: {error}")

    def _judged(self, sample: Sample) -> Judgement:
        case = reference(sample)
        root = Path(self.folder.name)
        folder = case.write(root)
        scored = judged(folder, self._asked(folder), root)
        if scored.status in FAULTS:
            _confirm(sample, case)
        kinds = {"crashed": "", "forward": "", "wrong": scored.pattern.split()[0] if scored.pattern else ""}
        kind = kinds.get(scored.status, "")
        return Judgement(scored.status, scored.message, kind if kind in ("", "shape", "not") else "value")

    def _asked(self, folder: Path) -> EngineAnswer:
        """The engine's answer; where it crashes or hangs it is started again next time."""
        if self.runner is None:
            self.runner = Runner(self.name, self.python, Path(self.folder.name))
            if self.runner.heard(START) is None:
                raise Dropped("the engine does not start")
        said = self.runner.ask(folder, PATIENCE)
        if said.crashed:
            self._end()
        return said

    def _end(self) -> None:
        if self.runner is not None:
            self.runner.__exit__()
        self.runner = None

    def close(self) -> None:
        """Ends the process and removes its files."""
        self._end()
        self.folder.cleanup()


def started(job: FuzzJob) -> None:
    """UsageError if the engine of a job does not start."""
    if job.engine:
        with (
            tempfile.TemporaryDirectory(prefix="gradcheck-") as out,
            Runner(job.engine, job.python, Path(out)) as engine,
        ):
            if engine.heard(START) is None:
                raise UsageError(f"engine {job.engine!r} does not start in {job.python}: {engine.complaint()}")


def reference(sample: Sample) -> Case:
    """The case of a model, with gradients that nobody has confirmed."""
    tested = Model(read_proto(sample.model, sample.name), OPS, {})
    graph = sample.model.graph
    xs, ys = [x for x in floats(graph.input) if sample.inputs[x].size], floats(graph.output)
    if not xs or not ys:
        raise Dropped("nothing to differentiate")
    found = gradients([tested[y] for y in ys], [tested[x] for x in xs])
    xs = [x for x, g in zip(xs, found, strict=True) if g is not None]
    if not xs:
        raise Dropped("no gradient by nature")
    inputs: Feeds = dict(sample.inputs)
    return referenced(sample, tested, xs, ys, inputs)


def _confirm(sample: Sample, case: Case) -> None:
    """Dropped, unless all entries pass away from kinks, and an implementation that is not gradcheck's agrees."""
    tested = Model(read_proto(sample.model, sample.name), OPS, {})
    answered, _ = passes(tested, list(case.gradients), list(case.cotangents), dict(case.inputs))
    if not answered:
        raise Dropped("at a kink, or open")
    confirmed(case)


# Shrinking


def smaller(plan: ModelPlan) -> Iterator[ModelPlan]:
    """The plans next to a plan that have a part less, or a simpler one, the largest leaps first."""
    yield from _with_fewer_steps(plan)
    if plan.zeros:
        yield structs.replace(plan, zeros=False)
    for number, step in enumerate(plan.steps):
        for simpler in _simpler(step):
            yield structs.replace(plan, steps=(*plan.steps[:number], simpler, *plan.steps[number + 1 :]))
    if plan.opset != OPSETS[3]:
        yield structs.replace(plan, opset=OPSETS[3])


def _with_fewer_steps(plan: ModelPlan) -> Iterator[ModelPlan]:
    if len(plan.steps) > 1:
        for step in plan.steps:
            for seed in range(step.seed, step.seed + AGAIN):
                yield structs.replace(plan, steps=(structs.replace(step, sources=(), seed=seed),))
        for gone in reversed(range(len(plan.steps))):
            kept = (_without(gone, step) for i, step in enumerate(plan.steps) if i != gone)
            yield structs.replace(plan, steps=tuple(kept))


def _without(gone: int, step: PlanStep) -> PlanStep:
    """The step of a plan that has lost another."""

    def moved(source: tuple[int, int] | None) -> tuple[int, int] | None:
        return None if source is None or source[0] == gone else (source[0] - (source[0] > gone), source[1])

    return structs.replace(step, sources=tuple(map(moved, step.sources)))


def _simpler(step: PlanStep) -> Iterator[PlanStep]:
    for place, source in enumerate(step.sources):
        if source is not None:
            yield structs.replace(step, sources=(*step.sources[:place], None, *step.sources[place + 1 :]))
    if step.flow:
        yield structs.replace(step, flow="")
    if step.fed:
        yield structs.replace(step, fed=False)
    for axis, place in step.places.items():
        for lower in range(place):
            yield structs.replace(step, places={**step.places, axis: lower})
    for key in use_of(step).attrs:
        if key not in step.dropped:
            yield structs.replace(step, dropped=(*step.dropped, key))


class Shrinker:
    """Shrinks what fails, unless something like it was shrunk before."""

    def __init__(self, outcome: Callable[[Sample], Judgement], stopped: Callable[[], bool]) -> None:
        self.outcome, self.stopped = outcome, stopped
        self.seen: dict[tuple[Any, ...], ShrunkFault] = {}
        self.counts: dict[tuple[Any, ...], int] = {}

    def fault(self, number: int, plan: ModelPlan, found: Judgement) -> ShrunkFault:
        """The fault of a model that fails."""
        plan, found = self._descended(plan, found, whole=True)
        before = fault_of(number, plan, found)
        kind = before.key[:3]
        known = self.seen.get(before.key)
        if known is None and self.counts.get(kind, 0) >= SHRUNK:
            known = next(f for f in self.seen.values() if f.key[:3] == kind)
        if known is not None:
            return structs.replace(known, number=number, plan=None)
        fault = fault_of(number, *self._descended(plan, found, whole=False))
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.seen |= {before.key: fault, fault.key: fault}
        return fault

    def _descended(self, plan: ModelPlan, found: Judgement, whole: bool) -> tuple[ModelPlan, Judgement]:
        """The plan from which no step to a smaller one fails in the same way; with `whole`, steps alone are taken away."""
        left, ahead = TRIES, iter(smaller(plan))
        while left and not self.stopped() and (next_plan := next(ahead, None)) is not None:
            if whole and len(next_plan.steps) == len(plan.steps):
                continue
            left -= 1
            again = self._tried(next_plan)
            if again.same(found):
                plan, found, ahead = next_plan, again, iter(smaller(next_plan))
        return plan, found

    def _tried(self, plan: ModelPlan) -> Judgement:
        try:
            return self.outcome(built(plan, "smaller"))
        except Unbuildable:
            return Judgement("open")


def fault_of(number: int, plan: ModelPlan, found: Judgement) -> ShrunkFault:
    """The fault that a model has."""
    ways = {f"{axis.rstrip('_')}" for step in plan.steps for axis, place in step.places.items()
            if place and axis not in _SIZES}  # fmt: skip
    ways |= {step.flow for step in plan.steps if step.flow}
    size = sum(place for step in plan.steps for place in step.places.values()) + 100 * len(plan.steps) + len(ways)
    return ShrunkFault(
        tuple(used_in(plan)), found.status, found.kind, tuple(sorted(ways)), found.message, number, plan, size
    )


# Many cases


class FuzzWorker:
    """The judge of one process."""

    here: FuzzWorker

    def __init__(self, job: FuzzJob, late: Any, stopped: Any) -> None:
        self.job, self.late = job, late
        self.judge = OtherEngine(job.engine, job.python) if job.engine else Ourselves()
        self.shrinker = Shrinker(self.judge.outcome, stopped.is_set)

    def answer(self, number: int) -> CaseAnswer:
        """The outcome of a case, with its fault shrunk."""
        plan, sample = case(self.job.seed, number, self.job.operators)
        outcome = self.judge.outcome(sample)
        fault = self.shrinker.fault(number, plan, outcome) if outcome.status in FAULTS else None
        return CaseAnswer(number, outcome, tuple(used_in(plan)), fault)


def _begin(job: FuzzJob, late: Any, stopped: Any) -> None:
    """Makes the worker of a process, which leaves Ctrl-C to the one that started it, and ends with it."""
    import atexit

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _leave())
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    FuzzWorker.here = FuzzWorker(job, late, stopped)
    atexit.register(FuzzWorker.here.judge.close)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this process once the one that started it is gone: if it is killed, nobody says that no case follows."""
    if (parent := parent_process()) is not None:
        parent.join()
        _leave()


def _leave() -> None:
    """Ends this process and its engine, whatever they are at."""
    try:
        FuzzWorker.here.judge.close()
    finally:
        os._exit(1)


def _answers(numbers: Sequence[int]) -> list[CaseAnswer]:
    return [FuzzWorker.here.answer(number) for number in numbers if not FuzzWorker.here.late.is_set()]


def answers(job: FuzzJob, numbers: Iterable[int], jobs: int, until: float) -> Iterator[CaseAnswer]:
    """Answers of cases as they come, in processes of their own; no case begins after a time by `time.monotonic`.

    A case that ends its process has crashed.  What fails shortly before the time may stay larger than it could be.
    """
    ahead = iter(numbers)
    context = get_context("spawn")
    lost: list[int] = []
    while True:
        late, stopped = context.Event(), context.Event()  # no case begins any more; and none is shrunk
        pending: dict[Future[list[CaseAnswer]], list[int]] = {}
        pool = ProcessPoolExecutor(jobs, context, _begin, (job, late, stopped))
        try:
            if lost:  # one after the other, so that it is clear which one ends a process
                yield from _alone(pool, lost)
            while time.monotonic() < until or pending:
                while len(pending) < 2 * jobs and time.monotonic() < until and (chunk := list(islice(ahead, CHUNK))):
                    pending[pool.submit(_answers, chunk)] = chunk
                if not pending:
                    break
                if time.monotonic() > until:
                    late.set()
                if time.monotonic() > until + LATER:
                    stopped.set()
                for done in wait(pending, 0.2, FIRST_COMPLETED).done:
                    found = done.result()
                    del pending[done]
                    yield from found
            return
        except KeyboardInterrupt:  # the cases that are at work are answered, as large as they are, unless they hang
            late.set()
            stopped.set()
            with suppress(BrokenProcessPool, TimeoutError):
                for done in as_completed(pending, AT_LAST):
                    yield from done.result()
            for process in active_children():
                process.terminate()
            raise
        except BrokenProcessPool:
            lost = lost + [number for chunk in pending.values() for number in chunk]
        finally:
            late.set()
            stopped.set()
            pool.shutdown(cancel_futures=True)


def _alone(pool: ProcessPoolExecutor, lost: list[int]) -> Iterator[CaseAnswer]:
    """Answers of cases one by one: the first that ends the process has crashed."""
    while lost:
        number = lost.pop(0)
        try:
            yield from pool.submit(_answers, [number]).result()
        except BrokenProcessPool:
            message = "the process ended"
            yield CaseAnswer(
                number, Judgement("crashed", message), (), ShrunkFault((), "crashed", "", (), message, number)
            )
            raise


class FuzzResult(Struct, frozen=True):
    """All answers together: the number of cases of each status, and faults with the number of cases that have them."""

    job: FuzzJob
    counts: dict[str, int]
    faults: dict[tuple[Any, ...], tuple[ShrunkFault, int]]

    def take(self, answer: CaseAnswer) -> None:
        """Counts an answer."""
        self.counts[answer.outcome.status] = self.counts.get(answer.outcome.status, 0) + 1
        if (fault := answer.fault) is not None:
            known, times = self.faults.get(fault.key, (fault, 0))
            ahead = [f for f in (known, fault) if f.plan is not None] or [known]
            self.faults[fault.key] = min(ahead, key=lambda f: (f.size, f.number)), times + 1

    @property
    def cases(self) -> int:
        return sum(self.counts.values())
