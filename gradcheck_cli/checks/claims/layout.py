"""How claimed numbers stand for a derivative, by their shape: as a cotangent of x, or as a whole Jacobian."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from gradcheck_cli.graph import Array

Shape = tuple[int, ...]
COTANGENT = "as x"


class Layout(NamedTuple):
    """The order of axes, and what makes of such numbers the Jacobian `(x_size, y_size)`, or `(x_size, 1)` of a sum of y."""

    order: str
    read: Callable[[Array], Array]


def layouts(shape: Shape, x: Shape, y: Shape | None) -> list[Layout]:
    """What numbers of a shape may stand for; nothing where it fits neither way. y is None for a sum of several."""
    rows = math.prod(x)
    if shape in (x, (*x, 1), (rows, 1)):  # the last two are those of tools that take several seeds at once, one here
        return [Layout(COTANGENT, lambda values: values.reshape(-1, 1))]
    if y is None:
        return []
    columns = math.prod(y)
    before = {(columns, *x): "[entries of y, x...]", (*y, *x): "[y..., x...]"}
    behind = {(*x, columns): "[x..., entries of y]", (*x, *y): "[x..., y...]"}
    found = [Layout(before[shape], lambda values: values.reshape(columns, rows).T)] if shape in before else []
    return found + ([Layout(behind[shape], lambda values: values.reshape(rows, columns))] if shape in behind else [])


def expected(x: Shape, y: Shape | None) -> str:
    """The shapes that would fit."""
    shapes = dict.fromkeys([x] if y is None else [x, (*y, *x), (*x, *y)])
    return " or ".join(f"[{','.join(map(str, shape))}]" for shape in shapes)
