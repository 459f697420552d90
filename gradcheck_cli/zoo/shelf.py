"""A folder of bundles: their names, those left by crashes, and the number that is kept.

The bundle of a running check is called NAME.running-START-PID, by the number of its process and the time at which that
began, since numbers are given anew.  It gets its final name when the check fails, or after its process has died.
Several processes may use one folder at the same time.  No link in it is followed, nor one that leads to it.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from gradcheck_cli.formats.untrusted import HOME, OwnFolder, own_folder, sha256_of_text

FOLDER, MOST = os.path.join(HOME, "failures"), 100
IGNORE = ".gitignore"
_FINISHED = re.compile(r".+-[0-9a-f]{8}")
_RUNNING = re.compile(r"(?P<name>.+-[0-9a-f]{8})\.running-(?:(?P<began>\d{1,20})-)?(?P<process>\d{1,10})")
_ENDED = "ended"
_STATE, _BEGAN = 0, 19  # fields of /proc/PID/stat, counted from behind the name


def bundle_name(check: str, *identity: str) -> str:
    """The folder name for a check, valid on every system, with a digest that makes it unique."""
    digest = sha256_of_text("\0".join((check, *identity)))[:8]
    return f"{re.sub('[^A-Za-z0-9._]+', '-', check)[-60:].strip('-.') or 'check'}-{digest}"


def running(name: str) -> str:
    """The name of a bundle while this process runs the check."""
    return f"{name}.running-{_began(os.getpid()) or 0}-{os.getpid()}"


def made(folder: Path) -> None:
    """Makes a folder of bundles if it does not exist; git does not see the one that nobody asked for."""
    with own_folder(folder, make=True):
        pass
    if str(folder) == FOLDER:
        hide_from_git(folder.parent)


def hide_from_git(folder: Path) -> None:
    """Makes git ignore a folder, unless somebody has said otherwise there."""
    with own_folder(folder) as home, suppress(FileExistsError), home.file(IGNORE, "xb") as file:
        file.write(b"*\n")


def renamed(folder: Path, old: str, new: str) -> Path:
    """Gives a bundle another name, replacing one of that name; its path."""
    with own_folder(folder) as shelf:
        _renamed(shelf, old, new)
    return folder / new


def adopted(folder: Path, process: int | None = None) -> list[Path]:
    """Gives the bundles of a process, or of all processes that have ended, their final names."""
    found = []
    with suppress(OSError), own_folder(folder) as shelf:
        for name, match in _unfinished(shelf):
            of = int(match["process"])
            with suppress(OSError):  # another process was faster; others have to be named nevertheless
                if of == process if process is not None else not _alive(of, match["began"]):
                    _without_parts(folder, name)
                    _renamed(shelf, name, match["name"])
                    found.append(folder / match["name"])
    return found


def discarded(folder: Path, name: str) -> None:
    """Removes a bundle."""
    with suppress(OSError), own_folder(folder) as shelf:
        shelf.remove(name)


def dropped(folder: Path, process: int) -> None:
    """Removes the bundles that a process has begun."""
    with suppress(OSError), own_folder(folder) as shelf:
        for name, match in _unfinished(shelf):
            if int(match["process"]) == process:
                shelf.remove(name)


def prune(folder: Path, most: int = MOST) -> None:
    """Removes the oldest bundles if there are too many."""
    with own_folder(folder) as shelf:
        found = [(_age(shelf, n), n) for n in shelf.names() if _FINISHED.fullmatch(n) and _is_bundle(folder, n)]
        for _, name in sorted(found)[: max(0, len(found) - most)]:
            with suppress(OSError):
                shelf.remove(name)


def clear(folder: Path) -> None:
    """Removes an empty folder of bundles, and the folder `.gradcheck` around it if nothing else is there."""
    with suppress(OSError):
        with own_folder(folder.parent) as around:
            around.refuse_link(folder.name)
            os.rmdir(folder.name if around.at is not None else folder, dir_fd=around.at)
            emptied = str(folder) == FOLDER and around.names() == [IGNORE]
            if emptied:
                around.remove(IGNORE)
        if emptied:
            folder.parent.rmdir()  # a link is no folder


def _unfinished(shelf: OwnFolder) -> list[tuple[str, re.Match[str]]]:
    """Folders of checks that run, or have not ended."""
    every = [(name, match) for name in shelf.names() if (match := _RUNNING.fullmatch(name))]
    return [(name, match) for name, match in every if _is_folder(shelf, name)]


def _is_folder(shelf: OwnFolder, name: str) -> bool:
    there = shelf.status(name)
    return there is not None and stat.S_ISDIR(there.st_mode)


def _renamed(shelf: OwnFolder, old: str, new: str) -> None:
    if shelf.status(new) is not None:
        shelf.rename(new, aside := f"{new}.old-{os.getpid()}")
        with suppress(OSError):
            shelf.remove(aside)
    shelf.rename(old, new)


def _without_parts(folder: Path, name: str) -> None:
    """Removes files from a bundle that its process was still writing."""
    with own_folder(folder, name) as bundle:
        for part in bundle.names():
            if part.endswith(".new"):
                bundle.remove(part)


def _is_bundle(folder: Path, name: str) -> bool:
    """True for a folder with the manifest of a bundle."""
    with suppress(OSError), own_folder(folder, name) as bundle:
        return bundle.status("bundle.json") is not None
    return False


def _age(shelf: OwnFolder, name: str) -> int:
    there = shelf.status(name)
    return there.st_mtime_ns if there is not None else 0  # another process took it away


def _alive(process: int, began: str | None) -> bool:
    """True if another process of this number runs that began at this time, or if that cannot be found out.

    A process that has ended may wait for long until somebody asks for its exit code, and its number is given anew: to
    another process, or to a thread of one.
    """
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
    now = _began(process)
    return now != _ENDED and (not began or began == "0" or not now or now == began)


def _began(process: int) -> str:
    """The time at which a process began, in ticks of the kernel's clock; `_ENDED` for one that has, "" if unknown."""
    try:
        told = Path(f"/proc/{process}/stat").read_bytes().rpartition(b") ")[2].split()
        return _ENDED if told[_STATE] in (b"Z", b"X") else told[_BEGAN].decode()
    except (OSError, IndexError):
        return ""
