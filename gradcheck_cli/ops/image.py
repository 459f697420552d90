"""ImageDecoder: the pixels of a compressed image, by Pillow, where that is installed."""

from __future__ import annotations

import io
import warnings

import numpy as np

from gradcheck_cli.errors import LimitError, UnsupportedError
from gradcheck_cli.graph import Array
from gradcheck_cli.op import Op, zero

_FORMATS = ("BMP", "DIB", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")
_PIXELS = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}  # Pillow's mode for each


def image_decoder(stream: Array, *, pixel_format: str = "RGB") -> Array:
    """Pixels (height, width, channels) of an image file in a vector of bytes; none where it is no image."""
    if pixel_format not in _PIXELS:
        raise ValueError(f"pixel_format is {pixel_format!r}; known are {', '.join(_PIXELS)}")
    try:
        from PIL import Image
    except ImportError:
        text = "ImageDecoder needs Pillow: pip install 'gradcheck-cli[operators]'"
        raise UnsupportedError(text, code="GC502") from None
    mode = _PIXELS[pixel_format]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.filterwarnings("ignore", category=UserWarning)  # of damaged metadata
            with Image.open(io.BytesIO(stream.astype(np.uint8).tobytes()), formats=_FORMATS) as image:
                pixels = np.asarray(image.convert(mode))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise LimitError(f"an image is too large: {error}", code="GC602") from None
    except (OSError, ValueError, SyntaxError, EOFError):
        return np.zeros((0, 0, len(mode)), np.uint8)
    return pixels.reshape(*pixels.shape[:2], -1)[:, :, :: -1 if pixel_format == "BGR" else 1]


IMAGE: list[Op] = [Op("ImageDecoder", image_decoder, zero)]
