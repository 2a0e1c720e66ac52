"""Waves and tiles, with numbers worked by hand."""

import pytest

from tilewright.core.errors import BadOption
from tilewright.hw.waves import tile_efficiency, wave_quantisation


def test_a_full_wave_uses_every_slot() -> None:
    found = wave_quantisation(264, num_sms=132, blocks_per_sm=2)
    assert (found.waves, found.full_waves, found.tail_blocks) == (1.0, 1, 0)
    assert (found.efficiency, found.busy_sms) == (1.0, 132)


def test_one_block_too_many_costs_a_wave() -> None:
    found = wave_quantisation(265, num_sms=132, blocks_per_sm=2)
    assert (found.full_waves, found.tail_blocks, found.busy_sms) == (1, 1, 1)
    assert found.efficiency == pytest.approx(265 / 528)


def test_a_grid_smaller_than_the_gpu() -> None:
    found = wave_quantisation(100, num_sms=132, blocks_per_sm=4)
    assert (found.full_waves, found.tail_blocks, found.busy_sms) == (0, 100, 100)
    assert found.waves == pytest.approx(100 / 528)


def test_the_matmul_guide_example() -> None:
    """NVIDIA's Matrix Multiplication Background Guide, wave quantisation: 108 SMs, 120 tiles."""
    found = wave_quantisation(120, num_sms=108, blocks_per_sm=1)
    assert (found.full_waves, found.tail_blocks) == (1, 12)


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-1, 1, 1)])
def test_numbers_must_be_positive(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(BadOption, match="positive"):
        wave_quantisation(*numbers)


def test_tiles_waste_what_they_cover_beyond_the_size() -> None:
    assert tile_efficiency((256, 256), (128, 128)) == 1.0
    assert tile_efficiency((257, 256), (128, 128)) == pytest.approx(257 / 384)
    assert tile_efficiency((27 * 128, 1), (256, 1)) == pytest.approx(27 / 28)


@pytest.mark.parametrize(("sizes", "tiles"), [((1, 2), (1,)), ((0,), (1,)), ((1,), (0,))])
def test_bad_tiles_are_refused(sizes: tuple[int, ...], tiles: tuple[int, ...]) -> None:
    with pytest.raises(BadOption, match="positive tiles"):
        tile_efficiency(sizes, tiles)
