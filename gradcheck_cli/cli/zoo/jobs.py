"""Places as jobs: one for each check, with the key that tells whether it was done before."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import rich_click as click

from gradcheck_cli.checks.assemble import failed_record
from gradcheck_cli.cli.config import file_above, settings_above
from gradcheck_cli.cli.models import is_spec, side_car
from gradcheck_cli.cli.options import GATE, OUTPUT
from gradcheck_cli.cli.resolve import dims_of
from gradcheck_cli.cli.selection import select
from gradcheck_cli.cli.tasks import Planner
from gradcheck_cli.cli.zoo.sources import Place
from gradcheck_cli.errors import GradcheckError, ModelError, shown
from gradcheck_cli.points.test_data import BESIDE
from gradcheck_cli.results.record import OUTCOMES, Check, ModelInfo
from gradcheck_cli.zoo import hub, remote
from gradcheck_cli.zoo.digest import content_of, files_named, folder_of_data, key_of, read_along
from gradcheck_cli.zoo.job import Job

_OF_THE_RUN = (
    "expression", "check", "rerun", "shard", "folder", "show", "report", "baseline", "engine", "dask",
)  # fmt: skip
_NOT_BEARING = {*(option.name for option in (*GATE, *OUTPUT)), *_OF_THE_RUN, "timeout", "jobs"}  # on what is found


def split(found: Iterable[Place], options: Mapping[str, Any]) -> list[Place]:
    """A place for each check that was chosen, each with a name of its own."""
    planner = Planner(options, dims_of(options.get("dim", ())), bool(options.get("allow_python")), steps=False)
    each = [part for place in found for part in _checks_of(place, planner)]
    if options.get("check") or options.get("expression") is not None:
        names = [place.name or place.uri for place in each]
        each = [each[i] for i in select(names, options.get("check", ()), options.get("expression"))]
    return _distinct(each)


def _checks_of(place: Place, planner: Planner) -> Iterator[Place]:
    """The checks of a file; a model without a spec is one, and is not read for that."""
    if not place.path or place.error:
        yield place
        return
    tasks = planner.tasks([place.path])
    if len(tasks) == 1 and tasks[0].check is None:
        yield place
        return
    for index, task in enumerate(tasks):
        yield replace(place, task=index, name=task.name.replace(place.path, place.uri, 1))


def _distinct(found: Sequence[Place]) -> list[Place]:
    """The same places; those that would share the name of a job numbered."""
    taken: dict[str, int] = {}
    named = []
    for place in found:
        taken[place.job] = number = taken.get(place.job, 0) + 1
        named.append(replace(place, uri=f"{place.uri}#{number}") if number > 1 else place)
    return named


@dataclass(slots=True)
class Maker:
    """Makes jobs of places under the options that were given; what is fetched for one is fetched here."""

    given: Mapping[str, Any]
    gates: Sequence[str]
    ctx: click.Context

    def job(self, place: Place) -> Job:
        """The job of a place; GradcheckError where there is no model to check."""
        if place.error is not None:
            raise place.error
        path, options = self._local(place), {n: v for n, v in self.given.items() if n not in _OF_THE_RUN}
        config = _bearing(settings_above(_folder(place), self.ctx))
        said = {**config, **place.said} if place.url else place.said  # no configuration file lies above a copy
        layers = [config, place.said, _bearing(self.given)]
        files = tuple(dict.fromkeys(_files(path, place, {name: v for layer in layers for name, v in layer.items()})))
        key = self._key(place, files, layers)
        above = file_above(_folder(place), self.ctx)
        every = tuple(str(file) for file in (*files, *([above] if above and not place.url else [])))
        return Job(place.uri, str(path), place.task, options, said, place.expect, key=key, files=every)

    def _local(self, place: Place) -> Path:
        """The file, fetched where it lies behind a URL, with test data where an archive has some."""
        path = Path(place.path) if place.path else remote.fetched(place.url, place.along, place.sha256)
        if place.path and place.sha256 and path.is_file() and content_of(path) != place.sha256.lower():
            message = f"{shown(place.path)} is not the file that its list means: its SHA-256 is not {place.sha256}"
            raise ModelError(message)
        wanted = place.archive is not None and self.given.get("test_data", "auto") == "auto"
        return _with_test_data(path, place.archive) if wanted and place.archive else path

    def _key(self, place: Place, files: Sequence[Path], layers: Sequence[Mapping[str, Any]]) -> str:
        """The key, of everything that bears on the result."""
        gates = sorted({*self.gates} - {*OUTCOMES})
        settings = {"layers": layers, "expect": place.expect, "gates": gates, "task": place.task}
        return key_of(place.job, files, settings)


def unmade(place: Place, error: GradcheckError) -> dict[str, Any]:
    """The record of a place that gave no job."""
    name = place.name or place.uri
    record = Check(id=name, check=name, status="error", code="", model=ModelInfo(place.uri), x="", y="")
    return failed_record(record, error).as_json()


def _folder(place: Place) -> str:
    """Whose configuration counts: the model's folder, and for what is fetched the working folder."""
    return "." if place.url else os.path.dirname(place.path) or "."


def _bearing(layer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in layer.items() if name not in _NOT_BEARING}


def _files(path: Path, place: Place, settings: Mapping[str, Any]) -> Iterator[Path]:
    """All files that a check reads."""
    yield from read_along(path)
    if not is_spec(str(path)) and (beside := side_car(str(path))):
        yield from read_along(Path(beside))
    elif is_spec(str(path)):
        yield from _models_of(path)
    if (data := settings.get("test_data", "auto")) != "none":
        yield from folder_of_data(path.parent / BESIDE if data == "auto" else Path(data))
    for name in ("x_init_value", "extra_feed_dict"):
        given = settings.get(name, ())
        yield from files_named(given.values() if isinstance(given, Mapping) else given)


def _models_of(spec: Path) -> Iterator[Path]:
    """The ONNX files that a spec's checks are about."""
    from gradcheck_cli.formats.yaml.places import Document

    try:
        checks = Document.read(str(spec)).root.value.get("checks") or ()
        names = {check["model"] for check in checks if isinstance(check, dict) and isinstance(check.get("model"), str)}
    except (GradcheckError, AttributeError, TypeError):
        return
    for name in sorted(names):
        if not remote.is_url(name):
            yield from read_along(spec.parent / name)


def _with_test_data(path: Path, listed: hub.Listed) -> Path:
    """The model as an archive has it, beside its test data; the model itself where there is no such archive."""
    if (path.parent / BESIDE).is_dir():
        return path
    archive = Path(listed.archive)
    if remote.is_url(listed.archive):
        archive = remote.fetched(listed.archive, sha256=listed.archive_sha256)
    return (hub.unpacked(archive, listed.sha256 or content_of(path)) if archive.is_file() else None) or path
