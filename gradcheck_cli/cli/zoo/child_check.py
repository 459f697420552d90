"""The work of a zoo's child process: `gradcheck check` for one job, with records in place of printed output."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import rich_click as click
from msgspec import structs

from gradcheck_cli.checks.estimates import Forecast, largest
from gradcheck_cli.checks.forward.runtime import lend
from gradcheck_cli.checks.isolation import resident
from gradcheck_cli.cli.baseline import gates_of
from gradcheck_cli.cli.bundles import Bundles
from gradcheck_cli.cli.check import command
from gradcheck_cli.cli.checker import Checker
from gradcheck_cli.cli.resolve import dims_of
from gradcheck_cli.cli.tasks import Planner, Task, raising, targets_said
from gradcheck_cli.cli.zoo.jobs import LEVEL
from gradcheck_cli.errors import GradcheckError, UsageError
from gradcheck_cli.graph.memory import has_part
from gradcheck_cli.native.selection import kernels
from gradcheck_cli.results.record import Check, SpecPlace
from gradcheck_cli.zoo import Job
from gradcheck_cli.zoo.child import Desk
from gradcheck_cli.zoo.shelf import FOLDER

_CHECK, _JACOBIANS = 0.75, 0.25  # parts of a child's memory: for the check, and reserved for Jacobians


def records(job: Job, desk: Desk) -> Iterator[Mapping[str, Any]]:
    """The records of a job, task by task, as strict JSON."""
    if kernels is not None:
        kernels.set_threads(desk.threads)
    if job.options.get("forward") is None:
        lend()  # before there are threads, which a fork would not copy
    checker = _checker(job, desk)
    tasks = _tasks(job)
    desk.tasks(len(tasks))
    checker.first = job.first if len(tasks) == 1 else None
    for task in tasks[desk.errand.first :]:
        desk.begin(task.name)
        for check in checker.check(task):
            model, notes = replace(check.model, uri=job.uri), (*check.notes, *_alike(job))
            yield replace(check, model=model, place=_placed(check, job), notes=notes).as_json(pictured=True)


def _alike(job: Job) -> Iterator[str]:
    """A note that a model differs from another only by an optimizer's level: it is checked nevertheless."""
    if job.alike:
        yield f"as {job.alike} but for {LEVEL}: checked by itself"


def _placed(check: Check, job: Job) -> SpecPlace:
    """The place of a check under the name that its spec has for users; none in a copy that was fetched of another file."""
    if not check.place or "://" not in job.uri:
        return check.place
    return {**check.place, "file": job.uri} if check.place["file"] == job.path else {}


def _checker(job: Job, desk: Desk) -> Checker:
    options = {name: value for name, value in job.options.items() if name not in ("memory_limit", "timeout")}
    has_part(_CHECK)
    limit, jacobians = (int(share * desk.errand.memory) for share in (_CHECK, _JACOBIANS))
    return Checker(
        given={**options, "jobs": desk.threads},
        ctx=click.Context(command),
        bundles=Bundles(options.get("save_failures", FOLDER), shared=True),
        progress=DeskProgress(desk),
        gates=gates_of(options),
        unsaid={"timeout": desk.errand.timeout, "memory_limit": limit},
        pictures="wrong",
        see=lambda index, point: desk.needs(resident(os.getpid()) + largest(point, jacobians)),
    )


def _tasks(job: Job) -> list[Task]:
    """The checks of a job, with the names that their records have."""
    try:
        given = {**targets_said(job.said), **job.options}
        planner = Planner(given, dims_of(job.options.get("dim", ())), bool(job.options.get("allow_python")))
        tasks = _chosen(planner.tasks([job.path]), job.task)
    except GradcheckError as error:
        tasks = [Task(job.path, job.path, raising(error))]
    return [
        structs.replace(
            task,
            name=job.uri + task.name.removeprefix(job.path) if task.name.startswith(job.path) else task.name,
            said={**task.said, **job.said},
            expect=job.expect or task.expect,
        )
        for task in tasks
    ]


def _chosen(tasks: list[Task], wanted: str | int | None) -> list[Task]:
    """The task with a number or a name, or all."""
    if wanted is None:
        return tasks
    named = tasks[wanted : wanted + 1] if isinstance(wanted, int) else [t for t in tasks if wanted in (t.name, t.check)]
    if not named:
        raise UsageError(f"its check {wanted!r} is no longer there: the file has changed")
    return named


class DeskProgress:
    """Reports the progress of a check to the driver."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.title = desk, ""

    def begin(self, model: str) -> None:
        self.desk.stage("reading the model")

    def expect(self, forecasts: Iterable[Forecast]) -> None:
        self.desk.stage("comparing gradients")

    def start(self, title: str, total: int) -> None:
        self.title = title
        self.desk.stage(f"checking {title}")

    def advance(self, done: int, total: int) -> None:
        self.desk.stage(f"checking {self.title}", f"{done}/{total}")

    def done(self) -> None:
        pass
