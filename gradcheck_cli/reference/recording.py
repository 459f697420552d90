"""Records of a framework's own outputs and gradients, which `gradcheck model.onnx` holds against the exported file.

`torch`, `jax` and `tensorflow` run a module or function at some inputs and write `model.gradcheck.npz` beside the model:
inputs, outputs, and vector-Jacobian products by inputs and parameters for seeded random cotangents.  From the second
point on, the entries of float inputs are shuffled, and moved by up to a quarter: a constant that was frozen from the
example shows there.  A point at which the framework's numbers are not finite is left out.

No framework is imported before its function is called.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gradcheck_cli.checks.claims.recorded import ABOUT, SCHEMA, RecordDescription, described, member
from gradcheck_cli.errors import UsageError
from gradcheck_cli.formats.whole_file import replacing
from gradcheck_cli.graph import Array

_MOVED = 0.25  # share of itself by which an input differs at another point
_MODAL = ("running_mean", "p", "dropout")  # attributes of what differs in training mode
_FLOATS = (np.float32, np.float64)


class Recording(NamedTuple):
    """Outputs by name, and their vector-Jacobian products by inputs and by parameters; None stands for no gradient."""

    outputs: Mapping[str, Array]
    by_inputs: Sequence[Array | None]
    by_parameters: Sequence[Array | None]


Weigh = Callable[[int, Array], Array]  # the cotangent of an output by its place
Differentiate = Callable[[Sequence[Array], Weigh], Recording]


def torch(module: Any, inputs: Any, path: str | os.PathLike[str], *, seed: int = 0, points: int = 2) -> None:
    """Records a PyTorch module (or function) in the mode, training or not, that it is in.

    Args:
        module: called with the inputs; its trainable parameters are recorded too.
        inputs: a tensor, a tuple of them, or a mapping of keyword arguments.
        path: "model.gradcheck.npz" for "model.onnx".
        seed: of cotangents, of further points, and of random numbers that the module draws.
        points: number of points; the first has the inputs as they are, further ones have them shuffled and moved.

    Raises:
        UsageError: for inputs that are no tensors, and for other dtypes than float32 and float64.
    """
    import torch as pt

    named = _named(module, inputs, getattr(module, "forward", module))
    keywords = isinstance(inputs, Mapping)
    parameters = {n: p for n, p in getattr(module, "named_parameters", tuple)() if p.requires_grad}
    device = next((p.device for p in parameters.values()), None)

    def run(values: Sequence[Array], weigh: Weigh) -> Recording:
        xs = [pt.tensor(value, device=device) for value in values]
        floats = [x.requires_grad_() for x in xs if x.is_floating_point()]
        pt.manual_seed(seed)
        with pt.enable_grad():
            result = module(**dict(zip(named, xs, strict=True))) if keywords else module(*xs)
        outputs = dict(_leaves(result, pt.Tensor))
        ends = {i: y for i, y in enumerate(outputs.values()) if y.requires_grad}
        cts = [pt.tensor(weigh(i, _of_torch(y)), device=y.device) for i, y in ends.items()]
        ways = [*floats, *parameters.values()]
        found = (
            pt.autograd.grad([*ends.values()], ways, cts, allow_unused=True) if ends and ways else [None] * len(ways)
        )
        grads = [None if g is None else _of_torch(g) for g in found]
        by_floats = iter(grads)
        by_inputs = [next(by_floats) if x.is_floating_point() else None for x in xs]
        return Recording({n: _of_torch(y) for n, y in outputs.items()}, by_inputs, [*by_floats])

    arrays = {name: _of_torch(x) for name, x in named.items()}
    with _as_it_was(module), pt.random.fork_rng():
        _record(path, f"torch {pt.__version__}", arrays, {n: _of_torch(p) for n, p in parameters.items()}, run,
                _in_training(module), seed, points)  # fmt: skip


def jax(
    function: Callable[..., Any], inputs: Any, path: str | os.PathLike[str], *, params: Any = None, seed: int = 0,
    points: int = 2,
) -> None:  # fmt: skip
    """Records a JAX function, called as function(*inputs), or function(params, *inputs) where params are given.

    Args:
        function: of arrays, its results arrays or a pytree of them.
        inputs: an array, a tuple of them, or a mapping of keyword arguments.
        path: "model.gradcheck.npz" for "model.onnx".
        params: a pytree of arrays; its leaves are called by their keys, joined by dots.
        seed: of cotangents and of further points.
        points: number of points; the first has the inputs as they are, further ones have them shuffled and moved.

    Raises:
        UsageError: for other dtypes than float32 and float64.
    """
    import jax as jx

    first = () if params is None else (params,)
    named, keywords = _named(function, inputs, function, skip=len(first)), isinstance(inputs, Mapping)
    leaves, tree = jx.tree_util.tree_flatten_with_path(params)
    parameters = {jx.tree_util.keystr(key, simple=True, separator="."): np.asarray(leaf) for key, leaf in leaves}

    def run(values: Sequence[Array], weigh: Weigh) -> Recording:
        every = [*values, *parameters.values()]
        places = [i for i, value in enumerate(every) if value.dtype.kind == "f"]

        def outputs(*floats: Any) -> list[Any]:
            xs = [jx.numpy.asarray(value) for value in every]
            for i, value in zip(places, floats, strict=True):
                xs[i] = value
            given, weights = xs[: len(values)], xs[len(values) :]
            before = () if params is None else (jx.tree_util.tree_unflatten(tree, weights),)
            result = (
                function(*before, **dict(zip(named, given, strict=True))) if keywords else function(*before, *given)
            )
            return [*jx.tree_util.tree_leaves(result)]

        results, pull = jx.vjp(outputs, *(jx.numpy.asarray(every[i]) for i in places))
        here = [np.asarray(y) for y in results]
        cts = [weigh(i, y) if y.dtype.kind == "f" else np.zeros(y.shape, jx.dtypes.float0) for i, y in enumerate(here)]
        found = dict(zip(places, map(np.asarray, pull(cts)), strict=True))
        grads = [found.get(i) for i in range(len(every))]
        return Recording({f"output_{i}": y for i, y in enumerate(here)}, grads[: len(values)], grads[len(values) :])

    arrays = {name: np.asarray(x) for name, x in named.items()}
    _record(path, f"jax {jx.__version__}", arrays, parameters, run, (), seed, points)


def tensorflow(function: Any, inputs: Any, path: str | os.PathLike[str], *, seed: int = 0, points: int = 2) -> None:
    """Records a Keras model or a TensorFlow function; trainable variables of a model are recorded too.

    Args:
        function: called with the inputs.
        inputs: a tensor, a tuple of them, or a mapping of keyword arguments.
        path: "model.gradcheck.npz" for "model.onnx".
        seed: of cotangents, of further points, and of random numbers that the function draws.
        points: number of points; the first has the inputs as they are, further ones have them shuffled and moved.

    Raises:
        UsageError: for other dtypes than float32 and float64.
    """
    import tensorflow as tf

    named, keywords = _named(function, inputs, getattr(function, "call", function)), isinstance(inputs, Mapping)
    variables = {getattr(v, "path", v.name).removesuffix(":0"): v for v in getattr(function, "trainable_variables", ())}

    def run(values: Sequence[Array], weigh: Weigh) -> Recording:
        xs = [tf.constant(value) for value in values]
        tf.random.set_seed(seed)
        with tf.GradientTape() as tape:
            floats = [x for x in xs if x.dtype.is_floating]
            for x in floats:
                tape.watch(x)
            result = function(**dict(zip(named, xs, strict=True))) if keywords else function(*xs)
            outputs = dict(_leaves(result, tf.Tensor))
        ends = [(y, tf.constant(weigh(i, y.numpy()))) for i, y in enumerate(outputs.values()) if y.dtype.is_floating]
        ways = [*floats, *(v if callable(v.value) else v.value for v in variables.values())]
        found = tape.gradient([y for y, _ in ends], ways, [ct for _, ct in ends])
        grads = iter([None if g is None else tf.convert_to_tensor(g).numpy() for g in found])
        by_inputs = [next(grads) if x.dtype.is_floating else None for x in xs]
        return Recording({n: y.numpy() for n, y in outputs.items()}, by_inputs, [*grads])

    arrays = {name: tf.convert_to_tensor(x).numpy() for name, x in named.items()}
    weights = {name: tf.convert_to_tensor(v).numpy() for name, v in variables.items()}
    _record(path, f"tensorflow {tf.__version__}", arrays, weights, run, (), seed, points)


def _record(
    path: str | os.PathLike[str], framework: str, inputs: Mapping[str, Array], parameters: Mapping[str, Array],
    run: Differentiate, training: tuple[str, ...], seed: int, points: int,
) -> None:  # fmt: skip
    """Runs every point and writes the record."""
    if not 1 <= points <= 16:
        raise UsageError(f"points is {points}; it has to be from 1 to 16.")
    _require_floats({**inputs, **parameters})
    points = points if any(value.dtype.kind == "f" for value in inputs.values()) else 1
    arrays, found, kept = dict[str, Array](), Recording({}, (), ()), 0
    for point in range(points):
        values = [_moved(value, [seed, point, i]) if point else value for i, value in enumerate(inputs.values())]
        weigh = partial(_cotangent, [seed, point])
        found = _run_at(point, run, values, weigh)
        _require_floats(found.outputs)
        if not point or _is_finite(found):
            arrays |= dict(_members(values, found, kept, weigh))
            kept += 1
    own = tuple(described(n, v) for n, v in parameters.items())
    about = RecordDescription(SCHEMA, framework, tuple(inputs), tuple(found.outputs), own, kept, seed, training)
    _write(path, {ABOUT: np.frombuffer(msgspec.json.encode(about), np.uint8), **arrays})


def _members(values: Sequence[Array], found: Recording, point: int, weigh: Weigh) -> Iterator[tuple[str, Array]]:
    """The arrays of one point by their names; parameters have gradients at the first point only."""
    for i, value in enumerate(values):
        yield member("input", i, point), value
    for i, y in enumerate(found.outputs.values()):
        yield member("output", i, point), y
        if y.dtype.kind == "f":
            yield member("cotangent", i, point), weigh(i, y)
    given = [("gradient", found.by_inputs), *([("parameter", found.by_parameters)] if not point else [])]
    for kind, grads in given:
        yield from ((member(kind, i, point), g) for i, g in enumerate(grads) if g is not None)


def _write(path: str | os.PathLike[str], arrays: Mapping[str, Array]) -> None:
    """Writes a .npz file, whole or not at all."""
    with replacing(Path(path)) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _moved(values: Array, seed: Sequence[int]) -> Array:
    """Float values in another order, each moved by up to a quarter of itself; others as they are."""
    if values.dtype.kind != "f":
        return values
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(values.reshape(-1)).reshape(values.shape)
    return np.asarray(shuffled * (1 + _MOVED * rng.uniform(-1, 1, values.shape)), values.dtype)


def _run_at(point: int, run: Differentiate, values: Sequence[Array], weigh: Weigh) -> Recording:
    """The run at a point; UsageError for one that fails where inputs were moved."""
    try:
        return run(values, weigh)
    except Exception as error:
        if not point:
            raise
        raise UsageError(
            f"it fails where its inputs are shuffled and moved, {error}; points=1 leaves that out."
        ) from error


def _is_finite(found: Recording) -> bool:
    arrays = [*found.outputs.values(), *found.by_inputs, *found.by_parameters]
    return all(np.isfinite(values).all() for values in arrays if values is not None)


def _cotangent(seed: Sequence[int], place: int, y: Array) -> Array:
    """A random cotangent: of both signs, since ones hide errors."""
    return np.asarray(np.random.default_rng([*seed, place, 1]).normal(size=y.shape), y.dtype)


def _require_floats(arrays: Mapping[str, Array]) -> None:
    """UsageError for numbers that are neither float32 nor float64, integers nor booleans."""
    for name, values in arrays.items():
        if values.dtype.kind not in "biu" and values.dtype.type not in _FLOATS:
            raise UsageError(f"{name} is {values.dtype.name}: make the record in float32 or float64.")


def _named(module: Any, inputs: Any, called: Any, skip: int = 0) -> dict[str, Any]:
    """The inputs by the names of the parameters that they are passed for."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    several = inputs if isinstance(inputs, tuple | list) else (inputs,)
    try:
        known = [
            p.name
            for p in inspect.signature(called).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
    except (TypeError, ValueError):
        known = []
    names = [*known[skip:], *(f"input_{i}" for i in range(len(known[skip:]), len(several)))]
    return dict(zip(names, several, strict=False))


def _leaves(result: Any, kind: type, name: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors in nested tuples and mappings, by name or place."""
    if isinstance(result, kind):
        yield name or "output", result
    elif isinstance(result, Mapping):
        for key, value in result.items():
            yield from _leaves(value, kind, f"{name}.{key}".lstrip("."))
    elif isinstance(result, tuple | list):
        for i, value in enumerate(result):
            yield from _leaves(value, kind, f"{name}.{i}".lstrip("."))


def _of_torch(tensor: Any) -> Array:
    """A tensor as an array."""
    if not hasattr(tensor, "detach"):
        raise UsageError(f"inputs have to be tensors; one is a {type(tensor).__name__}.")
    if str(tensor.dtype) == "torch.bfloat16":
        raise UsageError("a tensor is bfloat16: make the record in float32 or float64.")
    return np.array(tensor.detach().cpu().numpy())


def _in_training(module: Any) -> tuple[str, ...]:
    """Parts of a module in training mode that compute something else in it: normalization by batch, and dropout."""
    parts: Iterable[tuple[str, Any]] = getattr(module, "named_modules", tuple)()
    return tuple(
        name or type(part).__name__ for name, part in parts if part.training and any(hasattr(part, a) for a in _MODAL)
    )


@contextmanager
def _as_it_was(module: Any) -> Iterator[None]:
    """Gives buffers, such as running statistics, their values back."""
    before = {n: b.detach().clone() for n, b in module.named_buffers()} if hasattr(module, "named_buffers") else {}
    try:
        yield
    finally:
        for name, buffer in module.named_buffers() if before else ():
            buffer.data.copy_(before[name])
