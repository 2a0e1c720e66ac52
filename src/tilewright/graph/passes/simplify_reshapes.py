"""Take detours out of reshaping.

    Reshape(x, Concat(Shape(x)[:2], ..))  ->  Reshape(x, [0, 0, 8, 64])
    Reshape(Reshape(x, s), t)             ->  Reshape(x, t)
    Reshape(Transpose(Reshape(x, [b*h, s, d]), (0, 2, 1)), [b, h, d, s])
                                          ->  Transpose(x, (0, 1, 3, 2))
Requires: dims that are proven equal for every run-time size; the first form: each dim is static and
    not 0, or the same as the input's at its place; the second: ``t`` copies no dim.
Guarantees: what a reshape checks at run time is still checked; tensors without elements included.
    Only where a computed size is 0, which ONNX lets a reshape refuse, a detour less may give a
    tensor without elements.
Not here: reshapes to the same shape (eliminate_identities).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilewright.core.shape import Dim
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

_CHECKED = Refused(reason="it checks a size at run time")


def _constant_target(ctx: PassContext, node: ir.Node) -> Outcome:
    if ctx.constant(operand(node, 1)) is not None:
        return None
    x = node.inputs[0]
    before, after = ctx.shape(x), ctx.shape(node.outputs[0])
    if before is None or after is None:
        return Refused(reason="a rank is unknown")
    target: list[int] = []
    for axis, dim in enumerate(after):
        if dim.is_const and dim.const:
            target.append(dim.const)
        elif axis < len(before) and before[axis] == dim:
            target.append(0)
        else:
            return Refused(reason=f"dim {axis} is {dim}, neither static nor copied")
    if _checks(ctx, node):
        return _CHECKED
    constant = ctx.new_constant(np.asarray(target, np.int64), f"{node.name}/shape")
    ctx.replace(node, [], "Reshape", [x, constant])
    return f"shape {target}"


def _twice(ctx: PassContext, node: ir.Node) -> Outcome:
    first = maker(node.inputs[0], "Reshape", "Flatten", "Squeeze", "Unsqueeze", graph=node.graph)
    if first is None:
        return None
    if _checks(ctx, node) or _checks(ctx, first):
        return _CHECKED
    target = ctx.integers(operand(node, 1))
    if target is None or (0 in target and not attribute(node, "allowzero", 0)):
        return Refused(reason="the second one copies dims of the first, or is not constant")
    x = first.inputs[0]
    unread = [first] if enclosed([first], node) is None else []
    ctx.replace(node, unread, "Reshape", [x, node.inputs[1]], node.attributes)
    return f"reads what {first.op_type} read"


def _batched_transpose(ctx: PassContext, node: ir.Node) -> Outcome:
    turn = maker(node.inputs[0], "Transpose", graph=node.graph)
    first = maker(turn.inputs[0], "Reshape", graph=node.graph) if turn is not None else None
    if turn is None or first is None or list(attribute(turn, "perm", ())) != [0, 2, 1]:
        return None
    x = first.inputs[0]
    shapes = [ctx.shape(value) for value in (x, first.outputs[0], node.outputs[0])]
    if any(shape is None for shape in shapes):
        return Refused(reason="a rank is unknown")
    before, middle, after = (shape for shape in shapes if shape is not None)
    if not _only_leading(before, middle, after):
        return Refused(reason="the reshapes do more than join the leading axes and part them again")
    if _checks(ctx, node) or _checks(ctx, first):
        return _CHECKED
    unread = [turn] if enclosed([turn], node) is None else []
    rank = len(before)
    perm = [*range(rank - 2), rank - 1, rank - 2]
    ctx.replace(node, unread, "Transpose", [x], {"perm": perm})
    return f"one transposition {perm}"


def _only_leading(before: tuple[Dim, ...], middle: tuple[Dim, ...], after: tuple[Dim, ...]) -> bool:
    if len(middle) != 3 or len(before) < 3 or len(after) != len(before):
        return False
    return middle[1:] == before[-2:] and after == (*before[:-2], before[-1], before[-2])


def _checks(ctx: PassContext, node: ir.Node) -> bool:
    info = ctx.info().nodes.get(node.name or "")
    return info is None or any(one.function != "require_no_copies" for one in info.bindings)


def _run(ctx: PassContext) -> None:
    ctx.each(("Reshape",), _batched_transpose)
    ctx.each(("Reshape",), _twice)
    ctx.each(("Reshape",), _constant_target)


simplify_reshapes = Pass(name="simplify_reshapes", run=_run)
