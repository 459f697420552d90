"""The shape of a spec file: which keys there are, of which type, what each is for.

Everything that can be said without looking from one key to another is said here, and `gradcheck schema spec`
prints it as a JSON Schema.  `spec_messages` turns what pydantic finds into lines and columns of the file.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal, TypeAlias

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
    model_validator,
)

from gradcheck_cli.formats.yaml import fields as of

DTypeName: TypeAlias = Literal[
    "float16", "float32", "float64", "bfloat16", "complex64", "complex128", "bool",
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
]  # fmt: skip
Dim: TypeAlias = Annotated[Any, PlainValidator(of.check_dim), WithJsonSchema(of.DIM)]
Operand: TypeAlias = Annotated[Any, PlainValidator(of.check_operand), WithJsonSchema(of.OPERAND)]
Value: TypeAlias = Annotated[Any, PlainValidator(of.check_literal), WithJsonSchema(of.LITERAL)]
Init: TypeAlias = Annotated[Any, PlainValidator(of.check_init), WithJsonSchema(of.INIT)]
Names: TypeAlias = Annotated[Any, PlainValidator(of.check_names), WithJsonSchema(of.NAMES)]
Seed: TypeAlias = Annotated[Any, PlainValidator(of.check_seed), WithJsonSchema(of.SEED)]
Step: TypeAlias = Annotated[Any, PlainValidator(of.check_step), WithJsonSchema(of.STEP)]
PerTensorNumber: TypeAlias = Annotated[
    Any, PlainValidator(of.check_per_tensor_number), WithJsonSchema(of.PER_TENSOR_NUMBER)
]
PerTensorRange: TypeAlias = Annotated[
    Any, PlainValidator(of.check_per_tensor_range), WithJsonSchema(of.PER_TENSOR_RANGE)
]
PerTensorShape: TypeAlias = Annotated[
    Any, PlainValidator(of.check_per_tensor_shape), WithJsonSchema(of.PER_TENSOR_SHAPE)
]
Range: TypeAlias = Annotated[list[float], Field(min_length=2, max_length=2), AfterValidator(of.check_range)]
AnyOf: TypeAlias = Annotated[Any, PlainValidator(of.check_values_by_name), WithJsonSchema(of.VALUES_BY_NAME)]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
Natural: TypeAlias = Annotated[int, Field(ge=0)]
Name: TypeAlias = Annotated[str, Field(min_length=1)]


class Keyed(BaseModel):
    """A mapping of the file whose keys are fixed."""

    model_config = ConfigDict(strict=True, extra="forbid", defer_build=True)  # built once, with the whole

    @model_validator(mode="before")
    @classmethod
    def _mark_unknown(cls, data: Any) -> Any:
        # An error about a key carries the key's value: let it say which keys there are.
        unknown = [key for key in data if key not in cls.model_fields] if isinstance(data, dict) else []
        return {**data, **{key: of.Unknown(tuple(cls.model_fields)) for key in unknown}} if unknown else data


class TensorLiteral(Keyed):
    """A tensor written out."""

    values: Value = Field(description="A number, or nested lists of numbers; '1+2j' is a complex one.")
    dtype: DTypeName | None = Field(None, description="Without it: bool, int64 or the graph's float type.")
    shape: list[Natural] | None = Field(None, description="Values are put into this shape; one number fills it.")


class AttributeReference(Keyed):
    """The value of an attribute of the operator whose body this is."""

    ref: Name = Field(description="Name of the operator's attribute.")


class InputSpec(Keyed):
    """An input of a graph."""

    shape: list[Dim] | None = Field(None, description="Sizes, or names of sizes; null is an unknown one.")
    dtype: DTypeName = Field("float32", description="Its type.")
    range: Range | None = Field(None, description="Values are drawn from here; integers include both ends.")


class ParamSpec(Keyed):
    """A parameter of a graph."""

    shape: list[Dim] | None = Field(
        None, description="Sizes, or names from `dims`; may be left out for written values."
    )
    dtype: DTypeName = Field("float32", description="Its type.")
    init: Init = Field(description="How it gets its values: a kind, a mapping with a kind, a number, or nested lists.")


Attribute: TypeAlias = Annotated[
    Annotated[TensorLiteral, Tag("<tensor>")]
    | Annotated[AttributeReference, Tag("<ref>")]
    | Annotated["Subgraph", Tag("<graph>")]
    | Annotated[Value, Tag("<value>")],
    Discriminator(of.branch_of_attribute),
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
    Annotated[str, Tag("<text>")] | Annotated[NodeSpec, Tag("<node>")], Discriminator(of.branch_of_node)
]
Nodes: TypeAlias = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[NodeOrText], Tag("<list>")],
    Discriminator(of.branch_of_nodes),
]
Constant: TypeAlias = Annotated[
    Annotated[TensorLiteral, Tag("<tensor>")] | Annotated[Value, Tag("<value>")],
    Discriminator(of.branch_of_attribute),
]
Param: TypeAlias = Annotated[
    Annotated[ParamSpec, Tag("<param>")] | Annotated[Value, Tag("<value>")], Discriminator(of.branch_of_param)
]


class Subgraph(Keyed):
    """A graph inside a node: a branch of If, the body of Loop or Scan.  It may read the tensors around it."""

    outputs: list[Name] = Field(description="Names of the tensors that it gives.")
    nodes: Nodes = Field([], description="Its nodes.")
    inputs: list[Name] = Field([], description="Names of what Loop or Scan hands in.")
    constants: dict[Name, Constant] = Field({}, description="Fixed tensors by name.")


class GraphSpec(Keyed):
    """A model: nodes between inputs and outputs."""

    outputs: Annotated[list[Name], Field(min_length=1)] = Field(description="Names of its results.")
    nodes: Nodes = Field(description="Nodes in the order of computation: mappings, or ONNX's text syntax.")
    inputs: dict[Name, InputSpec] = Field({}, description="What is fed, by name.")
    params: dict[Name, Param] = Field({}, description="Trained tensors by name.")
    constants: dict[Name, Constant] = Field({}, description="Fixed tensors by name; never differentiated unasked.")
    dims: dict[Name, Natural] = Field({}, description="Sizes by the name that shapes use.")
    opset: Positive | None = Field(None, description="The ONNX opset in which the nodes are written; default 21.")


class OperatorSpec(Keyed):
    """An operator of one's own, and the gradient under test."""

    inputs: Annotated[list[Name], Field(min_length=1)] | None = Field(None, description="Names of its operands.")
    outputs: Annotated[list[Name], Field(min_length=1)] | None = Field(None, description="Names of its results.")
    forward: Nodes | None = Field(None, description="Nodes that compute the outputs from the inputs.")
    gradient: Nodes | None = Field(None, description="Given x, y and dy: nodes that compute dx. Without: derived.")
    cuts: list[Name] = Field([], description="Inputs without a derivative by nature: they decide, index or size.")
    attrs: dict[Name, Value] = Field({}, description="Attributes and their defaults; the nodes refer to them by @name.")
    python: str | None = Field(None, description="module:function that returns this entry; needs --allow-python.")


class Expect(Keyed):
    """What a check is known to give; once it passes, the entry has to go."""

    status: Literal["fail", "severed", "inconclusive", "unsupported", "error", "limit"] | None = Field(
        None, description="The outcome."
    )
    forward: Literal["differs"] | None = Field(
        None, description="The forward run differs from onnxruntime's, or from the outputs shipped with the model."
    )
    reason: str = Field("", description="Why, or the issue where that is written.")
    until: Annotated[datetime.date | None, BeforeValidator(of.date_of)] = Field(
        None, description="Last day, YYYY-MM-DD."
    )

    @model_validator(mode="after")
    def _say_what(self) -> Expect:
        if self.status is None and self.forward is None:
            raise ValueError("says nothing of what is expected: give a status, or forward: differs")
        return self


class Settings(Keyed):
    """How to check: the options of the command line, by their names."""

    seed: Seed = Field(None, description="Of what is drawn: an integer, or random.")
    points: Positive = Field(1, description="How many points are tried.")
    point: Natural = Field(0, description="Only this point.")
    delta: Step = Field("auto", description="The perturbation, or auto.")
    method: Literal["auto", "complex-step", "richardson", "central", "forward"] = Field(
        "auto", description="Difference."
    )
    mode: Literal["auto", "full", "nodes", "directional", "sampled"] = Field("auto", description="What is compared.")
    dtype: Literal["float64", "model"] = Field("float64", description="The precision of both sides.")
    forward: Literal["internal", "onnxruntime"] | None = Field(
        None, description="Who evaluates the numerical side; internal: alone, not held against onnxruntime."
    )
    compat: Literal["tf"] | None = Field(None, description="tf: one central difference with delta 1e-3.")
    rtol: PerTensorNumber = Field(None, description="Relative tolerance, or one for each tensor by name.")
    atol: PerTensorNumber = Field(None, description="Absolute tolerance, or one for each tensor by name.")
    max_entries: Positive = Field(4096, description="Entries of a sampled check.")
    max_inconclusive: float = Field(0.02, ge=0, le=1, description="Fraction of entries that may stay inconclusive.")
    val_range: PerTensorRange = Field(None, description="[low, high] of what is drawn, or one for each tensor by name.")
    x_shape: PerTensorShape = Field(None, description="Shapes by name of tensor.")
    dims: dict[Name, Natural] = Field({}, description="Sizes by the name that shapes use.")
    params: bool = Field(False, description="The weights as x too.")
    param: Names = Field((), description="Constants of any role as x too, by name or glob; !GLOB leaves out.")
    coloring: bool = Field(True, description="Perturb independent entries together.")
    straight_through: bool = Field(False, description="Quantizers, and what rounds by hand, do not round.")
    second_order: bool = Field(False, description="Check the gradient's own gradient too.")
    grad: dict[Name, Name] = Field({}, description="The tensor that claims to be the gradient by x, or @FILE[:KEY].")
    grad_model: Name | None = Field(None, description="Another model that computes the gradients to check.")
    test_data: str = Field("auto", description="auto, none, or a folder of ONNX test data.")
    show: Natural = Field(3, description="Entries that are printed.")
    timeout: float | None = Field(None, gt=0, description="Seconds.")


class Defaults(Settings):
    """Settings of every check that does not say otherwise."""

    expect: Expect | None = Field(None, description="An outcome that is no failure of any check; others may pass.")


class CheckSpec(Settings):
    """One check: the gradient of y with respect to x."""

    name: Name | None = Field(None, description="Its name; default that of the graph or model.")
    graph: Name | None = Field(None, description="A graph of this file; default the only one.")
    model: Name | None = Field(None, description="An ONNX file, relative to this one.")
    x: Names = Field(None, description="Differentiate by these.")
    y: Names = Field(None, description="Differentiate these.")
    init_targets: Names = Field(None, description="Groups of `init` to run first.")
    x_init_value: AnyOf = Field(None, description="Value of the only x, or values by name.")
    extra_feed_dict: dict[Name, Init] = Field({}, description="Values of any tensors, fixed during the check.")
    expect: Expect | None = Field(None, description="A known outcome.")


class ModelSpec(Settings):
    """One entry of a zoo manifest."""

    path: Name = Field(description="An ONNX file, a folder, a pattern or a URL.")
    name: Name | None = Field(None, description="Its name in the results.")
    sha256: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")] | None = Field(None, description="Of the file.")
    x: Names = Field(None, description="Differentiate by these.")
    y: Names = Field(None, description="Differentiate these.")
    expect: Expect | None = Field(None, description="A known outcome.")


class SpecFile(Keyed):
    """A gradcheck spec: graphs and checks, checks of ONNX files beside it, or a manifest of models."""

    gradcheck: Literal[1] = Field(description="The version of this format; the first key.")
    defaults: Defaults = Field(
        default_factory=lambda: Defaults.model_validate({}),
        description="Settings of every check that does not say otherwise.",
    )
    graphs: dict[Name, GraphSpec] = Field({}, description="Models by name.")
    ops: dict[Name, OperatorSpec] = Field({}, description="Operators of one's own, as domain.Name.")
    init: dict[Name, dict[Name, Init]] = Field({}, description="Groups of values: {from: file.npz}, or tensor: init.")
    checks: list[CheckSpec] = Field([], description="What is checked; without it, each graph with its own targets.")
    models: list[ModelSpec] = Field([], description="A zoo manifest.")


for _model in (NodeSpec, Subgraph, GraphSpec, OperatorSpec, SpecFile):
    _model.model_rebuild()


def spec_schema() -> dict[str, Any]:
    """The JSON Schema (draft-07) of a spec file."""
    schema = SpecFile.model_json_schema(ref_template="#/definitions/{model}")
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "gradcheck spec"}
    definitions = {name: _draft_07(part) for name, part in schema.pop("$defs").items()}
    return {
        **head,
        **_draft_07({k: v for k, v in schema.items() if k != "title"}),
        "definitions": definitions,
    }


def _draft_07(part: Any) -> Any:
    """A part of a schema without what draft-07 and editors stumble over."""
    if isinstance(part, list):
        return [_draft_07(each) for each in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:  # draft-07 ignores whatever stands beside a reference
        return {"$ref": part["$ref"]} if len(part) == 1 else {"allOf": [{"$ref": part["$ref"]}], **_rest(part)}
    kept = {key: _draft_07(value) for key, value in part.items() if not _is_noise(key, value)}
    if "oneOf" in kept:  # an integer is a number too: branches may overlap
        kept["anyOf"] = kept.pop("oneOf")
    return kept


def _rest(part: dict[str, Any]) -> dict[str, Any]:
    return {key: _draft_07(value) for key, value in part.items() if key not in ("$ref", "default")}


def _is_noise(key: str, value: Any) -> bool:
    return (key == "title" and isinstance(value, str)) or (key == "default" and value in (None, {}, []))
