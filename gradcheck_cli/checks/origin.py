"""Where a record comes from: the model, the versions of what took part, the memory of the process."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache

import numpy as np

from gradcheck_cli import __version__
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Graph, Node, is_inexact
from gradcheck_cli.results.record import ModelInfo


def model_of(source: Source) -> ModelInfo:
    """What records say of a model."""
    operators = dict(Counter(map(_full, _nodes(source.graph))).most_common())
    return ModelInfo(source.uri, source.sha256, source.opset, source.nodes, _dtypes(source), operators)


def _nodes(graph: Graph) -> Iterator[Node]:
    """Those of inner graphs too."""
    for node in graph.nodes:
        yield node
        for body in node.subgraphs:
            yield from _nodes(body)


def _full(node: Node) -> str:
    return f"{node.domain}.{node.op}" if node.domain else node.op


def _dtypes(source: Source) -> tuple[str, ...]:
    declared = [t.dtype for n, t in source.graph.types.items() if n in source.graph.inputs and t.dtype is not None]
    arrays = [v.dtype for v in source.graph.constants.values() if v.ndim]
    return tuple(dict.fromkeys(d.name for d in [*declared, *arrays] if is_inexact(d)))


@cache
def versions() -> dict[str, str]:
    """Versions of what took part."""
    onnx = sys.modules.get("onnx")
    return {"gradcheck": __version__, "numpy": np.__version__, **({"onnx": onnx.__version__} if onnx else {})}


def peak_rss_mb() -> float:
    """The largest resident size of this process so far."""
    try:
        import resource
    except ImportError:  # Windows has no such module
        return 0.0
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(used / (1 << 20 if sys.platform == "darwin" else 1 << 10), 1)
