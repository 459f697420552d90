"""The versions of packages that tables of tests were written for: what only a newer one has is skipped, and named.

With those versions, and older ones, the tables hold for everything; a release of a package breaks no test.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version

import pytest
from onnx import GraphProto, ModelProto, defs

WRITTEN_FOR = {"onnx": "1.23", "onnxruntime": "1.32"}
OPSETS = {"": 28, "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1}  # of that onnx


def newer(package: str) -> str:
    """A note that a package is newer than the one that tables were written for; "" if it is not."""
    found, known = version(package), WRITTEN_FOR[package]
    later = [int(part) for part in found.split(".")[:2]] > [int(part) for part in known.split(".")]
    return f"{package} {found}, newer than the {known} that the tables are for" if later else ""


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
