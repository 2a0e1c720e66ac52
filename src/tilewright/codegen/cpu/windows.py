"""Windows of neighbouring pixels that overlap: what is loaded serves every tap that needs it.

Input -> Output: a nest and its vectors -> pixels of a tile, and taps in one round, for a processor
with few registers; a round's taps and pixels -> the order in which they are multiplied.
    for each tap, for each pixel: one load and one multiply-add
    ->  for each place that is loaded: a multiply-add for every pixel whose window has it
Why: a depthwise convolution uses nothing twice but its weights; with a load for each multiply-add
the ports for loads are full before the multipliers are.
Requires: the taps of a line and what the pixels sum up fit the registers.
Not here: the instructions (reductions).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.codegen.cpu.traits import ONE, balanced, is_product, reduces_of
from tilewright.kernel.ir import Axis, Load, Reduce, walk
from tilewright.kernel.nest import Nest

_MOST_TAPS = 7
_PIXELS = 10  # sums at once; with the taps of a line and a pixel they fit 16 registers
_BUSY = 8  # sums that keep two multipliers busy, as each waits four cycles for itself
_REGISTERS = 15  # for sums and weights; one is for what is loaded


@dataclass(frozen=True, slots=True)
class WindowTile:
    """Copies of the axes of pixels, the axis along which windows overlap, taps in one round."""

    unroll: dict[str, int]
    slant: str
    depth: int


def window_tile(nest: Nest, rows: Sequence[Axis], vector: str) -> WindowTile | None:
    """The tile of a sum along whose rows windows overlap; None where they do not.

    Args:
        rows: axes along which weights stay the same, the best first.
    """
    reduces = reduces_of(nest)
    if len(reduces) != 1 or not rows or window_step(nest, reduces[0], rows[0].name, vector) is None:
        return None
    pixels = rows[0]
    taps = nest.reduce_axes[id(reduces[0])][-1]
    unroll = {pixels.name: balanced(pixels.extent, _PIXELS)}
    lines = rows[1] if len(rows) > 1 else None
    if lines is not None and _is_short(pixels) and lines.extent.is_const and lines.extent.const > 1:
        unroll = {lines.name: 2, pixels.name: balanced(pixels.extent, _PIXELS // 2)}
    sums = 1
    for count in unroll.values():
        sums *= count
    return WindowTile(unroll, pixels.name, balanced(taps.extent, _REGISTERS - sums))


def _is_short(pixels: Axis) -> bool:
    """True for lines whose tiles have too few sums, where two lines together have enough."""
    if not pixels.extent.is_const:
        return False
    one, two = (balanced(pixels.extent, most) for most in (_PIXELS, _PIXELS // 2))
    is_cut_anyway = one < pixels.extent.const or two == pixels.extent.const
    return one < _BUSY <= 2 * two and is_cut_anyway


def window_step(nest: Nest, reduce: Reduce, row: str, vector: str) -> int | None:
    """How many taps the windows of two neighbours on an axis are apart, if they overlap."""
    taps = nest.reduce_axes[id(reduce)][-1]
    if not is_product(reduce) or not taps.extent.is_const or taps.extent.const > _MOST_TAPS:
        return None
    for node in walk(reduce.body):
        form = nest.loads.get(id(node)) if isinstance(node, Load) else None
        if form is None or form.stride(vector) != ONE:
            continue
        step, along = form.stride(taps.name), form.stride(row)
        if step is None or along is None or not (step.is_const and along.is_const):
            continue
        apart, rest = divmod(along.const, step.const) if step.const else (0, 0)
        if rest == 0 and 0 < apart < taps.extent.const:
            return apart
    return None


def slanted(pixels: Sequence[int], taps: range, apart: int) -> list[tuple[int, int]]:
    """Numbers of pixels and taps, one after another by the place that they load.

    Args:
        pixels: the place of each on its line, by number.
        apart: taps between the windows of neighbours.
    """
    pairs = [(number, tap) for number in range(len(pixels)) for tap in taps]
    return sorted(pairs, key=lambda pair: (pixels[pair[0]] * apart + pair[1], -pair[1], pair[0]))
