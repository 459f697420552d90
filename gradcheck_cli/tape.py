"""A tape is a graph under construction that is evaluated as it grows.

A `Var` is the name of a tensor on the tape and its array at the point.  Shapes, dtypes and ranks are read off arrays:
there is no shape inference.  A composed operator leaves what it is made of; a rule given for one covers those steps as
a `Region`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.errors import GradcheckError, LimitError, ModelError, UnsupportedError, did_you_mean
from gradcheck_cli.graph import Array, Node
from gradcheck_cli.op import DTYPES, Op, Ops, bind

Operand: TypeAlias = "Var | complex | np.generic | Array | None"
MAX_STEPS = 200_000  # an unrolled loop of a model from elsewhere must end
_WIDE = {"float16": np.float64, "float32": np.float64, "bfloat16": np.float64, "complex64": np.complex128}
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Step:
    """One evaluated node: its operator, the operands and static inputs by name, the metadata bound to it.

    `origin` is the index of the model's node that it comes from, -1 for one of a gradient.
    """

    node: Node
    op: Op
    operands: tuple[str, ...]
    statics: tuple[str, ...]
    metadata: Mapping[str, Any]
    origin: int


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


class Var:
    """A tensor on a tape: its name, and its array at the point."""

    __slots__ = ("name", "tape", "value")
    __array_ufunc__ = None  # NumPy leaves `array * var` to the methods below

    def __init__(self, tape: Tape, name: str, value: Array) -> None:
        self.tape, self.name, self.value = tape, name, value

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

    def __add__(self, other: Operand) -> Var:
        return self.tape.apply("Add", self, other)

    def __radd__(self, other: Operand) -> Var:
        return self.tape.apply("Add", other, self)

    def __sub__(self, other: Operand) -> Var:
        return self.tape.apply("Sub", self, other)

    def __rsub__(self, other: Operand) -> Var:
        return self.tape.apply("Sub", other, self)

    def __mul__(self, other: Operand) -> Var:
        return self.tape.apply("Mul", self, other)

    def __rmul__(self, other: Operand) -> Var:
        return self.tape.apply("Mul", other, self)

    def __truediv__(self, other: Operand) -> Var:
        return self.tape.apply("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Var:
        return self.tape.apply("Div", other, self)

    def __pow__(self, other: Operand) -> Var:
        return self.tape.apply("Pow", self, other)

    def __matmul__(self, other: Operand) -> Var:
        return self.tape.apply("MatMul", self, other)

    def __neg__(self) -> Var:
        return self.tape.apply("Neg", self)

    def __lt__(self, other: Operand) -> Var:
        return self.tape.apply("Less", self, other)

    def __le__(self, other: Operand) -> Var:
        return self.tape.apply("LessOrEqual", self, other)

    def __gt__(self, other: Operand) -> Var:
        return self.tape.apply("Greater", self, other)

    def __ge__(self, other: Operand) -> Var:
        return self.tape.apply("GreaterOrEqual", self, other)

    def __repr__(self) -> str:
        return f"Var({self.name!r}, {list(self.shape)} {self.dtype})"


class Tape:
    """Steps in order, every value by name, and what control flow decided on the way.

    `values` holds constants, feeds and results alike; `constants` those that no step computes and no feed gave.
    `named` maps tensors of the traced graph to their `Var`s, `blocked` those that could not be computed to the reason.
    """

    def __init__(self, ops: Ops, *, dtype: str = "float64", seed: int = 0) -> None:
        self.ops, self.dtype, self.seed = ops, dtype, seed
        self.steps: list[Step] = []
        self.regions: list[Region] = []
        self.values: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}
        self.guards: list[str] = []
        self.named: dict[str, Var] = {}
        self.blocked: dict[str, GradcheckError] = {}
        self.reserved: set[str] = set()
        self.origin = -1
        self.metadata: Mapping[str, str] = {}
        self._scope = ""
        self._counts: dict[str, int] = {}
        self._cached: dict[tuple[Any, str], Var] = {}

    def widen(self, dtype: Any) -> np.dtype[Any]:
        """The dtype that values of the model's `dtype` are computed in."""
        dtype = np.dtype(dtype)
        return dtype if self.dtype == "model" else np.dtype(_WIDE.get(dtype.name, dtype))

    def var(self, name: str) -> Var:
        """The tensor `name` of this tape."""
        return Var(self, name, self.values[name])

    def hold(self, name: str, value: Any) -> Var:
        """Put a value that no step computes on the tape, under `name`."""
        array = np.asarray(value)
        self.values[name] = array.astype(self.widen(array.dtype), copy=False)
        return self.var(name)

    def constant(self, value: Any, dtype: Any = None, name: str = "constant") -> Var:
        """A constant of a rule or a composition; equal scalars share one tensor."""
        array = np.asarray(value, dtype=dtype)
        key = (array.item(), array.dtype.str) if array.ndim == 0 and array.dtype != object else None
        if key in self._cached:
            return self._cached[key]
        var = self.hold(self.fresh(name), array)
        self.constants[var.name] = var.value
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

    @contextlib.contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Names made inside stand under `name`."""
        outer, self._scope = self._scope, f"{self._scope}/{name}" if self._scope else name
        try:
            yield
        finally:
            self._scope = outer

    @contextlib.contextmanager
    def from_node(self, origin: int, metadata: Mapping[str, str]) -> Iterator[None]:
        """Steps made inside come from node `origin` of the model, or from its gradient (-1), and carry `metadata`."""
        outer = self.origin, self.metadata
        self.origin, self.metadata = origin, metadata
        try:
            yield
        finally:
            self.origin, self.metadata = outer

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
        record = self.lookup(op, domain)
        operands = self._operands(inputs)
        label = name or (outputs[0] if outputs else op)
        where = f"node {self.origin} {op} {label!r}" if self.origin >= 0 else f"{op} {label!r}"
        positions, metadata = self._bind(record, attrs, operands, n_outputs, where)
        if record.composed:
            return self._compose(record, [operands[i] for i in positions], metadata, label, where)
        names = [*outputs] or [self.fresh(op) if i == 0 else self.fresh(f"{op}_out{i}") for i in range(n_outputs)]
        results = self._evaluate(record, [operands[i] for i in positions], metadata, where)
        self._record(record, operands, positions, metadata, attrs, names, name)
        for output, value in zip(names, results, strict=False):
            if output:
                self.values[output] = value
        return tuple(Var(self, n, v) for n, v in zip(names, results, strict=False))

    def lookup(self, op: str, domain: str = "") -> Op:
        """The operator's record; UnsupportedError where there is none."""
        record = self.ops.get((domain, op))
        if record is None:
            raise no_forward(op, domain, self.ops)
        return record

    def guard(self, var: Var) -> Any:
        """The value of `var` as control flow reads it: a probe that changes it crosses a branch."""
        self.guards.append(var.name)
        return var.value

    def _operands(self, inputs: Sequence[Operand]) -> list[Var | None]:
        first = next((x for x in inputs if isinstance(x, Var)), None)
        dtype = None if first is None else first.dtype
        return [x if x is None or isinstance(x, Var) else self.constant(x, _fitting(x, dtype)) for x in inputs]

    def _bind(
        self, op: Op, attrs: Mapping[str, Any], operands: Sequence[Var | None], n_outputs: int, where: str
    ) -> tuple[list[int], dict[str, Any]]:
        arrays = [None if x is None else x.value for x in operands]
        supplied: dict[str, Any] = {"n_outputs": n_outputs}
        if "rng" in op.schema:
            supplied["rng"] = np.random.default_rng([self.seed, len(self.steps), len(self.values)])
        try:
            return bind(op, attrs, arrays, where=where, cast=self.widen, supplied=supplied)
        except ModelError as error:
            raise ModelError(str(error) if str(error).startswith(where) else f"{where}: {error}") from error
        except LimitError as error:
            raise LimitError(f"{where}: {error}", code=error.code) from error
        except (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError) as error:
            raise ModelError(f"{where} does not fit its inputs {_shapes(arrays)}: {error}") from error

    def _compose(
        self, op: Op, operands: list[Var | None], metadata: dict[str, Any], label: str, where: str
    ) -> tuple[Var, ...]:
        start = len(self.steps)
        with self.scope(label), self.explained(where, operands):
            results = op.forward(*operands, **metadata)
        outputs: tuple[Var, ...] = tuple(results) if isinstance(results, tuple | list) else (results,)
        if op.vjp is not None:
            names = tuple("" if x is None else x.name for x in operands)
            made = tuple(y.name for y in outputs)
            self.regions.append(Region(start, len(self.steps), op, names, made, metadata, label))
        return outputs

    def _evaluate(
        self, op: Op, operands: Sequence[Var | None], metadata: Mapping[str, Any], where: str
    ) -> tuple[Array, ...]:
        if len(self.steps) >= MAX_STEPS:
            raise LimitError(f"{where}: more than {MAX_STEPS:,} steps; a loop of the model may never end")
        arrays = [None if x is None else x.value for x in operands]
        if op.ordered and any(a is not None and a.dtype.kind == "c" for a in arrays):
            raise UnsupportedError(f"{where}: {op.name} has no meaning for complex numbers", code="GC503")
        with self.explained(where, operands):
            results = op.forward(*arrays, **metadata)
            made = map(np.asarray, results if op.many else (results,))
            return tuple(y.astype(self.widen(y.dtype), copy=False) for y in made)

    @contextlib.contextmanager
    def explained(self, where: str, operands: Sequence[Var | None]) -> Iterator[None]:
        """Failures of a kernel become errors that name the node and the shapes it was given."""
        try:
            with np.errstate(all="ignore"):
                yield
        except GradcheckError:
            raise
        except MemoryError as error:
            raise LimitError(f"{where}: not enough memory ({error})", code="GC602") from error
        except (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError) as error:
            arrays = [None if x is None else x.value for x in operands]
            raise ModelError(f"{where} cannot be computed from {_shapes(arrays)}: {error}") from error

    def _record(
        self,
        op: Op,
        operands: Sequence[Var | None],
        positions: Sequence[int],
        metadata: Mapping[str, Any],
        attrs: Mapping[str, Any],
        outputs: Sequence[str],
        name: str,
    ) -> None:
        names = ["" if x is None else x.name for x in operands]
        plain = {k: _NUMBERS[v] if isinstance(v, np.dtype) else v for k, v in attrs.items()}
        label = name or (outputs[0] if self.origin < 0 else "")
        node = Node(op.name, tuple(names), tuple(outputs), plain, op.domain, label, self.metadata)
        statics = tuple(n for i, n in enumerate(names) if n and i not in positions)
        self.steps.append(Step(node, op, tuple(names[i] for i in positions), statics, metadata, self.origin))


def no_forward(op: str, domain: str, ops: Ops) -> UnsupportedError:
    """The error for an operator that is not in the table."""
    full = f"{domain}.{op}" if domain else op
    hint = did_you_mean(op, [name for d, name in ops if d == domain])
    return UnsupportedError(f"no operator {full!r}.{hint}", code="GC502")


def _fitting(value: Any, dtype: np.dtype[Any] | None) -> np.dtype[Any] | None:
    if dtype is None or isinstance(value, np.ndarray | np.generic):
        return None
    return np.result_type(dtype, np.complex64) if isinstance(value, complex) else dtype


def _shapes(arrays: Sequence[Array | None]) -> str:
    return ", ".join("nothing" if a is None else f"{list(a.shape)} {a.dtype}" for a in arrays) or "no input"
