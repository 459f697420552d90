"""Random models: a plan of a few uses of operators, the model that it makes, and the smaller plans next to it.

A plan is small plain data.  Its steps name values on the axes of a lattice, as proofs have them, and tensors before them
that they read.  Where a tensor does not fit, entries of it are picked by indices, some of them twice, and brought into the
range that an operator is defined on.  So any part of a plan can be taken away or made simpler, and a model comes out.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np
import onnx
from msgspec import Struct, structs
from onnx import defs, helper, numpy_helper

from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.errors import GradcheckError, UsageError, did_you_mean
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Interval
from gradcheck_cli.ops import OPS
from gradcheck_cli.reference.exact import Floats, Input, Lattice, Shape, Use, Values
from gradcheck_cli.reference.lattices import LATTICES, POOL, REDUCED, SIZES, ints, pool, reduction, unary
from gradcheck_cli.reference.suite import Sample, in_branch, in_loop, nodes_in

OPSETS = (7, 9, 11, 13, 15, 17, 18, 21)  # a model takes the lowest from a drawn one on that has its operators
USUAL_OPSETS = (17, 18, 18)  # drawn more often: other engines know less of old ones, and of float64
DTYPES = ("float32", "float32", "float64")
NEWEST = 24
STEPS = (1, 1, 1, 2, 2, 3, 4)  # nodes of a plan, with the odds of each number
FITS = 6  # uses that are drawn until one fits a tensor that is there
DRAWS = 40  # choices that are drawn until one makes a use
USUAL = (0.0, 0.5, 0.8)  # shares of first values in a choice
EMPTY = 0.03  # share of choices with a dimension of 0
LARGEST = 512  # entries of a tensor
ONES = (1, 1, 1)  # strides that are not given
USUAL_RANGE = Interval(-1.0, 1.0)
READS = 0.85, 0.3  # odds that the first operand, and each other one, is a tensor from before
KEPT = 0.15  # share of entries of value 0 among those drawn, in the models that have some
FLOWS = ("If", "Loop", "Scan")  # control flow that a step may be inside of
INSIDE = 0.08  # share of steps that are
FLOW_OPSET = 11  # before it the standard has Scan with a batch, and other rules of what is seen in a branch
SCALES = (0.75, 0.5)  # of the first float operand in a loop: what it carries at first, times one in each turn


class Unbuildable(Exception):
    """Reason for which a plan makes no model."""


class PlanStep(Struct, frozen=True):
    """One use of an operator: places on the axes of its lattice, and the tensors that its float operands are.

    sources  tensors as (step, slot): slot 0 and more is an output of a step before, below 0 an operand of it; None is a
             new input of the model.
    dropped  attributes that are left out, so that they have their defaults.
    fed      operands of constants are inputs of the model.
    flow     the control flow that the node is inside of: a branch, or the body of a loop.
    seed     of the numbers of its inputs, which so stay as they are when other steps are taken away.
    """

    operator: str
    lattice: int
    places: Mapping[str, int]
    sources: tuple[tuple[int, int] | None, ...]
    dropped: tuple[str, ...] = ()
    fed: bool = False
    seed: int = 0
    flow: str = ""


class ModelPlan(Struct, frozen=True):
    """Steps, the dtype of all floats, the lowest opset, and the seed of the numbers."""

    steps: tuple[PlanStep, ...]
    dtype: str = "float32"
    opset: int = NEWEST
    zeros: bool = False


# Ways of using operators that have no lattice of their own


def gemm(n: int, k: int, m: int, bias: str, **attrs: Any) -> Use:
    shapes: Mapping[str, Shape] = {"scalar": (), "row": (m,), "column": (n, 1), "full": (n, m), "one": (1,)}
    more = [Floats(shapes[bias])] if bias else []
    left, right = Floats((k, n) if attrs["transA"] else (n, k)), Floats((m, k) if attrs["transB"] else (k, m))
    return Use((left, right, *more), attrs)


def batch_norm(channels: int, batch: int, space: Shape, **attrs: Any) -> Use:
    each = Floats((channels,))
    return Use((Floats((batch, channels, *space)), *(each,) * 4), attrs, 3 if attrs["training_mode"] else 1)


def instance_norm(channels: int, batch: int, space: Shape, epsilon: float) -> Use:
    return Use((Floats((batch, channels, *space)), *(Floats((channels,)),) * 2), {"epsilon": epsilon})


def group_norm(channels: int, num_groups: int, batch: int, space: Shape, epsilon: float) -> Use:
    each, attrs = Floats((channels * num_groups,)), {"epsilon": epsilon, "num_groups": num_groups}
    return Use((Floats((batch, channels * num_groups, *space)), each, each), attrs)


def spatial(channels: int, batch: int, space: Shape, **attrs: Any) -> Use:
    return Use((Floats((batch, channels, *space)),), attrs)


def with_axis(shape: Shape, axis: int, **attrs: Any) -> Use | None:
    return Use((Floats(shape),), {"axis": axis, **attrs}) if -len(shape) <= axis < len(shape) else None


def recurrent(
    gates: int, biases: int, steps: int, batch: int, width: int, hidden: int, direction: str, given: str,
    count: int, layout: int, **attrs: Any,
) -> Use:  # fmt: skip
    """A recurrent layer: `given` are the optional operands, up to the last that is there."""
    ways = 2 if direction == "bidirectional" else 1
    first = Floats((batch, ways, hidden) if layout else (ways, batch, hidden))
    optional: Mapping[str, Input] = {
        "bias": Floats((ways, biases * hidden)), "lengths": np.arange(batch, dtype=np.int32) % steps + 1,
        "initial": first, "cell": first, "peepholes": Floats((ways, 3 * hidden)),
    }  # fmt: skip
    last = max((place for place, word in enumerate(optional, 1) if word in given), default=0)
    more = [optional[word] if word in given else None for word in list(optional)[:last]]
    x = Floats((batch, steps, width) if layout else (steps, batch, width))
    weights = Floats((ways, gates * hidden, width)), Floats((ways, gates * hidden, hidden))
    return Use((x, *weights, *more), {"hidden_size": hidden, "direction": direction, "layout": layout, **attrs}, count)


def rnn(**how: Any) -> Use:
    return recurrent(1, 2, **how)


def gru(**how: Any) -> Use:
    return recurrent(3, 6, **how)


def lstm(**how: Any) -> Use:
    return recurrent(4, 8, **how)


def blocks(channels: int, batch: int, size: int, block: int, mode: str) -> Use:
    shape = (batch, channels * block * block, size, size)
    return Use((Floats(shape),), {"blocksize": block, **({"mode": mode} if mode else {})})


def loss(batch: int, classes: int, space: Shape, reduction: str, weights: bool, ignore_index: int | None) -> Use:
    labels = np.asarray(np.arange(batch * prod(space)).reshape(batch, *space) * 2 % classes)
    attrs = {"reduction": reduction, **({} if ignore_index is None else {"ignore_index": ignore_index})}
    return Use((Floats((batch, classes, *space)), labels, *([Floats((classes,))] if weights else [])), attrs)


def grid_sample(batch: int, channels: int, size: int, out: int, **attrs: Any) -> Use:
    return Use((Floats((batch, channels, size, size)), Floats((batch, out, 2, 2))), attrs)


def affine_grid(batch: int, height: int, width: int, align_corners: int) -> Use | None:
    if align_corners and 1 in (height, width):  # the standard does not say where the only point of an axis lies
        return None
    return Use((Floats((batch, 2, 3)), ints(batch, 1, height, width)), {"align_corners": align_corners})


def crop(size: int, width: int, to: int) -> Use:
    return Use((Floats((size, width)), ints(to)), {"axes": (0,)})


def inert(shape: Shape, ratio: bool) -> Use:
    return Use((Floats(shape), *([np.array(0.5, np.float32)] if ratio else [])))


def attention(
    batch: int, heads: int, q: int, k: int, size: int, is_causal: int, mask: bool, scale: float | None
) -> Use:
    more = [Floats((q, k))] if mask else []
    attrs = {"is_causal": is_causal, **({} if scale is None else {"scale": scale})}
    shapes = (batch, heads, q, size), (batch, heads, k, size), (batch, heads, k, size)
    return Use((*map(Floats, shapes), *more), attrs)


_ROWS: Values = {"shape": ((1,), (2,), (3,), (5,), (2, 3), (3, 1), (2, 1, 3)), "axis": (-1, 0, 1, -2)}
_LAYERS: Values = {"channels": (1, 2, 3), "batch": (1, 2), "space": ((2,), (1,), (3,), (2, 2), (1, 3))}
_EPSILON: Values = {"epsilon": (9.999999747378752e-06, 0.1)}
_SHAPED: Values = {"shape": ((1,), (), (2,), (3,), (5,), (2, 3), (2, 1, 3))}
_RECURRENT: Values = {
    "steps": (1, 2, 3), "batch": (1, 2), "width": (1, 2), "hidden": (1, 2, 3),
    "direction": ("forward", "reverse", "bidirectional"),
    "given": ("", "bias", "lengths", "initial", "bias initial", "bias lengths initial"), "count": (1, 2), "layout": (0, 1),
}  # fmt: skip
_LOSS: Values = {"batch": (1, 2, 3), "classes": (1, 2, 3, 5), "space": ((), (2,), (2, 2)),
                 "reduction": ("mean", "sum", "none"), "weights": (False, True), "ignore_index": (None, 0, -1)}  # fmt: skip

MORE: Mapping[str, tuple[Lattice, ...]] = {
    "Gemm": (Lattice({"n": SIZES, "k": SIZES, "m": SIZES, "transA": (0, 1), "transB": (0, 1), "alpha": (1.0, 0.5, -2.0),
                      "beta": (1.0, 0.5, 0.0), "bias": ("", "row", "scalar", "one", "column", "full")}, gemm),),
    "BatchNormalization": (Lattice({**_LAYERS, **_EPSILON, "training_mode": (0, 1)}, batch_norm),),
    "InstanceNormalization": (Lattice({**_LAYERS, **_EPSILON}, instance_norm),),
    "GroupNormalization": (Lattice({**_LAYERS, **_EPSILON, "num_groups": (1, 2, 3)}, group_norm),),
    "LpNormalization": (Lattice({**_ROWS, "p": (2, 1)}, with_axis),),
    "MeanVarianceNormalization": (Lattice({**_LAYERS, "axes": ((0, 2), (0,), (1, 2), (2, 3))}, spatial),),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), (Lattice(_LAYERS, spatial),)),
    "GlobalLpPool": (Lattice({**_LAYERS, "p": (2, 1, 3)}, spatial),),
    "LRN": (Lattice({**_LAYERS, "size": (1, 3, 2), "alpha": (0.0001, 0.5), "beta": (0.75, 2.0),
                     "bias": (1.0, 2.0)}, spatial),),
    "RNN": (Lattice(_RECURRENT, rnn),),
    "GRU": (Lattice({**_RECURRENT, "linear_before_reset": (0, 1)}, gru),),
    "LSTM": (Lattice({**_RECURRENT, "given": (*_RECURRENT["given"], "bias initial cell", "bias initial cell peepholes"),
                      "count": (1, 2, 3)}, lstm),),
    **dict.fromkeys(("ReduceL1", "ReduceSumSquare", "ReduceLogSum"), (Lattice(REDUCED, reduction),)),
    "DepthToSpace": (Lattice({"channels": (1, 2), "batch": (1, 2), "size": (1, 2), "block": (1, 2),
                              "mode": ("DCR", "CRD")}, blocks),),
    "SpaceToDepth": (Lattice({"channels": (1,), "batch": (1, 2), "size": (2, 4), "block": (1, 2), "mode": ("",)}, blocks),),
    **dict.fromkeys(("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), (Lattice(_LOSS, loss),)),
    "GridSample": (Lattice({"batch": (1, 2), "channels": (1, 2), "size": (1, 2, 3, 4), "out": (1, 2),
                            "mode": ("linear", "nearest", "cubic"), "padding_mode": ("zeros", "border", "reflection"),
                            "align_corners": (0, 1)}, grid_sample),),
    "AffineGrid": (Lattice({"batch": (1, 2), "height": (1, 2, 3), "width": (1, 2), "align_corners": (0, 1)}, affine_grid),),
    "CenterCropPad": (Lattice({"size": SIZES, "width": (1, 3), "to": (1, 2, 3, 5)}, crop),),
    "Attention": (Lattice({"batch": (1, 2), "heads": (1, 2), "q": (1, 2, 3), "k": (1, 2, 3), "size": (1, 2),
                           "is_causal": (0, 1), "mask": (False, True), "scale": (None, 0.5)}, attention),),
    "Dropout": (Lattice({**_SHAPED, "ratio": (False, True)}, inert),),
    "HardSigmoid": (Lattice({**_SHAPED, "alpha": (0.2, 1.0), "beta": (0.5, 0.1)}, unary),),
    "ThresholdedRelu": (Lattice({**_SHAPED, "alpha": (1.0, 0.1, -0.5)}, unary),),
    "Gelu": (Lattice({**_SHAPED, "approximate": ("none", "tanh")}, unary),),
    "Swish": (Lattice({**_SHAPED, "alpha": (1.0, 0.5)}, unary),),
    **dict.fromkeys(("HardSwish", "Mish"), (Lattice(_SHAPED, unary),)),
}  # fmt: skip


@cache
def lattices() -> Mapping[str, tuple[Lattice, ...]]:
    """The lattices of all operators that models are drawn from; a maximum over windows may be empty at none."""
    found = {**{name: some for name, some in LATTICES.items() if "." not in name}, **MORE}
    found["LayerNormalization"] = tuple(map(_of_one_result, LATTICES["LayerNormalization"]))
    found["TopK"] = tuple(map(_sorted, LATTICES["TopK"]))
    found["MaxPool"] = (Lattice({**POOL, "storage_order": (0, 1), "count": (1, 2)}, pool),)
    return {name: found[name] for name in sorted(found) if defs.has(name, NEWEST)}


def _of_one_result(lattice: Lattice) -> Lattice:
    """The lattice without further results, whose dtype is another than that of the first."""

    def use(**how: Any) -> Use | None:
        made = lattice.use(**how)
        return made and structs.replace(made, count=1)

    return structs.replace(lattice, use=use)


def _sorted(lattice: Lattice) -> Lattice:
    """The lattice without an axis that leaves the order of a result open."""
    axes = {axis: values for axis, values in lattice.axes.items() if axis != "sorted_"}
    return structs.replace(lattice, axes=axes, use=partial(lattice.use, sorted_=1))


def operators(only: Iterable[str] = ()) -> list[str]:
    """The operators to draw from: those named, in any case, or all; UsageError for one that is not known."""
    known = {name.lower(): name for name in lattices()}
    for name in only:
        if name.lower() not in known:
            raise UsageError(f"there are random models of no operator {name!r}.{did_you_mean(name, known.values())}")
    return list(dict.fromkeys(known[name.lower()] for name in only)) or list(known.values())


# Plans


def case(seed: int, number: int, names: Sequence[str]) -> tuple[ModelPlan, Sample]:
    """The plan of a case and its model: the same for a seed, a number and operators."""
    for attempt in itertools.count():
        with suppress(Unbuildable):
            plan = drawn(random.Random(f"{seed} {number} {attempt}"), names)
            return plan, built(plan, f"{seed}_{number}")
    raise AssertionError


def drawn(rng: random.Random, names: Sequence[str]) -> ModelPlan:
    """A plan of a few steps, of which each runs alone."""
    length = rng.choice(STEPS)
    plan = ModelPlan((), rng.choice(DTYPES), rng.choice(OPSETS + USUAL_OPSETS * 2), rng.random() < 0.1)
    shapes: list[tuple[tuple[int, int], Shape]] = []
    for number in range(length):
        step, use = _fitting(rng, names, shapes)
        plan = structs.replace(plan, steps=(*plan.steps, step))
        shapes += [((number, ~i), x.shape) for i, (_, x) in enumerate(use.floats)]
        if number + 1 < length:
            shapes += [((number, i), y.shape) for i, y in enumerate(_values(step.operator, use)) if y.dtype.kind == "f"]
    return plan


def _fitting(
    rng: random.Random, names: Sequence[str], shapes: Sequence[tuple[tuple[int, int], Shape]]
) -> tuple[PlanStep, Use]:
    """A step, with the first operand a tensor of its own shape if one of a few draws has that."""
    for attempt in range(FITS):
        step, use = _step(rng, names)
        wanted = use.floats[0][1].shape if use.floats else ()
        if attempt == FITS - 1 or not shapes or any(shape == wanted for _, shape in shapes):
            break
    sources = tuple(_source(rng, x.shape, shapes, READS[i > 0]) for i, (_, x) in enumerate(use.floats))
    flow = rng.choice(FLOWS) if use.floats and rng.random() < INSIDE else ""
    return structs.replace(step, sources=sources, flow=flow), use


def _source(rng: random.Random, wanted: Shape, shapes: Sequence[Any], odds: float) -> tuple[int, int] | None:
    """A tensor from before, one of the shape if there is one, and late ones rather; or none."""
    if not shapes or rng.random() > odds:
        return None
    same = [tensor for tensor, shape in shapes if shape == wanted]
    if same and rng.random() < 0.9:
        return rng.choice(same[-3:])
    return rng.choice(shapes)[0] if prod(wanted) and rng.random() < 0.5 else None


def _step(rng: random.Random, names: Sequence[str]) -> tuple[PlanStep, Use]:
    """A use of an operator that runs alone."""
    while True:
        name = rng.choice(names)
        number = rng.randrange(len(lattices()[name]))
        axes, usual, empty = axes_of(name, number), rng.choice(USUAL), rng.random() < EMPTY
        for _ in range(DRAWS):
            places = {axis: 0 if rng.random() < usual else rng.randrange(len(values) - (not empty))
                      for axis, values in axes.items()}  # fmt: skip
            step = PlanStep(name, number, places, (), fed=rng.random() < 0.1, seed=rng.randrange(1 << 31))
            try:
                use = use_of(step)
                _values(name, use)
            except Unbuildable:
                continue
            return step, use


@cache
def axes_of(name: str, number: int) -> Mapping[str, Sequence[Any]]:
    """The axes of a lattice, each with one value more at its end: sizes and shapes with a dimension of 0."""
    axes = lattices()[name][number].axes
    return {axis: (*values, _emptied(axis, values)) for axis, values in axes.items() if axis != "asked"}


def _emptied(axis: str, values: Sequence[Any]) -> Any:
    if axis in ("size", "inner", "n", "m", "k", "batch") and isinstance(values[0], int):
        return 0
    return (0, 2) if axis == "shape" else values[0]


def use_of(step: PlanStep) -> Use:
    """The use of a step; Unbuildable if its values make none."""
    axes = axes_of(step.operator, step.lattice)
    choice = {axis: values[step.places.get(axis, 0)] for axis, values in axes.items()}
    try:
        with np.errstate(all="ignore"):
            use = lattices()[step.operator][step.lattice].use(**choice)
    except (ArithmeticError, ValueError, IndexError, TypeError) as error:
        raise Unbuildable(str(error)) from error
    if use is None or max((x.size for x in use.inputs if x is not None), default=0) > LARGEST:
        raise Unbuildable("the values fit no use")
    use = structs.replace(use, attrs={k: v for k, v in use.attrs.items() if k not in step.dropped})
    if _is_undefined(step.operator, use):
        raise Unbuildable("the standard leaves it open")
    return use


def _is_undefined(operator: str, use: Use) -> bool:
    """True for what the standard leaves open, so that implementations differ.

    SAME padding where a stride is longer than a window, and indices that repeat where entries are written over.
    """
    attrs, index = use.attrs, use.inputs[1] if len(use.inputs) > 1 else None
    if attrs.get("auto_pad", "").startswith("SAME"):
        kernel, strides, dilations = (attrs.get(k, ONES) for k in ("kernel_shape", "strides", "dilations"))
        return any(s > (k - 1) * d + 1 for k, s, d in zip(kernel, strides, dilations, strict=False))
    if not isinstance(index, np.ndarray) or attrs.get("reduction", "none") != "none":
        return False
    if operator == "ScatterElements":
        return bool((np.diff(np.sort(index, attrs.get("axis", 0)), axis=attrs.get("axis", 0)) == 0).any())
    rows = index.reshape(-1, index.shape[-1] if operator == "ScatterND" else 1)
    return operator in ("ScatterND", "MaxUnpool") and len(np.unique(rows, axis=0)) < len(rows)


def _values(name: str, use: Use) -> list[Array]:
    """Results of an operator at some numbers, by gradcheck's own kernels."""
    op, rng = OPS[("", name)], np.random.default_rng(0)
    feeds = {f"x{i}": _numbers(rng, x.shape, name, i, len(use.inputs)) for i, x in use.floats}
    try:
        tape = trace(use.graph(op), {**use.constants, **feeds}, ops=OPS)
        found = [np.asarray(tape.named[y].value) for y in use.outputs]
    except (GradcheckError, KeyError) as error:
        raise Unbuildable(str(error)) from error
    if any(y.size > LARGEST for y in found):
        raise Unbuildable("too large")
    return found


def _range(name: str, operand: int, count: int) -> Interval:
    """The interval that an operator takes its numbers from."""
    valid = OPS[("", name)].valid
    found = valid(operand, count) if callable(valid) else valid.get(operand)
    return found or USUAL_RANGE


def _numbers(rng: np.random.Generator, shape: Shape, name: str, operand: int, count: int) -> Array:
    """Numbers of an operand, far from each other so that there are no ties."""
    within, size = _range(name, operand, count), prod(shape)
    places = (rng.permutation(size) + rng.uniform(0.2, 0.8, size)) / max(size, 1)
    return np.asarray((within.low + places * (within.high - within.low)).reshape(shape))


# Models


class GrowingModel:
    """A model that grows step by step."""

    def __init__(self, plan: ModelPlan, opset: int) -> None:
        self.plan, self.opset = plan, opset
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, Array] = {}
        self.constants: dict[str, Array] = {}
        self.values: dict[str, Array] = {}  # of all tensors
        self.tensors: dict[tuple[int, int], str] = {}

    def add(self, number: int, step: PlanStep) -> None:
        """Adds a step with what its operands need."""
        use, given, names = use_of(step), 0, list[str]()
        for place, x in enumerate(use.inputs):
            if isinstance(x, Floats):
                source = step.sources[given] if given < len(step.sources) else None
                names.append(self._operand(step, place, x.shape, source, len(use.inputs)))
                self.tensors[(number, ~given)] = names[-1]
                given += 1
            else:
                names.append("" if x is None else self._constant(x, step.fed))
        made = self._node(step.operator, names, use.attrs, use.count)
        if step.flow:
            self._put_inside(step.flow, use, [self.values[n] if n else None for n in names])
        for slot, name in enumerate(made):
            self.tensors[(number, slot)] = name

    def _operand(self, step: PlanStep, place: int, shape: Shape, source: Any, count: int) -> str:
        """A tensor from before, made to fit, or a new input."""
        known = self.tensors.get(source) if source is not None else None
        if known is None:
            name = f"x{len(self.inputs)}"
            rng = np.random.default_rng([step.seed, place])
            made = _numbers(rng, shape, step.operator, place, count)
            if self.plan.zeros and _range(step.operator, place, count) is USUAL_RANGE:
                made = np.where(rng.random(shape) < KEPT, 0.0, made)
            self.inputs[name] = self.values[name] = made.astype(self.plan.dtype)
            return name
        if self.values[known].dtype != self.plan.dtype:
            [known] = self._node("Cast", [known], {"to": helper.np_dtype_to_tensor_dtype(np.dtype(self.plan.dtype))})
        return self._within(self._shaped(known, shape), _range(step.operator, place, count))

    def _shaped(self, name: str, shape: Shape) -> str:
        """Entries of a tensor in another shape, from the first on and around."""
        value = self.values[name]
        if value.shape == shape:
            return name
        if value.dtype.kind != "f" or not value.size:
            raise Unbuildable("an operand that nothing can be taken from")
        if value.size != prod(shape):
            [name] = self._node("Reshape", [name, self._constant(ints(-1))])
            [name] = self._node("Gather", [name, self._constant(np.arange(prod(shape)) % value.size)])
        return self._node("Reshape", [name, self._constant(ints(*shape))])[0]

    def _within(self, name: str, within: Interval) -> str:
        """The tensor brought into an interval, if its values are not there."""
        value = self.values[name]
        if within is USUAL_RANGE or not value.size or (within.low <= value.min() and value.max() <= within.high):
            return name
        [name] = self._node("Sigmoid", [name])
        width, low = (self._constant(np.array(v, self.plan.dtype)) for v in (within.high - within.low, within.low))
        return self._node("Add", [self._node("Mul", [name, width])[0], low])[0]

    def _constant(self, value: Array, fed: bool = False) -> str:
        name = f"c{len(self.constants) + len(self.inputs)}" if not fed else f"x{len(self.inputs)}"
        (self.inputs if fed else self.constants)[name] = self.values[name] = value
        return name

    def _node(self, operator: str, names: Sequence[str], attrs: Mapping[str, Any] = {}, count: int = 1) -> list[str]:
        """Adds a node at the model's opset, and runs it; the names of its results."""
        made = [f"y{sum(len(node.output) for node in self.nodes) + i}" for i in range(count)]
        use = Use(tuple(self.values[n] if n else None for n in names), attrs, count)
        found = _run(operator, use)
        if any(y.dtype.kind == "f" and not np.isfinite(y).all() for y in found) or any(y.size > LARGEST for y in found):
            raise Unbuildable("a value that is not finite, or too many")
        self.values |= dict(zip(made, found, strict=True))
        self.nodes.append(self._older(operator, list(names), dict(attrs), made))
        return made

    def _put_inside(self, flow: str, use: Use, operands: list[Any]) -> None:
        """Puts the last node, a use of these operands, inside of control flow; its results keep their names."""
        node, place = self.nodes.pop(), use.floats[0][0]
        infos, scales = [_info(y, self.values[y]) for y in node.output], np.asarray(SCALES, self.plan.dtype)
        if self.opset < FLOW_OPSET or any(self.values[y].dtype.kind != "f" for y in node.output):
            raise Unbuildable("no control flow")
        if flow == "If":
            self.nodes.append(in_branch(node, infos, self._constant(np.array(True), fed=True)))
            return
        moved, turns = operands[place], []
        for scale in np.cumprod([SCALES[0], *SCALES[:-1]]):
            operands[place] = np.asarray(moved * scale, self.plan.dtype)
            turns.append(_run(node.op_type, Use(tuple(operands), use.attrs, use.count)))
        alike = len({tuple(y.shape for y in turn) for turn in turns}) == 1
        if not alike or not all(np.isfinite(y).all() for turn in turns for y in turn):
            raise Unbuildable("a shape that follows from values, or a value that is not finite")
        self.values |= {y: np.stack(each) for y, each in zip(node.output, zip(*turns, strict=True), strict=True)}
        names = self._constant(scales[0], fed=True), self._constant(scales, fed=flow == "Scan")
        self.nodes.append(in_loop(flow, node, infos, place, names, self._constant(np.array(len(SCALES)))))
        self.values[self.nodes[-1].output[0]] = scales[0]

    def _older(self, operator: str, names: list[str], attrs: dict[str, Any], made: list[str]) -> onnx.NodeProto:
        """The node as the model's opset writes it: what is an operand today may have been an attribute."""
        newest = defs.get_schema(operator)
        try:
            schema = defs.get_schema(operator, self.opset)
        except defs.SchemaError as error:
            raise Unbuildable(f"opset {self.opset} has no {operator}") from error
        for place, formal in enumerate(newest.inputs[: len(names)]):
            if formal.name in schema.attributes and formal.name not in newest.attributes and names[place]:
                if names[place] not in self.constants:
                    raise Unbuildable(f"{formal.name} is an attribute")
                value = self.values[names[place]]
                attrs[formal.name], names[place] = value.tolist(), ""
        while names and not names[-1]:
            names.pop()
        if len(names) > schema.max_input or len(made) > schema.max_output:
            raise Unbuildable(f"opset {self.opset} has fewer operands")
        for key in [key for key in attrs if key not in schema.attributes]:
            if key not in newest.attributes or attrs.pop(key) != _default(newest, key):
                raise Unbuildable(f"opset {self.opset} has no {key}")
        attrs = {k: list(v) if isinstance(v, tuple) else v for k, v in attrs.items()}
        attrs = {k: _spelt(operator, self.opset, v) for k, v in attrs.items() if v != []}
        return helper.make_node(operator, names, made, **attrs)

    def model(self) -> onnx.ModelProto:
        """The model; its outputs are the tensors that no node reads."""
        used = {name for node in nodes_in(onnx.GraphProto(node=self.nodes)) for name in node.input}
        constants = {n: v for n, v in self.constants.items() if n in used}
        last = set(self.nodes[-1].output) if self.nodes else set()
        outputs = [n for node in self.nodes for n in node.output if n not in used or n in last]
        graph = helper.make_graph(
            self.nodes, "random", [_info(n, v) for n, v in self.inputs.items()],
            [_info(n, self.values[n]) for n in outputs],
            [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()],
        )  # fmt: skip
        opset = helper.make_opsetid("", self.opset)
        version = max(8, helper.find_min_ir_version_for([opset], ignore_unknown=True))
        return helper.make_model(graph, opset_imports=[opset], ir_version=version)


def _run(operator: str, use: Use) -> list[Array]:
    op = OPS[("", operator)]
    try:
        tape = trace(use.graph(op), use.constants, ops=OPS, dtype="model")
        return [np.asarray(tape.named[y].value) for y in use.outputs]
    except (GradcheckError, KeyError) as error:
        raise Unbuildable(str(error)) from error


def _default(schema: Any, key: str) -> Any:
    return helper.get_attribute_value(schema.attributes[key].default_value)


def _spelt(operator: str, opset: int, value: Any) -> Any:
    """The modes of GridSample had other names."""
    old = {"linear": "bilinear", "cubic": "bicubic"} if operator == "GridSample" and opset < 20 else {}
    return old.get(value, value) if isinstance(value, str) else value


def _info(name: str, value: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def built(plan: ModelPlan, name: str) -> Sample:
    """The model of a plan with its inputs; Unbuildable if ONNX has none."""
    reason = Unbuildable("no step")
    for opset in (*(o for o in OPSETS if o >= plan.opset), NEWEST):
        draft = GrowingModel(plan, opset)
        try:
            for number, step in enumerate(plan.steps):
                draft.add(number, step)
            model = draft.model()
            onnx.checker.check_model(model, full_check=True)
        except (Unbuildable, onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            reason = Unbuildable(str(error))
            continue
        return Sample(name, ", ".join(used_in(plan)), "random", model, dict(draft.inputs))
    raise reason


def used_in(plan: ModelPlan) -> list[str]:
    """The operators of a plan."""
    return sorted({step.operator for step in plan.steps})
