"""Rules for nodes that move or copy entries, reductions, constants and sizes.

`MOVES`: entries that are moved and moved back, axes of reductions.  `COPIES`: tensors that need not be expanded.
`FOLDING`: constants computed from constants, if the file hardly grows.  `SIZES`: sizes that are known or were read
before.  Values stay the same to the bit, except in sums of sums, whose order changes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradcheck_cli.autodiff.trace import result, trace
from gradcheck_cli.errors import GradcheckError
from gradcheck_cli.export.simplify.draft import (
    BROADCASTING,
    DRAWING,
    RESHAPING,
    Draft,
    Found,
    NotKnown,
    Rules,
    Shape,
    Volume,
    is_one,
    known,
    volume,
)
from gradcheck_cli.graph import Array, Dim, Graph, Node, TensorType
from gradcheck_cli.ops import OPS

# those for which two in a row are the same as one
_OF_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin")
REDUCING = (*_OF_REDUCTIONS, "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
_MOST_OPERANDS = 16  # of a node, to bound the time of a visit
_MOST_STEPS = 8  # back from a tensor to the one entry that it holds copies of
_LARGEST_RESULT = 1024  # bytes of a constant that is computed ahead
_LARGEST_OPERANDS = 1 << 20  # bytes that are read to compute it
_NODE = 128  # bytes of a node in a file


def in_shape(node: Node, at: Draft) -> str | None:
    """A Reshape or Expand to the shape that a tensor has is that tensor."""
    return node.inputs[0] if at.same(node.inputs[0], node.outputs[0]) else None


def whole_slice(node: Node, at: Draft) -> str | None:
    """A Slice that goes forward and leaves nothing out is the tensor."""
    steps = known(at.value(node.inputs[4])) if len(node.inputs) > 4 else np.ones(1)
    return node.inputs[0] if (steps == 1).all() and at.same(node.inputs[0], node.outputs[0]) else None


def nothing_around(node: Node, at: Draft) -> str | None:
    """A Pad with widths of 0 is the tensor."""
    return None if known(at.value(node.inputs[1])).any() else node.inputs[0]


def transposed(node: Node, at: Draft) -> Found:
    """A Transpose that keeps the order of axes is the tensor; two in a row are one."""
    perm = _perm(node, at)
    if perm == tuple(range(len(perm))):
        return node.inputs[0]
    inner = known(at.node(node.inputs[0], "Transpose"))
    first = _perm(inner, at)
    return replace(node, inputs=inner.inputs, attrs={"perm": tuple(first[p] for p in perm)})


def reshaped_twice(node: Node, at: Draft) -> Found:
    """Of two Reshapes in a row only the last is needed."""
    source = known(at.node(node.inputs[0], *RESHAPING)).inputs[0]
    if at.same(source, node.outputs[0]):
        return source
    known(at.sole(node.inputs[0], *RESHAPING))
    return _reshape(node, source, at)


def by_known_shape(node: Node, at: Draft) -> Node | None:
    """A Reshape to computed sizes is one to constants if these say the same: 0 copies a size, -1 is the rest."""
    return _reshape(node, node.inputs[0], at) if at.value(node.inputs[1]) is None else None


def reduced_in_shape(node: Node, at: Draft) -> Node | None:
    """A reduction drops or keeps its axes itself, if a Reshape does so afterwards."""
    inner = known(at.sole(node.inputs[0], *REDUCING))
    axes = _axes(inner, at)
    full, out = at.shape(inner.inputs[0]) or (), at.shape(node.outputs[0])
    dropped = tuple(d for i, d in enumerate(full) if i not in axes)
    for keepdims, shape in enumerate((dropped, tuple(1 if i in axes else d for i, d in enumerate(full)))):
        if shape == out and None not in shape:
            return replace(node, op=inner.op, inputs=inner.inputs, attrs={**inner.attrs, "keepdims": keepdims})
    return None


def reduced_twice(node: Node, at: Draft) -> Node | None:
    """A sum of sums is one sum; likewise for means of equally many entries, maxima and minima."""
    inner = known(at.sole(node.inputs[0], node.op))
    outer_axes, axes = _axes(node, at), _axes(inner, at)
    if _keepdims(inner) != _keepdims(node):
        return None
    rank = len(at.shape(inner.inputs[0]) or ())
    left = range(rank) if _keepdims(inner) else [a for a in range(rank) if a not in axes]
    both = sorted({*axes, *(left[a] for a in outer_axes)})
    inputs = (inner.inputs[0], at.constant(np.array(both, np.int64)))
    return replace(node, inputs=inputs, attrs={"keepdims": _keepdims(node)})


def reduced_over_nothing(node: Node, at: Draft) -> Found | None:
    """A sum over axes of length 1 is the tensor, perhaps without these axes."""
    axes, shape = _axes(node, at), known(at.shape(node.inputs[0]))
    if any(shape[a] != 1 for a in axes):
        return None
    if _keepdims(node) or not axes:
        return node.inputs[0]
    return replace(node, op="Squeeze", inputs=(node.inputs[0], at.constant(np.array(axes, np.int64))), attrs={})


def _reshape(node: Node, source: str, at: Draft) -> Node:
    """A Reshape of `source` in place of a node, to constants; NotKnown if no constants are right for every size."""
    before, after = known(at.shape(source)), known(at.shape(node.outputs[0]))
    target = [d if isinstance(d, int) else 0 if d is not None and before[i : i + 1] == (d,) else -1
              for i, d in enumerate(after)]  # fmt: skip
    if target.count(-1) == 1:  # a copied size (0) may be zero, and then -1 would not be determined
        target = [-1 if t < 1 else t for t in target]
    if 0 in after or target.count(-1) > 1:
        raise NotKnown
    inputs = (source, at.constant(np.array(target, np.int64)))
    return replace(node, op="Reshape", inputs=inputs, attrs={})


def _perm(node: Node, at: Draft) -> tuple[int, ...]:
    given: tuple[int, ...] | None = node.attrs.get("perm")
    return tuple(range(len(known(at.shape(node.inputs[0]))))[::-1]) if given is None else given


def _axes(node: Node, at: Draft) -> list[int]:
    """The axes of a reduction, counted from the front."""
    shape = known(at.shape(node.inputs[0]))
    given = known(at.value(node.inputs[1])) if len(node.inputs) > 1 and node.inputs[1] else np.zeros(0, np.int64)
    if not given.size:
        return [] if node.attrs.get("noop_with_empty_axes", 0) else list(range(len(shape)))
    return sorted(int(a) % len(shape) for a in given)


def _keepdims(node: Node) -> int:
    return int(node.attrs.get("keepdims", 1))


def expanded_twice(node: Node, at: Draft) -> Node | None:
    """Of two Expands in a row only the last is needed, if it gives the whole shape."""
    inner, value = known(at.node(node.inputs[0], "Expand")), known(at.value(node.inputs[1]))
    if tuple(value.tolist()) != at.shape(node.outputs[0]):
        return None
    return replace(node, inputs=(inner.inputs[0], node.inputs[1]))


def expanded_by_constants(node: Node, at: Draft) -> Node | None:
    """An Expand to computed sizes is one to constants if the symbolic sizes are those of the tensor."""
    before, after = known(at.shape(node.inputs[0])), known(at.shape(node.outputs[0]))
    if at.value(node.inputs[1]) is not None:
        return None
    aligned = (*[1] * (len(after) - len(before)), *before)
    target = [new if isinstance(new, int) else 1 if new is not None and new == old else None
              for old, new in zip(aligned, after, strict=True)]  # fmt: skip
    return None if None in target else replace(node, inputs=(node.inputs[0], at.constant(np.array(target, np.int64))))


def unexpanded(node: Node, at: Draft) -> Node | None:
    """An operand that is expanded need not be, if the node broadcasts it to the shape of the other operands anyway."""
    out = known(at.shape(node.outputs[0]))
    for i, name in enumerate(node.inputs) if len(node.inputs) <= _MOST_OPERANDS else ():
        source = _narrower(name, at)
        if source is None:
            continue
        small = source.shape if isinstance(source, np.ndarray) else at.shape(source)
        others = [small, *(at.shape(n) for j, n in enumerate(node.inputs) if j != i)]
        if _cover(others, out):
            new = source if isinstance(source, str) else at.constant(source)
            return replace(node, inputs=(*node.inputs[:i], new, *node.inputs[i + 1 :]))
    return None


def copied_last(node: Node, at: Draft) -> Node | None:
    """An elementwise operator of copies of one entry is computed once, and its result copied."""
    inner = known(at.sole(node.inputs[0], "Expand"))
    if not is_one(inner.inputs[0], at):
        return None
    declared = TensorType(at.dtype(node.outputs[0]), at.shape(inner.inputs[0]))
    one = at.add(node.op, inner.inputs[:1], declared, node.attrs, node.outputs[0])
    return replace(node, op="Expand", inputs=(one, inner.inputs[1]), attrs={})


def _narrower(name: str, at: Draft) -> str | Array | None:
    """A tensor of fewer entries or axes that broadcasts to this one."""
    number = at.uniform(name)
    if number is not None:
        value = at.value(name)
        return None if value is None or value.ndim == 0 else np.asarray(number, value.dtype)
    if not is_one(name, at) and (one := _entry(name, at)) is not None:
        return one
    node = at.node(name, "Expand", "ConstantOfShape", *RESHAPING)
    if node is None or node.op == "Expand":
        return None if node is None else node.inputs[0]
    if node.op == "ConstantOfShape":
        return node.attrs.get("value", np.zeros(1, np.float32)).reshape(())
    before, after = at.shape(node.inputs[0]), at.shape(name)
    if before is None or after is None or None in before:
        return None
    return node.inputs[0] if after == (*[1] * (len(after) - len(before)), *before) else None


def _cover(shapes: Sequence[Shape | None], out: Shape) -> bool:
    """True if tensors of these shapes broadcast to exactly the shape `out`."""
    known = [shape for shape in shapes if shape is not None]
    sizes = ({shape[-i] for shape in known if i <= len(shape)} for i in range(len(out), 0, -1))
    return None not in out and all(dim in found for dim, found in zip(out, sizes, strict=True))


def _entry(name: str, at: Draft) -> str | None:
    """The tensor with one entry of which a tensor holds copies."""
    for _ in range(_MOST_STEPS):
        node = at.node(name, "Expand", "Transpose", *RESHAPING)
        if node is None:
            return None
        name = node.inputs[0]
        if is_one(name, at):
            return name
    return None


def folded(node: Node, at: Draft) -> Array | None:
    """A node of constants is a constant, computed by gradcheck's own kernels in the dtype of the file."""
    values = {name: value for name in node.inputs if name and (value := at.value(name)) is not None}
    if not values or len(values) < len(set(node.inputs) - {""}) or len(node.outputs) > 1 or node.op in DRAWING:
        return None
    given, made = sum(value.nbytes for value in values.values()), _bytes(node.outputs[0], at)
    if made > min(_LARGEST_RESULT, given + _NODE) or given > _LARGEST_OPERANDS or any(node.subgraphs):
        return None
    try:
        found = result(trace(Graph((), node.outputs, (node,), values), {}, ops=OPS, dtype="model"), node.outputs[0])
    except GradcheckError:  # a runtime may still be able to run it
        return None
    return found if found.dtype == at.dtype(node.outputs[0]) else None


def _bytes(name: str, at: Draft) -> int:
    """The bytes of a tensor; NotKnown if that depends on symbolic sizes."""
    sizes = [known(d if isinstance(d, int) else None) for d in known(at.shape(name))]
    return math.prod(sizes) * known(at.dtype(name)).itemsize


def known_sizes(node: Node, at: Draft) -> Found | None:
    """Sizes that are known are constants; other sizes are read once, from the first tensor that has them."""
    dims = _dims(node, at)
    known(at.shape(node.outputs[0]))
    at.sizes[node.outputs[0]] = dims
    rank = 0 if at.shape(node.outputs[0]) == () else 1
    if all(isinstance(d, int) for d in dims):
        return np.array(dims, np.int64).reshape(-1 if rank else ())
    first = at.first(("sizes", rank, dims), node.outputs[0])
    return None if first == node.outputs[0] else first


def known_counts(node: Node, at: Draft) -> Node | None:
    """A product of sizes that is the number of entries of a tensor is the Size of that tensor."""
    name = node.outputs[0]
    at.counts[name] = count = _volume(node, at)
    tensor = at.volumes.get(count)
    return replace(node, op="Size", inputs=(tensor,), attrs={}) if tensor and at.shape(name) == () else None


def _volume(node: Node, at: Draft) -> Volume:
    """The product of sizes that a tensor with one entry holds; NotKnown for other tensors."""
    if not is_one(node.outputs[0], at):
        raise NotKnown
    found = []
    for name in node.inputs[: 1 if node.op != "Mul" else 2]:
        dims = () if name in at.counts else _sizes(name, at)
        found.append(at.counts.get(name) or volume(known(dims if len(dims) == 1 else None)))
    numbers, names = zip(*found, strict=True)
    return math.prod(numbers), tuple(sorted(itertools.chain(*names)))


def _dims(node: Node, at: Draft) -> Shape:
    """The dimensions whose sizes a node outputs; NotKnown unless each has a name or a number."""
    dims: Sequence[Dim] | None = None
    if node.op == "Shape":
        dims = known(at.shape(node.inputs[0]))[slice(node.attrs.get("start", 0), node.attrs.get("end"))]
    elif node.op == "Gather":
        of, index = _sizes(node.inputs[0], at), known(at.value(node.inputs[1]))
        there = index.ndim < 2 and np.all(np.abs(index + 0.5) < len(of))
        dims = [of[i] for i in index.reshape(-1).tolist()] if there else None
    elif node.op in ("Squeeze", "Unsqueeze"):
        of = _sizes(node.inputs[0], at)
        dims = of if len(of) == 1 and at.shape(node.outputs[0]) in ((), (1,)) else None
    elif node.op == "Concat":
        dims = [d for name in node.inputs for d in _sizes(name, at)]
    return known(None if dims is None or None in dims else tuple(dims))


def _sizes(name: str, at: Draft) -> Shape:
    """The dimensions whose sizes a tensor holds; NotKnown for other tensors."""
    value = at.value(name)
    if value is None:
        return known(at.sizes.get(name))
    return tuple(known(value.reshape(-1).tolist() if value.dtype == np.int64 and value.ndim < 2 else None))


MOVES: Rules = {
    **dict.fromkeys(RESHAPING, (in_shape, reduced_in_shape, reshaped_twice)),
    **dict.fromkeys(_OF_REDUCTIONS, (reduced_over_nothing, reduced_twice)),
    "Reshape": (in_shape, reduced_in_shape, reshaped_twice, by_known_shape),
    "Expand": (in_shape,),
    "Transpose": (transposed,),
    "Slice": (whole_slice,),
    "Pad": (nothing_around,),
}
COPIES: Rules = {
    **dict.fromkeys(BROADCASTING, (unexpanded,)),
    **dict.fromkeys(("Neg", "Reciprocal", "Sqrt", "Exp", "Cast"), (copied_last,)),
    "Expand": (expanded_twice, expanded_by_constants),
}
FOLDING: Rules = {"": (folded,)}
SIZES: Rules = {
    **dict.fromkeys(("Shape", "Gather", "Concat"), (known_sizes,)),
    **dict.fromkeys(RESHAPING, (known_sizes, known_counts)),
    "Mul": (known_counts,),
}
