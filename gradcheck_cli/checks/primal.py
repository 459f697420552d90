"""The forward run held against onnxruntime: both Jacobians come from our kernels, and a misread operator would pass.

onnxruntime runs while the gradient is compared.  How far the two may be apart is measured (`roundings`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from gradcheck_cli.checks.assemble import Pair
from gradcheck_cli.errors import GradcheckError, ModelError, UsageError
from gradcheck_cli.formats import SPEC_SUFFIXES
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, describe, is_inexact
from gradcheck_cli.op import Ops
from gradcheck_cli.peer.runtime import NAME, PATIENCE, WORKER, Question, Unanswered, installed
from gradcheck_cli.points.point import Point, in_its_dtype
from gradcheck_cli.record import Check
from gradcheck_cli.settings import Settings

_RANGE_PER_THREAD = {("com.microsoft", "DynamicQuantizeLSTM")}  # onnxruntime quantizes each thread's sequences apart
_AT_ONCE = 32  # tensors inside a model that one run gives out, when the first difference is sought


@dataclass(slots=True)
class Asked:
    """A question on its way, in a thread of its own."""

    point: Point
    question: Question
    patience: float
    answer: Mapping[str, Array] = field(default_factory=dict)
    reason: str = ""
    thread: threading.Thread | None = None

    def send(self) -> None:
        """Asks; the answer is there after `wait`."""
        self.thread = threading.Thread(target=self._ask, daemon=True)
        self.thread.start()

    def wait(self) -> None:
        """Waits for the answer."""
        if self.thread is not None:
            self.thread.join()

    def _ask(self) -> None:
        try:
            self.answer = WORKER.ask(self.question, self.patience)
        except Unanswered as error:
            self.reason = str(error)
        except Exception as error:  # a thread has nobody to tell
            self.reason = f"{type(error).__name__}: {error}"


class Primal:
    """The forward run of one model, point by point."""

    def __init__(self, source: Source, settings: Settings, ops: Ops, ys: Sequence[str]) -> None:
        self.source, self.settings, self.ops, self.ys = source, settings, ops, ys
        self.wanted = settings.forward != "internal" and is_file(source)
        self.asked: Asked | None = None
        self.reason = self._obstacle() if self.wanted else ""
        self.errors: dict[str, tuple[float, float]] = {}  # by y, absolute and relative, the largest of all points

    def ask(self, point: Point) -> None:
        """Has onnxruntime run the model at a point, unless it is known not to."""
        self.asked = None
        if not self.wanted or self.reason:
            return
        try:
            asked = Asked(point, self._question(point), min(PATIENCE, self.settings.timeout or PATIENCE))
            asked.send()
        except (Unanswered, GradcheckError, MemoryError, RuntimeError) as error:  # the latter where no thread can start
            self.reason = str(error)
        else:
            self.asked = asked

    def hear(self, pairs: Iterable[Pair]) -> None:
        """Compares what it gave; a pair whose y is something else there gets GC404 as its error."""
        if self.asked is None:
            return
        self.asked.wait()
        self.reason = self.asked.reason
        try:
            found = {y: self._disagreement(y, self.asked) for y in self.ys if y in self.asked.answer}
        except (GradcheckError, MemoryError) as error:
            found, self.reason = {}, f"our own run in the model's dtype: {error}"
        for pair in pairs:
            if pair.error is None and found.get(pair.y):
                pair.error = ModelError(found[pair.y], code="GC404")

    def record(self, check: Check) -> Check:
        """The record with what it was compared with."""
        if not self.wanted:
            return check
        errors = self.errors.get(check.gradient_of or check.y)
        if errors is None:
            reason = _first_line(self.reason or "it was not computed")
            return replace(check, forward={"compared_with": None, "reason": reason})
        other = f"{NAME} {WORKER.version}"
        return replace(check, forward={"compared_with": other, "max_abs_err": errors[0], "max_rel_err": errors[1]})

    def _obstacle(self) -> str:
        """Why it cannot be asked, as far as that is known without a point."""
        if not installed():
            return f"{NAME} is not installed"
        return "quantizers do not round here" if self.settings.straight_through else ""

    def _question(self, point: Point) -> Question:
        from gradcheck_cli.formats.onnx_part import part_of  # brings onnx

        graph, path = self.source.graph, os.path.abspath(self.source.uri)
        if point.tape.named.keys().isdisjoint(self.ys):
            raise Unanswered("nothing was computed that could be compared")
        if inner := [
            name for name in point.feeds if name not in graph.inputs
        ]:  # a file's parameters stay what they are
            raise Unanswered(f"{inner[0]!r} is given a value, and is no input")
        if opened := [n for n in graph.inputs if n.partition("[")[0] in point.tape.compounds]:
            raise Unanswered(f"input {opened[0].partition('[')[0]!r} is no tensor")
        if any("rng" in step.op.schema for step in point.tape.steps):
            raise Unanswered("it draws random numbers")
        feeds = narrowed(self.source, point)
        if empty := [
            name for name, value in feeds.items() if not value.size
        ]:  # its kernels may leave results unwritten
            raise Unanswered(f"input {empty[0]!r} has no entries")
        whole = {*self.ys} <= {*graph.outputs} and {*graph.free_inputs} <= {*feeds}
        data = b"" if whole else part_of(path, self.ys)
        key = "\0".join((path, self.source.sha256, *(() if whole else self.ys)))
        alone = any(node.key in _RANGE_PER_THREAD for node in graph.nodes)
        threads = 1 if alone else min(self.settings.jobs, 4)
        return Question(key, path, feeds, self.ys, data, str(Path(path).parent), threads)

    def _disagreement(self, y: str, asked: Asked) -> str:
        """How y differs, and from where on; nothing where rounding explains it."""
        if y not in asked.point.tape.named:
            return ""
        from gradcheck_cli.peer.roundings import Roundings, absolute, near, relative  # only where there is an answer

        ours, theirs, found = asked.point.tape.named[y].value, asked.answer[y], ""
        if is_inexact(ours.dtype) and ours.size and not np.isfinite(ours).any():
            return ""  # GC302 says where that comes from
        if not near(ours, theirs):
            runs = Roundings(self.source, self.settings, self.ops, asked.question.feeds, tuple(self.ys))
            found, ours = runs.difference(y, theirs), runs.nearest(y, theirs)
        before = self.errors.get(y, (0.0, 0.0))
        self.errors[y] = max(before[0], absolute(ours, theirs)), max(before[1], relative(ours, theirs))
        where = self._first_difference(asked.question) if found else ""
        return f"{y!r} is not what {NAME} {WORKER.version} computes: {found}{where}" if found else ""

    def _first_difference(self, question: Question) -> str:
        """The first node whose result differs: some are looked at, then those before the first of them that differs."""
        from gradcheck_cli.peer.roundings import Roundings

        graph = self.source.graph
        runs = Roundings(self.source, self.settings, self.ops, question.feeds, graph.tensors)
        names, found = [n for node in graph.nodes for n in node.outputs if n in runs.exact.named], ""
        with suppress(Unanswered, GradcheckError, MemoryError):
            while names:
                stride = -(-len(names) // _AT_ONCE)
                looked = list(dict.fromkeys([*names[stride - 1 :: stride], names[-1]]))
                answer = self._answer(looked, question)
                first = next(((n, d) for n in looked if n in answer and (d := runs.difference(n, answer[n]))), None)
                if first is None:
                    break
                found, end = self._named(*first), names.index(first[0])
                names = names[max(0, end - stride + 1) : end]
        return found

    def _answer(self, names: Sequence[str], question: Question) -> Mapping[str, Array]:
        """What it gives for tensors inside."""
        from gradcheck_cli.formats.onnx_part import part_of

        data = part_of(question.path, names)
        return WORKER.ask(replace(question, key="\0".join((question.key, "inside", *names)), data=data, outputs=names))

    def _named(self, name: str, how: str) -> str:
        index = self.source.graph.producer(name)
        node = f"{describe(index, self.source.graph.nodes[index])}, " if index is not None else ""
        return f".\nThe first result that differs is that of {node}{name!r}: {how}"


def is_file(source: Source) -> bool:
    """The model is an ONNX file, which onnxruntime can read for itself; it knows no training steps."""
    return bool(source.sha256) and not source.step and not source.uri.lower().endswith(SPEC_SUFFIXES)


def require_runtime(source: Source, settings: Settings) -> None:
    """UsageError where onnxruntime is to evaluate the numerical side, and cannot as things are."""
    if settings.forward != NAME:
        return
    if not installed():
        raise UsageError(f"--forward {NAME} needs {NAME}: python -m pip install 'gradcheck-cli[runtime]'")
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


def narrowed(source: Source, point: Point) -> dict[str, Array]:
    """The inputs of a point in the dtypes that the file declares; Unanswered for what onnxruntime cannot be given."""
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


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else text
