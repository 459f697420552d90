"""The versions of packages that tables of tests were written for: what only a newer one has is skipped, and named.

With those versions the tables hold for everything; a release of a package breaks no test.  A line of a table that an
older one does not know stands in `since`.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version

import pytest
from _pytest.mark import ParameterSet
from onnx import GraphProto, ModelProto, defs

WRITTEN_FOR = {"onnx": "1.23", "onnxruntime": "1.32"}
OPSETS = {"": 28, "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1}  # of that onnx


def newer(package: str) -> str:
    """A note that a package is newer than the one that tables were written for; "" if it is not."""
    found, known = version(package), WRITTEN_FOR[package]
    later = _parts(found) > _parts(known)
    return f"{package} {found}, newer than the {known} that the tables are for" if later else ""


def since(package: str, least: str, *values: object) -> ParameterSet:
    """A case for this and newer versions of a package."""
    older = _parts(version(package)) < _parts(least)
    return pytest.param(*values, marks=pytest.mark.skipif(older, reason=f"{package} is older than {least}"))


def _parts(number: str) -> list[int]:
    return [int(part) for part in number.split(".")[:2]]


def require_none(package: str, found: Iterable[str]) -> None:
    """Nothing was found that a table lacks, or has too much; with a newer package it is a skip that names it."""
    names = sorted(found)
    if names and (reason := newer(package)):
        pytest.skip(f"{reason}: {', '.join(names)}")
    assert not names, ", ".join(names)


def is_later(name: str, domain: str = "") -> bool:
    """The operator in its newest form is one of a newer onnx."""
    if not newer("onnx") or not defs.has(name, domain):
        return False
    return bool(defs.get_schema(name, domain=domain).since_version > OPSETS.get(domain, 0))


def later(model: ModelProto) -> str:
    """The reason for which a model of ONNX's own waits for tables of a newer onnx; "" if it does not."""
    names = {name for domain, name in operators(model.graph) if is_later(name, domain)}
    return f"{newer('onnx')}: {', '.join(sorted(names))}" if names else ""


def operators(graph: GraphProto) -> Iterable[tuple[str, str]]:
    """Domains and names of the operators of a graph and its subgraphs."""
    for node in graph.node:
        yield node.domain, node.op_type
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from operators(attribute.g)
