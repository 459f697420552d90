"""One operator bound to a node and run at the point; a failure becomes an error that names the node and its shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np

from gradcheck_cli.errors import GradcheckError, LimitError, ModelError, UnsupportedError
from gradcheck_cli.graph import MAX_RANK, Array
from gradcheck_cli.graph.containers import described
from gradcheck_cli.graph.memory import exhausted
from gradcheck_cli.op import Metadata, Op, bind

Where: TypeAlias = Callable[[], str]  # gives a node's name for messages; called only when an error is raised
Widen: TypeAlias = Callable[[Any], np.dtype[Any]]
_quiet = ContextVar("quiet", default=False)
_NO_THREAD = "Resource temporarily unavailable"  # the system's message when there is no memory for a thread's stack
_FAILURES = (ValueError, TypeError, LookupError, ArithmeticError, RuntimeError)


@contextmanager
def quietly() -> Iterator[None]:
    """Silences NumPy's floating-point warnings while kernels run.

    Entering this once around many kernels saves each of them the time.
    """
    before = _quiet.set(True)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        _quiet.reset(before)


def bound(
    op: Op, attrs: Metadata, inputs: Sequence[Any], *, where: Where, widen: Widen, supplied: Mapping[str, Any]
) -> tuple[tuple[int, ...], dict[str, Any]]:
    """Positions of a node's inputs that are operands, and the metadata for the kernel; see `bind`."""
    try:
        return bind(op, attrs, inputs, cast=widen, supplied=supplied)
    except ModelError as error:
        text, shapes = f"{where()}: {error}", error.shapes or _shapes(inputs)
        raise ModelError(text, code=error.code, op=error.op or op.name, shapes=shapes) from error
    except UnsupportedError as error:
        raise type(error)(f"{where()}: {error}", code=error.code) from error
    except (LimitError, MemoryError) as error:
        raise exhausted(error, where()) from error
    except _FAILURES as error:
        text = f"{where()} does not fit its inputs {_described(inputs)}: {error}"
        raise ModelError(text, op=op.name, shapes=_shapes(inputs)) from error


def run(op: Op, operands: Sequence[Any], metadata: Metadata, *, where: Where, widen: Widen) -> Any:
    """Results of the operator: those of a composed one as they are, those of any other as a list of arrays, widened."""
    if not _quiet.get():
        with quietly():
            return run(op, operands, metadata, where=where, widen=widen)
    try:
        results = op.forward(*operands, **metadata)
        return results if op.composed else [_settled(y, widen) for y in (results if op.many else (results,))]
    except ModelError as error:
        if not error.op:
            error.op, error.shapes = op.name, tuple(_shapes(operands))
        raise
    except GradcheckError:
        raise
    except MemoryError as error:
        raise exhausted(error, where()) from error
    except _FAILURES as error:
        if _NO_THREAD in str(error):
            raise exhausted(MemoryError("no room for a thread"), where()) from error
        text = f"{where()} cannot be computed from {_described(operands)}: {error}"
        raise ModelError(text, op=op.name, shapes=_shapes(operands)) from error


def _settled(result: Any, widen: Widen) -> Array:
    array = np.asarray(result)
    if array.ndim > MAX_RANK:
        raise ValueError(f"the result has {array.ndim} dimensions; at most {MAX_RANK} are possible")
    dtype = widen(array.dtype)
    return array if dtype is array.dtype else array.astype(dtype, copy=False)


def _described(values: Sequence[Any]) -> str:
    return ", ".join(map(described, values)) or "no input"


def _shapes(values: Sequence[Any]) -> list[tuple[int, ...]]:
    """Shapes of arrays and of tensors on a tape; sequences are left out."""
    return [tuple(value.shape) for value in values if hasattr(value, "shape")]
