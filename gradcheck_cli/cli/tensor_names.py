"""Names for shell completion: the tensors of a model, the likely ones first."""

from __future__ import annotations

from collections.abc import Iterable


def tensor_names(models: Iterable[str]) -> list[str]:
    """Every tensor of the models that can be read; a shell gets no errors."""
    names: list[str] = []
    for path in models:
        try:
            names.extend(_tensors(path))
        except Exception:
            continue
    return list(dict.fromkeys(names))


def _tensors(path: str) -> list[str]:
    from gradcheck_cli.formats import read

    graphs = [source.graph for source in read(path).sources.values()]
    ends = [name for graph in graphs for name in (*graph.inputs, *graph.outputs)]
    return [*ends, *(name for graph in graphs for name in graph.tensors)]
