"""From the arguments of `gradcheck zoo` to jobs: `places` finds the models, `split` their checks, `Maker` makes the jobs.

A place is a model or check before it is read; a model behind a URL is fetched when its job is made.  Lists of models and
specs are read at once.  The key of a job tells if the check was done before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import rich_click as click
from msgspec import structs

from gradcheck_cli.checks.assemble import failed_record
from gradcheck_cli.cli import note
from gradcheck_cli.cli.config import file_above, settings_above
from gradcheck_cli.cli.resolve import dims_of
from gradcheck_cli.cli.run import select
from gradcheck_cli.cli.tasks import SPEC_SUFFIXES, Planner, errors_of, expand, keys_of, once, side_car, targets_said
from gradcheck_cli.errors import GradcheckError, ModelError, NothingChecked, UsageError, shown
from gradcheck_cli.formats import is_spec, read
from gradcheck_cli.points.test_data import BESIDE
from gradcheck_cli.results.record import OUTCOMES, Check, ModelInfo
from gradcheck_cli.settings import OPTIONS
from gradcheck_cli.zoo import Job, remote
from gradcheck_cli.zoo.parcel import content_of, files_named, folder_of_data, key_of, read_along

LEVEL = "an optimizer's level (identities, folded constants, fused biases)"
_OF_THE_RUN = (
    "expression", "check", "rerun", "shard", "folder", "show", "report", "baseline", "engine", "dask", "allow_local",
    "same_structure",
)  # fmt: skip
# options on which results do not depend
_NOT_BEARING = {
    *(option.name for option in OPTIONS.values() if option.role == "run"), *_OF_THE_RUN, "timeout", "jobs",
}  # fmt: skip

_NAMING = tuple(name for name in OPTIONS if name in (
    "x", "y", "param", "grad", "grad_model", "x_shape", "y_shape", "x_init_value", "extra_feed_dict", "init_targets",
    "val_range", "rtol", "atol",
))  # fmt: skip
# options that name tensors


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """The place of a model or spec, or of one check in it, with what a list of models says about it."""

    uri: str  # its name in records
    path: str = ""  # "" until it is fetched
    url: str = ""
    along: tuple[str, ...] = ()  # further files of the URL's folder that are fetched with it
    sha256: str = ""
    archive: remote.Listed | None = None  # an archive that holds it together with test data
    said: Mapping[str, Any] = field(default_factory=dict)  # settings in the list
    expect: Mapping[str, Any] | None = None
    task: str | int | None = None  # a check of a file with several
    name: str = ""  # of the check
    listed: bool = False  # it comes from a list
    error: GradcheckError | None = None  # the reason why there is nothing to check
    unread: GradcheckError | None = None  # the reason why its checks are not known

    @property
    def job(self) -> str:
        """The name of the job, unique among all places."""
        return self.uri if not self.name or self.name == self.uri else f"{self.uri}::{self.name}"

    @property
    def file(self) -> str:
        """The identity of the file: its URL or real path, or the name of what cannot be read."""
        return self.url or (os.path.realpath(self.path) if self.path else os.path.abspath(self.uri))


def places(sources: Iterable[str]) -> list[ModelPlace]:
    """The models of all sources, each once, or as often as lists name it.

    A source without models becomes a place with an error; if all sources are, the first error is raised.
    """
    _neighbors.cache_clear()
    every = [place for source in sources for place in _safely(source, _meant(source))]
    listed = {place.file for place in every if place.listed}
    kept, notes = once(p.path for p in every if p.path and not p.url and p.file not in listed)
    for text in notes:
        note(text)
    found = {
        (p.file, p.uri, repr(p.said)) if p.listed else (p.file, os.path.abspath(p.path)): p
        for p in every
        if p.listed or (p.file not in listed and (not p.path or p.url or p.path in kept))
    }
    errors = [place.error for place in every if place.error is not None]
    if errors and len(errors) == len(every):
        raise errors[0]
    return list(found.values())


def split(found: Iterable[ModelPlace], options: Mapping[str, Any]) -> list[ModelPlace]:
    """A place for each chosen check, each with a unique name."""
    planner = Planner(options, dims_of(options.get("dim", ())), bool(options.get("allow_python")), steps=False)
    each = [part for place in found for part in _checks_of(place, planner)]
    if options.get("check") or options.get("expression") is not None:
        names = [place.name or place.uri for place in each]
        also, errors = [(place.uri, place.job) for place in each], [p.unread for p in each if p.unread is not None]
        chosen = select(names, options.get("check", ()), options.get("expression"), also=also, errors=errors)
        each = [each[i] for i in chosen]
    return _distinct(each)


@dataclass(slots=True)
class Maker:
    """Makes jobs of places under the options that were given, and fetches their models."""

    given: Mapping[str, Any]
    gates: Sequence[str]
    ctx: click.Context
    structured: bool = False  # whether models of one structure share a check

    def job(self, place: ModelPlace) -> Job:
        """The job of a place; raises a GradcheckError if there is no model to check."""
        if place.error is not None:
            raise place.error
        path, options = self._local(place), {n: v for n, v in self.given.items() if n not in _OF_THE_RUN}
        config = _bearing(settings_above(_folder(place), self.ctx))
        said = {**config, **place.said} if place.url else place.said  # no configuration file lies above a copy
        layers = [config, place.said, _bearing(self.given)]
        files = tuple(dict.fromkeys(_files(path, {name: v for layer in layers for name, v in layer.items()})))
        gates = sorted({*self.gates} - {*OUTCOMES})
        bearing = {"layers": layers, "expect": place.expect, "gates": gates, "task": place.task}  # on the result
        above = file_above(_folder(place), self.ctx)
        every = tuple(str(file) for file in (*files, *([above] if above and not place.url else [])))
        job = Job(place.uri, str(path), place.task, options, said, place.expect, files=every,
                  key=key_of(place.job, files, bearing))  # fmt: skip
        return self._structured(job, files, bearing) if self.structured else job

    def _structured(self, job: Job, files: Sequence[Path], bearing: Mapping[str, Any]) -> Job:
        """A job with the structure of its model, of which settings and other files that are read are part.

        Outputs that ship with a model are no part of it, since each model is held against its own.  A check of a spec,
        or one that is expected to come out otherwise than passing, has none: it is done by itself.
        """
        from gradcheck_cli.formats.onnx.file import structures_of  # brings onnx, which a driver can do without

        path = Path(job.path)
        if is_spec(path) or job.task is not None or job.expect:
            return job
        model = {*read_along(path)}
        others = [file for file in files if file not in model and not file.name.startswith("output_")]
        named = any(layer.get(name) for layer in bearing["layers"] for name in _NAMING)
        apart = key_of("", others, bearing)
        exact, optimized = structures_of(path, named=named)
        return structs.replace(job, structure=exact and exact + apart, family=optimized and optimized + apart)

    def _local(self, place: ModelPlace) -> Path:
        """The local file, fetched if it is behind a URL, with test data from its archive."""
        path = Path(place.path) if place.path else remote.fetched(place.url, place.along, place.sha256)
        if place.path and place.sha256 and path.is_file() and content_of(path) != place.sha256.lower():
            message = f"{shown(place.path)} is not the file that its list means: its SHA-256 is not {place.sha256}"
            raise ModelError(message)
        wanted = place.archive is not None and self.given.get("test_data", "auto") == "auto"
        return _with_test_data(path, place.archive) if wanted and place.archive else path


def unmade(place: ModelPlace, error: GradcheckError | OSError) -> dict[str, Any]:
    """The record of a place that has no job because of an error, also of a path that no file can have."""
    if isinstance(error, OSError):
        error = ModelError(f"{error.filename} cannot be read: {error.strerror or error}")
    name = place.name or place.uri
    record = Check(id=name, check=name, status="error", code="", model=ModelInfo(place.uri), x="", y="")
    return failed_record(record, error).as_json()


def _safely(uri: str, found: Iterator[ModelPlace]) -> Iterator[ModelPlace]:
    """The places of an iterator; its error becomes a place, so that other places are still found."""
    try:
        yield from found
    except GradcheckError as error:
        yield ModelPlace(uri, error=error)


def _meant(source: str, *, lists: bool = True) -> Iterator[ModelPlace]:
    """The places that an argument stands for, with those of lists in it; lists in lists are not read."""
    if not remote.is_url(source):
        found = expand((source,))
        for text in found.notes:
            note(text)
        for path in found.files:
            yield from _safely(path, _in_file(path, lists, path == source))
        yield from (ModelPlace(path, error=error) for path, error in found.missing)
        return
    files = [each for each in remote.listed(source) if each == source or _is_wanted(each)]
    if not files:
        raise NothingChecked(f"nothing to check: {shown(source)} holds no *.onnx or *.gradcheck.yaml")
    beside = {os.path.splitext(each)[0] + suffix for each in files for suffix in SPEC_SUFFIXES if not is_spec(each)}
    for each in files:
        if each not in beside:  # a spec beside a model is fetched with the model
            yield from _safely(_plain(each), _behind(each, lists, each == source))


def _behind(url: str, lists: bool, named: bool) -> Iterator[ModelPlace]:
    """The places in a file behind a URL; specs and lists are fetched at once."""
    if is_spec(url) or remote.is_list(url):
        yield from _in_file(str(remote.fetched(url)), lists, named, url)
    else:
        yield _model_at(url)


def _in_file(path: str, lists: bool, named: bool, url: str = "") -> Iterator[ModelPlace]:
    """The places in a local file, which `url` was fetched to if it is given; `named` as a source of its own."""
    name, folder = (_plain(url), _folder_of_url(url)) if url else (path, os.path.dirname(path))
    if not is_list(path):
        yield ModelPlace(name, path, url)
    elif not lists:  # in a folder it is passed over
        if named:
            raise UsageError(f"{shown(url or path)} is a list of models, which another list cannot name")
    elif remote.is_list(url or path):
        yield from _in_hub(Path(path), folder, name)
    else:
        yield from _in_spec(path, folder, name)


def is_list(path: str) -> bool:
    """True for a list of models: one of ONNX's hub, or a spec with `models`."""
    return remote.is_list(path) or (is_spec(path) and os.path.isfile(path) and "models" in keys_of(path))


def _model_at(url: str) -> ModelPlace:
    """A model with the files that `gradcheck check` would find beside it."""
    stem = os.path.splitext(url.partition("?")[0].rpartition("/")[2])[0]
    belong = {*(stem + suffix for suffix in SPEC_SUFFIXES)}
    along = tuple(name for name in _neighbors(_folder_of_url(url)) if name in belong or name.startswith(f"{BESIDE}/"))
    fetched_now = any(map(is_spec, along))  # the spec's checks are needed at once
    return ModelPlace(_plain(url), str(remote.fetched(url, along)) if fetched_now else "", url, along)


def _is_wanted(url: str) -> bool:
    hidden = any(part.startswith(".") for part in url.split("/"))
    return not hidden and url.lower().endswith((".onnx", *SPEC_SUFFIXES))


@cache
def _neighbors(folder: str) -> list[str]:
    """The files in a folder behind a URL, listed once."""
    return remote.neighbors(folder)


def _folder_of_url(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[0]


def _plain(url: str) -> str:
    """A URL without query and password, which may be secret."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _in_hub(file: Path, folder: str, name: str) -> Iterator[ModelPlace]:
    """The places of a list of ONNX's hub."""
    for model in remote.models_in(file, folder, name):
        url, path = (model.place, "") if remote.is_url(model.place) else ("", model.place)
        archive = model if model.archive else None
        yield ModelPlace(path or _plain(url), path, url, sha256=model.sha256, archive=archive, listed=True)


def _in_spec(path: str, folder: str, name: str) -> Iterator[ModelPlace]:
    """The places of a spec with `models`; paths are relative to its folder."""
    for entry in read(path).models:
        said = {key: value for key, value in entry.items() if key not in ("path", "name", "sha256", "expect")}
        if said.get("test_data", "auto") not in ("auto", "none"):
            said["test_data"] = os.path.join(os.path.dirname(path), said["test_data"])
        sha256 = (entry.get("sha256") or "").lower()
        for place in _named(_entry(folder, entry["path"], name), entry, name):
            yield replace(place, said=said, expect=entry.get("expect"), sha256=sha256 or place.sha256, listed=True)


def _entry(folder: str, path: str, name: str) -> list[ModelPlace]:
    """The places that an entry stands for."""
    try:
        seen = _seen_from(folder, path, name)
    except GradcheckError as error:
        return [ModelPlace(path, error=error)]
    return list(_safely(seen, _meant(seen, lists=False)))


def _seen_from(folder: str, path: str, name: str) -> str:
    """The path or URL of an entry: relative to the list's folder, which entries of a fetched list cannot leave."""
    if remote.is_url(path) and not (remote.is_url(folder) and remote.is_here(path)):
        return path
    return remote.joined(folder, path, name) if remote.is_url(folder) else os.path.join(folder, path)


def _named(found: list[ModelPlace], entry: Mapping[str, Any], name: str) -> list[ModelPlace]:
    """The places of an entry, under the entry's name if it has one."""
    if not entry.get("name"):
        return found
    if len(found) != 1:
        raise UsageError(f"{name}: {entry['name']!r} cannot be the name of {len(found)} models; give them no name")
    return [replace(found[0], uri=entry["name"])]


def _checks_of(place: ModelPlace, planner: Planner) -> Iterator[ModelPlace]:
    """The checks of a file; a model without a spec is one check, and is not read for that."""
    aimed = structs.replace(planner, given={**targets_said(place.said), **planner.given})
    tasks = aimed.tasks([place.path]) if place.path and not place.error else []
    if not tasks or (len(tasks) == 1 and tasks[0].check is None):
        yield replace(place, unread=next(iter(errors_of(tasks)), place.error))
        return
    for index, task in enumerate(tasks):
        yield replace(place, task=index, name=task.name.replace(place.path, place.uri, 1))


def _distinct(found: Sequence[ModelPlace]) -> list[ModelPlace]:
    """The places, with numbers for those that would have the same name of a job."""
    taken: dict[str, int] = {}
    named = []
    for place in found:
        taken[place.job] = number = taken.get(place.job, 0) + 1
        named.append(replace(place, uri=f"{place.uri}#{number}") if number > 1 else place)
    return named


def _folder(place: ModelPlace) -> str:
    """The folder whose configuration applies: the model's, or the working folder for a fetched model."""
    return "." if place.url else os.path.dirname(place.path) or "."


def _bearing(layer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in layer.items() if name not in _NOT_BEARING}


def _files(path: Path, settings: Mapping[str, Any]) -> Iterator[Path]:
    """The files that a check reads."""
    yield from read_along(path)
    if not is_spec(path) and (beside := side_car(str(path))):
        yield from read_along(Path(beside))
    elif is_spec(path):
        yield from _models_of(path)
    if (data := settings.get("test_data", "auto")) != "none":
        yield from folder_of_data(path.parent / BESIDE if data == "auto" else Path(data))
    for name in ("x_init_value", "extra_feed_dict"):
        given = settings.get(name, ())
        yield from files_named(given.values() if isinstance(given, Mapping) else given)


def _models_of(spec: Path) -> Iterator[Path]:
    """The ONNX files that the checks of a spec name."""
    from gradcheck_cli.formats.yaml.places import Document

    try:
        checks = Document.read(str(spec)).root.value.get("checks") or ()
        names = {check["model"] for check in checks if isinstance(check, dict) and isinstance(check.get("model"), str)}
    except (GradcheckError, AttributeError, TypeError):
        return
    for name in sorted(names):
        if not remote.is_url(name):
            yield from read_along(spec.parent / name)


def _with_test_data(path: Path, listed: remote.Listed) -> Path:
    """The model as unpacked from an archive, beside its test data; the model itself if there is no such archive."""
    if (path.parent / BESIDE).is_dir():
        return path
    archive = Path(listed.archive)
    if remote.is_url(listed.archive):
        archive = remote.fetched(listed.archive, sha256=listed.archive_sha256)
    return (remote.unpacked(archive, listed.sha256 or content_of(path)) if archive.is_file() else None) or path
