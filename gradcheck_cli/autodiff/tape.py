"""A tape is a graph under construction that is evaluated as it grows.

A `Var` is the name of a tensor on the tape and its array at the point.  Shapes, dtypes and ranks are read off arrays:
there is no shape inference.  A `Step` is one evaluated node and knows its `NodePlace` in the model.  A composed operator
adds the steps that it is made of; a rule for a composed operator covers them as one `Unit`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import proxy

import ml_dtypes
import numpy as np
from msgspec import Struct, field

from gradcheck_cli.autodiff.weights import TapeValues, turns
from gradcheck_cli.errors import GradcheckError, LimitError, ModelError, UnsupportedError
from gradcheck_cli.graph import MAX_RANK, Array, Node
from gradcheck_cli.graph.containers import CONTAINERS, Container, described
from gradcheck_cli.graph.memory import exhausted, is_of_memory
from gradcheck_cli.op import DTYPES, Metadata, Op, Ops, bind, fitting, for_operands, no_forward, zero
from gradcheck_cli.op.batching import is_ours, told, watched
from gradcheck_cli.op.fusion import added

if TYPE_CHECKING:
    from gradcheck_cli.autodiff.reach import Makers

Operand: TypeAlias = "Var | Container | complex | np.generic | Array | None"
MAX_STEPS = 200_000  # an unrolled loop of an untrusted model must end
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_COMPLEX: dict[Any, np.dtype[Any]] = dict.fromkeys((np.complex64, np.clongdouble), np.dtype(np.complex128))
_WIDE = _COMPLEX | dict.fromkeys((np.float16, np.float32, ml_dtypes.bfloat16, np.longdouble), np.dtype(np.float64))
Where: TypeAlias = Callable[[], str]  # gives a node's name for messages; called only when an error is raised
Widen: TypeAlias = Callable[[Any], np.dtype[Any]]
_quiet = ContextVar("quiet", default=False)
_FAILURES = (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError)
_ADDED = 32  # operands of a step: a sum of more is one of sums
_SHARED = 256  # bytes: equal constants of rules up to this size are one tensor


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silences NumPy's floating-point warnings while kernels run.

    Entering this once around many kernels saves each of them the time.
    """
    before = _quiet.set(True)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        _quiet.reset(before)


def bound(
    op: Op, attrs: Metadata, inputs: Sequence[Any], *, where: Where, widen: Widen, supplied: Mapping[str, Any]
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Positions of a node's inputs that are operands, and the metadata for the kernel; see `bind`."""
    try:
        return bind(op, attrs, inputs, cast=widen, supplied=supplied)
    except ModelError as error:
        text, shapes = f"{where()}: {error}", error.shapes or _shapes(inputs)
        raise ModelError(text, code=error.code, op=error.op or op.name, shapes=shapes) from error
    except UnsupportedError as error:
        raise type(error)(f"{where()}: {error}", code=error.code) from error
    except (LimitError, MemoryError) as error:
        raise exhausted(error, where()) from error
    except _FAILURES as error:
        text = f"{where()} does not fit its inputs {_described(inputs)}: {error}"
        raise ModelError(text, op=op.name, shapes=_shapes(inputs)) from error


def run(op: Op, operands: Sequence[Any], metadata: Metadata, *, where: Where, widen: Widen) -> Any:
    """Results of an operator: of a composed one as it gives them, else a list of arrays, widened."""
    if not _quiet.get():
        with quietly():
            return run(op, operands, metadata, where=where, widen=widen)
    try:
        like = None if op.vjp in (None, zero) or 0 in op.integral else op.like
        results = watched(op.forward, None if op.composed else op.many, like)(*operands, **metadata)
        return results if op.composed else [_settled(y, widen) for y in (results if op.many else (results,))]
    except ModelError as error:
        if not error.op:
            error.op, error.shapes = op.name, tuple(_shapes(operands))
        raise
    except GradcheckError:
        raise
    except (Exception, SystemExit) as error:
        if is_of_memory(error):
            raise exhausted(error, where()) from error
        text = f"{where()} cannot be computed from {_described(operands)}: {told(op.forward, error, _FAILURES)}"
        raise ModelError(text, op=op.name, shapes=_shapes(operands)) from error


def _settled(result: Any, widen: Widen) -> Array:
    array = np.asarray(result)
    if array.ndim > MAX_RANK:
        raise ValueError(f"the result has {array.ndim} dimensions; at most {MAX_RANK} are possible")
    dtype = widen(array.dtype)
    return array if dtype is array.dtype else array.astype(dtype, copy=False)


def _described(values: Sequence[Any]) -> str:
    return ", ".join(map(described, values)) or "no input"


def _shapes(values: Sequence[Any]) -> list[tuple[int, ...]]:
    """Shapes of arrays and of tensors on a tape; sequences are left out."""
    return [tuple(value.shape) for value in values if hasattr(value, "shape")]


class NodePlace(Struct, frozen=True):
    """A node of the model, or of a graph inside one of its nodes.

    origin      index of the model's node, -1 for a node of a gradient
    index       index of the node in its own graph
    op, label   operator and name of the node as the file has it, even if the operator is composed; `domain` is its
    inside      the node's own graph for messages, "" for the model's: "body of node 3 Loop 'y'", "gradient of node 5 Relu
                'r'" (then `index` is that of the Relu)
    """

    origin: int = -1
    index: int = -1
    op: str = ""
    label: str = ""
    inside: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    domain: str = ""

    @property
    def key(self) -> tuple[int, int, str]:
        """Key of the node; one in the body of a loop is one node, however often it runs."""
        return self.origin, self.index, self.inside

    def of(self, op: str, label: str) -> str:
        """The name for messages of a node of an operator at this place."""
        number = f"node {self.index} " if self.origin >= 0 else ""
        return f"{number}{op} {label!r}{f' in the {self.inside}' if self.inside else ''}"

    def into(self, inside: str, index: int) -> NodePlace:
        """The place of node `index` of a graph inside this node."""
        return NodePlace(self.origin, index, self.op, self.label, inside, self.metadata, self.domain)

    def gradient(self, op: str, label: str, metadata: Mapping[str, str]) -> NodePlace:
        """The place of the nodes that the rule of an operator here adds."""
        second = self.origin < 0 and bool(self.inside)
        of = f"the {self.inside}" if second else self.of(self.op or op, self.label or label)
        return NodePlace(index=self.index, inside=f"gradient of {of}", metadata=metadata)

    def named(self, node: Node, label: str) -> NodePlace:
        """The place with the operator and name of its node."""
        return NodePlace(self.origin, self.index, node.op, label, self.inside, self.metadata, node.domain)


class Trial(Struct, frozen=True):
    """Findings from trying a foreign kernel.

    noise      by output: the rounding error of the kernel at the point, entry by entry; None if it is not known
    coarse     the largest such error relative to the largest entry of its output
    retracted  clauses of messages that name the declarations of its operator that do not hold
    """

    noise: tuple[Array | None, ...] = ()
    coarse: float = 0.0
    retracted: tuple[str, ...] = ()


class Step(Struct, frozen=True):
    """One evaluated node: its operator, operands and static inputs by name, and the metadata bound to it.

    `trial` holds the findings from trying a foreign kernel.
    """

    node: Node
    op: Op
    operands: tuple[str, ...]
    statics: tuple[str, ...]
    metadata: Mapping[str, Any]
    place: NodePlace
    trial: Trial | None = None

    @staticmethod
    def of(op: Op, node: Node, positions: Sequence[int], metadata: Mapping[str, Any], place: NodePlace) -> Step:
        """The step of a node whose inputs at `positions` are operands; the others are static."""
        if len(positions) == len(node.inputs):
            return Step(node, op, node.inputs, (), metadata, place)
        statics = tuple(n for i, n in enumerate(node.inputs) if n and i not in positions)
        return Step(node, op, tuple(node.inputs[i] for i in positions), statics, metadata, place)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of its outputs."""
        return self.node.outputs

    @property
    def origin(self) -> int:
        """Index of the model's node that it comes from, -1 for a node of a gradient."""
        return self.place.origin

    @property
    def label(self) -> str:
        """The name of the node, or of its first output."""
        return self.node.name or next((n for n in self.node.outputs if n), self.node.op)

    @property
    def where(self) -> str:
        """The name for messages of the model's node that it comes from."""
        return self.place.of(self.place.op or self.node.op, self.place.label or self.label)


class Unit(Struct, frozen=True):
    """The part of a tape that one rule differentiates: a step, or those of a composed operator; `node` is the first."""

    op: Op
    operands: tuple[str, ...]
    outputs: tuple[str, ...]
    metadata: Mapping[str, Any]
    label: str
    place: NodePlace
    steps: range  # of the tape
    node: Node | None = None

    @property
    def where(self) -> str:
        """The name for messages of the model's node that it comes from."""
        return self.place.of(self.place.op or self.op.name, self.place.label or self.label)


def _binary(op: str) -> tuple[Callable[[Var, Operand], Var], Callable[[Var, Operand], Var]]:
    """The methods of an operator sign: for a tensor on its left, and for a tensor on its right alone."""

    def left(self: Var, other: Operand) -> Var:
        return self.tape.emit(op, (self, other), {})[0]

    def right(self: Var, other: Operand) -> Var:
        return self.tape.emit(op, (other, self), {})[0]

    return left, right


class Var:
    """A tensor on a tape: its name, and its array at the point.  It does not keep the tape alive.

    Neither of its two kinds derives from the other: of `a < b` Python would turn the sides around where b's kind does.
    """

    __slots__ = ("like", "name", "tape")
    __array_ufunc__ = None  # NumPy leaves `array * var` to the methods below
    tape: Tape
    name: str
    like: Array  # of its shape and dtype
    value: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.like.shape

    @property
    def ndim(self) -> int:
        return self.like.ndim

    @property
    def size(self) -> int:
        return self.like.size

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.like.dtype

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


class Held(Var):
    """A tensor whose array is there."""

    __slots__ = ("value",)

    def __init__(self, tape: Tape, name: str, value: Array) -> None:
        self.tape, self.name, self.value, self.like = tape.weak, name, value, value


class Large(Var):
    """A tensor that is computed anew whenever it is read (`weights`); `like` has its shape and dtype without numbers."""

    __slots__ = ()

    def __init__(self, tape: Tape, name: str) -> None:
        self.tape, self.name, self.like = tape.weak, name, tape.values.like(name)

    @property
    def value(self) -> Array:  # type: ignore[override]
        return self.tape.values[self.name]


_TENSORS = {Held, Large, type(None)}
_VALUES = (Var, type(None), *CONTAINERS)


class Loose(Struct):
    """Tensors that may be broadcast at other sizes, by `sizes` of one run or by name; shapes may be equal by `chance`."""

    sizes: frozenset[int] = frozenset()
    names: set[str] = field(default_factory=set)
    chance: bool = False

    def __bool__(self) -> bool:
        return bool(self.sizes or self.names or self.chance)

    def holds(self, x: Var) -> bool:
        """True of a tensor that may be broadcast."""
        if not self.sizes.isdisjoint(x.shape):
            self.names.add(x.name)
        return x.name in self.names


class Tape:
    """Steps in order, every value by name, and the decisions that control flow made.

    regions    the steps of composed operators that have a rule
    values     constants, feeds and results, by name
    constants  names of the tensors that no step computes and no feed gave
    fixed      `constants` and tensors computed from them alone, and "" (an operand that is left out)
    guards     tensors whose values decided the control flow
    named      `Var`s of the tensors of the traced graph, by name
    containers  its sequences, optionals and maps as records of `Var`s
    blocked    tensors that could not be computed, with the reason
    general    True if the same steps are to hold for other sizes
    loose      tensors that may be of length 1 where others are longer, at other sizes
    drawing    indices of the model's nodes that drew random numbers
    keeps      False if results live as long as their `Var`s, and have no names
    makers     the index of the steps that made its tensors (`reach`); None: to be made
    tried      the number of steps that were looked through for foreign kernels
    """

    keeps = True

    def __init__(self, ops: Ops, *, dtype: str = "float64", seed: int = 0) -> None:
        self.ops, self.dtype, self.seed = ops, dtype, seed
        self.weak: Tape = proxy(self)  # a tape and its tensors would keep each other, and what is large on it, alive
        self.steps: list[Step] = []
        self.regions: list[Unit] = []
        self.values = TapeValues()
        self.constants: set[str] = set()
        self.fixed: set[str] = {""}
        self.guards: list[str] = []
        self.named: dict[str, Var] = {}
        self.containers: dict[str, Container] = {}
        self.blocked: dict[str, GradcheckError] = {}
        self.reserved: set[str] = set()
        self.drawing: set[int] = set()
        self.spared: frozenset[str] = frozenset()
        self.makers: Makers | None = None
        self.tried = 0
        self.general = False
        self.loose = Loose()
        self.place = NodePlace()
        self._wide: Mapping[Any, np.dtype[Any]] = {} if dtype == "model" else _WIDE
        self._scope = ""
        self._counts: dict[str, int] = {}
        self._cached: dict[tuple[Any, ...], Var] = {}

    def widen(self, dtype: Any) -> np.dtype[Any]:
        """The dtype to compute in for values that have `dtype` in the model."""
        dtype = np.dtype(dtype)
        return self._wide.get(dtype.type, dtype if dtype.isnative else dtype.newbyteorder("="))

    def var(self, name: str) -> Var:
        """The tensor `name` of this tape."""
        return Large(self, name) if name in self.values.recipes else Held(self, name, self.values[name])

    def hold(self, name: str, value: Any) -> Var:
        """Puts a value that no step computes on the tape, under `name`."""
        array = np.asarray(value)
        dtype = np.dtype(object) if array.dtype.kind in "US" else self.widen(array.dtype)
        self.values[name] = array.astype(dtype, copy=False)
        return self.var(name)

    def weight(self, name: str, array: Array) -> Var:
        """Puts a constant of the model on the tape, under `name`; a large one is widened whenever it is read."""
        dtype = np.dtype(object) if array.dtype.kind in "US" else self.widen(array.dtype)
        self.values.widened(name, array, dtype)
        self.constants.add(name)
        self.fixed.add(name)
        return self.var(name)

    def constant(self, value: Any, dtype: Any = None, name: str = "constant") -> Var:
        """A constant of a rule or a composed operator; equal scalars, and short lists of integers, share one tensor."""
        array = np.asarray(value, dtype=dtype)
        shared = array.dtype != object if array.ndim == 0 else array.dtype.kind == "i" and array.nbytes <= _SHARED
        if not shared:
            return self.weight(self.fresh(name), array)
        if (key := (array.tobytes(), array.dtype, array.shape)) not in self._cached:
            self._cached[key] = self.weight(self.fresh(name), array)
        return self._cached[key]

    def fresh(self, name: str) -> str:
        """An unused tensor name: `name` under the current scope, with a number if it is taken."""
        stem = f"{self._scope}/{name}" if self._scope else name
        while True:
            count = self._counts.get(stem, 0)
            self._counts[stem] = count + 1
            candidate = f"{stem}_{count}" if count else stem
            if candidate not in self.values and candidate not in self.reserved:
                return candidate

    def within(
        self, *, scope: str = "", place: NodePlace | None = None, spared: frozenset[str] = frozenset()
    ) -> _Within:
        """In the block, names stand under `scope`, steps come from `place`, rules may skip cotangents of `spared`."""
        under = f"{self._scope}/{scope}" if scope and self._scope else scope or self._scope
        return _Within(self, under, place or self.place, spared)

    def scope(self, name: str) -> _Within:
        """In the block, names stand under `name`."""
        return self.within(scope=name)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Removes what is added in the block at its end."""
        steps, regions, guards = len(self.steps), len(self.regions), len(self.guards)
        values, kept = self.values.copy(), (set(self.constants), set(self.fixed), dict(self._cached))
        makers = None if self.makers is None else self.makers.kept(self)
        try:
            yield
        finally:
            self.makers, self.tried = None if makers is None else makers(), min(self.tried, steps)
            del self.steps[steps:], self.regions[regions:], self.guards[guards:]
            self.values.restore(values)
            self.constants, self.fixed, self._cached = kept

    def from_node(self, origin: int, metadata: Mapping[str, str]) -> _Within:
        """In the block, steps come from node `origin` of the model, or from a gradient (-1)."""
        return self.within(place=NodePlace(origin, origin, metadata=metadata))

    def apply(self, op: str, *inputs: Operand, **attrs: Any) -> Var:
        """Adds a node of an ONNX operator with one output."""
        return self.emit(op, inputs, attrs)[0]

    def emit(
        self, op: str, inputs: Sequence[Operand], attrs: Mapping[str, Any], *, domain: str = "", n_outputs: int = 1,
        outputs: Sequence[str] = (), name: str = "",
    ) -> tuple[Var, ...]:  # fmt: skip
        """Adds a node and evaluates it; gives a `Var` for each output asked for.

        A composed operator adds the nodes that it is made of instead.  `outputs` names the results of a simple one.
        """
        where = partial(self.place.of, op, name or (outputs[0] if outputs else op))
        record, operands = self._operator(domain, op, inputs, where)
        while record.forward is added and len(operands) > _ADDED:
            operands = self._sums(op, domain, operands, name)
        arrays = self._arrays(record, operands)
        supplied = self._supplied(record, n_outputs, outputs) if record.signature.supplied else {}
        positions, metadata = bound(record, attrs, arrays, where=where, widen=self.widen, supplied=supplied)
        if record.composed:
            return self._compose(record, [operands[i] for i in positions], metadata, name or op, where)
        chosen = arrays if len(positions) == len(arrays) else [arrays[i] for i in positions]
        results = self._evaluate(record, chosen, metadata, where)
        others = record.many and not is_ours(record.vjp or zero)  # such a rule may read what the node leaves out
        count = len(results) if others else len(outputs) or n_outputs

        def step() -> Step:
            named, new = [*outputs, *[""] * (count - len(outputs))], "" if outputs and not others else op
            names = [n or (new and self.fresh(f"{op}_out{i}" if i else op)) for i, n in enumerate(named)]
            given = {k: _NUMBERS[v] if isinstance(v, np.dtype) else v for k, v in attrs.items()} if attrs else attrs
            ends, label, place = (_names(operands), tuple(names)), self._label(name, names), self.place
            node = Node(record.name, *ends, given, record.domain, label, place.metadata)
            return Step.of(record, node, positions, metadata, place)

        return self.recorded(step, results[:count])[: len(outputs) or n_outputs]

    def _sums(self, op: str, domain: str, operands: Sequence[Any], name: str) -> list[Var]:
        """Sums of some operands at a time: what one of thousands moves is then added to few others, not to all."""
        parts = [operands[start : start + _ADDED] for start in range(0, len(operands), _ADDED)]
        return [self.emit(op, part, {}, domain=domain, name=name)[0] if len(part) > 1 else part[0] for part in parts]

    def _arrays(self, op: Op, operands: Sequence[Any]) -> list[Any]:
        """The operands as the operator takes them."""
        return [x.value if type(x) is Held else self._given(op, x) for x in operands]

    def _given(self, op: Op, x: Any) -> Any:
        """An operand as the operator takes it; of a large one only the shape if its numbers are not read yet."""
        if not isinstance(x, Large):
            return x
        later = op.composed or (turns(op) and x.name in self.fixed)
        return x.like if later else self.values.operand(op, x.name)

    def recorded(self, make: Callable[[], Step], results: Sequence[Array]) -> tuple[Var, ...]:
        """Puts a step and its results on the tape; large results of constants alone are computed anew when read."""
        self.steps.append(step := make())
        names = step.node.outputs
        if self.fixed.issuperset(step.operands + step.statics) and "rng" not in step.metadata:
            self.fixed.update(names)
            if self.values.derived(step.op, step.operands, step.metadata, names, results):
                return tuple(Large(self, n) if n else Held(self, n, y) for n, y in zip(names, results, strict=False))
        self.values.update((n, y) for n, y in zip(names, results, strict=False) if n)
        return tuple([Held(self, n, y) for n, y in zip(names, results, strict=False)])

    def extended(self, step: Step, results: Sequence[Array]) -> None:
        """Adds what a step computes since it has more outputs than when it was recorded."""
        pairs = zip(step.outputs, results, strict=True)
        self.values.update((name, y) for name, y in pairs if name and name not in self.values)

    def operator_at(self, place: NodePlace, op: Op) -> Op:
        """The operator of the node at a place, of which `op` is the whole or a part."""
        return self.ops.get((place.domain, place.op), op)

    def guard(self, var: Var) -> Any:
        """The value of `var` as control flow reads it: a probe that changes it crosses a branch."""
        self.guards.append(var.name)
        return var.value

    def _operator(self, domain: str, op: str, inputs: Sequence[Operand], where: Where) -> tuple[Op, Sequence[Any]]:
        """The operator in its form for these operands, and the operands; numbers among them become constants."""
        record = self.ops.get((domain, op))
        if record is not None and _TENSORS.issuperset(map(type, inputs)):
            return record, inputs
        dtype = next((x.dtype for x in inputs if isinstance(x, Var)), None)
        operands = [x if isinstance(x, _VALUES) else self.constant(x, fitting(x, dtype)) for x in inputs]
        if record is None:
            raise no_forward(op, domain, self.ops, where())
        return for_operands(record, operands, where), operands

    def _label(self, name: str, outputs: Sequence[str]) -> str:
        """The name of a node: under the scope of its body's iteration; in a gradient, the name of its output."""
        under = f"{self._scope}/{name}" if name and self._scope else name
        return under or (outputs[0] if self.place.origin < 0 else "")

    def _supplied(self, op: Op, n_outputs: int, outputs: Sequence[str]) -> dict[str, Any]:
        """The keywords that a kernel may take from the tape."""
        supplied: dict[str, Any] = {"n_outputs": n_outputs, "outputs": outputs, "tape": self}
        if "rng" in op.signature.supplied:
            supplied["rng"] = np.random.default_rng([self.seed, len(self.steps), len(self.values)])
            if not op.composed:  # of a composed operator its parts draw, if any do
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
            ends, steps = (_names(operands), _names(outputs)), range(start, len(self.steps))
            self.regions.append(Unit(op, *ends, metadata, label, self.place, steps))
        return outputs

    def _evaluate(
        self, op: Op, arrays: Sequence[Array | None], metadata: Mapping[str, Any], where: Where
    ) -> Sequence[Array]:
        self._require_evaluable(op, arrays, where)
        return list(run(op, arrays, metadata, where=where, widen=self.widen))

    def _require_evaluable(self, op: Op, arrays: Sequence[Array | None], where: Where) -> None:
        if len(self.steps) >= MAX_STEPS:
            raise LimitError(f"{where()}: more than {MAX_STEPS:,} steps; a loop may never end here: --feed others")
        if op.ordered and any(a is not None and a.dtype.kind == "c" for a in arrays):
            raise UnsupportedError(f"{where()}: {op.name} has no meaning for complex numbers", code="GC503")


class _Within:
    """The context manager of `Tape.within`; entering it sets scope, place and spared operands of a tape."""

    __slots__ = ("inner", "outer", "tape")

    def __init__(self, tape: Tape, scope: str, place: NodePlace, spared: frozenset[str]) -> None:
        self.tape, self.inner = tape, (scope, place, spared)

    def __enter__(self) -> None:
        tape = self.tape
        self.outer = tape._scope, tape.place, tape.spared
        tape._scope, tape.place, tape.spared = self.inner

    def __exit__(self, *error: object) -> None:
        self.tape._scope, self.tape.place, self.tape.spared = self.outer


def _names(operands: Sequence[Any]) -> tuple[str, ...]:
    return tuple(["" if x is None else x.name for x in operands])
