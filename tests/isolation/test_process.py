"""A call in a process of its own gives what it would give here, and whatever it does, it ends and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradcheck_cli.checks.isolation import Bounds, Interrupted, Stopped, run
from gradcheck_cli.errors import Diagnostic, GradcheckError, LimitError, NoGradientError, SpecError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes that fork")
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux bounds and tells memory")
MIB = 1 << 20


def raising(error: BaseException) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


def test_a_result_comes_back_whatever_its_size() -> None:
    found = run(lambda: np.arange(3_000_000.0), Bounds())
    assert np.array_equal(found, np.arange(3_000_000.0))


@pytest.mark.parametrize("error", [
    LimitError("too much", code="GC602"), NoGradientError("none", [(3, "A", "", "a")]),
    SpecError(problems=[Diagnostic("wrong", "a.yaml", 3, 4, "  x: y")]), KeyError("k"), MemoryError("m"),
    Stopped("too long", 7, code="GC601"), Interrupted(7),  # of a process inside of that process
], ids=lambda error: type(error).__name__)  # fmt: skip
def test_what_a_call_raises_is_raised_here(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        run(raising(error), Bounds())
    assert str(caught.value) == str(error)
    assert vars(caught.value) == vars(error)


def test_a_bug_keeps_its_traceback() -> None:
    def faulty() -> float:
        return 1 / 0

    with pytest.raises(ZeroDivisionError) as caught:
        run(faulty, Bounds())
    assert "in faulty" in str(caught.value.__cause__)


def test_threads_of_other_libraries_bring_no_warning() -> None:
    """Python warns of a fork beside threads, and JAX, once it is imported, of every fork."""
    code = """if True:
        import os, warnings
        from gradcheck_cli.checks.isolation import Bounds, run
        from gradcheck_cli.engine.chunks import forked
        os.register_at_fork(before=lambda: warnings.warn("os.fork() was called. JAX is multithreaded.", RuntimeWarning))
        assert run(lambda: 2, Bounds()) == 2
        assert [found() for _, found in forked(len, [range(3), range(2)], 2, {})] == [3, 2]
    """
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, check=True).stderr == b""


def test_an_error_that_cannot_be_sent_is_told() -> None:
    class Local(Exception):
        pass

    with pytest.raises(GradcheckError, match="Local: here"):
        run(raising(Local("here")), Bounds())


@pytest.mark.parametrize("name, said", [("SIGSEGV", "a segmentation fault"), ("SIGABRT", "it aborted")])
def test_a_crash_is_told(name: str, said: str) -> None:
    with pytest.raises(Stopped, match=said) as caught:
        run(lambda: os.kill(os.getpid(), getattr(signal, name)), Bounds())
    assert caught.value.code == "GC603"


def test_a_call_that_does_not_return_is_stopped() -> None:
    def stuck() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM, signal.SIGTERM])
        while True:
            time.sleep(1)

    with pytest.raises(Stopped, match=r"took longer than 0\.1 s") as caught:
        run(stuck, Bounds(timeout=0.1))
    assert caught.value.code == "GC601"
    with pytest.raises(ProcessLookupError):
        os.kill(caught.value.process, 0)


@linux
def test_memory_beyond_the_limit_is_refused_there_and_not_here() -> None:
    with pytest.raises(MemoryError):
        run(lambda: np.ones(128 * MIB).sum(), Bounds(memory=256 * MIB))
    assert run(lambda: np.ones(16 * MIB).sum(), Bounds(memory=256 * MIB)) == 16 * MIB
    assert np.ones(64 * MIB).sum() == 64 * MIB


FULL = """
from contextlib import suppress
from gradcheck_cli.checks.isolation import Bounds, run
MIB = 1 << 20
def call():
    held = []
    for size in (MIB, 1 << 12, 1 << 6):
        with suppress(MemoryError):
            while True:
                held.append(bytearray(size))
    held.extend([None] * MIB)
try:
    run(call, Bounds(memory=128 * MIB))
except BaseException as error:
    print(type(error).__name__)
"""


@linux
def test_an_error_comes_back_though_its_frames_hold_all_memory() -> None:
    """They hold what they made, down to pieces of a few bytes, and the answer needs memory too.

    In a fresh interpreter: what other tests have freed here would fill first, and the watch might see that.
    """
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "MemoryError\n"


def test_python_without_room_for_a_call_is_out_of_memory() -> None:
    def full() -> None:
        raise SystemError("error return without exception set")

    with pytest.raises(MemoryError):
        run(full, Bounds(memory=128 * MIB))
    with pytest.raises(SystemError):
        run(full, Bounds())


@linux
def test_memory_that_the_system_does_not_count_is_watched() -> None:
    import mmap

    def shared() -> None:
        kept = mmap.mmap(-1, 1024 * MIB)  # shared with children, and no data of one process
        for at in range(0, len(kept), 4096):
            kept[at] = 1
        time.sleep(60)

    with pytest.raises(Stopped, match="held more than 128 MiB") as caught:
        run(shared, Bounds(memory=128 * MIB))
    assert caught.value.code == "GC602"


@linux
def test_what_a_call_has_started_goes_with_it() -> None:
    def starting() -> int:
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid

    started = run(starting, Bounds())
    deadline = time.monotonic() + 60
    while Path(f"/proc/{started}").exists() and time.monotonic() < deadline:
        if "State:\tZ" in Path(f"/proc/{started}/status").read_text():
            break
        time.sleep(0.01)
    else:
        assert not Path(f"/proc/{started}").exists()


INTERRUPTED = """
import os, signal, time
from gradcheck_cli.checks.isolation import Bounds, Interrupted, run
signal.signal(signal.SIGINT, signal.default_int_handler)
ours = os.getpid()
{}
def call():
    {}
    time.sleep(600)
try:
    run(call, Bounds())
except Interrupted as error:
    try:
        os.kill(error.process, 0)
    except ProcessLookupError:
        print("gone")
"""


WHILE_IT_RUNS = ("", "os.kill(ours, signal.SIGINT)")
AT_ITS_START = ("os.register_at_fork(after_in_parent=lambda: os.kill(ours, signal.SIGINT))", "pass")


@pytest.mark.parametrize("sent", [WHILE_IT_RUNS, AT_ITS_START], ids=["while it runs", "when it starts"])
def test_an_interrupt_ends_it(sent: tuple[str, str]) -> None:
    script = INTERRUPTED.format(*sent)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "gone\n"


ORPHAN = """
import os, sys, time
from gradcheck_cli.checks.isolation import Bounds, run
def call():
    print(os.getpid(), flush=True)
    time.sleep(600)
run(call, Bounds())
"""


@linux
def test_it_dies_with_the_process_that_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        child = int(driver.stdout.readline())
        driver.kill()
    deadline = time.monotonic() + 60
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _alive(child)


def _alive(process: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False
