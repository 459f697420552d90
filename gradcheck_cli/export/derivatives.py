"""Derivatives of a model (gradients, tangents and Hessian-vector products), and the ONNX file that they are saved in.

A gradient is linear in its initial gradient, and its derivative with respect to that is the tangent: tangents need no
rules of their own.  A file is never written over one that the model was read from.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from gradcheck_cli.errors import UsageError, shown
from gradcheck_cli.export.gradient_graph import Written
from gradcheck_cli.export.proof import Runtime, not_run, proven_graph, require_rows, require_runs, sample
from gradcheck_cli.export.rewrites import held_once, rows_apart
from gradcheck_cli.formats import companion_files, is_spec
from gradcheck_cli.graph import Array, FreshNames, Graph
from gradcheck_cli.model import Model
from gradcheck_cli.model.request import Request, Seed

Kind: TypeAlias = Literal["gradient", "jvp", "hvp"]
_NOTHING: Mapping[str, Array] = MappingProxyType({})
INPUTS = "inputs"  # initial gradients that are inputs of the file


@dataclass(frozen=True, slots=True)
class Derivatives:
    """Derivatives that were added to a model: names of the results and of new inputs, by the tensor they belong to.

    `missing` names the tensors without a result: no y depends on them.  `still` names the xs whose tangents move no y:
    they are no inputs of the file.
    """

    results: Mapping[str, str]
    inputs: Mapping[str, str]
    missing: tuple[str, ...] = ()
    still: tuple[str, ...] = ()


def derivatives(
    model: Model,
    kind: Kind,
    xs: Sequence[str],
    ys: Sequence[str],
    grad_ys: Mapping[str, str | Array] | Literal["ones", "inputs"],
    how: Mapping[str, Any],
) -> Derivatives:
    """Adds derivatives of ys with respect to xs to a model; `how` holds further fields of `Request`."""
    adding = _Adding(model, dict(how))
    if kind == "jvp":
        return adding.tangents(xs, ys)
    initial: list[str | Array | Seed | None] = [None] * len(ys)
    if grad_ys == INPUTS:
        initial = [Seed(name) for name in adding.names([f"{y}_grad" for y in ys])]
    elif not isinstance(grad_ys, str):
        initial = [grad_ys.get(y) for y in ys]
    gradient = adding.gradient(xs, ys, initial, "grad")
    return adding.products(xs, gradient) if kind == "hvp" else gradient


@dataclass(slots=True)
class _Adding:
    """Adds requests to a model, one after the other."""

    model: Model
    how: dict[str, Any]

    def gradient(
        self, xs: Sequence[str], ys: Sequence[str], initial: Sequence[str | Array | Seed | None], what: str
    ) -> Derivatives:
        """The gradient of the sum of all ys with respect to each x, named after x."""
        done = self._add(xs, ys, initial, self.names([f"{x}_{what}" for x in xs]))
        results = {x: name for x, name in zip(xs, done.results, strict=True) if name is not None}
        opened = {y: seed.name for y, seed in zip(ys, initial, strict=True) if isinstance(seed, Seed)}
        return Derivatives(results, opened, tuple(x for x in xs if x not in results))

    def products(self, xs: Sequence[str], gradient: Derivatives) -> Derivatives:
        """Hessian-vector products; the vector for each x is a new input."""
        by = [x for x in xs if x in gradient.results]
        vectors = [Seed(name) for name in self.names([f"{x}_vector" for x in by])]
        done = self.gradient(by, [gradient.results[x] for x in by], vectors, "hvp")
        inputs = {**gradient.inputs, **{x: seed.name for x, seed in zip(by, vectors, strict=True)}}
        return Derivatives({**done.results}, inputs, (*gradient.missing, *done.missing))

    def tangents(self, xs: Sequence[str], ys: Sequence[str]) -> Derivatives:
        """The tangent of each y; the tangents of all xs are new inputs."""
        tangents = dict(zip(xs, (Seed(name) for name in self.names([f"{x}_tangent" for x in xs])), strict=True))
        results, moving = dict[str, str](), set[str]()
        for y in ys:
            [inner] = self.names([f"{y}_cotangent"])
            forth = self._add(xs, [y], [Seed(inner, open=False)], self.names([f"{x}_cotangent" for x in xs]))
            reached = {x: name for x, name in zip(xs, forth.results, strict=True) if name is not None}
            if reached:
                seeds = [tangents[x] for x in reached]
                [back] = self._add([inner], list(reached.values()), seeds, self.names([f"{y}_tangent"])).results
                if back is not None:
                    results[y] = back
                    moving.update(reached)
        inputs = {x: seed.name for x, seed in tangents.items() if x in moving}
        missing, still = (tuple(n for n in names if n not in seen) for names, seen in ((ys, results), (xs, moving)))
        return Derivatives(results, inputs, missing, still)

    def _add(
        self, xs: Sequence[str], ys: Sequence[str], initial: Sequence[str | Array | Seed | None], names: Sequence[str]
    ) -> Request:
        scope = self.model.scope(self.how["scope"])
        given = {**self.how, "scope": scope, "names": tuple(names)}
        return self.model.add(Request(ys=tuple(ys), xs=tuple(xs), grad_ys=tuple(initial), **given))

    def names(self, wanted: Sequence[str]) -> list[str]:
        """The names, each with a number if a tensor has it already."""
        return [*map(FreshNames(self.model.tensors).fresh, wanted)]


def export(
    model: Model, path: str | os.PathLike[str], outputs: Sequence[str], feeds: Mapping[str, Any],
    defaults: Mapping[str, Array] = _NOTHING, *, per_sample: bool = False, runtime: Runtime | None = None,
) -> Written:  # fmt: skip
    """Writes the graph that computes `outputs`, in the model's own dtypes, with the tensors in `feeds` as constants.

    defaults    values of inputs for which a run need not give any
    per_sample  the graph runs for each row of the batch by itself
    runtime     runs the file too, before it is written
    """
    from gradcheck_cli.formats.onnx.file import outline_of
    from gradcheck_cli.formats.onnx.opset import LOWEST
    from gradcheck_cli.formats.onnx.write import write

    require_other_file(model, Path(path))
    made, here = proven_graph(model, outputs, feeds)
    notes = [*made.notes]
    values = {} if runtime is None else sample(made, here)
    graph = rows_apart(made.graph) if per_sample else made.graph
    if per_sample:
        notes += require_rows(model, made, graph, feeds)
    graph = replace(graph, constants={**graph.constants, **{n: v for n, v in defaults.items() if n in graph.inputs}})
    made = replace(made, graph=with_unique_names(held_once(graph)))
    own = _file(model)  # which gives documentation and properties, if it is an ONNX file
    original = None if own is None or is_spec(own) else outline_of(own)
    least = max(LOWEST, model.source.opset.get("", 0))

    def proof(data: bytes) -> None:
        assert runtime is not None
        notes.append(require_runs(data, made.graph, model.graph, values, model.ops, runtime, least))
        notes.extend(not_run(data, model, made, feeds, runtime, least))

    write(made.graph, path, least=least, original=original, proof=proof if values and not per_sample else None)
    return replace(made, notes=tuple(filter(None, notes)))


def with_unique_names(graph: Graph) -> Graph:
    """The graph with unique names of nodes: of several with one name, all but the first get a number."""
    names, seen, nodes = FreshNames(node.name for node in graph.nodes), {""}, []
    for node in graph.nodes:
        name = names.fresh(node.name) if node.name and node.name in seen else node.name
        seen.add(name)
        nodes.append(replace(node.with_graphs(with_unique_names), name=name))
    return replace(graph, nodes=tuple(nodes))


def require_other_file(model: Model, path: Path) -> None:
    """Raises a UsageError if the file is one that the model or its weights were read from."""
    from gradcheck_cli.formats.onnx.write import data_file

    own = _file(model)
    if own is None:
        return
    files = {*map(os.path.realpath, (own, *companion_files(own).values()))}
    for target in (path, data_file(path)):
        if os.path.realpath(target) in files:
            raise UsageError(f"{shown(str(target))} is what the model was read from; write to another file.")


def _file(model: Model) -> Path | None:
    """The file that the model was read from, if it exists."""
    own = Path(model.source.uri)
    try:
        return own if own.is_file() else None
    except (OSError, ValueError):  # the name of a model in memory need not be a valid path
        return None
