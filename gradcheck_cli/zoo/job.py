"""What an engine is asked for: a `Job` is one model to check, `Limits` what it may take, a `Listener` hears of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

TIMEOUT, MEMORY = 600.0, 8 << 30
LOCAL_CLUSTER = r"local(?::(?P<workers>[1-9]\d{0,3}))?"
SCHEDULER = rf"{LOCAL_CLUSTER}|(?!local:)((tcp|tls|ws|wss|ucx)://)?[^\s/]+:\d+"
SCHEDULERS = "write tcp://HOST:8786, the path of a scheduler file, or local:N for N workers on this machine"


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Job:
    """One model; plain data, since it goes to another process."""

    uri: str  # what records call it
    path: str  # the local file: a model or a spec
    task: str | int | None = None  # the check of a spec, by its name or its place; None: all there are
    options: Mapping[str, Any] = field(default_factory=dict)  # options of `check` that were given, by name
    said: Mapping[str, Any] = field(default_factory=dict)  # settings of a manifest's entry, as those of a spec's check
    expect: Mapping[str, Any] | None = None  # the outcome that the entry expects
    key: str = ""  # tells it from all others
    folder: str = ""  # that relative paths start from; "" is where its process starts
    files: tuple[str, ...] = ()  # all that it reads
    predicted_mb: float = 0.0  # memory that it takes at its fullest moment; 0 where nobody knows

    def time(self, limit: float | None) -> float | None:
        """Seconds that it may take: those of the run, unless its manifest says otherwise and nobody typed any."""
        said: float | None = self.said.get("timeout") if "timeout" not in self.options else None
        return said or limit


@dataclass(frozen=True, slots=True)
class Limits:
    """How many models at once, and what each of them may take: seconds, bytes resident in all of its processes."""

    jobs: int = field(default_factory=cores)
    timeout: float | None = TIMEOUT
    memory: int = MEMORY
    room: int = 0  # bytes for all of them together; 0 is what the machine has left
    threads: int = 0  # of each; 0 is its share of the machine


Records = Sequence[Mapping[str, Any]]  # of gradcheck.result/1, as strict JSON has them


class Listener(Protocol):
    """Hears how far jobs are; all of it is called in the thread that runs the engine, and must be quick."""

    def started(self, job: Job) -> None: ...
    def stage(self, job: Job, what: str) -> None: ...  # "reading the model", "d loss/d x"
    def memory(
        self, job: Job, size: int
    ) -> None: ...  # bytes resident now, in all of its processes; about once a second
    def ended(self, job: Job, records: Records) -> None: ...  # after `done` has them


class Silent:
    """Nobody listens."""

    def started(self, job: Job) -> None: ...
    def stage(self, job: Job, what: str) -> None: ...
    def memory(self, job: Job, size: int) -> None: ...
    def ended(self, job: Job, records: Records) -> None: ...
