"""Blocks of channels finer than a vector, on processors where parts of vectors cost their part.

Input -> Output: stages and the channels of blockable buffers -> the buffers that get fine blocks,
those that are one block.
    24 channels are 3 x 8, not 2 x 16 with a quarter of zeros; 24 + 24 channels in one Concat are
    whole blocks of 8, while no block of 16 starts at channel 24
    12 channels that only convolutions sum up are one block of 12: none of 4 zeros is multiplied
Guarantees: buffers whose channels one axis indexes get one block, since a stage splits an axis
once.
Not here: which buffers can be blocked (lower.layout).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tilewright.core.shape import Dim
from tilewright.kernel.blocked import accesses, axes_of, axis_extents, splittable
from tilewright.kernel.ir import Stage

_MUCH_PADDING = 1.03


def fine_buffers(
    stages: Sequence[Stage], channels: Mapping[str, Dim], dim: int, block: int, fine: int
) -> set[str]:
    """The buffers that get blocks of ``fine`` channels rather than of ``block``.

    Args:
        stages: all that access the buffers.
        channels: constant sizes of the dim that is split, by buffer.
        dim: its position.
    """
    group = _sharing(stages, channels, dim)
    gains = {name for name, size in channels.items() if _is_padded(size, block, fine)}
    for stage in stages:
        extents = axis_extents(stage)
        for name, index in accesses(stage):
            if name not in channels:
                continue
            whole, part = (
                splittable(index[dim], extents, size, channels[name]) for size in (block, fine)
            )
            if whole is None and part is not None:
                gains.add(name)
    chosen = {group[name] for name in gains}
    return {name for name in channels if group[name] in chosen}


def whole_buffers(
    stages: Sequence[Stage], channels: Mapping[str, Dim], dim: int, fine: int
) -> dict[str, int]:
    """Buffers whose channels are one block of that size: one vector and half of another.

    Nothing else moves along their channels: what reads them multiplies scalars.
    """
    group = _sharing(stages, channels, dim)
    counts = Counter(group.values())
    alone = {name: size.const for name, size in channels.items() if counts[group[name]] == 1}
    return {
        name: size
        for name, size in alone.items()
        if fine < size < 2 * fine and not size % (fine // 2)
    }


def _sharing(stages: Sequence[Stage], channels: Mapping[str, Dim], dim: int) -> dict[str, str]:
    """Each buffer's group: those whose channels one axis indexes."""
    group = {name: name for name in channels}

    def root(name: str) -> str:
        while group[name] != name:
            name = group[name]
        return name

    for stage in stages:
        user: dict[str, str] = {}
        for name, index in accesses(stage):
            if name in channels:
                for axis in axes_of(index[dim]):
                    group[root(name)] = root(user.setdefault(axis, name))
    return {name: root(name) for name in channels}


def _is_padded(channels: Dim, block: int, fine: int) -> bool:
    """True when whole blocks hold many zeros, and fine ones fewer."""
    whole, finer = (channels.ceildiv(size).const * size for size in (block, fine))
    return finer < whole and whole > _MUCH_PADDING * channels.const
