"""Many models: each is checked in a process of its own, and its results are stored as soon as it ends.

A `Job` is one model to check, with `Limits`; a `JobListener` hears about its progress.  Start with `engine.run`: it takes
jobs and gives the records of each job once, whatever a model does to its process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

if TYPE_CHECKING:
    from gradcheck_cli.results.record import FirstCheck

TIMEOUT, MEMORY = 600.0, 8 << 30
LEAST = 128 << 20  # bytes of a limit: a process takes half of them before it reads a model
LOCAL_CLUSTER = r"local(?::(?P<workers>[1-9]\d{0,3}))?"
SCHEDULER = rf"{LOCAL_CLUSTER}|(?!local:)((tcp|tls|ws|wss|ucx)://)?[^\s/]+:\d+"
SCHEDULERS = "write tcp://HOST:8786, the path of a scheduler file, or local:N for N workers on this machine"


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Job(Struct, frozen=True):
    """One model to check; plain data, since it goes to another process."""

    uri: str  # its name in records
    path: str  # the local file: a model or a spec
    task: str | int | None = None  # a check of a spec, by name or index; None for all checks
    options: Mapping[str, Any] = field(default_factory=dict)  # options of `check` that were given, by name
    said: Mapping[str, Any] = field(default_factory=dict)  # settings of a manifest's entry
    expect: Mapping[str, Any] | None = None  # the outcome that the entry expects
    key: str = ""  # unique among all jobs
    folder: str = ""  # from which relative paths start; "" for the folder in which its process starts
    files: tuple[str, ...] = ()  # all files that it reads
    predicted_mb: float = 0.0  # peak memory; 0 if it is not known
    structure: str = ""  # digest of its file without names and values of weights; "" if it is not to be compared
    family: str = ""  # the same of what optimizers of graphs leave as it is
    first: FirstCheck | None = None  # of the same structure; without a name where this job is the first
    alike: str = ""  # a job that differs only by an optimizer's level

    def time(self, limit: float | None) -> float | None:
        """The time limit in seconds: an option that was given, else that of the manifest, else that of the run."""
        said: float | None = self.said.get("timeout") if "timeout" not in self.options else None
        return said or limit


class Limits(Struct, frozen=True):
    """The number of models that are checked at once, and the limits of each."""

    jobs: int = field(default_factory=cores)
    timeout: float | None = TIMEOUT  # seconds
    memory: int = MEMORY  # bytes resident in all processes of a job
    room: int = 0  # bytes for all jobs together; 0 for the free memory of the machine
    threads: int = 0  # of each job; 0 for its share of the machine


Records = Sequence[Mapping[str, Any]]  # of gradcheck.result/1, as strict JSON


class JobListener:
    """Hears about the progress of jobs, here without doing anything; called in the engine's thread, so it must be quick."""

    def started(self, job: Job) -> None: ...

    def stage(self, job: Job, what: str) -> None:
        """Takes a stage such as "reading the model" or "d loss/d x"."""

    def memory(self, job: Job, size: int) -> None:
        """Takes the bytes resident in all processes of a job, about once a second."""

    def ended(self, job: Job, records: Records) -> None: ...

    def remark(self, text: str) -> None:
        """Takes a sentence about the run as a whole."""
