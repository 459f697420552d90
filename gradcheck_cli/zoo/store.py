"""The folder of a zoo run: `run.json`, which describes it, its records, and the lock that keeps a second run out.

Records are lines of JSON in one file, which survives a crash at any moment: those of a finished job are appended with
one write and synced, and an incomplete last line, torn by a crash, is dropped.  A job is finished when all of its records
are there; of several attempts the last one counts.  `merged` joins several runs, such as shards, to one.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from gradcheck_cli.errors import VERSION, UsageError, counted, did_you_mean, listed, plural, shown
from gradcheck_cli.formats.untrusted import content, opened, own_folder
from gradcheck_cli.results import texts_in
from gradcheck_cli.results.measures import Severed, Spot
from gradcheck_cli.results.record import EXIT_CODES, GATES, OUTCOMES, Check, outcome_record

RECORDS, SCHEMA = "results.jsonl", "gradcheck.zoo/1"
ABOUT, LOCK = "run.json", "lock"
_KINDS = {"sources": list, "options": dict, "folder": str, "shard": str, "jobs": list, "version": str, "created": str}
_ADDED = {"fail_on": list, "shards": list, "waives": dict}  # which earlier versions do not write
_WAIVERS = {"baseline": str, "select": list, "ignore": list}
_LARGEST = 1 << 30  # bytes of `run.json`
_ATTEMPTS, _PAUSE = 5, 0.1  # `holder` takes the lock of a run for a moment
_START = '{"zoo": '  # of every line: its head, which a summary reads without the rest, comes first
_LONGEST = 256 << 20  # bytes of the longest valid line
_HEAD = 4096  # bytes of a line that usually hold its head
_DECODER = json.JSONDecoder()


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
    fail_on: tuple[str, ...] = OUTCOMES  # what fails it, without --exit-zero
    shards: tuple[str, ...] = ()  # those that were merged to this run, as 1/4
    waives: Mapping[str, Any] = field(default_factory=dict)  # --baseline, --select and --ignore, wherever they were set

    def lacks(self, done: int) -> str:
        """The part of the run that has no records where `done` jobs have some, in words; "" if it is complete."""
        left, missing = len(self.jobs) - done, self._missing()
        parts = [f"{left} of {counted(len(self.jobs), 'model')} {plural(left, 'was', 'were')} not run"] if left else []
        if missing:
            parts += [f"{plural(len(missing), 'shard')} {listed(missing)} not merged"]
        return "; ".join(parts)

    def _missing(self) -> list[str]:
        """The shards that belong to those of the run and are not in it."""
        counts = dict.fromkeys(shard.partition("/")[2] for shard in self.shards)
        every = (f"{index}/{count}" for count in counts for index in range(1, int(count) + 1))
        return [shard for shard in every if shard not in self.shards]


def write_about(folder: Path, about: About, called: Path | None = None) -> None:
    """Writes `run.json` completely or not at all; errors name the folder as it is called."""
    told = {"schema": SCHEMA, **asdict(about)}
    try:
        with own_folder(folder) as own:
            own.write(ABOUT, (json.dumps(told, indent=1) + "\n").encode("ascii"), sync=True)
        sync(folder)
    except OSError as error:
        raise unwritable((called or folder) / ABOUT, error) from None


def read_about(folder: Path) -> About:
    """Reads `run.json`; raises a UsageError for a folder without a run."""
    place = folder / ABOUT
    try:
        told = json.loads(content(place, _LARGEST, own=True))
        kinds = {**_KINDS, **{name: kind for name, kind in _ADDED.items() if name in told}}
        about = {name: told[name] for name in kinds}
        texts = all(isinstance(text, str) and "\0" not in text for text in (*about["sources"], *about["jobs"]))
        fit = all(isinstance(about[name], kind) for name, kind in kinds.items())
        shards = all(re.fullmatch(r"[0-9]{1,6}/[0-9]{1,6}", shard) for shard in about.get("shards", ()))
        gates = all(gate in GATES for gate in about.get("fail_on", ()))
        if told["schema"] != SCHEMA or not (
            texts and fit and shards and gates and _are_waivers(about.get("waives", {}))
        ):
            raise ValueError
        return About(**{name: _as_kept(value) for name, value in about.items()})
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(no_run(folder)) from None
    except OSError as error:
        raise UsageError(f"{place} cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"{place} was not written by this version of `gradcheck zoo`") from None


def _are_waivers(said: Mapping[str, Any]) -> bool:
    """True for a path of a baseline, and lists of codes."""
    return all(
        type(value) is _WAIVERS.get(name) and all(isinstance(word, str) and "\0" not in word for word in value)
        for name, value in said.items()
    )


def is_run(folder: str | os.PathLike[str]) -> bool:
    """True for the folder of a run."""
    return os.path.isfile(os.path.join(folder, ABOUT))


def no_run(path: str | os.PathLike[str]) -> str:
    """An error message for a folder without a run, which suggests others."""
    folder, runs = Path(path), list[str]()
    with suppress(OSError):
        runs = [name for name in sorted(os.listdir(folder.parent)) if is_run(folder.parent / name)]
    known = f" Runs there: {', '.join(map(shown, runs[:8]))}." if runs else ""
    return f"{folder} holds no run of `gradcheck zoo`.{did_you_mean(folder.name, runs)}{known}"


def locked(folder: Path, called: Path | None = None) -> IO[bytes]:
    """Locks a folder, which is made if it does not exist; raises a UsageError if another process holds the lock.

    Errors name the folder as it is called, if it is written under another name first.
    The lock ends when the file is closed, or when its process ends in any way.
    """
    try:
        with own_folder(folder, make=True) as own:
            file: IO[bytes] = own.file(LOCK, "a+b")  # open as long as the run lasts
    except OSError as error:
        raise unwritable(called or folder, error) from None
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
        with opened(folder / LOCK, own=True) as file:
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


def _as_kept(value: Any) -> Any:
    """A JSON value as options hold it, with tuples for lists."""
    if isinstance(value, list):
        return tuple(value)
    return {name: _as_kept(each) for name, each in value.items()} if isinstance(value, dict) else value


@dataclass(frozen=True, slots=True)
class Line:
    """A record of the store: its outcome, and the place of the whole record in the file."""

    key: str
    job: str
    part: int  # its number among the job's records, from 1
    of: int  # the number of the job's records
    timeout: float  # of the job, in seconds
    check: Check  # with its outcome only
    offset: int
    length: int


class Store:
    """The records of a run, locked by this process, for appending."""

    def __init__(self, folder: Path, called: Path | None = None) -> None:
        self.folder, self.path, self._called = folder, folder / RECORDS, (called or folder) / RECORDS
        self._lock, self._one_at_a_time = locked(folder, called), threading.Lock()
        try:
            with own_folder(folder) as own, own.file(RECORDS, "a+b") as file:
                self._file = os.dup(file.fileno())
            self._size = _without_torn_end(self._file)
        except OSError as error:
            self._lock.close()
            raise unwritable(self._called, error) from None
        sync(folder)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)
        self._lock.close()

    def append(self, job: str, key: str, records: Sequence[Mapping[str, Any]], timeout: float = 0.0) -> None:
        """Appends the records of a finished job, all or none; raises a UsageError if they cannot be written."""
        head = {"key": key, "job": job, "timeout": timeout, "of": len(records)}
        told = ({"zoo": {**head, "part": n, **_outcome(r)}, **r} for n, r in enumerate(records, 1))
        lines = "".join(json.dumps(record, allow_nan=False, default=str) + "\n" for record in told)
        self.append_raw(lines.encode("ascii"))

    def append_raw(self, data: bytes) -> None:
        """Appends complete lines of another store."""
        with self._one_at_a_time:
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(self._file, view) :]
                os.fsync(self._file)
            except OSError as error:
                with suppress(OSError):
                    os.ftruncate(self._file, self._size)
                raise unwritable(self._called, error) from None
            self._size += len(data)


def brief(records: Sequence[Mapping[str, Any]]) -> tuple[Check, ...]:
    """Records reduced to their outcomes."""
    return tuple(_brief(_outcome(record)) for record in records)


def finished(folder: Path) -> tuple[dict[str, tuple[Line, ...]], int]:
    """The records of finished jobs by name of the job, and the number of damaged lines."""
    jobs: dict[str, tuple[Line, ...]] = {}
    group: list[Line] = []
    damaged = 0
    for line in _lines(folder / RECORDS):
        damaged += line is None
        before = {(each.key, each.job, each.of) for each in group}
        if line is None or line.part == 1 or (line.key, line.job, line.of) not in before:
            group = []
        group = [*group, line] if line is not None and line.part == len(group) + 1 else []
        if group and group[-1].part == group[-1].of:
            jobs[group[-1].job] = tuple(group)
    return jobs, damaged


def texts(folder: Path, lines: Sequence[Line]) -> Iterator[dict[str, str]]:
    """The complete records of some lines, without the store's heads: the JSON text of each field."""
    for data in raw(folder, lines):
        try:
            record = texts_in(data)
            del record["zoo"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UsageError(f"{folder / RECORDS} is damaged, or was changed meanwhile") from None
        yield record


def raw(folder: Path, lines: Sequence[Line]) -> Iterator[bytes]:
    """The bytes of some lines."""
    try:
        with opened(folder / RECORDS, own=True) as file:
            for line in lines:
                file.seek(line.offset)
                yield file.read(line.length)
    except OSError as error:
        raise _unreadable(folder / RECORDS, error) from None


def merged(folders: Sequence[Path], target: Path) -> About:
    """Joins runs to a new one, completely or not at all; if two have the same job, the later run counts."""
    about = _joined([read_about(folder) for folder in folders])
    found = [finished(folder)[0] for folder in folders]
    last = {job: index for index, jobs in enumerate(found) for job in jobs}
    if os.path.lexists(target):
        raise UsageError(f"{target} is there already; runs are put into a new folder")
    new = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with Store(new, target) as store:
            for index, (folder, jobs) in enumerate(zip(folders, found, strict=True)):
                for job, lines in jobs.items():
                    if last[job] == index and all(_stands(line, jobs, found, last) for line in lines):
                        store.append_raw(b"".join(raw(folder, lines)))
        write_about(new, about, target)
        with own_folder(target.parent) as around:
            around.rename(new.name, target.name)
        sync(target.parent)
    except OSError as error:
        raise unwritable(target, error) from None
    finally:
        with suppress(OSError), own_folder(target.parent) as around:
            around.remove(new.name)
    return about


def _joined(abouts: Sequence[About]) -> About:
    """The description of runs that are one: their sources, jobs and gates together, and the options of the first."""
    first, gates = abouts[0], {gate for about in abouts for gate in about.fail_on}
    return replace(
        first,
        sources=tuple(dict.fromkeys(source for about in abouts for source in about.sources)),
        options={name: value for name, value in first.options.items() if name != "shard"},
        shard="",
        jobs=tuple(sorted({job for about in abouts for job in about.jobs})),
        shards=_shards(abouts),
        fail_on=tuple(gate for gate in GATES if gate in gates),
        waives={n: v for n, v in first.waives.items() if all(each.waives.get(n) == v for each in abouts)},
    )


def _shards(abouts: Sequence[About]) -> tuple[str, ...]:
    """The shards among runs, those that were merged to one of them too; none of sources that another run has whole."""
    parts = {(about.sources, shard) for about in abouts for shard in ((about.shard,) if about.shard else about.shards)}
    whole = {about.sources for about in abouts if not (about.shard or about.shards)}
    return tuple(sorted({shard for sources, shard in parts if sources not in whole}))


def _stands(
    line: Line,
    own: Mapping[str, Sequence[Line]],
    found: Sequence[Mapping[str, Sequence[Line]]],
    last: Mapping[str, int],
) -> bool:
    """True for all but a copy of a check that another run has replaced: it is left out, to be done again."""
    first = line.check.copy_of
    return not first or (first in own and [*map(_told, own[first])] == [*map(_told, found[last[first]][first])])


def _told(line: Line) -> tuple[str, str, str]:
    return line.key, line.check.id, line.check.status


def differing(folders: Sequence[Path]) -> str:
    """A sentence about the differences of runs that should be shards of one; "" if there are none."""
    abouts = [read_about(folder) for folder in folders]
    options = [{name: value for name, value in about.options.items() if name != "shard"} for about in abouts]
    names = ["versions"] * (len({about.version for about in abouts}) > 1)
    names += ["sources"] * (len({about.sources for about in abouts}) > 1)
    names += ["options"] * any(each != options[0] for each in options)
    names += ["waivers, which count where all have them"] * any(each.waives != abouts[0].waives for each in abouts)
    return f"the runs differ in {' and '.join(names)}" if names else ""


def _lines(path: Path) -> Iterator[Line | None]:
    """The lines of a file, None for a damaged one; an incomplete last line is left out."""
    offset = 0
    try:
        with opened(path, own=True) as file:
            while data := file.readline(_LONGEST):
                if data.endswith(b"\n"):
                    yield _line(data, offset)
                offset += len(data)
    except FileNotFoundError:
        return
    except OSError as error:
        raise _unreadable(path, error) from None


def _line(data: bytes, offset: int) -> Line | None:
    """A line, of which only the head is parsed; None if it is damaged."""
    for end in (_HEAD, len(data)):
        with suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            text = data[:end].decode("ascii")
            if not text.startswith(_START) or not data.endswith(b"}\n"):
                return None
            head = _DECODER.raw_decode(text, len(_START))[0]
            numbers = int(head["part"]), int(head["of"]), float(head["timeout"])
            found, job = _brief(head), str(head["job"])
            return Line(
                str(head["key"]), found.check if found.check == job else job, *numbers, found, offset, len(data)
            )
    return None


def _brief(outcome: Mapping[str, Any]) -> Check:
    """A record reduced to its outcome."""
    waiver, until = outcome["waiver"], (outcome["waiver"] or {}).get("until")
    if (outcome["status"] not in EXIT_CODES and outcome["status"] != "error") or not isinstance(until, str | None):
        raise ValueError(outcome["status"], until)
    cut = tuple(Spot(int(s["node"]), str(s["op"]), str(s["name"]), str(s["inside"])) for s in outcome.get("cut") or ())
    check, uri = str(outcome["check"]), str(outcome["uri"])
    return outcome_record(
        id=str(outcome["id"]), check=check, status=sys.intern(outcome["status"]), code=sys.intern(str(outcome["code"])),
        gradient={"severed": Severed(cut)} if "cut" in outcome else None, uri=check if check == uri else uri,
        gates=tuple(map(str, outcome["gates"])), waiver=waiver, duration_s=float(outcome["duration_s"]),
        copy_of=sys.intern(str(outcome.get("copy_of", ""))),
    )  # fmt: skip


def _outcome(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record that a summary needs."""
    kept = {name: record[name] for name in ("id", "check", "status", "code")}
    more = {"gates": record.get("gates", ()), "waiver": record.get("waiver")}
    if (cut := (record.get("gradient") or {}).get("severed")) is not None:
        more["cut"] = cut.get("cut", ())
    if record.get("copy_of"):
        more["copy_of"] = record["copy_of"]
    uri, duration = record.get("model", {}).get("uri", record["check"]), record.get("duration_s", 0.0)
    return {**kept, **more, "uri": uri, "duration_s": duration}


def _without_torn_end(file: int) -> int:
    """Truncates a file after its last complete line; gives its size."""
    size = end = os.fstat(file).st_size
    while end:
        start = max(0, end - (1 << 16))
        if (found := os.pread(file, end - start, start).rfind(b"\n")) >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(file, end)
        os.fsync(file)
    return end


def _unreadable(path: Path, error: OSError) -> UsageError:
    return UsageError(f"{path} cannot be read: {error.strerror or error}")
