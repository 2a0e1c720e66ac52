"""Split long reductions of few columns into parts, combined by a stage of their own.

    y[c] = f(sum over h, w: x[h, w, c])
    ->  part[s, c] = sum over h of part s, w: x[h, w, c];  y[c] = f(sum over s: part[s, c])
Why: few columns are few blocks; with parts, every multiprocessor has one.
Requires: a stage that ``columns`` takes, of one reduction.
Guarantees: parts have the type of the reduction and are combined in order.
Not here: sums of products (split_depth).
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.codegen.cuda import columns
from tilewright.codegen.cuda.operands import draft_of
from tilewright.codegen.cuda.split_depth import in_parts
from tilewright.core.shape import product
from tilewright.kernel.ir import Axis, Kernel, Reduce, walk

_LONG = 1024  # points from which a launch more takes less time
_FEW = 4096  # columns of all rows
_MOST_PARTS = 192


def split_columns(kernel: Kernel, disabled: Collection[str] = ()) -> tuple[Kernel, int]:
    """The kernel with its reduction in parts, and how many (1: as it was).

    Args:
        disabled: tactics that are not to be used.
    """
    if columns.NAME in disabled or len(kernel.stages) != 1 or kernel.steps is not None:
        return kernel, 1
    draft = draft_of(kernel)
    if columns.refusal(draft, draft.writer()) is not None:
        return kernel, 1
    nodes = [node for node in walk(*kernel.roots) if isinstance(node, Reduce)]
    outputs = product(axis.extent for axis in kernel.stages[0].axes)
    points = product(axis.extent for axis in nodes[0].axes)
    if len(nodes) != 1 or points.const < _LONG or outputs.const > _FEW:
        return kernel, 1
    axis = max(nodes[0].axes, key=_parts)
    parts = _parts(axis)
    return (in_parts(kernel, nodes[0], axis, parts), parts) if parts > 1 else (kernel, 1)


def _parts(axis: Axis) -> int:
    """The most parts of one size along an axis."""
    size = axis.extent.const
    return next(parts for parts in range(min(size, _MOST_PARTS), 0, -1) if size % parts == 0)
