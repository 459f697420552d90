"""Values that are given to tensors inside a model: in the shape and the kind of numbers that the model computes there.

No file declares those, so the model is run once as far as these tensors, without the given values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradcheck_cli.autodiff.tape import Var
from gradcheck_cli.autodiff.trace import trace
from gradcheck_cli.errors import UsageError
from gradcheck_cli.graph import Array, Graph, is_inexact
from gradcheck_cli.graph.containers import COMPOUND
from gradcheck_cli.op import Ops
from gradcheck_cli.points.dims import open_dims
from gradcheck_cli.settings import Settings


def as_computed(
    graph: Graph, feeds: Mapping[str, Any], settings: Settings, ops: Ops, known: Mapping[str, int]
) -> dict[str, Any]:
    """The feeds, those of tensors inside made to fit; a number fills its tensor.

    `known` are the sizes that were given: while others are open, a value may have sizes of its own.
    UsageError for a value that does not fit.  Behind what cannot be run a value stays as it is.
    """
    given = {**settings.x_init_value, **settings.extra_feed_dict}
    inner = [name for name in given if name in feeds and name not in graph.inputs and name not in graph.constants]
    if not inner:
        return dict(feeds)
    outer = {name: value for name, value in feeds.items() if name not in inner}
    tape = trace(graph, outer, ops=ops, dtype=settings.run_in, seed=settings.seed, targets=inner, lenient=True)
    fixed = set(open_dims(graph)) <= set(known)
    made = {name: _fitted(name, feeds[name], tape.named[name], fixed) for name in inner if name in tape.named}
    return {**feeds, **made}


def _fitted(name: str, value: Any, computed: Var, fixed: bool) -> Any:
    if isinstance(value, COMPOUND):
        return value
    array: Array = np.asarray(value)
    if array.ndim == 0:
        array = np.broadcast_to(array, computed.shape)
    if array.ndim != len(computed.shape) or (fixed and array.shape != computed.shape):
        given, wanted = (f"[{','.join(map(str, shape))}]" for shape in (array.shape, computed.shape))
        raise UsageError(f"the value given for {name!r} has shape {given}, not {wanted}.")
    real = array.dtype.kind in "iub" or (is_inexact(array.dtype) and array.dtype.kind != "c")
    with np.errstate(all="ignore"):  # infinity is what the model would get, too
        return array.astype(computed.dtype) if real and is_inexact(computed.dtype) else array
