"""Reads a spec file: graphs, operators, initializations, checks, models.

Errors are collected as long as one mistake does not cause the next, and raised together as a SpecError.  Errors of
pydantic are turned into gradcheck's form: place in the file, what is wrong, what would be right.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from gradcheck_cli.errors import Diagnostic, UsageError, did_you_mean
from gradcheck_cli.formats.source import Source, Spec
from gradcheck_cli.formats.yaml.checks import CheckReader, read_models, settings_of
from gradcheck_cli.formats.yaml.fields import InvalidPart, SpecKeys, Unknown, listed, show
from gradcheck_cli.formats.yaml.places import Document, DocumentPath, show_path
from gradcheck_cli.formats.yaml.values import Folder, Values

if TYPE_CHECKING:
    from gradcheck_cli.formats.yaml.custom_ops import OperatorTable

_MOST_PROBLEMS = 500
_TYPES = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


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
    seed = defaults.get("seed", 0)
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
    models = read_models(
        written.models, here / "models", defaults if expect is None else {**defaults, "expect": expect}
    )
    document.raise_problems()
    if models and (sources or checks):
        message = "a list of models stands in a file of its own, without graphs and checks"
        raise (here / "models").error(message, key=True)
    spec = Spec(document.path, sources, checks, models, defaults)
    return spec if operators is None else replace(spec, operators=operators.given_to)


def _sources(
    document: Document, written: SpecKeys, dims: Mapping[str, int], values: Values, operators: OperatorTable
) -> dict[str, Source]:
    from gradcheck_cli.formats.yaml.graphs import SpecContext, read_graph, read_initializations

    here = DocumentPath(document)
    context = SpecContext(document, operators, values, dims)
    sources: dict[str, Source] = {}
    for name, graph in written.graphs.items():
        with document.collecting():
            sources[name] = read_graph(name, graph, here / "graphs" / name, context)
    document.raise_problems()
    _check_given_dims(document, sources, dims)
    groups = read_initializations(written.init, sources, here / "init", values)
    unused = operators.unused(source.graph for source in sources.values())
    return {name: replace(each, initializations=groups[name], unused=unused) for name, each in sources.items()}


def _check_given_dims(document: Document, sources: Mapping[str, Source], dims: Mapping[str, int]) -> None:
    known = {name for source in sources.values() for name in source.dims}
    symbols = {d for s in sources.values() for t in s.graph.types.values() for d in t.shape or () if isinstance(d, str)}
    for name in dims:
        if sources and name not in known | symbols:
            raise UsageError(f"{document.path} has no size {name!r}.{did_you_mean(name, known | symbols)}")


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
        raise (here / str(first)).error(message + did_you_mean(str(first), ["gradcheck"]), key=True)
    version = root.value["gradcheck"]
    if version != 1 or not isinstance(version, int) or isinstance(version, bool):
        raise (here / "gradcheck").error(f"version {show(version)} of the format is not known; known is 1")


def _problem(document: Document, error: Any) -> Diagnostic:
    path = _path_in(document, error["loc"])
    by_key = error["type"] in ("extra_forbidden", "missing") or error["loc"][-1:] == ("[key]",)
    if isinstance(inner := error.get("ctx", {}).get("error"), InvalidPart):
        path, by_key = (*path, inner.part), inner.by_key
    spot = DocumentPath(document, path[:-1] if error["type"] == "missing" else path)
    return spot.error(_message(error, path), key=by_key).problems[0]


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


def _message(error: Any, path: tuple[str | int, ...]) -> str:
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    where = show_path(path) or "the spec"
    if kind == "extra_forbidden":
        return f"unknown key {path[-1]!r}{_inside(path)}.{_known(str(path[-1]), value)}"
    if kind == "missing":
        return f"{show_path(path[:-1]) or 'the spec'} lacks the key {path[-1]!r}"
    if kind == "literal_error":
        known = context["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        return f"{where} is {show(value)}; known are {listed(known)}.{did_you_mean(str(value), known)}"
    if kind == "value_error":
        return f"{where} {context['error']}"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{where} is {show(value)}; it must be {words} {context[key]:g}"
    if kind in _TYPES:
        return f"{where} is {show(value)}; it must be {_TYPES[kind]}"
    return f"{where} is {show(value)}; {_lengths(kind, context) or error['msg']}"


def _inside(path: tuple[str | int, ...]) -> str:
    return f" in {show_path(path[:-1])}" if len(path) > 1 else ""


def _known(key: str, value: Any) -> str:
    known = value.known if isinstance(value, Unknown) else ()
    near = did_you_mean(key, known)
    return near or (f" Known are {listed(known)}." if known else "")


def _lengths(kind: str, context: dict[str, Any]) -> str:
    if kind in ("too_short", "string_too_short"):
        least = context["min_length"]
        return "it must not be empty" if least == 1 else f"it must have {least} values"
    if kind == "too_long":
        return f"it must have {context['max_length']} values"
    return ""
