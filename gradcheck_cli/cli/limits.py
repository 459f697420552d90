"""Limits of one check: a time limit in this process, and checks in a process of their own.

Checks that come with limits, and those of large models, get a process.  Limits hold there whatever runs: a call that does
not return is killed, and so is one that takes too much memory.  Output, progress, bundles and exit codes are as without.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from gradcheck_cli.cli import interrupts
from gradcheck_cli.cli.resolve import dims_of
from gradcheck_cli.cli.tasks import Task, naming
from gradcheck_cli.errors import GradcheckError, LimitError, ModelError
from gradcheck_cli.formats.untrusted import is_opening
from gradcheck_cli.graph.memory import allowed, held

if TYPE_CHECKING:
    from gradcheck_cli.checks.isolation import Bounds


_AGAIN = 1e-3  # seconds after which an alarm comes again that came while a file is opened or an extension is loaded


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raises a LimitError in the block once its time is over."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
    elif hasattr(signal, "setitimer"):
        with _by_signal(seconds):
            yield
    else:
        with _by_thread(seconds):
            yield


@contextmanager
def _by_signal(seconds: float) -> Iterator[None]:
    raised = threading.Event()

    def over(_: int, frame: FrameType | None) -> None:
        if not is_opening() and not interrupts.loads_extension(frame):
            raised.set()
            raise _exceeded(seconds)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except LimitError:
        raise
    except Exception:  # where a class is made or a library calls back, what is raised comes out wrapped
        if raised.is_set():
            raise _exceeded(seconds) from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _by_thread(seconds: float) -> Iterator[None]:
    """Interrupts the main thread by a timer, as Ctrl-C would, on systems without an alarm."""
    over = threading.Event()

    def interrupt() -> None:
        over.set()
        _thread.interrupt_main()

    timer = threading.Timer(seconds, interrupt)
    timer.daemon = True
    timer.start()
    try:
        yield
    except KeyboardInterrupt:
        interrupts.heard(last=not over.is_set())
        if over.is_set():
            raise _exceeded(seconds) from None
        raise
    finally:
        timer.cancel()


def _exceeded(seconds: float) -> LimitError:
    return LimitError(f"took longer than {seconds:g} s (--timeout)")


T = TypeVar("T")
LARGE = 512 << 20  # bytes of a model that gets a process of its own
_LARGE_FILE = 128 << 20


def limits(layers: Sequence[Mapping[str, Any]]) -> tuple[float | None, int | None]:
    """The time and memory limits that were given, in layers from weak to strong."""
    return _last(layers, "timeout"), _last(layers, "memory_limit")


def bounds_of(layers: Sequence[Mapping[str, Any]], task: Task | None = None) -> Bounds | None:
    """Bounds of a process of its own, for a check with limits or the task of a large model; None where none is needed."""
    timeout, memory = limits(layers)
    large = timeout is not None or memory is not None or (task is not None and _large(task, layers))
    if not (large and hasattr(os, "fork")):
        return None
    from gradcheck_cli.checks.isolation import Bounds  # where one is needed

    return Bounds(timeout, allowed(memory))


def within(given: Mapping[str, Any], call: Callable[[], T], model: str = "") -> T:
    """The result of a call within the limits that were given, in a process of its own if there are any.

    Errors name the model, if one is given.
    """

    def limited() -> T:
        with held(allowed(given.get("memory_limit"))), time_limit(given.get("timeout")):
            return call()

    bounds = bounds_of([given])
    try:
        return limited() if bounds is None else run(limited, bounds, ask=False)
    except ModelError as error:
        raise naming(model, error) from None


def run(call: Callable[[], T], bounds: Bounds, *, ask: bool) -> T:
    """The result of a call in a process of its own; with `ask`, onnxruntime is loaded there and not here."""
    from gradcheck_cli.checks.forward.runtime import WORKER
    from gradcheck_cli.checks.isolation import run as isolated

    WORKER.stop()

    def warmed() -> T:
        if ask:
            WORKER.warm()
        return call()

    return isolated(warmed, bounds)


def _large(task: Task, layers: Sequence[Mapping[str, Any]]) -> bool:
    """True if a model will take much memory, by its file and shapes alone; one that cannot be read says so when checked."""
    with suppress(OSError):
        if os.path.getsize(task.model or task.path) > _LARGE_FILE:
            return True
    with suppress(GradcheckError, MemoryError, RecursionError, ValueError, OverflowError), held(allowed()):
        from gradcheck_cli.points.sizes import outlook

        source = task.load()
        dims = {**source.dims, **dims_of(_last(layers, "dim") or ())}
        return outlook(source.graph, dims) + _typed(_last(layers, "x_shape") or ()) > LARGE
    return False


def _last(layers: Sequence[Mapping[str, Any]], name: str) -> Any:
    """The value of the strongest layer that has one."""
    return next((layer[name] for layer in reversed(layers) if layer.get(name)), None)


def _typed(shapes: Any) -> float:
    """Bytes of inputs in shapes that were given, as text or by name."""
    total = 0.0
    for shape in shapes.values() if isinstance(shapes, Mapping) else shapes:
        size = 8.0
        for part in str(shape).rpartition(":")[2].strip("[]()").replace("x", ",").split(","):
            size *= float(part) if part.strip().isdecimal() else 1.0
        total += size
    return total
