"""One run of `gradcheck check`: tasks one after another, each giving records whatever happens in it."""

from __future__ import annotations

import datetime
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import rich_click as click

from gradcheck_cli.checks.assemble import failed_record
from gradcheck_cli.checks.checking import check
from gradcheck_cli.cli.baseline import Baseline
from gradcheck_cli.cli.bugs import describe_bug
from gradcheck_cli.cli.bundles import FOLDER, Bundles, Keeper
from gradcheck_cli.cli.check_options import GATE, GATED, OUTPUT
from gradcheck_cli.cli.config import file_above, settings_above
from gradcheck_cli.cli.gates import with_gates
from gradcheck_cli.cli.limits import time_limit
from gradcheck_cli.cli.models import Found, common_folder, expand
from gradcheck_cli.cli.output import Output
from gradcheck_cli.cli.progress import Progress
from gradcheck_cli.cli.reproduce import command_for
from gradcheck_cli.cli.resolve import dims_of, resolve
from gradcheck_cli.cli.selection import select
from gradcheck_cli.cli.tasks import Planner, Task, raising
from gradcheck_cli.cli.waivers import with_waiver
from gradcheck_cli.errors import GradcheckError, LimitError, UsageError
from gradcheck_cli.formats.source import Source
from gradcheck_cli.memory import exhausted, held
from gradcheck_cli.record import Check, ModelInfo, Report
from gradcheck_cli.report.text import count
from gradcheck_cli.settings import Settings

OF_THE_RUN = tuple(option.name for option in (*GATE, *OUTPUT) if option.name)


def run(models: Sequence[str], given: Mapping[str, Any], ctx: click.Context) -> int:
    """Checks models and gives the exit code."""
    found = expand(models)
    options = {**settings_above(common_folder(found.files), ctx), **given}
    baseline = Baseline.read(options["baseline"]) if options.get("baseline") else Baseline("", {})
    return Run(planned(found, options), given, options, ctx, baseline).run()


def planned(found: Found, options: Mapping[str, Any]) -> list[Task]:
    """The tasks that were chosen; an argument that means no file is a task that says so."""
    dims = dims_of(options.get("dim", ()))
    tasks = Planner(options, dims, bool(options.get("allow_python"))).tasks(found.files)
    tasks += [Task(argument, argument, raising(error)) for argument, error in found.missing]
    if options.get("check") or options.get("expression") is not None:
        names = [task.name for task in tasks]
        tasks = [tasks[i] for i in select(names, options.get("check", ()), options.get("expression"))]
    return tasks


@dataclass(slots=True)
class Run:
    """Tasks with the options of the run; `given` are those that were typed or set in the environment."""

    tasks: Sequence[Task]
    given: Mapping[str, Any]
    options: Mapping[str, Any]
    ctx: click.Context
    baseline: Baseline
    output: Output = field(init=False)
    progress: Progress = field(init=False)
    bundles: Bundles = field(init=False)
    seed: int = field(init=False)
    records: list[Check] = field(default_factory=list)
    noted: set[str] = field(default_factory=set)  # configuration files of which something was said
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.output = Output(self.options)
        verbose = self.options.get("verbose", 0) > self.options.get("quiet", 0)
        self.progress = Progress(self.options.get("progress", "auto"), verbose=verbose)
        self.bundles = Bundles(self.options.get("save_failures", FOLDER))
        self.seed = secrets.randbelow(1 << 31)  # of whatever asks for a random one

    def run(self) -> int:
        """All tasks, what is printed of them, and the exit code."""
        try:
            self._do_all()
        except KeyboardInterrupt:
            if self.output.for_people and self.records:
                self.output.end(self._report())
            raise
        report = self._report()
        self.output.write_reports(report)
        self.output.end(report)
        self.bundles.say()
        if repaired := self.baseline.repaired:
            _note(f"{self.baseline.path}: {count(len(repaired), 'check')} of it passed: write it anew")
        return report.exit_code

    def _do_all(self) -> None:
        for task in self.tasks:
            with self.bundles.watching(task) as keeper:
                checks = keeper.ended(self._do(task, keeper))
            self.records.extend(replace(c, picture=None) for c in checks)
            self.output.section(checks, task.said.get("show"))
            self.output.draw(checks)
            if self.options.get("fail_fast") and self._report().exit_code:
                break

    def _do(self, task: Task, keeper: Keeper) -> tuple[Check, ...]:
        """The records of one task, waived where its spec says so."""
        start = time.perf_counter()
        self.progress.begin(task.name)
        try:
            checks = self._checked(task, keeper)
        except (GradcheckError, MemoryError, RecursionError) as error:
            checks = self._failed(task, _as_ours(error), error)
        except Exception as error:
            checks = self._failed(task, GradcheckError(describe_bug(error)), error)
        finally:
            self.progress.done()
        share = (time.perf_counter() - start) / max(len(checks), 1)
        checks = tuple(c if c.duration_s else replace(c, duration_s=round(share, 4)) for c in checks)
        waived = self.baseline.waived(with_waiver(checks, task.expect, datetime.date.today()))
        return tuple(with_gates(check, self.gates) for check in waived)

    def _checked(self, task: Task, keeper: Keeper) -> tuple[Check, ...]:
        layers = self._layers(task)
        timeout = next((layer["timeout"] for layer in reversed(layers) if layer.get("timeout")), None)
        with held(), time_limit(timeout):
            source = task.load()
            settings = self._settings(source, layers)
            keeper.begin(source, settings)
            settings = replace(settings, pictures=self.output.draws)
            checks = check(source, settings, name=task.name, listen=self.progress, see=keeper.see)
        return tuple(replace(c, reproduce=self._command(c, task)) for c in checks)

    def _layers(self, task: Task) -> list[Mapping[str, Any]]:
        """What bears on one task, from the weakest to the strongest."""
        folder = os.path.dirname(task.path) or "."
        config = settings_above(folder, self.ctx)
        self._note_idle(config, folder)
        asked = {"dtype": "model"} if "precision" in self.gates else {}
        return [self._seeded(layer) for layer in ({**asked, **config}, task.said, self.given)]

    def _settings(self, source: Source, layers: Sequence[Mapping[str, Any]]) -> Settings:
        settings = resolve(source, layers)
        if "precision" in self.gates and settings.dtype == "float64":
            raise UsageError("--fail-on precision asks for the gradient in the model's own dtype: --dtype model.")
        return settings

    def _command(self, found: Check, task: Task) -> str:
        return command_for(found, task, self.given)

    def _note_idle(self, config: Mapping[str, Any], folder: str) -> None:
        """Of several models, what concerns the run as a whole is not up to the file beside one of them."""
        idle = [name for name in OF_THE_RUN if name in config and self.options.get(name) != config[name]]
        file = file_above(folder, self.ctx)
        if file not in self.noted and not self.given.keys() >= set(idle):
            self.noted.add(file)
            names = ", ".join(name for name in idle if name not in self.given)
            _note(f"{file}: {names} has no effect here: it lies below some of the models")

    def _seeded(self, layer: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**layer, "seed": self.seed} if layer.get("seed") == "random" else layer

    def _failed(self, task: Task, error: GradcheckError, cause: BaseException) -> tuple[Check, ...]:
        """The record of a task that gave none; alone and for people, the error itself goes to stderr."""
        record = Check(id=task.name, check=task.name, status="error", code="", model=ModelInfo(task.path), x="", y="")
        failed = failed_record(record, error)
        expected = (task.expect or {}).get("status") == failed.status or self.baseline.covers(failed)
        alone = self._report(failed)
        if len(self.tasks) == 1 and self.output.for_people and not expected and alone.exit_code:
            self.output.write_reports(alone)
            raise cause if error.exit_code == 70 else error
        return (failed,)

    @property
    def gates(self) -> tuple[str, ...]:
        """What fails the run: words of a gradient's health alone leave the outcomes that do as they are."""
        said = () if self.options.get("exit_zero") else self.options.get("fail_on", GATED)
        return (*GATED, *said) if said and set(said).isdisjoint(GATED) else tuple(said)

    def _report(self, *more: Check) -> Report:
        return Report((*self.records, *more), (), time.monotonic() - self.began, self.gates)


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)


def _as_ours(error: BaseException) -> GradcheckError:
    if isinstance(error, GradcheckError):
        return error
    if isinstance(error, MemoryError):
        return exhausted(error)
    return LimitError("the model is nested too deeply", code="GC603")
