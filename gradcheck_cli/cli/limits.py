"""The time that one model may take."""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradcheck_cli.errors import LimitError
from gradcheck_cli.formats.untrusted import is_opening

_AGAIN = 1e-3  # seconds after which an alarm that came in the midst of an opening comes again


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """LimitError in the code under it once the time is over."""
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
    def over(*_: Any) -> None:
        if not is_opening():
            raise _exceeded(seconds)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN)

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _by_thread(seconds: float) -> Iterator[None]:
    """Where there is no alarm: a timer interrupts the main thread as Ctrl-C would."""
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
        if over.is_set():
            raise _exceeded(seconds) from None
        raise
    finally:
        timer.cancel()


def _exceeded(seconds: float) -> LimitError:
    return LimitError(f"took longer than {seconds:g} s (--timeout)")
