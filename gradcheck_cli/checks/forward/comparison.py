"""The forward run compared with onnxruntime's: both Jacobians come from our kernels, and would agree on a misread
operator.

onnxruntime runs in the background while the gradient is compared.  The rounding error of the model is measured
(`stepwise`); where results differ by more than a few roundings, every node is run on its own with operands that
onnxruntime computed.  A difference stands in the record beside the verdict on the gradient, which it does
not change. Outputs that ship with a model are compared as well.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field, structs

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.checks.forward.runtime import (
    NAME,
    PATIENCE,
    WORKER,
    Question,
    Refused,
    Unanswered,
    installed,
    overflows,
)
from gradcheck_cli.errors import GradcheckError, UsageError, counted, plural
from gradcheck_cli.formats import SPEC_SUFFIXES
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Graph, describe, is_inexact
from gradcheck_cli.graph.containers import Map, Optional
from gradcheck_cli.graph.containers import Sequence as Several
from gradcheck_cli.op import Ops
from gradcheck_cli.points.elements import outermost
from gradcheck_cli.points.point import Point, in_its_dtype
from gradcheck_cli.points.test_data import Expected
from gradcheck_cli.results.record import FORWARD, Check, FirstNode, Forward
from gradcheck_cli.settings import Settings
from gradcheck_cli.verdict.agreement import difference, farthest, sizes

if TYPE_CHECKING:
    from gradcheck_cli.checks.forward.stepwise import Differing, Roundings


CODE = "GC404"
_RANGE_PER_THREAD = {("com.microsoft", "DynamicQuantizeLSTM")}  # onnxruntime quantizes by thread
_BYTE_PRODUCTS = {  # onnxruntime sums them up in 16 bits on some processors
    *(("", op) for op in ("MatMulInteger", "QLinearMatMul", "ConvInteger", "QLinearConv")),
    *(("com.microsoft", op) for op in ("DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat",
                                       "QAttention", "QGemm", "QLinearConv")),
}  # fmt: skip
_SMALL = 256 << 20  # bytes of a model, and of its results, up to which a small difference is followed node by node
_FEW, _LITTLE = 100, 8 << 20  # nodes, and bytes, up to which nodes are compared once in any case
_NOT_COMPARED: Forward = {
    "compared_with": None, "agrees": None, "code": None, "max_abs_err": None, "max_rel_err": None, "bound": None,
    "first_node": None, "refused": False,
}  # fmt: skip


def require_runtime(source: Source, settings: Settings) -> None:
    """UsageError where onnxruntime is asked to evaluate the numerical side but cannot."""
    if settings.forward != NAME:
        return
    if not installed():
        raise UsageError(f"--forward {NAME} needs {NAME}: python -m pip install {NAME}")
    if not is_file(source):
        raise UsageError(f"--forward {NAME} runs ONNX files; {source.uri} is none.")
    for said, option in (
        (settings.method == "complex-step", "--method complex-step, which its kernels do not let through"),
        (settings.second_order, "--second-order: the file does not compute its own gradient"),
        (settings.straight_through, "--straight-through: its quantizers round"),
        (settings.compat is not None, f"--compat {settings.compat}"),
    ):
        if said:
            raise UsageError(f"--forward {NAME} does not go together with {option}.")


def is_file(source: Source) -> bool:
    """True for an ONNX file that onnxruntime can read itself, other than a training step."""
    return bool(source.sha256) and not source.step and not source.uri.lower().endswith(SPEC_SUFFIXES)


class RuntimeComparison:
    """The forward comparison of one model, point by point."""

    def __init__(self, source: Source, settings: Settings, ops: Ops, ys: Sequence[str]) -> None:
        self.source, self.settings, self.ops, self.ys = source, settings, ops, ys
        self.wanted = settings.forward != "internal" and is_file(source)
        self.asked: PendingQuestion | None = None
        # the reason why onnxruntime cannot run the model, as far as it does not depend on a point
        self.reason = "" if not self.wanted or installed() else f"{NAME} is not installed"
        if self.wanted and settings.straight_through:
            self.reason = self.reason or "quantizers do not round here"
        self.held = {y: ForwardResult(y) for y in ys}
        self.looked_once = False  # node by node, whatever the whole run gives

    def ask(self, point: Point) -> None:
        """Starts onnxruntime's run at a point, and compares our run with shipped outputs."""
        self._hold_shipped(point)
        self.asked = None
        if not self.wanted or self.reason:
            return
        try:
            patience = min(PATIENCE, self.settings.timeout or PATIENCE)
            asked = PendingQuestion(point, self._question(point), patience)
            asked.send()
        except (Unanswered, GradcheckError, MemoryError, RuntimeError) as error:  # the latter where no thread can start
            self.reason = str(error)
        else:
            self.asked = asked

    def hear(self) -> None:
        """Compares onnxruntime's results."""
        if self.asked is None:
            return
        asked, start = self.asked, time.monotonic()
        asked.wait()
        if asked.reason:
            self.reason = f"{NAME} {WORKER.version}: {asked.reason}" if asked.refused else asked.reason
            for held in self.held.values():
                held.refused = held.refused or asked.refused
            return
        try:
            self._compare(asked, start + asked.patience)
        except (GradcheckError, MemoryError) as error:
            self.reason = f"our own run in the model's dtype: {error}"

    def record(self, check: Check) -> Check:
        """The record with the forward comparison of its y."""
        held = self.held.get(check.gradient_of or check.y)
        if held is None or not (self.wanted or held.compared):
            return check
        forward = held.record(self.source.graph, self.reason or "it was not computed")
        gates = (*check.gates, FORWARD) if forward["agrees"] is False else check.gates
        notes = (*check.notes, held.lost) if held.lost and forward["agrees"] else check.notes
        return replace(check, forward=forward, gates=gates, notes=notes)

    def _hold_shipped(self, point: Point) -> None:
        """Compares the run with the outputs that ship with the model."""
        if point.expected is None:
            return
        drawn = drawn_behind(self.source, point)
        for y, held in self.held.items():
            if y in point.expected.outputs and y in point.tape.named and y not in drawn:
                held.shipped(point.expected, point.tape, y)

    def _question(self, point: Point) -> Question:
        from gradcheck_cli.formats.onnx.file import part_of, text_format  # brings onnx

        graph, path = self.source.graph, os.path.abspath(self.source.uri)
        if point.tape.named.keys().isdisjoint(self.ys):
            raise Unanswered("nothing was computed that could be compared")
        if inner := [name for name in point.feeds if name not in graph.inputs]:
            raise Unanswered(f"{inner[0]!r} is given a value, and is no input")
        if opened := [n for n in graph.inputs if n.partition("[")[0] in point.tape.containers]:
            raise Unanswered(f"input {opened[0].partition('[')[0]!r} is no tensor")
        asked = self._comparable(point)
        feeds = narrowed(self.source, point)
        # onnxruntime's kernels may leave results of empty inputs unwritten
        if empty := [name for name, value in feeds.items() if not value.size]:
            raise Unanswered(f"input {empty[0]!r} has no entries")
        outputs = list(dict.fromkeys(outermost(graph, asked)))
        whole = {*outputs} <= {*graph.outputs} and {*graph.free_inputs} <= {*feeds}
        data = b"" if whole and not text_format(path) else part_of(path, outputs)  # onnxruntime reads no text
        key = "\0".join((path, self.source.sha256, *(() if whole else outputs)))
        maps = {k: v for name in outputs if name in point.tape.containers
                for k, v in _maps(name, point.tape.containers[name])}  # fmt: skip
        alone = any(node.key in _RANGE_PER_THREAD for node in graph.nodes)
        threads = 1 if alone else min(self.settings.jobs, 4)
        return Question(key, path, feeds, outputs, data, str(Path(path).parent), threads, maps=maps)

    def _comparable(self, point: Point) -> list[str]:
        """The ys that do not depend on random numbers; Unanswered if there are none."""
        drawn, graph = drawn_behind(self.source, point), self.source.graph
        kept = [y for y in self.ys if y not in drawn]
        for y in drawn.intersection(self.held):
            index = next(i for i in sorted(point.tape.drawing) if y in graph.reached_from(graph.nodes[i].outputs))
            self.held[y].unfit = f"{describe(index, graph.nodes[index])} draws random numbers"
        if not kept:
            raise Unanswered(self.held[self.ys[0]].unfit)
        return kept

    def _compare(self, asked: PendingQuestion, until: float) -> None:
        """Compares every y; node by node where the whole run leaves something open, and once if that is cheap."""
        from gradcheck_cli.checks.forward.stepwise import CLOSE, Roundings, near

        feeds, tape = asked.question.feeds, asked.point.tape
        ys = [y for y in self.ys if y in asked.answer and _finite(tape, y) and not self.held[y].unfit]
        runs = Roundings(self.source.graph, self.settings.seed, self.ops, feeds, tuple(ys))
        size = max(os.path.getsize(self.source.uri), sum(var.like.nbytes for var in tape.named.values()))
        open_ = [y for y in ys if not self._settled(runs, y, asked, size)]
        self.looked_once = True
        looked = self._looked(asked, open_, until) if open_ else None
        for y in ys:
            theirs, held = asked.answer[y], self.held[y]
            held.lost = held.lost or _lost(y, tape.named[y].value, theirs)
            if looked is not None and y in open_ and (unfit := looked.overflow(y, self.source.graph)):
                held.unfit = unfit
                continue
            ours = tape.named[y].value
            if runs.known(y) and (y in open_ or not near(ours, theirs, CLOSE)):
                ours = runs.nearest(y, theirs)
            held.compare(f"{NAME} {WORKER.version}", *farthest(ours, theirs, sizes(ours)))
            held.bound = max(held.bound, runs.bound(y, theirs, quick=y not in open_))
            if looked is not None and y in open_:
                looked.judge(held, runs, theirs, self.source)

    def _settled(self, runs: Roundings, y: str, asked: PendingQuestion, size: int) -> bool:
        """True if a y needs no look at single nodes: it agrees closely, or differs a little in a large model.

        `size` are the bytes of the file or of the run, whichever is larger.
        """
        from gradcheck_cli.checks.forward.stepwise import CLOSE, near

        ours, theirs = asked.point.tape.named[y].value, asked.answer[y]
        large = size > _SMALL  # a comparison node by node would take long
        cheap = len(self.source.graph.nodes) <= _FEW and size <= _LITTLE
        wanted = theirs.dtype == np.float16 or (not self.looked_once and cheap)
        if wanted and not large and runs.known(y):
            return False  # rounding of y hides more than rounding of a single node
        if near(ours, theirs, CLOSE) or not runs.known(y) or runs.close(y, theirs):
            return True
        return large and runs.small(y, theirs)

    def _looked(self, asked: PendingQuestion, ys: Sequence[str], until: float) -> Looked:
        """Result of comparing every node that some ys need."""
        from gradcheck_cli.checks.forward.stepwise import Stepwise
        from gradcheck_cli.formats.onnx.file import computed_in

        graph, named = self.source.graph, asked.point.tape.named
        outer = {*outermost(graph, ys)}
        outputs = [name for name in asked.question.outputs if name in outer]
        question, found = structs.replace(asked.question, outputs=outputs), Looked()
        step = Stepwise(graph, self.ops, self.settings.seed, question, asked.question.feeds, ys)
        try:
            here = computed_in(question.path)
            step.known.update({y: asked.answer[y] for y in ys if y not in here})
            likes = {n: named[n].value for n in named.keys() & here & graph.needed_for(ys)}
            for each in step.differing(likes, until):
                found.differing.append(each)
        except (Unanswered, GradcheckError, MemoryError) as error:
            found.reason = str(error)
        found.unseen = {n for i in step.unseen for n in graph.nodes[i].outputs}
        return found


class PendingQuestion(Struct):
    """A question to onnxruntime that is answered in a thread of its own."""

    point: Point
    question: Question
    patience: float
    answer: Mapping[str, Array] = field(default_factory=dict)
    reason: str = ""
    refused: bool = False
    thread: threading.Thread | None = None

    def send(self) -> None:
        """Starts the thread; the answer is there after `wait`."""
        self.thread = threading.Thread(target=self._ask, daemon=True)
        self.thread.start()

    def wait(self) -> None:
        if self.thread is not None:
            self.thread.join()

    def _ask(self) -> None:
        try:
            self.answer = WORKER.ask(self.question, self.patience)
        except Unanswered as error:
            self.reason, self.refused = str(error), isinstance(error, Refused)
        except Exception as error:  # an exception would end with the thread
            self.reason = f"{type(error).__name__}: {error}"


def narrowed(source: Source, point: Point) -> dict[str, Array]:
    """The inputs of a point in the file's dtypes; Unanswered for those that onnxruntime does not take."""
    found = {}
    for name in source.graph.inputs:
        declared = source.graph.types.get(name)
        if name in point.feeds:
            value = in_its_dtype(source.graph, name, point.feeds[name])
            if not isinstance(value, np.ndarray) or declared is None or declared.dtype is None:
                raise Unanswered(f"input {name!r} is no tensor of a known type")
            if value.dtype.kind not in "biufc" or value.dtype != declared.dtype:
                raise Unanswered(f"input {name!r} is {value.dtype.name}")
            found[name] = value
    return found


def drawn_behind(source: Source, point: Point) -> set[str]:
    """Tensors that depend on random numbers drawn in the model."""
    graph = source.graph
    nodes = [graph.nodes[i] for i in point.tape.drawing if 0 <= i < len(graph.nodes)]
    return graph.reached_from([n for node in nodes for n in node.outputs if n]) if nodes else set()


def _maps(name: str, value: Any) -> Any:
    """The maps inside a value by the names of their values, with the order of their keys."""
    match value:
        case Map(keys, values):
            dtype = np.dtype(np.float32) if values.dtype == np.float64 else values.dtype
            yield f"{name}[0]", {"keys": list(keys), "dtype": dtype.str}
        case Several(items):
            for index, item in enumerate(items):
                yield from _maps(f"{name}[{index}]", item)
        case Optional(content) if content is not None:
            yield from _maps(f"{name}[0]", content)


def _finite(tape: Tape, y: str) -> bool:
    """True if a tensor was computed and is not NaN or infinite everywhere, which GC302 reports."""
    if y not in tape.named:
        return False
    value = tape.named[y].value
    return not value.size or not is_inexact(value.dtype) or bool(np.isfinite(value).any())


def _lost(y: str, ours: Array, theirs: Array) -> str:
    """Sentence on entries of a y that are finite here and not in the dtype of the model; "" if there are none."""
    if ours.shape != theirs.shape or not is_inexact(theirs.dtype):
        return ""
    lost, dtype = int(np.sum(np.isfinite(ours) & ~np.isfinite(theirs))), theirs.dtype.name
    told = f"{lost} of {counted(ours.size, 'entry')} of {y!r} {plural(lost, 'is', 'are')} not finite in {dtype}"
    told += f", in which {NAME} computes; --dtype model says what is left of the gradient there"
    return told if lost else ""


class Looked(Struct):
    """Nodes that differ on their own; results that could not be compared, or the reason why the comparison stopped."""

    differing: list[Differing] = field(default_factory=list)
    unseen: set[str] = field(default_factory=set)
    reason: str = ""

    def overflow(self, y: str, graph: Graph) -> str:
        """The reason why a y tells nothing: all that differs before it are sums of bytes that overflow there; or ""."""
        before = [d.index for d in self._before(y, graph)]
        if not before or any(graph.nodes[i].key not in _BYTE_PRODUCTS for i in before) or not overflows():
            return ""
        where = describe(before[0], graph.nodes[before[0]])
        return f"{where}: {NAME}'s products of uint8 and int8 overflow on this processor"

    def _before(self, y: str, graph: Graph) -> list[Differing]:
        """The nodes that differ and that a y needs."""
        needed = graph.needed_for([y])
        return [d for d in self.differing if not needed.isdisjoint(graph.nodes[d.index].outputs)]

    def judge(self, held: ForwardResult, runs: Roundings, theirs: Array, source: Source) -> None:
        """Decides for a y whether it differs, and at which node that begins."""
        from gradcheck_cli.checks.forward.stepwise import slack

        graph, y = source.graph, held.y
        needed = graph.needed_for([y])
        first = min(
            self._before(y, graph),
            key=lambda d: graph.nodes[d.index].key in _BYTE_PRODUCTS and overflows(),
            default=None,
        )
        how = runs.difference(y, theirs)
        if first is not None:
            ours = runs.nearest(y, theirs)
            how = how or difference(ours, theirs, slack(ours, theirs, 0.0))
            told = f"is not what {NAME} {WORKER.version} computes: {how}" if how else "hides what differs on its way"
            node = f"{describe(first.index, graph.nodes[first.index])}, {first.name!r}"
            held.differ(f"{y!r} {told}.\nThe first result that differs is that of {node}: {first.how}", first)
        elif how and (self.reason or not needed.isdisjoint(self.unseen)):
            held.differ(f"{y!r} is not what {NAME} {WORKER.version} computes: {how}")
        elif how:
            held.said = "rounding grows on the way: each node computes the same from the same operands"


class ForwardResult(Struct):
    """One y over all points: the runs it was compared with, the largest errors, and the differences if any.

    `unfit` is the reason why it is not compared, `said` a note although it agrees, `lost` one on entries that are finite
    here alone; `refused`: onnxruntime does not accept the model.
    """

    y: str
    others: list[str] = field(default_factory=list)
    errors: tuple[float, float] = (0.0, 0.0)
    bound: float = 0.0
    how: list[str] = field(default_factory=list)
    first: Differing | None = None
    said: str = ""
    lost: str = ""
    unfit: str = ""
    refused: bool = False

    @property
    def compared(self) -> bool:
        """True if it was compared with any run."""
        return bool(self.others)

    def compare(self, other: str, absolute: float, relative: float) -> None:
        """Adds the errors against another run."""
        if other not in self.others:
            self.others.append(other)
        self.errors = max(self.errors[0], absolute), max(self.errors[1], relative)

    def differ(self, how: str, first: Differing | None = None) -> None:
        """Adds a difference that rounding does not explain."""
        if not self.how or (self.first is None and first is not None):
            self.first = first
        if how not in self.how:
            self.how.append(how)

    def shipped(self, expected: Expected, tape: Tape, y: str) -> None:
        """Compares it with the output that ships with the model."""
        found = expected.comparison(tape, y)
        if found is None:
            return
        self.compare(expected.folder, found.absolute, found.relative)
        self.bound = max(self.bound, found.bound)
        if found.how:
            self.differ(found.how)

    def record(self, graph: Graph, reason: str) -> Forward:
        """The field `forward` of a record; `reason` is given if nothing was compared."""
        if not self.compared:
            return {**_NOT_COMPARED, "reason": _first_line(self.unfit or reason), "refused": self.refused}
        node = None if self.first is None else graph.nodes[self.first.index]
        first: FirstNode | None = None
        if node is not None and self.first is not None:
            first = {"node": self.first.index, "op": node.op, "name": node.name, "outputs": node.outputs}
        told = "\n".join(self.how) or self.said or (_first_line(reason) if self.refused else "")
        return {
            **_NOT_COMPARED,
            "compared_with": " and ".join(self.others), "agrees": not self.how, "code": CODE if self.how else None,
            "max_abs_err": self.errors[0], "max_rel_err": self.errors[1], "bound": self.bound,
            "first_node": first, "refused": self.refused, "reason": told,
        }  # fmt: skip


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:400] if text.strip() else text
