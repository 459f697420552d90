"""Discrete Fourier transforms."""

from __future__ import annotations

from typing import Any

import torch

from tests.ops.case import arr, case
from tests.ops.torch_pairs.pair import Pair


def transform(x: Any, length: int | None, axis: int, inverse: int, onesided: int) -> Any:
    """DFT by torch of numbers whose last axis holds the real, or the real and the imaginary part."""
    z = torch.view_as_complex(x) if x.shape[-1] == 2 else x[..., 0]
    function = {(0, 0): torch.fft.fft, (1, 0): torch.fft.ifft, (0, 1): torch.fft.rfft}[inverse, onesided]
    return torch.view_as_real(function(z, length, axis))


def pair(shape: tuple[int, ...], length: int | None, axis: int, inverse: int = 0, onesided: int = 0) -> Pair:
    """DFT; its axis counts the last one in."""
    one = case("DFT", arr(*shape), length, axis, inverse=inverse, onesided=onesided)
    return Pair(one, lambda x, *_: transform(x, length, axis, inverse, onesided))


PAIRS = [
    *[pair((2, 6, parts), length, 1, inverse) for parts in (1, 2) for length in (None, 4, 9) for inverse in (0, 1)],
    *[pair((2, size, 1), length, 1, onesided=1) for size, length in [(6, None), (5, None), (6, 9)]],
    pair((3, 4, 2), None, 0),
]
