"""Operators of gradcheck's own that run all steps of an RNN, GRU or LSTM at once, and their gradients.

A check takes them where a layer is smooth (`recurrent`).  Files get the layer unrolled or as a loop, and so does a check
of second derivatives from the start: the rule of a gradient unrolls its layer anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from gradcheck_cli.autodiff import symbolic as sym
from gradcheck_cli.autodiff.backward import gradients, inexact
from gradcheck_cli.autodiff.tape import Tape, Var
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Along, Op, as_given, attributes_of, deciding, trained
from gradcheck_cli.op.batching import BatchingRule, Kernel, Move, Nest, Operands, blank, stack_size
from gradcheck_cli.op.sparsity import EvaluatedNode, Sets
from gradcheck_cli.ops.recurrent import unrolled_in
from gradcheck_cli.ops.recurrent_steps import (
    DEFAULTS,
    LENGTHS,
    RANKS,
    Activation,
    at_point,
    cotangents,
    layer_of,
    led,
    still,
    tangents,
    values,
)

DOMAIN = "gradcheck"
_CACHED, _HELD = 1 << 18, 1 << 25  # bytes of the gates of one step of values, of all steps of cotangents
_OUTPUTS = {"RNN": 2, "GRU": 2, "LSTM": 3}


def padded(operands: Sequence[Any]) -> list[Any]:
    """All eight operands, None for those left out."""
    return [*operands, *[None] * (8 - len(operands))]


def outline(kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> tuple[Array, ...]:
    """The outline rule: the first step of the first sequence is run."""
    x, w, r, b, lengths, h, c, p = padded(operands)
    batch_first = metadata.get("layout", 0)
    first = tuple(None if s is None else s[:1] if batch_first else s[:, :1] for s in (h, c))
    counts = None if lengths is None else np.minimum(lengths[:1], 1)
    ys, *ends = kernel(x[:1, :1], w, r, b, counts, *first, p, **metadata)
    front, size = x.shape[:2], ys.shape[-1]
    ways = len(w)
    shape = (*front, ways, size) if batch_first else (front[0], ways, front[1], size)
    end = (front[0], ways, size) if batch_first else (ways, front[1], size)
    return blank(shape, ys.dtype), *(blank(end, y.dtype) for y in ends)


@attributes_of(layer_of, "wanted")
def forward(op: str, *operands: Array | None, **attrs: Any) -> tuple[Array, ...]:
    """The outputs Y, Y_h and, of an LSTM, Y_c."""
    return values(layer_of(op, **attrs), padded(operands))


def rounding_inside(
    op: str, move: Move, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]
) -> tuple[Array, ...]:
    """The same for stacks, with each result inside of a step moved."""
    x, *rest = operands
    return values(layer_of(op, **metadata), padded([x if probed[0] else x[None], *rest]), move)


def pushforward(
    op: str, operands: Operands, moving: Operands, wanted: Sequence[bool], slope: Any, move: Move | None, **attrs: Any
) -> list[Array | None]:
    """Tangents of the outputs along those of operands; see `tangents`."""
    layer, given, along = layer_of(op, **attrs), padded(operands), padded(moving)
    count = next(len(t) for t in along if t is not None)
    size = max(1, _HELD // max(_step_bytes(given, layer.layout) * given[0].shape[-3 + layer.layout], 1))

    def by_kernel(f: Activation, z: Array) -> Array:
        return slope(f, z)

    made = []
    for i in range(0, count, size):
        part = [None if t is None else np.asarray(t[i : i + size]) for t in along]
        made.append(tangents(layer, given, part, wanted, by_kernel, move or still))
    if len(made) == 1:
        return made[0]
    return [None if parts[0] is None else np.concatenate(parts) for parts in zip(*made, strict=True)]


@attributes_of(layer_of)
def gradient(op: str, *operands: Array | None, wanted: tuple[int, ...], **attrs: Any) -> tuple[Array, ...]:
    """Cotangents of the operands `wanted`, from those of the outputs, which come first."""
    return _gradient(op, still, operands, wanted, attrs)


def gradient_outline(op: str, kernel: Kernel, operands: Operands, metadata: Mapping[str, Any]) -> tuple[Array, ...]:
    """The outline rule: each cotangent has the shape of its operand."""
    given, wanted = operands[_OUTPUTS[op] :], metadata["wanted"]
    dtype = np.result_type(*(x for x in operands if x is not None and x.dtype.kind in "fc"))
    return tuple(blank(x.shape if x is not None and i in wanted else (0,), dtype) for i, x in enumerate(given))


def _gradient(op: str, move: Move, operands: Operands, wanted: Sequence[int], attrs: Mapping[str, Any]) -> Any:
    count = _OUTPUTS[op]
    cts, given = operands[:count], padded(operands[count:])
    made = cotangents(layer_of(op, **attrs), cts, given, wanted, Activation.slope, move)
    ranks = (*(4, 3, 3)[:count], *RANKS)
    found = [np.zeros(0) if y is None else y for y in made[: len(operands) - count]]
    own = [RANKS[i] if i in wanted else 1 for i in range(len(found))]
    return led(found, operands, ranks, own)


def activations(op: str, *operands: Array | None, **attrs: Any) -> Iterator[tuple[str, Array]]:
    """The results of all activations, those of one function together."""
    point = at_point(layer_of(op, **attrs), padded(operands))
    for way, steps in zip(point.ways, point.steps, strict=True):
        found = steps.values
        if op == "RNN":
            yield way.activations[0].name, found["h"]
            continue
        gates = [found[key] for key in ("ur" if op == "GRU" else "io" if way.variant else "iof")]
        yield way.activations[0].name, np.concatenate(gates, -1)
        for function, key in zip(way.activations[1:], "n" if op == "GRU" else "gc", strict=True):
            yield function.name, found[key]


def gradient_rounding_inside(
    op: str, move: Move, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]
) -> Any:
    """The same for stacks, with the coefficients of each step moved."""
    attrs = {key: value for key, value in metadata.items() if key != "wanted"}
    return _gradient(op, move, operands, metadata["wanted"], attrs)


def rule(op: str, cts: Sequence[Var | None], ans: Any, *primals: Var | None, **attrs: Any) -> tuple[Var | None, ...]:
    """All cotangents by one node, which knows those that are wanted."""
    tape = next(x.tape for x in primals if x is not None)
    wanted = tuple(i for i, x in enumerate(primals) if x is not None and inexact(x) and sym.wanted(x))
    if not wanted:
        return (None,) * len(primals)
    names = [tape.fresh(f"{op}Grad_out{i}") if i in wanted else "" for i in range(len(primals))]
    given = {**attrs, "wanted": wanted}
    made = tape.emit(f"{op}Grad", (*cts, *primals), given, domain=DOMAIN, outputs=names)
    return tuple(y if i in wanted else None for i, y in enumerate(made))


def gradient_rule(
    op: str, cts: Sequence[Var | None], ans: Any, *operands: Var | None, wanted: tuple[int, ...], **attrs: Any
) -> tuple[Var | None, ...]:
    """The derivative of the derivative of the layer unrolled."""
    given = next(x.tape for x in operands if x is not None)
    tape = given if given.keeps else Tape(given.ops, dtype=given.dtype, seed=given.seed)

    def own(x: Var | None) -> Var | None:
        """An operand of its own, on a tape that knows its steps."""
        if x is None or (tape is given and not inexact(x)):
            return x
        return sym.identity(x) if tape is given else tape.hold(tape.fresh("operand"), x.value)

    copies, sent = [own(x) for x in operands], [own(ct) for ct in cts]
    seeds, primals = copies[: _OUTPUTS[op]], copies[_OUTPUTS[op] :]
    before, tape.ops = tape.ops, unrolled_in(tape.ops)
    try:
        ys = tape.emit(op, primals, attrs, n_outputs=_OUTPUTS[op])
    finally:
        tape.ops = before
    starts = {y.name: seed for y, seed in zip(ys, seeds, strict=True) if seed is not None}
    ends = zip(wanted, gradients(tape, starts, [x.name for i in wanted if (x := primals[i]) is not None]), strict=True)
    pairs = {end.name: ct for i, end in ends if end is not None and (ct := sent[i]) is not None}
    floats = [x.name for x in copies if x is not None and inexact(x)]
    found = dict(zip(floats, gradients(tape, pairs, floats), strict=True))
    flows = (None if x is None else found.get(x.name) for x in copies)
    return tuple(ct if ct is None or tape is given else given.hold("computed", ct.value) for ct in flows)


def in_parts(first: int, room: int, steps: bool) -> BatchingRule:
    """Runs the kernel for some probes at a time; operand `first` is x, and `steps` says that all steps are held."""

    def run(kernel: Any, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
        layout, given = metadata.get("layout", 0), operands[first:]
        bytes_each = _step_bytes(given, layout) * (given[0].shape[-3 + layout] if steps else 1)
        count, size = stack_size(operands, probed), max(1, room // max(bytes_each, 1))
        if count <= size:
            return kernel(*operands, **metadata)
        pairs = list(zip(operands, probed, strict=True))
        parts = [kernel(*(x[i : i + size] if p else x for x, p in pairs), **metadata) for i in range(0, count, size)]
        return tuple(np.concatenate(made) for made in zip(*parts, strict=True))

    return run


def _step_bytes(operands: Operands, layout: int) -> int:
    """Bytes of the gates of a step."""
    x, _, r = operands[:3]
    return int(x.shape[-2 - layout] * r.shape[-2] * r.itemsize)


def reaching(sets: Sets, node: EvaluatedNode) -> list[Array]:
    """Each step depends on x of its sequence up to it, on the state that its sequence began with, and on all weights."""
    layout, direction = node.metadata.get("layout", 0), node.metadata.get("direction", "forward")
    x, w, r, b, lengths, h, c, p = padded([node.whole(sets, i) for i in range(len(sets))])
    words = next(len(s) for s in sets if s is not None)
    x_shape = node.operands[0].shape
    steps, batch = (x_shape[1], x_shape[0]) if layout else x_shape[:2]
    made = []
    for d in range(2 if direction == "bidirectional" else 1):
        known = np.zeros((words, batch), np.uint64)
        for each in (w, r, b, p):
            known |= 0 if each is None else np.bitwise_or.reduce(each[:, d].reshape(words, -1), axis=1)[:, None]
        for each in (h, c):
            known |= 0 if each is None else np.bitwise_or.reduce(each[:, :, d] if layout else each[:, d], axis=-1)
        known |= 0 if lengths is None else lengths
        by_step = np.zeros((words, steps, batch), np.uint64)
        if x is not None:
            by_step = np.bitwise_or.reduce(x.swapaxes(1, 2) if layout else x, axis=-1)
        turn = slice(None, None, -1 if direction == "reverse" or d == 1 else 1)
        met = np.bitwise_or.accumulate(by_step[:, turn], axis=1) | known[:, None]
        made.append((met[:, turn], met[:, -1]))
    ys = np.stack([met for met, _ in made], 2)[..., None]  # (words, T, directions, N, 1)
    ends = np.stack([last for _, last in made], 2 if layout else 1)[..., None]
    return [np.moveaxis(ys, 3, 1) if layout else ys, *[ends] * (len(node.shapes) - 1)]


def work(first: int, *shapes: tuple[int, ...]) -> float:
    """Operations of a run: the products with W and R of all steps; x is operand `first`."""
    x, w, r = shapes[first : first + 3]
    return 2.0 * prod(x[:-1]) * prod(w[:2]) * (x[-1] + r[-1])


def _operators(op: str) -> list[Op]:
    count = _OUTPUTS[op]
    peepholes = (7,) if op == "LSTM" else ()
    return [
        Op(op, partial(forward, op), partial(rule, op), in_parts(0, _CACHED, False), domain=DOMAIN, many=True,
           bind=as_given, sparsity=reaching, cuts=deciding(LENGTHS), integers={LENGTHS: Along("layout", lengths=True)},
           roles=trained(1, 2, 3, *peepholes), channels=-1, elsewhere="to one", cost=partial(work, 0),
           inside=Nest(partial(rounding_inside, op), partial(pushforward, op), partial(activations, op)), outline=outline,
           does=f"All steps of a smooth {op}."),
        Op(f"{op}Grad", partial(gradient, op), partial(gradient_rule, op), in_parts(count, _HELD, True), domain=DOMAIN,
           many=True, bind=as_given, cuts=deciding(count + LENGTHS), like=count, cost=partial(work, count),
           inside=Nest(partial(gradient_rounding_inside, op)), outline=partial(gradient_outline, op),
           does=f"The cotangents of all operands of {op}."),
    ]  # fmt: skip


WHOLE: list[Op] = [operator for op in DEFAULTS for operator in _operators(op)]
