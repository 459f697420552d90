"""Engines held against the reference gradients of a conformance suite.

An engine runs in a process of its own, in the environment in which it is installed; one that crashes or hangs loses the
case and is started again.  Wrong is what lies outside of the bound of a case; what an engine refuses is not wrong.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

import msgspec
import numpy as np
import onnx
from msgspec import Struct

from gradcheck_cli.checks.isolation import ending
from gradcheck_cli.errors import GradcheckError, UsageError, counted, did_you_mean, quoted
from gradcheck_cli.formats.whole_file import replacing
from gradcheck_cli.graph import Array
from gradcheck_cli.reference import engines
from gradcheck_cli.reference.suite import Dropped, case_of, confirmed, drafts, onnx_drafts
from gradcheck_cli.results.record import worst_code

Status = Literal["right", "wrong", "forward", "refused", "crashed"]
STATUSES: Mapping[Status, str] = {
    "right": "gradients within the bounds of the case",
    "wrong": "a gradient outside of them, without a word",
    "forward": "the outputs differ already: another operator than ONNX's is differentiated",
    "refused": "an error that says so",
    "crashed": "the process ended, or took too long",
}
FAULTS: tuple[Status, ...] = ("wrong", "forward", "crashed")
_CODES = {"wrong": 1, "forward": 1, "crashed": 6}
SCHEMA = "gradcheck.conformance/1"
PATIENCE = 60.0  # seconds that an engine may take for a case
START = 300.0  # and to be imported
SOON = 1.0  # and to end once its pipe is closed
_REAL = "biuf"  # kinds of dtypes
_DIGITS = re.compile(r"\d+")


class Scored(Struct, frozen=True, omit_defaults=True):
    """The outcome of one case; `error` is in units of its bound, and `x` is the input with the largest."""

    case: str
    operator: str
    status: Status
    message: str = ""
    x: str = ""
    error: float = 0.0
    pattern: str = ""
    nodes: int = 1
    seconds: float = 0.0


class Score(Struct, frozen=True):
    """The answers of one engine."""

    engine: str
    answers: tuple[Scored, ...]
    schema: str = SCHEMA

    def count(self, status: Status) -> int:
        """Number of cases with a status."""
        return sum(a.status == status for a in self.answers)

    def by_operator(self) -> Mapping[str, Counter[str]]:
        """Statuses of each operator."""
        found: dict[str, Counter[str]] = {}
        for answer in self.answers:
            found.setdefault(answer.operator, Counter())[answer.status] += 1
        return found

    def smallest(self, status: Status) -> Mapping[str, Scored]:
        """The case of the fewest nodes in which an operator has a status."""
        found: dict[str, Scored] = {}
        for answer in sorted((a for a in self.answers if a.status == status), key=lambda a: (a.nodes, a.case)):
            found.setdefault(answer.operator, answer)
        return found

    def reasons(self) -> list[tuple[str, int]]:
        """The messages of refusals with their numbers, the most frequent first; those that differ in digits are one."""
        said = [answer.message for answer in self.answers if answer.status == "refused"]
        first: dict[str, str] = {}
        for message in said:
            first.setdefault(_DIGITS.sub("0", message), message)
        return [(first[key], n) for key, n in Counter(_DIGITS.sub("0", message) for message in said).most_common()]

    @staticmethod
    def read(path: Path) -> Score:
        """The score in a file; UsageError if it holds none."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=Score)
        except (OSError, msgspec.MsgspecError) as error:
            raise UsageError(f"{path} holds no score: {error}") from error

    def write(self, path: Path) -> None:
        """The score as JSON."""
        with replacing(path) as file:
            file.write(msgspec.json.format(msgspec.json.encode(self)) + b"\n")


def exit_code(counts: Mapping[Any, int]) -> int:
    """The exit code for numbers of cases by status: that of the worst fault, 7 if nothing is right."""
    codes = {code for status, code in _CODES.items() if counts.get(status)}
    return worst_code(codes or {0 if counts.get("right") else 7})


class EngineAnswer(Struct, frozen=True):
    """The line that an engine's process writes for a case; its arrays are in a file."""

    seconds: float
    refused: str
    xs: tuple[str, ...] = ()  # inputs with a gradient
    crashed: str = ""  # in place of a line: how the process came to its end


def write(root: Path, told: Callable[[str, str], None], only: Sequence[str] = ()) -> int:
    """Writes all cases, or those of some operators; returns their number.  `told` gets each name, and why it makes none."""
    every, count = [*drafts(), *onnx_drafts()], 0
    known = {draft.operator for draft in every}
    for name in only:
        if name not in known:
            raise UsageError(f"there are models of no operator {name!r}.{did_you_mean(name, known)}")
    for draft in (draft for draft in every if not only or draft.operator in only):
        try:
            case = case_of(draft, confirmed)
        except (Dropped, GradcheckError) as reason:
            told(draft.name, str(reason) if isinstance(reason, Dropped) else f"it does not run: {reason}")
            continue
        try:
            case.write(root)
        except OSError as error:
            raise UsageError(f"{error.filename or root} cannot be written: {error.strerror or error}.") from error
        told(draft.name, "")
        count += 1
    return count


@contextmanager
def _whole(folder: Path) -> Iterator[None]:
    """UsageError where a file of a case is missing or damaged: it would count as a fault of the engine."""
    try:
        yield
    except Exception as error:  # a damaged file may give any
        again = f"Write it again: gradcheck conformance write {quoted(str(folder.parent))}"
        raise UsageError(f"the case {folder} cannot be read: {error}. {again}") from error


def operator_of(folder: Path) -> str:
    """The operator that a case is about."""
    with _whole(folder):
        return str(json.loads((folder / "case.json").read_text())["operator"])


def _tried(folder: Path) -> Path:
    """A case of which every file can be read."""
    with _whole(folder):
        bounds = json.loads((folder / "case.json").read_text())["bounds"]
        graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
        ins, outs = ([v.name for v in values] for values in (graph.input, graph.output))
        outputs = engines.tensors(folder, "output", outs)
        floats = [n for n, value in outputs.items() if value.dtype.kind == "f"]
        for kind, every, names in (
            ("input", ins, ins), ("output", outs, outs), ("gradient", ins, bounds), ("cotangent", outs, floats),
        ):  # fmt: skip
            if lost := sorted({*names} - engines.tensors(folder, kind, every).keys()):
                raise ValueError(f"there is no {kind} for {lost[0]!r}")
    return folder


def cases_in(root: Path, only: Sequence[str] = ()) -> list[Path]:
    """The folders of cases, or those of some operators; UsageError where there are none, or one is damaged."""
    found = sorted(path.parent for path in root.glob("*/case.json"))
    if not found:
        raise UsageError(f"{root} holds no cases. Write them: gradcheck conformance write {root}")
    chosen = [folder for folder in found if not only or operator_of(folder) in only]
    if not chosen:
        raise UsageError(f"{root} has no case of {', '.join(only)}.{did_you_mean(only[0], {*map(operator_of, found)})}")
    return [*map(_tried, chosen)]


def run(name: str, folders: Sequence[Path], python: str, patience: float = PATIENCE) -> Score:
    """The score of an engine that `python` can import."""
    return Score(name, tuple(answers(name, folders, python, patience)))


def answers(name: str, folders: Sequence[Path], python: str, patience: float = PATIENCE) -> Iterator[Scored]:
    """The answers of which a score is made, one after the other."""
    with tempfile.TemporaryDirectory(prefix="gradcheck-") as out:
        for folder, said in _said(name, folders, python, Path(out), patience):
            yield judged(folder, said, Path(out))


def _said(
    name: str, folders: Sequence[Path], python: str, out: Path, patience: float
) -> Iterator[tuple[Path, EngineAnswer]]:
    """The answers of the engine, case by case; it is started again where it crashes or hangs."""
    left = list(folders)
    while left:
        with Runner(name, python, out) as worker:
            if worker.heard(START) is None:
                raise UsageError(f"engine {name!r} does not start in {python}: {worker.complaint()}")
            for folder in tuple(left):
                said = worker.ask(folder, patience)
                left.remove(folder)
                yield folder, said
                if said.crashed:
                    break


class Runner:
    """A process that runs an engine."""

    def __init__(self, name: str, python: str, out: Path) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONSAFEPATH": "1"}
        command = [python, str(Path(engines.__file__)), name, str(out)]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, env=env,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self.errors.close()
            raise UsageError(f"{python} cannot be run: {error.strerror}") from error

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self.process.communicate()
        self.errors.close()

    def _kill(self) -> None:
        """Kills the process, and those of its own that it leaves: they hold its pipes open."""
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def ask(self, folder: Path, patience: float) -> EngineAnswer:
        """The engine's answer, or how it ended or that it takes longer."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(f"{folder.absolute()}\n".encode())
            self.process.stdin.flush()
        line = self.heard(patience)
        if line is None:
            return EngineAnswer(patience, "", crashed=self._end(patience))
        try:
            return msgspec.json.decode(line, type=EngineAnswer)
        except msgspec.MsgspecError as error:
            return EngineAnswer(0.0, "", crashed=f"its answer cannot be read: {error}")

    def _end(self, patience: float) -> str:
        """The end of the process in words, with the last line that it wrote to stderr."""
        try:
            code = self.process.wait(SOON)
        except subprocess.TimeoutExpired:
            return f"it took longer than {patience:g} s"
        return f"its process {ending(code)}; on stderr: {self.complaint()}"

    def heard(self, patience: float) -> bytes | None:
        """The next line of the process; None if it ends or takes longer."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self.process.stdout, selectors.EVENT_READ)
            if not ready.select(patience):
                return None
        line = self.process.stdout.readline()
        return line or None

    def complaint(self) -> str:
        """The last line that the process wrote to stderr."""
        self._kill()
        self.process.wait()
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else "it said nothing"


def _arrays(path: Path, xs: Iterable[str], asked: Container[str]) -> tuple[dict[str, Array], dict[str, Array]]:
    """The outputs and gradients that an engine wrote; UsageError if they are none, or nobody asked for them."""
    if strange := [x for x in xs if x not in asked]:
        raise UsageError(f"a gradient by {strange[0]!r}, which was not asked for")
    try:
        with np.load(path, allow_pickle=False) as made:
            arrays = {name: made[name] for name in made.files}
    except (OSError, ValueError, BadZipFile) as error:
        raise UsageError(f"no arrays: {error}") from error
    for name, value in arrays.items():
        if name.startswith("x/") and value.dtype.kind not in _REAL:
            raise UsageError(f"the gradient by {name[2:]!r} is no array of real numbers, but of {value.dtype}")
    outputs, gradients = ({n[2:]: v for n, v in arrays.items() if n.startswith(kind)} for kind in ("y/", "x/"))
    return outputs, gradients


def judged(folder: Path, said: EngineAnswer, out: Path) -> Scored:
    """The answer of a case, from what an engine said and wrote."""
    known = json.loads((folder / "case.json").read_text())
    graph = onnx.load(folder / "model.onnx", load_external_data=False).graph
    answer = Scored(folder.name, known["operator"], "crashed", nodes=len(graph.node))
    if said.crashed:
        return msgspec.structs.replace(answer, message=said.crashed)
    answer = msgspec.structs.replace(answer, seconds=round(said.seconds, 4))
    if said.refused:
        return msgspec.structs.replace(answer, status="refused", message=said.refused)
    references = engines.tensors(folder, "gradient", (i.name for i in graph.input))
    try:
        outputs, given = _arrays(out / f"{folder.name}.npz", said.xs, references)
    except UsageError as fault:
        return msgspec.structs.replace(answer, message=str(fault))
    if not said.xs:
        return msgspec.structs.replace(answer, status="refused", message="it gives no gradient")
    found = [_worst(x, given.get(x), references[x], known["bounds"][x]) for x in said.xs]
    x, error, pattern = max(found, key=lambda each: each[1])
    if error <= 1:
        return msgspec.structs.replace(answer, status="right", x=x, error=error)
    wrong = forward_differs(engines.tensors(folder, "output", (o.name for o in graph.output)), outputs)
    message = f"output {wrong!r} differs" if wrong else f"gradient of {x!r}: {pattern}"
    status: Status = "forward" if wrong else "wrong"
    return msgspec.structs.replace(
        answer, status=status, message=message, x=x, error=min(error, 1e300), pattern=pattern
    )


def _worst(x: str, given: Array | None, wanted: Array, bound: float) -> tuple[str, float, str]:
    """The largest error of a gradient in units of its bound, and what it looks like."""
    if given is None:
        given = np.zeros_like(wanted)
    if given.shape != wanted.shape:
        return x, float("inf"), f"shape {list(given.shape)} instead of {list(wanted.shape)}"
    if not np.isfinite(given).all():
        return x, float("inf"), "not finite"
    gap = np.abs(np.asarray(given, np.float64) - wanted)
    return x, float(np.max(gap, initial=0.0)) / bound, _pattern(np.asarray(given, np.float64), wanted, bound)


def _pattern(given: Array, wanted: Array, bound: float) -> str:
    """A description of a wrong gradient beside the right one."""
    off = np.abs(given - wanted) > bound
    what = f"{int(off.sum())} of {counted(off.size, 'entry')}"
    if not off.any():
        return ""
    at = np.unravel_index(int(np.argmax(np.abs(given - wanted))), off.shape) if off.ndim else ()
    numbers = f"{float(given[at]):.6g} instead of {float(wanted[at]):.6g} at {[int(i) for i in at]}"
    if not given.any():
        return f"zero, {what}; {numbers}"
    share = float(np.sum(given * wanted) / np.sum(wanted * wanted)) if wanted.any() else 0.0
    if np.all(np.abs(given - share * wanted) <= bound * max(abs(share), 1.0)):
        return f"{share:.6g} times the right one; {numbers}"
    return f"{what}; {numbers}"


def forward_differs(wanted: Mapping[str, Array], given: Mapping[str, Array], share: float = 1e-3) -> str:
    """The first output that is not what it should be, but for a share of it; "" if all are."""
    for name, value in wanted.items():
        if name not in given or value.dtype.kind != "f":
            continue
        scale = share * max(float(np.max(np.abs(value), initial=0.0)), 1e-3)
        made = given[name]
        alike = made.shape == value.shape and made.dtype.kind in _REAL
        if not (alike and np.allclose(made, value, rtol=share, atol=scale, equal_nan=True)):
            return name
    return ""


def table(scores: Iterable[Score]) -> tuple[list[str], list[tuple[str, list[Counter[str]]]]]:
    """The engines, and for each operator the statuses of each engine."""
    scores = list(scores)
    each = [score.by_operator() for score in scores]
    operators = sorted({name for one in each for name in one}, key=str.lower)
    return [s.engine for s in scores], [(name, [one.get(name, Counter()) for one in each]) for name in operators]


def plain(score: Score) -> Any:
    """The score as JSON data."""
    return msgspec.to_builtins(score)


def publish(scores: Sequence[Score], path: Path) -> None:
    """Writes the scoreboard as a page, or the badge of the first score, by the suffix of the file."""
    if path.suffix not in (".html", ".svg"):
        raise UsageError(f"{path} ends with neither .html nor .svg")
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise UsageError("a scoreboard needs jinja2: python -m pip install jinja2") from None
    pages = Environment(
        loader=PackageLoader("gradcheck_cli.reference", "."), autoescape=True, undefined=StrictUndefined
    )
    engine_names, rows = table(scores)
    faults = [(s.engine, sorted((a for status in FAULTS for a in s.smallest(status).values()),
                                key=lambda a: (a.operator, a.case))) for s in scores]  # fmt: skip
    text = pages.get_template(f"scoreboard{path.suffix}").render(
        scores=scores, statuses=STATUSES, engines=engine_names, rows=rows, faults=faults, total=len(scores[0].answers)
    )  # fmt: skip
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
