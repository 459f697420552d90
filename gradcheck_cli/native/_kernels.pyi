from collections.abc import Sequence
from enum import Enum
from typing import Any

from numpy.typing import NDArray

def matmul(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], twofold: bool, /) -> bool: ...
def conv(
    x: NDArray[Any],
    w: NDArray[Any],
    out: NDArray[Any],
    twofold: bool,
    strides: Sequence[int],
    dilations: Sequence[int],
    group: int,
    /,
) -> bool: ...
def chain(code: bytes, arrays: Sequence[NDArray[Any]], operands: int, hidden: int, twofold: bool, /) -> bool: ...

class Pool(Enum):
    MAXIMA = ...
    WINNERS = ...
    SUMS = ...
    SPREAD = ...

def pool(
    kind: Pool,
    x: NDArray[Any],
    y: NDArray[Any],
    places: NDArray[Any] | None,
    geometry: Sequence[Sequence[int]],
    code: str,
) -> None: ...
def take_at(x: NDArray[Any], places: NDArray[Any], y: NDArray[Any], size: int, /) -> bool: ...
def add_at(x: NDArray[Any], places: NDArray[Any], y: NDArray[Any], code: str, /) -> bool: ...
def copy_boxes(
    tensor: NDArray[Any],
    starts: Sequence[NDArray[Any] | None],
    lengths: Sequence[int],
    dense: NDArray[Any],
    back: bool,
    /,
) -> bool: ...
def recurrence(
    cell: int,
    push: bool,
    backwards: bool,
    sizes: Sequence[int],
    point: Sequence[NDArray[Any]],
    counts: NDArray[Any] | None,
    given: Sequence[NDArray[Any] | None],
    made: Sequence[NDArray[Any] | None],
    twofold: bool,
) -> None: ...
def raise_largest(
    given: NDArray[Any],
    right: NDArray[Any],
    largest: NDArray[Any],
    effect: NDArray[Any] | None,
    by: NDArray[Any] | None,
) -> None: ...
def screen(
    given: NDArray[Any],
    right: NDArray[Any],
    largest: NDArray[Any],
    effect: NDArray[Any] | None,
    scale: NDArray[Any] | None,
    slack: float,
    negligible: float,
    atol: float,
    open: int,
    status: NDArray[Any],
) -> None: ...
def farthest(
    given: NDArray[Any],
    right: NDArray[Any],
    largest: NDArray[Any],
    effect: NDArray[Any] | None,
    scale: NDArray[Any] | None,
    ground: float,
    floor: float,
) -> list[float] | None: ...
def first_free(
    starts: NDArray[Any],
    column: NDArray[Any],
    columns: int,
    most: int,
    look: int,
    longest: int,
    colors: NDArray[Any],
    /,
) -> bool: ...
def by_column(
    starts: NDArray[Any],
    column: NDArray[Any],
    columns: int,
    row_out: NDArray[Any],
    column_out: NDArray[Any],
    /,
) -> None: ...
def threads() -> int: ...
def set_threads(count: int, /) -> None: ...
def set_single_threaded(on: bool, /) -> bool: ...
def isa() -> str: ...
def available() -> list[str]: ...
def select(name: str, /) -> bool: ...
