"""What is lost when work does not divide evenly: the last wave of blocks, the last tile.

Blocks, SMs, blocks per SM -> ``Waves``; a size and its tile -> the useful fraction.
Model: blocks of equal duration; a wave is as many as the GPU holds at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.core.errors import BadOption
from tilewright.hw.occupancy import ceil_div


@dataclass(frozen=True, slots=True, kw_only=True)
class Waves:
    """How a grid fills a GPU.

    Attributes:
        num_blocks: of the grid.
        slots: blocks that the GPU holds at once.
        waves: grid over slots.
        full_waves: waves in which every slot is used.
        tail_blocks: blocks of the last, partial wave; 0 when there is none.
        efficiency: useful fraction of all slots in all waves begun, 0 to 1.
        busy_sms: SMs that have a block in the last wave, at best spread.
    """

    num_blocks: int
    slots: int
    waves: float
    full_waves: int
    tail_blocks: int
    efficiency: float
    busy_sms: int


def wave_quantisation(num_blocks: int, num_sms: int, blocks_per_sm: int) -> Waves:
    """How many waves a grid takes, and how full they are.

    Raises:
        BadOption: a number is not positive.
    """
    numbers = {"blocks": num_blocks, "SMs": num_sms, "blocks per SM": blocks_per_sm}
    for name, number in numbers.items():
        if number < 1:
            raise BadOption(f"{number} {name}", remedy="give a positive number")
    slots = num_sms * blocks_per_sm
    full, tail = divmod(num_blocks, slots)
    last = tail or slots
    return Waves(
        num_blocks=num_blocks,
        slots=slots,
        waves=num_blocks / slots,
        full_waves=full,
        tail_blocks=tail,
        efficiency=num_blocks / (ceil_div(num_blocks, slots) * slots),
        busy_sms=min(last, num_sms),
    )


def tile_efficiency(sizes: tuple[int, ...], tiles: tuple[int, ...]) -> float:
    """Useful fraction of the iterations when each size is covered by whole tiles.

    Raises:
        BadOption: sizes and tiles differ in number, or one is not positive.
    """
    if len(sizes) != len(tiles) or min((*sizes, *tiles), default=0) < 1:
        raise BadOption(
            f"sizes {sizes} in tiles {tiles}", remedy="give as many positive tiles as sizes"
        )
    useful = 1.0
    for size, tile in zip(sizes, tiles, strict=True):
        useful *= size / (ceil_div(size, tile) * tile)
    return useful
