"""Operators that a spec defines under `ops`, and the resolution of operator names in nodes.

An operator with attributes gets one body for each combination of values that nodes use: `acme.Elu` with its defaults,
`acme.Elu[alpha=2.0]` and so on, so that a body is a plain graph.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from msgspec import structs
from pydantic import ValidationError

from gradcheck_cli.errors import SpecError, UsageError, did_you_mean, spelled
from gradcheck_cli.formats import with_calls
from gradcheck_cli.formats.onnx.opset import NEWEST, signature
from gradcheck_cli.formats.source import OperatorBody, Source
from gradcheck_cli.formats.yaml.fields import AlongSpec, OperatorSpec, listed
from gradcheck_cli.formats.yaml.nodes import Scope, plain_attribute, read_nodes
from gradcheck_cli.formats.yaml.places import DocumentPath
from gradcheck_cli.formats.yaml.values import mistake
from gradcheck_cli.graph import Graph, Node
from gradcheck_cli.graph.memory import exhausted

COMPLEX = frozenset(("Complex", "Real", "Imag", "Conj", "Angle", "FFT", "IFFT"))  # not part of ONNX
DOMAINS = frozenset(("", "gradcheck", "ai.onnx.ml", "com.microsoft", "ai.onnx.training", "ai.onnx.preview.training"))
_OF_UNITS = ("layer", "bends", "squashes")  # facts about operators with a gradient of their own
_ONNX = ("ai.onnx",)  # the long name of the domain ""


@dataclass(slots=True)
class OperatorTable:
    """The operators of one spec, whose bodies are made when a node needs them."""

    specs: dict[str, OperatorSpec]
    spot: DocumentPath  # of the `ops` key
    allow_python: bool = False
    _bodies: dict[str, OperatorBody] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)  # operators whose bodies are being made

    @property
    def bodies(self) -> tuple[OperatorBody, ...]:
        """All bodies made so far; each comes after those that it calls."""
        return tuple(self._bodies.values())

    def read_all(self) -> None:
        """Makes each operator with its default attributes, so that mistakes in unused operators are found too."""
        for name in list(self.specs):
            with self.spot.document.collecting():
                self._prepare(name)
                self._body(name, {})

    def resolve(self, node: Node) -> Node:
        """The node with the domain, operator and attributes of its body; a UsageError if the operator is unknown."""
        domain = "" if node.domain in _ONNX else node.domain
        if not domain and node.op in COMPLEX:
            return replace(node, domain="gradcheck")
        own = next((name for name in self.specs if not domain and name.rpartition(".")[2] == node.op), "")
        if own and signature(node.op, NEWEST) is None:
            raise UsageError(f"no operator of ONNX is called {node.op!r}. Did you mean {own!r}?")
        full = f"{domain}.{node.op}"
        if domain and full in self.specs:
            return self._call(full, node)
        if domain in DOMAINS:
            return replace(node, domain=domain)
        near = did_you_mean(full, self.specs) or f" Other domains known: {listed(sorted(DOMAINS - {''}))}."
        raise UsageError(f"the operator {full!r} is not defined in 'ops'.{near}")

    def given_to(self, source: Source) -> Source:
        """A model of another file, with the bodies of this spec's operators that its nodes use."""
        if not self.specs:
            return source
        source = with_calls(source, lambda key: ".".join(key) in self.specs)
        try:
            graph = self._in_graph(source.graph)
        except UsageError as error:
            raise UsageError(f"{source.uri}: {error}") from None
        operators = (*source.operators, *self.bodies)
        return structs.replace(source, graph=graph, operators=operators, unused=self.unused([graph]))

    def unused(self, graphs: Iterable[Graph]) -> tuple[str, ...]:
        """Full names of the operators that none of the graphs uses, neither itself nor inside of another operator."""
        inner = {f"{body.domain}.{body.name}": [g for g in (body.forward, body.gradient) if g] for body in self.bodies}
        ahead, used = [*graphs], set[str]()
        while ahead:
            for node in ahead.pop().all_nodes:
                called = f"{node.domain}.{node.op}"
                if called in inner and called not in used:
                    used.add(called)
                    ahead.extend(inner[called])
        names = {each.partition("[")[0] for each in used}
        return tuple(name for name in self.specs if name not in names)

    def _in_graph(self, graph: Graph) -> Graph:
        nodes = []
        for node in graph.nodes:
            full, known = f"{node.domain}.{node.op}", node.with_graphs(self._in_graph)
            nodes.append(self._call(full, known) if full in self.specs else known)
        return replace(graph, nodes=tuple(nodes))

    def _call(self, full: str, node: Node) -> Node:
        spec = self.specs[full]
        if spec.inputs is None or spec.outputs is None or spec.forward is None:  # `_prepare` has reported this
            raise SpecError(problems=())
        inputs, outputs = spec.inputs, spec.outputs
        if len(node.inputs) != len(inputs) or "" in node.inputs:
            raise UsageError(f"{full} takes the inputs {listed(inputs)}; here are {len(node.inputs)}")
        if len(node.outputs) > len(outputs):
            raise UsageError(f"{full} gives the outputs {listed(outputs)}; here are {len(node.outputs)}")
        for name in node.attrs:
            if name not in spec.attrs:
                raise UsageError(f"{full} has no attribute {name!r}.{did_you_mean(name, spec.attrs)}")
        body = self._body(full, node.attrs)
        return replace(node, op=body.name, domain=body.domain, attrs={})

    def _prepare(self, name: str) -> None:
        """Checks an operator's entry, and calls the Python function that may stand in its place."""
        spot = self.spot / name
        domain, _, op = name.rpartition(".")
        if not domain or not op or domain in (*DOMAINS, *_ONNX):
            taken = f"; the domain {domain} is taken" if domain and op else ""
            message = f"an operator of one's own is called domain.Name, such as acme.{op or 'Softplus'}{taken}"
            raise spot.error(message, key=True)
        if self.specs[name].python is not None:
            self.specs[name] = self._from_python(str(self.specs[name].python), spot)
        spec = self.specs[name]
        for key in ("inputs", "outputs", "forward"):
            if getattr(spec, key) is None:
                raise spot.error(f"{spot} lacks the key {key!r}", key=True)
        _check_own_names(spec, spot)

    def _body(self, name: str, attrs: Mapping[str, Any]) -> OperatorBody:
        """The body of an operator for given attributes."""
        spec, spot = self.specs[name], self.spot / name
        default = {key: plain_attribute(value, spot / "attrs" / key) for key, value in spec.attrs.items()}
        bound = {**default, **attrs}
        changed = {key: bound[key] for key in default if _brief(bound[key]) != _brief(default[key])}
        label = name + (f"[{', '.join(f'{key}={_brief(value)}' for key, value in changed.items())}]" if changed else "")
        if label in self._bodies:
            return self._bodies[label]
        if name in self._open:
            raise UsageError(f"the operator {name!r} is defined by itself: {' -> '.join([*self._open, name])}")
        if spec.forward is None:  # `_prepare` has reported this
            return OperatorBody(name.rpartition(".")[2], name.rpartition(".")[0], Graph((), (), ()))
        self._open.append(name)
        try:
            self._bodies[label] = self._made(name, label, spec, bound)
        finally:
            self._open.remove(name)
        return self._bodies[label]

    def _made(self, name: str, label: str, spec: OperatorSpec, bound: Mapping[str, Any]) -> OperatorBody:
        domain, spot = name.rpartition(".")[0], self.spot / name
        inputs, outputs = spec.inputs or [], spec.outputs or []
        forward = self._graph(label, spec.forward, inputs, outputs, spot / "forward", bound)
        unknown = next((each for each in spec.cuts if each not in inputs), None)
        if unknown is not None:
            raise (spot / "cuts").error(f"{unknown!r} is none of the inputs: {listed(inputs)}")
        cuts = tuple(inputs.index(each) for each in spec.cuts)
        facts = _facts(spec, spot / "facts")
        if spec.gradient is None:
            return OperatorBody(label.removeprefix(f"{domain}."), domain, forward, cuts=cuts, facts=facts, attrs=bound)
        given = [*inputs, *outputs, *(f"d{output}" for output in outputs)]
        gradient_of = {f"d{each}": each for each in inputs}
        place, title = spot / "gradient", f"{label} gradient"
        gradient = self._graph(title, spec.gradient, given, list(gradient_of), place, bound, partial=True)
        if not gradient.outputs:
            raise place.error(f"computes none of {listed(gradient_of)}, the gradients of its inputs", key=True)
        _check_all_used(gradient, gradient_of, place)
        found = {output: gradient_of[output] for output in gradient.outputs}
        return OperatorBody(label.removeprefix(f"{domain}."), domain, forward, gradient, found, cuts, facts, bound)

    def _graph(
        self, name: str, nodes: Any, inputs: list[str], outputs: list[str], spot: DocumentPath,
        bound: Mapping[str, Any], partial: bool = False,
    ) -> Graph:  # fmt: skip
        scope = Scope(self.resolve, np.dtype(np.float32), local=set(inputs), bound=bound)
        read = read_nodes(nodes, spot, scope)
        missing = [output for output in outputs if output not in scope.local]
        if missing and not partial:
            near = did_you_mean(missing[0], scope.local)
            raise spot.error(f"does not compute {missing[0]!r}, an output of the operator.{near}", key=True)
        outputs = [output for output in outputs if output not in missing]
        return Graph(tuple(inputs), tuple(outputs), tuple(read), scope.constants, opset={"": 21}, name=name)

    def _from_python(self, target: str, spot: DocumentPath) -> OperatorSpec:
        if not self.allow_python:
            raise (spot / "python").error("runs code, which a spec may do only with --allow-python", key=True)
        module, _, function = target.partition(":")
        if not module or not function:
            raise (spot / "python").error(f"{target!r} names no function; write module:function")
        try:
            given = getattr(importlib.import_module(module), function)()
            return OperatorSpec.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            path = tuple(part for part in first["loc"] if not str(part).startswith(("<", "[")))
            said = mistake(first, path, "it")
            raise (spot / "python").error(f"{target} returns no operator: {said}") from None
        except MemoryError as error:
            raise exhausted(error, target) from error
        except (Exception, SystemExit) as error:  # a script may end with sys.exit()
            raise (spot / "python").error(f"{target} cannot be called: {spelled(error)}") from error


def _facts(spec: OperatorSpec, spot: DocumentPath) -> dict[str, Any]:
    """The facts that a spec states about its operator, with operands by index; a SpecError for an unknown operand."""
    facts, inputs = spec.facts, spec.inputs or []
    for key in _OF_UNITS if spec.gradient is None else ():
        if key in facts.model_fields_set:
            raise (spot / key).error(f"{spot / key} is of an operator with a gradient; else its nodes say it", key=True)

    def index(name: str, at: DocumentPath, key: bool = False) -> int:
        if name not in inputs:
            raise at.error(f"{name!r} is none of the inputs: {listed(inputs)}.{did_you_mean(name, inputs)}", key=key)
        return inputs.index(name)

    found: dict[str, Any] = {key: getattr(facts, key) for key in facts.model_fields_set}
    for key in ("domain", "integers", "roles"):
        found[key] = {index(name, spot / key / name, True): value for name, value in found.get(key, {}).items()}
    for name, value in facts.integers.items():
        if isinstance(value, AlongSpec):
            along = index(value.along, spot / "integers" / name / "along")
            found["integers"][inputs.index(name)] = {**dict(value), "along": along}
    found["bends"] = tuple(
        tuple(index(name, spot / "bends" / i / j) for j, name in enumerate(group))
        for i, group in enumerate(facts.bends)
    )
    return {key: value for key, value in found.items() if value not in ({}, (), None)}


def _check_all_used(gradient: Graph, gradient_of: Mapping[str, str], spot: DocumentPath) -> None:
    """Raises a SpecError for a result of a gradient that nothing reads, while the gradient of an input is missing."""
    missing = [name for name in gradient_of if name not in gradient.outputs]
    used = {*gradient.outputs, *(name for node in gradient.nodes for name in node.reads)}
    idle = next((node.outputs[0] for node in gradient.nodes if used.isdisjoint(node.outputs)), None)
    if missing and idle is not None and not spot.document.problems:  # of a node that could not be read, for one
        message = (
            f"computes {idle!r}, which no node reads and which is none of {listed(gradient_of)}, the gradients of "
        )
        raise spot.error(f"{message}its inputs.{did_you_mean(idle, missing)}", key=True)


def _check_own_names(spec: OperatorSpec, spot: DocumentPath) -> None:
    inputs, outputs = spec.inputs or [], spec.outputs or []
    names: list[str] = []
    for part, given in (("inputs", inputs), ("outputs", outputs)):
        for index, name in enumerate(given):
            if name in names:
                raise (spot / part / index).error(f"{name!r} stands here a second time")
            names.append(name)
    derived = [f"d{name}" for name in names]
    for name in names:
        if name in derived and spec.gradient is not None:
            raise spot.error(f"{name!r} is also the name of the gradient of {name[1:]!r}; choose another", key=True)


def _brief(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}{value.tolist()}"
    return str(value) if isinstance(value, Graph) else repr(value)
