"""Reads a picture: finds lines, turns those that are upside down, recognises their characters.

Picture -> ``Page`` of lines with scores, boxes and the seconds that each stage took.
Requires: three ``Runner``s (what executes a network) and the recogniser's alphabet.
Not here: making runners (runners), regions in the probability map (boxes).
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from tilewright.demo.boxes import Box, Floats, find_boxes

Arrays = dict[str, npt.NDArray[Any]]
Feeds = Mapping[str, npt.NDArray[Any]]
T = TypeVar("T")

DETECTOR_MULTIPLE = 32  # the detector halves its picture five times
DETECTOR_MIN_SIDE = 736  # smaller pictures are enlarged, as in the detector's training
LINE_HEIGHT = 48
CLASSIFIER_WIDTH = 192
MIN_LINE_WIDTH = 320
LINE_WIDTH_MULTIPLE = 8
UPSIDE_DOWN_SCORE = 0.9


class Runner(Protocol):
    """Executes one network: arrays by input name -> arrays by output name."""

    def __call__(self, feeds: Feeds, /) -> Arrays:
        """Runs once and returns when the outputs are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of text: its characters, the mean probability of them, where it is, how it stood."""

    text: str
    score: float
    box: Box
    is_upside_down: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What was read, and the seconds that each stage took, all lines together."""

    lines: Sequence[Line]
    stage_s: Mapping[str, float]


@dataclass(slots=True)
class Stopwatch:
    """Adds up the seconds of named stages."""

    seconds: dict[str, float] = field(default_factory=dict)

    def time(self, stage: str, work: Callable[[], T]) -> T:
        """Runs ``work`` and adds its time to ``stage``."""
        start = time.perf_counter()
        result = work()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """The three networks of text recognition, joined."""

    detect: Runner
    classify: Runner
    recognise: Runner
    alphabet: Sequence[str]

    def read(self, picture: Image.Image) -> Page:
        """Reads a picture of any size and mode."""
        picture = picture.convert("RGB")
        watch = Stopwatch()
        pixels = watch.time("other", lambda: detector_input(picture))
        (probabilities,) = watch.time("detection", lambda: self.detect({"x": pixels})).values()
        boxes = watch.time("other", lambda: boxes_in(picture, probabilities[0, 0]))
        lines = [self._read_line(picture, box, watch) for box in boxes]
        return Page(lines=[line for line in lines if line.text], stage_s=watch.seconds)

    def _read_line(self, picture: Image.Image, box: Box, watch: Stopwatch) -> Line:
        crop = watch.time("other", lambda: cut_out(picture, box))
        pixels = watch.time("other", lambda: line_input(crop, CLASSIFIER_WIDTH, CLASSIFIER_WIDTH))
        (turned,) = watch.time("direction", lambda: self.classify({"x": pixels})).values()
        is_upside_down = bool(turned[0, 1] > UPSIDE_DOWN_SCORE)
        if is_upside_down:
            crop = crop.transpose(Image.Transpose.ROTATE_180)
        pixels = watch.time("other", lambda: line_input(crop, MIN_LINE_WIDTH))
        (scores,) = watch.time("recognition", lambda: self.recognise({"x": pixels})).values()
        text, score = decode(scores[0], self.alphabet)
        return Line(text=text, score=score, box=box, is_upside_down=is_upside_down)


def alphabet_of(metadata: Mapping[str, str]) -> list[str]:
    """Returns the recogniser's characters by index from its metadata: a blank, the listed, a space.

    Raises:
        KeyError: the network's metadata have no entry ``character``.
    """
    return ["", *metadata["character"].split("\n"), " "]


def detector_input(picture: Image.Image) -> Floats:
    """Returns a picture as the detector wants it: [1, 3, height, width], sides multiples of 32."""
    scale = max(1.0, DETECTOR_MIN_SIDE / min(picture.size))
    sides = [max(1, round(s * scale / DETECTOR_MULTIPLE)) * DETECTOR_MULTIPLE for s in picture.size]
    resized = picture.resize((sides[0], sides[1]), Image.Resampling.BILINEAR)
    return as_planes(resized)[None]


def boxes_in(picture: Image.Image, probabilities: Floats) -> list[Box]:
    """Returns the boxes that the detector found, in the picture's coordinates."""
    height, width = probabilities.shape
    scale = np.array([picture.width / width, picture.height / height])
    return [Box(corners=b.corners * scale, score=b.score) for b in find_boxes(probabilities)]


def cut_out(picture: Image.Image, box: Box) -> Image.Image:
    """Cuts a box out of the picture and turns it level."""
    size = (max(1, round(box.width)), max(1, round(box.height)))
    top_left, top_right, bottom_right, bottom_left = (tuple(c) for c in box.corners.tolist())
    quad = (*top_left, *bottom_left, *bottom_right, *top_right)  # Pillow goes the other way round
    return picture.transform(size, Image.Transform.QUAD, quad, Image.Resampling.BICUBIC)


def line_input(crop: Image.Image, min_width: int, max_width: int | None = None) -> Floats:
    """Returns a line as the networks want it: [1, 3, 48, width] in -1..1, zeros to the right."""
    width = max(1, round(crop.width * LINE_HEIGHT / crop.height))
    width = min(width, max_width) if max_width is not None else width
    padded = max(min_width, -(-width // LINE_WIDTH_MULTIPLE) * LINE_WIDTH_MULTIPLE)
    resized = crop.resize((width, LINE_HEIGHT), Image.Resampling.BILINEAR)
    pixels = np.zeros((1, 3, LINE_HEIGHT, padded), np.float32)
    pixels[0, :, :, :width] = as_planes(resized)
    return pixels


def as_planes(picture: Image.Image) -> Floats:
    """Returns pixels as the networks were trained to see them: [3, height, width], BGR, -1..1."""
    bgr = np.asarray(picture, np.float32)[..., ::-1]
    return np.ascontiguousarray((bgr / np.float32(127.5) - 1).transpose(2, 0, 1))


def decode(scores: Floats, alphabet: Sequence[str]) -> tuple[str, float]:
    """Decodes scores [steps, characters] greedily by the rule of CTC: repeats merge, blanks vanish.

    Returns the text and the mean score of its characters, 0 where there is no text.
    """
    best = scores.argmax(axis=1)
    is_new = np.concatenate([[True], best[1:] != best[:-1]]) & (best != 0)
    text = "".join(alphabet[index] for index in best[is_new])
    score = float(scores.max(axis=1)[is_new].mean()) if is_new.any() else 0.0
    return text, score


def texts(lines: Iterable[Line]) -> list[str]:
    """Returns the text of each line."""
    return [line.text for line in lines]
