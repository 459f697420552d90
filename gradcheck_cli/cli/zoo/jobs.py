"""Places as jobs: one for each check, with the key that tells whether it was done before.

What a zoo is asked for, as places of models: folders, patterns, URLs, and lists of models.

A place is known before its model is: what lies behind a URL is fetched when its turn comes.  Lists are read at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import rich_click as click

from gradcheck_cli.checks.assemble import failed_record
from gradcheck_cli.cli.config import file_above, settings_above
from gradcheck_cli.cli.resolve import dims_of
from gradcheck_cli.cli.run import select
from gradcheck_cli.cli.tasks import SPEC_SUFFIXES, Planner, expand, is_spec, side_car
from gradcheck_cli.errors import GradcheckError, ModelError, NothingChecked, SpecError, UsageError, shown
from gradcheck_cli.formats import read
from gradcheck_cli.points.test_data import BESIDE
from gradcheck_cli.results.record import OUTCOMES, Check, ModelInfo
from gradcheck_cli.settings import OPTIONS
from gradcheck_cli.zoo import remote
from gradcheck_cli.zoo import remote as hub
from gradcheck_cli.zoo.job import Job
from gradcheck_cli.zoo.parcel import content_of, files_named, folder_of_data, key_of, read_along


@dataclass(frozen=True, slots=True)
class Place:
    """Where a model or a spec is, what a list says of it, and how records call it."""

    uri: str
    path: str = ""  # "" until it is fetched
    url: str = ""
    along: tuple[str, ...] = ()  # files of the URL's folder that belong to it
    sha256: str = ""
    archive: hub.Listed | None = None  # that holds it together with test data
    said: Mapping[str, Any] = field(default_factory=dict)
    expect: Mapping[str, Any] | None = None
    task: str | int | None = None  # of a file with several checks
    name: str = ""  # of the check
    listed: bool = False  # by a list, which says how it is to be checked
    error: GradcheckError | None = None  # why there is nothing to check

    @property
    def job(self) -> str:
        """A name that no other place has."""
        return self.uri if not self.name or self.name == self.uri else f"{self.uri}::{self.name}"

    @property
    def file(self) -> str:
        """What only places of the same file share."""
        return self.url or os.path.realpath(self.path or self.uri)


def places(sources: Iterable[str]) -> list[Place]:
    """Each file once, or as often as lists name it; what means none is a place with the reason.

    GradcheckError if nothing means any.
    """
    _neighbors.cache_clear()
    every = [place for source in sources for place in _safely(source, _meant(source))]
    listed = {place.file for place in every if place.listed}
    found = {
        (p.file, p.uri, repr(p.said)) if p.listed else p.file: p for p in every if p.listed or p.file not in listed
    }
    errors = [place.error for place in every if place.error is not None]
    if errors and len(errors) == len(every):
        raise errors[0]
    return list(found.values())


def _safely(uri: str, found: Iterator[Place]) -> Iterator[Place]:
    """Places; what cannot be read is one with the reason, and keeps no other from being found."""
    try:
        yield from found
    except GradcheckError as error:
        yield Place(uri, error=error)


def _meant(source: str, *, lists: bool = True) -> Iterator[Place]:
    """The places that an argument means; those of lists too, but for what a list itself means."""
    if remote.is_url(source):
        yield from _behind(source, lists)
        return
    for path in expand((source,)).files:
        if not is_list(path):
            yield Place(path, path)
        elif not lists:
            yield from _no_list(path, source)
        elif hub.is_list(path):
            yield from _safely(path, _in_hub(Path(path), os.path.dirname(path), path))
        else:
            yield from _safely(path, _in_spec(path, os.path.dirname(path), path))


def is_list(path: str) -> bool:
    """It is a list of models: of ONNX's hub, or a spec with `models`."""
    return hub.is_list(path) or (is_spec(path) and os.path.isfile(path) and _lists_models(path))


def _lists_models(spec: str) -> bool:
    from gradcheck_cli.formats.yaml.places import Document

    try:
        return "models" in Document.read(spec).root.children
    except SpecError:  # said when it is checked
        return False


# --- URLs


def _behind(url: str, lists: bool) -> Iterator[Place]:
    """The places behind a URL; specs and lists are fetched to know what they ask for."""
    files = [each for each in remote.listed(url) if each == url or _is_wanted(each)]
    if not files:
        raise NothingChecked(f"nothing to check: {shown(url)} holds no *.onnx or *.gradcheck.yaml")
    beside = {os.path.splitext(each)[0] + suffix for each in files for suffix in SPEC_SUFFIXES if not is_spec(each)}
    for each in files:
        if each not in beside:  # what is said beside a model is fetched with it
            yield from _safely(_plain(each), _at(each, url, lists))


def _at(url: str, source: str, lists: bool) -> Iterator[Place]:
    """What there is to check in one file."""
    if not (is_spec(url) or hub.is_list(url)):
        yield _model_at(url)
        return
    path = remote.fetched(url)
    if not is_list(str(path)):
        yield Place(_plain(url), str(path), url)
    elif not lists:
        yield from _no_list(url, source)
    elif hub.is_list(url):
        yield from _in_hub(path, _source_folder(url), _plain(url))
    else:
        yield from _in_spec(str(path), _source_folder(url), _plain(url))


def _model_at(url: str) -> Place:
    """A model with what `check` would find beside it."""
    stem = os.path.splitext(url.partition("?")[0].rpartition("/")[2])[0]
    belong = {*(stem + suffix for suffix in SPEC_SUFFIXES)}
    along = tuple(name for name in _neighbors(_source_folder(url)) if name in belong or name.startswith(f"{BESIDE}/"))
    fetched_now = any(map(is_spec, along))  # its checks have to be known
    return Place(_plain(url), str(remote.fetched(url, along)) if fetched_now else "", url, along)


def _is_wanted(url: str) -> bool:
    hidden = any(part.startswith(".") for part in url.split("/"))
    return not hidden and url.lower().endswith((".onnx", *SPEC_SUFFIXES))


@cache
def _neighbors(folder: str) -> list[str]:
    """What there is beside models behind URLs, asked once for each folder."""
    return remote.neighbors(folder)


def _source_folder(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[0]


def _plain(url: str) -> str:
    """A URL without what may be secret in it."""
    scheme, _, rest = url.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


# --- lists


def _in_hub(file: Path, folder: str, name: str) -> Iterator[Place]:
    for model in hub.models_in(file, folder, name):
        archive = model if model.archive else None
        if remote.is_url(model.place):
            yield Place(_plain(model.place), url=model.place, sha256=model.sha256, archive=archive, listed=True)
        else:
            yield Place(model.place, model.place, sha256=model.sha256, archive=archive, listed=True)


def _in_spec(path: str, folder: str, name: str) -> Iterator[Place]:
    """The entries of a spec with `models`; paths are seen from its folder."""
    for entry in read(path).models:
        said = {key: value for key, value in entry.items() if key not in ("path", "name", "sha256", "expect")}
        if said.get("test_data", "auto") not in ("auto", "none"):
            said["test_data"] = os.path.join(os.path.dirname(path), said["test_data"])
        sha256 = (entry.get("sha256") or "").lower()
        for place in _named(_entry(folder, entry["path"], name), entry, name):
            yield replace(place, said=said, expect=entry.get("expect"), sha256=sha256 or place.sha256, listed=True)


def _entry(folder: str, path: str, name: str) -> list[Place]:
    """The places that an entry means."""
    try:
        seen = _seen_from(folder, path, name)
    except GradcheckError as error:
        return [Place(path, error=error)]
    return list(_safely(seen, _meant(seen, lists=False)))


def _no_list(path: str, source: str) -> Iterator[Place]:
    """A list that another one means: passed over in a folder, an error where it is named."""
    if path == source:
        raise UsageError(f"{shown(path)} is a list of models, which another list cannot name")
    yield from ()


def _seen_from(folder: str, path: str, name: str) -> str:
    """A path of a list here may lead anywhere, as that of a check may; one that was fetched stays where it is from."""
    if remote.is_url(path) and not (remote.is_url(folder) and remote.is_here(path)):
        return path
    return remote.joined(folder, path, name) if remote.is_url(folder) else os.path.join(folder, path)


def _named(found: list[Place], entry: Mapping[str, Any], name: str) -> list[Place]:
    """The places of an entry, which may give one a name of its own."""
    if not entry.get("name"):
        return found
    if len(found) != 1:
        raise UsageError(f"{name}: {entry['name']!r} cannot be the name of {len(found)} models; give them no name")
    return [replace(found[0], uri=entry["name"])]


_OF_THE_RUN = (
    "expression", "check", "rerun", "shard", "folder", "show", "report", "baseline", "engine", "dask",
)  # fmt: skip
_NOT_BEARING = {  # on what is found
    *(option.name for option in OPTIONS.values() if option.role == "run"), *_OF_THE_RUN, "timeout", "jobs",
}  # fmt: skip


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
