"""A folder of bundles: what they are called there, those that a crash has left, and how many are kept.

A bundle of a check that runs is called NAME.running-PID; it gets its name when the check fails, or when its process is no
more.  Several processes may keep bundles in one folder at the same time.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

FOLDER, MOST = os.path.join(".gradcheck", "failures"), 100
_FINISHED, _RUNNING = re.compile(r".+-[0-9a-f]{8}"), re.compile(r"(.+-[0-9a-f]{8})\.running-(\d{1,10})")


def bundle_name(check: str, *identity: str) -> str:
    """The name of a check as one of a folder, on every system, and a digest that tells it from others."""
    digest = hashlib.sha256("\0".join((check, *identity)).encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{re.sub('[^A-Za-z0-9._]+', '-', check)[-60:].strip('-.') or 'check'}-{digest}"


def running(folder: Path, name: str) -> Path:
    """Where a bundle lies while this process checks what it is about."""
    return folder / f"{name}.running-{os.getpid()}"


def renamed(folder: Path, name: Path) -> Path:
    """A folder under its name, in the place of what had it before."""
    if name.exists():
        old = name.with_name(f"{name.name}.old-{os.getpid()}")
        os.replace(name, old)
        shutil.rmtree(old, ignore_errors=True)
    os.replace(folder, name)
    return name


def adopted(folder: Path, process: int | None = None) -> list[Path]:
    """Bundles of a process, or of all that are no more, under their names from now on."""
    found = []
    with suppress(OSError):
        for name in os.listdir(folder):
            match = _RUNNING.fullmatch(name)
            if match and (int(match[2]) == process if process is not None else not _alive(int(match[2]))):
                _without_parts(folder / name)
                found.append(renamed(folder / name, folder / match[1]))
    return found


def _without_parts(folder: Path) -> None:
    """Takes away what a process was still writing when it ended."""
    for path in folder.glob("*.new"):
        path.unlink(missing_ok=True)


def dropped(folder: Path, process: int) -> None:
    """Nothing is left of what a process has begun."""
    for path in folder.glob(f"*.running-{process}"):
        shutil.rmtree(path, ignore_errors=True)


def prune(folder: Path, most: int = MOST) -> None:
    """The oldest bundles go where there are too many."""
    found = [(_age(p), p) for p in folder.iterdir() if _FINISHED.fullmatch(p.name) and (p / "bundle.json").is_file()]
    for _, path in sorted(found)[: max(0, len(found) - most)]:
        shutil.rmtree(path, ignore_errors=True)


def clear(folder: Path) -> None:
    """Takes away the folder of all bundles where nothing is left in it, and of our own what is around it."""
    with suppress(OSError):
        folder.rmdir()
        if str(folder) == FOLDER and os.listdir(folder.parent) == [".gitignore"]:
            (folder.parent / ".gitignore").unlink()
            folder.parent.rmdir()


def _age(path: Path) -> int:
    with suppress(OSError):  # another process took it away
        return path.stat().st_mtime_ns
    return 0


def _alive(process: int) -> bool:
    """A process of this number runs, other than this one; where that cannot be asked, it may."""
    if process == os.getpid():
        return False
    if os.name != "posix":  # there os.kill would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
