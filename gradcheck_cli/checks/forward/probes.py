"""onnxruntime in place of our own forward run: y for a stack of values of x, by one run for each.

The file is run as onnxruntime runs it by default, optimized, in its own dtypes.  x may be an input, a parameter or an
inner tensor: it becomes an input of a copy of the model, and y an output.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.checks.forward.runtime import NAME, PATIENCE, WORKER, Late, Question, Refused, Unanswered
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import LimitError, UnsupportedError, shown
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, computing, describe
from gradcheck_cli.settings import Settings

_SECONDS = 1.0  # for the runs of one question
_BYTES = 16 << 20  # of x and y in one question
_NUMBERS = "biuf"  # kinds of dtypes that can be sent
_PREFIX = re.compile(r"^\w+: (\[ONNXRuntimeError\] : \d+ : \w+ : )?")
_SPENT = re.compile(r"bad_alloc|MemoryError|failed to allocate|out of memory", re.IGNORECASE)


class Probes:
    """Values of y at one point with feeds `fed`, for stacks of x; `tape` is our own run there in the model's dtypes."""

    def __init__(self, source: Source, tape: Tape, fed: Mapping[str, Any], x: str, y: str, settings: Settings) -> None:
        self.source, self.fed, self.x, self.y, self.settings = source, fed, x, y, settings
        self.narrow = Program(tape, [tape.named[x].name], [tape.named[y].name])
        self.seconds = 0.0  # of one run, once measured

    @property
    def name(self) -> str:
        """onnxruntime with its version, which is known after the first answer."""
        return f"{NAME} {WORKER.version}".strip()

    def values(self, stack: Array) -> Array:
        """y for each x of a stack, `(P, y_size)`; NaN where it cannot be computed."""
        question = self._question
        return np.concatenate([self._answer(question, stack[some]) for some in self._pieces(len(stack))])

    def _pieces(self, count: int) -> Iterator[slice]:
        """Slices of probes that fit into one question."""
        start = 0
        while start < count:
            stop = min(count, start + self._most())
            yield slice(start, stop)
            start = stop

    def _most(self) -> int:
        size = self._here.nbytes + self.narrow.y.nbytes
        return max(1, int(min(_SECONDS / self.seconds, _BYTES / max(size, 1)))) if self.seconds else 1

    def _answer(self, question: Question, stack: Array) -> Array:
        """y for probes that fit into one question; if that is refused, probe by probe."""
        start = time.perf_counter()
        try:
            made = self._asked(question, stack)
        except Refused:
            if len(stack) > 1:
                return np.concatenate([self._answer(question, each[None]) for each in stack])
            made = np.full((1, self.narrow.y.size), np.nan)
        self.seconds = max((time.perf_counter() - start) / len(stack), 1e-6)
        return made

    def _asked(self, question: Question, stack: Array) -> Array:
        patience = max(PATIENCE, self.settings.timeout or 0.0)
        try:
            answer = WORKER.ask(replace(question, feeds={**question.feeds, self.x: stack}), patience)
        except Refused:
            raise
        except Late as error:
            raise LimitError(f"{NAME}: {error}", code="GC601") from None
        except Unanswered as error:
            raise LimitError(f"{NAME} cannot go on: {error}", code="GC603") from None
        if self.y not in answer:
            raise UnsupportedError(f"{NAME} gives nothing for {self.y!r} that could be read.", code="GC503")
        like, made = self.narrow.y, answer[self.y]
        if made.shape != (len(stack), *like.shape):
            return np.full((len(stack), like.size), np.nan)
        return made.reshape(len(stack), -1).astype(np.float64)

    @property
    def _here(self) -> Array:
        return self.narrow.x

    @cached_property
    def _question(self) -> Question:
        """The question without its stack, after a first run at the point itself."""
        self._require()
        from gradcheck_cli.formats.onnx.file import part_of, text_format  # brings onnx

        source, path = self.source, os.path.abspath(self.source.uri)
        graph, feeds = source.graph, {**self.fed, self.x: self._here}
        whole = {*feeds} == {*graph.free_inputs} and self.y in graph.outputs and not text_format(path)
        data = b"" if whole else part_of(path, [self.y], feeds)
        fed = [f"{name} {value.shape}" for name, value in feeds.items()]  # its inputs are of these sizes
        key = "\0".join((path, source.sha256, "probes", *(() if whole else (self.y, *fed))))
        others = {name: value for name, value in feeds.items() if name != self.x}
        question = Question(
            key, path, others, [self.y], data, str(Path(path).parent), min(self.settings.jobs, 4), self.x, True
        )
        try:
            self._asked(question, self._here[None])
        except Refused as error:
            raise self._refusal(str(error)) from None
        return question

    def _refusal(self, text: str) -> LimitError | UnsupportedError:
        if _SPENT.search(text):
            return LimitError(f"{NAME} runs out of memory.", code="GC602")
        lines = _PREFIX.sub("", text).strip().splitlines() or ["it does not say why"]
        return UnsupportedError(f"{NAME} cannot run {self.source.uri}: {shown(lines[0][:200])}", code="GC502")

    def _require(self) -> None:
        """UnsupportedError for feeds that onnxruntime does not take and for random numbers."""
        for name, value in {**self.fed, self.x: self._here}.items():
            if not isinstance(value, np.ndarray) or value.dtype.kind not in _NUMBERS:
                kind = value.dtype.name if isinstance(value, np.ndarray) else "no tensor"
                raise UnsupportedError(f"{NAME} cannot be given {name!r}, which is {kind}.", code="GC503")
        if drawing := self._drawing():
            raise UnsupportedError(
                f"{drawing} draws random numbers, others here than in {NAME}. Feed what it makes: --feed NAME=VALUE",
                code="GC502",
            )

    def _drawing(self) -> str:
        """The last node before y that draws random numbers, in words; "" if there is none."""
        nodes = self.source.graph.nodes
        drawn = {step.origin for step in self.narrow.tape.steps if "rng" in step.op.schema}
        drawing = drawn.intersection(computing(nodes, {self.y} - {*self.fed}, self.fed)[0])
        return describe(max(drawing), nodes[max(drawing)]) if drawing else ""
