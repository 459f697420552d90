"""The keys of a spec file as pydantic models, from which `gradcheck schema spec` makes a JSON Schema.

Fields that take more than one form have a check and a piece of JSON Schema each; a check returns the value, or raises
a ValueError that says what would be right.  Conditions between several keys are checked by the readers.
"""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    WithJsonSchema,
    create_model,
    model_validator,
)

from gradcheck_cli.errors import did_you_mean
from gradcheck_cli.settings import MOST_SECONDS, Option, options_at, parts

Schema = dict[str, Any]
REQUIRED = object()
_FANS = ("glorot_uniform", "glorot_normal", "he_uniform", "he_normal", "lecun_uniform", "lecun_normal")
KINDS: dict[str, dict[str, Any]] = {  # kind of initialisation: its options and their defaults
    "zeros": {},
    "ones": {},
    "constant": {"value": REQUIRED},
    "uniform": {"low": -1.0, "high": 1.0},
    "normal": {"mean": 0.0, "std": 1.0},
    **{kind: {"gain": 1.0} for kind in _FANS},
    "orthogonal": {"gain": 1.0},
    "identity": {"gain": 1.0},
    "eye": {"gain": 1.0},
    "arange": {"start": 0, "step": 1},
    "values": {"values": REQUIRED},
    "file": {"path": REQUIRED, "key": None},
}
_NUMBER: Schema = {"type": "number"}
_NAME: Schema = {"type": "string", "minLength": 1}
DIM: Schema = {"anyOf": [{"type": "integer", "minimum": 0}, _NAME, {"type": "null"}]}
OPERAND: Schema = {"type": ["string", "number", "boolean", "array", "null"]}
LITERAL: Schema = {"type": ["string", "number", "boolean", "array"]}


def _schema_of_kind(kind: str, options: dict[str, Any]) -> Schema:
    types: dict[str, Schema] = {"path": _NAME, "key": _NAME, "values": {}}
    properties = {"kind": {"const": kind}, **{name: types.get(name, _NUMBER) for name in options}}
    required = ["kind", *(name for name, default in options.items() if default is REQUIRED)]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_WORDS = [kind for kind, options in KINDS.items() if REQUIRED not in options.values()]
INIT: Schema = {
    "anyOf": [
        {"enum": _WORDS},
        {"type": ["number", "boolean", "array"]},
        _NAME,
        *(_schema_of_kind(kind, options) for kind, options in KINDS.items()),
    ]
}


class Unknown(NamedTuple):
    """Stands in for the value of an unknown key, so that the error message can list the known keys."""

    known: tuple[str, ...]
    home: str = ""  # the form in which the key is known elsewhere


class InvalidPart(ValueError):
    """An error in a part of a value, the one under the key `part`; `by_key` if the key itself is wrong."""

    def __init__(self, message: str, part: str, *, by_key: bool = False) -> None:
        super().__init__(message)
        self.part, self.by_key = part, by_key


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """True for a number that a float64 comes near, which an integer of 400 digits is not."""
    return is_number(value) and abs(value) <= sys.float_info.max


def _must(fit: Callable[[Any], bool], wanted: str) -> Callable[[Any], Any]:
    """A check that returns a fitting value, and whose error for others says what is wanted."""

    def check(value: Any) -> Any:
        if fit(value):
            return value
        raise ValueError(f"is {show(value)}; {wanted}")

    return check


def check_init(value: Any) -> Any:
    """Accepts a word, a number, lists, or a mapping with a kind and options of this kind."""
    return _check_kind(value) if isinstance(value, dict) else _check_literal(value)


def check_values_by_name(value: Any) -> Any:
    """Accepts one value, or a mapping from names of tensors to values."""
    if is_one_value(value):
        return check_init(value)
    return {name: _inside(name, check_init, each) for name, each in value.items()}


def is_one_value(value: Any) -> bool:
    """True for one value, False for a mapping from names of tensors to values."""
    return not isinstance(value, dict) or isinstance(value.get("kind"), str)


def _check_kind(value: dict[str, Any]) -> dict[str, Any]:
    kind = value.get("kind")
    if kind is None:
        raise ValueError(f"lacks the key 'kind'; known are {listed(KINDS)}")
    if not isinstance(kind, str) or kind not in KINDS:
        raise InvalidPart(f"is {show(kind)}; known are {listed(KINDS)}.{did_you_mean(str(kind), KINDS)}", "kind")
    for name in value:
        if name != "kind" and name not in KINDS[kind]:
            options = listed(KINDS[kind]) or "no options"
            message = f"is an unknown key; {kind} takes {options}.{did_you_mean(name, KINDS[kind])}"
            raise InvalidPart(message, name, by_key=True)
    for name, default in KINDS[kind].items():
        _check_option(kind, name, value.get(name, default))
    return value


def _check_option(kind: str, name: str, value: Any) -> None:
    if value is REQUIRED:
        raise ValueError(f"lacks the key {name!r} that {kind} needs")
    if name in ("path", "key"):
        if not (isinstance(value, str) and value) and not (name == "key" and value is None):
            raise InvalidPart(f"is {show(value)}; it must be a text", name)
    elif name == "values" or kind == "constant":
        _check_literal(value)
    elif not is_finite(value):
        raise InvalidPart(f"is {show(value)}; it must be a number", name)


def check_names(value: Any) -> Any:
    """Accepts one name or a list of names; gives a list."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"is {show(value)}; it must be a name or a list of names")
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"names {twice[0]!r} twice")
    return names


def check_range(value: Any) -> tuple[float, float]:
    """Accepts a list of two finite numbers in order."""
    if not (isinstance(value, list) and len(value) == 2 and all(map(is_number, value))):
        raise ValueError(f"is {show(value)}; it must be [low, high]")
    low, high = value
    if not (is_finite(low) and is_finite(high) and low <= high):
        raise ValueError(f"is {show(value)}; low must not be above high, and both finite")
    return low, high


def _inside(name: str, check: Callable[[Any], Any], value: Any) -> Any:
    try:
        return check(value)
    except InvalidPart:
        raise
    except ValueError as error:
        raise InvalidPart(str(error), name) from None


def _check_sizes(value: Any) -> Any:
    if isinstance(value, list) and all(_is_int(size) and size >= 0 for size in value):
        return tuple(value)
    raise ValueError(f"is {show(value)}; it must be a list of sizes")


def date_of(value: Any) -> datetime.date | None:
    """The date in a string of the form YYYY-MM-DD."""
    try:
        return None if value is None else datetime.date.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError(f"is {show(value)}; it must be a day as YYYY-MM-DD") from None


def branch_of_attribute(value: Any) -> str:
    if not isinstance(value, dict):
        return "<value>"
    if "ref" in value:
        return "<ref>"
    return "<graph>" if not {"nodes", "outputs"}.isdisjoint(value) else "<tensor>"


def _by(kind: type, tag: str, other: str) -> Discriminator:
    """Tells two branches of a union apart by the type of the value as written."""
    return Discriminator(lambda value: tag if isinstance(value, kind) else other)


def show(value: Any) -> str:
    """A value as messages write it, shortened to 40 characters."""
    text = {"None": "null", "True": "true", "False": "false"}.get(repr(value), repr(value))
    return text if len(text) <= 40 else text[:37] + "..."


def listed(names: Iterable[Any]) -> str:
    return ", ".join(str(name) for name in names)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_check_dim = _must(
    lambda value: value is None or (isinstance(value, str) and bool(value)) or (_is_int(value) and value >= 0),
    "a size is an integer from 0, a name, or null",
)
_check_operand = _must(
    lambda value: not isinstance(value, dict), "an input is a tensor's name, a number, a list, or null"
)
_check_literal = _must(
    lambda value: value is not None and not isinstance(value, dict),
    "it must be a number, a text or nested lists of them",
)
_check_tolerance = _must(
    lambda value: is_finite(value) and value >= 0,
    "it must be a number from 0, or one for each tensor by name",
)

DTypeName: TypeAlias = Literal[
    "float16", "float32", "float64", "bfloat16", "complex64", "complex128", "bool",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
]  # fmt: skip
Dim: TypeAlias = Annotated[Any, PlainValidator(_check_dim), WithJsonSchema(DIM)]
Operand: TypeAlias = Annotated[Any, PlainValidator(_check_operand), WithJsonSchema(OPERAND)]
Value: TypeAlias = Annotated[Any, PlainValidator(_check_literal), WithJsonSchema(LITERAL)]
Init: TypeAlias = Annotated[Any, PlainValidator(check_init), WithJsonSchema(INIT)]
Range: TypeAlias = Annotated[list[float], Field(min_length=2, max_length=2), AfterValidator(check_range)]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
Natural: TypeAlias = Annotated[int, Field(ge=0)]
Name: TypeAlias = Annotated[str, Field(min_length=1)]


class Keyed(BaseModel):
    """A mapping of the file whose keys are fixed."""

    model_config = ConfigDict(strict=True, extra="forbid", defer_build=True)  # built once, with `SpecKeys`

    @model_validator(mode="before")
    @classmethod
    def _mark_unknown(cls, data: Any) -> Any:
        # pydantic's error about an unknown key carries the key's value, here the known keys.
        unknown = [key for key in data if key not in cls.model_fields] if isinstance(data, dict) else []
        marks = {key: Unknown(tuple(cls.model_fields), cls._home(str(key))) for key in unknown}
        return {**data, **marks} if unknown else data

    @classmethod
    def _home(cls, key: str) -> str:
        """The form in which another mapping knows the key; "" if none that people take for this one does."""
        return ""


class TensorLiteral(Keyed):
    """A tensor written out."""

    values: Value = Field(description="A number, or nested lists of numbers; '1+2j' is a complex one.")
    dtype: DTypeName | None = Field(None, description="Without it: bool, int64 or the graph's float type.")
    shape: list[Natural] | None = Field(None, description="Values are put into this shape; one number fills it.")


class AttributeReference(Keyed):
    """A reference to an attribute of the operator that the node is a part of."""

    ref: Name = Field(description="Name of the operator's attribute.")


class InputSpec(Keyed):
    """An input of a graph."""

    shape: list[Dim] | None = Field(None, description="Sizes, or names of sizes; null is an unknown one.")
    dtype: DTypeName = Field("float32", description="Its dtype.")
    range: Range | None = Field(None, description="Values are drawn from this range; integers include both ends.")


class ParamSpec(Keyed):
    """A parameter of a graph."""

    shape: list[Dim] | None = Field(None, description="Sizes, or names from `dims`; default that of written values.")
    dtype: DTypeName = Field("float32", description="Its dtype.")
    init: Init = Field(
        description="The source of its values: a kind, a mapping with a kind, a number, or nested lists."
    )


Attribute: TypeAlias = Annotated[
    Annotated[TensorLiteral, Tag("<tensor>")]
    | Annotated[AttributeReference, Tag("<ref>")]
    | Annotated["Subgraph", Tag("<graph>")]
    | Annotated[Value, Tag("<value>")],
    Discriminator(branch_of_attribute),
]


class NodeSpec(Keyed):
    """One application of an operator."""

    op: Name = Field(description="An ONNX operator, Complex/Real/Imag/Conj/Angle/FFT/IFFT, or domain.Name from `ops`.")
    outputs: Annotated[list[str], Field(min_length=1)] = Field(description="Names of the tensors that it computes.")
    inputs: list[Operand] = Field([], description="Names of tensors; a number or list is a constant, null is left out.")
    attrs: dict[Name, Attribute] = Field({}, description="Attributes by name; a graph is a mapping with `nodes`.")
    name: str = Field("", description="What messages call it.")
    domain: str = Field("", description="Domain of the operator; also written as domain.Name in `op`.")


NodeOrText: TypeAlias = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[NodeSpec, Tag("<node>")], _by(str, "<text>", "<node>")
]
Nodes: TypeAlias = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[NodeOrText], Tag("<list>")], _by(str, "<text>", "<list>")
]
Constant: TypeAlias = Annotated[
    Annotated[TensorLiteral, Tag("<tensor>")] | Annotated[Value, Tag("<value>")],
    Discriminator(branch_of_attribute),
]
Param: TypeAlias = Annotated[
    Annotated[ParamSpec, Tag("<param>")] | Annotated[Value, Tag("<value>")], _by(dict, "<param>", "<value>")
]


class Subgraph(Keyed):
    """A graph inside a node: a branch of If, the body of Loop or Scan.  It may read the tensors around it."""

    outputs: list[Name] = Field(description="Names of its results.")
    nodes: Nodes = Field([], description="Its nodes.")
    inputs: list[Name] = Field([], description="Names of the tensors that Loop or Scan passes in.")
    constants: dict[Name, Constant] = Field({}, description="Fixed tensors by name.")


class GraphSpec(Keyed):
    """A model: nodes between inputs and outputs."""

    outputs: Annotated[list[Name], Field(min_length=1)] = Field(description="Names of its results.")
    nodes: Nodes = Field(description="Nodes in the order of computation: mappings, or ONNX's text syntax.")
    inputs: dict[Name, InputSpec] = Field({}, description="Tensors that are fed, by name.")
    params: dict[Name, Param] = Field({}, description="Trained tensors by name.")
    constants: dict[Name, Constant] = Field({}, description="Fixed tensors by name; differentiated only if named as x.")
    dims: dict[Name, Natural] = Field({}, description="Sizes, by the name that shapes use for them.")
    opset: Positive | None = Field(None, description="The ONNX opset in which the nodes are written; default 21.")


class AlongSpec(Keyed):
    """Integers that are indices into an axis of another operand, or lengths along it."""

    along: Name = Field(description="The other operand.")
    axis: int = Field(0, description="Its axis; default the first one.")
    lengths: bool = Field(False, description="True for lengths, which may be that of the whole axis, not indices.")


_below = _must(lambda ends: ends[0] < ends[1], "least must be below most")
_ordered = _must(lambda ends: ends[0] <= ends[1], "low must not be above high")
Domain: TypeAlias = Annotated[list[float], Field(min_length=2, max_length=2), AfterValidator(_below)]
Ends: TypeAlias = Annotated[list[int], Field(min_length=2, max_length=2), AfterValidator(_ordered)]
Integers: TypeAlias = Annotated[
    Annotated[AlongSpec, Tag("<along>")] | Annotated[Ends, Tag("<ends>")], _by(dict, "<along>", "<ends>")
]


Role: TypeAlias = Literal["weight", "statistic", "quantization"]


class FactsSpec(Keyed):
    """Facts about an operator that a check cannot read from its body; operands are referred to by name.

    Others it reads from the nodes of the body: cost, kinks, branches, flat units, dtypes, rounding.
    """

    domain: dict[Name, Domain] = Field({}, description="Ranges of operands, [least, most], ends excluded.")
    integers: dict[Name, Integers] = Field({}, description="Integers of operands: [low, high], or {along: operand}.")
    roles: dict[Name, Role] = Field({}, description="The role of an operand that is a constant.")
    moves: Literal["all", "joined", "part", "picked", "selected", "within", "either"] | None = Field(
        None,
        description="The way in which entries of its first operand become entries of its result unchanged: all in "
        "another layout, a fixed part, picked by indices, selected by data, or only kept within their range; joined "
        "means those of all operands, either those of one of two.",
    )
    same_axes: bool = Field(False, description="The axes of its result are those of its first operand.")
    space: Literal["windows", "resized"] | None = Field(
        None, description="From the third on, axes of its first operand are an image's, read in windows or resized."
    )
    layer: bool | None = Field(None, description="With a gradient: true if it is a layer where it has weights.")
    bends: list[Annotated[list[Name], Field(min_length=1)]] = Field(
        [],
        description="With a gradient: groups of operands; it is not linear where a whole group is data. Default all.",
    )
    squashes: bool = Field(False, description="With a gradient: its result is bounded, as that of a softmax.")


class OperatorSpec(Keyed):
    """An operator of one's own, and the gradient under test."""

    inputs: Annotated[list[Name], Field(min_length=1)] | None = Field(None, description="Names of its operands.")
    outputs: Annotated[list[Name], Field(min_length=1)] | None = Field(None, description="Names of its results.")
    forward: Nodes | None = Field(None, description="Nodes that compute the outputs from the inputs.")
    gradient: Nodes | None = Field(None, description="Nodes that compute dx from x, y and dy. Without: derived.")
    cuts: list[Name] = Field([], description="Inputs without a derivative by nature: they decide, index or size.")
    facts: FactsSpec = Field(
        default_factory=lambda: FactsSpec.model_validate({}),
        description="Facts that a check may rely on beside its body.",
    )
    attrs: dict[Name, Value] = Field({}, description="Attributes and their defaults; the nodes refer to them by @name.")
    python: str | None = Field(None, description="module:function that returns this entry; needs --allow-python.")


class Expect(Keyed):
    """A known failure of a check; the entry has to be removed once the check passes."""

    status: Literal["fail", "severed", "inconclusive", "unsupported", "error", "limit"] | None = Field(
        None, description="The outcome."
    )
    forward: Literal["differs"] | None = Field(
        None, description="The forward run differs from onnxruntime's, or from the outputs shipped with the model."
    )
    reason: str = Field("", description="The reason, or the issue in which it is written.")
    until: Annotated[datetime.date | None, BeforeValidator(date_of)] = Field(None, description="Last day, YYYY-MM-DD.")

    @model_validator(mode="after")
    def _say_what(self) -> Expect:
        if self.status is None and self.forward is None:
            raise ValueError("says nothing of what is expected: give a status, or forward: differs")
        return self


def _key(option: Option, place: str) -> tuple[Any, Any]:
    """The type of an option as a key of a spec, and its field, with default and description."""
    told, _ = parts(option.text(place))
    many = " One for all tensors, or for each by name." if option.kind in ("ranges", "tolerances") else ""
    return _type_of(option), Field(option.default, description=told + many)


def _type_of(option: Option) -> Any:
    if option.kind == "word":
        return Literal[option.words] if option.default else Literal[option.words] | None
    return _number(option) if option.kind in ("whole", "real") else _TYPES[option.kind]


def _number(option: Option) -> Any:
    """The type of a number within the limits of an option, or one of its words, such as auto."""
    kind, name, matches = (int, "integer", _is_int) if option.kind == "whole" else (float, "number", is_finite)
    if not option.words:
        ends: dict[str, Any] = {"gt" if option.above else "ge": option.least, "le": option.most}
        return Annotated[kind, Field(**{end: bound for end, bound in ends.items() if math.isfinite(bound)})]

    def check(value: Any) -> Any:
        if value in option.words or (matches(value) and option.allows(value)):
            return value
        limit = f"{'above' if option.above else 'from'} {option.least:g}"
        raise ValueError(f"is {show(value)}; it must be a{'n' * (kind is int)} {name} {limit}, or {option.words[0]}")

    least = {"exclusiveMinimum" if option.above else "minimum": option.least}
    return _form(check, {"anyOf": [{"type": name, **least}, *({"const": word} for word in option.words)]})


def _form(check: Callable[[Any], Any], schema: Schema) -> Any:
    return Annotated[Any, PlainValidator(check), WithJsonSchema(schema)]


def _one_or_each(check: Callable[[Any], Any], one: Schema) -> Any:
    """The type of one value for all tensors, or of one for each by name."""

    def check_all(value: Any) -> Any:
        if not isinstance(value, dict):
            return check(value)
        return {name: _inside(name, check, each) for name, each in value.items()}

    return _form(check_all, {"anyOf": [one, {"type": "object", "additionalProperties": one}]})


_NAMES = _form(check_names, {"anyOf": [_NAME, {"type": "array", "items": _NAME, "minItems": 1}]})
_TYPES: dict[str, Any] = {  # by kind of option
    "flag": bool,
    "bytes": Positive,
    "seconds": Annotated[float | None, Field(gt=0, le=MOST_SECONDS)],
    "text": str,
    "path": Name | None,
    "data": str,
    **dict.fromkeys(("tensors", "globs", "names"), _NAMES),
    "sizes": dict[Name, Natural],
    "shapes": _one_or_each(_check_sizes, {"type": "array", "items": {"type": "integer", "minimum": 0}}),
    "ranges": _one_or_each(check_range, {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}),
    "tolerances": _one_or_each(_check_tolerance, {"type": "number", "minimum": 0}),
    "values": _form(check_values_by_name, {"anyOf": [INIT, {"type": "object", "additionalProperties": INIT}]}),
    "feeds": dict[Name, Init],
    "claims": dict[Name, Name],
}


def _keys(place: str, under: type[Keyed]) -> Any:
    """The keys of an entry: those of `under`, and the options that may stand at this place of a spec."""
    keys: dict[str, Any] = {option.field or option.name: _key(option, place) for option in options_at(place)}
    return create_model(under.__name__, __base__=under, __doc__=under.__doc__, **keys)


class SettingsKeys(_keys("settings", Keyed)):  # type: ignore[misc]  # its keys are those of the table
    """Options of the command line by name."""


class Defaults(SettingsKeys):
    """Settings of every check that does not say otherwise."""

    expect: Expect | None = Field(None, description="An outcome that is no failure of any check; others may pass.")


class CheckSpec(_keys("checks", SettingsKeys)):  # type: ignore[misc]
    """One check: the gradient of y with respect to x."""

    name: Name | None = Field(None, description="Its name; default that of the graph or model.")
    graph: Name | None = Field(None, description="A graph of this file; default the only one.")
    model: Name | None = Field(None, description="An ONNX file, relative to this one.")
    expect: Expect | None = Field(None, description="A known outcome.")


class ModelSpec(_keys("models", SettingsKeys)):  # type: ignore[misc]
    """One entry of a zoo manifest."""

    path: Name = Field(description="An ONNX file, a folder, a pattern or a URL.")
    name: Name | None = Field(None, description="Its name in the results.")
    sha256: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")] | None = Field(
        None, description="The SHA-256 of the file."
    )
    expect: Expect | None = Field(None, description="A known outcome.")


class SpecKeys(Keyed):
    """A gradcheck spec: graphs and checks, checks of ONNX files beside it, or a manifest of models."""

    gradcheck: Literal[1] = Field(description="The version of this format; the first key.")
    defaults: Defaults = Field(default_factory=lambda: Defaults.model_validate({}), description=str(Defaults.__doc__))
    graphs: dict[Name, GraphSpec] = Field({}, description="Models by name.")
    ops: dict[Name, OperatorSpec] = Field({}, description="Operators of one's own, as domain.Name.")
    init: dict[Name, dict[Name, Init]] = Field({}, description="Groups of values: {from: file.npz}, or tensor: init.")
    checks: list[CheckSpec] = Field([], description="Checks; default: one of each graph, with chosen targets.")
    models: list[ModelSpec] = Field([], description="A zoo manifest.")

    @classmethod
    def _home(cls, key: str) -> str:
        if key in GraphSpec.model_fields:
            return f"graphs: {{net: {{{key}: ...}}}}"
        return f"checks: [{{{key}: ...}}]" if key in CheckSpec.model_fields else ""


for _model in (NodeSpec, Subgraph, GraphSpec, FactsSpec, OperatorSpec, SpecKeys):
    _model.model_rebuild()


def spec_schema() -> dict[str, Any]:
    """The JSON Schema (draft-07) of a spec file."""
    schema = SpecKeys.model_json_schema(ref_template="#/definitions/{model}")
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "gradcheck spec"}
    definitions = {name: _draft_07(part) for name, part in schema.pop("$defs").items()}
    return {**head, **_draft_07({k: v for k, v in schema.items() if k != "title"}), "definitions": definitions}


def _draft_07(part: Any) -> Any:
    """A part of a schema in the form of draft-07, without noise that confuses editors."""
    if isinstance(part, list):
        return [_draft_07(each) for each in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:  # draft-07 ignores whatever stands beside a reference
        rest = {key: _draft_07(value) for key, value in part.items() if key not in ("$ref", "default")}
        return {"allOf": [{"$ref": part["$ref"]}], **rest} if len(part) > 1 else part
    noise = [key for key, value in part.items() if (key, type(value)) == ("title", str)]
    noise += ["default"] if part.get("default", 0) in (None, {}, []) else []
    kept = {key: _draft_07(value) for key, value in part.items() if key not in noise}
    if "oneOf" in kept:  # an integer is a number too: branches may overlap
        kept["anyOf"] = kept.pop("oneOf")
    return kept
