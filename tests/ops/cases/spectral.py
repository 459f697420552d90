"""DFT and STFT of real and complex numbers, whole and by half; windows; mel filters."""

import numpy as np

from tests.ops.case import Case, arr, case

REAL, COMPLEX = arr(2, 5, 1), arr(2, 5, 2)


def dft(x: np.ndarray, length: int | None = None, axis: int | None = None, **attrs: int) -> Case:
    """A case with static inputs left out where they have their defaults."""
    inputs = [x, *([length] if length or axis is not None else []), *([axis] if axis is not None else [])]
    return case("DFT", *inputs, label=f"to {length}" if length else "", **attrs)


CASES = [
    *[dft(x, length, inverse=inverse) for x in (REAL, COMPLEX) for length in (None, 3, 8) for inverse in (0, 1)],
    *[dft(REAL, length, onesided=1) for length in (None, 4, 7, 8)],
    *[dft(COMPLEX, length, onesided=1, inverse=1) for length in (None, 3, 5, 6, 12, 13)],
    dft(arr(1, 1, 1), onesided=1),
    dft(arr(3, 4, 2), axis=0),
    dft(arr(3, 4, 2), 5, axis=-3, inverse=1),
    dft(arr(4, 3, 1), 5, axis=0, onesided=1),
    dft(arr(4, 3, 2), 5, axis=-3, onesided=1, inverse=1),
    dft(arr(3, 1), axis=0),
    case("STFT", arr(2, 9, 1), 2, arr(4), 4),
    case("STFT", arr(2, 9, 1), 2, arr(4), label="length of the window"),
    case("STFT", arr(1, 9, 1), 4, None, 3, label="no window"),
    case("STFT", arr(1, 4, 1), 1, label="one frame"),
    case("STFT", arr(1, 7), 3, None, 3, label="no axis of parts"),
    case("STFT", arr(1, 9, 1), 2, arr(4), 4, onesided=0),
    case("STFT", arr(1, 9, 2), 2, arr(5), 5, onesided=0),
    case("STFT", arr(1, 9, 2), 2, arr(4), 4, label="half of a complex spectrum"),
    *[
        case(f"{kind}Window", size, periodic=p)
        for kind in ("Hann", "Hamming", "Blackman")
        for size in (6, 7)
        for p in (0, 1)
    ],
    case("HannWindow", 0),
    case("HannWindow", [5], output_datatype=11),
    case("HammingWindow", 9, periodic=0, output_datatype=7),
    case("BlackmanWindow", 3, output_datatype=1),
    case("MelWeightMatrix", 4, 16, 8192, 20.0, 4096.0),
    case("MelWeightMatrix", [3], [33], [16000], [125.0], [7600.0], output_datatype=11),
    case("MelWeightMatrix", 6, 9, 8192, 300.0, 1500.0, label="narrow bands"),
    case("MelWeightMatrix", 0, 8, 8192, 20.0, 4096.0, label="none"),
]
