"""What a run has to do: a task for each check of a spec, and one for each model that has none."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gradcheck_cli.cli.models import is_spec, side_car
from gradcheck_cli.cli.training_steps import has_training, with_steps
from gradcheck_cli.errors import GradcheckError, NothingChecked, UsageError
from gradcheck_cli.formats import read
from gradcheck_cli.formats.source import CheckRequest, Source, Spec
from gradcheck_cli.formats.untrusted import inside
from gradcheck_cli.graph.memory import exhausted, share


@dataclass(frozen=True, slots=True)
class Task:
    """One check to do: how to get its model, what its spec says, and how to do it again."""

    name: str
    path: str  # of the file that was named
    load: Callable[[], Source]
    said: Mapping[str, Any] = field(default_factory=dict)
    expect: Mapping[str, Any] | None = None
    check: str | None = None  # its name in a spec, where it has one
    model: str = ""  # the file that its model is in, and of a spec the graph
    graph: str = ""
    whole: Callable[[], Task] | None = None  # with all that its spec says, where that was read in another process


@dataclass(slots=True)
class Planner:
    """Turns files into tasks; `given` are the options that were typed.

    `steps` of training algorithms have tasks of their own, for which their models are read.
    """

    given: Mapping[str, Any]
    dims: Mapping[str, int]
    allow_python: bool
    steps: bool = True
    _models: dict[str, Source] = field(default_factory=dict)

    def tasks(self, paths: Iterable[str]) -> list[Task]:
        """The tasks of all files; a spec that cannot be read becomes a task that says so."""
        return [task for path in paths for task in self._tasks_of(path)]

    def _tasks_of(self, path: str) -> list[Task]:
        try:
            if is_spec(path):
                return self._of_spec_apart(path) if self._limited() else self._of_spec(path)
            return self._of_model(path)
        except (GradcheckError, MemoryError) as error:
            return [Task(path, path, raising(exhausted(error) if isinstance(error, MemoryError) else error))]

    def _limited(self) -> bool:
        """Limits were typed, which hold for the reading of a spec as well."""
        return bool(self.given.get("timeout") or self.given.get("memory_limit")) and hasattr(os, "fork")

    def _of_spec_apart(self, path: str) -> list[Task]:
        """The tasks of a spec that is read where it is checked, and before that, for what there is to do, beside here."""
        from gradcheck_cli.checks.isolation import Bounds, run  # where somebody gave a limit

        def told() -> list[Task]:
            return [replace(task, load=_nowhere, said=_brief(task.said)) for task in self._of_spec(path)]

        def whole(index: int) -> Callable[[], Task]:
            return lambda: self._of_spec(path)[index]

        found = run(told, Bounds(self.given.get("timeout"), self.given.get("memory_limit") or share()))
        return [replace(task, whole=whole(index)) for index, task in enumerate(found)]

    def _of_spec(self, path: str) -> list[Task]:
        spec = read(path, dims=self.dims, allow_python=self.allow_python)
        if spec.checks:
            return [self._task(request, path, spec) for request in spec.checks]
        if not spec.sources:
            what = (
                f"lists models, which are checked by `gradcheck zoo {path}`"
                if spec.models
                else "has no graphs and no checks"
            )
            raise NothingChecked(f"nothing to check: {path} {what}")
        said, several = _said(path, dict(spec.defaults)), len(spec.sources) > 1
        return [
            Task(f"{path}::{name}" if several else path, path, _giving(source), said, model=path, graph=name)
            for name, source in spec.sources.items()
        ]

    def _of_model(self, path: str) -> list[Task]:
        beside = side_car(path)
        if beside is None:
            return self._with_steps(Task(path, path, lambda: self._model(path), model=path))
        spec = read(beside, allow_python=self.allow_python)
        asked = not {"x", "y", "params", "param"}.isdisjoint(self.given)
        own = [request for request in spec.checks if _is_same(request.model or "", path)]
        if own and not (asked and len(own) > 1):
            return [self._task(request, beside, spec, path) for request in own]
        said = _said(beside, dict(spec.defaults))
        return self._with_steps(Task(path, path, lambda: self._model(path), said, model=path))

    def _with_steps(self, whole: Task) -> list[Task]:
        """The task of a model, and of its training algorithm if it has one."""
        read_for_them = self.steps and has_training(whole.path)
        return with_steps(whole, whole.load, self.given) if read_for_them else [whole]

    def _task(self, request: CheckRequest, path: str, spec: Spec, model: str = "") -> Task:
        said = _said(path, dict(request.settings))
        own = ("x", "y", "x_init_value", "extra_feed_dict", "init_targets")
        said.update((name, value) for name in own if (value := getattr(request, name)))
        if request.graph is not None:
            load: Callable[[], Source] = _giving(spec.sources[request.graph])
            file = path
        else:
            file = _same(request.model or "", model)
            load = _later(self, file, spec)
        return Task(request.name, model or path, load, said, request.expect, request.name, file, request.graph or "")

    def _model(self, path: str) -> Source:
        """The only model of an ONNX file; of several checks of one file the first one reads it."""
        if path not in self._models:
            self._models.clear()
            self._models[path] = next(iter(read(path).sources.values()))
        return self._models[path]


def _nowhere() -> Source:
    """No model: it is read with the whole task."""
    raise UsageError("the spec of this model was read in another process")


def _brief(said: Mapping[str, Any]) -> dict[str, Any]:
    """What a spec says but for values, which may be large."""
    return {name: value for name, value in said.items() if name not in ("x_init_value", "extra_feed_dict")}


def _said(path: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What a spec says, without what it leaves at its default."""
    data = settings.get("test_data", "auto")
    if data not in ("auto", "none"):
        settings["test_data"] = os.path.join(os.path.dirname(path), data)
    if settings.get("grad_model"):
        settings["grad_model"] = os.path.join(os.path.dirname(path), settings["grad_model"])
    settings["grad"] = {x: _beside(path, by) for x, by in settings.get("grad", {}).items()}
    return settings


def _beside(path: str, claim: str) -> str:
    """What a spec gives as a gradient: a tensor, or numbers in a file below the folder of the spec."""
    if not claim.startswith("@"):
        return claim
    folder = os.path.dirname(path)
    try:
        inside(Path(folder), claim[1:], "the folder of the spec")
    except ValueError as error:
        raise UsageError(f"{path}: grad: {error}") from None
    return f"@{os.path.join(folder, claim[1:])}"


def _same(asked: str, named: str) -> str:
    """The model as it was named on the command line where a side-car means the same file."""
    return named if named and _is_same(asked, named) else asked


def _is_same(asked: str, named: str) -> bool:
    return os.path.realpath(asked) == os.path.realpath(named)


def _giving(source: Source) -> Callable[[], Source]:
    return lambda: source


def _later(planner: Planner, path: str, spec: Spec) -> Callable[[], Source]:
    return lambda: spec.operators(planner._model(path))


def raising(error: GradcheckError) -> Callable[[], Source]:
    """The loading of a model that cannot be had."""

    def load() -> Source:
        raise error

    return load
