"""Recognise Swish (SiLU).

    x * Sigmoid(x)      ->  Swish(x)
    x * Sigmoid(a * x)  ->  Swish(x, alpha=a)
Requires: the sigmoid has no other reader; ``a`` is one constant.
Guarantees: NaN and Inf as before (-Inf gives NaN in both).
Not here: gates, where the sigmoid's argument is another value.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from tilewright.graph.passes.base import Outcome, Pass, PassContext, Refused, enclosed
from tilewright.graph.passes.match import maker, product_of, same_shape


def _attempt(ctx: PassContext, node: ir.Node) -> Outcome:
    for x, gate in (node.inputs[:2], node.inputs[1::-1]):
        sigmoid = maker(gate, "Sigmoid", graph=node.graph)
        if x is None or sigmoid is None or sigmoid.inputs[0] is None:
            continue
        alpha, inside = 1.0, [sigmoid]
        if sigmoid.inputs[0] is not x:
            inner = product_of(ctx, sigmoid.inputs[0], node.graph)
            if len(inner.factors) != 1 or inner.factors[0] is not x:
                continue
            alpha = inner.scale
            inside += inner.nodes
        dtype = ctx.dtype(x)
        if dtype is None or not dtype.is_float or not math.isfinite(alpha):
            return Refused(reason=f"alpha is {alpha:g} or the type is unknown")
        refused = enclosed(inside, node) or same_shape(ctx, x, node.outputs[0])
        if refused is not None:
            return refused
        ctx.replace(node, inside, "Swish", [x], {"alpha": alpha})
        return f"Swish of alpha {alpha:g}"
    return None


recognise_swish = Pass(name="recognise_swish", run=lambda ctx: ctx.each(("Mul",), _attempt))
