"""Ctrl-C, SIGTERM and SIGHUP as a flag, so that nothing is torn that is being written; and what wakes the driver up."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class Interrupts:
    """`asked` once a signal has come; a second one does not wait. `reader` is ready when something has happened."""

    def __init__(self) -> None:
        self.asked = False
        self.reader, self.writer = os.pipe()
        for end in (self.reader, self.writer):
            os.set_blocking(end, False)

    def wake(self) -> None:
        """Makes `reader` ready; from any thread."""
        with suppress(OSError):  # full: it is ready, or closed: nobody waits
            os.write(self.writer, b"\n")

    def awake(self) -> None:
        """It is not ready any more."""
        with suppress(OSError):
            while os.read(self.reader, 4096):
                pass

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self.wake()

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Signals are noted under it; where they are ignored, or not ours to handle, they stay as they are."""
        before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
                if signal.getsignal(number) != signal.SIG_IGN:
                    before[number] = signal.signal(number, self._note)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            writer, self.writer = self.writer, -1
            os.close(writer)
            os.close(self.reader)
