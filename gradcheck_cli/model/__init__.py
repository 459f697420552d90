"""A model as the Python API holds it: a mutable handle over a frozen graph and the derivatives requested of it.

Nothing is computed until tensors are run; then each request for a derivative adds its nodes to that run's tape.  Names,
shapes and connections come from a sample run at drawn values; if the model does not run there, and where another
branch may connect more, they come from the graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from itertools import count
from typing import Any, NoReturn

import numpy as np
from msgspec import structs

from gradcheck_cli.autodiff.custom import ops_for
from gradcheck_cli.autodiff.outlined import OutlinedTape
from gradcheck_cli.autodiff.reach import nodes_between, without_rule
from gradcheck_cli.autodiff.tape import Loose, Tape, Var
from gradcheck_cli.autodiff.trace import Dependence
from gradcheck_cli.errors import GradcheckError, NoGradientError, UsageError, did_you_mean, shown
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, Dim, Graph, Node, TensorType, is_inexact
from gradcheck_cli.model.request import Request, Seed, derive, name_results
from gradcheck_cli.op import Ops, operator_of
from gradcheck_cli.points.dims import open_dims
from gradcheck_cli.points.elements import ready_to_draw, spread, with_element
from gradcheck_cli.points.point import Point, find_point
from gradcheck_cli.results.typed import Displayed
from gradcheck_cli.settings import Settings

_NAMED = 6  # inputs, and outputs, that the repr of a model names


class Tensor:
    """A handle of one tensor of a model: `name`, `shape`, `dtype`, and the `model` itself.

    `model[name]` and `gradients` give them; they stay valid whatever is added to the model later.
    """

    __slots__ = ("model", "name")

    def __init__(self, model: Model, name: str) -> None:
        self.model, self.name = model, name

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The dimensions: ints, or names or None for those that the file or the values fed leave open.

        Raises:
            GradcheckError: nothing is known, since the file declares nothing and the model does not run at drawn values.
        """
        return self.model.shape(self.name)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that the model computes it in.

        Raises:
            GradcheckError: nothing is known, as for `shape`.
        """
        return self.model.dtype(self.name)

    def __repr__(self) -> str:
        try:
            return f"<Tensor {self.name!r} shape={self.shape} dtype={self.dtype.name}>"
        except GradcheckError:
            return f"<Tensor {self.name!r}>"


class Model(Displayed):
    """The result of `load`: a mutable handle over a frozen graph, to which `gradients` adds derivatives.

    `model["name"]` is the handle of a tensor, `model["s[0]"]` of an element of a sequence, an optional or a map;
    `"name" in model` tells if there is such a tensor, `model.graph` is the graph as it was read.
    """

    def __init__(self, source: Source, ops: Ops, dims: Mapping[str, int] | None = None) -> None:
        self.source, self.ops = source, ops_for(source, ops)
        self.dims = dict(dims or {})
        self.requests: list[Request] = []
        self._sample: Tape | GradcheckError | None = None
        self._dependence: Dependence | None = None

    def __copy__(self) -> Model:
        """A copy: requests of its own, and no tape, whose tensors would go on referring to this one's."""
        twin = Model.__new__(type(self))
        vars(twin).update({**vars(self), "requests": [*self.requests], "_sample": None, "_dependence": None})
        return twin

    def with_graph(self, graph: Graph, ops: Ops | None = None) -> Model:
        """A model of another graph from the same source, without requests; `ops` replaces the operators."""
        return Model(structs.replace(self.source, graph=graph), self.ops if ops is None else ops, self.dims)

    def __deepcopy__(self, _: Any) -> Model:
        """A copy: what it shares with this one is frozen."""
        return copy(self)

    def __reduce__(self) -> NoReturn:
        """Says what to send to another process instead: the operators of a model are functions made here."""
        raise TypeError(
            f"a gradcheck Model cannot be pickled. Send the path, and load it in the other process: "
            f"gradcheck_cli.load({self.source.uri!r}); then call gradients() there."
        )

    @property
    def graph(self) -> Graph:
        """The model's graph as it was read."""
        return self.source.graph

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of all tensors, those of derivatives included."""
        results = (name for request in self.requests for name in request.results if name)
        seeds = (seed.name for request in self.requests for seed in request.seeds)
        return tuple(dict.fromkeys([*self.graph.tensors, *seeds, *results]))

    def __getitem__(self, name: str) -> Tensor:
        if not isinstance(name, str):
            raise UsageError(f"model[{name!r}]: the name of a tensor is a string.")
        if name not in self.tensors:  # s[0]: an element of a sequence, an optional or a map becomes a tensor
            opened = with_element(self.source, name)
            if opened is not self.source:
                self.source, self._sample, self._dependence = opened, None, None
        if name not in self.tensors:
            raise UsageError(f"{self.source.uri} has no tensor {name!r}.{did_you_mean(name, self.tensors)}")
        return Tensor(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __repr__(self) -> str:
        ends = (
            (*names[:_NAMED], *["..."] * (len(names) > _NAMED)) for names in (self.graph.inputs, self.graph.outputs)
        )
        inputs, outputs = (", ".join(map(shown, names)) for names in ends)
        return f"<Model {self.source.uri!r}: ({inputs}) -> ({outputs})>"

    def shape(self, name: str) -> tuple[Dim, ...]:
        """The declared shape of a tensor; where it is not declared, that of the sample run.

        None stands for a dimension that is not declared and may differ in other runs.
        """
        declared = self._declared_shape(name)
        if declared is not None and (self.free_dims or all(isinstance(d, int) for d in declared)):
            return declared
        x = next((x for r in self.requests for x, made in zip(r.xs, r.results, strict=True) if made == name), None)
        if x is not None:
            return self.shape(x)
        sampled = self._sampled(name)
        if self.free_dims or sampled.name in self._dependent().shapes:
            return declared or (None,) * sampled.ndim
        return sampled.shape

    def _declared_shape(self, name: str) -> tuple[Dim, ...] | None:
        shape = self.declared(name).shape
        return None if shape is None else tuple(self.dims.get(d, d) if isinstance(d, str) else d for d in shape)

    @property
    def free_dims(self) -> tuple[str, ...]:
        """Open dimensions of the inputs to which `load` gave no size."""
        return tuple(d for d in open_dims(self.graph) if d not in self.dims and d not in self.source.dims)

    def dtype(self, name: str) -> np.dtype[Any]:
        """The declared dtype of a tensor, or that of the sample run."""
        declared = self.declared(name).dtype
        return self._sampled(name).dtype if declared is None else declared

    def declared(self, name: str) -> TensorType:
        """The type that the file declares for a value; that of a constant is the type of its array."""
        if (value := self.graph.constants.get(name)) is not None:
            return TensorType(value.dtype, value.shape)
        return self.graph.types.get(name, TensorType())

    def kind(self, name: str) -> str:
        """The kind of a value, as far as it is known: "tensor", "sequence", "optional" or "map"."""
        if name in self.graph.types or name in self.graph.constants:
            return self.declared(name).kind
        tape = self.sample()
        made = tape.containers.get(name) if isinstance(tape, Tape) else None
        return "tensor" if made is None else type(made).__name__.lower()

    def known_dtype(self, name: str) -> np.dtype[Any] | None:
        """The declared dtype of a tensor, or that of the sample run; None if neither is known."""
        with suppress(GradcheckError):
            return self.dtype(name)
        return None

    def known_shape(self, name: str) -> tuple[Dim, ...] | None:
        """The declared shape of a tensor, or that of the sample run; None if neither is known."""
        with suppress(GradcheckError):
            return self.shape(name)
        return None

    def sampled_shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor in the sample run; None if it was not computed there."""
        with suppress(GradcheckError):
            return self._sampled(name).shape
        return None

    def sample(self) -> Tape | GradcheckError:
        """The tape of a run at drawn values with every requested derivative, or the error that prevents it."""
        if self._sample is None:
            try:
                self._sample = self.tape(self.tensors, Settings(dims=self.dims, dtype="model"), on=OutlinedTape)
            except GradcheckError as error:
                self._sample = error
        return self._sample

    def scope(self, name: str) -> str:
        """`name`, with a number appended if an earlier request or the graph has it."""
        scopes = {request.scope for request in self.requests}
        names = (*self.graph.tensors, *(node.name for node in self.graph.nodes))
        candidates = (f"{name}_{i}" if i else name for i in count())
        return next(c for c in candidates if c not in scopes and not any(f"{n}/".startswith(f"{c}/") for n in names))

    def add(self, request: Request) -> Request:
        """Adds a request; gives it with the names of its results, None where y and x are not connected."""
        tape = self.sample()
        if not isinstance(tape, Tape) or any(name not in tape.named for name in request.reads):
            self._check_rules(request)
            done = self._named(request, [None] * len(request.xs), by_graph=True)
        else:
            found = derive(tape, _as_sampled(request, tape))
            done = self._named(request, found, by_graph=False)
            name_results(tape, done, found)
            self._dependence = None
        self.requests.append(done)
        return done

    def tape(
        self,
        targets: Sequence[str],
        settings: Settings,
        ops: Ops | None = None,
        *,
        general: bool = False,
        loose: Loose | None = None,
        on: type[Tape] = Tape,
    ) -> Tape:
        """The tape of a run up to `targets`, with the derivatives that they need; `ops` replaces the model's operators.

        `general` and `loose` are set on the tape while derivatives are added: the same steps are to hold for other sizes.
        `on` is the kind of tape.
        """
        tape = self.point(targets, settings, ops, on=on).tape
        tape.general, tape.loose = general, Loose() if loose is None else loose
        for request in self.requests_for(targets):
            name_results(tape, request, derive(tape, request))
        return tape

    def point(self, targets: Sequence[str], settings: Settings, ops: Ops | None = None, on: type[Tape] = Tape) -> Point:
        """A run of the model itself, up to the tensors that `targets` and their derivatives need."""
        forward = {n for r in self.requests_for(targets) for n in r.reads}
        own = set(self.graph.tensors)
        names = [n for n in dict.fromkeys([*targets, *forward]) if n in own]
        feeds = spread(self.graph, settings.extra_feed_dict)
        settings = replace(settings, dims={**self.dims, **settings.dims}, extra_feed_dict=feeds)
        # tensors inside may be empty at all sizes, such as an empty cache or what is sliced off a shape
        ends = [n for n in names if n in self.graph.outputs] or names
        return find_point(ready_to_draw(self.source, feeds), settings, ops or self.ops, names, on=on, ends=ends)

    def requests_for(self, targets: Sequence[str]) -> list[Request]:
        """The derivatives that some tensors need, in order."""
        needed, wanted = set(targets), []
        for request in reversed(self.requests):
            if needed.intersection(n for n in request.results if n):
                wanted.append(request)
                needed.update(request.reads)
        return wanted[::-1]

    def _named(self, request: Request, found: Sequence[Var | None], *, by_graph: bool) -> Request:
        """The request with the names of its results: those of two xs differ, though their values may be one here."""
        taken, names = set(self.tensors), dict[str, str | None]()
        for x, v, wanted in zip(request.xs, found, request.names or [""] * len(request.xs), strict=True):
            if x not in names:
                names[x] = self._result(request, x, v, wanted, taken, by_graph=by_graph)
                taken.update(filter(None, (names[x],)))
        return replace(request, results=tuple(names[x] for x in request.xs))

    def _result(
        self, request: Request, x: str, found: Var | None, wanted: str, taken: Collection[str], *, by_graph: bool
    ) -> str | None:
        """The name of a result; if a tensor has the name already, one with a number."""
        if found is None and not request.zeros and not self._may_connect(request, x, by_graph=by_graph):
            return None
        name = wanted or (f"{request.scope}/{x}" if found is None else found.name)
        candidates = (f"{name}:{i}" if i else name for i in count())
        return next(n for n in candidates if n not in taken)

    def nodes_between(self, xs: Sequence[str], ys: Sequence[str], stop: Collection[str] = ()) -> list[tuple[int, Node]]:
        """The nodes, by index, through which a derivative of ys by xs may flow in some branch, by the graph alone.

        Behind the nodes of the graph stands one for each derivative that was added.
        """
        nodes = [*self.graph.nodes, *(request.node for request in self.requests)]
        between = nodes_between(nodes, xs, ys, self.ops, stop=stop, is_cut=self._is_cut)
        return [(index, nodes[index]) for index in between]

    def _may_connect(self, request: Request, x: str, *, by_graph: bool) -> bool:
        """True if the graph connects y and x; after a run that did not connect them, if another branch may."""
        if not by_graph and not any(any(node.subgraphs) for node in self.graph.nodes):
            return False
        between = self.nodes_between([x], request.ys, request.stop)
        return bool(between) or x in request.ys if by_graph else any(any(node.subgraphs) for _, node in between)

    def _is_cut(self, name: str) -> bool:
        dtype = self.known_dtype(name)
        return dtype is not None and not is_inexact(dtype)

    def _check_rules(self, request: Request) -> None:
        """Raises NoGradientError for operators without a rule, by the graph alone."""
        between = self.nodes_between(request.xs, request.ys, request.stop)
        missing = list(without_rule(((i, node) for i, node in between if i < len(self.graph.nodes)), self.ops))
        if missing:
            raise NoGradientError("no gradient", missing)

    def _sampled(self, name: str) -> Var:
        tape = self.sample()
        if isinstance(tape, GradcheckError):
            raise tape
        if name in tape.blocked:
            raise tape.blocked[name]
        if name not in tape.named:
            raise UsageError(f"{self.source.uri}: shape and dtype of {name!r} are not known before it is run.")
        return tape.named[name]

    def _dependent(self) -> Dependence:
        """The tensors that depend on the values of the inputs, on the sample run."""
        tape = self.sample()
        assert isinstance(tape, Tape)
        if self._dependence is None:
            found = Dependence.on(self.graph.inputs, tape, self.graph)
            sized = {*self._sized(tape, found.values)}
            self._dependence = Dependence.on(self.graph.inputs, tape, self.graph, sized) if sized else found
        return self._dependence

    def _sized(self, tape: Tape, values: Collection[str]) -> Iterator[str]:
        """Results of composed operators whose static inputs are among `values`: none of their steps reads these."""
        for node in self.graph.nodes:
            op = operator_of(self.ops, node)
            static = [node.inputs[i] for i in op.static.values() if i < len(node.inputs)] if op.composed else []
            if not op.same_axes and any(n in tape.named and tape.named[n].name in values for n in static):
                yield from (tape.named[n].name for n in node.outputs if n in tape.named)


def _as_sampled(request: Request, tape: Tape) -> Request:
    """The request with ones for initial gradients that do not have y's size on this tape."""

    def fitting(y: str, given: str | Array | Seed | None) -> str | Array | Seed | None:
        if isinstance(given, Seed):
            return given
        value = tape.named[given].value if isinstance(given, str) else given
        return given if value is not None and value.shape == tape.named[y].shape else None

    return replace(request, grad_ys=tuple(map(fitting, request.ys, request.grad_ys)))
