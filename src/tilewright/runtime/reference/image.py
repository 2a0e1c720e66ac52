"""ImageDecoder, through Pillow when it is installed.

Guarantees: [height, width, channels] uint8; bytes that are not an image give an empty image, as
ONNX asks; without Pillow an `OperatorError` says so.
"""

from __future__ import annotations

import importlib
import io

import numpy as np

from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.registry import Call, Outputs, operator


@operator("ImageDecoder", since=20)
def image_decoder(call: Call, encoded: Array) -> Outputs:
    pixels = call.choice("pixel_format", "RGB", ("RGB", "BGR", "Grayscale"))
    try:
        images = importlib.import_module("PIL.Image")
    except ImportError as error:
        raise call.error("needs the package Pillow") from error
    channels = 1 if pixels == "Grayscale" else 3
    try:
        with images.open(io.BytesIO(encoded.tobytes())) as image:
            decoded = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    except (OSError, SyntaxError):  # what Pillow raises on damaged or unknown data
        return (np.zeros((0, 0, channels), np.uint8),)
    decoded = decoded.reshape(*decoded.shape[:2], channels)
    return (decoded[:, :, ::-1] if pixels == "BGR" else decoded,)
