"""Reads a spec file: graphs, operators, initializations, models, and checks, whose tensors have to be in their graphs.

Errors are collected as long as one mistake does not cause the next, and raised together as a SpecError.  Errors of
pydantic are turned into gradcheck's form: place in the file, what is wrong, what would be right.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import structs
from pydantic import ValidationError

from gradcheck_cli.errors import Diagnostic, UsageError, did_you_mean
from gradcheck_cli.formats.source import CheckRequest, Source, Spec
from gradcheck_cli.formats.yaml.fields import (
    CheckSpec,
    InvalidPart,
    ModelSpec,
    SettingsKeys,
    SpecKeys,
    is_one_value,
    show,
)
from gradcheck_cli.formats.yaml.places import Document, DocumentPath
from gradcheck_cli.formats.yaml.values import Folder, Shape, Values, mistake
from gradcheck_cli.graph import Array, Graph
from gradcheck_cli.settings import options_at

if TYPE_CHECKING:
    from gradcheck_cli.formats.yaml.custom_ops import OperatorTable

_MOST_PROBLEMS = 500
_BY_TENSOR = [o.field for o in options_at("settings") if o.kind in ("tolerances", "ranges", "shapes", "claims")]


def read_spec(
    path: str | os.PathLike[str], *, dims: Mapping[str, int] | None = None, allow_python: bool = False
) -> Spec:
    """Reads the spec in a file.

    Sizes in `dims` override the file's.  Shapes of inputs keep the names of sizes, which `Source.dims` resolves;
    parameters have their final shapes.  With `allow_python`, Python functions that define operators are called.
    """
    document = Document.read(os.fspath(path))
    return _spec(document, validate(document), dict(dims or {}), allow_python)


def _spec(document: Document, written: SpecKeys, dims: Mapping[str, int], allow_python: bool) -> Spec:
    here, folder = DocumentPath(document), Path(document.path).parent
    defaults = settings_of(written.defaults)
    seed = defaults.get("seed", 0)  # which may be the word "random"
    values = Values(Folder(folder), seed if isinstance(seed, int) else 0)
    operators, sources = None, dict[str, Source]()
    if written.graphs or written.ops or written.init:
        from gradcheck_cli.formats.yaml.custom_ops import OperatorTable  # a file beside a model has none

        operators = OperatorTable(dict(written.ops), here / "ops", allow_python)
        operators.read_all()
        sources = _sources(document, written, dims, values, operators)
        document.raise_problems()  # checks of a broken graph would only repeat its errors
    usual = written.defaults.expect
    expect = {**usual.model_dump(), "usual": True} if usual is not None else None
    reader = CheckReader(sources, values, defaults, folder, written.init, expect)
    checks = reader.read(written.checks, here / "checks")
    usually = defaults if expect is None else {**defaults, "expect": expect}
    models = read_models(written.models, here / "models", usually)
    document.raise_problems()
    if models and (sources or checks):
        message = "a list of models stands in a file of its own, without graphs and checks"
        raise (here / "models").error(message, key=True)
    spec = Spec(document.path, sources, checks, models, defaults, expect)
    return spec if operators is None else structs.replace(spec, operators=operators.given_to)


def _sources(
    document: Document, written: SpecKeys, dims: Mapping[str, int], values: Values, operators: OperatorTable
) -> dict[str, Source]:
    from gradcheck_cli.formats.yaml.graphs import read_graph, read_initializations

    here = DocumentPath(document)
    sources: dict[str, Source] = {}
    for name, graph in written.graphs.items():
        with document.collecting():
            sources[name] = read_graph(name, graph, here / "graphs" / name, operators, values, dims)
    document.raise_problems()
    known = {name for source in sources.values() for name in {*source.dims, *source.symbols}}
    if sources and (unknown := next((name for name in dims if name not in known), None)):
        raise UsageError(f"{document.path} has no size {unknown!r}.{did_you_mean(unknown, known)}")
    groups = read_initializations(written.init, sources, here / "init", values)
    unused = operators.unused(source.graph for source in sources.values())
    return {name: structs.replace(each, initializations=groups[name], unused=unused) for name, each in sources.items()}


def validate(document: Document) -> SpecKeys:
    """The fields of a document; raises a SpecError with everything that is wrong in it."""
    _check_head(document)
    try:
        return SpecKeys.model_validate(document.root.value)
    except ValidationError as error:
        found = error.errors(include_url=False)[:_MOST_PROBLEMS]
        document.problems.extend(_problem(document, each) for each in found)
    document.raise_problems()
    raise AssertionError("a validation error without errors")


def _check_head(document: Document) -> None:
    root, here = document.root, DocumentPath(document)
    if not isinstance(root.value, dict):
        raise here.error("a spec is a mapping that starts with 'gradcheck: 1'")
    first = next(iter(root.value), None)
    if first != "gradcheck":
        message = "a spec starts with 'gradcheck: 1'"
        if "gradcheck" in root.value:
            raise (here / "gradcheck").error(f"{message}; here it is not the first key", key=True)
        raise (here / str(first)).error(f"{message}; here the first key is {show(str(first))}", key=True)
    version = root.value["gradcheck"]
    if version != 1 or not isinstance(version, int) or isinstance(version, bool):
        raise (here / "gradcheck").error(f"version {show(version)} of the format is not known; known is 1")


def _problem(document: Document, error: Any) -> Diagnostic:
    path = _path_in(document, error["loc"])
    by_key = error["type"] in ("extra_forbidden", "missing") or error["loc"][-1:] == ("[key]",)
    if isinstance(inner := error.get("ctx", {}).get("error"), InvalidPart):
        path, by_key = (*path, inner.part), inner.by_key
    spot = DocumentPath(document, path[:-1] if error["type"] == "missing" else path)
    return spot.error(mistake(error, path), key=by_key).problems[0]


def _path_in(document: Document, loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """A path of pydantic without the names of union branches, which are no keys of the file."""
    entry, path = document.root, []
    for index, part in enumerate(loc):
        if part in entry.children:
            entry = entry.children[part]
            path.append(part)
        elif index == len(loc) - 1 and part != "[key]" and not str(part).startswith("<"):
            path.append(part)
    return tuple(path)


@dataclass(frozen=True, slots=True)
class CheckReader:
    """Reads the checks of one spec."""

    sources: Mapping[str, Source]
    values: Values
    defaults: Mapping[str, Any]
    folder: Path
    groups: Iterable[str]
    expect: Mapping[str, Any] | None = None  # the default, for checks without their own

    def read(self, written: list[CheckSpec], spot: DocumentPath) -> tuple[CheckRequest, ...]:
        """Reads all entries of `checks`, and gives each a unique name."""
        found: list[CheckRequest] = []
        taken: set[str] = set()
        for index, check in enumerate(written):
            with spot.document.collecting():
                found.append(self._check(check, spot / index, taken))
        return tuple(found)

    def _check(self, check: CheckSpec, spot: DocumentPath, taken: set[str]) -> CheckRequest:
        graph, model = self._subject(check, spot)
        base = graph or Path(model or "").name
        unused = (f"{base}#{i}" if i > 1 else base for i in range(1, len(taken) + 2))
        name = check.name or next(each for each in unused if each not in taken)
        if name in taken:
            raise (spot / "name").error(f"a check is called {name!r} already")
        taken.add(name)
        source = self.sources[graph] if graph else None
        settings = {**self.defaults, **settings_of(check)}
        if source is not None:
            _check_names(check, settings, source, spot)
        self._check_groups(check, source, spot)
        dims = settings.get("dims", {})
        return CheckRequest(
            name=name,
            graph=graph,
            model=model,
            x=_tuple(check.x),
            y=_tuple(check.y),
            x_init_value=self._arrays(_by_name(check), "x_init_value", name, source, dims, spot),
            extra_feed_dict=self._arrays(check.extra_feed_dict, "extra_feed_dict", name, source, dims, spot),
            init_targets=_tuple(check.init_targets) or (),
            settings=settings,
            expect=check.expect.model_dump() if check.expect else self.expect,
            line=spot.line,
        )

    def _subject(self, check: CheckSpec, spot: DocumentPath) -> tuple[str | None, str | None]:
        """The name of a graph in this file, or the path of an ONNX file; the other one is None."""
        if check.model is not None:
            if check.graph is not None:
                raise (spot / "model").error("a check has a graph or a model, not both", key=True)
            return None, check.model if "://" in check.model else str(self.folder / check.model)
        if check.graph is not None:
            if check.graph not in self.sources:
                near = did_you_mean(check.graph, self.sources)
                raise (spot / "graph").error(f"no graph is called {check.graph!r}.{near}")
            return check.graph, None
        if len(self.sources) != 1:
            known = f" 'graph' is one of {', '.join(self.sources)}." if self.sources else ""
            raise spot.error(f"{spot} lacks the key 'graph' or 'model'.{known}")
        return next(iter(self.sources)), None

    def _check_groups(self, check: CheckSpec, source: Source | None, spot: DocumentPath) -> None:
        if source is None:  # the ONNX file may have initializations of its own
            return
        for index, name in enumerate(check.init_targets or ()):
            if name not in source.initializations:
                wrong = f"the group {name!r} sets no parameter of {source.graph.name!r}"
                if name not in self.groups:
                    wrong = f"no group of 'init' is called {name!r}.{did_you_mean(name, self.groups)}"
                raise (spot / "init_targets" / index).error(wrong)

    def _arrays(
        self, written: Mapping[str, Any], key: str, check: str, source: Source | None, dims: Mapping[str, int],
        spot: DocumentPath,
    ) -> dict[str, Array]:  # fmt: skip
        found: dict[str, Array] = {}
        for name, init in written.items():
            place = spot / key if is_one_value(spot.entry.value.get(key)) else spot / key / name
            shape, dtype = _declared(name, source, dims)
            with spot.document.collecting():
                if dtype is None and isinstance(init, dict) and init["kind"] == "file":
                    found[name] = self.values.folder.array(init["path"], init.get("key"), place)
                    continue
                if dtype is None and isinstance(init, (dict, str)):
                    dtype = np.dtype(np.float64)
                found[name] = self.values.initial(init, shape, dtype, place, check, name)
        return found


def read_models(
    written: list[ModelSpec], spot: DocumentPath, defaults: Mapping[str, Any]
) -> tuple[Mapping[str, Any], ...]:
    """Reads the entries of a zoo manifest, and merges defaults in."""
    found: list[Mapping[str, Any]] = []
    for index, model in enumerate(written):
        given = {key: getattr(model, key) for key in model.model_fields_set}
        if model.expect is not None:
            given["expect"] = model.expect.model_dump()
        with spot.document.collecting():
            if any(other.get("name") == model.name for other in found if model.name):
                raise (spot / index / "name").error(f"a model is called {model.name!r} already")
        found.append({**defaults, **given})
    return tuple(found)


def settings_of(written: SettingsKeys) -> dict[str, Any]:
    """The settings that an entry of the file writes out, without defaults."""
    return {key: getattr(written, key) for key in SettingsKeys.model_fields if key in written.model_fields_set}


def _check_names(check: CheckSpec, settings: Mapping[str, Any], source: Source, spot: DocumentPath) -> None:
    graph = source.graph
    for key in ("x", "y"):
        for index, name in enumerate(getattr(check, key) or ()):
            if name not in graph.tensors:
                raise (spot / key / index).error(_no_tensor(name, graph))
    for name in check.extra_feed_dict:
        if name not in graph.tensors:
            raise (spot / "extra_feed_dict" / name).error(_no_tensor(name, graph), key=True)
    for name in _by_name(check):
        if name and name not in (check.x or graph.tensors):
            known = did_you_mean(name, check.x or graph.tensors)
            raise (spot / "x_init_value" / name).error(f"{name!r} is not among x.{known}", key=True)
    for key in _BY_TENSOR:
        given = settings.get(key) if key in check.model_fields_set else None
        for name in given if isinstance(given, dict) else ():
            if name not in graph.tensors:
                raise (spot / key / name).error(_no_tensor(name, graph), key=True)
    for name in check.dims:
        if name not in source.symbols:
            message = f"no input of {graph.name!r} has the size {name!r}.{did_you_mean(name, source.symbols)}"
            raise (spot / "dims" / name).error(message, key=True)


def _no_tensor(name: str, graph: Graph) -> str:
    return f"{graph.name!r} has no tensor {name!r}.{did_you_mean(name, graph.tensors)}"


def _by_name(check: CheckSpec) -> Mapping[str, Any]:
    """Initial values by name: a bare value goes to each x, or to "" for the only x if none is named."""
    if check.x_init_value is None:
        return {}
    if not is_one_value(check.x_init_value):
        return dict(check.x_init_value)
    return dict.fromkeys(check.x or ("",), check.x_init_value)


def _declared(name: str, source: Source | None, dims: Mapping[str, int]) -> tuple[Shape | None, Any]:
    """Shape and dtype of an input or parameter; None for what is not known."""
    kind = source.graph.types.get(name) if source else None
    if source is None or kind is None:
        return None, None
    known = {**source.dims, **dims}
    shape = [known.get(dim, dim) if isinstance(dim, str) else dim for dim in kind.shape or ()]
    fixed = kind.shape is not None and all(isinstance(size, int) for size in shape)
    return (tuple(int(size or 0) for size in shape) if fixed else None), kind.dtype


def _tuple(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)
