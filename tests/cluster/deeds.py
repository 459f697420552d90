"""Jobs that tests run on a cluster, besides those of `tests.zoo.hostile`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gradcheck_cli.zoo import Job
from gradcheck_cli.zoo.child import Desk
from tests.zoo import hostile
from tests.zoo.hostile import made

WORK = "tests.cluster.deeds:work"


def work(job: Job, desk: Desk) -> Iterator[Mapping[str, Any]]:
    """Does what the name of the job says, in a task of its own."""
    deed, _, argument = job.path.partition(" ")
    yield from {**hostile.DEEDS, **DEEDS}[deed](job, desk, argument)


def slays(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    """Kills the worker that its process is of: child, server, post, worker; N times, if told N and a folder for marks."""
    times, _, folder = argument.partition(" ")
    if folder:
        if len(os.listdir(folder)) == int(times):
            yield made(job.uri)
            return
        Path(folder, str(os.getpid())).touch()
    time.sleep(0.5)  # that it began is known by then
    os.kill(_parent(_parent(os.getppid())), signal.SIGKILL)
    time.sleep(600)
    yield made(job.uri)


def notes(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    """Tells that it began, and with which number; is done after a while."""
    seconds, _, folder = argument.partition(" ")
    Path(folder, f"{job.uri.partition(' ')[0]}-{os.getpid()}").touch()
    time.sleep(float(seconds))
    yield made(job.uri)


def reads(job: Job, desk: Desk, argument: str) -> Iterator[Mapping[str, Any]]:
    """Tells what stands in a file."""
    yield {**made(job.uri), "message": Path(argument).read_text(), "path": os.path.abspath(argument)}


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()[1])


DEEDS = {"slays": slays, "notes": notes, "reads": reads}
