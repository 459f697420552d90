"""Ctrl-C that is not lost: raised in the midst of a callback or of a library's look-up, Python or the library drops it.

The handler raises KeyboardInterrupt as usual, once an extension module that is being loaded has come.  If nobody has
`heard` of it after some seconds it comes again.  A second Ctrl-C of the user ends the process at once, and so does one
after its work is done.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from importlib.machinery import ExtensionFileLoader
from types import FrameType
from typing import NoReturn

_SOON, _LATER = 0.01, 3.0  # seconds: beyond a callback; in which whoever is interrupted has cleaned up
_waiting: list[threading.Timer] = []
_came: list[str] = []  # "once" after a Ctrl-C; "again" while it is brought again
_SHOW_CURSOR = "\r\x1b[2K\x1b[?25h"  # a progress bar may have hidden it
INTERRUPTED = 130


def install() -> None:
    """Takes Python's own handler over; one that somebody else has set stays."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = unraised


def heard(*, last: bool = True) -> None:
    """Says that an interrupt has arrived; `last`: the process ends because of it, and a second one ends it at once."""
    while _waiting:
        _waiting.pop().cancel()
    if not last:
        _came.clear()


def caused(error: BaseException) -> bool:
    """True for what an interrupt has become in a library, such as an error of its import, and for all before it is heard.

    Python too makes another error of it, without a cause: `from m import x` says that it expected a message.
    """
    cause = error.__cause__
    return bool(_waiting) or (cause is not None and (isinstance(cause, KeyboardInterrupt) or caused(cause)))


def done(code: int) -> None:
    """Says that all is done but for the end of the process: Ctrl-C leaves it with its exit code at once."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, lambda *_: os._exit(code))


def loads_extension(frame: FrameType | None) -> bool:
    """True while an extension module is loaded below `frame`: some crash when what they call raises there."""
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), ExtensionFileLoader):
            return True
        frame = frame.f_back
    return False


def unraised(found: sys.UnraisableHookArgs) -> None:
    """Brings an interrupt again soon that came while a callback of a weak reference ran."""
    if found.exc_type is KeyboardInterrupt:
        _again(_SOON)
    else:
        sys.__unraisablehook__(found)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _came == ["once"]:
        _leave()
    _came[:] = ["once"]
    heard()
    if loads_extension(frame):
        _again(_SOON)
        return
    _again(_LATER)
    raise KeyboardInterrupt


def _leave() -> NoReturn:
    """Ends the process at once; what it started ends with it."""
    with suppress(OSError, ValueError):
        os.write(2, f"{_SHOW_CURSOR if os.isatty(2) else ''}interrupted\n".encode())
    os._exit(INTERRUPTED)


def _again(seconds: float) -> None:
    timer = threading.Timer(seconds, _sent)
    timer.daemon = True
    _waiting.append(timer)
    timer.start()


def _sent() -> None:
    """Interrupts the main thread, also where it waits."""
    _came.append("again")
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    else:
        import _thread

        _thread.interrupt_main()
