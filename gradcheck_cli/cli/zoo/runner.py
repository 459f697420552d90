"""A zoo run: finds the jobs, skips those done before, runs the rest, prints the results."""

from __future__ import annotations

import glob
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import rich_click as click
from msgspec.structs import replace

from gradcheck_cli.cli import interrupts, note
from gradcheck_cli.cli.baseline import gates_of, waivers_in
from gradcheck_cli.cli.config import settings_above
from gradcheck_cli.cli.options import Parsed, names_at, options_of, put_over
from gradcheck_cli.cli.tasks import common_folder, is_model
from gradcheck_cli.cli.zoo.jobs import LEVEL, Maker, ModelPlace, places, split, unmade
from gradcheck_cli.cli.zoo.results import Results, tell_damaged
from gradcheck_cli.cli.zoo.run_progress import ZooProgress
from gradcheck_cli.cli.zoo.start import HOME, RUN_OPTIONS
from gradcheck_cli.errors import GradcheckError, UsageError, counted, plural, quoted, shown
from gradcheck_cli.formats.untrusted import sha256_of_text
from gradcheck_cli.graph.memory import spell
from gradcheck_cli.results import check_from_json, check_from_texts
from gradcheck_cli.results.record import Check, FirstCheck, Report
from gradcheck_cli.zoo import LEAST, MEMORY, TIMEOUT, Job, Limits, cores, engine
from gradcheck_cli.zoo.parcel import expected_seconds, shared_out, states_of
from gradcheck_cli.zoo.remote import reaching
from gradcheck_cli.zoo.shelf import hide_from_git
from gradcheck_cli.zoo.store import (
    ABOUT,
    About,
    Line,
    Store,
    finished,
    is_run,
    read_about,
    texts,
    write_about,
)  # fmt: skip

# options that are not stored with a run, and are ignored if its folder has them
_OF_ONE_TIME = {"folder", "rerun", "show", "fail_fast", "allow_python", "allow_local", *names_at("Output")}


_PATIENCE = 0.5  # seconds after which a waiting thread sees that the run was stopped
_ALIKE = 5  # models that are named


def begin(sources: Sequence[str], given: Mapping[str, Any], ctx: click.Context) -> int:
    """Checks the models of some sources, and gives the exit code."""
    folder = _kept_at(given["folder"], sources) if given.get("folder") else _free(sources, given.get("shard"))
    if given.get("seed") == "random":  # one seed for all models, also when the run is resumed
        given = {**given, "seed": secrets.randbelow(1 << 31)}
    return _run(sources, given, folder, ctx)


def _kept_at(folder: str, sources: Sequence[str]) -> Path:
    """The folder that was given; a note if it holds a run of none of the sources, UsageError for one of models."""
    path = Path(folder)
    if is_run(path) and (about := _told(path)) and _identities(*about).isdisjoint(_identities(os.getcwd(), sources)):
        note(f"{folder} held a run of {shown(' '.join(about[1]))}, which this one takes the place of")
    if not is_run(path) and (models := [name for name in _listing(path) if is_model(name)]):
        raise UsageError(f"{folder} holds {shown(models[0])} and no run; give a new folder by --run")
    return path


def _free(sources: Sequence[str], shard: tuple[int, int] | None) -> Path:
    """The default folder of a run; where it holds a run of other sources, one with their mark in its name."""
    path = Path(HOME, _name_of(sources, shard))
    wanted = _identities(os.getcwd(), sources)
    if not is_run(path) or (about := _told(path)) is None or _identities(*about) == wanted:
        return path
    return path.with_name(f"{path.name}-{sha256_of_text(chr(10).join(sorted(wanted)))[:8]}")


def _told(run: Path) -> tuple[str, tuple[str, ...]] | None:
    """The working folder and the sources of a run; None for one that cannot be read, and is written anew."""
    with suppress(UsageError):
        about = read_about(run)
        return about.folder, about.sources
    return None


def _identities(folder: str, sources: Iterable[str]) -> set[str]:
    """Sources as they are seen from everywhere."""
    return {each if "://" in each else os.path.normpath(os.path.join(folder, each)) for each in sources}


def _listing(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:  # not there yet, or said when it is written to
        return []


def go_on(folder: str, given: Mapping[str, Any], ctx: click.Context) -> int:
    """Resumes a run; options in `given` override those of the run."""
    about, place = read_about(Path(folder)), Path(os.path.abspath(folder))
    reports = tuple(os.path.abspath(path) + "/" * path.endswith("/") for path in given.get("report", ()))
    typed = {name: os.path.abspath(given[name]) for name in ("baseline", "plot") if given.get(name)}
    options = as_given(about.options, str(Path(folder, ABOUT)))
    kept = {name: value for name, value in options.items() if name not in _OF_ONE_TIME}
    options = {**kept, **given, **typed, **({"report": reports} if reports else {})}
    try:
        with chdir(about.folder):
            return _run(about.sources, options, place, ctx)
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{folder} was begun in {about.folder}, which is gone; run `gradcheck zoo` again") from None


def _run(sources: Sequence[str], given: Mapping[str, Any], folder: Path, ctx: click.Context) -> int:
    with reaching(local=bool(given.get("allow_local"))):
        return _ran(sources, given, folder, ctx)


def _ran(sources: Sequence[str], given: Mapping[str, Any], folder: Path, ctx: click.Context) -> int:
    found = places(sources)
    near = common_folder([place.path for place in found if place.path] or ["."])
    options = put_over(settings_above(near, ctx), given)
    if (options.get("memory_limit") or LEAST) < LEAST:
        raise UsageError(f"--memory-limit is less than a process takes at its start; give {spell(LEAST)} or more")
    shard, every = given.get("shard"), split(found, options)
    wanted = _of_shard(every, *shard) if shard else every
    if not wanted:
        note(f"none of {counted(len(every), 'check')} is in this shard")
    kept = {name: value for name, value in given.items() if name not in _OF_ONE_TIME}
    jobs = tuple(place.job for place in wanted)
    part = "{}/{}".format(*shard) if shard else ""
    with Store(folder) as store:
        if folder.parts[-3:-1] == Path(HOME).parts:
            with suppress(OSError):
                hide_from_git(folder.parent.parent)
        run = ZooRun(wanted, store, given, options, ctx)  # refuses what cannot be read, before it is kept
        gates, waives = gates_of({**options, "exit_zero": False}), waivers_in(options)
        write_about(folder, About(tuple(sources), kept, os.getcwd(), part, jobs, fail_on=gates, waives=waives))
        return run.run()


def _of_shard(every: Sequence[ModelPlace], index: int, number: int) -> list[ModelPlace]:
    """The places of one shard of several, which take about the same time; it may be none."""
    seconds = cache(expected_seconds)
    shards = shared_out({place.job: seconds(Path(place.path) if place.path else None) for place in every}, number)
    return [place for place in every if shards[place.job] == index]


class StructureState(NamedTuple):
    """The first check of a structure once it has ended, with its key; without it copies are checked by themselves."""

    first: FirstCheck | None
    key: str = ""


@dataclass(slots=True)
class Structures:
    """The models of each structure: which one is checked first, and what its copies may refer to.

    A copy refers to a check that has ended and passed.  As soon as a check of a structure does not pass, all further
    models of it are checked by themselves.  The key of a copy covers that of its first check, so that it is done again
    when that model has changed.
    """

    store: Store
    former: set[str]  # jobs that earlier copies refer to
    known: dict[str, StructureState] = field(default_factory=dict)  # those of the first checks, by structure
    others: dict[tuple[str, str], StructureState] = field(default_factory=dict)  # of former ones, by structure and job
    families: dict[str, dict[str, str]] = field(default_factory=dict)  # family -> structure -> its first job
    alike: dict[str, str] = field(default_factory=dict)  # job -> one that differs by an optimizer's level only
    running: set[str] = field(default_factory=set)
    news: threading.Condition = field(default_factory=threading.Condition)

    def named(self, name: str, job: Job) -> Job:
        """The job with the one that differs from it only by an optimizer's level, if there is any."""
        if not job.structure or not job.family:
            return job
        family = self.families.setdefault(job.family, {})
        first = family.setdefault(job.structure, name)
        others = [each for each in family.values() if each != first]
        if first == name and others:
            self.alike[name] = others[0]
        return replace(job, alike=self.alike.get(name, ""))

    def state(self, job: Job, lines: Sequence[Line]) -> StructureState | None:
        """The first check that a job may refer to; None if there is none yet."""
        state = self.known.get(job.structure)
        if state is not None and state.first is None:
            return state
        former = ((job.structure, line.check.copy_of) for line in lines)
        return next((self.others[each] for each in former if each in self.others), state)

    def begun(self, structure: str) -> None:
        with self.news:
            self.running.add(structure)

    def ended(self, structure: str, name: str, key: str, checks: Sequence[Check]) -> None:
        """Notes the check of a model that was no copy."""
        made = StructureState(FirstCheck.of(name, checks), key)
        with self.news:
            self.running.discard(structure)
            if made.first is None or structure not in self.known:
                self.known[structure] = made
            if name in self.former and made.first is not None:
                self.others[structure, name] = made
            self.news.notify_all()

    def found(self, structure: str, name: str, key: str, lines: Sequence[Line]) -> None:
        """Notes a check that was done before; its records are read where copies may refer to it."""
        if structure not in self.known or name in self.former:
            self.ended(structure, name, key, [*map(check_from_texts, texts(self.store.folder, lines))])

    def wait(self, structure: str, stopped: Callable[[], bool]) -> None:
        """Waits until no first check of a structure runs."""
        with self.news:
            while structure in self.running and not stopped():
                self.news.wait(_PATIENCE)


def key_of_copy(key: str, first: str) -> str:
    """The key of a copy, from its own and that of the first check."""
    return sha256_of_text(f"{key} copy of {first}")[:32]


class Begun(NamedTuple):
    """A job that was given to the engine: its name, its key as a check of its own, and its files as they were then."""

    name: str
    key: str
    files: tuple[object, ...]


@dataclass(slots=True)
class ZooRun:
    """A run over some places; their records go to the store."""

    places: Sequence[ModelPlace]
    store: Store
    given: Mapping[str, Any]
    options: Mapping[str, Any]
    ctx: click.Context
    results: Results = field(init=False)
    progress: ZooProgress = field(init=False)
    limits: Limits = field(init=False)
    before: Mapping[str, Sequence[Line]] = field(init=False)  # finished in earlier runs, by job
    structures: Structures = field(init=False)
    begun: dict[str, Begun] = field(default_factory=dict)  # by the key of a job
    changed: int = 0  # jobs whose files changed before they were checked
    stopped: bool = False  # by --fail-fast

    def __post_init__(self) -> None:
        self.results = Results(self.store.folder, self.options)
        self.before, damaged = finished(self.store.folder)
        again = any(place.job not in self.before for place in self.places)
        tell_damaged(self.store.path, damaged, again=again)
        former = {line.check.copy_of for lines in self.before.values() for line in lines} - {""}
        self.structures = Structures(self.store, former)
        shown = "off" if self.results.output.style.verbosity < 0 else self.options.get("progress", "auto")
        before = sum(self._counts(place.job) for place in self.places)
        self.progress = ZooProgress(shown, len(self.places), before)
        self.limits = Limits(
            jobs=self.options.get("jobs") or cores(),
            timeout=self.options.get("timeout") or TIMEOUT,
            memory=self.options.get("memory_limit") or MEMORY,
        )

    def run(self) -> int:
        """Runs all checks that are not done, prints the results, and gives the exit code."""
        began = time.monotonic()
        jobs = [place.job for place in self.places]
        try:
            with self.progress:
                waiting = self._jobs()
                if (first := next(waiting, None)) is not None:  # else no engine has to be started
                    self._run_engine(chain([first], waiting))
        except KeyboardInterrupt:
            interrupts.heard()
            raise KeyboardInterrupt(self.results.interrupted(jobs, time.monotonic() - began)) from None
        finally:
            self.stopped = True  # for the thread that waits for first checks
        self.before = {}  # they are read again with what is new
        if self.results.output.style.verbosity >= 0:
            self._say_alike()
            if self.changed:
                note(
                    f"{counted(self.changed, 'model')} touched during the run, to be checked again by the same command"
                )
            self._say_where(len(jobs))
        return self.results.end(jobs, time.monotonic() - began)

    def _say_alike(self) -> None:
        """Prints the models that differ from another only by an optimizer's level."""
        for job, other in [*self.structures.alike.items()][:_ALIKE]:
            note(f"{shown(job)} is {shown(other)} but for {LEVEL}: both are checked")
        if (more := len(self.structures.alike) - _ALIKE) > 0:
            note(
                f"and {more} more {plural(more, 'is', 'are')} as others but for an optimizer's level: "
                "notes in their records say of which"
            )

    def _say_where(self, jobs: int) -> None:
        """Prints the folder of the results, and a command that uses it."""
        folder = quoted(str(self.store.folder))
        if self.progress.kept:
            were = plural(self.progress.kept, "was", "were")
            kept = f"{self.progress.kept} of {counted(jobs, 'model')} {were} done before"
            note(f"{kept}, in {folder}; --rerun all does them again")
        elif self.results.output.for_people:
            note(f"results are kept in {folder}: gradcheck zoo report {folder} -o zoo.html")

    def _run_engine(self, jobs: Iterable[Job]) -> None:
        """Runs jobs on this machine, or on a cluster if one is named or asked for."""
        where = self.options.get("dask")
        if self.options.get("engine", "dask" if where else "local") == "local":
            stop = (lambda: self.stopped) if self.options.get("fail_fast") else None
            engine.run(jobs, self.limits, self._done, self.progress, stop=stop)
            return
        from gradcheck_cli.zoo import cluster

        limits = replace(self.limits, jobs=self.options.get("jobs") or 0)
        cluster.run(where or "", jobs, limits, self._done, self.progress)

    def _jobs(self) -> Iterator[Job]:
        """The jobs that are not done; the engine reads them in a thread of its own.

        Models whose structure is being checked come last, when that check has ended.
        """
        own = {name: self.options[name] for name in ("fail_on", "exit_zero", "save_failures") if name in self.options}
        once = bool(self.given.get("same_structure"))
        maker = Maker({**own, **self.given}, gates_of(self.options), self.ctx, once)  # `own`: the run's, not a model's
        waiting: list[ModelPlace] = []
        for place in self.places:
            if (job := self._made(maker, place)) is not None:
                yield from self._in_turn(place, job, waiting)
        for place in waiting:
            if (job := self._made(maker, place)) is not None:
                self.structures.wait(job.structure, lambda: self.stopped)
                yield from self._in_turn(place, job, None)

    def _made(self, maker: Maker, place: ModelPlace) -> Job | None:
        """The job of a place; None if the run is stopped, or if there is no model, which is recorded."""
        if self.stopped:
            return None
        try:
            return self.structures.named(place.job, maker.job(place))
        except (GradcheckError, OSError) as error:
            self._append(place.job, "", [unmade(place, error)])  # without a key, so that it is tried again
            self.progress.passed_over([unmade(place, error)])
        return None

    def _in_turn(self, place: ModelPlace, job: Job, waiting: list[ModelPlace] | None) -> Iterator[Job]:
        """The job, as a copy where its structure was checked before; nothing if it was done, or has to wait."""
        lines, structures = self.before.get(place.job, ()), self.structures
        if self._is_done(place.job, job):
            if job.structure:
                structures.found(job.structure, place.job, job.key, lines)
            self.progress.passed_over([])
            return
        state = structures.state(job, lines)
        copied = any(line.check.copy_of for line in lines)
        if waiting is not None and job.structure and (job.structure in structures.running or (copied and not state)):
            waiting.append(place)
            return
        made = job
        if state is not None and state.first is not None:
            made = replace(job, first=state.first, key=key_of_copy(job.key, state.key))
        elif job.structure:
            made = replace(job, first=FirstCheck())
        if made is not job and self._is_done(place.job, made):
            self.progress.passed_over([])
            return
        if job.structure and state is None:
            structures.begun(job.structure)
        self.begun[made.key] = Begun(place.job, job.key, states_of(job.files))
        yield made

    def _done(self, job: Job, records: Sequence[Mapping[str, Any]]) -> None:
        name, own, files = self.begun.pop(job.key)
        copied = any(record.get("copy_of") for record in records)
        stands = states_of(job.files) == files  # else nobody knows of which content the records tell
        self.changed += not stands
        key = (job.key if copied else own) if stands else ""  # without a key it is checked again by the next run
        self._append(name, key, records, job.time(self.limits.timeout) or 0.0)
        if job.structure and not copied:
            self.structures.ended(job.structure, name, own, [*map(check_from_json, records)] if stands else [])

    def _append(self, name: str, key: str, records: Sequence[Mapping[str, Any]], timeout: float = 0.0) -> None:
        self.store.append(name, key, records, timeout)
        if self.options.get("fail_fast"):
            judged = [*map(self.results.baseline.judged, map(check_from_json, records))]
            self.stopped |= bool(Report(judged, fail_on=gates_of(self.options)).exit_code)

    def _is_done(self, name: str, job: Job) -> bool:
        """True if a job was finished before, and nothing that its result depends on has changed."""
        lines = self.before.get(name, ())
        same = all(line.key == job.key for line in lines)
        return self._counts(name) and same and not any(_may_change(n, job.time(self.limits.timeout)) for n in lines)

    def _counts(self, name: str) -> bool:
        """True if a job has records that --rerun does not discard."""
        lines, again = self.before.get(name, ()), self.options.get("rerun")
        failed = any(not line.check.passes for line in lines)
        return bool(lines) and again != "all" and not (again == "failed" and failed)


def _may_change(line: Line, timeout: float | None) -> bool:
    """True if a record may differ now: there is more time, a waiver has expired, or it was an internal error."""
    until = (line.check.waiver or {}).get("until")
    waits = line.check.code == "GC601" and (timeout or float("inf")) > line.timeout
    return waits or line.check.code.startswith("GC9") or bool(until and until < date.today().isoformat())


def _name_of(sources: Iterable[str], shard: tuple[int, int] | None) -> str:
    """The default name of a run: the last part of the first source that is no pattern."""
    first, *more = sources
    parts = [part for part in os.path.abspath(first.partition("?")[0]).split("/") if not glob.has_magic(part)]
    name = re.sub(r"[^A-Za-z0-9._+-]+", "-", parts[-1] if parts else "").strip(".-")[:60] or "models"
    return name + f"-and-{len(more)}-more" * bool(more) + ("-{}of{}".format(*shard) if shard else "")


def as_given(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The options of a run, read back from a file; raises a UsageError for values that no command line can give."""
    options = {each.name: each for each in (*RUN_OPTIONS, *options_of("zoo")) if isinstance(each, click.Option)}
    for name, value in given.items():
        if name not in options or not _could_be_given(value, options[name]):
            raise UsageError(f"{where}: {shown(name)} cannot be {shown(repr(value))[:60]}; run `gradcheck zoo` again")
    return {**given}


def _could_be_given(value: Any, option: click.Option) -> bool:
    """True if a command line can give an option this value: the option's type makes it of the value's text."""
    if option.is_flag or option.count:
        return type(value) is (int if option.count else bool)
    kind, several = option.type, isinstance(value, tuple) and option.multiple
    spell, each = kind.spell if isinstance(kind, Parsed) else str, value if several else [value]
    try:
        made = [kind.convert(spell(one), option, None) for one in each]
    except (click.BadParameter, TypeError, ValueError, ArithmeticError):
        return False
    same = (type(one) is type(other) and bool(one == other) for one, other in zip(made, each, strict=True))
    return several == option.multiple and all(same)
