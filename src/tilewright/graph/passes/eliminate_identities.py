"""Remove nodes whose result is one of their inputs.

    Identity(x), Cast to the same type, Transpose that keeps the order, Reshape / Flatten /
    Squeeze / Unsqueeze / Expand / Slice to the same shape, Pad by zero, Tile by one,
    Concat / Max / Min / Sum / Mean of one, Split into one, Clip without bounds, Dropout,
    x * 1, x / 1, x + -0.0, x - 0.0, n + 0, n - 0, x ** 1, b and true, b or false    ->  x
Requires: the same type, rank and dims, proven for every run-time size.
Guarantees: every bit is kept; x + 0.0 is kept for floats, since it turns -0.0 into 0.0; what a node
    checks at run time is still checked.
Not here: operators that cancel each other (cancel_transposes, cancel_casts).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from tilewright.core.dtypes import BY_CODE
from tilewright.graph.passes.base import (
    Array,
    Outcome,
    Pass,
    PassContext,
    Refused,
    attribute,
    operand,
)

# A rule says what makes the node an identity of its first input (or of the value it returns), why
# it is none although it looks like one, or None.
_Rule = Callable[[PassContext, ir.Node], "str | ir.Value | Refused | None"]


def _attempt(ctx: PassContext, node: ir.Node) -> Outcome:
    found = _RULES[node.op_type](ctx, node)
    if found is None or isinstance(found, Refused):
        return found
    source = found if isinstance(found, ir.Value) else operand(node, 0)
    if source is None:
        return None
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return Refused(reason="another of its outputs is read")
    if node.op_type != "Identity":
        ctx.bypass(node, source)
    elif ctx.redirect(node.outputs[0], source):
        ctx.remove([node])
    else:
        return None  # a graph output that is an input, a constant or another output
    return found if isinstance(found, str) else f"always equal to {found.name}"


def _always(_ctx: PassContext, _node: ir.Node) -> str:
    return "Identity"


def _cast(ctx: PassContext, node: ir.Node) -> str | None:
    source = ctx.dtype(node.inputs[0])
    same = source is not None and BY_CODE.get(int(attribute(node, "to", 0))) is source
    return f"already {source}" if same else None


def _transpose(ctx: PassContext, node: ir.Node) -> str | None:
    perm = attribute(node, "perm")
    if perm is None:
        rank = ctx.rank(node.inputs[0])
        return "rank below 2" if rank is not None and rank < 2 else None
    return "keeps the order of axes" if list(perm) == list(range(len(perm))) else None


def _same_shape(ctx: PassContext, node: ir.Node) -> str | Refused | None:
    before, after = ctx.shape(node.inputs[0]), ctx.shape(node.outputs[0])
    if before is None or after is None or before != after:
        return None
    return _checks(ctx, node) or "the shape stays the same"


def _checks(ctx: PassContext, node: ir.Node) -> Refused | None:
    info = ctx.info().nodes.get(node.name or "")
    if info is None or info.bindings:
        return Refused(reason="the same shape only if a check at run time holds")
    return None


def _slice(ctx: PassContext, node: ir.Node) -> str | Refused | None:
    steps = operand(node, 4)
    if steps is not None:
        found = ctx.integers(steps)
        if found is None or any(step != 1 for step in found):
            return None
    return _same_shape(ctx, node)


def _pad(ctx: PassContext, node: ir.Node) -> str | None:
    pads = ctx.integers(operand(node, 1))
    return "pads nothing" if pads is not None and not any(pads) else None


def _tile(ctx: PassContext, node: ir.Node) -> str | None:
    repeats = ctx.integers(operand(node, 1))
    return "repeats once" if repeats is not None and all(n == 1 for n in repeats) else None


def _only_one(_ctx: PassContext, node: ir.Node) -> str | None:
    return "of one input" if len(node.inputs) == 1 else None


def _split(_ctx: PassContext, node: ir.Node) -> str | None:
    return "into one" if len(node.outputs) == 1 else None


def _clip(_ctx: PassContext, node: ir.Node) -> str | None:
    bounds = (operand(node, 1), operand(node, 2))
    return "without bounds" if bounds == (None, None) else None


def _dropout(ctx: PassContext, node: ir.Node) -> str | Refused | None:
    training = operand(node, 2)
    if training is None:
        return "outside of training"
    known = ctx.constant(training)
    if known is None:
        return Refused(reason="training_mode is known only at run time")
    return Refused(reason="it is in training mode") if known.any() else "outside of training"


# --- arithmetic -----------------------------------------------------------------------------------


def _arithmetic(ctx: PassContext, node: ir.Node) -> ir.Value | Refused | None:
    """``x op c`` or, where the order does not matter, ``c op x``."""
    for index in (1, 0) if node.op_type in ("Mul", "Add", "And", "Or") else (1,):
        constant, x = operand(node, index), operand(node, 1 - index)
        array = ctx.constant(constant)
        if x is None or array is None or array.dtype.kind in "OSU":
            continue
        wanted = 1 if node.op_type in ("Mul", "Div", "Pow", "And") else 0
        if not array.size or not bool((array == np.asarray(wanted, array.dtype)).all()):
            continue
        if node.op_type in ("Add", "Sub") and _changes_zero(node.op_type, array):
            return Refused(reason="it turns -0.0 into 0.0")
        return _unbroadcast(ctx, node, x, array) or x
    return None


def _changes_zero(op_type: str, zeros: Array) -> bool:
    """Whether adding (or subtracting) these zeros loses the sign of -0.0."""
    if zeros.dtype.kind in "iu":
        return False
    negative = np.signbit(zeros.astype(np.float64))
    return not bool(negative.all() if op_type == "Add" else not negative.any())


def _unbroadcast(
    ctx: PassContext,
    node: ir.Node,
    x: ir.Value,
    array: Array,
) -> Refused | None:
    if array.ndim == 0:
        return None
    before, after = ctx.shape(x), ctx.shape(node.outputs[0])
    if before is None:
        return Refused(reason="the rank is unknown")
    if array.size == 1 and array.ndim <= len(before):
        return None
    if before != after:
        return Refused(reason="the constant changes the shape")
    return _checks(ctx, node)


_RULES: dict[str, _Rule] = {
    "Identity": _always,
    "Cast": _cast,
    "Transpose": _transpose,
    "Reshape": _same_shape,
    "Flatten": _same_shape,
    "Squeeze": _same_shape,
    "Unsqueeze": _same_shape,
    "Expand": _same_shape,
    "Slice": _slice,
    "Pad": _pad,
    "Tile": _tile,
    "Concat": _only_one,
    "Max": _only_one,
    "Min": _only_one,
    "Sum": _only_one,
    "Mean": _only_one,
    "Split": _split,
    "Clip": _clip,
    "Dropout": _dropout,
    "Mul": _arithmetic,
    "Div": _arithmetic,
    "Add": _arithmetic,
    "Sub": _arithmetic,
    "Pow": _arithmetic,
    "And": _arithmetic,
    "Or": _arithmetic,
}

eliminate_identities = Pass(name="eliminate_identities", run=lambda ctx: ctx.each(_RULES, _attempt))
