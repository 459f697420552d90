"""Losses that a training step can add to a model, as PyTorch defines those of the same names.

Each is an operator composed of ONNX's, of a prediction and of a target that is a new input or a tensor of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec import field as made_by

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import UsageError, counted, did_you_mean, shown
from gradcheck_cli.export.trials import followed
from gradcheck_cli.graph import Dim, FreshNames, Graph, Node, TensorType, is_inexact
from gradcheck_cli.model import Model, Tensor
from gradcheck_cli.model.arguments import contradicted, require_inexact
from gradcheck_cli.op import Along, Op, composite, deciding
from gradcheck_cli.ops.loss import picked_classes, reduced

DOMAIN = "gradcheck"


def mean_squared(x: Var, target: Var, *, reduction: str = "mean") -> Var:
    """(x - target)^2."""
    off = _difference(x, target)
    return _reduced(off * off, reduction)


def mean_absolute(x: Var, target: Var, *, reduction: str = "mean") -> Var:
    """|x - target|."""
    return _reduced(sym.abs(_difference(x, target)), reduction)


def huber(x: Var, target: Var, *, delta: float = 1.0, reduction: str = "mean") -> Var:
    """(x - target)^2 / 2 within delta, delta (|x - target| - delta / 2) beyond."""
    off = _difference(x, target)
    far = sym.abs(off)
    return _reduced(sym.where(far <= delta, off * off * 0.5, (far - 0.5 * delta) * delta), reduction)


def binary_cross_entropy(x: Var, target: Var, *, pos_weight: float = 1.0, reduction: str = "mean") -> Var:
    """-w target log sigmoid(x) - (1 - target) log(1 - sigmoid(x)); -log sigmoid(x) is max(-x, 0) + log(1 + exp(-|x|))."""
    _difference(x, target)
    rest = sym.log(sym.exp(-sym.abs(x)) + 1)
    if pos_weight == 1:
        return _reduced(sym.relu(x) - x * target + rest, reduction)
    return _reduced((1 - target) * x + ((pos_weight - 1) * target + 1) * (sym.relu(-x) + rest), reduction)


def cross_entropy(
    x: Var, target: Var, *, axis: int = 1, ignore: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> Var:
    """The negative log of softmax(x) along an axis at the classes in `target`, or its mean under its probabilities.

    Smoothed targets are mixed with equal probabilities of all classes.
    """
    axis = min(axis, x.ndim - 1) % x.ndim  # the only axis of a single sample
    scores = x.tape.apply("LogSoftmax", x, axis=axis)
    if is_inexact(target.dtype):
        _difference(x, target)
        losses = -sym.sum(scores * target, (axis,), keepdims=False)
        if label_smoothing:
            losses = losses * (1 - label_smoothing) - sym.mean(scores, (axis,), keepdims=False) * label_smoothing
        return _reduced(losses, reduction)
    if x.ndim == 1:
        scores, target = sym.unsqueeze(scores, (0,)), sym.unsqueeze(target, (0,))
    elif axis != 1:
        others = [i for i in range(x.ndim) if i != axis]
        scores = sym.transpose(scores, [others[0], axis, *others[1:]])
    picked = picked_classes(target, scores.shape[1], ignore)
    losses = -sym.sum(sym.where(picked, scores, 0), (1,), keepdims=False)
    counting = sym.sum(sym.cast(picked, x.dtype), (1,), keepdims=False)
    if label_smoothing:
        equal = sym.mean(scores, (1,), keepdims=False) * counting
        losses = losses * (1 - label_smoothing) - equal * label_smoothing
    return reduced(losses, counting, reduction)


def accuracy(x: Var, target: Var, *, axis: int = 1, ignore: int = -100) -> Var:
    """The share of labels, without those to ignore, that have the largest score along an axis."""
    best, labels = x.tape.apply("ArgMax", x, axis=min(axis, x.ndim - 1), keepdims=0), sym.cast(target, np.int64)
    counting = 1 - sym.cast(sym.equal(labels, ignore), np.float32)
    right = sym.cast(sym.equal(best, labels), np.float32) * counting
    return sym.sum(right, keepdims=False) / sym.sum(counting, keepdims=False)


def _difference(x: Var, target: Var) -> Var:
    if x.shape != target.shape:
        raise ValueError(f"the prediction has shape {list(x.shape)} and the target {list(target.shape)}")
    return x - target


def _reduced(losses: Var, reduction: str) -> Var:
    return (sym.mean if reduction == "mean" else sym.sum)(losses, keepdims=False)


def weighted_sum(*losses: Var, factors: Sequence[float]) -> Var:
    """The sum of losses times their factors, in the dtype of most bits that one has."""
    dtype = max((loss.dtype for loss in losses), key=lambda dtype: dtype.itemsize)
    wide = (sym.cast(loss, dtype) for loss in losses)
    total, *more = (loss if factor == 1 else loss * factor for loss, factor in zip(wide, factors, strict=True))
    return reduce(add, more, total)


class Measure(Struct, frozen=True):
    """An operator of a prediction and a target, and the options that it takes, each with its default.

    `classes`: the target holds the number of a class for each place without the axis of the classes; `soft`: or the
    probabilities of all.
    """

    op: Op
    options: Mapping[str, Any] = made_by(default_factory=dict)
    classes: bool = False
    soft: bool = False


def _measure(name: str, forward: Any, options: Mapping[str, Any], **kind: bool) -> Measure:
    facts: dict[str, Any] = (
        {"cuts": deciding(1), "integers": {1: Along("axis", least=2)}} if kind.get("classes") else {}
    )
    return Measure(composite(name, forward, domain=DOMAIN, **facts), options, **kind)


_CLASSES = {"axis": 1, "ignore": -100}
_MEAN = {"reduction": "mean"}
LOSSES: Mapping[str, Measure] = {
    "mse": _measure("MeanSquaredError", mean_squared, _MEAN),
    "l1": _measure("MeanAbsoluteError", mean_absolute, _MEAN),
    "huber": _measure("Huber", huber, {"delta": 1.0, **_MEAN}),
    "bce-with-logits": _measure("BinaryCrossEntropy", binary_cross_entropy, {"pos_weight": 1.0, **_MEAN}),
    "cross-entropy": _measure(
        "CrossEntropy", cross_entropy, {**_CLASSES, "label_smoothing": 0.0, **_MEAN}, classes=True, soft=True
    ),
}
METRICS: Mapping[str, Measure] = {"accuracy": _measure("Accuracy", accuracy, _CLASSES, classes=True)}
_SUM = composite("WeightedSum", weighted_sum, domain=DOMAIN)
MEASURES = {op.key: op for op in (_SUM, *(each.op for each in (*LOSSES.values(), *METRICS.values())))}
_REDUCTIONS = ("mean", "sum")
_WITHIN = {"cross-entropy": "Softmax", "bce-with-logits": "Sigmoid"}  # what losses of scores apply themselves


def with_measure(model: Model, text: str, known: Mapping[str, Measure], option: str, name: str) -> tuple[Model, str]:
    """The model with a measure, and the name of its tensor.

    `text` is a tensor of the model, or KIND:PREDICTION,TARGET[,OPTION=VALUE ...]; a target that is no tensor becomes an
    input.  UsageError for anything else, which names the `option`.
    """
    if text in model.tensors:
        return model, text
    kind, _, rest = text.partition(":")
    said, (prediction, *more) = f"{option} {text}", (part.strip() for part in rest.split(","))
    if kind not in known:
        forms = ", ".join(f"{each}:PREDICTION,TARGET" for each in known)
        raise UsageError(
            f"{said}: write a tensor of the model, or {forms}.{did_you_mean(kind, [*known, *model.tensors])}"
        )
    if not prediction or not more or not more[0]:
        raise UsageError(f"{said}: {kind} compares two tensors, {kind}:PREDICTION,TARGET.")
    measure, target = known[kind], more.pop(0)
    if target == prediction:
        raise UsageError(
            f"{said}: it compares {prediction!r} with itself; the target is another tensor or a new input."
        )
    given = model.known_dtype(target) if target in model.tensors else None
    soft = measure.soft and ("probabilities" in more or (given is not None and is_inexact(given)))
    options = _options(measure, [part for part in more if not (soft and part == "probabilities")], said)
    graph, made, types = model.graph, FreshNames({*model.tensors, target}).fresh(name), {}
    scores = model[prediction]
    if known is LOSSES:
        require_inexact(model, scores, f"{said}:")
    dims = followed(scores)
    if measure.classes and len(dims) == 1 and not any(part.startswith("axis=") for part in more):
        options["axis"] = 0  # a single sample has no other
    taken = _target(scores, dims, measure.classes and not soft, options.get("axis", 0), said)
    if target not in model.tensors:
        types[target] = taken
    elif (shape := contradicted(model, target, taken.shape or ())) is not None:
        there = TensorType(model.known_dtype(target), shape)
        raise UsageError(
            f"{said}: {target!r} is a tensor of the model, {there}; the target of {prediction!r} is {taken}. "
            f"One with a name of its own becomes an input."
        )
    node = Node(measure.op.name, (scores.name, target), (made,), options, DOMAIN, name=made)
    graph = replace(graph, inputs=(*graph.inputs, *types), nodes=(*graph.nodes, node), types={**graph.types, **types})
    return _measured(model, graph), made


def _measured(model: Model, graph: Graph) -> Model:
    """The model with another graph, which may have measures."""
    return model.with_graph(graph, {**model.ops, **MEASURES})


def with_losses(model: Model, texts: Sequence[str]) -> tuple[Model, str, list[str]]:
    """The model with one loss or the sum of several, the name of its tensor, and of each part of a sum.

    Each is one of `with_measure`, or FACTOR: and one.  UsageError for anything else.
    """
    if not texts:
        raise UsageError("--loss: a training step needs one.")
    factors, parts = list[float](), list[str]()
    for text in texts:
        factor, one = _factored(model, text)
        kind = one.partition(":")[0] if len(texts) > 1 or factor != 1 else "loss"
        model, made = with_measure(model, one, LOSSES, "--loss", kind)
        require_inexact(model, model[made], "--loss")
        shape = model.shape(made)
        if any(dim != 1 for dim in shape):
            raise UsageError(f"--loss {text}: it is {TensorType(model.dtype(made), shape)}; a loss is one number.")
        factors.append(factor)
        parts.append(made)
    if factors == [1]:
        return model, parts[0], []
    total = FreshNames(model.tensors).fresh("loss")
    node = Node(_SUM.name, tuple(parts), (total,), {"factors": factors}, DOMAIN, name=total)
    return _measured(model, replace(model.graph, nodes=(*model.graph.nodes, node))), total, parts


def _factored(model: Model, text: str) -> tuple[float, str]:
    """The factor of FACTOR:LOSS, or 1, and the loss."""
    factor, mark, loss = text.partition(":")
    try:
        number = float(factor) if mark and text not in model.tensors else None
    except ValueError:
        number = None
    if number is None:
        return 1.0, text
    if number == 0 or not np.isfinite(number):
        raise UsageError(f"--loss {text}: its factor is {factor}; it is a finite number, and not 0.")
    return number, loss


def said_of_scores(model: Model, losses: Sequence[str]) -> Iterator[str]:
    """A sentence on each loss of scores that is given probabilities, or takes places of a sequence for classes.

    Classifiers of Keras end with probabilities; language models have their classes last, and losses take axis 1.
    """
    graph = model.graph
    for loss in losses:
        node = _maker(graph, loss)
        if node is not None and node.key == LOSSES["cross-entropy"].op.key:
            yield from _said_of_classes(node, followed(model[node.inputs[0]]))
        kind = next((k for k in _WITHIN if node is not None and node.key == LOSSES[k].op.key), None)
        if node is None or kind is None:
            continue
        given, made = node.inputs[0], _maker(graph, node.inputs[0])
        if made is not None and made.key == ("", _WITHIN[kind]):
            yield f"{shown(given)} is what {made.op} gives, and {kind} takes the scores before it: {shown(made.inputs[0])}"


def _said_of_classes(node: Node, dims: Sequence[Dim]) -> Iterator[str]:
    """A sentence if the axis of the classes is open, and the last one has a size."""
    name, axis = node.inputs[0], node.attrs["axis"]
    if -len(dims) <= axis < len(dims) - 1 and not isinstance(dims[axis], int) and isinstance(dims[-1], int):
        scores = f"{shown(name)} [{','.join(map(str, dims))}]"
        said = f"axis {axis} of {scores}, which has any size, is taken for the classes, as PyTorch takes it"
        yield f"{said}; where they are the last: cross-entropy:{name},{node.inputs[1]},axis=-1"


def _maker(graph: Graph, name: str) -> Node | None:
    """The node that computes a tensor, or the one that the tensor is a copy of."""
    index = graph.producer(name)
    node = None if index is None else graph.nodes[index]
    return node if node is None or node.key != ("", "Identity") else _maker(graph, node.inputs[0])


def _options(measure: Measure, texts: Sequence[str], said: str) -> dict[str, Any]:
    """The options of a measure, those in `texts` as given: OPTION=VALUE."""
    found = dict(measure.options)
    known = [*found, "probabilities"] if measure.soft else [*found]
    for text in texts:
        key, mark, value = text.partition("=")
        if mark and key in known and key not in found:
            raise UsageError(f"{said}: {key} is written alone, without a value.")
        if not mark or key not in found:
            raise UsageError(f"{said}: {key!r} is no option; there are {', '.join(known)}.{did_you_mean(key, known)}")
        if key == "reduction" and value not in _REDUCTIONS:
            raise UsageError(f"{said}: reduction is {' or '.join(_REDUCTIONS)}.")
        try:
            found[key] = type(found[key])(value)
        except ValueError:
            raise UsageError(f"{said}: {key} is a number.") from None
    for key in {"delta", "pos_weight"} & {*found}:
        if not 0 < found[key] < np.inf:
            raise UsageError(f"{said}: {key} is {found[key]:g}; it is a finite number above 0.")
    if not 0 <= found.get("label_smoothing", 0) <= 1:
        raise UsageError(f"{said}: label_smoothing is {found['label_smoothing']:g}; it is a number from 0 to 1.")
    return found


def _target(scores: Tensor, dims: Sequence[Dim], classes: bool, axis: int, said: str) -> TensorType:
    """The type of a target of these scores: as they are, or integers without the axis of the classes."""
    if not classes:
        return TensorType(scores.dtype, tuple(dims))
    if not -len(dims) <= axis < len(dims):
        raise UsageError(f"{said}: {scores.name!r} has {counted(len(dims), 'dimension')}, and no axis {axis}.")
    left = [dim for number, dim in enumerate(dims) if number != axis % len(dims)]
    return TensorType(np.dtype(np.int64), tuple(left))
