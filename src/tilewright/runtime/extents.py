"""Sizes of a run, checked before memory is planned for them.

Input -> Output: symbolic dims, sizes of their symbols -> integers, or an error that names the node.
Guarantees: none is negative. A zero border can make the stored size of a value positive although
its own is not, and the product of two negative sizes is positive; so every dim is looked at alone.
Not here: which values there are (compiler.build_program).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.core.errors import ShapeMismatch
from tilewright.core.shape import Dim
from tilewright.runtime.program import Extent, TensorSpec


def check_extents(extents: Iterable[Extent], sizes: Mapping[str, int]) -> None:
    """Raises ShapeMismatch for the first extent that is negative."""
    for extent in extents:
        _size(extent.dim, sizes, extent.value, extent.node)


def shape_of(spec: TensorSpec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor in memory.

    Raises:
        ShapeMismatch: a size would be negative.
    """
    return tuple(_size(dim, sizes, spec.name, None) for dim in spec.shape or ())


def _size(dim: Dim, sizes: Mapping[str, int], value: str, node: str | None) -> int:
    size = dim.evaluate(sizes)
    if size < 0:
        used = ", ".join(f"{name} = {sizes[name]}" for name in sorted(dim.symbols))
        raise ShapeMismatch(
            f"{value} would have the size {dim} = {size} with {used}",
            remedy="feed larger inputs",
            node=node,
        )
    return size
