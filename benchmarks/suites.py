"""The suites by name, and how one is run: in a process of its own, so that what one breaks leaves the others alone."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from multiprocessing import get_context

from benchmarks.table import Table

SUITES = (
    "kernels", "convolutions", "jacobians", "one_thread", "phases", "limit", "processes", "models", "real_sizes", "scaling",
    "zoo", "records", "gradient_files",
)  # fmt: skip


def run(names: Sequence[str], quick: bool = False) -> Iterator[Table]:
    """The tables of some suites, one suite after another."""
    for name in names:
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:
            try:
                yield from alone.submit(tables, f"benchmarks.{name}", quick).result()
            except BrokenProcessPool:
                yield failed(name, "its process ended")


def tables(module: str, quick: bool) -> list[Table]:
    """The tables of a module; an exception on the way is a table of its own."""
    made: list[Table] = []
    try:
        made.extend(import_module(module).tables(quick))  # those before an exception count
    except Exception as error:  # whatever it is, the other suites have nothing to do with it
        traceback.print_exc()
        made.append(failed(module.rpartition(".")[2], f"{type(error).__name__}: {error}"))
    return made


def failed(suite: str, why: str) -> Table:
    """A table that stands for those of a suite that failed."""
    return Table(f"{suite}, not finished", ("suite", "why"), [(suite, why)])
