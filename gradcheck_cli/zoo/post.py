"""The engine process beside a Dask worker, which takes jobs from a pipe and sends progress and records back.

It runs jobs like `engine` on one machine.  It ends when the pipe is closed, hence with its worker, and when it has been
idle for a while.
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
    """The main function of the process; `end` is its end of the pipe."""
    with suppress(KeyboardInterrupt, OSError, EOFError):
        pipe = Connection(end)
        limits, work, command = pipe.recv()
        sys.argv = list(command)  # for the command in bundles
        jobs = PipedJobs(pipe)
        engine.run(jobs.fetched(), limits, jobs.done, jobs, work)


class PipedJobs:
    """Takes jobs from the pipe; sends their progress and records into it, with the key of the job."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.unfinished, self._counting = 0, threading.Lock()

    def fetched(self) -> Iterator[Job]:
        """Jobs as they come; runs in a thread of the engine."""
        while self._is_ready():
            try:
                job: Job = self.pipe.recv()
            except (EOFError, OSError):  # the worker is gone, and nothing waits for its jobs
                os.kill(os.getpid(), signal.SIGTERM)
                return
            self._count(1)
            yield job

    def _is_ready(self) -> bool:
        """Waits for a job; False after a while without jobs to do."""
        while not self.pipe.poll(_IDLE):
            if not self.unfinished:
                return False
        return True

    def _count(self, more: int) -> None:
        with self._counting:
            self.unfinished += more

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
