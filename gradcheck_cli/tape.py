"""A tape is a graph under construction that is evaluated as it grows.

A `Var` is the name of a tensor on the tape and its array at the point.  Shapes, dtypes and ranks are read off arrays:
there is no shape inference.  A composed operator leaves what it is made of; a rule given for one covers those steps as
a `Region`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.compound import COMPOUND, Compound, described
from gradcheck_cli.errors import GradcheckError, LimitError, ModelError, UnsupportedError
from gradcheck_cli.graph import MAX_RANK, Array, Node
from gradcheck_cli.memory import exhausted
from gradcheck_cli.op import DTYPES, Op, Ops, bind, for_operands, no_forward
from gradcheck_cli.step import Place, Region, Step

Operand: TypeAlias = "Var | Compound | complex | np.generic | Array | None"
MAX_STEPS = 200_000  # an unrolled loop of a model from elsewhere must end
_WIDE = {"float16": np.float64, "float32": np.float64, "bfloat16": np.float64, "complex64": np.complex128}
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


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
    `named` maps tensors of the traced graph to their `Var`s, `compounds` its sequences, optionals and maps to records
    of `Var`s, `blocked` what could not be computed to the reason.
    """

    def __init__(self, ops: Ops, *, dtype: str = "float64", seed: int = 0) -> None:
        self.ops, self.dtype, self.seed = ops, dtype, seed
        self.steps: list[Step] = []
        self.regions: list[Region] = []
        self.values: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}
        self.guards: list[str] = []
        self.named: dict[str, Var] = {}
        self.compounds: dict[str, Compound] = {}
        self.blocked: dict[str, GradcheckError] = {}
        self.reserved: set[str] = set()
        self.place = Place()
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
        dtype = np.dtype(object) if array.dtype.kind in "US" else self.widen(array.dtype)
        self.values[name] = array.astype(dtype, copy=False)
        return self.var(name)

    def constant(self, value: Any, dtype: Any = None, name: str = "constant") -> Var:
        """A constant of a rule or a composition; equal scalars share one tensor."""
        array = np.asarray(value, dtype=dtype)
        key = (array.tobytes(), array.dtype.str) if array.ndim == 0 and array.dtype != object else None
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
    def aside(self) -> Iterator[None]:
        """What is added inside is taken off again."""
        steps, regions, guards = len(self.steps), len(self.regions), len(self.guards)
        kept = dict(self.values), dict(self.constants), dict(self._cached)
        try:
            yield
        finally:
            del self.steps[steps:], self.regions[regions:], self.guards[guards:]
            self.values, self.constants, self._cached = kept

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Steps made inside come from there, and carry its metadata."""
        outer, self.place = self.place, place
        try:
            yield
        finally:
            self.place = outer

    def from_node(self, origin: int, metadata: Mapping[str, str]) -> contextlib.AbstractContextManager[None]:
        """Steps made inside come from node `origin` of the model, or from its gradient (-1)."""
        return self.at(Place(origin, origin, metadata=metadata))

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
        where = self.place.of(op, name or (outputs[0] if outputs else op))
        operands = self._operands(inputs)
        if (domain, op) not in self.ops:
            raise no_forward(op, domain, self.ops, where)
        record = for_operands(self.ops[domain, op], operands, where)
        positions, metadata = self._bind(record, attrs, operands, n_outputs, where)
        if record.composed:
            return self._compose(record, [operands[i] for i in positions], metadata, name or op, where)
        names = [*outputs] or [self.fresh(op) if i == 0 else self.fresh(f"{op}_out{i}") for i in range(n_outputs)]
        results = self._evaluate(record, [operands[i] for i in positions], metadata, where)
        self._record(record, operands, positions, metadata, attrs, names, name)
        for output, value in zip(names, results, strict=False):
            if output:
                self.values[output] = value
        return tuple(Var(self, n, v) for n, v in zip(names, results, strict=False))

    def guard(self, var: Var) -> Any:
        """The value of `var` as control flow reads it: a probe that changes it crosses a branch."""
        self.guards.append(var.name)
        return var.value

    def _operands(self, inputs: Sequence[Operand]) -> list[Any]:
        first = next((x for x in inputs if isinstance(x, Var)), None)
        dtype = None if first is None else first.dtype
        known = (Var, type(None), *COMPOUND)
        return [x if isinstance(x, known) else self.constant(x, _fitting(x, dtype)) for x in inputs]

    def _bind(
        self, op: Op, attrs: Mapping[str, Any], operands: Sequence[Var | None], n_outputs: int, where: str
    ) -> tuple[list[int], dict[str, Any]]:
        arrays = _values(operands)
        supplied: dict[str, Any] = {"n_outputs": n_outputs, "tape": self}
        if "rng" in op.schema:
            supplied["rng"] = np.random.default_rng([self.seed, len(self.steps), len(self.values)])
        try:
            return bind(op, attrs, arrays, where=where, cast=self.widen, supplied=supplied)
        except ModelError as error:
            raise ModelError(str(error) if str(error).startswith(where) else f"{where}: {error}") from error
        except (LimitError, MemoryError) as error:
            raise exhausted(error, where) from error
        except (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError) as error:
            raise ModelError(f"{where} does not fit its inputs {_shapes(arrays)}: {error}") from error

    def _compose(
        self, op: Op, operands: list[Var | None], metadata: dict[str, Any], label: str, where: str
    ) -> tuple[Var, ...]:
        start = len(self.steps)
        with self.scope(label), self.explained(where, operands):
            results = op.forward(*operands, **metadata)
        outputs: tuple[Any, ...] = tuple(results) if isinstance(results, tuple | list) else (results,)
        if op.vjp is not None:
            names = tuple("" if x is None else x.name for x in operands)
            made = tuple(y.name for y in outputs)
            self.regions.append(Region(start, len(self.steps), op, names, made, metadata, label, self.place))
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
            made = [np.asarray(y) for y in (results if op.many else (results,))]
            if (rank := max((y.ndim for y in made), default=0)) > MAX_RANK:
                raise ValueError(f"the result has {rank} dimensions; at most {MAX_RANK} are possible")
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
            raise exhausted(error, where) from error
        except (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError) as error:
            raise ModelError(f"{where} cannot be computed from {_shapes(_values(operands))}: {error}") from error

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
        label = f"{self._scope}/{name}" if name and self._scope else name  # a body's nodes run many times
        label = label or (outputs[0] if self.place.origin < 0 else "")
        node = Node(op.name, tuple(names), tuple(outputs), plain, op.domain, label, self.place.metadata)
        statics = tuple(n for i, n in enumerate(names) if n and i not in positions)
        self.steps.append(Step(node, op, tuple(names[i] for i in positions), statics, metadata, self.place))


def _fitting(value: Any, dtype: np.dtype[Any] | None) -> np.dtype[Any] | None:
    if dtype is None or isinstance(value, np.ndarray | np.generic):
        return None
    return np.result_type(dtype, np.complex64) if isinstance(value, complex) else dtype


def _values(operands: Sequence[Any]) -> list[Any]:
    return [x.value if isinstance(x, Var) else x for x in operands]


def _shapes(values: Sequence[Any]) -> str:
    return ", ".join(map(described, values)) or "no input"
