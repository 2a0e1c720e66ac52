"""Regions, rectangles and their order."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.demo import boxes
from tilewright.demo.boxes import Box


def _mask(*rows: str) -> npt.NDArray[np.bool_]:
    return np.array([[pixel == "#" for pixel in row] for row in rows])


def _flood(mask: npt.NDArray[np.bool_]) -> set[frozenset[tuple[int, int]]]:
    """The plain algorithm: pixel by pixel."""
    left = {(int(row), int(column)) for row, column in np.argwhere(mask)}
    regions = set()
    while left:
        front, region = [left.pop()], set()
        while front:
            row, column = front.pop()
            region.add((row, column))
            near = {(row + i, column + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
            left -= near
            front += near
        regions.add(frozenset(region))
    return regions


def _pixels(runs: boxes.Runs) -> frozenset[tuple[int, int]]:
    return frozenset((row, c) for row, start, stop in runs.tolist() for c in range(start, stop))


@settings(deadline=None)
@given(
    st.integers(1, 12).flatmap(
        lambda width: st.lists(
            st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=12
        )
    )
)
def test_regions_are_those_of_a_flood_fill(rows: list[list[bool]]) -> None:
    mask = np.array(rows)
    found = {_pixels(runs) for runs in boxes.connected_regions(mask)}
    assert found == _flood(mask)


def test_diagonal_neighbours_are_connected() -> None:
    assert len(boxes.connected_regions(_mask("#..", ".#.", "..#"))) == 1
    assert len(boxes.connected_regions(_mask("#.#", "...", "#.#"))) == 4


def test_a_single_pixel_is_a_unit_square() -> None:
    (runs,) = boxes.connected_regions(_mask("...", ".#."))
    corners = boxes.smallest_rectangle(runs)
    assert corners == pytest.approx(np.array([(1, 1), (2, 1), (2, 2), (1, 2)]))


@pytest.mark.parametrize("degrees", [-40, -7, 0, 3, 30])
def test_a_turned_bar_keeps_its_size_and_upper_side(degrees: float) -> None:
    turn = np.deg2rad(degrees)
    x, y = np.meshgrid(np.arange(200) - 100.0, np.arange(200) - 100.0)
    along, across = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    (runs,) = boxes.connected_regions((np.abs(along) <= 60) & (np.abs(across) <= 10))
    box = Box(corners=boxes.smallest_rectangle(runs), score=1.0)
    assert box.width == pytest.approx(120, abs=3)
    assert box.height == pytest.approx(20, abs=3)
    upper = box.corners[1] - box.corners[0]
    assert np.rad2deg(np.arctan2(upper[1], upper[0])) == pytest.approx(degrees, abs=2)


def test_boxes_are_grown_by_the_unclip_ratio() -> None:
    probabilities = np.zeros((60, 100))
    probabilities[20:30, 30:70] = 0.9
    (box,) = boxes.find_boxes(probabilities, unclip_ratio=1.0)
    offset = 40 * 10 / (2 * (40 + 10))
    assert (box.width, box.height) == pytest.approx((40 + 2 * offset, 10 + 2 * offset))
    assert box.centre == pytest.approx((50, 25))
    assert box.score == pytest.approx(0.9)


def test_specks_and_faint_regions_are_dropped() -> None:
    probabilities = np.zeros((60, 100))
    probabilities[5:7, 5:40] = 0.9  # two pixels high
    probabilities[20:30, 5:40] = 0.4  # above the threshold, below the score
    assert boxes.find_boxes(probabilities) == []


def test_reading_order_is_by_line_then_from_the_left() -> None:
    def box(x: float, y: float) -> Box:
        corners = np.array([(x, y), (x + 30, y), (x + 30, y + 10), (x, y + 10)], float)
        return Box(corners=corners, score=1.0)

    right, left, below = box(60, 8), box(10, 10), box(5, 30)
    ordered = boxes.in_reading_order([below, right, left])
    assert [found.centre[0] for found in ordered] == [25, 75, 20]
