"""Sequences and optionals: their operators dissolve into operators on the tensors inside.

Values that steer (a position, the sizes of pieces) are kept on the tape as guards, as in control flow.  A tensor taken
out of a sequence or an optional is a new tensor, so that it can be asked for by name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.tape import MAX_STEPS, Tape, Var
from gradcheck_cli.autodiff.trace import GraphFunction
from gradcheck_cli.errors import LimitError, counted
from gradcheck_cli.graph import TensorType
from gradcheck_cli.graph.containers import CONTAINERS, Optional, Sequence, described, element, mapped
from gradcheck_cli.op import Op, composite, from_end, on_containers


def sequence_construct(*items: Any) -> Sequence:
    """A sequence of the operands."""
    _require_one_dtype(*items)
    return Sequence(items)


def sequence_insert(sequence: Any, tensor: Any, position: Var | None = None) -> Sequence:
    """The sequence with one more tensor before `position`, or at its end by default."""
    items = items_of(sequence)
    at = len(items) if position is None else _position(position, len(items), len(items))
    _require_one_dtype(*items[:1], tensor)  # the others have that of the first: a loop may have inserted many
    return Sequence((*items[:at], tensor, *items[at:]))


def sequence_erase(sequence: Any, position: Var | None = None) -> Sequence:
    """The sequence without the tensor at `position`, the last by default."""
    items = items_of(sequence)
    if position is None and not items:
        raise ValueError("there is nothing to erase")
    at = len(items) - 1 if position is None else _position(position, len(items), len(items) - 1)
    return Sequence(items[:at] + items[at + 1 :])


def sequence_at(sequence: Any, position: Var) -> Any:
    """The tensor at a position."""
    items = items_of(sequence)
    return mapped(sym.identity, items[_position(position, len(items), len(items) - 1)])


def sequence_map(sequence: Any, *others: Any, body: GraphFunction) -> tuple[Sequence, ...]:
    """The body's results for each tensor, with the tensors at its place in other sequences, and tensors for all."""
    items = items_of(sequence)
    for other in others:
        if isinstance(other, Sequence) and len(other.items) != len(items):
            raise ValueError(f"sequences of {len(items)} and {len(other.items)} do not go together")
    if len(body.graph.inputs) != 1 + len(others):
        raise ValueError(f"the body takes {counted(len(body.graph.inputs), 'input')}, not {1 + len(others)}")
    rows = []
    for i, item in enumerate(items):
        with body.tape.scope(f"item{i}"):
            rows.append(body(item, *[o.items[i] if isinstance(o, Sequence) else o for o in others]))
    return tuple(sequence_construct(*[row[k] for row in rows]) for k in range(len(body.graph.outputs)))


def split_to_sequence(x: Var, split: Var | None = None, *, axis: int = 0, keepdims: int = 1) -> Sequence:
    """Pieces of x along an axis: single entries, of one length (the last may be shorter), or of given lengths."""
    axis = from_end(axis, x.ndim)
    sizes = [1] * x.shape[axis] if split is None else _sizes(split, x.shape[axis])
    if len(sizes) > MAX_STEPS:
        raise LimitError(f"a sequence of {len(sizes):,} tensors; at most {MAX_STEPS:,} are possible", code="GC602")
    pieces = sym.split(x, sizes, axis) if sizes else ()
    return Sequence(tuple(pieces if keepdims or split is not None else (sym.squeeze(p, (axis,)) for p in pieces)))


def concat_from_sequence(sequence: Any, *, axis: int, new_axis: int = 0) -> Var:
    """The tensors concatenated along an axis, or stacked along a new one."""
    items = items_of(sequence)
    if not items:
        raise ValueError("there is nothing to put together")
    rank = max(item.ndim for item in items) + bool(new_axis)
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of range for {counted(rank, 'dimension')}")
    pieces = [sym.unsqueeze(item, (axis,)) for item in items] if new_axis else items
    whole = sym.concat(pieces, axis)
    return sym.identity(whole) if len(pieces) == 1 else whole


def optional(value: Any = None, *, type: TensorType | None = None) -> Optional:
    """An optional that holds the operand, or nothing."""
    if value is None and type is None:
        raise ValueError("an optional without an element needs the attribute 'type'")
    return Optional(value)


def optional_has_element(value: Any = None, *, tape: Tape) -> Var:
    """True unless it is an empty optional or left out."""
    held = value.content if isinstance(value, Optional) else value
    return tape.constant(held is not None)


def optional_get_element(value: Any) -> Any:
    """The content of an optional; a tensor or a sequence as it is."""
    held = value.content if isinstance(value, Optional) else value
    if held is None:
        raise ValueError("the optional is empty")
    return mapped(sym.identity, held)


def _require_one_dtype(*items: Any) -> None:
    dtypes = sorted({item.dtype.name for item in items if isinstance(item, Var)})
    if len(dtypes) > 1:
        raise ValueError(f"the tensors of a sequence are of one dtype, not {' and '.join(dtypes)}")


def items_of(value: Any) -> tuple[Any, ...]:
    """The elements of a sequence."""
    if not isinstance(value, Sequence):
        kind = described(value) if isinstance(value, CONTAINERS) else "a tensor"
        raise ValueError(f"a sequence is needed, not {kind}")
    return value.items


def _position(position: Any, count: int, most: int) -> int:
    """A position counted from the front; a negative one counts from the end."""
    if isinstance(position, CONTAINERS) or position.size != 1 or position.dtype.kind not in "iu":
        raise ValueError(f"a position is one integer, not {described(position)}")
    at = int(position.tape.guard(position).item())
    if not -count <= at <= most:
        raise ValueError(f"position {at} is out of range in a sequence of {count}")
    return at + count if at < 0 else at


def _sizes(split: Any, length: int) -> list[int]:
    """Lengths of pieces: from a vector, or from one length for all but the last."""
    value = split.tape.guard(split)
    if value.ndim:
        sizes = [int(size) for size in value.ravel()]
    else:
        chunk = int(value)
        if chunk < 1:
            raise ValueError(f"pieces of length {chunk} are not possible")
        sizes = [min(chunk, length - start) for start in range(0, length, chunk)]
    if sum(sizes) != length or min(sizes, default=0) < 0:
        raise ValueError(f"lengths {sizes} do not make {length}")
    return sizes


SEQUENCE: list[Op] = [
    on_containers("SequenceEmpty", lambda *, dtype=np.float32: Sequence(), does="An empty sequence."),
    on_containers("SequenceConstruct", sequence_construct),
    on_containers("SequenceInsert", sequence_insert),
    on_containers("SequenceErase", sequence_erase),
    on_containers("SequenceAt", sequence_at),
    on_containers("SequenceLength", lambda sequence, *, tape: tape.constant(len(items_of(sequence)), np.int64),
                  does="The number of tensors."),
    on_containers("SequenceMap", sequence_map),
    composite("SplitToSequence", split_to_sequence),
    on_containers("ConcatFromSequence", concat_from_sequence),
    on_containers("Optional", optional),
    on_containers("OptionalHasElement", optional_has_element),
    on_containers("OptionalGetElement", optional_get_element),
    on_containers("Element", lambda value, *, index: mapped(sym.identity, element(value, index)), domain="gradcheck",
                  does="The element of a sequence, an optional, or a map (all of its values) at a place."),
]  # fmt: skip
