"""Recognise Gelu from its arithmetic, however the products are grouped.

    0.5 * x * (1 + Erf(x / sqrt(2)))                              ->  Gelu(x)
    0.5 * x * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))    ->  Gelu(x, approximate="tanh")
    0.5 * x * (1 + Tanh(sqrt(2 / pi) * x * (1 + 0.044715 * x**2)))    the same
Requires: constants as an exporter writes them in the type (two units in the last place).
Guarantees: NaN and Inf as before; an overflow of x**3 alone does not happen any more.
Not here: x * Sigmoid(1.702 * x), which is Swish.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from tilewright.graph.passes.base import Outcome, Pass, PassContext, Refused, enclosed
from tilewright.graph.passes.match import (
    Product,
    is_scaled_further,
    maker,
    near,
    plus_constant,
    product_of,
    same_shape,
    split_factors,
)

_CUBIC = 0.044715


def _attempt(ctx: PassContext, node: ir.Node) -> Outcome:
    product = product_of(ctx, node.outputs[0], node.graph)
    if len(product.factors) != 2:
        return None
    for one_plus, (x,) in split_factors(product, ("Add",), node.graph):
        found = _half_x_times(ctx, node, product, one_plus, x)
        if found is not None:
            return found
    return None


def _half_x_times(
    ctx: PassContext, node: ir.Node, product: Product, one_plus: ir.Node, x: ir.Value
) -> Outcome:
    """The product of a constant, ``x`` and, perhaps, one plus a function of ``x``."""
    graph = node.graph
    shifted = plus_constant(ctx, one_plus)
    function = maker(shifted[0], "Erf", "Tanh", graph=graph) if shifted is not None else None
    if shifted is None or function is None or function.inputs[0] is None:
        return None
    argument = _erf_argument if function.op_type == "Erf" else _tanh_argument
    nodes = argument(ctx, function.inputs[0], x, graph)
    if nodes is None or isinstance(nodes, Refused):
        return nodes
    dtype = ctx.dtype(x)
    if not near(product.scale, 0.5, dtype) or not near(shifted[1], 1.0, dtype):
        if is_scaled_further(ctx, node):
            return None
        return Refused(reason=f"factors {product.scale:g}, {shifted[1]:g} instead of 0.5, 1")
    inside = [*product.nodes, one_plus, function, *nodes]
    refused = enclosed(inside, node) or same_shape(ctx, x, node.outputs[0])
    if refused is not None:
        return refused
    approximate = "tanh" if function.op_type == "Tanh" else "none"
    ctx.replace(node, inside, "Gelu", [x], {"approximate": approximate})
    return f"Gelu ({'erf' if approximate == 'none' else 'tanh'} form)"


def _erf_argument(
    ctx: PassContext, value: ir.Value, x: ir.Value, graph: ir.Graph | None
) -> list[ir.Node] | Refused | None:
    product = product_of(ctx, value, graph)
    if not _same(product.factors, [x]):
        return None
    if not near(product.scale, math.sqrt(0.5), ctx.dtype(x)):
        return Refused(reason=f"Erf takes {product.scale:g} * x, not x / sqrt(2)")
    return product.nodes


def _tanh_argument(
    ctx: PassContext, value: ir.Value, x: ir.Value, graph: ir.Graph | None
) -> list[ir.Node] | Refused | None:
    outer = product_of(ctx, value, graph)
    for add, rest in split_factors(outer, ("Add",), graph):
        if not rest:
            cubic = _cubic(ctx, add, x, graph)
        elif _same(rest, [x]):
            cubic = _square(ctx, add, x, graph)
        else:
            continue
        if isinstance(cubic, Refused):
            return cubic
        if cubic is None:
            continue
        if not near(outer.scale, math.sqrt(2 / math.pi), ctx.dtype(x)):
            return Refused(reason=f"Tanh takes {outer.scale:g} * (x + ...), not sqrt(2 / pi)")
        return [*outer.nodes, add, *cubic]
    return None


def _cubic(
    ctx: PassContext, add: ir.Node, x: ir.Value, graph: ir.Graph | None
) -> list[ir.Node] | Refused | None:
    """x + 0.044715 * x**3"""
    if x not in add.inputs:
        return None
    other = add.inputs[1] if add.inputs[0] is x else add.inputs[0]
    return None if other is None else _power(ctx, other, x, 3, graph)


def _square(
    ctx: PassContext, add: ir.Node, x: ir.Value, graph: ir.Graph | None
) -> list[ir.Node] | Refused | None:
    """1 + 0.044715 * x**2"""
    shifted = plus_constant(ctx, add)
    if shifted is None or shifted[1] != 1.0:
        return None
    return _power(ctx, shifted[0], x, 2, graph)


def _power(
    ctx: PassContext, value: ir.Value, x: ir.Value, exponent: int, graph: ir.Graph | None
) -> list[ir.Node] | Refused | None:
    """0.044715 * x**exponent, as a power or a product."""
    product = product_of(ctx, value, graph)
    nodes, degree = list(product.nodes), 0
    for factor in product.factors:
        power = maker(factor, "Pow", graph=graph)
        if factor is x:
            degree += 1
        elif power is not None and power.inputs[0] is x:
            number = ctx.scalar(power.inputs[1])
            if number not in (2.0, 3.0):
                return None
            degree += int(number)
            nodes.append(power)
        else:
            # x * x with a reader beside this one is computed once for all of them.
            return None
    if degree != exponent:
        return None
    if not near(product.scale, _CUBIC, ctx.dtype(x)):
        return Refused(reason=f"x**3 is taken {product.scale:g} times, not {_CUBIC}")
    return nodes


def _same(values: list[ir.Value], others: list[ir.Value]) -> bool:
    return len(values) == len(others) and all(a is b for a, b in zip(values, others, strict=True))


recognise_gelu = Pass(name="recognise_gelu", run=lambda ctx: ctx.each(("Mul", "Div"), _attempt))
