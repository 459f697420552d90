"""What a zoo is asked for, as places of models: folders, patterns, URLs, and lists of models.

A place is known before its model is: what lies behind a URL is fetched when its turn comes.  Lists are read at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from gradcheck_cli.cli.models import SPEC_SUFFIXES, expand, is_spec
from gradcheck_cli.errors import GradcheckError, NothingChecked, SpecError, UsageError, shown
from gradcheck_cli.formats import read
from gradcheck_cli.points.test_data import BESIDE
from gradcheck_cli.zoo import hub, remote


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
