"""onnxruntime's process forked from one that has imported it: a child of a server starts none of its own.

What it does is the same as when it is started (`runtime_worker`), apart from the check as there.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import IO

from gradcheck_cli.checks.forward.runtime import NAME, WORKER

_STREAMS = 3  # stdin, stdout, stderr


class Forked:
    """A forked process as `subprocess.Popen` would show it."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """How it ended, if it did."""
        return self._reap(os.WNOHANG)

    def wait(self) -> int | None:
        """How it ended, once it did."""
        return self._reap(0)

    def kill(self) -> None:
        """Ends it."""
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
        _forked_answer(to_read, to_write)
    os.close(to_read)
    os.close(to_write)
    WORKER.process = Forked(pid, os.fdopen(questions, "wb"), os.fdopen(answers, "rb"))  # type: ignore[assignment]
    WORKER.owner = os.getpid()


def _forked_answer(questions: int, answers: int) -> None:
    """All that the forked process does."""
    from gradcheck_cli.checks.forward.runtime_process import main

    try:
        os.dup2(questions, 0)
        os.dup2(answers, 1)
        os.closerange(_STREAMS, os.sysconf("SC_OPEN_MAX"))
        sys.stdin = os.fdopen(0)
        main()
    finally:
        os._exit(0)
