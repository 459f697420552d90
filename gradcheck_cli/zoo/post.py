"""The engine of a worker: a process beside it that runs its jobs as `engine` does on one machine, and says how they are.

It hears of jobs through a pipe and answers through it.  It ends when the pipe is closed, so with its worker, however that
ends; and when it has had nothing to do for a while.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from gradcheck_cli.zoo import engine
from gradcheck_cli.zoo.job import Job, Records

START = "import sys; from gradcheck_cli.zoo.post import serve; serve(int(sys.argv[1]))"
_IDLE = 60.0  # seconds without a job


def serve(end: int) -> None:
    """All that the process does; `end` is its end of the pipe."""
    with suppress(KeyboardInterrupt, OSError, EOFError):
        pipe = Connection(end)
        limits, work, command = pipe.recv()
        sys.argv = list(command)  # what bundles tell
        post = Post(pipe)
        engine.run(post.jobs(), limits, post.done, post, work)


class Post:
    """The near end of the pipe: jobs come out, what becomes of them goes in, under the key of the job."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.there, self._counting = 0, threading.Lock()

    def jobs(self) -> Iterator[Job]:
        """Jobs as they come, in a thread of the engine."""
        while self._is_ready():
            try:
                job: Job = self.pipe.recv()
            except (EOFError, OSError):  # the worker is gone, and its jobs are no more asked for
                os.kill(os.getpid(), signal.SIGTERM)
                return
            self._count(1)
            yield job

    def _is_ready(self) -> bool:
        """Waits for something to come; False where nothing did for long, and nothing is being done."""
        while not self.pipe.poll(_IDLE):
            if not self.there:
                return False
        return True

    def _count(self, more: int) -> None:
        with self._counting:
            self.there += more

    def done(self, job: Job, records: list[dict[str, Any]]) -> None:
        self.pipe.send((job.key, "done", records))
        self._count(-1)

    def started(self, job: Job) -> None:
        self.pipe.send((job.key, "started", None))

    def stage(self, job: Job, what: str) -> None:
        self.pipe.send((job.key, "stage", what))

    def memory(self, job: Job, size: int) -> None:
        self.pipe.send((job.key, "memory", size))

    def ended(self, job: Job, records: Records) -> None:
        pass
