"""Reads a spec file: graphs, operators, ways to initialise, checks, models.

Errors are collected as far as one mistake does not hide the next, and raised together as a SpecError.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradcheck_cli.errors import UsageError, did_you_mean
from gradcheck_cli.formats.source import Source, Spec

if TYPE_CHECKING:
    from gradcheck_cli.formats.yaml.custom_ops import OperatorTable
    from gradcheck_cli.formats.yaml.places import Document
    from gradcheck_cli.formats.yaml.spec_models import SpecFile


def read_spec(
    path: str | os.PathLike[str], *, dims: Mapping[str, int] | None = None, allow_python: bool = False
) -> Spec:
    """The spec in a file.

    `dims` gives sizes by name and wins over the file's.  Shapes of inputs keep the names of sizes, which
    `Source.dims` resolves; parameters have their final shapes.  With `allow_python`, operators may be given
    by Python functions, which are then called.
    """
    from gradcheck_cli.formats.yaml.places import Document
    from gradcheck_cli.formats.yaml.spec_messages import validate  # brings yaml and pydantic

    document = Document.read(os.fspath(path))
    return _spec(document, validate(document), dict(dims or {}), allow_python)


def _spec(document: Document, written: SpecFile, dims: Mapping[str, int], allow_python: bool) -> Spec:
    from gradcheck_cli.formats.yaml.checks import CheckReader, read_models, settings_of
    from gradcheck_cli.formats.yaml.custom_ops import OperatorTable
    from gradcheck_cli.formats.yaml.places import Spot
    from gradcheck_cli.formats.yaml.spec_files import Folder
    from gradcheck_cli.formats.yaml.values import Values

    here, folder = Spot(document), Path(document.path).parent
    defaults = settings_of(written.defaults)
    seed = defaults.get("seed", 0)
    values = Values(Folder(folder), seed if isinstance(seed, int) else 0)
    operators = OperatorTable(dict(written.ops), here / "ops", allow_python)
    operators.read_all()
    sources = _sources(document, written, dims, values, operators)
    document.raise_problems()  # a check of a broken graph would only repeat what is wrong there
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
    return Spec(document.path, sources, checks, models, defaults, operators.given_to)


def _sources(
    document: Document, written: SpecFile, dims: Mapping[str, int], values: object, operators: OperatorTable
) -> dict[str, Source]:
    from gradcheck_cli.formats.yaml.graphs import Reading, read_graph, read_initializations
    from gradcheck_cli.formats.yaml.places import Spot
    from gradcheck_cli.formats.yaml.values import Values

    assert isinstance(values, Values)
    here = Spot(document)
    reading = Reading(document, operators, values, dims)
    sources: dict[str, Source] = {}
    for name, graph in written.graphs.items():
        with document.collecting():
            sources[name] = read_graph(name, graph, here / "graphs" / name, reading)
    document.raise_problems()
    _check_given_dims(document, sources, dims)
    groups = read_initializations(written.init, sources, here / "init", values)
    return {name: replace(source, initializations=groups[name]) for name, source in sources.items()}


def _check_given_dims(document: Document, sources: Mapping[str, Source], dims: Mapping[str, int]) -> None:
    known = {name for source in sources.values() for name in source.dims}
    symbols = {d for s in sources.values() for t in s.graph.types.values() for d in t.shape or () if isinstance(d, str)}
    for name in dims:
        if sources and name not in known | symbols:
            raise UsageError(f"{document.path} has no size {name!r}.{did_you_mean(name, known | symbols)}")
