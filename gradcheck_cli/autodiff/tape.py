"""A tape is a graph under construction that is evaluated as it grows.

A `Var` is the name of a tensor on the tape and its array at the point.  Shapes, dtypes and ranks are read off arrays:
there is no shape inference.  A composed operator leaves what it is made of; a rule given for one covers those steps as
a `Region`.

What a tape records: evaluated nodes, regions of them that one rule covers, and where in a model they come from.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias
from weakref import proxy

import ml_dtypes
import numpy as np

from gradcheck_cli.autodiff.evaluation import Where, bound, run
from gradcheck_cli.autodiff.weights import Values, turns
from gradcheck_cli.errors import GradcheckError, LimitError, UnsupportedError
from gradcheck_cli.graph import Array, Node
from gradcheck_cli.graph.containers import COMPOUND, Compound
from gradcheck_cli.op import DTYPES, Op, Ops, fitting, for_operands, no_forward

_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Place:
    """A node of the model, or of a graph inside one of its nodes.

    `origin` is the index of the model's node, -1 for one of a gradient; `index` that of the node in its own graph, and
    `inside` says which graph that is, if it is not the model's: "body of node 3 Loop 'y'", "gradient of node 5 Relu 'r'"
    (then `index` is that of the Relu).  `op` and `label` are those of the node as it stands there, whatever it is
    composed of.
    """

    origin: int = -1
    index: int = -1
    op: str = ""
    label: str = ""
    inside: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)

    def of(self, op: str, label: str) -> str:
        """A node of an operator here, as messages name it."""
        number = f"node {self.index} " if self.origin >= 0 else ""
        return f"{number}{op} {label!r}{f' in the {self.inside}' if self.inside else ''}"

    def into(self, inside: str, index: int) -> Place:
        """The place of node `index` of a graph inside the node here."""
        return Place(self.origin, index, self.op, self.label, inside, self.metadata)

    def gradient(self, op: str, label: str, metadata: Mapping[str, str]) -> Place:
        """The place of what the rule of an operator here adds."""
        second = self.origin < 0 and bool(self.inside)
        of = f"the {self.inside}" if second else self.of(self.op or op, self.label or label)
        return Place(index=self.index, inside=f"gradient of {of}", metadata=metadata)

    def named(self, op: str, label: str) -> Place:
        """The same place once it is known which node stands there."""
        return Place(self.origin, self.index, op, label, self.inside, self.metadata)


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of trying a kernel that is none of gradcheck's own.

    noise      by output: how far the kernel's own rounding may carry each entry at the point; none where that is known
    coarse     the largest of these numbers, of the largest entry of its output
    retracted  clauses that say what of its operator's declaration does not hold
    """

    noise: tuple[Array | None, ...] = ()
    coarse: float = 0.0
    retracted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One evaluated node: its operator, the operands and static inputs by name, the metadata bound to it.

    `trial` is what came of trying a kernel of others.
    """

    node: Node
    op: Op
    operands: tuple[str, ...]
    statics: tuple[str, ...]
    metadata: Mapping[str, Any]
    place: Place
    trial: Trial | None = field(default=None, compare=False)

    @staticmethod
    def of(
        op: Op,
        inputs: tuple[str, ...],
        positions: Sequence[int],
        outputs: tuple[str, ...],
        metadata: Mapping[str, Any],
        attrs: Mapping[str, Any],
        name: str,
        place: Place,
    ) -> Step:
        """A node of an operator that has operands at some positions of its inputs and static inputs at the others."""
        if attrs:
            attrs = {k: _NUMBERS[v] if isinstance(v, np.dtype) else v for k, v in attrs.items()}
        node = Node(op.name, inputs, outputs, attrs, op.domain, name, place.metadata)
        if len(positions) == len(inputs):
            return Step(node, op, inputs, (), metadata, place)
        statics = tuple(n for i, n in enumerate(inputs) if n and i not in positions)
        return Step(node, op, tuple(inputs[i] for i in positions), statics, metadata, place)

    @property
    def outputs(self) -> tuple[str, ...]:
        """What it makes, by name."""
        return self.node.outputs

    @property
    def origin(self) -> int:
        """The index of the model's node that it comes from, -1 for one of a gradient."""
        return self.place.origin

    @property
    def label(self) -> str:
        """What it is called: its name, or its first output."""
        return self.node.name or next((n for n in self.node.outputs if n), self.node.op)

    @property
    def where(self) -> str:
        """The model's node that it comes from, as messages name it."""
        return self.place.of(self.place.op or self.node.op, self.place.label or self.label)


@dataclass(frozen=True, slots=True)
class Region:
    """Steps `start` to `stop` (excluded) that one rule differentiates together."""

    start: int
    stop: int
    op: Op
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    metadata: Mapping[str, Any]
    label: str
    place: Place


Operand: TypeAlias = "Var | Compound | complex | np.generic | Array | None"
MAX_STEPS = 200_000  # an unrolled loop of a model from elsewhere must end
_FLOAT, _COMPLEX = np.dtype(np.float64), np.dtype(np.complex128)
_WIDE = {np.float16: _FLOAT, np.float32: _FLOAT, ml_dtypes.bfloat16: _FLOAT, np.complex64: _COMPLEX}  # by `dtype.type`
_SHARED = 256  # bytes up to which equal constants of rules are one tensor


def _binary(op: str) -> tuple[Callable[[Var, Operand], Var], Callable[[Var, Operand], Var]]:
    """The method of an operator sign where a tensor stands on its left, and where it stands on its right alone."""

    def left(self: Var, other: Operand) -> Var:
        return self.tape.emit(op, (self, other), {})[0]

    def right(self: Var, other: Operand) -> Var:
        return self.tape.emit(op, (other, self), {})[0]

    return left, right


class Var:
    """A tensor on a tape: its name, and its array at the point.  It does not keep the tape."""

    __slots__ = ("name", "tape", "value")
    __array_ufunc__ = None  # NumPy leaves `array * var` to the methods below

    def __init__(self, tape: Tape, name: str, value: Array) -> None:
        self.tape, self.name, self.value = tape.weak, name, value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def size(self) -> int:
        return self.value.size

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.value.dtype

    __add__, __radd__ = _binary("Add")
    __sub__, __rsub__ = _binary("Sub")
    __mul__, __rmul__ = _binary("Mul")
    __truediv__, __rtruediv__ = _binary("Div")
    __pow__, _ = _binary("Pow")
    __matmul__, _ = _binary("MatMul")
    __lt__, _ = _binary("Less")
    __le__, _ = _binary("LessOrEqual")
    __gt__, _ = _binary("Greater")
    __ge__, _ = _binary("GreaterOrEqual")

    def __neg__(self) -> Var:
        return self.tape.apply("Neg", self)

    def __repr__(self) -> str:
        return f"Var({self.name!r}, {list(self.shape)} {self.dtype})"


class Large(Var):
    """A tensor that is made whenever it is read: see `weights`."""

    __slots__ = ()

    def __init__(self, tape: Tape, name: str) -> None:
        self.tape, self.name = tape.weak, name

    @property
    def value(self) -> Array:  # type: ignore[override]
        return self.tape.values[self.name]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tape.values.like(self.name).shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.tape.values.like(self.name).dtype


_TENSORS = {Var, Large, type(None)}
_KNOWN = (Var, type(None), *COMPOUND)


class _Within:
    """A tape inside of a `with`: under which scope, from which place, with which operands spared."""

    __slots__ = ("inner", "outer", "tape")

    def __init__(self, tape: Tape, scope: str, place: Place, spared: frozenset[str]) -> None:
        self.tape, self.inner = tape, (scope, place, spared)

    def __enter__(self) -> None:
        tape = self.tape
        self.outer = tape._scope, tape.place, tape.spared
        tape._scope, tape.place, tape.spared = self.inner

    def __exit__(self, *error: object) -> None:
        self.tape._scope, self.tape.place, self.tape.spared = self.outer


class Tape:
    """Steps in order, every value by name, and what control flow decided on the way.

    `values` holds constants, feeds and results alike; `constants` names those that no step computes and no feed gave,
    `fixed` them and what is computed from them alone, "" for an operand that is left out among them.
    `named` maps tensors of the traced graph to their `Var`s, `compounds` its sequences, optionals and maps to records
    of `Var`s, `blocked` what could not be computed to the reason.  If `general`, other sizes are to have the same steps.
    `drawing` are the nodes of the model, by index, that drew random numbers.
    """

    def __init__(self, ops: Ops, *, dtype: str = "float64", seed: int = 0) -> None:
        self.ops, self.dtype, self.seed = ops, dtype, seed
        self.weak: Tape = proxy(self)  # a tape and its tensors would keep each other, and what is large on it, alive
        self.steps: list[Step] = []
        self.regions: list[Region] = []
        self.values = Values()
        self.constants: set[str] = set()
        self.fixed: set[str] = {""}
        self.guards: list[str] = []
        self.named: dict[str, Var] = {}
        self.compounds: dict[str, Compound] = {}
        self.blocked: dict[str, GradcheckError] = {}
        self.reserved: set[str] = set()
        self.drawing: set[int] = set()
        self.spared: frozenset[str] = frozenset()
        self.general = False
        self.place = Place()
        self._wide: Mapping[Any, np.dtype[Any]] = {} if dtype == "model" else _WIDE
        self._scope = ""
        self._counts: dict[str, int] = {}
        self._cached: dict[tuple[Any, ...], Var] = {}

    def widen(self, dtype: Any) -> np.dtype[Any]:
        """The dtype that values of the model's `dtype` are computed in."""
        dtype = np.dtype(dtype)
        return self._wide.get(dtype.type, dtype)

    def var(self, name: str) -> Var:
        """The tensor `name` of this tape."""
        return Large(self, name) if name in self.values.recipes else Var(self, name, self.values[name])

    def find(self, name: str) -> Var | None:
        """The tensor `name` if it is on this tape."""
        return self.var(name) if name in self.values else None

    def hold(self, name: str, value: Any) -> Var:
        """Put a value that no step computes on the tape, under `name`."""
        array = np.asarray(value)
        dtype = np.dtype(object) if array.dtype.kind in "US" else self.widen(array.dtype)
        self.values[name] = array.astype(dtype, copy=False)
        return self.var(name)

    def weight(self, name: str, array: Array) -> Var:
        """Put a constant of the model on the tape, under `name`; what is large is widened when it is read."""
        dtype = np.dtype(object) if array.dtype.kind in "US" else self.widen(array.dtype)
        self.values.widened(name, array, dtype)
        self.constants.add(name)
        self.fixed.add(name)
        return self.var(name)

    def constant(self, value: Any, dtype: Any = None, name: str = "constant") -> Var:
        """A constant of a rule or a composition; equal scalars, and short lists of integers, share one tensor."""
        array = np.asarray(value, dtype=dtype)
        shared = array.dtype != object if array.ndim == 0 else array.dtype.kind == "i" and array.nbytes <= _SHARED
        key = (array.tobytes(), array.dtype, array.shape) if shared else None
        if key is not None and key in self._cached:
            return self._cached[key]
        var = self.weight(self.fresh(name), array)
        if key is not None:
            self._cached[key] = var
        return var

    def fresh(self, name: str) -> str:
        """A tensor name that is not used yet: `name` under the current scope, with a number where taken."""
        stem = f"{self._scope}/{name}" if self._scope else name
        while True:
            count = self._counts.get(stem, 0)
            self._counts[stem] = count + 1
            candidate = f"{stem}_{count}" if count else stem
            if candidate not in self.values and candidate not in self.reserved:
                return candidate

    def within(self, *, scope: str = "", place: Place | None = None, spared: frozenset[str] = frozenset()) -> _Within:
        """Names made inside stand under `scope`, steps come from `place`, a rule need give no cotangents of `spared`."""
        under = f"{self._scope}/{scope}" if scope and self._scope else scope or self._scope
        return _Within(self, under, place or self.place, spared)

    def scope(self, name: str) -> _Within:
        """Names made inside stand under `name`."""
        return self.within(scope=name)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What is added inside is taken off again."""
        steps, regions, guards = len(self.steps), len(self.regions), len(self.guards)
        kept = self.values.copy(), set(self.constants), set(self.fixed), dict(self._cached)
        try:
            yield
        finally:
            del self.steps[steps:], self.regions[regions:], self.guards[guards:]
            self.values, self.constants, self.fixed, self._cached = kept

    def from_node(self, origin: int, metadata: Mapping[str, str]) -> _Within:
        """Steps made inside come from node `origin` of the model, or from its gradient (-1)."""
        return self.within(place=Place(origin, origin, metadata=metadata))

    def apply(self, op: str, *inputs: Operand, **attrs: Any) -> Var:
        """Add a node of an ONNX operator with one output."""
        return self.emit(op, inputs, attrs)[0]

    def emit(
        self,
        op: str,
        inputs: Sequence[Operand],
        attrs: Mapping[str, Any],
        *,
        domain: str = "",
        n_outputs: int = 1,
        outputs: Sequence[str] = (),
        name: str = "",
    ) -> tuple[Var, ...]:
        """Add a node and evaluate it; gives a `Var` for each output asked for.

        A composed operator adds the nodes that it is made of instead.  `outputs` names the results of a simple one.
        """
        where = partial(self.place.of, op, name or (outputs[0] if outputs else op))
        record, operands = self._operator(domain, op, inputs, where)
        arrays = [x.value if type(x) is Var else self._given(record, x) for x in operands]
        supplied = self._supplied(record, n_outputs, outputs) if record.signature.supplied else {}
        positions, metadata = bound(record, attrs, arrays, where=where, widen=self.widen, supplied=supplied)
        if record.composed:
            return self._compose(record, [operands[i] for i in positions], metadata, name or op, where)
        chosen = arrays if len(positions) == len(arrays) else [arrays[i] for i in positions]
        results = self._evaluate(record, chosen, metadata, where)

        def step() -> Step:
            names = outputs or [self.fresh(op) if i == 0 else self.fresh(f"{op}_out{i}") for i in range(n_outputs)]
            read, label = _names(operands), self._label(name, names)
            return Step.of(record, read, positions, tuple(names), metadata, attrs, label, self.place)

        return self.recorded(step, results[: len(outputs) or n_outputs])

    def _given(self, op: Op, x: Any) -> Any:
        """An operand as an operator takes it; of a large one the shape alone, where no number is looked at yet."""
        if not isinstance(x, Large):
            return x
        later = op.composed or (turns(op) and x.name in self.fixed)
        return self.values.like(x.name) if later else self.values.operand(op, x.name)

    def recorded(self, make: Callable[[], Step], results: Sequence[Array]) -> tuple[Var, ...]:
        """A step and its results put on the tape; what is large and made of constants alone is made again when read."""
        step = make()
        self.steps.append(step)
        names = step.node.outputs
        if self.fixed.issuperset(step.operands + step.statics) and "rng" not in step.metadata:
            self.fixed.update(names)
            if self.values.derived(step.op, step.operands, step.metadata, names, results):
                return tuple(Large(self, n) for n in names)
        self.values.update((n, y) for n, y in zip(names, results, strict=False) if n)
        return tuple([Var(self, n, y) for n, y in zip(names, results, strict=False)])

    def guard(self, var: Var) -> Any:
        """The value of `var` as control flow reads it: a probe that changes it crosses a branch."""
        self.guards.append(var.name)
        return var.value

    def _operator(self, domain: str, op: str, inputs: Sequence[Operand], where: Where) -> tuple[Op, Sequence[Any]]:
        """The operator as it is for its operands, and these; numbers among them become constants."""
        record = self.ops.get((domain, op))
        if record is not None and _TENSORS.issuperset(map(type, inputs)):
            return record, inputs
        dtype = next((x.dtype for x in inputs if isinstance(x, Var)), None)
        operands = [x if isinstance(x, _KNOWN) else self.constant(x, fitting(x, dtype)) for x in inputs]
        if record is None:
            raise no_forward(op, domain, self.ops, where())
        return for_operands(record, operands, where), operands

    def _label(self, name: str, outputs: Sequence[str]) -> str:
        """What a node is called: a body's run many times, under a scope each; one of a gradient has its output's name."""
        under = f"{self._scope}/{name}" if name and self._scope else name
        return under or (outputs[0] if self.place.origin < 0 else "")

    def _supplied(self, op: Op, n_outputs: int, outputs: Sequence[str]) -> dict[str, Any]:
        """What a kernel may ask the tape for."""
        supplied: dict[str, Any] = {"n_outputs": n_outputs, "outputs": outputs, "tape": self}
        if "rng" in op.signature.supplied:
            supplied["rng"] = np.random.default_rng([self.seed, len(self.steps), len(self.values)])
            if not op.composed:  # which may leave it alone, and says when it does not
                self.drawing.add(self.place.origin)
        return supplied

    def _compose(
        self, op: Op, operands: Sequence[Any], metadata: Mapping[str, Any], label: str, where: Where
    ) -> tuple[Var, ...]:
        start = len(self.steps)
        with self.within(scope=label):
            results = run(op, operands, metadata, where=where, widen=self.widen)
        outputs: tuple[Any, ...] = tuple(results) if isinstance(results, tuple | list) else (results,)
        if op.vjp is not None:
            ends = _names(operands), _names(outputs)
            self.regions.append(Region(start, len(self.steps), op, *ends, metadata, label, self.place))
        return outputs

    def _evaluate(
        self, op: Op, arrays: Sequence[Array | None], metadata: Mapping[str, Any], where: Where
    ) -> Sequence[Array]:
        if len(self.steps) >= MAX_STEPS:
            raise LimitError(f"{where()}: more than {MAX_STEPS:,} steps; a loop of the model may never end")
        if op.ordered and any(a is not None and a.dtype.kind == "c" for a in arrays):
            raise UnsupportedError(f"{where()}: {op.name} has no meaning for complex numbers", code="GC503")
        return list(run(op, arrays, metadata, where=where, widen=self.widen))


def _names(operands: Sequence[Any]) -> tuple[str, ...]:
    return tuple(["" if x is None else x.name for x in operands])
