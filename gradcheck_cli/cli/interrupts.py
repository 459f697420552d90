"""Ctrl-C that is not lost: raised in the midst of a callback or of a library's look-up, Python or the library drops it.

The handler raises KeyboardInterrupt as usual.  If nobody has `heard` of it after some seconds it comes again.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

_SOON, _LATER = 0.01, 3.0  # seconds: beyond a callback; in which whoever is interrupted has cleaned up
_waiting: list[threading.Timer] = []


def install() -> None:
    """Takes Python's own handler over; one that somebody else has set stays."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = unraised


def heard() -> None:
    """Says that an interrupt has arrived."""
    while _waiting:
        _waiting.pop().cancel()


def last() -> None:
    """Has the process end undisturbed: it was told to, and says so; another interrupt changes nothing."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    heard()


def unraised(found: sys.UnraisableHookArgs) -> None:
    """Brings an interrupt again soon that came while a callback of a weak reference ran."""
    if found.exc_type is KeyboardInterrupt:
        _again(_SOON)
    else:
        sys.__unraisablehook__(found)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    heard()
    _again(_LATER)
    raise KeyboardInterrupt


def _again(seconds: float) -> None:
    timer = threading.Timer(seconds, _sent)
    timer.daemon = True
    _waiting.append(timer)
    timer.start()


def _sent() -> None:
    """Interrupts the main thread, also where it waits."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        import _thread

        _thread.interrupt_main()
