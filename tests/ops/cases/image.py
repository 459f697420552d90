"""Compressed images; how they are decoded is compared with ONNX's own cases."""

import numpy as np

from tests.ops.case import case

PIXELS = b"P6 2 1 255\n" + bytes([255, 0, 0, 0, 128, 64])  # a red one and a green one, in Netpbm's format

CASES = [
    *[case("ImageDecoder", np.frombuffer(PIXELS, np.uint8), pixel_format=f) for f in ("RGB", "BGR", "Grayscale")],
    case("ImageDecoder", np.frombuffer(b"no image", np.uint8), label="no image"),
]
