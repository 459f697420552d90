"""`compute_gradient`: the theoretical and the numerical Jacobian of one tensor by another.

Names, argument order, defaults and meaning are those of TensorFlow 1's `tf.test.compute_gradient`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.tape import Tape
from gradcheck_cli.compare.pair import jacobians
from gradcheck_cli.engine.chunks import Budget
from gradcheck_cli.engine.program import Program
from gradcheck_cli.errors import UsageError
from gradcheck_cli.graph import Array
from gradcheck_cli.jacobian.directions import reals
from gradcheck_cli.model import Model, Tensor, arguments, call_options
from gradcheck_cli.settings import Settings


def compute_gradient(
    x: Any, x_shape: Any, y: Tensor, y_shape: Sequence[int], x_init_value: Any = None, delta: float = 0.001,
    init_targets: str | Sequence[str] | None = None, extra_feed_dict: Mapping[Any, Any] | None = None, *,
    dtype: str = "float64",
) -> Any:  # fmt: skip
    """Computes and returns the theoretical and the numerical Jacobian of y with respect to x.

    The definition is that of TensorFlow 1's `tf.test.compute_gradient` (tensorflow/python/ops/gradient_checker.py).
    A complex x of m entries counts as 2 m reals, a complex y of n entries as 2 n, in blocks as documented there:
    `J[:m,:n] = d(Re y)/d(Re x)`, `J[:m,n:] = d(Im y)/d(Re x)`, `J[m:,:n] = d(Re y)/d(Im x)`,
    `J[m:,n:] = d(Im y)/d(Im x)`.

    Args:
        x: a tensor, or a list of tensors.
        x_shape: its dimensions, a tuple or an array of ints; for a list, a list of them.
        y: a tensor.
        y_shape: its dimensions.
        x_init_value: the point, an array of shape `x_shape` (a list of them for a list); None draws from a
            seeded normal distribution.
        delta: the perturbation of the central difference, in units of x.
        init_targets: initializations of the model to run first: `init:` groups of a spec, training info of an
            ONNX file.
        extra_feed_dict: values that stay fixed for both Jacobians, by tensor or name, of any tensor.
        dtype: the precision of both, "float64", or "model" for the model's own.

    Returns:
        Two 2-d float arrays `(x_size, y_size)`, theoretical and numerical, in units of y per unit of x: a row for
        each entry of x, a column for each entry of y.  For a list of x a list of such pairs.

    Raises:
        ValueError: an argument contradicts the model, or y does not depend on x.
        LookupError: an operator between x and y has no gradient.
        GradcheckError: the model does not run at this point.
    """
    many = isinstance(x, list | tuple)
    xs = arguments.tensors(x, "x")
    model = arguments.model_of([*xs, arguments.tensor(y, "y")], "x and y")
    step = call_options.step(delta)
    settings = Settings(
        extra_feed_dict=arguments.feeds(model, extra_feed_dict, "extra_feed_dict"),
        init_targets=call_options.targets(init_targets, "init_targets"),
        dtype=call_options.one_of(dtype, "dtype", ("float64", "model")),
    )
    points = _points(model, xs, x_shape, x_init_value, settings.extra_feed_dict, many)
    arguments.require_inexact(model, y, "y")
    wanted = arguments.require_shape(y, y_shape, "y_shape")
    fed = {tensor.name: value for tensor, value in zip(xs, points, strict=True)}
    leaves = {name: value for name, value in fed.items() if model.graph.producer(name) is None}
    pairs, shared = [], None
    for name, point in zip((tensor.name for tensor in xs), points, strict=True):
        tape = shared if name in leaves else None  # a tensor inside the model is fed only while it is x itself
        if tape is None:
            tape = model.tape([y.name, name], replace(settings, x_init_value={**leaves, name: fed[name]}))
            shared = tape if name in leaves else shared
        arguments.require_run(tape, name, point.shape, "x_shape")
        arguments.require_run(tape, y.name, wanted, "y_shape")
        pairs.append(_jacobians(model, tape, name, y.name, step, settings))
    return pairs if many else pairs[0]


def compute_gradient_error(
    x: Any, x_shape: Any, y: Tensor, y_shape: Sequence[int], x_init_value: Any = None, delta: float = 0.001,
    init_targets: str | Sequence[str] | None = None, extra_feed_dict: Mapping[Any, Any] | None = None, *,
    dtype: str = "float64",
) -> float:  # fmt: skip
    """The largest absolute difference between the two Jacobians of `compute_gradient`, in units of y per unit of x.

    The definition is that of TensorFlow 1's `tf.test.compute_gradient_error`.  Arguments and errors are those of
    `compute_gradient`; for a list of x it is the largest over all of them, for empty Jacobians 0.0.
    """
    found = compute_gradient(x, x_shape, y, y_shape, x_init_value, delta, init_targets, extra_feed_dict, dtype=dtype)
    pairs = found if isinstance(found, list) else [found]
    return max(float(np.max(np.abs(t - n), initial=0.0)) for t, n in pairs)


def _points(
    model: Model, xs: Sequence[Tensor], x_shape: Any, given: Any, fixed: Mapping[str, Array], many: bool
) -> list[Array]:
    """The value of each x, as given or drawn, in the shape that was given; ValueError for what contradicts the model."""
    values = [None] * len(xs) if given is None else arguments.per_x(given, xs, "x_init_value", many)
    arguments.require_free(model, xs, values, fixed)
    for i, tensor in enumerate(xs):
        arguments.require_inexact(model, tensor, f"x[{i}]" if many else "x")
    pairs = zip(xs, arguments.per_x(x_shape, xs, "x_shape", many), strict=True)
    shapes = [arguments.require_shape(t, shape, "x_shape") for t, shape in pairs]
    return [arguments.initial(t, s, v, i) for i, (t, s, v) in enumerate(zip(xs, shapes, values, strict=True))]


def _jacobians(model: Model, tape: Tape, x: str, y: str, delta: float, settings: Settings) -> tuple[Array, Array]:
    """Both Jacobians; zeros if y does not depend on x at this point."""
    x_name, y_name = tape.named[x].name, tape.named[y].name
    program = Program(tape, [x_name], [y_name])
    here, there = tape.values[x_name], tape.values[y_name]
    if x_name != y_name and not program.steps:
        if not any(any(node.subgraphs) for _, node in model.nodes_between([x], [y], stop=settings.extra_feed_dict)):
            raise UsageError(f"y {y!r} does not depend on x {x!r}.")
        return np.zeros((reals(here), reals(there))), np.zeros((reals(here), reals(there)))  # another branch was taken
    return jacobians(tape, program, x, y, delta, Budget())
