"""`gradients`: adds the symbolic derivative of some tensors by others to a model.

Names, argument order, defaults and meaning are those of TensorFlow 1's `tf.gradients`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial, reduce
from operator import add
from typing import Any

from gradcheck_cli.autodiff.backward import add_n
from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.errors import NoGradientError, UsageError, counted
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array, is_inexact
from gradcheck_cli.model import Model, Tensor, arguments, call_options
from gradcheck_cli.model.request import Request

_SCOPE = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\-]*(/[A-Za-z0-9_.\-]+)*")


class UnconnectedGradients(Enum):
    """The result of `gradients` for an x that no y depends on: None, or zeros of its shape and dtype.

    As TensorFlow's `tf.UnconnectedGradients`.
    """

    NONE = "none"
    ZERO = "zero"


class AggregationMethod(Enum):
    """The way in which `gradients` adds cotangents of one tensor: equal values up to rounding, different nodes.

    ADD_N (the default) is one `Sum`, EXPERIMENTAL_TREE adds two by two, EXPERIMENTAL_ACCUMULATE_N one after the other.
    As TensorFlow's `tf.AggregationMethod`.
    """

    ADD_N = 0
    DEFAULT = 0  # noqa: PIE796 - TensorFlow's alias
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


def gradients(
    ys: Any, xs: Any, grad_ys: Any = None, name: str | None = "gradients", colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False, aggregation_method: AggregationMethod | None = None, stop_gradients: Any = None,
    unconnected_gradients: UnconnectedGradients = UnconnectedGradients.NONE,
) -> list[Tensor | None]:  # fmt: skip
    """Adds ops to the model for the symbolic derivative of the sum of `ys` with respect to each of `xs`.

    The definition is that of TensorFlow 1's `tf.gradients` (tensorflow/python/ops/gradients_impl.py): for each x the
    sum over y of <grad_y, dy/dx>, a tensor of x's shape in units of y per unit of x.  For complex tensors that is
    TensorFlow's gradient too: d/dRe x + i d/dIm x of the real number Re sum(conj(grad_y) * y).

    Args:
        ys: a tensor or a list of tensors to be differentiated, of any shapes.
        xs: a tensor or a list of tensors to differentiate by: inputs, constants or tensors inside.  Of one that is
            given twice, each result is the full derivative.
        grad_ys: initial gradients, a list as long as `ys` of tensors or arrays, each of the shape of its y; None, or a
            None entry, means ones.  A complex y needs one.
        name: added nodes stand under it: `gradients/<forward node>_grad/<op>`, `gradients/AddN`; a second call gets
            `gradients_1`.
        colocate_gradients_with_ops: added nodes carry their forward node's device configuration and metadata.
        gate_gradients: all gradients of one op are computed before any is used.
        aggregation_method: how gradients of one tensor are added, `AggregationMethod.ADD_N` by default.
        stop_gradients: a tensor or a list of tensors not to differentiate through: constants for this derivative.
        unconnected_gradients: what to return for an x that no y depends on.

    Returns:
        A list as long as `xs` of tensors of the shapes and dtypes of `xs`, or None where nothing is connected.

    Raises:
        LookupError: operators between ys and xs have no gradient; the message lists all of them.
        ValueError: an argument is invalid.
    """
    y_list, x_list = arguments.tensors(ys, "ys"), arguments.tensors(xs, "xs")
    stops = [] if stop_gradients is None else arguments.tensors(stop_gradients, "stop_gradients", empty=True)
    model = arguments.model_of([*y_list, *x_list, *stops], "ys, xs and stop_gradients")
    unconnected = call_options.member(unconnected_gradients, UnconnectedGradients, "unconnected_gradients")
    how: dict[str, Any] = {
        "scope": model.scope(scope_of(name)),
        "aggregate": aggregate_of(aggregation_method),
        "gate": call_options.flag(gate_gradients, "gate_gradients"),
        "colocate": call_options.flag(colocate_gradients_with_ops, "colocate_gradients_with_ops"),
        "zeros": unconnected is UnconnectedGradients.ZERO,
    }
    given = _as_given(model, y_list, grad_ys)
    for kind, tensors in (("ys", y_list), ("xs", x_list)):
        for i, tensor in enumerate(tensors):
            arguments.require_inexact(model, tensor, f"{kind}[{i}]")
    seeds = [_grad_y(model, y, g, f"grad_ys[{i}]") for i, (y, g) in enumerate(zip(y_list, given, strict=True))]
    y_names, x_names, stop = (tuple(tensor.name for tensor in tensors) for tensors in (y_list, x_list, stops))
    request = Request(ys=y_names, xs=x_names, grad_ys=tuple(seeds), stop=stop, **how)
    try:
        done = model.add(request)
    except NoGradientError as error:
        raise NoGradientError(all_missing(error, model.source), error.missing) from error
    return [None if result is None else Tensor(model, result) for result in done.results]


def scope_of(name: Any) -> str:
    """The name under which nodes are added."""
    if name is None:
        return "gradients"
    if not isinstance(name, str) or not _SCOPE.fullmatch(name):
        raise UsageError(f"name={name!r} is no name: letters, digits and _ . - are allowed, and / between them.")
    return name


def aggregate_of(method: Any) -> Callable[[Sequence[Var]], Var]:
    """The function that adds the cotangents of one tensor."""
    chosen = AggregationMethod.ADD_N if method is None else method
    return _AGGREGATIONS[call_options.member(chosen, AggregationMethod, "aggregation_method")]


def _as_given(model: Model, ys: Sequence[Tensor], grad_ys: Any) -> list[str | Array | None]:
    """Initial gradients by name or as numbers, one for each y."""
    given = [None] * len(ys) if grad_ys is None else list(grad_ys) if isinstance(grad_ys, list | tuple) else [grad_ys]
    if len(given) != len(ys):
        raise UsageError(
            f"grad_ys has {counted(len(given), 'entry')}, ys has {len(ys)}: both must have the same length."
        )
    return [None if g is None else arguments.name_of(model, g, f"grad_ys[{i}]") if isinstance(g, Tensor)
            else arguments.numbers(g, f"grad_ys[{i}]") for i, g in enumerate(given)]  # fmt: skip


def _grad_y(model: Model, y: Tensor, given: str | Array | None, argument: str) -> str | Array | None:
    """An initial gradient of its y's shape and kind of dtype, as far as those are known before a run."""
    dtype = model.known_dtype(y.name)
    if given is None:
        if dtype is not None and dtype.kind == "c":
            raise UsageError(f"{argument}: {y.name!r} is complex, so its initial gradient must be given.")
        return None
    shape = model.known_shape(given) if isinstance(given, str) else given.shape
    kind = model.known_dtype(given) if isinstance(given, str) else given.dtype
    if shape is not None and (wanted := arguments.contradicted(model, y.name, shape)) is not None:
        raise UsageError(f"{argument} has shape {list(shape)}; {y.name!r} has {list(wanted)}.")
    if dtype is not None and kind is not None and (not is_inexact(kind) or (kind.kind == "c" and dtype.kind != "c")):
        raise UsageError(f"{argument} is {kind.name}; {y.name!r} is {dtype.name}.")
    return given


def all_missing(error: NoGradientError, source: Source) -> str:
    """A message that lists all operators without a gradient, with node, operator, domain and version."""
    lines = dict.fromkeys(
        f"{domain + '.' if domain else ''}{op} (node {origin} {label!r}, domain {domain or 'ai.onnx'!r}, "
        f"opset {source.opset.get(domain, 'unknown')})"
        for origin, op, domain, label in error.missing
    )
    count = f"{len(lines)} operators" if len(lines) > 1 else "an operator"
    return f"no gradient for {count} between ys and xs: {'; '.join(lines)}"


def _tree(cts: Sequence[Var]) -> Var:
    """Cotangents added two by two."""
    if len(cts) == 1:
        return cts[0]
    half = (len(cts) + 1) // 2
    return _tree(cts[:half]) + _tree(cts[half:])


_AGGREGATIONS: Mapping[AggregationMethod, Callable[[Sequence[Var]], Var]] = {
    AggregationMethod.ADD_N: add_n,
    AggregationMethod.EXPERIMENTAL_TREE: _tree,
    AggregationMethod.EXPERIMENTAL_ACCUMULATE_N: partial(reduce, add),  # one after the other
}
