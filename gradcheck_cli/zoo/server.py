"""The server that children are forked from: it has imported all that they need, so that each is there in milliseconds.

It is that of `multiprocessing`.  It ends with the process that started it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.util import get_temp_dir
from types import ModuleType

READY = "gradcheck_cli.cli.zoo.ready"  # what it imports before it forks; above this floor, as what children do
_OURS, _MOMENT = "_GRADCHECK_DRIVER", 1.0
_LONGEST = 60  # characters of a folder in which the name of a socket still fits into the 108 that it may have


def there_is_one() -> bool:
    """This system has processes that fork."""
    return "forkserver" in get_all_start_methods()


def warm() -> None:
    """Starts it, ahead of the first child."""
    if there_is_one():
        from multiprocessing import forkserver

        get_context("forkserver").set_forkserver_preload([READY])
        with calm():
            forkserver.ensure_running()


@contextmanager
def calm() -> Iterator[None]:
    """A server that is started under it never hears of Ctrl-C, its BLAS starts no threads, since a fork takes none
    along, and it knows what to take away when we cannot.  Children do not run the script that runs this."""
    told = {"OPENBLAS_NUM_THREADS": "1", _OURS: f"{os.getpid()} {_folder()}"}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _folder() -> str:
    """Where the server's socket is: a temporary folder, which `multiprocessing` makes once."""
    if len(tempfile.gettempdir()) <= _LONGEST:
        return get_temp_dir()
    asked, tempfile.tempdir = tempfile.tempdir, "/tmp"
    try:
        return get_temp_dir()
    finally:
        tempfile.tempdir = asked


def sweep_in_the_end() -> str:
    """In the server: where its socket is, which goes with it if the process that started it was killed."""
    driver, _, folder = os.environ.pop(_OURS, "0 ").partition(" ")
    if folder:
        atexit.register(_swept, int(driver), folder)
    return folder


def _swept(driver: int, folder: str) -> None:
    """Its files are closed a moment before a process is gone."""
    deadline = time.monotonic() + _MOMENT
    while os.getppid() == driver and time.monotonic() < deadline:
        time.sleep(_MOMENT / 100)
    if os.getppid() != driver:
        shutil.rmtree(folder, ignore_errors=True)
