"""Batching rules: each runs a kernel, which knows one point only, for a whole stack of probes at once (as JAX's vmap).

Kernels never see the probe axis.  A probed operand comes as `(P, *shape)`, the others as they are; metadata counts
axes from the end, so that a leading axis moves nothing.  Every rule gives what `loop` gives; `loop` is the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from gradcheck_cli.graph import Array

Kernel: TypeAlias = Callable[..., Any]
Operands: TypeAlias = Sequence[Any]  # arrays, None for one that is left out
BatchingRule: TypeAlias = Callable[[Kernel, Operands, Sequence[bool], Mapping[str, Any]], Any]


class Ragged(Exception):
    """Raised if results of the probes differ in shape, so that they make no stack; each probe must run alone."""


def loop(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
    """Runs the kernel for one probe after the other; right for every kernel."""
    count = stack_size(operands, probed)
    pairs = list(zip(operands, probed, strict=True))
    results = [kernel(*[x[i] if p else x for x, p in pairs], **metadata) for i in range(count)]
    if isinstance(results[0], tuple):
        return tuple(_stack(column) for column in zip(*results, strict=True))
    return _stack(results)


def trailing(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
    """For kernels that count axes from the end and take any leading axes of the probed operands."""
    return kernel(*operands, **metadata)


def elementwise(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
    """For operands that broadcast: a probed one of lower rank gets its missing axes behind the probe axis."""
    rank = max(x.ndim - p for x, p in zip(operands, probed, strict=True) if x is not None)
    return kernel(*[raised(x, rank) if p else x for x, p in zip(operands, probed, strict=True)], **metadata)


def aligned(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
    """For operands that must agree in their leading axes: those without the probe axis are broadcast over it."""
    count = stack_size(operands, probed)
    pairs = zip(operands, probed, strict=True)
    return kernel(*[x if p or x is None else np.broadcast_to(x, (count, *x.shape)) for x, p in pairs], **metadata)


def shaped(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
    """For one operand and a shape in metadata: that gets the probe axis in front, the operand its missing axes behind."""
    (x,), shape = operands, metadata["shape"]
    return kernel(raised(x, len(shape)), **{**metadata, "shape": (len(x), *shape)})


class On(Struct, frozen=True):
    """A rule for the case that only the operands `allowed` are probed; else `loop`."""

    allowed: frozenset[int]
    rule: BatchingRule

    def holds(self, probed: Sequence[bool]) -> bool:
        """True if no other operand is probed."""
        return all(i in self.allowed for i, p in enumerate(probed) if p)

    def __call__(self, kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
        return (self.rule if self.holds(probed) else loop)(kernel, operands, probed, metadata)


def on(*allowed: int, rule: BatchingRule = trailing) -> BatchingRule:
    """`rule` if only the operands `allowed` are probed, else `loop`."""
    return On(frozenset(allowed), rule)


def takes_stacks(rule: BatchingRule, ranks: Sequence[int], probed: Sequence[bool]) -> bool:
    """True if all that a rule does for operands of these ranks is to call the kernel, which takes stacks as they are."""
    if isinstance(rule, On):
        return rule.holds(probed) and takes_stacks(rule.rule, ranks, probed)
    full = all(rank == max(ranks) for rank, p in zip(ranks, probed, strict=True) if p)
    return rule is trailing or (rule is elementwise and full)


def shape_only(kernel: Kernel, operands: Operands, probed: Sequence[bool], metadata: Mapping[str, Any]) -> Any:
    """For operators that read no values: a probe never reaches their outputs, and a program leaves them out."""
    return loop(kernel, operands, probed, metadata)


def stack_size(operands: Operands, probed: Sequence[bool]) -> int:
    """The number of probes."""
    return int(next(len(x) for x, p in zip(operands, probed, strict=True) if p))


def raised(x: Array, rank: int) -> Array:
    """A stack `(P, *shape)` of tensors of a rank: missing axes stand behind the probe axis."""
    return x.reshape(len(x), *(1,) * (rank + 1 - x.ndim), *x.shape[1:])


def _stack(results: Sequence[Any]) -> Array:
    arrays = [np.asarray(r) for r in results]
    if any(a.shape != arrays[0].shape for a in arrays):
        raise Ragged
    return np.stack(arrays)
