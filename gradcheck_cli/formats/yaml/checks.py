"""Reads the checks of a spec: merges in defaults, verifies names against the graph, makes arrays of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradcheck_cli.errors import did_you_mean
from gradcheck_cli.formats.source import CheckRequest, Source
from gradcheck_cli.formats.yaml.fields import CheckSpec, ModelSpec, SettingsKeys, is_one_value
from gradcheck_cli.formats.yaml.places import DocumentPath
from gradcheck_cli.formats.yaml.values import Shape, Values
from gradcheck_cli.graph import Array, Graph
from gradcheck_cli.settings import options_at

_BY_TENSOR = [o.field for o in options_at("settings") if o.kind in ("tolerances", "ranges", "shapes", "claims")]


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
        name = check.name or _unique(graph or Path(model or "").name, taken)
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
        )

    def _subject(self, check: CheckSpec, spot: DocumentPath) -> tuple[str | None, str | None]:
        """The name of a graph in this file, or the path of an ONNX file; the other one is None."""
        if check.model is not None:
            if check.graph is not None:
                raise (spot / "model").error("a check has a graph or a model, not both", key=True)
            return None, resolve_model(check.model, self.folder)
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
            place = spot / "init_targets" / index
            if name in source.initializations:
                continue
            if name in self.groups:
                raise place.error(f"the group {name!r} sets no parameter of {source.graph.name!r}")
            raise place.error(f"no group of 'init' is called {name!r}.{did_you_mean(name, self.groups)}")

    def _arrays(
        self,
        written: Mapping[str, Any],
        key: str,
        check: str,
        source: Source | None,
        dims: Mapping[str, int],
        spot: DocumentPath,
    ) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for name, init in written.items():
            place = spot / key if is_one_value(spot.entry.value.get(key)) else spot / key / name
            shape, dtype = _declared(name, source, dims)
            with spot.document.collecting():
                found[name] = self._value(init, shape, dtype, place, check, name)
        return found

    def _value(self, init: Any, shape: Shape | None, dtype: Any, spot: DocumentPath, *identity: str) -> Array:
        if dtype is not None or not isinstance(init, (dict, str)):
            return self.values.initial(init, shape, dtype, spot, *identity)
        if isinstance(init, dict) and init["kind"] == "file":
            return self.values.folder.array(init["path"], init.get("key"), spot)
        return self.values.initial(init, shape, np.dtype(np.float64), spot, *identity)


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


def resolve_model(path: str, folder: Path) -> str:
    """A model's path relative to the spec's folder; URLs stay unchanged."""
    return path if "://" in path else str(folder / path)


def _check_names(check: CheckSpec, settings: Mapping[str, Any], source: Source, spot: DocumentPath) -> None:
    graph = source.graph
    for key in ("x", "y"):
        for index, name in enumerate(getattr(check, key) or ()):
            if name not in graph.tensors:
                raise (spot / key / index).error(_unknown(name, graph))
    for name in check.extra_feed_dict:
        if name not in graph.tensors:
            raise (spot / "extra_feed_dict" / name).error(_unknown(name, graph), key=True)
    for name in _by_name(check):
        if name and name not in (check.x or graph.tensors):
            known = did_you_mean(name, check.x or graph.tensors)
            raise (spot / "x_init_value" / name).error(f"{name!r} is not among x.{known}", key=True)
    for key in _BY_TENSOR:
        given = settings.get(key) if key in check.model_fields_set else None
        for name in given if isinstance(given, dict) else ():
            if name not in graph.tensors:
                raise (spot / key / name).error(_unknown(name, graph), key=True)
    _check_dims(check, source, spot)


def _check_dims(check: CheckSpec, source: Source, spot: DocumentPath) -> None:
    shapes = [kind.shape or () for kind in source.graph.types.values()]
    symbols = {dim for shape in shapes for dim in shape if isinstance(dim, str)}
    for name in check.dims:
        if name not in symbols:
            message = f"no input of {source.graph.name!r} has the size {name!r}.{did_you_mean(name, symbols)}"
            raise (spot / "dims" / name).error(message, key=True)


def _unknown(name: str, graph: Graph) -> str:
    known = graph.tensors
    return f"{graph.name!r} has no tensor {name!r}.{did_you_mean(name, known)}"


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


def _unique(name: str, taken: set[str]) -> str:
    """The name, with the first free number if it is taken."""
    candidates = [name, *(f"{name}#{number}" for number in range(2, len(taken) + 3))]
    return next(candidate for candidate in candidates if candidate not in taken)


def _tuple(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)
