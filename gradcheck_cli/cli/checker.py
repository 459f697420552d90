"""Checks one task within its limits, with all settings that bear on it; gives its records whatever happens."""

from __future__ import annotations

import datetime
import os
import secrets
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import rich_click as click
from msgspec import Struct, field, structs

from gradcheck_cli.checks.assemble import failed_record
from gradcheck_cli.checks.health.checkup import with_gates
from gradcheck_cli.checks.procedure import Listener, Procedure
from gradcheck_cli.cli import described, interrupts, note
from gradcheck_cli.cli.baseline import Baseline, with_waiver
from gradcheck_cli.cli.bundles import Bundles, Keeper
from gradcheck_cli.cli.config import blamed, settings_above
from gradcheck_cli.cli.limits import bounds_of, limits, time_limit
from gradcheck_cli.cli.limits import run as run_apart
from gradcheck_cli.cli.reproduce import command_for
from gradcheck_cli.cli.resolve import refuse_idle_rounding, resolve
from gradcheck_cli.cli.tasks import Task
from gradcheck_cli.errors import GradcheckError, LimitError, UsageError, shown
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph.memory import allowed, exhausted, held
from gradcheck_cli.points.dims import sizes_given
from gradcheck_cli.points.targets import choose_y, globs_said
from gradcheck_cli.results.record import Check, FirstCheck, ModelInfo
from gradcheck_cli.settings import Pictures, Settings

if TYPE_CHECKING:
    from gradcheck_cli.checks.isolation import Bounds
    from gradcheck_cli.checks.parts import Elsewhere
    from gradcheck_cli.points.point import Point


class Watcher(Listener, Protocol):
    """A listener that is told which model a check is about."""

    def begin(self, model: str) -> None: ...


class Checker(Struct):
    """Checks tasks, one at a time; settings come from `unsaid`, files, the task's spec and `given`, the last the strongest.

    `failing` is told of a task that gives no records of its own, and why; it may raise.
    """

    given: Mapping[str, Any]  # options that were typed, or set in the environment
    ctx: click.Context
    bundles: Bundles
    progress: Watcher
    gates: Sequence[str]
    unsaid: Mapping[str, Any] = field(default_factory=dict)
    baseline: Baseline = field(default_factory=Baseline)
    pictures: Pictures = "none"
    alone: bool = False  # all tasks are of one model
    failing: Callable[[Check, BaseException], None] = lambda failed, error: None
    see: Callable[[int, Point], None] | None = None  # each point, before anything is compared there
    apart: bool = False  # what comes with limits, or will take much, is checked in a process of its own
    first: FirstCheck | None = None  # of models of one structure; None where each is checked
    seed: int = field(default_factory=lambda: secrets.randbelow(1 << 31))  # of whatever asks for a random one

    def check(self, task: Task) -> tuple[Check, ...]:
        """The records of one task, waived where its spec or the baseline says so."""
        bounds = self._bounds(task) if self.apart else None
        if bounds is not None:
            return self._apart(task, bounds)
        task, start = task if task.whole is None else structs.replace(task.whole(), only=task.only), time.perf_counter()
        with self.bundles.watching(task) as keeper:
            self.progress.begin(task.name)
            try:
                with self._prepared(task, keeper) as (request, known):
                    shared = self.first is not None
                    checks = self._once(request, task.name) if shared else Procedure(**request).run(task.name)
                checks = tuple(replace(c, reproduce=self._command(c, task, known), place=task.place) for c in checks)
            except Exception as error:
                if interrupts.caused(error):
                    raise KeyboardInterrupt from None
                checks = self._failed(task, self._placed(task, _as_ours(error)), error)
            finally:
                self.progress.done()
            share = (time.perf_counter() - start) / max(len(checks), 1)  # of what pairs did not take themselves
            timed = [c if c.duration_s else replace(c, duration_s=round(share, 4)) for c in checks]
            return keeper.ended(self._judged(timed, task))

    def _once(self, request: Mapping[str, Any], name: str) -> tuple[Check, ...]:
        """The records of a model that may be a copy of one with the same structure."""
        from gradcheck_cli.checks import copies  # where many models are checked

        return copies.records(request, name, self.first or FirstCheck())

    def _judged(self, checks: Sequence[Check], task: Task) -> tuple[Check, ...]:
        """The records with waivers of the spec and of the baseline, and with the gates of the run."""
        expect = {**task.expect, "usual": True} if task.expect and task.only else task.expect  # the others may fail
        waived = with_waiver(tuple(checks), expect, datetime.date.today())
        return self.baseline.waived(tuple(with_gates(check, self.gates) for check in waived))

    def _bounds(self, task: Task) -> Bounds | None:
        """Bounds of the process that a task needs for itself; None where it needs none."""
        if is_elsewhere(self.given):
            return None
        with suppress(GradcheckError):  # said where it is checked
            return bounds_of(self._layers(task), task)
        return None

    def _apart(self, task: Task, bounds: Bounds) -> tuple[Check, ...]:
        """The records of one task that is checked in a process of its own."""
        from gradcheck_cli.checks.isolation import Interrupted, Stopped

        start, known = time.perf_counter(), self.baseline
        try:
            within = structs.replace(self, apart=False)
            checks, self.bundles.saved, self.bundles.lost, known.repaired, known.met = run_apart(
                lambda: (within.check(task), self.bundles.saved, self.bundles.lost, known.repaired, known.met),
                bounds,
                ask=self.given.get("forward") is None and task.model.lower().endswith(".onnx"),
            )
        except Stopped as error:
            path = self.bundles.adopt(error.process)
            stopped = self._failed(task, LimitError(str(error), code=error.code), error)
            seconds = round(time.perf_counter() - start, 4)
            return tuple(replace(c, bundle=path, duration_s=seconds) for c in self._judged(stopped, task))
        except Interrupted as error:
            self.bundles.drop(error.process)
            raise
        return checks

    @contextmanager
    def _prepared(self, task: Task, keeper: Keeper) -> Iterator[tuple[Mapping[str, Any], Container[str]]]:
        """The arguments of a task's check and the sizes known without it; limits of time and memory hold in the block."""
        layers = self._layers(task)
        timeout, memory = limits(layers)
        with held(allowed(memory)), time_limit(timeout):
            source = task.load()
            settings = self._settings(source, layers)
            if task.only:
                settings = replace(settings, x=task.only, params=False, param=())
            if self.alone:
                refuse_idle_rounding(self.ctx, settings, source)
            self._tell(source, settings, task.only)
            keeper.begin(source, settings)
            settings = replace(settings, pictures=self.pictures)
            settings, others = _others(source, settings, self.given, limited=memory is not None)
            request = {"source": source, "settings": settings, "listen": self.progress,
                       "see": partial(self._seen, keeper), "elsewhere": others}  # fmt: skip
            yield request, {*source.dims, *settings.dims, *sizes_given(source.graph, settings)}

    def _seen(self, keeper: Keeper, index: int, point: Point) -> None:
        keeper.see(index, point)
        if self.see is not None:
            self.see(index, point)

    def _layers(self, task: Task) -> list[Mapping[str, Any]]:
        """The sources of settings of one task, from the weakest to the strongest."""
        config = settings_above(os.path.dirname(task.path) or ".", self.ctx)
        asked = {"dtype": "model"} if "precision" in self.gates else {}
        weakest = {**self.unsaid, **asked, **config}
        return [self._seeded(layer) for layer in (weakest, task.said, self.given)]

    def _settings(self, source: Source, layers: Sequence[Mapping[str, Any]]) -> Settings:
        settings = resolve(source, layers)
        if "precision" in self.gates and settings.dtype == "float64":
            raise UsageError("--fail-on precision asks for the gradient in the model's own dtype: --dtype model.")
        return settings

    def _tell(self, source: Source, settings: Settings, only: Sequence[str]) -> None:
        """Prints the tensors that typed globs stand for, and those that -k chose, to stderr."""
        if only and not self.given.get("quiet"):
            note(shown(f"-k chooses {', '.join(only)} of {source.uri}"))
        typed = {name: self.given[name] for name in ("x", "y", "param") if self.given.get(name)}
        if typed and not self.given.get("quiet"):
            for text in globs_said(source.graph, settings.y or choose_y(source.graph), typed):
                note(shown(text))

    def _command(self, found: Check, task: Task, known: Container[str]) -> str:
        return command_for(found, task, self.given, known)

    def _seeded(self, layer: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**layer, "seed": self.seed} if layer.get("seed") == "random" else layer

    def _placed(self, task: Task, error: GradcheckError) -> GradcheckError:
        """An error, at its line where a configuration file has what is wrong."""
        if not isinstance(error, UsageError):
            return error
        return blamed(error, os.path.dirname(task.path) or ".", self.ctx, {**task.said, **self.given})

    def _failed(self, task: Task, error: GradcheckError, cause: BaseException) -> tuple[Check, ...]:
        """The record of a task that ended with an error."""
        model = ModelInfo(task.path)
        record = Check(task.name, task.name, status="error", code="", model=model, x="", y="", place=task.place)
        failed = failed_record(record, error)
        expected = (task.expect or {}).get("status") == failed.status or self.baseline.covers(failed)
        if not expected:
            self.failing(failed, cause if error.exit_code == 70 else error)
        return (failed,)


def _others(
    source: Source, settings: Settings, given: Mapping[str, Any], *, limited: bool
) -> tuple[Settings, Elsewhere | None]:
    """The settings, and the function that has a cluster compare the entries; `limited`: a memory limit was given."""
    if not is_elsewhere(given):
        return settings, None
    from gradcheck_cli.zoo.cluster import elsewhere, on_workers  # where somebody asks for it

    settings = settings if limited else on_workers(settings)
    return settings, elsewhere(given.get("dask") or "", source, settings, note)


def is_elsewhere(given: Mapping[str, Any]) -> bool:
    """True if a cluster compares the entries; naming one asks for it."""
    return bool(given.get("engine", "dask" if given.get("dask") else "local") != "local")


def _as_ours(error: Exception) -> GradcheckError:
    match error:
        case GradcheckError():
            return error
        case MemoryError():
            return exhausted(error)
        case RecursionError():
            return LimitError("the model is nested too deeply", code="GC603")
    return GradcheckError(described(error))
