"""The function that runs the stages of a wave in turns.

Input -> Output: a wave, its stages' iterations -> ``void wave_K(ptr args, i64 lo, i64 hi)``, which
runs spans ``lo .. hi`` of bands.
Guarantees: it writes rings ``lo`` only, so that other ranges may run at the same time.
Not here: what a wave is (waves), the stages (generate).
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.codegen.cpu.emit import (
    FLOAT,
    I64,
    PTR,
    Builder,
    Module,
    Value,
    constant,
    index,
)
from tilewright.codegen.cpu.layout import ArgumentLayout
from tilewright.codegen.cpu.waves import Ring, Wave
from tilewright.core.shape import product
from tilewright.kernel.rows import ROWS


def write_wave(
    module: Module, symbol: str, wave: Wave, layout: ArgumentLayout, iterations: Mapping[int, int]
) -> None:
    """Writes the wave; ``iterations`` are those of whole stages, by number."""
    b = module.function(symbol, [("args", PTR), ("lo", I64), ("hi", I64)])
    lo, hi = b.params["lo"], b.params["hi"]
    args = _own_arguments(b, wave, layout)
    for ring in wave.rings:
        if ring.has_border:
            _zero(b, _address(b, args, layout, ring), ring.size)
    begin, end = (
        b.sdiv(b.mul(span, index(wave.num_bands)), index(wave.num_spans)) for span in (lo, hi)
    )
    with b.loop(begin, end) as band:
        is_first = b.icmp("eq", band, begin)
        for number, (starts, ends) in zip(wave.stages, wave.bounds(), strict=True):
            place = number - wave.first
            count = wave.counts[place]
            each = iterations[number] // count
            at, behind, until = (
                _entry(module, b, [min(row, count) * each for row in rows], band)
                for rows in (starts, ends[:-1], ends[1:])
            )
            since = b.select(is_first, at, behind)
            with b.when(b.icmp("slt", since, until)):
                b.call(f"stage_{number}", None, [args, since, until])
            if ends[-1] > count:
                behind, until = (
                    _entry(module, b, [max(row - count, 0) for row in rows], band)
                    for rows in (ends[:-1], ends[1:])
                )
                since = b.select(is_first, index(0), behind)
                with b.loop(since, until) as row:
                    _last_border(b, args, layout, wave.rings[place], b.add(row, index(count)))


def _entry(module: Module, b: Builder, numbers: list[int], place: Value) -> Value:
    return b.load(I64, b.gep(module.table(I64, numbers), place, 8))


def _own_arguments(b: Builder, wave: Wave, layout: ArgumentLayout) -> Value:
    """A copy of the arguments with the addresses of this range's rings."""
    args = b.alloca(I64, layout.num_slots)
    sizes = {layout.buffer_slots[ring.buffer.name]: 4 * ring.size for ring in wave.rings}
    for slot in range(layout.num_slots):
        word = b.load(I64, b.gep(b.params["args"], index(slot), 8))
        if slot in sizes:
            word = b.add(word, b.mul(b.params["lo"], index(sizes[slot])))
        b.store(word, b.gep(args, index(slot), 8))
    return args


def _address(b: Builder, args: Value, layout: ArgumentLayout, ring: Ring) -> Value:
    return b.load(PTR, b.gep(args, index(layout.buffer_slots[ring.buffer.name]), 8), 8)


def _last_border(b: Builder, args: Value, layout: ArgumentLayout, ring: Ring, row: Value) -> None:
    """Zeros in a row behind the last one that is computed, where an earlier row has been."""
    size = product(ring.shape[ROWS + 1 :]).const
    planes = product(ring.shape[:ROWS]).const
    place = b.and_(b.add(row, index(ring.offset)), index(ring.rows - 1))
    start = b.gep(_address(b, args, layout, ring), b.mul(place, index(size)), 4)
    with b.loop(0, planes) as plane:
        _zero(b, b.gep(start, b.mul(plane, index(ring.rows * size)), 4), size)


def _zero(b: Builder, start: Value, size: int) -> None:
    """Zeros for so many floats."""
    lanes = b.target.vector_bytes // 4
    whole = size // lanes * lanes
    for first, last, step in ((0, whole, lanes), (whole, size, 1)):
        kind = FLOAT.with_lanes(step)
        if first < last:
            with b.loop(first, last, step) as place:
                b.store(constant(kind, 0.0), b.gep(start, place, 4), 4)
