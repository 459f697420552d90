"""The facts that `gradcheck ops` prints of each operator, from the operator table and ONNX's own schemas."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from gradcheck_cli.autodiff.custom import installed
from gradcheck_cli.errors import UsageError, did_you_mean
from gradcheck_cli.op import DTYPES, Op, zero
from gradcheck_cli.ops import OPS

REQUIRED = "required"
FORWARD = {
    "kernel": "computed by a kernel of its own",
    "composed": "composed of other operators",
    "none": "none: nothing behind it can be checked",
}
GRADIENT = {
    "rule": "by a rule of its own",
    "composed": "that of the operators it is composed of",
    "zero": "zero wherever it exists",
    "none": "none: nothing behind it can be checked",
}
_READ_AS = {  # operators that a file may hold and a graph never does
    ("", "Constant"): "a constant",
    ("", "Scatter"): "ScatterElements",
    ("", "Upsample"): "Resize",
}
_OF_ANOTHER = {"forward": "kernel", "gradient": "rule", "kinks": "parts", "complex_step": "parts"}  # facts of these
_THROUGH = "--straight-through passes the gradient on, where other nodes compute with the result"
_FLOWS = {  # remarks on the gradient
    ("", "Cast"): "between floating-point numbers of 16 bits and more and complex ones; to integers, booleans, strings "
    "and the small floats it is zero, and --straight-through passes it on where the result is cast back",
    ("", "CastLike"): "between floating-point numbers of 16 bits and more and complex ones; else it is zero",
    **dict.fromkeys([("", "Round"), ("", "Floor"), ("", "Ceil")], _THROUGH),
    **dict.fromkeys([("", "QuantizeLinear"), ("", "DynamicQuantizeLinear")], _THROUGH),
}
_CONTAINERS = {"seq(": "sequence", "map(": "map", "optional(": "optional"}  # ONNX's types of containers
_FOR_COMPLEX = ("Angle", "Complex", "Conj", "FFT", "IFFT", "Imag", "Real")  # in the domain gradcheck: ONNX lacks them
_DTYPES = {("gradcheck", name): {"x": ("float32", "float64", "complex64", "complex128")} for name in _FOR_COMPLEX}


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """An operator: the source of its value and gradient, its versions and dtypes, and its attributes.

    `kinks` and `complex_step` are "yes", "no", or "parts" if they follow from the operators it is composed of.
    """

    name: str
    domain: str
    forward: str = "none"  # a key of FORWARD
    gradient: str = "none"  # a key of GRADIENT
    versions: tuple[int, ...] = ()  # opset versions of its domain in which its definition changed; all are read
    dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by input, or by output if there is no input
    data: str = "x"  # the input whose dtype the output has, else the first one
    kinks: str = "no"
    complex_step: str = "no"
    constants: Mapping[str, int] = field(default_factory=dict)  # inputs that must be constants: name -> position
    attributes: Mapping[str, Any] = field(default_factory=dict)  # with defaults
    read_as: str = ""  # the operator that a file's node of it is read as
    flows: str = ""  # the cases in which there is a gradient
    does: str = ""

    @property
    def full_name(self) -> str:
        """domain.Name, or the name alone for ONNX's own."""
        return f"{self.domain}.{self.name}" if self.domain else self.name

    @property
    def known(self) -> bool:
        """True if a model with this operator can be run."""
        return self.forward != "none"

    def as_json(self) -> dict[str, Any]:
        """The object that `--output-format json` prints."""
        return asdict(self)


def all_facts() -> list[OperatorFacts]:
    """Every operator that is known or that ONNX defines: ONNX's own first, by name."""
    ops, schemas = {**installed(), **OPS}, _schemas()
    return [_facts(key, ops.get(key), schemas.get(key, ())) for key in sorted({*ops, *schemas})]


def facts_named(name: str) -> list[OperatorFacts]:
    """The operators of a name, in any domain and any case; UsageError if there is none."""
    every = all_facts()
    found = [each for each in every if name.lower() in (each.name.lower(), each.full_name.lower())]
    if not found:
        meant = did_you_mean(name, [each.full_name for each in every])
        raise UsageError(f"no operator {name!r} is known.{meant} `gradcheck ops` lists all of them.")
    return found


def _facts(key: tuple[str, str], op: Op | None, history: Sequence[Any]) -> OperatorFacts:
    of_another = {**_OF_ANOTHER, "read_as": _READ_AS[key]} if key in _READ_AS else {}
    more = of_another if op is None else _of_op(op)
    formals = (history[-1].inputs or history[-1].outputs) if history else ()
    return OperatorFacts(
        name=key[1],
        domain=key[0],
        flows=_FLOWS.get(key, ""),
        versions=tuple(schema.since_version for schema in history),
        dtypes={f.name: _named(f.types) for f in formals} or _DTYPES.get(key, {}),
        data=_data(history[-1]) if history else "x",
        **more,
    )


def _of_op(op: Op) -> dict[str, Any]:
    """The facts in the operator table."""
    own = {k: v for k, v in op.schema.items() if k in op.signature.given and k not in op.static}
    gradient = "zero" if op.vjp is zero else "rule" if op.vjp is not None else "composed" if op.composed else "none"
    return {
        "forward": "composed" if op.composed else "kernel",
        "gradient": gradient,
        "kinks": "parts" if op.composed else _yes(op.branch is not None),
        "complex_step": "parts" if op.composed else _yes(op.analytic or bool(op.linear)),
        "constants": dict(op.static),
        "attributes": {k.rstrip("_"): REQUIRED if v is inspect.Parameter.empty else v for k, v in own.items()},
        "does": op.does or _first_line(op),
    }


def _yes(claim: bool) -> str:
    return "yes" if claim else "no"


@cache
def _schemas() -> Mapping[tuple[str, str], tuple[Any, ...]]:
    """ONNX's schemas of each operator, oldest first, without those that only declare it deprecated."""
    from onnx import defs

    found: dict[tuple[str, str], list[Any]] = {}
    for schema in defs.get_all_schemas_with_history():
        if not schema.deprecated:
            found.setdefault((schema.domain, schema.name), []).append(schema)
    return {key: tuple(sorted(schemas, key=lambda s: s.since_version)) for key, schemas in found.items()}


def _data(schema: Any) -> str:
    """The input whose type the output has, else the first: for Where it is X, not the condition."""
    formals = schema.inputs or schema.outputs
    same = (f.name for f in formals if f.type_str == schema.outputs[0].type_str)
    return str(next(same, formals[0].name))


def _named(types: Iterable[str]) -> tuple[str, ...]:
    """ONNX's types by NumPy's names of their dtypes, in ONNX's order; then the kinds of containers."""
    given = set(types)
    tensors = [dtype for text, dtype in _dtype_names().items() if text in given]
    return (*tensors, *(kind for mark, kind in _CONTAINERS.items() if any(text.startswith(mark) for text in given)))


@cache
def _dtype_names() -> Mapping[str, str]:
    """ONNX's `tensor(float)` -> NumPy's float32."""
    from onnx import TensorProto

    kinds = TensorProto.DataType
    return {
        f"tensor({kinds.Name(kinds.ValueType(number)).lower()})": "string" if dtype.kind == "O" else dtype.name
        for number, dtype in DTYPES.items()
        if number in kinds.values()  # an older onnx has fewer
    }


def _first_line(op: Op) -> str:
    """The first sentence of the kernel's docstring; nothing for foreign kernels."""
    if not getattr(op.forward, "__module__", "").startswith("gradcheck_cli"):
        return ""
    text = inspect.getdoc(op.forward) or ""
    return text.split("\n\n")[0].replace("\n", " ")
