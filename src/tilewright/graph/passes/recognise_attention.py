"""Recognise scaled dot product attention.

    MatMul(Softmax(MatMul(q, Transpose(k)) * s [+ mask]), v)  ->  Attention(q, k, v, mask, scale=s)
    (s may be on the scores, on q or k; a guard Where(IsNaN(p), 0, p) may follow the Softmax)
Requires: four dims, the same batch and heads in q, k and v; Softmax over the keys; an additive mask
    that covers all keys; s >= 0.
Guarantees: exactly the same meaning. ``Attention`` gives 0 to a query that the mask forbids every
    key, where Softmax gives NaN, so a mask must be proven finite; a guard also hides NaN of q and
    k, which ``Attention`` does not. ``assume_finite`` takes both for granted.
Not here: grouped queries, caches, causal flags, three dims.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from tilewright.graph.passes.base import (
    Outcome,
    Pass,
    PassContext,
    Refused,
    attribute,
    enclosed,
)
from tilewright.graph.passes.match import maker, other_input, plus_constant, read_once
from tilewright.graph.passes.value_range import value_range


@dataclass(slots=True, kw_only=True)
class _Attention:
    """The operands found so far; ``k`` is the transposed tensor's Transpose."""

    root: ir.Node
    softmax: ir.Node
    scores: ir.Value
    v: ir.Value
    guarded: bool
    inside: list[ir.Node]
    mask: ir.Value | None = None
    scale: float = 1.0
    constants: list[ir.Value] = field(default_factory=list)


def _attempt(ctx: PassContext, node: ir.Node) -> Outcome:
    found = _match(ctx, node)
    if found is None:
        return None
    product = _scores(ctx, found)
    if isinstance(product, Refused):
        return product
    q, transposed = _unscaled(ctx, found, product.inputs[0]), product.inputs[1]
    keys = maker(_unscaled(ctx, found, transposed), "Transpose", graph=node.graph)
    if q is None:
        return None
    if keys is None or keys.inputs[0] is None:
        return Refused(
            reason="the keys are not transposed by a Transpose", nodes=(product.name or "",)
        )
    perm = attribute(keys, "perm")
    if perm is None or len(perm) != 4:
        return Refused(reason="the keys do not have four dims in a known order")
    found.inside.append(keys)
    refused = _legal(ctx, found, q, keys, product)
    if refused is not None:
        return refused
    return _rewrite(ctx, found, q, keys)


# --- matching -------------------------------------------------------------------------------------


def _match(ctx: PassContext, node: ir.Node) -> _Attention | None:
    """``node`` multiplies probabilities and values."""
    graph, weights, v = node.graph, node.inputs[0], node.inputs[1]
    if weights is None or v is None:
        return None
    guard = maker(weights, "Where", graph=graph)
    inside, guarded = [node], False
    if guard is not None:
        checked = maker(guard.inputs[0], "IsNaN", graph=graph)
        if checked is None or checked.inputs[0] is not guard.inputs[2]:
            return None
        if ctx.scalar(guard.inputs[1]) != 0.0:
            return None
        inside += [guard, checked]
        weights, guarded = guard.inputs[2], True
    softmax = maker(weights, "Softmax", graph=graph)
    if softmax is None or softmax.inputs[0] is None:
        return None
    return _Attention(
        root=node,
        softmax=softmax,
        scores=softmax.inputs[0],
        v=v,
        guarded=guarded,
        inside=[*inside, softmax],
    )


def _scores(ctx: PassContext, found: _Attention) -> ir.Node | Refused:
    """The product of queries and keys; notes mask and scale on the way."""
    graph, value = found.root.graph, found.scores
    add = maker(value, "Add", graph=graph)
    if add is not None:
        for side, mask in (add.inputs[:2], add.inputs[1::-1]):
            inner = _unscaled_node(ctx, side, graph)
            if inner is not None:
                found.inside.append(add)
                found.mask, value = mask, side  # type: ignore[assignment]
                break
        else:
            return Refused(reason="the Softmax is not over scores of a MatMul")
    product = maker(_unscaled(ctx, found, value), "MatMul", graph=graph)
    if product is None:
        return Refused(reason="the Softmax is not over scores of a MatMul")
    found.inside.append(product)
    return product


def _unscaled_node(
    ctx: PassContext, value: ir.Value | None, graph: ir.Graph | None
) -> ir.Node | None:
    """The MatMul below any scaling."""
    scaled = maker(value, "Mul", "Div", graph=graph)
    while scaled is not None:
        part, _, _ = _scaling(ctx, scaled)
        if part is None:
            return None
        value, scaled = part, maker(part, "Mul", "Div", graph=graph)
    return maker(value, "MatMul", graph=graph)


def _scaling(ctx: PassContext, node: ir.Node) -> tuple[ir.Value | None, float, ir.Value | None]:
    """What a Mul or Div by a constant scales, by how much, and the constant."""
    left, right = node.inputs[0], node.inputs[1]
    number = ctx.scalar(right)
    if number is not None and not (node.op_type == "Div" and number == 0):
        return left, (1.0 / number if node.op_type == "Div" else number), right
    number = ctx.scalar(left)
    if number is not None and node.op_type == "Mul":
        return right, number, left
    return None, 1.0, None


def _unscaled(ctx: PassContext, found: _Attention, value: ir.Value | None) -> ir.Value | None:
    """The value below constant factors, which go into the scale.

    An added 0.0 only turns -0.0 into 0.0, which no Softmax can tell.
    """
    while True:
        scaled = maker(value, "Mul", "Div", "Add", graph=found.root.graph)
        if scaled is None or value is None:
            return value
        if scaled.op_type == "Add":
            zero = plus_constant(ctx, scaled)
            part, factor = zero if zero is not None and zero[1] == 0.0 else (None, 1.0)
            constant = other_input(scaled, part) if part is not None else None
            factor = 1.0
        else:
            part, factor, constant = _scaling(ctx, scaled)
        if part is None or constant is None or not read_once(value):
            return value
        found.scale *= factor
        found.constants.append(constant)
        found.inside.append(scaled)
        value = part


# --- legality -------------------------------------------------------------------------------------


def _legal(
    ctx: PassContext, found: _Attention, q: ir.Value, keys: ir.Node, product: ir.Node
) -> Refused | None:
    refused = enclosed(found.inside, found.root)
    return refused or _fitting(ctx, found, q, keys, product) or _exact(ctx, found)


def _fitting(
    ctx: PassContext, found: _Attention, q: ir.Value, keys: ir.Node, product: ir.Node
) -> Refused | None:
    dtype = ctx.dtype(q)
    if dtype is None or not dtype.is_float:
        return Refused(reason=f"the type is {dtype}")
    shapes = [ctx.shape(value) for value in (q, keys.outputs[0], found.v)]
    if any(shape is None or len(shape) != 4 for shape in shapes):
        return Refused(reason="queries, keys and values do not all have four known dims")
    queries, transposed, values = (shape for shape in shapes if shape is not None)
    if not queries[:2] == transposed[:2] == values[:2]:
        return Refused(reason="batch or heads of queries, keys and values differ")
    if transposed[3] != values[2]:
        return Refused(reason="there are not as many values as keys")
    axis = attribute(found.softmax, "axis", -1)
    if axis not in (-1, 3):
        return Refused(reason=f"the Softmax is over axis {axis}, not over the keys")
    if any((ctx.rank(constant) or 0) > 4 for constant in found.constants):
        return Refused(reason="a scale changes the shape")
    if found.scale < 0:
        return Refused(reason=f"the scale {found.scale:g} is negative")
    return _mask_fits(ctx, found, product)


def _mask_fits(ctx: PassContext, found: _Attention, product: ir.Node) -> Refused | None:
    if found.mask is None:
        return None
    mask, scores = ctx.shape(found.mask), ctx.shape(product.outputs[0])
    if mask is None or scores is None or not 2 <= len(mask) <= 4:
        return Refused(reason="the mask does not have two to four known dims")
    if mask[-1] != scores[-1]:
        return Refused(reason="the mask does not cover all keys")
    if ctx.shape(found.scores) != scores:
        return Refused(reason="the mask changes the shape of the scores")
    return None


def _exact(ctx: PassContext, found: _Attention) -> Refused | None:
    if ctx.assume_finite:
        return None
    if found.guarded:
        return Refused(reason="a guard hides NaN of queries and keys, which Attention would not")
    if found.mask is not None and value_range(ctx, found.mask) is None:
        return Refused(reason="a mask of -Inf everywhere gives NaN, and 0 in Attention")
    return None


# --- rewriting ------------------------------------------------------------------------------------


def _rewrite(ctx: PassContext, found: _Attention, q: ir.Value, keys: ir.Node) -> str:
    perm = list(attribute(keys, "perm"))
    untransposed = [*perm[:2], perm[3], perm[2]]
    k = keys.inputs[0]
    if untransposed != [0, 1, 2, 3]:
        moved = ctx.new_node("Transpose", [k], {"perm": untransposed}, before=found.root)
        k = moved.outputs[0]
    inputs = [q, k, found.v] if found.mask is None else [q, k, found.v, found.mask]
    ctx.replace(found.root, found.inside, "Attention", inputs, {"scale": found.scale})
    return f"Attention of scale {found.scale:g}{' with a mask' if found.mask is not None else ''}"


recognise_attention = Pass(
    name="recognise_attention", run=lambda ctx: ctx.each(("MatMul",), _attempt)
)
