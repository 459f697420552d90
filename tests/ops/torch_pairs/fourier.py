"""Discrete Fourier transforms, of whole signals and of frames."""

from __future__ import annotations

from typing import Any

import torch

from tests.ops.case import arr, case
from tests.ops.torch_pairs.pair import Pair

FUNCTIONS = {(0, 0): torch.fft.fft, (1, 0): torch.fft.ifft, (0, 1): torch.fft.rfft, (1, 1): torch.fft.irfft}


def transform(x: Any, length: int | None, axis: int, inverse: int, onesided: int) -> Any:
    """DFT by torch of numbers whose last axis holds the real, or the real and the imaginary part."""
    z = torch.view_as_complex(x) if x.shape[-1] == 2 else x[..., 0]
    y = FUNCTIONS[inverse, onesided](z, length, axis)
    return torch.view_as_real(y.resolve_conj()) if y.is_complex() else y[..., None]


def pair(shape: tuple[int, ...], length: int | None, axis: int, inverse: int = 0, onesided: int = 0) -> Pair:
    """DFT; its axis counts the last one in."""
    one = case("DFT", arr(*shape), length, axis, inverse=inverse, onesided=onesided)
    return Pair(one, lambda x, *_: transform(x, length, axis, inverse, onesided))


def frames(size: int, step: int, length: int, *, parts: int = 1, window: bool = True, onesided: int = 1) -> Pair:
    """STFT; torch has the frequencies before the frames."""
    one = case("STFT", arr(2, size, parts), step, arr(length) if window else None, length, onesided=onesided)

    def function(x: Any, step: Any, window: Any, length: Any) -> Any:
        z = torch.view_as_complex(x) if parts == 2 else x[..., 0]
        window = torch.ones(int(length), dtype=x.dtype) if window is None else window
        options = {"center": False, "onesided": bool(onesided), "return_complex": True}
        return torch.view_as_real(torch.stft(z, int(length), int(step), window=window, **options)).transpose(1, 2)

    return Pair(one, function)


PAIRS = [
    *[pair((2, 6, parts), length, 1, inverse) for parts in (1, 2) for length in (None, 4, 9) for inverse in (0, 1)],
    *[pair((2, size, 1), length, 1, onesided=1) for size, length in [(6, None), (5, None), (6, 9)]],
    *[pair((2, 5, 2), length, 1, 1, 1) for length in (None, 3, 4, 5, 6, 11, 12)],
    pair((3, 4, 2), None, 0),
    pair((4, 3, 2), 5, 0, 1, 1),
    *[frames(11, 3, 4), frames(11, 2, 5), frames(9, 4, 3, window=False), frames(11, 3, 5, onesided=0)],
    frames(11, 3, 4, parts=2, onesided=0),
]
