"""The folder of a zoo run: `run.json`, which describes the run, and the lock that keeps a second run out.

`compared` lists the changes between two runs: checks that newly fail, are fixed, or take longer.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, TypeAlias

from gradcheck_cli.errors import VERSION, UsageError, did_you_mean, shown
from gradcheck_cli.formats.untrusted import content, opened
from gradcheck_cli.results.record import Check

SCHEMA = "gradcheck.zoo/1"
ABOUT, LOCK = "run.json", "lock"
Kind: TypeAlias = Literal["newly failing", "fixed", "changed", "slower", "gone", "new"]
KINDS: tuple[Kind, ...] = ("newly failing", "fixed", "changed", "slower", "gone", "new")
FACTOR, LEAST = 1.5, 1.0  # a check is slower if it takes so many times as long and so many seconds more
_KINDS = {"sources": list, "options": dict, "folder": str, "shard": str, "jobs": list, "version": str, "created": str}
_LARGEST = 1 << 30  # bytes of `run.json`
_ATTEMPTS, _PAUSE = 5, 0.1  # `holder` takes the lock of a run for a moment


@dataclass(frozen=True, slots=True)
class About:
    """The description of a run in `run.json`, from which it can be resumed."""

    sources: tuple[str, ...]
    options: Mapping[str, Any]  # as they were given
    folder: str  # the working folder, from which relative paths start
    shard: str = ""
    jobs: tuple[str, ...] = ()  # names of all jobs
    version: str = VERSION
    created: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def write_about(folder: Path, about: About) -> None:
    """Writes `run.json` completely or not at all."""
    place, new = folder / ABOUT, folder / f"{ABOUT}.new"
    try:
        with open(new, "w", encoding="ascii") as file:
            file.write(json.dumps({"schema": SCHEMA, **asdict(about)}, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, place)
        sync(folder)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise unwritable(place, error) from None


def read_about(folder: Path) -> About:
    """Reads `run.json`; raises a UsageError for a folder without a run."""
    place = folder / ABOUT
    try:
        told = json.loads(content(place, _LARGEST))
        if told["schema"] != SCHEMA or not _is_one(about := {name: told[name] for name in _KINDS}):
            raise ValueError
        return About(**{name: _as_kept(value) for name, value in about.items()})
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(no_run(folder)) from None
    except OSError as error:
        raise UsageError(f"{place} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"{place} was not written by this version of `gradcheck zoo`") from None


def is_run(folder: str | os.PathLike[str]) -> bool:
    """True for the folder of a run."""
    return os.path.isfile(os.path.join(folder, ABOUT))


def no_run(path: str | os.PathLike[str]) -> str:
    """An error message for a folder without a run, which suggests others."""
    folder = Path(path)
    said = f"{folder} holds no run of `gradcheck zoo`."
    with suppress(OSError):
        runs = [name for name in sorted(os.listdir(folder.parent)) if is_run(folder.parent / name)]
        known = f" Runs there: {', '.join(map(shown, runs[:8]))}." if runs else ""
        return f"{said}{did_you_mean(folder.name, runs)}{known}"
    return said


def locked(folder: Path) -> IO[bytes]:
    """Locks a folder, which is made if it does not exist; raises a UsageError if another process holds the lock.

    The lock ends when the file is closed, or when its process ends in any way.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / LOCK, "a+b", buffering=0)  # noqa: SIM115  # open as long as the run lasts
    except OSError as error:
        raise unwritable(folder, error) from None
    for _ in range(_ATTEMPTS):
        if _taken(file):
            break
        time.sleep(_PAUSE)
    else:
        who = _who(file)
        file.close()
        raise UsageError(f"{folder} is in use by {who}; wait for it to end, or give another folder by --run")
    with suppress(OSError):  # on a full disk the lock works without a name in it
        file.truncate(0)
        file.write(f"{os.getpid()} {socket.gethostname()}\n".encode())
    return file


def holder(folder: Path) -> str:
    """The process that runs in a folder now, "process 123"; "" if there is none."""
    try:
        with opened(folder / LOCK) as file:
            return "" if _taken(file) else _who(file)
    except OSError:
        return ""


def sync(folder: Path) -> None:
    """Flushes the names in a folder to the disk, so that they survive a power cut."""
    with suppress(OSError):  # not supported by every file system
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def unwritable(path: Path, error: OSError) -> UsageError:
    """The error for a store that cannot be written."""
    return UsageError(f"{path} cannot be written: {error.strerror or error}; what was finished before is kept")


def _taken(file: IO[bytes]) -> bool:
    """Takes the lock; False if another process holds it."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _who(file: IO[bytes]) -> str:
    """The process that a lock file names."""
    file.seek(0)
    process, _, host = file.read(256).decode("utf-8", "replace").strip().partition(" ")
    there = f" on {shown(host)}" if host and host != socket.gethostname() else ""
    return f"process {process}{there}" if process.isdecimal() else "another process"


def _is_one(about: Mapping[str, Any]) -> bool:
    """True if the values of an untrusted `run.json` have the right types."""
    return all(isinstance(about[name], kind) for name, kind in _KINDS.items()) and all(
        isinstance(text, str) for name in ("sources", "jobs") for text in about[name]
    )


def _as_kept(value: Any) -> Any:
    """A JSON value as options hold it, with tuples for lists."""
    if isinstance(value, list):
        return tuple(value)
    return {name: _as_kept(each) for name, each in value.items()} if isinstance(value, dict) else value


class Change(NamedTuple):
    """A change of a check between two runs; None for a run without the check."""

    kind: Kind
    old: Check | None
    new: Check | None

    @property
    def id(self) -> str:
        check = self.new or self.old
        return check.id if check else ""


def compared(old: Iterable[Check], new: Iterable[Check], factor: float = FACTOR, least: float = LEAST) -> list[Change]:
    """All changes, sorted by kind and by name of the check."""
    before, after = _by_name(old), _by_name(new)
    found: list[Change] = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        found += [Change(kind, was, now) for kind in _kinds(was, now, factor, least)]
    return sorted(found, key=lambda change: KINDS.index(change.kind))


def _kinds(was: Check | None, now: Check | None, factor: float, least: float) -> Iterable[Kind]:
    """The kinds of change of a check; a new one that fails is "newly failing"."""
    if now is None:
        yield "gone"
    elif was is None:
        yield "new" if _is_fine(now) else "newly failing"
    elif _is_fine(was) != _is_fine(now):
        yield "fixed" if _is_fine(now) else "newly failing"
    elif (was.status, was.code, was.forward_differs) != (now.status, now.code, now.forward_differs):
        yield "changed"
    if was and now and now.duration_s > factor * was.duration_s and now.duration_s - was.duration_s > least:
        yield "slower"


def _is_fine(check: Check) -> bool:
    """True for a check that passes, other than a severed pair."""
    return check.passes and check.status != "severed"


def _by_name(checks: Iterable[Check]) -> Mapping[tuple[str, str], Check]:
    """Checks by model and id, since checks of several specs may share a name."""
    return {(check.model.uri, check.id): check for check in checks}
