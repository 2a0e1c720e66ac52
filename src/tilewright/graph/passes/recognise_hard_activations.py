"""Recognise HardSigmoid and HardSwish.

    Clip(a * x + b, 0, 1)              ->  HardSigmoid(x, alpha=a, beta=b)
    Clip(x + 3, 0, 6) / 6              ->  HardSigmoid(x, alpha=1/6, beta=1/2)
    x * Clip(x + 3, 0, 6) / 6          ->  HardSwish(x)
    x * HardSigmoid(x, 1/6, 1/2)       ->  HardSwish(x)
Requires: constant bounds; 1/6 as an exporter writes it (within 1e-6); float32 or wider, since
    roundings of narrow types in between would go.
Guarantees: NaN stays NaN; an overflow of x * 6 alone does not happen any more.
Not here: Relu6 by itself, which stays a Clip.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from tilewright.graph.passes.match import (
    is_scaled_further,
    maker,
    plus_constant,
    product_of,
    same_shape,
)

_TOLERANCE = 1e-6
_NARROW = Refused(reason="roundings of a narrow float type in between would be lost")


@dataclass(frozen=True, slots=True)
class _Ramp:
    """``height * min(max(alpha * x + beta, 0), 1)``, computed by ``nodes``."""

    x: ir.Value
    alpha: float
    beta: float
    height: float
    nodes: tuple[ir.Node, ...]


def _ramp(ctx: PassContext, node: ir.Node | None) -> _Ramp | None:
    """A Clip from zero, or a HardSigmoid."""
    if node is None or node.domain:
        return None
    if node.op_type == "HardSigmoid" and node.inputs[0] is not None:
        alpha, beta = (float(attribute(node, k, d)) for k, d in (("alpha", 0.2), ("beta", 0.5)))
        return _Ramp(node.inputs[0], alpha, beta, 1.0, (node,))
    if node.op_type != "Clip" or ctx.scalar(operand(node, 1)) != 0.0:
        return None
    height = ctx.scalar(operand(node, 2))
    add = maker(node.inputs[0], "Add", "Sub", graph=node.graph)
    shifted = plus_constant(ctx, add)
    if height is None or height <= 0 or add is None or shifted is None:
        return None
    inner = product_of(ctx, shifted[0], node.graph)
    if len(inner.factors) != 1:
        return None
    nodes = (node, add, *inner.nodes)
    return _Ramp(inner.factors[0], inner.scale / height, shifted[1] / height, height, nodes)


def _is(number: float, target: float) -> bool:
    return abs(number - target) <= _TOLERANCE * abs(target)


def _hard_swish(ctx: PassContext, node: ir.Node) -> Outcome:
    product = product_of(ctx, node.outputs[0], node.graph)
    if len(product.factors) != 2:
        return None
    for x, gate in (product.factors, product.factors[::-1]):
        ramp = _ramp(ctx, maker(gate, "Clip", "HardSigmoid", graph=node.graph))
        if ramp is None or ramp.x is not x:
            continue
        if not (_is(ramp.alpha, 1 / 6) and _is(ramp.beta, 0.5)):
            return Refused(reason=f"slope {ramp.alpha:g}, offset {ramp.beta:g}, not 1/6, 1/2")
        if not _is(product.scale * ramp.height, 1.0):
            if is_scaled_further(ctx, node):
                return None
            return Refused(reason=f"the result is {product.scale * ramp.height:g} times HardSwish")
        inside = [*product.nodes, *ramp.nodes]
        refused = _legal(ctx, node, inside, x)
        if refused is not None:
            return refused
        ctx.replace(node, inside, "HardSwish", [x])
        return "HardSwish"
    return None


def _hard_sigmoid(ctx: PassContext, node: ir.Node) -> Outcome:
    if node.op_type == "Clip":
        ramp, scale, outer = _ramp(ctx, node), 1.0, []
    else:
        product = product_of(ctx, node.outputs[0], node.graph)
        if len(product.factors) != 1:
            return None
        ramp = _ramp(ctx, maker(product.factors[0], "Clip", graph=node.graph))
        scale, outer = product.scale, product.nodes
    if ramp is None:
        return None
    if not _is(scale * ramp.height, 1.0):
        if node.op_type == "Clip" or is_scaled_further(ctx, node):
            return None
        return Refused(reason=f"the result ends at {scale * ramp.height:g}, not at 1")
    inside = [*outer, *ramp.nodes]
    refused = _legal(ctx, node, inside, ramp.x)
    if refused is not None:
        return refused
    attributes = {"alpha": ramp.alpha, "beta": ramp.beta}
    ctx.replace(node, inside, "HardSigmoid", [ramp.x], attributes)
    return f"HardSigmoid of slope {ramp.alpha:g}"


def _legal(ctx: PassContext, root: ir.Node, inside: list[ir.Node], x: ir.Value) -> Refused | None:
    dtype = ctx.dtype(x)
    if dtype is None or dtype.name not in ("float32", "float64"):
        return _NARROW
    return enclosed(inside, root) or same_shape(ctx, x, root.outputs[0])


def _run(ctx: PassContext) -> None:
    # HardSwish first: its inner part alone would become a HardSigmoid.
    ctx.each(("Mul", "Div"), _hard_swish)
    ctx.each(("Clip", "Mul", "Div"), _hard_sigmoid)
    ctx.each(("Mul",), _hard_swish)


recognise_hard_activations = Pass(name="recognise_hard_activations", run=_run)
