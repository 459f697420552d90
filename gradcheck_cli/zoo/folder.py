"""The folder of a zoo's run: what the run is about, and the lock that keeps a second run out of it.

Two runs compared, check by check: what fails now and did not, what is fixed, what takes longer.
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
_KINDS = {"sources": list, "options": dict, "folder": str, "shard": str, "jobs": list, "version": str, "created": str}
_LARGEST = 1 << 30  # bytes of `run.json`
_PATIENCE, _PAUSE = 5, 0.1  # whoever asks whether a run is going on holds its lock for a moment


@dataclass(frozen=True, slots=True)
class About:
    """What a run is about, so that it can be gone on with: in `run.json`."""

    sources: tuple[str, ...]
    options: Mapping[str, Any]  # as they were given
    folder: str  # that relative paths start from
    shard: str = ""
    jobs: tuple[str, ...] = ()  # all that are to be done, by name
    version: str = VERSION
    created: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


def write_about(folder: Path, about: About) -> None:
    """Replaces `run.json`, whole or not at all."""
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
    """What a run is about; UsageError for a folder that holds none."""
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
    """It is the folder of a run."""
    return os.path.isfile(os.path.join(folder, ABOUT))


def no_run(path: str | os.PathLike[str]) -> str:
    """That a folder holds no run, and which one may have been meant."""
    folder = Path(path)
    said = f"{folder} holds no run of `gradcheck zoo`."
    with suppress(OSError):
        runs = [name for name in sorted(os.listdir(folder.parent)) if is_run(folder.parent / name)]
        known = f" Runs there: {', '.join(map(shown, runs[:8]))}." if runs else ""
        return f"{said}{did_you_mean(folder.name, runs)}{known}"
    return said


def locked(folder: Path) -> IO[bytes]:
    """The lock of a folder, which is made where it is not there; UsageError if another process has it.

    The lock is gone when the file is closed, and when its process ends, however it does.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / LOCK, "a+b", buffering=0)  # noqa: SIM115  # open as long as the run lasts
    except OSError as error:
        raise unwritable(folder, error) from None
    for _ in range(_PATIENCE):
        if _taken(file):
            break
        time.sleep(_PAUSE)
    else:
        who = _who(file)
        file.close()
        raise UsageError(f"{folder} is in use by {who}; wait for it to end, or give another folder by --run")
    with suppress(OSError):  # a full disk: the lock holds without a name in it
        file.truncate(0)
        file.write(f"{os.getpid()} {socket.gethostname()}\n".encode())
    return file


def holder(folder: Path) -> str:
    """Who runs there now: "process 123"; "" for nobody."""
    try:
        with opened(folder / LOCK) as file:
            return "" if _taken(file) else _who(file)
    except OSError:
        return ""


def sync(folder: Path) -> None:
    """Makes the names in a folder outlive a power cut."""
    with suppress(OSError):  # not every file system can
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def unwritable(path: Path, error: OSError) -> UsageError:
    """The error for a store that cannot be written."""
    return UsageError(f"{path} cannot be written: {error.strerror or error}; what was finished before is kept")


def _taken(file: IO[bytes]) -> bool:
    """The lock is ours."""
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _who(file: IO[bytes]) -> str:
    """The process that is named in a lock."""
    file.seek(0)
    process, _, host = file.read(256).decode("utf-8", "replace").strip().partition(" ")
    there = f" on {shown(host)}" if host and host != socket.gethostname() else ""
    return f"process {process}{there}" if process.isdecimal() else "another process"


def _is_one(about: Mapping[str, Any]) -> bool:
    """Values of JSON are of the kinds that they were written as; whoever wrote them."""
    return all(isinstance(about[name], kind) for name, kind in _KINDS.items()) and all(
        isinstance(text, str) for name in ("sources", "jobs") for text in about[name]
    )


def _as_kept(value: Any) -> Any:
    """A value of JSON as options hold it."""
    if isinstance(value, list):
        return tuple(value)
    return {name: _as_kept(each) for name, each in value.items()} if isinstance(value, dict) else value


Kind: TypeAlias = Literal["newly failing", "fixed", "changed", "slower", "gone", "new"]
KINDS: tuple[Kind, ...] = ("newly failing", "fixed", "changed", "slower", "gone", "new")
FACTOR, LEAST = 1.5, 1.0  # times as long, and seconds more, from which a check counts as slower


class Change(NamedTuple):
    """A check that is not as it was; None where a run does not have it."""

    kind: Kind
    old: Check | None
    new: Check | None

    @property
    def id(self) -> str:
        check = self.new or self.old
        return check.id if check else ""


def compared(old: Iterable[Check], new: Iterable[Check], factor: float = FACTOR, least: float = LEAST) -> list[Change]:
    """All changes, by kind, then by the name of the check."""
    before, after = _by_name(old), _by_name(new)
    found: list[Change] = []
    for name in sorted(before.keys() | after.keys()):
        was, now = before.get(name), after.get(name)
        found += [Change(kind, was, now) for kind in _kinds(was, now, factor, least)]
    return sorted(found, key=lambda change: KINDS.index(change.kind))


def _kinds(was: Check | None, now: Check | None, factor: float, least: float) -> Iterable[Kind]:
    """In which ways a check has changed; a new one that fails is newly failing too."""
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
    """A severed pair is not, though x may have a gradient from another y."""
    return check.passes and check.status != "severed"


def _by_name(checks: Iterable[Check]) -> Mapping[tuple[str, str], Check]:
    """Checks by model and id: those of several specs may be called the same."""
    return {(check.model.uri, check.id): check for check in checks}
