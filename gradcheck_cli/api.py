"""The two functions that gradcheck descends from, `compute_gradient` and `gradients`, and all around them.

Names, argument order, defaults and meaning are those of TensorFlow 1's `tf.test.compute_gradient` and
`tf.gradients`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli import arguments
from gradcheck_cli.backward import add_n
from gradcheck_cli.checking import check as check_source
from gradcheck_cli.errors import NoGradientError, UsageError
from gradcheck_cli.formats import read
from gradcheck_cli.formats.source import Source
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian import Backward, Directions, by_differences
from gradcheck_cli.model import Model, Request, Tensor
from gradcheck_cli.op import Ops
from gradcheck_cli.ops import OPS
from gradcheck_cli.program import Program
from gradcheck_cli.record import Report
from gradcheck_cli.settings import Settings
from gradcheck_cli.stack import Budget
from gradcheck_cli.stencil import CENTRAL
from gradcheck_cli.tape import Tape, Var

Names: TypeAlias = "Tensor | str | Sequence[Tensor | str]"
_SCOPE = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\-/]*")


class UnconnectedGradients(Enum):
    """What `gradients` returns for an x that no y depends on: None, or zeros of its shape."""

    NONE = "none"
    ZERO = "zero"


class AggregationMethod(Enum):
    """How cotangents of one tensor are added: equal values, different nodes."""

    ADD_N = 0
    DEFAULT = 0  # noqa: PIE796 - TensorFlow's alias
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


def load(
    path: str | os.PathLike[str],
    *,
    dims: Mapping[str, int] | None = None,
    graph: str | None = None,
    allow_python: bool = False,
) -> Model:
    """The model in an ONNX file, or one graph of a YAML spec.

    Args:
        path: a `.onnx` file or a `.gradcheck.yaml` spec.
        dims: sizes for symbolic dimensions, by name.
        graph: which graph of a spec; may be left out where there is only one.
        allow_python: whether a spec may name Python functions to import.

    Raises:
        ModelError: the file cannot be read as a model.
        SpecError: the spec is wrong, at a line and column.
        ValueError: there is no such graph, or several and none was named; or no such open dimension.
    """
    sizes = arguments.sizes(dims, "dims")
    spec = read(path, dims=sizes, allow_python=allow_python)
    known = ", ".join(repr(name) for name in spec.sources)
    if graph is not None and graph not in spec.sources:
        raise UsageError(f"{os.fspath(path)} has no graph {graph!r}; it has {known}.")
    if graph is None and len(spec.sources) != 1:
        raise UsageError(f"{os.fspath(path)} has {len(spec.sources)} graphs ({known}): say which, as graph=...")
    source = spec.sources[graph] if graph else next(iter(spec.sources.values()))
    arguments.require_open(source, sizes)
    return Model(source, OPS, sizes)


def run(tensors: Names, feeds: Mapping[Any, Any] | None = None, *, dtype: str = "float64") -> list[Array]:
    """Values of tensors.

    Args:
        tensors: one tensor or a list of them, of one model.
        feeds: values by tensor or name, for any tensor; inputs without one are drawn by seed.
        dtype: "float64", or "model" for the model's own.

    Returns:
        A list of arrays, one for each tensor.

    Raises:
        ValueError: something in `tensors` is not a tensor, or a feed does not fit.
    """
    wanted = list(tensors) if isinstance(tensors, list | tuple) else [tensors]
    for i, tensor in enumerate(wanted):
        if tensor is None:
            raise UsageError(
                f"tensors[{i}] is None: gradients() returned it for an x that y does not depend on. Leave it "
                "out, or ask for zeros with unconnected_gradients=UnconnectedGradients.ZERO."
            )
    model = arguments.model_of(wanted, "tensors")
    names = [arguments.name_of(model, t, f"tensors[{i}]") for i, t in enumerate(wanted)]
    settings = Settings(
        extra_feed_dict=arguments.feeds(model, feeds, "feeds"),
        dtype=arguments.one_of(dtype, "dtype", ("float64", "model")),
    )
    tape = model.tape(names, settings)
    return [_value(tape, name) for name in names]


def gradients(
    ys: Any,
    xs: Any,
    grad_ys: Any = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: AggregationMethod | None = None,
    stop_gradients: Any = None,
    unconnected_gradients: UnconnectedGradients = UnconnectedGradients.NONE,
) -> list[Tensor | None]:
    """Adds ops to the model for the symbolic derivative of the sum of `ys` with respect to each of `xs`.

    The meaning is that of TensorFlow 1's `tf.gradients`: `sum over y of <grad_y, dy/dx>`.

    Args:
        ys: a tensor or a list of tensors to be differentiated.
        xs: a tensor or a list of tensors to differentiate by: inputs, constants or tensors inside.
        grad_ys: initial gradients, a list as long as `ys`; None, or a None entry, means ones of y's shape.
        name: added nodes stand under it: `gradients/<forward node>_grad/<op>`; a second call gets
            `gradients_1`.
        colocate_gradients_with_ops: added nodes carry their forward node's device and namespace metadata.
        gate_gradients: all gradients of one op are computed before any is used.
        aggregation_method: how gradients of one tensor are added, `AggregationMethod.ADD_N` by default.
        stop_gradients: tensors not to differentiate through.
        unconnected_gradients: what to return for an x that no y depends on.

    Returns:
        A list as long as `xs` of tensors of the shapes of `xs`, or None where nothing is connected.

    Raises:
        LookupError: operators between ys and xs have no gradient; the message lists all of them.
        ValueError: an argument is invalid.
    """
    y_list, x_list = arguments.tensors(ys, "ys"), arguments.tensors(xs, "xs")
    stops = [] if stop_gradients is None else arguments.tensors(stop_gradients, "stop_gradients", empty=True)
    model = arguments.model_of([*y_list, *x_list, *stops], "ys, xs and stop_gradients")
    if not isinstance(name, str) or not _SCOPE.fullmatch(name):
        raise UsageError(f"name={name!r} is no name: letters, digits and _ . - / are allowed.")
    for flag, value in (
        ("colocate_gradients_with_ops", colocate_gradients_with_ops),
        ("gate_gradients", gate_gradients),
    ):
        if not isinstance(value, bool | np.bool_):
            raise UsageError(f"{flag}={value!r} must be True or False.")
    for kind, tensors in (("ys", y_list), ("xs", x_list)):
        for i, tensor in enumerate(tensors):
            arguments.require_inexact(model, tensor, f"{kind}[{i}]")
    request = Request(
        model.scope(name),
        tuple(t.name for t in y_list),
        tuple(t.name for t in x_list),
        _grad_ys(model, y_list, grad_ys),
        tuple(t.name for t in stops),
        _AGGREGATIONS[
            arguments.member(aggregation_method or AggregationMethod.ADD_N, AggregationMethod, "aggregation_method")
        ],
        bool(gate_gradients),
        bool(colocate_gradients_with_ops),
        arguments.member(unconnected_gradients, UnconnectedGradients, "unconnected_gradients")
        is UnconnectedGradients.ZERO,
    )
    try:
        done = model.add(request)
    except NoGradientError as error:
        raise NoGradientError(_all_missing(error, model.source), error.missing) from error
    return [None if result is None else Tensor(model, result) for result in done.results]


def compute_gradient(
    x: Any,
    x_shape: Any,
    y: Tensor,
    y_shape: Sequence[int],
    x_init_value: Any = None,
    delta: float = 0.001,
    init_targets: str | Sequence[str] | None = None,
    extra_feed_dict: Mapping[Any, Any] | None = None,
    *,
    dtype: str = "float64",
) -> Any:
    """Computes and returns the theoretical and the numerical Jacobian of y with respect to x.

    The meaning is that of TensorFlow 1's `tf.test.compute_gradient`; the layout for complex x or y is the
    documented one, in blocks: `J[:m,:n] = d(Re y)/d(Re x)`, `J[:m,n:] = d(Im y)/d(Re x)`,
    `J[m:,:n] = d(Re y)/d(Im x)`, `J[m:,n:] = d(Im y)/d(Im x)`.

    Args:
        x: a tensor, or a list of tensors.
        x_shape: its dimensions; for a list, a list of them.
        y: a tensor.
        y_shape: its dimensions.
        x_init_value: the point, an array of shape `x_shape` (a list of them for a list); None draws from a
            seeded normal distribution.
        delta: the perturbation of the central difference, in units of x.
        init_targets: initializations of the model to run first: `init:` groups of a spec, training info of an
            ONNX file.
        extra_feed_dict: values that stay fixed for both Jacobians, by tensor or name, of any tensor.
        dtype: "float64", or "model" for the model's own.

    Returns:
        Two 2-d float arrays `(x_size, y_size)`, theoretical and numerical; for a list of x a list of such
        pairs.

    Raises:
        ValueError: an argument contradicts the model, or y does not depend on x.
        LookupError: an operator between x and y has no gradient.
    """
    many = isinstance(x, list | tuple)
    xs = arguments.tensors(x, "x")
    model = arguments.model_of([*xs, arguments.tensor(y, "y")], "x and y")
    values = [None] * len(xs) if x_init_value is None else arguments.per_x(x_init_value, xs, "x_init_value", many)
    for i, tensor in enumerate(xs):
        arguments.require_inexact(model, tensor, f"x[{i}]" if many else "x")
    arguments.require_inexact(model, y, "y")
    step = arguments.step(delta)
    given = zip(xs, arguments.per_x(x_shape, xs, "x_shape", many), strict=True)
    shapes = [arguments.require_shape(t, shape, "x_shape") for t, shape in given]
    triples = zip(xs, shapes, values, strict=True)
    fixed = arguments.feeds(model, extra_feed_dict, "extra_feed_dict")
    arguments.require_free(model, xs, values, fixed)
    points = {t.name: arguments.initial(t, shape, v, i) for i, (t, shape, v) in enumerate(triples)}
    wanted = arguments.require_shape(y, y_shape, "y_shape")
    settings = Settings(
        x_init_value=points,
        extra_feed_dict=fixed,
        init_targets=arguments.targets(init_targets, "init_targets"),
        dtype=arguments.one_of(dtype, "dtype", ("float64", "model")),
    )
    tape = model.tape([y.name, *points], settings)
    if tape.named[y.name].shape != wanted:
        raise UsageError(
            f"y_shape={list(wanted)} contradicts {y.name!r}: it has {list(tape.named[y.name].shape)} here."
        )
    pairs = [_jacobians(tape, t.name, y.name, step) for t in xs]
    return pairs if many else pairs[0]


def compute_gradient_error(*args: Any, **kwargs: Any) -> float:
    """The largest absolute difference between the two Jacobians of `compute_gradient`; same arguments.

    For a list of x the largest over all of them; 0.0 for empty Jacobians.
    """
    pairs = compute_gradient(*args, **kwargs)
    pairs = pairs if isinstance(pairs, list) else [pairs]
    return max((float(np.max(np.abs(t - n), initial=0.0)) for t, n in pairs), default=0.0)


def check(
    model: Model,
    x: Names | None = None,
    y: Names | None = None,
    *,
    x_init_value: Mapping[Any, Any] | None = None,
    extra_feed_dict: Mapping[Any, Any] | None = None,
    ops: Ops = OPS,
    rtol: float | Mapping[str, float] | None = None,
    atol: float | Mapping[str, float] | None = None,
    **settings: Any,
) -> Report:
    """What the command `gradcheck check` does, as a `Report`.

    Args:
        model: what `load` gave.
        x: tensors or names to differentiate by; None: all float inputs, or the parameters if there are none.
        y: tensors or names to differentiate; None: all float outputs.
        x_init_value: values of x, by tensor or name.
        extra_feed_dict: values of any tensors, by tensor or name.
        ops: the operator table, by (domain, name): a rule under test goes in here.
        rtol: the relative error that matters, for all tensors or by name.
        atol: the absolute error that matters, likewise.
        settings: mode, method, dtype, seed, points, delta, dims, params and the other fields of `Settings`;
            one that is None counts as not given.

    Returns:
        The report: `report.checks[i].status .x .y .suspect`, `report.exit_code`.

    Raises:
        ValueError: an argument is invalid.
        GradcheckError: the model cannot be checked at all.
    """
    if not isinstance(model, Model):
        raise UsageError(f"model is {arguments.described(model)}, not what load() gives.")
    given = Settings(
        x=arguments.names(model, x, "x"),
        y=arguments.names(model, y, "y"),
        x_init_value=arguments.feeds(model, x_init_value, "x_init_value"),
        extra_feed_dict=arguments.feeds(model, extra_feed_dict, "extra_feed_dict"),
        **{"dims": model.dims, **arguments.settings({"rtol": rtol, "atol": atol, **settings})},
    )
    return Report(check_source(model.source, given, name=Path(model.source.uri).name, ops=ops))


def save(model: Model, path: str | os.PathLike[str], outputs: Names) -> None:
    """Writes the model with its derivatives as an ONNX file whose outputs are `outputs`.

    Args:
        model: what `load` gave.
        path: the file to write.
        outputs: tensors or names, derivatives included.

    Raises:
        ValueError: an output is no tensor of the model, or a dimension is open (`load(..., dims=...)` fixes
            it).
        UnsupportedError: a complex operator, which ONNX does not have.
    """
    from gradcheck_cli.export import export

    export(model, path, arguments.names(model, outputs, "outputs") or model.graph.outputs)


def _jacobians(tape: Tape, x: str, y: str, delta: float) -> tuple[Array, Array]:
    """Both Jacobians; the step of the central difference is delta, rounded so that x + step is exact."""
    x_name, y_name = tape.named[x].name, tape.named[y].name
    program = Program(tape, [x_name], [y_name])
    if x_name != y_name and not program.steps:
        raise UsageError(f"y {y!r} does not depend on x {x!r}.")
    here = tape.values[x_name]
    if here.size and not np.all((here + delta != here) & (here - delta != here)):
        raise UsageError(
            f"delta={delta:g} is too small to resolve: {x!r} + delta equals {x!r} in {here.dtype}. "
            f"At least {float(np.max(np.spacing(np.abs(here)))):.1g} is needed here."
        )
    budget = Budget()
    directions = Directions(here, range(here.size * (2 if here.dtype.kind == "c" else 1)))
    theoretical = Backward(tape, y_name, [x_name]).jacobians(budget)[0]
    return theoretical, by_differences(program, directions, CENTRAL, directions.fixed(delta), budget)[0]


def _grad_ys(model: Model, ys: Sequence[Tensor], grad_ys: Any) -> tuple[str | Array | None, ...]:
    """Initial gradients by name or as numbers, each of its y's shape and kind of dtype."""
    given = [None] * len(ys) if grad_ys is None else list(grad_ys) if isinstance(grad_ys, list | tuple) else [grad_ys]
    if len(given) != len(ys):
        raise UsageError(f"grad_ys has {len(given)} entries, ys has {len(ys)}: they must be as long.")
    return tuple(_grad_y(model, y, g, f"grad_ys[{i}]") for i, (y, g) in enumerate(zip(ys, given, strict=True)))


def _grad_y(model: Model, y: Tensor, given: Any, argument: str) -> str | Array | None:
    if given is None:
        if y.dtype.kind == "c":
            raise UsageError(f"{argument}: {y.name!r} is complex, so its initial gradient must be given.")
        return None
    value = (
        arguments.name_of(model, given, argument) if isinstance(given, Tensor) else arguments.numbers(given, argument)
    )
    shape, dtype = (given.shape, given.dtype) if isinstance(given, Tensor) else (value.shape, value.dtype)  # type: ignore[union-attr]
    if len(shape) != len(y.shape) or not _compatible(shape, y.shape):
        raise UsageError(f"{argument} has shape {list(shape)}; {y.name!r} has {list(y.shape)}.")
    if dtype.kind not in "fcV" or (dtype.kind == "c" and y.dtype.kind != "c"):
        raise UsageError(f"{argument} is {dtype.name}; {y.name!r} is {y.dtype.name}.")
    return value


def _compatible(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return all(not isinstance(s, int) or not isinstance(t, int) or s == t for s, t in zip(a, b, strict=True))


def _all_missing(error: NoGradientError, source: Source) -> str:
    """All operators without a gradient, with node, operator, domain and version."""
    lines = [
        f"{domain + '.' if domain else ''}{op} (node {origin} {label!r}, domain {domain or 'ai.onnx'!r}, "
        f"opset {source.opset.get(domain, 'unknown')})"
        for origin, op, domain, label in error.missing
    ]
    return f"no gradient for {len(lines)} operators between ys and xs: " + "; ".join(dict.fromkeys(lines))


def _value(tape: Tape, name: str) -> Array:
    if name in tape.blocked:
        raise tape.blocked[name]
    return np.array(tape.named[name].value)


def _tree(cts: Sequence[Var]) -> Var:
    """Cotangents added two by two."""
    if len(cts) == 1:
        return cts[0]
    half = (len(cts) + 1) // 2
    return _tree(cts[:half]) + _tree(cts[half:])


def _accumulate(cts: Sequence[Var]) -> Var:
    """Cotangents added one after the other."""
    total = cts[0]
    for ct in cts[1:]:
        total = total + ct
    return total


_AGGREGATIONS = {
    AggregationMethod.ADD_N: add_n,
    AggregationMethod.EXPERIMENTAL_TREE: _tree,
    AggregationMethod.EXPERIMENTAL_ACCUMULATE_N: _accumulate,
}
