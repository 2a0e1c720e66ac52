"""The tactic that takes every stage: one thread a point of the parallel axes.

Ordered axes, and what stands inside of them, are loops of the thread; so are all reductions.
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.codegen.cuda.plan import ONE, Draft, Shape
from tilewright.codegen.cuda.writer import Writer
from tilewright.core.shape import product
from tilewright.kernel.ir import Axis

THREADS = 128


def point(draft: Draft, writer: Writer, disabled: Collection[str]) -> Shape:
    """Writes the stage."""
    del disabled
    axes = draft.nest.axes
    ordered = [k for k, axis in enumerate(axes) if axis.ordered]
    leading = axes[: ordered[0]] if ordered else axes
    total = product(axis.extent for axis in leading)
    kind = writer.index_type(total + THREADS)
    writer.line(f"const {kind} point = ({kind})blockIdx.x * {THREADS} + threadIdx.x;")
    writer.line(f"if (point >= {writer.dim(total)}) return;")
    writer.decode("point", [(axis.name, axis.extent) for axis in leading])
    _inside(writer, list(axes[len(leading) :]))
    return Shape(tactic="point", grid=(total.ceildiv(THREADS), ONE, ONE), threads=THREADS)


def _inside(writer: Writer, axes: list[Axis]) -> None:
    if not axes:
        writer.stores()
        return
    with writer.loop(axes[0]):
        _inside(writer, axes[1:])
