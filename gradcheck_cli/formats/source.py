"""What a file holds once it is read: graphs, operators it defines, ways to initialise it, checks it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gradcheck_cli.graph import Array, Graph


@dataclass(frozen=True, slots=True)
class Initialization:
    """Values for some tensors of a graph: the outputs of a graph without inputs, by the name each one sets."""

    graph: Graph
    bindings: Mapping[str, str]  # tensor of the model -> output of `graph`


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a training algorithm: the model's graph with that of the algorithm behind it.

    `updates` says which initializers get the values of which outputs for the next step.
    """

    graph: Graph
    updates: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class OperatorBody:
    """An operator that a spec defines: its forward graph, and the gradient under test.

    `gradient` reads the operator's inputs `x`, outputs `y` and cotangents `dy`, and computes `dx` for each input
    that has one; `gradient_of` names the input that each of its outputs belongs to.  Without a gradient the forward
    body is differentiated.
    """

    name: str
    domain: str
    forward: Graph
    gradient: Graph | None = None
    gradient_of: Mapping[str, str] = field(default_factory=dict)  # output of `gradient` -> input of the operator
    cuts: tuple[int, ...] = ()  # inputs without a derivative by nature


@dataclass(frozen=True, slots=True)
class Source:
    """One model as read: its graph in modern form, and what came with it."""

    graph: Graph
    uri: str
    sha256: str = ""
    opset: Mapping[str, int] = field(default_factory=dict)  # as declared in the file
    nodes: int = 0  # as counted in the file
    operators: tuple[OperatorBody, ...] = ()
    initializations: Mapping[str, Initialization] = field(default_factory=dict)
    steps: Mapping[str, Step] = field(default_factory=dict)  # of training, by name
    step: str = ""  # which of them the graph is of, if it is not the model's own
    updates: Mapping[str, str] = field(default_factory=dict)  # initializer -> output, of such a step
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of inputs, both ends included
    dims: Mapping[str, int] = field(default_factory=dict)  # sizes given for symbolic dimensions
    drawn: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # values of inputs by point, where not random

    def at_step(self, name: str) -> Source:
        """A training step as a model of its own."""
        step = self.steps[name]
        nodes = self.nodes + len(step.graph.nodes) - len(self.graph.nodes)
        return replace(self, graph=step.graph, nodes=nodes, steps={}, step=name, updates=step.updates)


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """One entry of `checks:`; what is None was not given there nor in `defaults:`.

    `settings` holds the rest by the name of the option: delta, method, mode, dtype, rtol, atol, seed, points ...
    """

    name: str
    graph: str | None = None
    model: str | None = None  # path of an ONNX file, relative to the spec's folder, resolved
    x: tuple[str, ...] | None = None
    y: tuple[str, ...] | None = None
    x_init_value: Mapping[str, Array] = field(default_factory=dict)
    extra_feed_dict: Mapping[str, Array] = field(default_factory=dict)
    init_targets: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    expect: Mapping[str, Any] | None = None  # status, reason, until (a datetime.date)


@dataclass(frozen=True, slots=True)
class Spec:
    """A `*.gradcheck.yaml` file: named sources and the checks over them."""

    uri: str
    sources: Mapping[str, Source]
    checks: tuple[CheckRequest, ...]
    models: tuple[Mapping[str, Any], ...] = ()  # a zoo manifest
    defaults: Mapping[str, Any] = field(default_factory=dict)  # settings by the name of the option, checks or not
    operators: Callable[[Source], Source] = lambda source: source  # gives those under `ops` to a model of another file

    @property
    def meant(self) -> Source | None:
        """The source that is meant where none is named: the only one, training steps aside."""
        own = [source for source in self.sources.values() if not source.step]
        return own[0] if len(own) == 1 else None
