"""Let a convolution pad for itself.

    Conv(Pad(x, pads), w, pads=p)  ->  Conv(x, w, pads=p + pads)
Requires: zeros, constant and non-negative pads of the spatial axes only; the convolution is the
    only reader and its own padding is explicit.
Guarantees: the same sums.
Not here: pooling, where padding counts or does not count; quantised convolutions, which pad with
    their zero point.
"""

from __future__ import annotations

import onnx_ir as ir

from tilewright.graph.passes.base import (
    Outcome,
    Pass,
    PassContext,
    Refused,
    attribute,
    enclosed,
    operand,
)
from tilewright.graph.passes.match import maker


def _attempt(ctx: PassContext, node: ir.Node) -> Outcome:
    pad = maker(node.inputs[0], "Pad", graph=node.graph)
    if pad is None:
        return None
    refused = enclosed([pad], node)
    if refused is not None:
        return refused
    if str(attribute(pad, "mode", "constant")) != "constant":
        return Refused(reason=f"it pads by mode {attribute(pad, 'mode')}")
    value = operand(pad, 2)
    if value is not None and ctx.scalar(value) != 0.0:
        return Refused(reason="it does not pad with zeros")
    if str(attribute(node, "auto_pad", "NOTSET")) not in ("NOTSET", "VALID"):
        return Refused(reason="the convolution chooses its padding by itself")
    widths = _widths(ctx, pad)
    if isinstance(widths, Refused):
        return widths
    before, after = widths
    spatial = len(before) - 2
    own = list(attribute(node, "pads", None) or [0] * (2 * spatial))
    total = [a + b for a, b in zip(own, before[2:] + after[2:], strict=True)]
    attributes = {name: value for name, value in node.attributes.items() if name != "auto_pad"}
    ctx.replace(
        node, [pad], "Conv", [pad.inputs[0], *node.inputs[1:]], {**attributes, "pads": total}
    )
    return f"pads {total}"


def _widths(ctx: PassContext, pad: ir.Node) -> tuple[list[int], list[int]] | Refused:
    """Padding before and after each axis."""
    rank, pads = ctx.rank(pad.inputs[0]), ctx.integers(operand(pad, 1))
    if rank is None or pads is None:
        return Refused(reason="the pads or the rank are not known")
    axes = list(range(rank))
    if operand(pad, 3) is not None:
        given = ctx.integers(operand(pad, 3))
        if given is None:
            return Refused(reason="the padded axes are not known")
        axes = [axis % rank for axis in given]
    before, after = [0] * rank, [0] * rank
    for index, axis in enumerate(axes):
        before[axis] += pads[index]
        after[axis] += pads[len(axes) + index]
    if any(before[:2] + after[:2]):
        return Refused(reason="it pads batch or channels")
    if any(width < 0 for width in before + after):
        return Refused(reason="a negative pad cuts")
    return before, after


fold_pads = Pass(name="fold_pads", run=lambda ctx: ctx.each(("Conv",), _attempt))
