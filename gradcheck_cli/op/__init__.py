"""One operator is one `Op` record: its forward kernel, its gradient rule, and its rules for stacks, sparsity and boxes.

A kernel takes operands (arrays, positional) and metadata (keyword); its keyword signature is the operator's schema.
`bind` turns a node's attributes and static inputs into that metadata, once, with axes counted from the end.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from inspect import Parameter
from keyword import iskeyword
from typing import Any, Literal, TypeAlias, TypeVar

import ml_dtypes
import numpy as np
from msgspec import Struct

from gradcheck_cli.errors import ModelError, UnsupportedError, counted, did_you_mean, respelled
from gradcheck_cli.graph import Array, Graph, Node, is_inexact
from gradcheck_cli.graph.containers import CONTAINERS, described
from gradcheck_cli.graph.memory import require, require_broadcast
from gradcheck_cli.op import batching as rules
from gradcheck_cli.op.batching import BatchingRule, Kernel, Nest, OutlineRule, elementwise, loop, shape_only, spread_out
from gradcheck_cli.op.box_rules import BoxRule, same_place
from gradcheck_cli.op.sparsity import SparsityRule

Made = TypeVar("Made", bound=Kernel)
Vjp: TypeAlias = Callable[..., Any]
Metadata: TypeAlias = Mapping[str, Any]
Cut: TypeAlias = Literal["", "rounds", "steps", "decides", "sizes", "cancels"]  # why no derivative; "": there is one
Cuts: TypeAlias = Callable[[Metadata, int, int], Cut]  # of attributes, index of an input, index of an output
Ops: TypeAlias = Mapping[tuple[str, str], "Op"]
Moves: TypeAlias = Literal["", "all", "joined", "part", "picked", "selected", "within", "either"]
Sides: TypeAlias = Literal["", "sign", "smooth sign", "bounds", "middle", "condition", "winners", "compares"]
Work: TypeAlias = float | Literal["picks", "products", "taps", "spread taps", "maxima"] | Callable[..., float]
SUPPLIED = ("n_outputs", "outputs", "rng", "tape")  # keywords that the tape supplies, never a node
DTYPES: Mapping[int, np.dtype[Any]] = {  # ONNX's enumeration TensorProto.DataType
    number: np.dtype(name)
    for number, name in [
        (1, np.float32), (2, np.uint8), (3, np.int8), (4, np.uint16), (5, np.int16), (6, np.int32), (7, np.int64),
        (8, object), (9, np.bool_), (10, np.float16), (11, np.float64), (12, np.uint32), (13, np.uint64),
        (14, np.complex64), (15, np.complex128), (16, ml_dtypes.bfloat16), (17, ml_dtypes.float8_e4m3fn),
        (18, ml_dtypes.float8_e4m3fnuz), (19, ml_dtypes.float8_e5m2), (20, ml_dtypes.float8_e5m2fnuz),
        (21, ml_dtypes.uint4), (22, ml_dtypes.int4), (23, ml_dtypes.float4_e2m1fn), (24, ml_dtypes.float8_e8m0fnu),
        (25, ml_dtypes.uint2), (26, ml_dtypes.int2), (27, ml_dtypes.float6_e2m3fn), (28, ml_dtypes.float6_e3m2fn),
    ]
}  # fmt: skip
_DTYPES = ("to", "dtype", "output_dtype", "output_datatype", "softmax_precision", "stash_type")
_IGNORED = ("stash_type", "precision")  # attributes: the dtype of inner computations is chosen by the run
_OUTSIDE: Mapping[str, str] = {  # onnxruntime's own operators that are left out, without com.microsoft, by reason
    "PyTorch runs it, outside of the model; its outputs can be fed":
        "YieldOp PythonOp PythonOpGrad TritonOp org.pytorch.aten.ATen ExternalGradient",
    "it exchanges data with other processes; its outputs can be fed":
        "AdasumAllReduce MegatronF MegatronG NcclAllGather NcclAllReduce NcclReduceScatter RecordEvent Recv Send WaitEvent",
    "it stores an activation in fewer bits, in a format of its runtime": " ".join(
        f"Gist{name}{side}" for name in ("Binarize", "Pack1", "Pack8", "Pack16", "PackMsfp15")
        for side in ("Encoder", "Decoder")
    ),
    "it writes a message of TensorBoard": "SummaryHistogram SummaryMerge SummaryScalar SummaryText",
    "it runs a model in a loop of its own, to generate text; its outputs can be fed":
        "BeamSearch GreedySearch Sampling WhisperBeamSearch",
    "its layout is that of the processor that the file was optimized on, which no file says; optimize it to the level "
    "'extended', not 'all'":
        "nchwc.AveragePool nchwc.Conv nchwc.GlobalAveragePool nchwc.GlobalMaxPool nchwc.MaxPool nchwc.ReorderInput "
        "nchwc.ReorderOutput nchwc.Upsample",
    "it is defined by a kernel for GPUs alone": "LambOptimizer",
}  # fmt: skip
_EMPTY, _ANY_NUMBER = inspect.Parameter.empty, inspect.Parameter.VAR_POSITIONAL


WEIGHT, STATISTIC, QUANTIZATION, CONSTANT = "weight", "statistic", "quantization", "constant"
OperandRoles: TypeAlias = Mapping[str, tuple[int, ...]]  # role of constants -> the operands that have it


class Interval(Struct, frozen=True):
    """Numbers to draw an operand from, `low` to `high`, inside of a domain that ends at `least` and `most`.

    Numbers may be scaled as long as they stay inside; without ends the domain is the interval.  An operand may be any
    number where operand `unless_whole` is a constant of integers from 0 on: x ** 2 is defined everywhere.
    """

    low: float
    high: float
    least: float | None = None
    most: float | None = None
    unless_whole: int | None = None

    @staticmethod
    def inside(least: float, most: float) -> Interval:
        """Numbers inside of a domain, away from its ends: of -1 to 1 where it has some, else near its end next to 0."""
        margin = min(0.1, (most - least) / 20)
        first, last = least + margin, most - margin
        low, high = max(first, -1.0), min(last, 1.0)
        if high - low < min(0.5, last - first):
            low, high = (first, min(first + 1, last)) if first > -1 else (max(last - 1, first), last)
        return Interval(low, high, least, most)

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of its domain."""
        return self.low if self.least is None else self.least, self.high if self.most is None else self.most


class Along(Struct, frozen=True):
    """Integers of an operand that count along an axis of operand `of`: indices, or `lengths` up to all of it.

    axis    which one, or the attribute that says it, whose default is 0; None: as many as the operand itself says.
    least   the number of indices where the shape of that operand is not known; None: nothing is said then.
    """

    axis: int | str | None = 0
    of: int = 0
    lengths: bool = False
    least: int | None = None


POSITIVE = Interval(0.1, 1.0, 0.0, np.inf)
NONZERO = Interval(0.5, 1.5, 0.0, np.inf)  # far from 0, on one side of it
INSIDE_ONE = Interval(-0.9, 0.9, -1.0, 1.0)
Valid: TypeAlias = Mapping[int, Interval] | Callable[[int, int], Interval | None]  # operand, number of inputs
Integers: TypeAlias = Mapping[int, tuple[int, int] | Along]  # operand -> both ends included


@dataclass(frozen=True)
class Op:
    """An operator.

    forward   `(*arrays, **metadata) -> array`, or a tuple of arrays if `many`; ONNX semantics at one point.  If
              `composed` it is written in symbolic functions of `Var`s and records the nodes it is made of.
    vjp       `(ct, ans, *primals, **metadata) -> one cotangent or None per primal`; `ct` and `ans` are tuples if `many`
              (zeros for a result that y does not need).  None: no rule (composed: needless).  `zero`: nothing flows.
    batching  the batching rule: runs the kernel for a stack of probes (`gradcheck_cli/op/batching.py`).
    outline   the outline rule: shape and dtype of a result, without numbers (there too).  None: it has to be computed.
    static    metadata that ONNX passes as an input: keyword -> index of that input.
    linear    groups of operands, or a function of attributes that gives them; the operator is a sum over the groups of
              something linear in each operand of the group.  "each": every operand is a group of its own.
    analytic  the kernel takes complex operands and decides on their real parts, so that a complex step goes through.
    step      the kernel's analytic continuation, if `forward` does something else on complex operands (Abs, Max).
    sparsity  the sparsity rule: the operands' entries that an entry of a result depends on (`op/sparsity.py`).  None:
              the entries at the same place if its batching rule is `elementwise`, else all entries.
    boxes     the box rule: the box of a result that a box of an operand reaches (`gradcheck_cli/op/box_rules.py`).
              None: the same box if its batching rule is `elementwise`; else stacks are made whole.
    branch    `(*arrays, **metadata) -> array`: the active piece of a piecewise operator, entry by entry.
    ordered   the operator compares values, so that it has no meaning for complex numbers.
    normwise  rounding errors are relative to the largest entry of a result, not to each: a fast transform.
    backward_stable  its result is exact for operands moved by a rounding, not for the given ones: a factorization.
    stored    the operator works on the bits of numbers: its kernel gets the dtypes that the model names, not wider ones.
    widens    an operand in a narrower floating-point dtype than the others gives the same result.
    containers  the operator on sequences, optionals or maps, in symbolic functions of what is inside.  None: tensors only.
    cuts      `(attributes, operand, output) -> Cut`: the reason why an output has no derivative by an operand, by nature
              (`rounding`, `deciding`).  None: there is none by any operand if the rule is `zero`, else by static ones.
    inner     the graph that it is composed of, if it is one; `inside`: rules for a kernel of many steps (`Nest`).
    bind      `(metadata, *arrays) -> metadata`: makes it explicit and independent of leading axes; reads shapes only.
              None: `axis` and `axes` count from the end; as the model has them for a foreign kernel without such rules.

    What a check asks of it besides; one that says nothing is an ordinary operator.  Of a composed one `sides`, `flat`
    and `squashes` say what the node as a whole is, the rest what its parts do not show.

    valid     operand -> the interval that numbers for it are drawn from.
    integers  operand -> the integers that may be drawn for it, or how they follow from another operand.
    roles     operands in which a constant is a weight, a statistic or part of a quantization: `trained(1, 2)`.
    like      the operand whose dtype the first result has; None: a dtype of its own.
    integral  the outputs that are integers or truth values by nature.
    sized_by  operands whose values decide on the shape of a result, beside the static ones and the shapes of all.  None:
              the rank alone does.  "first": the shape of operand 0 alone.
    moves     how a result has entries of operand 0 as they are: "all" of them, in another layout; a "part" that attributes
              name; those that indices "picked" or that data "selected"; all "within" the same range.  Of several
              operands: all of them "joined", or "either" of two.
    same_axes  the axes of the result are those of operand 0, as they are of any elementwise operator.
    space     it reads the axes of operand 0 from the third on as those of an image: in "windows" or "resized" as a whole.
    channels  the axis of its result along which a layer's units lie: 1 or -1.
    layer     it is a layer where it has weights among its operands.  None: unless it is elementwise or linear in each.
    bends     groups of operands: it is not linear in data that are all of one, beside what `linear` says.
    squashes  it brings what it reads into a bounded range, as probabilities: a loss may undo it.
    flat      its result is constant where operand 0 is not positive ("zero"), where 0 is the "larger" operand, beyond its
              bounds ("bounded") or "below" the lower one, where a comparison inside says so ("gated").
    slope     `(result, **metadata) -> slope`, of a smooth function that saturates.
    sides     the branches that points should take: by "sign" of operand 0, with one slope at 0 if it is a "smooth sign",
              by the "bounds" of a Clip, the "middle" of a Shrink, a "condition", the "winners" among the operands; none,
              but values that it "compares".
    straight  `--straight-through` passes a gradient through what it "rounds" or "quantizes".
    cost      operations of an entry, beside an ordinary one's.  It reads no more than it "picks"; it sums "products" along
              the last axis of operand 0, or the "taps" of a kernel, which are "spread" if operand 0 has fewer entries than
              the result; it looks for "maxima" in windows.  Of a run, as a function of the operands' shapes.
    elsewhere  how onnxruntime rounds inside: relative "to one", by "rough" formulas of its own, in "narrow" numbers, or
              after each term of a running sum, "one by one".
    elsewhere_off  `(unit, result, *inputs, **attributes)`: the error of a formula of its own there; a rounding is `unit`.
    does      the sentence that `gradcheck ops` prints of it, where its kernel has no docstring.

    The declarations `batching`, `linear`, `analytic`, `step`, `sparsity` and `boxes` of a foreign operator are tried in a
    check, at the values that the kernel has there; a declaration that does not hold is ignored.
    """

    name: str
    forward: Kernel
    vjp: Vjp | None = None
    batching: BatchingRule = loop
    domain: str = ""
    static: Mapping[str, int] = field(default_factory=dict)
    linear: rules.Groups | Callable[[Metadata], rules.Groups] = ()
    composed: bool = False
    analytic: bool = True
    step: Kernel | None = None
    sparsity: SparsityRule | None = None
    outline: OutlineRule | None = None
    boxes: BoxRule | None = None
    branch: Kernel | None = None
    bind: Callable[..., dict[str, Any]] | None = None
    inside: Nest | None = None
    many: bool = False
    ordered: bool = False
    normwise: bool = False
    backward_stable: bool = False
    stored: bool = False
    widens: bool = False
    containers: Kernel | None = None
    cuts: Cuts | None = None
    inner: Graph | None = None
    valid: Valid = field(default_factory=dict)
    integers: Integers = field(default_factory=dict)
    roles: OperandRoles = field(default_factory=dict)
    like: int | None = 0
    integral: tuple[int, ...] = ()
    sized_by: tuple[int, ...] | Literal["first"] | None = ()
    moves: Moves = ""
    same_axes: bool = False
    space: Literal["", "windows", "resized"] = ""
    channels: Literal[1, -1] | None = None
    layer: bool | None = None
    bends: tuple[tuple[int, ...], ...] = ()
    squashes: bool = False
    flat: Literal["", "zero", "larger", "bounded", "below", "gated"] = ""
    slope: Kernel | None = None
    sides: Sides = ""
    straight: Literal["", "rounds", "quantizes"] = ""
    cost: Work = 1.0
    elsewhere: Literal["", "to one", "rough", "narrow", "one by one"] = ""
    elsewhere_off: Callable[..., float] | None = None
    does: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """The key in the operator table."""
        return self.domain, self.name

    @property
    def full_name(self) -> str:
        """domain.Name, or the name alone for ONNX's own."""
        return f"{self.domain}.{self.name}" if self.domain else self.name

    @property
    def box_rule(self) -> BoxRule | None:
        """The box rule that is given or follows from the batching rule; None if there is none."""
        return self.boxes or (same_place if self.batching is elementwise and not self.many else None)

    @property
    def differentiable(self) -> bool:
        """True if a derivative can go through it: by its rule, or by the nodes that it is composed of."""
        return self.vjp is not None or self.composed

    def interval(self, operand: int, count: int) -> Interval | None:
        """The interval that an operand, of `count` inputs, is drawn from; None for any number."""
        return self.valid(operand, count) if callable(self.valid) else self.valid.get(operand)

    def lays_out(self, operand: int) -> bool:
        """True if its result is entries of an operand alone, in another layout or picked by indices."""
        moved = self.moves in ("all", "joined", "part", "picked")
        return moved and (operand == 0 or self.moves == "joined")

    def keeps_range(self, operand: int) -> bool:
        """True if its result has the range of an operand."""
        kept = self.moves in ("all", "joined", "part", "within", "either")
        return kept and (operand == 0 or self.moves in ("joined", "either"))

    @property
    def is_layer(self) -> bool:
        """True if the operator is a layer where weights are among its operands."""
        return (self.batching is not elementwise and self.linear != "each") if self.layer is None else self.layer

    @property
    def takes_part(self) -> bool:
        """True if its result is made of some entries of operand 0."""
        return self.moves in ("part", "picked", "selected")

    def cut(self, attrs: Metadata, operand: int, output: int) -> Cut:
        """The reason why an output has no derivative by an input, by nature; "" if it has one."""
        if operand in self.static.values():
            return "sizes"
        if self.cuts is not None:
            return self.cuts(attrs, operand, output)
        return ("sizes" if self.batching is shape_only else "decides") if self.vjp is zero else ""

    @cached_property
    def signature(self) -> Signature:
        """The operands and keywords of its kernel."""
        return Signature(self.forward, self.static)

    @cached_property
    def on_containers(self) -> Op:
        """The operator on sequences, optionals and maps."""
        return replace(self, forward=self.containers or self.forward, composed=True, vjp=None, batching=loop)

    @cached_property
    def outlined(self) -> Op | None:
        """The operator that gives the outline of its result; None without an outline rule."""
        return self.outline and replace(self, forward=lambda *xs, by=self.outline, **how: by(self.forward, xs, how))

    @property
    def schema(self) -> Mapping[str, Any]:
        """Metadata keyword -> default; `inspect.Parameter.empty` if it is required."""
        return self.signature.schema


class Signature:
    """The operands and keywords of a kernel, read off its Python signature once for each operator.

    static    keyword -> index of the node's input that gives it
    schema    keyword -> default; `inspect.Parameter.empty` if it is required
    given     keywords that a node may give
    needed    keywords that a node must give
    supplied  keywords that the tape supplies
    dtypes    keywords that name a dtype
    """

    def __init__(self, kernel: Callable[..., Any], static: Mapping[str, int]) -> None:
        self.kernel, self.static = kernel, tuple(static.items())
        self.schema = {p.name: p.default for p in self._parameters if p.kind is p.KEYWORD_ONLY}
        self.given = frozenset(self.schema).difference(SUPPLIED)
        self.needed = tuple(k for k, v in self.schema.items() if v is _EMPTY and k in self.given)
        self.supplied = tuple(k for k in SUPPLIED if k in self.schema)
        self.dtypes = tuple(k for k in _DTYPES if k in self.schema)
        self._inputs: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def inputs(self, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """For a node with `count` inputs: the positions of its operands, and those of the inputs that are required."""
        if count not in self._inputs:
            places = sorted({*range(count + len(self.static) + len(self._parameters))} - {*dict(self.static).values()})
            positions = tuple(i for i in places if i < count)
            self._inputs[count] = positions, tuple(places[number] for number in self._required(len(positions)))
        return self._inputs[count]

    @cached_property
    def most(self) -> float:
        """The largest number of inputs of a node."""
        kinds = [p.kind for p in self._parameters if p.kind is not p.KEYWORD_ONLY]
        return np.inf if not kinds or _ANY_NUMBER in kinds else len(kinds) + len(self.static)

    @cached_property
    def _parameters(self) -> tuple[inspect.Parameter, ...]:
        if isinstance(self.kernel, np.ufunc):  # its keywords are NumPy's, no attributes
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            return tuple(inspect.Parameter(f"x{i}", kind) for i in range(self.kernel.nin))
        return tuple(inspect.signature(self.kernel).parameters.values())

    def _required(self, count: int) -> list[int]:
        """Positions of the operands that a kernel requires: without a default, and not declared `... | None`."""
        named = [p for p in self._parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        needed = [i for i, p in enumerate(named) if p.default is _EMPTY and "None" not in str(p.annotation)]
        if any(p.kind is p.VAR_POSITIONAL and "None" not in str(p.annotation) for p in self._parameters):
            needed.extend(range(len(named), count))
        return needed


def attributes_of(kernel: Kernel, *without: str) -> Callable[[Made], Made]:
    """Decorates a kernel that hands `**attributes` on to another one: it takes all attributes of that, but for some."""

    def extended(function: Made) -> Made:
        own = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
        known = {*without, *(p.name for p in own)}
        handed = (p for p in inspect.signature(kernel).parameters.values() if p.kind is p.KEYWORD_ONLY)
        more = [p for p in handed if p.name not in known]
        function.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
        return function

    return extended


def zero(ct: Any, ans: Any, *primals: Any, **metadata: Any) -> tuple[None, ...]:
    """The rule of an operator whose derivative is zero wherever it exists (Floor, Sign, comparisons)."""
    return (None,) * len(primals)


def always(cut: Cut) -> Cuts:
    """`cuts` of an operator whose result has no derivative by any operand."""
    return lambda attrs, operand, output: cut


def deciding(*operands: int, cut: Cut = "decides") -> Cuts:
    """`cuts` of an operator that looks up, selects or is sized by some of its operands."""
    return lambda attrs, operand, output: cut if operand in operands else ""


def counting(*outputs: int, cut: Cut = "decides") -> Cuts:
    """`cuts` of an operator some of whose outputs are integers or flags."""
    return lambda attrs, operand, output: cut if output in outputs else ""


rounding = always("rounds")  # the result is the operand, rounded, and later arithmetic computes with it
stepping = always("steps")  # functions with steps, such as a tree, and sampling
rounding_of = partial(deciding, cut="rounds")  # some operands are rounded
rounding_into = partial(counting, cut="rounds")  # some outputs are rounded: those of a quantizer


def narrowing(attrs: Metadata, operand: int, output: int) -> Cut:
    """`cuts` of a cast: to integers, and to floating-point numbers of 8 bits and fewer, it rounds."""
    dtype = DTYPES.get(attrs.get("to", 0))
    return "rounds" if dtype is not None and not is_inexact(dtype) else ""


def either(*words: Cuts) -> Cuts:
    """`cuts` that give the first answer of several others."""
    return lambda attrs, operand, output: next((cut for word in words if (cut := word(attrs, operand, output))), "")


def squares(kinds: int) -> Valid:
    """`valid` of an optimizer: behind two numbers as many tensors of each kind, the last of which are sums of squares."""
    accumulated = Interval(0.1, 1.0)
    return lambda operand, count: accumulated if operand >= 2 + (count - 2) * (kinds - 1) // kinds else None


def trained(*operands: int) -> dict[str, tuple[int, ...]]:
    """`roles` of operands that are weights if they are constants."""
    return {WEIGHT: operands}


def statistics(*operands: int) -> dict[str, tuple[int, ...]]:
    """`roles` of operands that are statistics of data."""
    return {STATISTIC: operands}


def quantized(*operands: int) -> dict[str, tuple[int, ...]]:
    """`roles` of operands that are scales and zero points of a quantization."""
    return {QUANTIZATION: operands}


def unary(name: str, forward: Kernel, vjp: Vjp | None = None, **more: Any) -> Op:
    """An elementwise operator of one operand; its rule gives one cotangent.  Without a rule, its derivative is zero."""
    rule = zero if vjp is None else lambda ct, y, x, **metadata: (vjp(ct, y, x, **metadata),)
    return Op(name, forward, rule, elementwise, **{"outline": spread_out, **more})


def binary(name: str, forward: Kernel, vjp: Vjp | None = None, **more: Any) -> Op:
    """An elementwise operator of operands that broadcast.  Without a rule, its derivative is zero."""
    return Op(name, forward, vjp or zero, elementwise, **{"outline": spread_out, **more})


def composite(name: str, forward: Kernel, **more: Any) -> Op:
    """An operator written in symbolic functions: it needs no gradient rule and no batching rule."""
    return Op(name, forward, composed=True, **more)


def on_containers(name: str, forward: Kernel, **more: Any) -> Op:
    """An operator on sequences, optionals or maps, written in symbolic functions."""
    return composite(name, forward, containers=forward, bind=as_given, **more)


def table(*families: Sequence[Op]) -> dict[tuple[str, str], Op]:
    """The operators by (domain, name)."""
    return {op.key: op for family in families for op in family}


UNKNOWN = Op("", zero)


def operator_of(ops: Ops, node: Node) -> Op:
    """The operator of a node; `UNKNOWN`, without any facts, if it is not in the table."""
    return ops.get(node.key, UNKNOWN)


def for_operands(op: Op, operands: Sequence[Any], where: Callable[[], str]) -> Op:
    """The operator in its form for these operands; ModelError for a container if it takes tensors only."""
    other = next(((i, x) for i, x in enumerate(operands) if isinstance(x, CONTAINERS)), None)
    if other is None:
        return op
    if op.containers is None:
        raise ModelError(f"{where()} takes tensors; its input {other[0]} is {described(other[1])}")
    return op.on_containers


def fitting(number: Any, dtype: np.dtype[Any] | None) -> np.dtype[Any] | None:
    """The dtype of a Python number beside a tensor of a dtype; None for the number's own."""
    if dtype is None or isinstance(number, np.ndarray | np.generic):
        return None
    return np.result_type(dtype, np.complex64) if isinstance(number, complex) else dtype


def no_forward(op: str, domain: str, ops: Ops, where: str) -> UnsupportedError:
    """The error for an operator that is not in the table; `where` names the node that uses it."""
    full = f"{domain}.{op}" if domain else op
    own = full.removeprefix("com.microsoft.")
    outside = (f": {reason}" for reason, names in _OUTSIDE.items() if domain and own in names.split())
    reason = next(outside, "")
    meant = next((name for d, name in ops if d == domain and respelled(op, name)), "")
    hint = f". Did you mean {meant!r}?" if meant and not reason else ""
    return UnsupportedError(f"unknown operator {full!r} ({where}){reason or hint}", code="GC502", operators=[full])


def bind(
    op: Op, attrs: Metadata, inputs: Sequence[Array | None], *, cast: Callable[[Any], Any], supplied: Metadata
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Positions of the operands among `inputs`, and the metadata for the kernel.

    `cast` maps a dtype of the model to the dtype to compute in; `supplied` are values that a kernel may ask the tape
    for: the number of outputs that are used, a random generator.
    """
    signature = op.signature
    metadata = _attributes(op, attrs) if attrs else {}
    for keyword, index in signature.static:
        if index < len(inputs) and (value := inputs[index]) is not None:
            require(64.0 * value.size, f"{keyword!r} as a list of {value.size:,} numbers")
            metadata[keyword] = value.item() if value.ndim == 0 else tuple(value.ravel().tolist())
    for keyword in signature.dtypes:
        _settle_dtype(op, keyword, metadata, cast)
    if missing := [k for k in signature.needed if k not in metadata]:
        raise ModelError(f"{op.name} needs {missing[0]!r}, which is missing")
    metadata.update((k, supplied[k]) for k in signature.supplied if k in supplied)
    if len(inputs) > (n := signature.most):
        raise ModelError(f"it takes {counted(n, 'input')} at most, and {len(inputs)} are given")
    positions, required = signature.inputs(len(inputs))
    if absent := [i for i in required if i >= len(inputs) or inputs[i] is None]:
        raise ModelError(f"{op.name} needs its input {absent[0]}, which is left out")
    operands = inputs if len(positions) == len(inputs) else [inputs[i] for i in positions]
    if op.batching is elementwise and len(operands) > 1:
        require_broadcast(operands)
    alone = op.batching is loop and not (op.outline or op.sparsity or op.boxes or rules.is_ours(op.forward))
    return positions, (op.bind or (as_given if alone else negative_axes))(metadata, *operands)


def _attributes(op: Op, attrs: Metadata) -> dict[str, Any]:
    """A node's attributes as keywords; UnsupportedError for one that the operator does not have."""
    given = op.signature.given
    metadata = {f"{k}_" if iskeyword(k) else k: v for k, v in attrs.items()}  # an optimizer's `lambda`
    if given.issuperset(metadata):
        return metadata
    unknown = [k for k in metadata if k not in given and k not in _IGNORED]
    if unknown:
        known = [k for k in op.schema if k in given and k not in op.static]
        hint = did_you_mean(unknown[0], known) or f" It takes {', '.join(known) or 'none'}."
        raise UnsupportedError(f"{op.name} has no attribute {unknown[0]!r}.{hint}")
    return {k: v for k, v in metadata.items() if k in given}


def _settle_dtype(op: Op, keyword: str, metadata: dict[str, Any], cast: Callable[[Any], np.dtype[Any]]) -> None:
    """Replaces the number of a dtype, or the default for it, by the dtype to compute in."""
    given = metadata.pop(keyword, None)
    if given is None or given == 0:  # 0 is UNDEFINED: the default holds
        given = op.schema[keyword]
    if given is not None and given is not Parameter.empty:
        dtype = _dtype(given)
        metadata[keyword] = dtype if op.stored else cast(dtype)


def _dtype(value: Any) -> np.dtype[Any]:
    if isinstance(value, np.dtype | type):
        return np.dtype(value)
    if value not in DTYPES:
        raise UnsupportedError(f"dtype number {value} is not known", code="GC503")
    return DTYPES[value]


def require_known(name: str, value: Any, known: Collection[Any], error: type[Exception] = ValueError) -> None:
    """Raises an error that says what is known, unless the value of an attribute is among it."""
    if value not in known:
        raise error(f"{name} is {value!r}; known are {', '.join(map(str, known))}")


def negative_axes(metadata: dict[str, Any], *operands: Array | None) -> dict[str, Any]:
    """Metadata with `axis` and `axes`, which ONNX counts from the front of operand 0, counted from its end."""
    if not metadata:
        return metadata
    first = operands[0] if operands else None
    rank = first.ndim if isinstance(first, np.ndarray) else 0
    if (axes := metadata.get("axes")) is not None:
        metadata["axes"] = tuple(from_end(a, rank) for a in (axes if isinstance(axes, tuple) else (axes,)))
    if isinstance(metadata.get("axis"), int):
        metadata["axis"] = from_end(metadata["axis"], rank)
    return metadata


def as_given(metadata: dict[str, Any], *operands: Any) -> dict[str, Any]:
    """The `bind` of an operator whose axes are not those of its first operand: nothing is changed."""
    return metadata


def with_axis(default: int) -> Callable[..., dict[str, Any]]:
    """The `bind` of an operator whose `axis` has a default that ONNX counts from the front."""
    return lambda metadata, *operands: negative_axes({"axis": default, **metadata}, *operands)


def from_end(axis: int, rank: int) -> int:
    """An axis as a negative number; ModelError if it is out of range."""
    if not -rank <= axis < max(rank, 1):
        raise ModelError(f"axis {axis} is out of range for {counted(rank, 'dimension')}")
    return axis - rank if axis >= 0 and rank else axis
