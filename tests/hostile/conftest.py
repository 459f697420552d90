"""Limits on what a test may take."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

LITTLE, ENOUGH = 2 << 30, 4 << 30  # bytes


@contextmanager
def at_most(size: int) -> Iterator[None]:
    """The process may take so many bytes more than it has, and none beyond; what it frees meanwhile it may take again.

    Rings of objects that wait to be collected would be freed at any time, so that more were left than was given.
    """
    gc.collect()
    resource = pytest.importorskip("resource", reason="only Unix limits memory")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    resource.setrlimit(resource.RLIMIT_DATA, ((int(rows["VmData"].split()[0]) << 10) + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@pytest.fixture
def little_memory() -> Iterator[None]:
    """2 GiB are left."""
    with at_most(LITTLE):
        yield


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    """4 GiB are left."""
    with at_most(ENOUGH):
        yield
