"""Who may start: children whose predicted memory fits the machine together; one that fits nowhere runs alone."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from gradcheck_cli.graph.memory import left
from gradcheck_cli.zoo.job import Job, Limits

LEAST = 256 << 20  # bytes that a child may take without asking: any small model
_OF_A_FILE = 4.0  # bytes that reading takes, for each of the file
_KEPT = 0.1  # of what is left of the machine, for others


class Admission:
    """What is granted to each child, by its number."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.capacity = min(int((1 - _KEPT) * left()), limits.room or sys.maxsize)
        self.granted: dict[int, int] = {}

    def first(self, job: Job) -> int:
        """Bytes that a job is granted at first: what was predicted, else what its file asks for."""
        size = _OF_A_FILE * _size(os.path.join(job.folder, job.path))
        return self.bounded(max(LEAST, int(job.predicted_mb * (1 << 20)) or int(size)))

    def bounded(self, size: int) -> int:
        """A child that takes more than the limit is stopped, so it never has more."""
        return min(size, self.limits.memory)

    def fits(self, child: int, size: int) -> bool:
        """It can have so much beside all others, or there are no others."""
        others = [granted for other, granted in self.granted.items() if other != child]
        return not others or sum(others) + size <= self.capacity

    def grant(self, child: int, size: int) -> None:
        """It has so much from now on."""
        self.granted[child] = size

    def free(self, child: int) -> None:
        """It is gone."""
        self.granted.pop(child, None)


def _size(path: str) -> int:
    with suppress(OSError, ValueError):
        return os.stat(path).st_size
    return 0
