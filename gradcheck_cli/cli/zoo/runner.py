"""A zoo run: finds the jobs, skips those done before, runs the rest, prints the results."""

from __future__ import annotations

import glob
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import rich_click as click

from gradcheck_cli.cli import interrupts, note
from gradcheck_cli.cli.baseline import gates_of
from gradcheck_cli.cli.config import settings_above
from gradcheck_cli.cli.options import Parsed, names_at, options_of
from gradcheck_cli.cli.reproduce import quoted
from gradcheck_cli.cli.tasks import common_folder
from gradcheck_cli.cli.zoo.jobs import Maker, ModelPlace, places, split, unmade
from gradcheck_cli.cli.zoo.results import Results
from gradcheck_cli.cli.zoo.run_progress import ZooProgress
from gradcheck_cli.cli.zoo.start import HOME, RUN_OPTIONS
from gradcheck_cli.errors import GradcheckError, UsageError, shown
from gradcheck_cli.report.text import count
from gradcheck_cli.results.record import Report
from gradcheck_cli.zoo import engine
from gradcheck_cli.zoo.job import MEMORY, TIMEOUT, Job, Limits, cores
from gradcheck_cli.zoo.parcel import expected_seconds, shared_out
from gradcheck_cli.zoo.remote import reaching
from gradcheck_cli.zoo.shelf import hide_from_git
from gradcheck_cli.zoo.store import ABOUT, About, Line, Store, brief, finished, read_about, write_about

# options that are not stored with a run, and are ignored if its folder has them
_OF_ONE_TIME = {"folder", "rerun", "show", "fail_fast", "allow_python", "allow_local", *names_at("Output")}


def begin(sources: Sequence[str], given: Mapping[str, Any], ctx: click.Context) -> int:
    """Checks the models of some sources, and gives the exit code."""
    folder = Path(given.get("folder") or os.path.join(HOME, _name_of(sources, given.get("shard"))))
    if given.get("seed") == "random":  # one seed for all models, also when the run is resumed
        given = {**given, "seed": secrets.randbelow(1 << 31)}
    return _run(sources, given, folder, ctx)


def go_on(folder: str, given: Mapping[str, Any], ctx: click.Context) -> int:
    """Resumes a run; options in `given` override those of the run."""
    about, place = read_about(Path(folder)), Path(os.path.abspath(folder))
    reports = tuple(os.path.abspath(path) + "/" * path.endswith("/") for path in given.get("report", ()))
    options = as_given(about.options, str(Path(folder, ABOUT)))
    kept = {name: value for name, value in options.items() if name not in _OF_ONE_TIME}
    options = {**kept, **given, **({"report": reports} if reports else {})}
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
    options = {**settings_above(near, ctx), **given}
    shard, every = given.get("shard"), split(found, options)
    wanted = _of_shard(every, *shard) if shard else every
    if not wanted:
        note(f"none of {count(len(every), 'check')} is in this shard")
    kept = {name: value for name, value in given.items() if name not in _OF_ONE_TIME}
    jobs = tuple(place.job for place in wanted)
    part = "{}/{}".format(*shard) if shard else ""
    with Store(folder) as store:
        if folder.parts[-3:-1] == Path(HOME).parts:
            with suppress(OSError):
                hide_from_git(folder.parent.parent)
        write_about(folder, About(tuple(sources), kept, os.getcwd(), part, jobs))
        return ZooRun(wanted, store, given, options, ctx).run()


def _of_shard(every: Sequence[ModelPlace], index: int, number: int) -> list[ModelPlace]:
    """The places of one shard of several, which take about the same time; it may be none."""
    seconds = cache(expected_seconds)
    shards = shared_out({place.job: seconds(Path(place.path) if place.path else None) for place in every}, number)
    return [place for place in every if shards[place.job] == index]


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
    names: dict[str, str] = field(default_factory=dict)  # key of a job -> its name
    stopped: bool = False  # by --fail-fast

    def __post_init__(self) -> None:
        self.results = Results(self.store.folder, self.options)
        self.before, damaged = finished(self.store.folder)
        if damaged:
            note(f"{self.store.path}: {count(damaged, 'damaged line')} left out, to be checked again")
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
        if self.results.output.style.verbosity >= 0:
            self._say_where(len(jobs))
        return self.results.end(jobs, time.monotonic() - began)

    def _say_where(self, jobs: int) -> None:
        """Prints the folder of the results, and a command that uses it."""
        folder = quoted(str(self.store.folder))
        if self.progress.kept:
            kept = f"{self.progress.kept} of {count(jobs, 'model')} were done before"
            note(f"{kept}, in {folder}; --rerun all does them again")
        elif self.results.output.for_people:
            note(f"results are kept in {folder}: gradcheck zoo report {folder} -o zoo.html")

    def _run_engine(self, jobs: Iterable[Job]) -> None:
        """Runs jobs on this machine, or on a cluster if one is named or asked for."""
        where = self.options.get("dask")
        if self.options.get("engine", "dask" if where else "local") == "local":
            engine.run(jobs, self.limits, self._done, self.progress)
            return
        from gradcheck_cli.zoo import cluster

        limits = replace(self.limits, jobs=self.options.get("jobs") or 0)
        cluster.run(where or "", jobs, limits, self._done, self.progress)

    def _jobs(self) -> Iterator[Job]:
        """The jobs that are not done; the engine reads them in a thread of its own."""
        own = {name: self.options[name] for name in ("fail_on", "exit_zero", "save_failures") if name in self.options}
        maker = Maker({**own, **self.given}, gates_of(self.options), self.ctx)  # `own`: the run's, not a model's
        for place in self.places:
            if self.stopped:
                return
            try:
                job = maker.job(place)
            except GradcheckError as error:
                self._append(place.job, "", [unmade(place, error)])  # without a key, so that it is tried again
                self.progress.passed_over([unmade(place, error)])
                continue
            if self._is_done(place.job, job):
                self.progress.passed_over([])
            else:
                self.names[job.key] = place.job
                yield job

    def _done(self, job: Job, records: Sequence[Mapping[str, Any]]) -> None:
        self._append(self.names.pop(job.key), job.key, records, job.time(self.limits.timeout) or 0.0)

    def _append(self, name: str, key: str, records: Sequence[Mapping[str, Any]], timeout: float = 0.0) -> None:
        self.store.append(name, key, records, timeout)
        if self.options.get("fail_fast"):
            judged = [*map(self.results.baseline.judged, brief(records))]
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
