"""A folder of bundles: their names, those left by crashes, and the number that is kept.

The bundle of a running check is called NAME.running-PID.  It gets its final name when the check fails, or after its
process has died.  Several processes may use one folder at the same time.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from gradcheck_cli.formats.untrusted import sha256_of_text

FOLDER, MOST = os.path.join(".gradcheck", "failures"), 100
_FINISHED, _RUNNING = re.compile(r".+-[0-9a-f]{8}"), re.compile(r"(.+-[0-9a-f]{8})\.running-(\d{1,10})")


def bundle_name(check: str, *identity: str) -> str:
    """The folder name for a check, valid on every system, with a digest that makes it unique."""
    digest = sha256_of_text("\0".join((check, *identity)))[:8]
    return f"{re.sub('[^A-Za-z0-9._]+', '-', check)[-60:].strip('-.') or 'check'}-{digest}"


def running(folder: Path, name: str) -> Path:
    """The path of a bundle while this process runs the check."""
    return folder / f"{name}.running-{os.getpid()}"


def renamed(folder: Path, name: Path) -> Path:
    """Gives a folder a name, replacing another folder of that name."""
    if name.exists():
        old = name.with_name(f"{name.name}.old-{os.getpid()}")
        os.replace(name, old)
        shutil.rmtree(old, ignore_errors=True)
    os.replace(folder, name)
    return name


def adopted(folder: Path, process: int | None = None) -> list[Path]:
    """Gives the bundles of a process, or of all processes that have ended, their final names."""
    found = []
    with suppress(OSError):
        for name in os.listdir(folder):
            match = _RUNNING.fullmatch(name)
            if match and (int(match[2]) == process if process is not None else not _alive(int(match[2]))):
                for part in (folder / name).glob("*.new"):  # files that the process was still writing
                    part.unlink(missing_ok=True)
                found.append(renamed(folder / name, folder / match[1]))
    return found


def dropped(folder: Path, process: int) -> None:
    """Removes the bundles that a process has begun."""
    for path in folder.glob(f"*.running-{process}"):
        shutil.rmtree(path, ignore_errors=True)


def prune(folder: Path, most: int = MOST) -> None:
    """Removes the oldest bundles if there are too many."""
    found = [(_age(p), p) for p in folder.iterdir() if _FINISHED.fullmatch(p.name) and (p / "bundle.json").is_file()]
    for _, path in sorted(found)[: max(0, len(found) - most)]:
        shutil.rmtree(path, ignore_errors=True)


def clear(folder: Path) -> None:
    """Removes an empty folder of bundles, and the folder `.gradcheck` around it if nothing else is there."""
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
    """True if another process of this id runs, or if that cannot be found out."""
    if process == os.getpid():
        return False
    if os.name != "posix":  # os.kill would end the process
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True
