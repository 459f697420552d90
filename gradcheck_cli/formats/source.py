"""Records of files that were read: models, operators that a spec defines, initializations, requested checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from gradcheck_cli.graph import Array, Graph


class Initialization(Struct, frozen=True):
    """Initial values of some tensors of a model, computed by a graph without inputs."""

    graph: Graph
    bindings: Mapping[str, str]  # tensor of the model -> output of `graph`


class AlgorithmStep(Struct, frozen=True):
    """A step of a training algorithm: the model's graph followed by the algorithm's.

    `updates` maps initializers to the outputs whose values they get for the next step.
    """

    graph: Graph
    updates: Mapping[str, str]


class OperatorBody(Struct, frozen=True):
    """An operator that a spec defines: its forward graph, and the gradient under test.

    `gradient` reads the operator's inputs `x`, outputs `y` and cotangents `dy`, and computes `dx` for each
    differentiable input.  Without it the forward graph is differentiated.
    """

    name: str
    domain: str
    forward: Graph
    gradient: Graph | None = None
    gradient_of: Mapping[str, str] = field(default_factory=dict)  # output of `gradient` -> input of the operator
    cuts: tuple[int, ...] = ()  # inputs without a derivative by nature
    facts: Mapping[str, Any] = field(default_factory=dict)  # as `ops:` states them, operands by index
    attrs: Mapping[str, Any] = field(default_factory=dict)  # that its nodes were made with


class Source(Struct, frozen=True):
    """A model that was read: its graph in the form of the newest opset, with all that the file says beside it."""

    graph: Graph
    uri: str
    sha256: str = ""
    opset: Mapping[str, int] = field(default_factory=dict)  # as declared in the file
    nodes: int = 0  # as counted in the file
    line: int = 0  # of the spec that it is a graph of
    operators: tuple[OperatorBody, ...] = ()
    functions: frozenset[tuple[str, str]] = frozenset()  # of the model, whose calls are their nodes in the graph
    unused: tuple[str, ...] = ()  # operators of its spec that no model there uses, by full name
    initializations: Mapping[str, Initialization] = field(default_factory=dict)
    steps: Mapping[str, AlgorithmStep] = field(default_factory=dict)  # of training, by name
    step: str = ""  # the training step that the graph is; "" for the model's own graph
    updates: Mapping[str, str] = field(default_factory=dict)  # initializer -> output, of this step
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of inputs, both ends included
    dims: Mapping[str, int] = field(default_factory=dict)  # sizes given for symbolic dimensions
    values_at: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # point -> inputs not drawn there

    @property
    def symbols(self) -> set[str]:
        """Names of the symbolic dimensions in declared shapes."""
        shapes = (kind.shape or () for kind in self.graph.types.values())
        return {dim for shape in shapes for dim in shape if isinstance(dim, str)}

    def at_step(self, name: str) -> Source:
        """A training step as a model of its own."""
        step = self.steps[name]
        nodes = self.nodes + len(step.graph.nodes) - len(self.graph.nodes)
        return replace(self, graph=step.graph, nodes=nodes, steps={}, step=name, updates=step.updates)


class CheckRequest(Struct, frozen=True):
    """One entry of `checks:` in a spec; None stands for what neither it nor `defaults:` gives.

    `settings` holds further options by name: delta, method, mode, dtype, rtol, atol, seed, points ...
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
    line: int = 0  # of the spec


class Spec(Struct, frozen=True):
    """A `*.gradcheck.yaml` file: named sources and the checks over them."""

    uri: str
    sources: Mapping[str, Source]
    checks: tuple[CheckRequest, ...]
    models: tuple[Mapping[str, Any], ...] = ()  # a zoo manifest
    defaults: Mapping[str, Any] = field(default_factory=dict)  # settings by the name of the option
    expect: Mapping[str, Any] | None = None  # the default, for checks without their own
    operators: Callable[[Source], Source] = lambda source: source  # adds those under `ops` to a model of another file

    @property
    def meant(self) -> Source | None:
        """The source to use if none is named: the only one, not counting training steps."""
        own = [source for source in self.sources.values() if not source.step]
        return own[0] if len(own) == 1 else None
