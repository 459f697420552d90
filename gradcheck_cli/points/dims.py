"""Open dimensions of a model's inputs: their names, the sizes that follow from shapes and values given, and their roles.

The role of a dimension (batch, extent of an image, other) decides which sizes are tried.  It is read off its name, its
axis, and the operators that read the input: a convolution tells which axes are those of an image, also behind a
transposition.  A name may state a relation too: `past + sequence`.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np
from msgspec import Struct, field

from gradcheck_cli.errors import UsageError, counted, quoted, shown
from gradcheck_cli.graph import Dim, Graph, Node, TensorType
from gradcheck_cli.op import Ops, operator_of
from gradcheck_cli.op.batching import elementwise
from gradcheck_cli.settings import Settings

BATCH = 2  # entries of what looks like a batch
_NORMALIZED = 3  # of one that a model normalizes by its own statistics: two entries become +-1, whatever they are
_NAMELESS = ("", "?")  # as some exporters write it
_BATCHES = ("bs", "bsz", "bn")
_NO_BATCHES = ("seq", "len", "time", "past", "total", "frame", "step", "token", "node", "edge", "point", "patch", "height",
               "width")  # fmt: skip


def symbol(name: str, axis: int, dim: Dim) -> str:
    """The name under which an open dimension is given a size; one without a name is called by tensor and axis."""
    return f"{name}:{axis}" if dim is None or dim in _NAMELESS else str(dim)


def open_dims(graph: Graph) -> dict[str, bool]:
    """Open dimensions of the inputs that need values -> whether each one looks like a batch."""
    found: dict[str, bool] = {}
    for name in graph.free_inputs:
        shape = declared_shape(graph, name) or ()
        for axis, dim in enumerate(shape):
            if not isinstance(dim, int):
                key = symbol(name, axis, dim)
                found[key] = found.get(key, False) or _batch_like(key if key == dim else "", axis, len(shape))
    return found


def declared_shape(graph: Graph, name: str) -> tuple[Dim, ...] | None:
    """The shape that the file declares of an input; None where it says nothing."""
    return graph.types.get(name, TensorType()).shape


def concrete(graph: Graph, name: str, settings: Settings, dims: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of an input with sizes put in for open dimensions; where none is declared the given one, or a scalar."""
    shape = declared_shape(graph, name)
    if shape is None:
        return tuple(settings.x_shape.get(name, ()))
    return tuple(d if isinstance(d, int) else dims[symbol(name, axis, d)] for axis, d in enumerate(shape))


def sizes_given(graph: Graph, settings: Settings) -> dict[str, int]:
    """Sizes of open dimensions that follow from shapes and values that were given."""
    return sizes_in(graph, {**settings.x_shape, **_shapes_of_values(settings)})


def _shapes_of_values(settings: Settings) -> dict[str, tuple[int, ...]]:
    """Shapes of values that were given; a number alone has none, since it fills whatever it is given to."""
    values = [*settings.extra_feed_dict.items(), *settings.x_init_value.items()]
    return {name: value.shape for name, value in values if isinstance(value, np.ndarray) and value.ndim}


def sizes_in(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Sizes of open dimensions in shapes of inputs."""
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        declared = declared_shape(graph, name)
        if name in graph.inputs and declared is not None and len(declared) == len(shape):
            for axis, (dim, size) in enumerate(zip(declared, shape, strict=True)):
                if not isinstance(dim, int):
                    sizes[symbol(name, axis, dim)] = int(size)
    return sizes


def check_sizes(graph: Graph, settings: Settings) -> None:
    """UsageError for shapes and dims that contradict the model."""
    free = open_dims(graph)
    for name in settings.dims:
        if name not in free and free:
            raise UsageError(f"--dim {shown(name)}: the model's open dimensions are {', '.join(map(shown, free))}.")
        if name not in free:
            raise UsageError(f"--dim {shown(name)}: the model has no open dimension.")
    for name, shape in settings.x_shape.items():
        declared = declared_shape(graph, name)
        if declared is not None and name in graph.inputs:
            _check_shape(name, shape, declared)
    values = _shapes_of_values(settings)
    for name, shape in settings.x_shape.items():
        if values.get(name, tuple(shape)) != tuple(shape):
            raise UsageError(f"{_option(name, shape)} contradicts the value given for {name!r}, which has shape "
                             f"[{_spelled(values[name])}].")  # fmt: skip
    for name, shape in {**settings.x_shape, **values}.items():
        for dim, size in sizes_in(graph, {name: shape}).items():
            if settings.dims.get(dim, size) != size:
                raise UsageError(f"--dim {dim}={settings.dims[dim]} contradicts the shape of {name!r}, in which it is "
                                 f"{size}.")  # fmt: skip


def check_traced(shapes: Mapping[str, Sequence[int]], settings: Settings) -> None:
    """UsageError for a shape that was given to a tensor that turned out to have another one."""
    for name, shape in settings.x_shape.items():
        if tuple(shapes.get(name, shape)) != tuple(shape):
            given, actual = _option(name, shape), _spelled(shapes[name])
            raise UsageError(f"{given} contradicts the model: {name!r} has shape [{actual}].")


def _check_shape(name: str, shape: Sequence[int], declared: Sequence[Dim]) -> None:
    if len(shape) != len(declared):
        raise UsageError(
            f"{_option(name, shape)} contradicts the model: {name!r} has {counted(len(declared), 'dimension')}."
        )
    for axis, (size, fixed) in enumerate(zip(shape, declared, strict=True)):
        if isinstance(fixed, int) and fixed != size:
            raise UsageError(f"{_option(name, shape)} contradicts the model: dimension {axis} is fixed to {fixed}.")


def _option(name: str, shape: Sequence[int]) -> str:
    return f"--x-shape {quoted(name)}:{_spelled(shape)}"


def _spelled(shape: Sequence[int]) -> str:
    return ",".join(map(str, shape))


def _batch_like(name: str, axis: int, rank: int) -> bool:
    """True for a dimension whose name says batch, or that stands first and has no other name ("": no name at all)."""
    words = re.findall("[a-z]+", name.lower())
    letter = name.lower() in ("n", "b") and (axis == 0 or (axis, rank) == (1, 3))  # of images, of recurrent states
    if letter or any("batch" in w or w in _BATCHES for w in words):
        return True
    return axis == 0 and rank >= 2 and not any(w.startswith(_NO_BATCHES) or w in ("t", "l", "s") for w in words)


_LONGEST_FORMULA = 200  # characters


class Roles(Struct, frozen=True):
    """Open dimensions of a graph by role, in the order of its inputs; each is in one of them.

    `images` has extents of images with their axis counted from the last one: width 0, height 1, depth 2.  Among the
    `others` `signals` are those that a convolution along one axis reads.  `alike` has dimensions without a name that
    have the size of another one, since their inputs are one of a series (past.0.key, past.1.key).  `stated` has
    dimensions whose name is a formula of others (past + sequence); the `unseen` of these are no dimension of an input.
    A batch has at first `batch` entries.
    """

    batches: tuple[str, ...] = ()
    images: Mapping[str, int] = field(default_factory=dict)
    others: tuple[str, ...] = ()
    signals: frozenset[str] = frozenset()
    alike: Mapping[str, str] = field(default_factory=dict)
    stated: Mapping[str, str] = field(default_factory=dict)
    unseen: frozenset[str] = frozenset()
    batch: int = BATCH

    @property
    def tall(self) -> frozenset[str]:
        """Extents of images other than their width."""
        return frozenset(d for d, axis in self.images.items() if axis)

    @property
    def following(self) -> dict[str, str]:
        """Dimensions whose name is a formula of dimensions of inputs alone."""
        return {d: text for d, text in self.stated.items() if self.unseen.isdisjoint(formula_names(text))}

    def completed(self, sizes: Mapping[str, int]) -> dict[str, int] | None:
        """Sizes of all dimensions from those of the ones that follow from no other; None where a formula has none."""
        found = {**{d: sizes[of] for d, of in self.alike.items() if of in sizes}, **sizes}
        for name, formula in self.stated.items():
            if name not in found:
                size = formula_value(formula, found)
                if size is None:
                    return None
                found[name] = size
        return {d: size for d, size in found.items() if d not in self.unseen}


def roles(graph: Graph, ops: Ops) -> Roles:
    """The roles of all open dimensions of the inputs that need values."""
    batch_like = open_dims(graph)
    images, signals = _extents(graph, ops)
    stated = {d: d for d in batch_like if _is_formula(d, batch_like)}
    unseen = {n for d in stated for n in formula_names(d) if n not in batch_like}
    alike = _series(graph, batch_like)
    free = [d for d in batch_like if d not in stated and d not in alike]
    images = {d: axis for d, axis in images.items() if d in free}
    batches = tuple(d for d in free if batch_like[d] and d not in images)
    others = (*(d for d in free if d not in images and d not in batches), *unseen)
    batch = _NORMALIZED if any(map(_trains, graph.all_nodes)) else BATCH
    return Roles(batches, images, others, frozenset(signals), alike, stated, frozenset(unseen), batch)


def _trains(node: Node) -> bool:
    """True for a node that normalizes by statistics of the batch."""
    return node.key == ("", "BatchNormalization") and bool(node.attrs.get("training_mode"))


def formula_value(text: str, sizes: Mapping[str, int]) -> int | None:
    """A formula at some sizes, as exporters write them into dimensions; None unless it is a positive integer."""
    try:
        value = _value(_parsed(text), sizes)
    except (KeyError, ArithmeticError, TypeError, ValueError):
        return None
    return int(value) if value.denominator == 1 and 0 < value < 1 << 31 else None


def _parsed(text: str) -> ast.expr:
    if len(text) > _LONGEST_FORMULA:
        raise ValueError("too long for a formula")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError("no formula") from error


def _value(node: ast.expr, sizes: Mapping[str, int]) -> Fraction:
    match node:
        case ast.Constant(value=int(value)):
            return Fraction(value)
        case ast.Name(id=name):
            return Fraction(sizes[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, sizes)
        case ast.BinOp(left=left, op=op, right=right):
            return _combined(op, _value(left, sizes), _value(right, sizes))
        case ast.Call(func=ast.Name(id=name), args=args):
            values = [_value(each, sizes) for each in args]
            return _called(name.lower(), values)
    raise ValueError("no formula")


def _called(name: str, values: Sequence[Fraction]) -> Fraction:
    match name, values:
        case "floor", [x]:
            return Fraction(math.floor(x))
        case "ceil" | "ceiling", [x]:
            return Fraction(math.ceil(x))
        case "max" | "min", [_, *_]:
            return max(values) if name == "max" else min(values)
    raise ValueError("no formula")


def _combined(op: ast.operator, a: Fraction, b: Fraction) -> Fraction:
    match op:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
        case ast.Div():
            return a / b
        case ast.FloorDiv():
            return Fraction(a // b)
        case ast.Mod():
            return a % b
    raise ValueError("no formula")


def formula_names(text: str) -> list[str]:
    """Names that a formula is made of."""
    nodes = list(ast.walk(_parsed(text)))
    called = {id(n.func) for n in nodes if isinstance(n, ast.Call)}
    return list(dict.fromkeys(n.id for n in nodes if isinstance(n, ast.Name) and id(n) not in called))


def _is_formula(text: str, known: Mapping[str, bool]) -> bool:
    """True for a name that is a formula of other dimensions, at most one of which is no dimension of an input.

    A name such as `batch-size` is none, since there would be two unknowns in it.
    """
    try:
        names = formula_names(text)
    except ValueError:
        return False
    unknown = [n for n in names if n not in known]
    trial = {n: 16 * (i + 4) for i, n in enumerate(names)}
    return text not in names and bool(names) and len(unknown) < 2 and formula_value(text, trial) is not None


def _series(graph: Graph, known: Mapping[str, bool]) -> dict[str, str]:
    """Dimensions without a name whose inputs differ in numbers only -> the first of each series."""
    first: dict[tuple[str, int], str] = {}
    found: dict[str, str] = {}
    for name, axis, key, named in _open_axes(graph):
        stem = re.sub(r"\d+", "#", name)
        if not named and "#" in stem and not known[key]:
            leader = first.setdefault((stem, axis), key)
            if leader != key:
                found[key] = leader
    return found


def _open_axes(graph: Graph) -> Iterator[tuple[str, int, str, bool]]:
    """Open axes of inputs that need values: input, axis, the name of the dimension, and whether the file gives it one."""
    for name in graph.free_inputs:
        for axis, dim in enumerate(declared_shape(graph, name) or ()):
            if not isinstance(dim, int):
                key = symbol(name, axis, dim)
                yield name, axis, key, key == dim


def _extents(graph: Graph, ops: Ops) -> tuple[dict[str, int], set[str]]:
    """Extents of images with their axis counted from the last one, and lengths of what is convolved along one axis."""
    images: dict[str, int] = {}
    signals: set[str] = set()
    for name in dict.fromkeys(each[0] for each in _open_axes(graph)):
        shape = declared_shape(graph, name) or ()
        for axes in _convolved(graph, name, len(shape), ops):
            for back, axis in enumerate(reversed(axes)):
                if axis is not None and not isinstance(shape[axis], int):
                    key = symbol(name, axis, shape[axis])
                    if len(axes) > 1:
                        images.setdefault(key, back)
                    else:
                        signals.add(key)
    return images, signals


def _convolved(graph: Graph, name: str, rank: int, ops: Ops) -> Iterator[tuple[int | None, ...]]:
    """Axes of an input that stand where operators with windows read space."""
    axes: dict[str, tuple[int | None, ...]] = {name: tuple(range(rank))}
    hits = list(_followed(graph, axes, ops))
    if not hits and rank in (4, 5) and _reaches_windows(graph, name, ops):
        hits = [tuple(range(2, rank))]
    yield from hits


def _followed(graph: Graph, axes: dict[str, tuple[int | None, ...]], ops: Ops) -> Iterator[tuple[int | None, ...]]:
    """Follows the axes of an input through the nodes; yields those that operators with windows read as space."""
    for node in graph.nodes:
        for body in node.subgraphs if node.op == "If" else ():
            yield from _followed(body, axes, ops)
        read = [axes[n] for n in node.inputs if n in axes]
        if not read:
            continue
        if operator_of(ops, node).space and node.inputs[0] in axes and 3 <= len(axes[node.inputs[0]]) <= 5:
            yield axes[node.inputs[0]][2:]
        elif (moved := _moved(graph, node, max(read, key=len), ops)) is not None:
            axes.update((n, moved) for n in node.outputs[:1] if n)


def _moved(graph: Graph, node: Node, axes: tuple[int | None, ...], ops: Ops) -> tuple[int | None, ...] | None:
    """Axes of a node's first result for those of an operand; None where they are lost."""
    rank, op = len(axes), operator_of(ops, node)
    if node.op == "Transpose":
        perm = node.attrs.get("perm") or tuple(range(rank))[::-1]
        return tuple(axes[i] for i in perm) if sorted(perm) == list(range(rank)) else None
    if node.op in ("Unsqueeze", "Squeeze"):
        given = node.attrs.get("axes")
        if given is None and len(node.inputs) > 1 and node.inputs[1] in graph.constants:
            given = graph.constants[node.inputs[1]].reshape(-1).tolist()
        return None if given is None else _stretched(axes, given, node.op == "Unsqueeze")
    return axes if op.same_axes or op.batching is elementwise else None


def _stretched(axes: tuple[int | None, ...], given: Sequence[int], more: bool) -> tuple[int | None, ...] | None:
    """Axes with new ones at given places, or without those there."""
    rank = len(axes) + len(given) if more else len(axes)
    places = {int(g) % rank for g in given} if rank else set()
    if not more:
        return tuple(a for i, a in enumerate(axes) if i not in places)
    old = iter(axes)
    return tuple(None if i in places else next(old, None) for i in range(rank))


def _reaches_windows(graph: Graph, name: str, ops: Ops) -> bool:
    """True if an operator with windows along two axes or more depends on an input."""
    reached = graph.reached_from([name])
    for node in graph.nodes:
        space = operator_of(ops, node).space
        if space and node.inputs[0] in reached:
            weight = graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
            if len(node.attrs.get("kernel_shape", ())) > 1 or (weight is not None and weight.ndim > 3):
                return True
            if space == "resized":
                return True
    return False
