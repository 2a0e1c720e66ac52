"""Finds the lines of text in a detector's probability map.

Map [height, width] of probabilities -> ``Box``es in reading order, in the map's coordinates.
Method: differentiable binarization (Liao et al. 2020, arXiv:1911.08947): the detector marks
shrunken lines; each connected region becomes its smallest rectangle, which is grown back.
Not here: the detector (networks), cutting the boxes out of the picture (reader).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating[Any]]
Points = npt.NDArray[np.intp]  # [n, 2]: x, y
Runs = npt.NDArray[np.intp]  # [n, 3]: row, first column, column after the last

MIN_SIDE = 3.0  # pixels of the map; what is thinner is a speck
SAME_LINE = (
    0.5  # boxes whose centres differ by less than this share of their height are on one line
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle: four corners clockwise from the top left, [4, 2] as (x, y), and a score."""

    corners: Floats
    score: float

    @property
    def width(self) -> float:
        """The length of the upper side in pixels."""
        return float(np.linalg.norm(self.corners[1] - self.corners[0]))

    @property
    def height(self) -> float:
        """The length of the left side in pixels."""
        return float(np.linalg.norm(self.corners[3] - self.corners[0]))

    @property
    def centre(self) -> Floats:
        """The centre as (x, y)."""
        centre: Floats = self.corners.mean(axis=0)
        return centre


def find_boxes(
    probabilities: Floats,
    *,
    threshold: float = 0.3,
    min_score: float = 0.5,
    unclip_ratio: float = 1.6,
) -> list[Box]:
    """Returns the boxes of the text in reading order.

    Args:
        probabilities: [height, width], how likely each pixel lies in a shrunken line of text.
        threshold: pixels above it belong to text.
        min_score: regions whose mean probability is below it are dropped.
        unclip_ratio: how far boxes are grown, as offset × perimeter / area.
    """
    boxes: list[Box] = []
    for runs in connected_regions(probabilities > threshold):
        score = mean_over(probabilities, runs)
        box = Box(corners=smallest_rectangle(runs), score=score)
        if score < min_score or min(box.width, box.height) < MIN_SIDE:
            continue
        boxes.append(Box(corners=_grow(box, unclip_ratio), score=score))
    return in_reading_order(boxes)


def connected_regions(mask: npt.NDArray[np.bool_]) -> list[Runs]:
    """Returns the 8-connected regions of a mask [height, width], each as its horizontal runs.

    The runs are found at once with NumPy and joined row by row with union-find, so the cost in
    Python is a step a run rather than a step a pixel.
    """
    edges = np.diff(mask.astype(np.int8), axis=1, prepend=0, append=0)
    rows, starts = np.nonzero(edges == 1)
    stops = np.nonzero(edges == -1)[1]  # both lists are in row order, so they pair up
    runs = np.stack([rows, starts, stops], axis=1)
    parents = list(range(len(runs)))

    def root(run: int) -> int:
        while parents[run] != run:
            parents[run] = parents[parents[run]]
            run = parents[run]
        return run

    first_of_row = np.searchsorted(rows, np.arange(mask.shape[0] + 1)).tolist()
    left, right = starts.tolist(), stops.tolist()
    for row in range(1, mask.shape[0]):
        above, run = first_of_row[row - 1], first_of_row[row]
        while above < first_of_row[row] and run < first_of_row[row + 1]:
            if left[above] <= right[run] and left[run] <= right[above]:  # diagonals touch
                parents[root(above)] = root(run)
            if right[above] < right[run]:
                above += 1
            else:
                run += 1
    members: dict[int, list[int]] = {}
    for run in range(len(runs)):
        members.setdefault(root(run), []).append(run)
    return [runs[indices] for indices in members.values()]


def mean_over(values: Floats, runs: Runs) -> float:
    """Returns the mean of a map [height, width] over a region."""
    total = sum(float(values[row, start:stop].sum()) for row, start, stop in runs.tolist())
    return total / int((runs[:, 2] - runs[:, 1]).sum())


def convex_hull(points: Points) -> Points:
    """Returns the corners of the convex hull of points [n, 2], by Andrew's monotone chain."""
    ordered = [(int(x), int(y)) for x, y in np.unique(points, axis=0)]
    if len(ordered) < 3:
        return np.array(ordered, np.intp)

    def half(chain_points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        chain: list[tuple[int, int]] = []
        for x, y in chain_points:
            while len(chain) > 1:
                (x0, y0), (x1, y1) = chain[-2:]
                if (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) > 0:
                    break
                chain.pop()
            chain.append((x, y))
        return chain[:-1]

    return np.array(half(ordered) + half(ordered[::-1]), np.intp)


def smallest_rectangle(runs: Runs) -> Floats:
    """Returns the corners of the rectangle of least area around a region, clockwise from top left.

    One side of that rectangle lies along a side of the convex hull (Freeman and Shapira 1975), so
    every side's direction is tried. The upper side is the one nearest to horizontal.
    """
    rows, starts, stops = runs.T
    # A pixel is a unit square, so a run has four corners; else one pixel would have no area.
    ends = [(starts, rows), (stops, rows), (starts, rows + 1), (stops, rows + 1)]
    hull = convex_hull(np.concatenate([np.stack(end, axis=1) for end in ends]))
    sides = np.roll(hull, -1, axis=0) - hull
    angles = np.unique(np.round(np.arctan2(sides[:, 1], sides[:, 0]) % (np.pi / 2), 6))
    best: tuple[float, Floats] | None = None
    for angle in angles:
        axes = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        low, high = (hull @ axes.T).min(axis=0), (hull @ axes.T).max(axis=0)
        area = float(np.prod(high - low))
        if best is None or area < best[0]:
            (left, top), (right, bottom) = low, high
            corners = np.array([(left, top), (right, top), (right, bottom), (left, bottom)]) @ axes
            # Beyond 45° the first side runs more down than right; the one before it is the upper.
            best = (area, np.roll(corners, 1, axis=0) if angle > np.pi / 4 else corners)
    if best is None:
        raise ValueError("a region has at least one run")
    return best[1]


def in_reading_order(boxes: Sequence[Box]) -> list[Box]:
    """Sorts boxes into lines from top to bottom, and each line from left to right."""
    lines: list[list[Box]] = []
    for box in sorted(boxes, key=lambda box: float(box.centre[1])):
        if lines:
            reference = lines[-1][0]
            distance = abs(float(box.centre[1] - reference.centre[1]))
            if distance < SAME_LINE * min(box.height, reference.height):
                lines[-1].append(box)
                continue
        lines.append([box])
    return [box for line in lines for box in sorted(line, key=lambda box: float(box.centre[0]))]


def _grow(box: Box, unclip_ratio: float) -> Floats:
    """Moves every side of a box outwards by area × ratio / perimeter."""
    offset = box.width * box.height * unclip_ratio / (2 * (box.width + box.height))
    right = (box.corners[1] - box.corners[0]) / box.width * offset
    down = (box.corners[3] - box.corners[0]) / box.height * offset
    moves = np.stack([-right - down, right - down, right + down, -right + down])
    grown: Floats = box.corners + moves
    return grown
