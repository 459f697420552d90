"""A case together with the function of torch that does the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from tests.ops.case import Case


@dataclass(frozen=True)
class Pair:
    """`function` takes a tensor (None if left out) for each input of the case and gives its first outputs.

    `relative` is the error allowed in float64, relative to the largest entry; `ignore` names inputs for which
    torch has no gradient, or another one by its own definition.
    """

    case: Case
    function: Callable[..., Any]
    relative: float = 1e-11
    ignore: tuple[str, ...] = ()

    @cached_property
    def leaves(self) -> dict[str, Any]:
        """Tensors for the inputs, by name (by position where left out)."""
        pairs = enumerate(zip(self.case.names, self.case.inputs, strict=True))
        return {name or str(i): leaf(value) for i, (name, value) in pairs}


def leaf(value: Any) -> Any:
    """A tensor that asks for its gradient where it can have one."""
    if value is None:
        return None
    tensor = torch.as_tensor(value.copy())
    return tensor.requires_grad_() if tensor.is_floating_point() else tensor


def spatial_pad(x: Any, pads: tuple[int, ...], value: float = 0.0) -> Any:
    """x with ONNX's `pads` around its last axes (negative: cut off)."""
    half = len(pads) // 2
    flat = [width for axis in reversed(range(half)) for width in (pads[axis], pads[axis + half])]
    return torch.nn.functional.pad(x, flat, value=value)
