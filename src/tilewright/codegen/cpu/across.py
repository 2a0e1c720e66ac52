"""Sums along memory for all lanes of a vector: each lane's sum in a register, then transposed.

Input -> Output: a register of partial results for each lane -> one register of results.
    lanes 0..3 of x, y, z, w  ->  (x0+x1, x2+x3, y0+y1, y2+y3), (z.., w..)  ->  (x, y, z, w)
Guarantees: partial results are joined in one order, whatever the processor.
Not here: computing them (reductions), which nests run so (tactics).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.codegen.cpu.emit import Builder
from tilewright.codegen.cpu.values import Value

_UNIT = 4  # lanes within which processors shuffle at no delay
Join = Callable[[Value, Value], Value]


def fold_lanes(b: Builder, partials: Sequence[Value], join: Join) -> Value:
    """Lane i of the result joins all lanes of ``partials[i]``.

    Args:
        partials: as many as the result has lanes, a power of two; a multiple of their lanes.
        join: joins two registers lane by lane.
    """
    size = partials[0].type.lanes
    groups = [partials[at : at + size] for at in range(0, len(partials), size)]
    done = [_fold_square(b, group, join) for group in groups]
    while len(done) > 1:
        done = [b.concat(x, y) for x, y in zip(done[::2], done[1::2], strict=True)]
    return done[0]


def _fold_square(b: Builder, group: Sequence[Value], join: Join) -> Value:
    """As many registers as each has lanes."""
    values = list(group)
    lanes = values[0].type.lanes
    unit = min(_UNIT, lanes)
    within = unit
    while within > 1:  # neighbouring lanes of each unit, then of what they became
        values = _pairs(b, values, join, unit, 1)
        within //= 2
    across = lanes // unit
    while across > 1:  # neighbouring units
        values = _pairs(b, values, join, lanes, unit)
        across //= 2
    return values[0]


def _pairs(b: Builder, values: Sequence[Value], join: Join, block: int, part: int) -> list[Value]:
    """Joins even with odd parts within each block of two registers side by side."""
    lanes = values[0].type.lanes
    sides: list[list[int]] = []
    for odd in (0, 1):
        picks: list[int] = []
        for start in range(0, lanes, block):
            for register in (0, lanes):
                for first in range(odd * part, block, 2 * part):
                    picks += range(register + start + first, register + start + first + part)
        sides.append(picks)
    return [
        join(b.shuffle(x, y, sides[0]), b.shuffle(x, y, sides[1]))
        for x, y in zip(values[::2], values[1::2], strict=True)
    ]
