"""Pictures as a model takes them.

Input -> Output: an image file and a stated preprocessing -> float32 [channels, height, width] or
[height, width, channels].
Requires: Pillow.
Not here: batches (data).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.core.errors import BadOption, UserError
from tilewright.graph.view import ValueView

Array = npt.NDArray[Any]

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm")
_COLOURS = ("RGB", "BGR", "L")
_LAYOUTS = ("NCHW", "NHWC")
_WIDE_MODES = ("I", "F")  # of Pillow; converting them cuts off what is above 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """What is done to the pixels, 0 .. 255, of a picture: ``(pixel - mean) / std``.

    Attributes:
        mean, std: one number, or one a channel.
        size: [height, width] to resize to, bilinear, after a centred crop to that shape; None: the
            model's own, and pictures of another size are refused where it has none.
        colour: ``RGB``, ``BGR``, or ``L`` for one channel.
        layout: ``NCHW`` or ``NHWC``.
    """

    mean: Sequence[float] | float
    std: Sequence[float] | float
    size: tuple[int, int] | None = None
    colour: str = "RGB"
    layout: str = "NCHW"

    def __post_init__(self) -> None:
        for name, given, known in (
            ("colour", self.colour, _COLOURS),
            ("layout", self.layout, _LAYOUTS),
        ):
            if given not in known:
                raise BadOption(f"unknown {name} {given!r}", remedy=f"use {', '.join(known)}")
        channels = 1 if self.colour == "L" else 3
        for name, numbers in (("mean", self.mean), ("std", self.std)):
            array = np.asarray(numbers, np.float64)
            if array.size not in (1, channels) or not np.isfinite(array).all():
                raise BadOption(f"{name} is {numbers!r}", remedy=f"give one number, or {channels}")
        if not np.all(np.asarray(self.std, np.float64)):
            raise BadOption("std is 0", remedy="give what pixels are divided by, as 128")


def read_picture(file: Path, spec: ValueView, how: Preprocessing) -> Array:
    """One picture.

    Raises:
        UserError: it cannot be read, or has another size than the model takes.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise BadOption(
            "pictures need Pillow", remedy="pip install pillow, or save arrays as .npy"
        ) from error
    try:
        with Image.open(file) as opened:
            if opened.mode.startswith(_WIDE_MODES):
                raise UserError(
                    f"has pixels of more than 8 bits ({opened.mode})",
                    file=str(file),
                    remedy="save it with 8 bits, or save arrays as .npy",
                )
            picture: Any = opened.convert("L" if how.colour == "L" else "RGB")
            size = how.size or _size_of(spec, how.layout)
            if size is not None and picture.size != (size[1], size[0]):
                picture = _resized(picture, size)
            pixels = np.asarray(picture, np.float32)
    except UserError:
        raise
    except Exception as error:  # of Pillow's decoders, which raise whatever they like
        raise UserError(
            f"is no picture that can be read: {error}",
            file=str(file),
            remedy="remove it from the folder, or mend it",
        ) from error
    if how.colour == "L":
        pixels = pixels[..., None]
    elif how.colour == "BGR":
        pixels = pixels[..., ::-1]
    mean, std = np.asarray(how.mean, np.float32), np.asarray(how.std, np.float32)
    scaled = (pixels - mean) / std
    return np.ascontiguousarray(scaled.transpose(2, 0, 1) if how.layout == "NCHW" else scaled)


def _size_of(spec: ValueView, layout: str) -> tuple[int, int] | None:
    """Height and width that the model takes, None where it leaves them open."""
    if spec.shape is None or len(spec.shape) != 4:
        return None
    dims = spec.shape[2:] if layout == "NCHW" else spec.shape[1:3]
    if not all(dim.is_const for dim in dims):
        return None
    height, width = (int(dim.const) for dim in dims)
    return height, width


def _resized(picture: Any, size: tuple[int, int]) -> Any:
    """A centred crop of the wanted shape, then bilinear."""
    height, width = size
    scale = min(picture.width / width, picture.height / height)
    left = (picture.width - width * scale) / 2
    top = (picture.height - height * scale) / 2
    box = (left, top, left + width * scale, top + height * scale)
    return picture.resize((width, height), resample=2, box=box)  # 2: bilinear
