"""onnxruntime in a process of its own, which lives as long as this one and answers questions about models.

It serves all checks, since importing it takes longer than running a small model.  The command starts it before any
heavy import, which is why NumPy is imported late here.  If a model makes it crash, hang or run out of memory, that
becomes an `Unanswered`.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from gradcheck_cli.graph import Array, Graph
    from gradcheck_cli.op import Ops

NAME = "onnxruntime"
PATIENCE = 60.0  # seconds for one run
_LONGEST_LINE = 1 << 24
_MOST_BYTES = 4 << 30  # of one answer
_STREAMS = 3  # stdin, stdout, stderr


class Unanswered(Exception):
    """onnxruntime did not run a model; the message says why."""


class Refused(Unanswered):
    """onnxruntime raised an error for a model."""


class Late(Unanswered):
    """onnxruntime exceeded its time."""


class Question(Struct, frozen=True):
    """A model, by path or as bytes with external data in `folder`, its feeds, and the outputs to compute."""

    key: str  # equal for the same model and outputs
    path: str
    feeds: Mapping[str, Array]
    outputs: Sequence[str]
    data: bytes = b""
    folder: str = ""
    threads: int = 1
    stacked: str = ""  # the input that holds a stack of values, with one run for each; outputs are stacked too
    optimized: bool = False  # by onnxruntime's default optimizations; else the graph is run as written
    # for maps inside outputs, their "keys" in order and a "dtype"
    maps: Mapping[str, Any] = field(default_factory=dict)


class Worker(Struct):
    """The process; it answers one question at a time."""

    script: Path = field(default_factory=lambda: Path(__file__).with_name("runtime_process.py"))
    process: subprocess.Popen[bytes] | None = None
    owner: int = 0  # process id: a fork of it starts a worker of its own
    version: str = ""
    lock: Any = field(default_factory=threading.RLock)

    def start(self) -> None:
        """Starts the process if it does not run; Unanswered if that fails."""
        with self.lock:
            if self.process is not None and self.owner == os.getpid() and self.process.poll() is None:
                return
            self._forget()
            if not installed():
                raise Unanswered("it is not installed")
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-W", "ignore", str(self.script)], stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # NumPy's, which is not used for computing there
                )  # fmt: skip
            except (OSError, ValueError) as error:
                raise Unanswered(f"its process cannot be started: {error}") from None
            self.owner = os.getpid()

    def warm(self) -> None:
        """Starts the process ahead of the first question, which reports a failure."""
        with suppress(Unanswered):
            self.start()

    def ask(self, question: Question, patience: float = PATIENCE) -> dict[str, Array]:
        """Numeric outputs by name; `s[0]` is an element of an output that is a sequence."""
        with self.lock:
            self.start()
            assert self.process is not None
            late = threading.Event()
            timer = threading.Timer(patience, _give_up, (self.process, late))
            timer.daemon = True
            timer.start()
            try:
                return self._exchange(question)
            except Unanswered:
                raise
            except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
                raise self._end(late.is_set(), patience, error) from None
            except BaseException:  # its next message would still be this answer
                self.stop()
                raise
            finally:
                timer.cancel()

    def stop(self) -> None:
        """Ends the process and any question it works on."""
        if self.process is not None and self.owner == os.getpid():
            self.process.kill()
        with self.lock:  # until which another thread may have started it anew
            if self.process is not None and self.owner == os.getpid():
                self.process.kill()
                self.process.wait()
            self._forget()

    def _exchange(self, question: Question) -> dict[str, Array]:
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        import numpy as np

        from gradcheck_cli.graph.memory import left

        arrays = {name: np.ascontiguousarray(x) for name, x in question.feeds.items()}
        feeds = [{"name": name, "dtype": x.dtype.str if x.dtype.isbuiltin == 1 else f"V{x.itemsize}",
                  "shape": question.feeds[name].shape, "size": x.nbytes} for name, x in arrays.items()]  # fmt: skip
        path = question.path
        if path.startswith(("/dev/", "/proc/")):  # /dev/stdin is another file in another process
            path = os.path.realpath(path)
        request = {"key": question.key, "path": path, "folder": question.folder, "size": len(question.data),
                   "feeds": feeds, "outputs": list(question.outputs), "threads": question.threads,
                   "memory": left(), "stacked": question.stacked, "optimized": question.optimized,
                   "maps": question.maps}  # fmt: skip
        for part in (json.dumps(request).encode() + b"\n", question.data, *(x.tobytes() for x in arrays.values())):
            self.process.stdin.write(part)
        self.process.stdin.flush()
        return self._answer(self.process.stdout)

    def _answer(self, stream: IO[bytes]) -> dict[str, Array]:
        line = stream.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise EOFError("its process ended")
        answer = json.loads(line)
        self.version = str(answer["version"])[:40]
        if "error" in answer:
            raise Refused(str(answer["error"]))
        return {str(entry["name"]): _read(stream, entry) for entry in answer["outputs"]}

    def _end(self, late: bool, patience: float, error: Exception) -> Unanswered:
        """The error for a missing answer; the process has ended then."""
        process = self.process
        self.stop()
        if late:
            return Late(f"it took longer than {patience:g} s")
        code = process.returncode if process is not None else None
        return Unanswered(f"it crashed ({_spelled(code)})" if code else f"it gave no answer: {error}")

    def _forget(self) -> None:
        if self.process is not None:
            for stream in (self.process.stdin, self.process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
        self.process = None


def installed() -> bool:
    """True if onnxruntime is installed and there is a Python to run it."""
    return bool(sys.executable) and not getattr(sys, "frozen", False) and find_spec(NAME) is not None


def _give_up(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    process.kill()


def _read(stream: IO[bytes], entry: Mapping[str, Any]) -> Array:
    import numpy as np

    dtype, shape, size = np.dtype(entry["dtype"]), tuple(entry["shape"]), entry["size"]
    if dtype.kind not in "biufc" or size != math.prod(shape) * dtype.itemsize or not 0 <= size <= _MOST_BYTES:
        raise ValueError("its answer makes no sense")
    data = stream.read(size)
    if len(data) != size:
        raise EOFError("its process ended")
    return np.frombuffer(data, dtype).reshape(shape)


def _spelled(code: int | None) -> str:
    import signal

    with suppress(ValueError, TypeError):
        return signal.Signals(-(code or 0)).name
    return f"exit code {code}"


class Forked:
    """A forked process with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Exit code, or None while it runs."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int | None:
        """Exit code, once it has ended."""
        return self._reap(0)

    def kill(self) -> None:
        if self.poll() is None:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def _reap(self, how: int) -> int | None:
        if self.returncode is None:
            with suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, how)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def lend() -> None:
    """Forks the process of `WORKER`, where onnxruntime is imported and has not been asked yet."""
    if NAME not in sys.modules or WORKER.process is not None:
        return
    to_read, questions = os.pipe()
    answers, to_write = os.pipe()
    pid = os.fork()
    if not pid:
        _serve(to_read, to_write)
    os.close(to_read)
    os.close(to_write)
    WORKER.process = Forked(pid, os.fdopen(questions, "wb"), os.fdopen(answers, "rb"))  # type: ignore[assignment]
    WORKER.owner = os.getpid()


def _serve(questions: int, answers: int) -> None:
    """Answers questions in the forked process, and ends it."""
    from gradcheck_cli.checks.forward.runtime_process import main

    try:
        os.dup2(questions, 0)
        os.dup2(answers, 1)
        os.closerange(_STREAMS, os.sysconf("SC_OPEN_MAX"))
        sys.stdin = os.fdopen(0)
        main()
    finally:
        os._exit(0)


class GraphRuns:
    """Runs of graphs in memory, as the proof of a file that is written needs them."""

    def answers(
        self, data: bytes, feeds: Mapping[str, Array], outputs: Sequence[str]
    ) -> Mapping[str, Array] | str | None:
        """Outputs of a model in bytes; onnxruntime's words where it refuses it, None where it says nothing."""
        try:
            return WORKER.ask(Question(hashlib.sha256(data).hexdigest(), "", feeds, outputs, data))
        except Refused as error:
            return str(error)
        except Unanswered:
            return None

    def differing(self, data: bytes, graph: Graph, ops: Ops, feeds: Mapping[str, Array]) -> tuple[int | None, str]:
        """The first node of a graph that onnxruntime computes otherwise by more than rounding, and how.

        None, with the reason if some nodes could not be compared, where no node does.
        """
        from gradcheck_cli.checks.forward.stepwise import first_differing

        return first_differing(data, graph, ops, feeds)


@cache
def overflows() -> bool:
    """True if onnxruntime's products of uint8 and int8 are sums in 16 bits, as they are on x86 without VNNI.

    Source: onnxruntime's page on quantizing models, on U8S8 and saturation.
    """
    import numpy as np
    from onnx import helper, parser

    graph = parser.parse_graph("bytes (uint8[1,8] a, int8[8,4] b) => (int32[1,4] y) { y = MatMulInteger (a, b) }")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=8)
    feeds = {"a": np.full((1, 8), 255, np.uint8), "b": np.full((8, 4), 127, np.int8)}
    answer = GraphRuns().answers(model.SerializeToString(), feeds, ["y"])
    return isinstance(answer, dict) and bool((answer["y"] != 8 * 255 * 127).any())


def runs() -> GraphRuns | None:
    """Runs of graphs by onnxruntime, if it is installed."""
    return GraphRuns() if installed() else None


WORKER = Worker()
atexit.register(WORKER.stop)
