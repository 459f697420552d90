"""The choice of kernels: the extension module or NumPy, the instruction set and the number of threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from gradcheck_cli.errors import UsageError

Kind = Literal["native", "numpy"]


def _extension() -> Any:
    """The extension module, set up from the environment; None if it is not built."""
    try:
        from . import _kernels
    except ImportError:
        return None
    isa = os.environ.get("GRADCHECK_ISA")
    if isa and not _kernels.select(isa):
        raise UsageError(f"GRADCHECK_ISA is '{isa}'; this machine runs {', '.join(_kernels.available())}.")
    _kernels.set_threads(_threads())
    return _kernels


def _threads() -> int:
    """The number of threads that the environment asks for, or that of the cores this process may use."""
    asked = os.environ.get("GRADCHECK_NUM_THREADS")
    if not asked:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not asked.isdecimal() or int(asked) < 1:
        raise UsageError(f"GRADCHECK_NUM_THREADS is '{asked}'; it must be a whole number from 1 on.")
    return int(asked)


def _first_choice() -> Kind:
    asked = os.environ.get("GRADCHECK_KERNELS")
    if asked and asked not in ("native", "numpy"):
        raise UsageError(f"GRADCHECK_KERNELS is '{asked}'; known are native, numpy.")
    if asked == "native" and kernels is None:
        raise UsageError(
            "GRADCHECK_KERNELS is 'native', but they are not built; install a C++17 compiler and reinstall."
        )
    return "numpy" if asked == "numpy" or kernels is None else "native"


kernels = _extension()


class _State:
    """The kind in use, for the whole process."""

    kind: Kind = _first_choice()


def native() -> bool:
    """True if the extension module is in use."""
    return _State.kind == "native"


@contextmanager
def use(kind: Kind) -> Iterator[None]:
    """In the block, the whole process runs these kernels: 'native' or 'numpy'."""
    if kind == "native" and kernels is None:
        raise ImportError("the native kernels are not built; install a C++17 compiler and reinstall.")
    before, _State.kind = _State.kind, kind
    try:
        yield
    finally:
        _State.kind = before


@contextmanager
def single_threaded() -> Iterator[None]:
    """In the block, kernels called from this Python thread start no others; the rest is unaffected."""
    if kernels is None:
        yield
        return
    before = kernels.set_single_threaded(True)
    try:
        yield
    finally:
        kernels.set_single_threaded(before)


def info() -> dict[str, str | int]:
    """The kernels in use: `kernels` ('native' or 'numpy'), `isa` (instruction set), `threads` (the maximum)."""
    if native():
        return {"kernels": "native", "isa": kernels.isa(), "threads": kernels.threads()}
    return {"kernels": "numpy", "isa": "numpy", "threads": _threads()}
