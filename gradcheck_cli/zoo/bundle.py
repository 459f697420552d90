"""Bundles: folders with everything that is needed to repeat a failing check exactly.

    bundle.json   model, settings, versions of packages, command, records
    values.npz    the inputs that were drawn, and the values that were given
    model/        the model and its companion files; larger models stay where they are
    shipped/      inputs and outputs that ship with the model, if its forward run differs from them

A bundle is written in two steps: `bundle.json` before the check, so that a crash leaves it, the rest afterwards.
Bundles are untrusted: nothing in one is run or unpickled, no path in it leads out of its folder, and an array is read only
if its header agrees with the file.  Values of any kind are JSON with keys of arrays in the .npz file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

import numpy as np
from msgspec import Struct, field, structs

from gradcheck_cli.errors import UsageError, shown
from gradcheck_cli.formats import companion_files, read
from gradcheck_cli.formats.arrays import Npz
from gradcheck_cli.formats.source import Source
from gradcheck_cli.formats.untrusted import OwnFolder, blocks, content, own_folder, sha256_of
from gradcheck_cli.graph import Array
from gradcheck_cli.graph.containers import Map, Optional
from gradcheck_cli.graph.containers import Sequence as Items
from gradcheck_cli.graph.memory import allowed, spell
from gradcheck_cli.results.record import strict
from gradcheck_cli.settings import SETTINGS, Numbers, Option, Settings

SCHEMA, MANIFEST, VALUES, MODEL = "gradcheck.bundle/1", "bundle.json", "values.npz", "model"
SHIPPED = "shipped"  # the folder of values that ship with a model whose forward run differs from them
GRAD_MODEL = "grad_model"  # the folder of the other model that computes the gradients to check
COPIED = 64 << 20  # bytes of the largest model that is copied; others are referred to by path and digest
DRAWN = 256 << 20  # bytes of drawn values that are kept; more are drawn again from the seed
_LONGEST = 64 << 20  # bytes of a bundle.json
MOST_BYTES = 1 << 30  # of all arrays together, uncompressed
_ENTRIES = 100  # of each record
LONGEST, MOST_POINTS, MOST_ENTRIES = 3600.0, 100, 1 << 20  # seconds, and what a bundle may ask for unless it is typed
_DEEPEST = 16  # nested sequences and optionals
_NATIVE = "biufc"


class Subject(Struct, frozen=True):
    """The model of a check: the file at `path`, or the graph called `graph` in the spec there, read with sizes `dims`.

    `files` holds digests of companion files by path relative to the model's folder; `copy` is the path in the bundle.
    """

    path: str
    sha256: str = ""
    graph: str = ""
    dims: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    copy: str = ""

    def place(self, folder: Path) -> Path:
        """The path of the model now, in the bundle or outside; a UsageError if it is not valid."""
        if not self.copy:
            if not os.path.isabs(self.path) or self.path.startswith(("//", "\\\\")):
                raise UsageError(f"{shown(self.path)!r} is no absolute path of a model")
            return Path(self.path)
        place = _resolved(folder / self.copy)
        if not place.is_relative_to(_resolved(folder)):
            raise UsageError(f"{shown(self.copy)!r} lies outside of the bundle")
        return place


class Bundle(Struct, frozen=True):
    """A bundle that was read; `state` is "running" if the check did not end."""

    folder: Path
    check: str
    subject: Subject
    settings: Settings
    sizes: Mapping[str, int] = field(default_factory=dict)  # chosen for open dimensions
    drawn: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    records: Sequence[Mapping[str, Any]] = ()
    error: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    state: str = "ended"
    bounded: Mapping[str, str] = field(default_factory=dict)  # sentences on options of which it asks for too much

    def source(self, *, allow_python: bool = False) -> Source:
        """Reads the model."""
        place, graph = self.subject.place(self.folder), self.subject.graph
        found = read(place, dims=self.subject.dims or None, allow_python=allow_python).sources
        source = found.get(graph) if graph else next(iter(found.values()), None)
        if source is None:
            raise UsageError(f"{place} has no graph {shown(graph)!r}" if graph else f"{place} holds no model")
        return source

    @property
    def shipped(self) -> Path | None:
        """The folder of values that shipped with the model, if its outputs differ from them."""
        place = _resolved(self.folder / SHIPPED)
        return place if place.is_dir() and place.is_relative_to(_resolved(self.folder)) else None

    def changes(self) -> list[str]:
        """Sentences about versions and files that differ from those when the bundle was saved."""
        from gradcheck_cli.checks.assemble import versions  # a check that saves its failures does without
        from gradcheck_cli.zoo.parcel import versions as packages

        here = {**packages(), **versions()}  # in the words of a record
        now = {name: here.get(name, "missing") for name in self.versions}
        found = [
            f"{name} was {was}, and is {now[name]} here" for name, was in self.versions.items() if now[name] != was
        ]
        place = self.subject.place(self.folder)
        digests = {"": self.subject.sha256, **self.subject.files}
        for path, digest in digests.items():
            file = place.parent / path if path else place
            inside = _resolved(file).is_relative_to(_resolved(place.parent))
            if digest and inside and digest_of(file) not in (digest, ""):
                found.append(f"{file} is not the file that was checked: its digest differs")
        return found


def begin(
    folder: Path,
    name: str,
    check: str,
    subject: Subject,
    settings: Settings,
    command: Sequence[str],
    versions: Mapping[str, str],
) -> dict[str, Any]:
    """Writes `bundle.json` before a check into a new folder of a name, and returns its content; OSError if that fails."""
    writer = ValueWriter()
    manifest = {
        "schema": SCHEMA,
        "state": "running",
        "check": check,
        "model": structs.asdict(subject),
        "settings": _settings_entry(settings, writer),
        "sizes": {},
        "drawn": {},
        "records": [],
        "error": "",
        "command": list(command),
        "versions": dict(versions),
    }
    with own_folder(folder) as shelf:
        shelf.make(name)
    with own_folder(folder, name) as place:
        _write(place, manifest, writer)
    return manifest


def complete(
    folder: OwnFolder,
    manifest: Mapping[str, Any],
    settings: Settings,
    drawn: Mapping[int, Mapping[str, Any]],
    sizes: Mapping[str, int],
    records: Sequence[Mapping[str, Any]],
    error: str = "",
    shipped: Path | None = None,
) -> None:
    """Adds the records of a check, the values that it drew, its model, and the folder of values `shipped` with it."""
    writer = ValueWriter()
    entry = _settings_entry(settings, writer)
    if settings.grad_model is not None:
        other = Path(os.path.abspath(settings.grad_model))
        entry["grad_model"] = _copied(other, companion_files(other), folder, GRAD_MODEL) or str(other)
    total = sum(getattr(v, "nbytes", 0) for values in drawn.values() for v in values.values())
    kept = drawn if total <= DRAWN else {}
    values = {str(i): {n: writer.entry(v) for n, v in values.items()} for i, values in kept.items()}
    subject = Subject(**manifest["model"])
    path, others = Path(subject.path), companion_files(Path(subject.path))
    digests = {name: digest_of(file) for name, file in others.items()}
    copy = _copied(path, others, folder, MODEL)
    subject = structs.replace(subject, sha256=subject.sha256 or digest_of(path), files=digests, copy=copy)
    if shipped is not None and shipped.is_dir():
        _copy({file.name: file for file in shipped.glob("*put_*.pb")}, folder, SHIPPED)
    found = {
        "state": "ended",
        "model": structs.asdict(subject),
        "settings": entry,
        "sizes": dict(sizes),
        "drawn": values,
    }
    shortened = [{**record, "worst": list(record.get("worst", ()))[:_ENTRIES]} for record in records]
    _write(folder, {**manifest, **found, "records": shortened, "error": error}, writer)


def load(path: str | os.PathLike[str]) -> Bundle:
    """Reads the bundle in a folder, or the one of a `bundle.json`; raises a UsageError if it is not valid."""
    given = Path(path)
    file = given / MANIFEST if os.path.isdir(given) else given
    try:
        manifest = json.loads(content(file, _LONGEST, own=True))
    except OSError as error:
        where = (
            " Failures are kept in .gradcheck/failures, each in a folder."
            if isinstance(error, FileNotFoundError)
            else ""
        )
        raise UsageError(f"{file} cannot be read: {error.strerror or error}.{where}") from None
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise UsageError(f"{file} is no bundle of a failed check: its schema is not {SCHEMA}")
    if half := _half(manifest):
        raise UsageError(f"{file} is no bundle: it holds half of a character, {half}, which is no text")
    try:
        return _bundle(file.parent, manifest)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(f"{file} is no bundle: {type(error).__name__}: {error}") from None


def _half(manifest: Mapping[str, Any]) -> str:
    """The first half of a surrogate pair that stands alone; names of files may hold bytes that are no UTF-8."""
    try:
        json.dumps(manifest, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        return shown(error.object[error.start])
    return ""


def digest_of(file: Path) -> str:
    """The SHA-256 of a file; "" if it cannot be read, which the check reports itself."""
    try:
        return sha256_of(file)
    except OSError:
        return ""


def _bundle(folder: Path, manifest: Mapping[str, Any]) -> Bundle:
    from gradcheck_cli.model import call_options as options

    values = _resolved(folder / VALUES)
    if not values.is_relative_to(_resolved(folder)):
        raise UsageError(f"{VALUES} is a link, which is not followed")
    reader = ValueReader(values if values.is_file() else None)
    model = manifest["model"]
    subject = Subject(
        _path(model["path"]), _text(model["sha256"]), _text(model["graph"]), options.sizes(model["dims"], "dims"),
        {_path(name): _text(digest) for name, digest in model["files"].items()}, _path(model["copy"]),
    )  # fmt: skip
    settings, bounded = _bounded(_settings(manifest["settings"], reader, folder))
    drawn = {int(i): {_text(n): reader.value(v) for n, v in values.items()} for i, values in manifest["drawn"].items()}
    return Bundle(
        folder=folder,
        check=_text(manifest["check"]),
        subject=subject,
        settings=settings,
        sizes=options.sizes(manifest["sizes"], "sizes"),
        drawn=drawn,
        records=tuple(dict(record) for record in manifest["records"]),
        error=_text(manifest["error"]),
        versions={_text(name): _text(version) for name, version in manifest["versions"].items()},
        state=_text(manifest["state"]),
        bounded=bounded,
    )


def _settings(entry: Mapping[str, Any], reader: ValueReader, folder: Path) -> Settings:
    """The settings of a bundle, validated like arguments of a call."""
    unfit = [name for name in entry if name not in SETTINGS]
    if unfit:
        raise UsageError(f"it has the setting {shown(str(unfit[0]))!r}, which this version of gradcheck does not know")
    kept = [(SETTINGS[name], value) for name, value in entry.items() if value is not None]
    given = {option.field: _setting(option, value, reader, folder) for option, value in kept if option.kind != "data"}
    return Settings(**given)


def _bounded(asked: Settings) -> tuple[Settings, dict[str, str]]:
    """The settings with no more than a stranger's bundle may take of this machine, and what was more, by option."""
    here = {"timeout": LONGEST, "memory_limit": allowed(), "points": MOST_POINTS, "max_entries": MOST_ENTRIES}
    wanted = {name: getattr(asked, name) or most for name, most in here.items()}
    more = {name: value for name, value in wanted.items() if value > here[name]}
    bounded: Any = {name: min(value, here[name]) for name, value in wanted.items()}
    jobs = min(asked.jobs, os.cpu_count() or 1)
    return replace(asked, jobs=jobs, **bounded), {name: _too_much(name, more[name], here[name]) for name in more}


def _too_much(name: str, wanted: float, most: float) -> str:
    """A sentence about an option of which a bundle asks for too much."""
    said = [spell(each) if name == "memory_limit" else f"{each:.15g}" for each in (wanted, most)]
    return f"it asks for --{name.replace('_', '-')} {said[0]}, and has {said[1]} unless more is typed"


def _setting(option: Option, entry: Any, reader: ValueReader, folder: Path) -> Any:
    from gradcheck_cli.model import call_options as options

    match option.kind:
        case "tensors":
            return options.targets(entry, option.field)
        case "values" | "feeds":
            return {_text(name): reader.value(value) for name, value in entry.items()}
        case "claims":
            return {_text(name): _claim(value, reader) for name, value in entry.items()}
        case "path":
            return str(Subject(_path(entry), copy="" if os.path.isabs(entry) else entry).place(folder))
    return options.settings({option.field: entry})[option.field]


def _settings_entry(settings: Settings, writer: ValueWriter) -> dict[str, Any]:
    """Settings as JSON, with the writer's keys for arrays; values that shipped with the model are stored as drawn ones."""
    kept = replace(settings, memory_limit=allowed(settings.memory_limit))  # it decides what is checked, and how
    entry = {name: _entry(option, getattr(kept, name), writer) for name, option in SETTINGS.items()}
    return {name: value for name, value in entry.items() if value is not None and SETTINGS[name].kind != "data"}


def _entry(option: Option, value: Any, writer: ValueWriter) -> Any:
    match option.kind:
        case "values" | "feeds":
            return {name: writer.entry(each) for name, each in value.items()}
        case "claims":
            return {n: by if isinstance(by, str) else [by.origin, writer.entry(by.values)] for n, by in value.items()}
        case "path":
            return value and os.path.abspath(value)
    return value


def identity(settings: Settings) -> str:
    """A text that tells a check from the same check with other settings; "" for default settings.

    Settings that do not change results, such as time limit and number of jobs, are left out, and so are x and y, which
    are part of a bundle's name anyway.
    """
    writer, usual = ValueWriter(), _settings_entry(Settings(), ValueWriter())
    entry = _settings_entry(settings, writer)
    telling = [o.field for o in SETTINGS.values() if o.panel and o.role != "limit" and o.kind != "tensors"]
    given = {n: entry[n] for n in telling if n in entry and entry[n] != usual.get(n)}
    arrays = [sha256(array.tobytes()).hexdigest() for array in writer.arrays.values()]
    return json.dumps([given, arrays], sort_keys=True, default=str) if given else ""


def _claim(entry: Any, reader: ValueReader) -> str | Numbers:
    """A claimed gradient: the name of a tensor, or numbers with their origin."""
    if isinstance(entry, str):
        return entry
    origin, values = entry
    return Numbers(np.asarray(reader.value(values)), _text(origin))


def _copied(model: Path, others: Mapping[str, Path], folder: OwnFolder, name: str) -> str:
    """The path in a bundle of a copy of a model with its companion files; "" if they are too large to be copied."""
    return f"{name}/{model.name}" if _copy({model.name: model, **others}, folder, name) else ""


def _copy(files: Mapping[str, Path], bundle: OwnFolder, name: str) -> bool:
    """Copies files to their relative paths in a folder of a bundle, unless they are too large; True if that was done."""
    fits = bool(files) and sum(file.stat().st_size for file in files.values()) <= COPIED
    for path, file in files.items() if fits else ():
        with bundle.below(f"{name}/{path}") as (folder, last), folder.file(last, "wb") as copy:
            for block in blocks(file, COPIED):
                copy.write(block)
    return fits


def _write(folder: OwnFolder, manifest: Mapping[str, Any], values: ValueWriter) -> None:
    """Writes `bundle.json` completely or not at all, and before it the arrays."""
    if values.arrays:
        with folder.file(VALUES, "wb") as stream:
            write_arrays(stream, values.arrays)
    folder.write(MANIFEST, json.dumps(strict(manifest), indent=1).encode())


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise UsageError(f"{shown(str(path))} cannot be read: {error}") from None


def _path(value: Any) -> str:
    if "\0" in _text(value):
        raise UsageError(f"{value[:40]!r} is no path")
    return _text(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{str(value)[:40]!r} is no text")
    return value


class ValueWriter:
    """Splits values: `entry` gives the JSON of a value, `arrays` collects the arrays for the .npz file."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}

    def entry(self, value: Any) -> dict[str, Any]:
        """The JSON of a value."""
        match value:
            case Items(items):
                return {"sequence": [self.entry(item) for item in items]}
            case Optional(content):
                return {"optional": None if content is None else self.entry(content)}
            case Map(keys, values):
                return {"map": list(keys), "values": self.entry(values)}
            case _:
                return self._array(np.asarray(value))

    def _array(self, array: Array) -> dict[str, Any]:
        if array.dtype == object:
            texts = [text if isinstance(text, str) else [bytes(text).hex()] for text in array.ravel().tolist()]
            return {"strings": texts, "shape": list(array.shape)}
        key = str(len(self.arrays))
        if array.dtype.kind in _NATIVE and array.dtype.type.__module__ == "numpy":
            self.arrays[key] = array
            return {"array": key}
        # dtypes that are not NumPy's own, such as bfloat16, are stored as integers of the same bytes
        self.arrays[key] = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").reshape(array.shape)
        return {"array": key, "dtype": array.dtype.name}


class ValueReader:
    """Reads values back; raises a UsageError for invalid ones."""

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self._arrays: dict[str, Array] | None = None

    def value(self, entry: Any, depth: int = 0) -> Any:
        """The value that an entry stands for."""
        if depth > _DEEPEST:
            raise UsageError("a value is nested too deeply")
        match entry:
            case {"sequence": list(items)}:
                return Items(tuple(self.value(item, depth + 1) for item in items))
            case {"optional": content}:
                return Optional(None if content is None else self.value(content, depth + 1))
            case {"map": list(keys), "values": values}:
                return _saved_map(keys, self.value(values, depth + 1))
            case {"strings": list(texts), "shape": list(shape)}:
                return _strings(texts, shape)
            case {"array": str(key)}:
                return _in_dtype(self._array(key), entry.get("dtype"))
        raise UsageError(f"{str(entry)[:60]!r} is no saved value")

    def _array(self, key: str) -> Array:
        if self._arrays is None:
            self._arrays = {} if self.file is None else _read_arrays(self.file)
        if key not in self._arrays:
            raise UsageError(f"the array {shown(key)!r} is missing")
        return self._arrays[key]


def _read_arrays(file: Path) -> dict[str, Array]:
    """The arrays in an untrusted .npz file; only numbers are allowed."""
    try:
        arrays = dict(Npz(file, MOST_BYTES))
    except (OSError, ValueError, MemoryError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    odd = [name for name, array in arrays.items() if array.dtype.kind not in _NATIVE]
    if odd:
        raise UsageError(f"{file} cannot be read: {shown(odd[0])} is no array of numbers")
    return arrays


def write_arrays(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Writes arrays as a .npz file."""
    np.savez(file, **arrays)  # type: ignore[arg-type]  # names are digits, arrays never objects


def _in_dtype(array: Array, name: Any) -> Array:
    if name is None:
        return array
    import ml_dtypes

    kind = getattr(ml_dtypes, name, None) if isinstance(name, str) else None
    if not isinstance(kind, type) or np.dtype(kind).itemsize != array.dtype.itemsize or array.dtype.kind != "u":
        raise UsageError(f"there is no dtype {str(name)[:40]!r} of {array.dtype.itemsize} bytes")
    return np.asarray(array.view(np.dtype(kind)))


def _strings(texts: list[Any], shape: list[Any]) -> Array:
    if not all(type(size) is int and size >= 0 for size in shape) or math.prod(shape) != len(texts):
        raise UsageError(f"{len(texts)} strings do not fit a shape {str(shape)[:40]}")
    found = np.empty(len(texts), object)
    found[:] = [text if isinstance(text, str) else _bytes(text) for text in texts]
    return found.reshape(shape)


def _bytes(text: Any) -> bytes:
    try:
        return bytes.fromhex(text[0])
    except (TypeError, ValueError, LookupError):
        raise UsageError(f"{str(text)[:40]!r} is no string") from None


def _saved_map(keys: list[Any], values: Any) -> Map:
    kinds = {type(key) for key in keys}
    if not isinstance(values, np.ndarray) or values.shape != (len(keys),) or not (kinds <= {str} or kinds <= {int}):
        raise UsageError("the keys of a map do not fit its values")
    return Map(tuple(keys), values)
