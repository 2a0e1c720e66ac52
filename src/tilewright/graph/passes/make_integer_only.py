"""Put integer arithmetic in the place of float functions between integers; a choice of the caller.

    QuantizeLinear(f(DequantizeLinear(x, s, z)), t, u)  ->  tilewright.IntegerF(x)
    with f of Exp, Sqrt, Sigmoid, Gelu, Softmax, LayerNormalization
Requires: scales and zero points are single constants; nobody else reads the floats; the row's size
    is known.
Guarantees: results differ from rounded exact values by no more than the decision states (and half a
    step); what stays in floats is refused with its reason.
Not here: contractions and residual sums of integers, which lowering keeps integer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from tilewright.core.dtypes import BY_CODE, UINT8, from_numpy
from tilewright.core.shape import product
from tilewright.graph.passes.base import (
    Array,
    Outcome,
    Pass,
    PassContext,
    Refused,
    attribute,
    enclosed,
    operand,
)
from tilewright.graph.passes.match import maker
from tilewright.runtime.reference.fixed_point import MAX_ERROR, MAX_ROW
from tilewright.runtime.reference.integer_only import (
    DOMAIN,
    reason_against,
    scales_of,
    weights_of,
)

_OPERATORS = {
    "Exp": "IntegerExp",
    "Sqrt": "IntegerSqrt",
    "Sigmoid": "IntegerSigmoid",
    "Gelu": "IntegerGelu",
    "Softmax": "IntegerSoftmax",
    "LayerNormalization": "IntegerLayerNormalization",
}
_EPSILON = 1e-5
_RELATIVE = {
    "IntegerExp": " of the value",
    "IntegerSqrt": " of the largest root",
    "IntegerGelu": " + 5e-5 |x|",
    "IntegerLayerNormalization": " of the largest |gamma| and normalised value",
}
Extra = tuple[dict[str, Any], tuple[ir.Value, ...]]  # attributes and inputs beside x


def _attempt(ctx: PassContext, node: ir.Node) -> Outcome:
    reader = maker(operand(node, 0), *_OPERATORS, graph=node.graph)
    if reader is None:
        return None
    source = maker(operand(reader, 0), "DequantizeLinear", graph=node.graph)
    if source is None or source.inputs[0] is None:
        return Refused(reason=f"{reader.op_type} reads floats")
    refused = enclosed([reader], node)
    if refused is not None:
        return refused
    op_type = _OPERATORS[reader.op_type]
    attributes = _parameters(ctx, source, node)
    dtype = ctx.dtype(source.inputs[0])
    if isinstance(attributes, Refused) or dtype is None:
        return attributes if isinstance(attributes, Refused) else Refused(reason="type unknown")
    y = BY_CODE[attributes["y_type"]]
    try:
        scales = scales_of(attributes, dtype.numpy)
    except KeyError:
        return Refused(reason=f"the result is {y}: integers of at most 16 bits are known")
    reason = reason_against(op_type, dtype.numpy, y.numpy, scales, attributes["x_zero"])
    if reason is not None:
        return Refused(reason=reason)
    extra = _EXTRAS.get(op_type, _nothing)(ctx, reader, attributes)
    if isinstance(extra, Refused):
        return extra
    inputs = (source.inputs[0], *extra[1])
    ctx.replace(node, [reader], op_type, inputs, {**attributes, **extra[0]}, domain=DOMAIN)
    error = f"{MAX_ERROR[op_type]:g}{_RELATIVE.get(op_type, '')}"
    return f"{op_type}: int32 arithmetic, error at most {error}, and half a step"


def _parameters(ctx: PassContext, source: ir.Node, node: ir.Node) -> dict[str, Any] | Refused:
    """What x and y mean, as attributes."""
    numbers = [ctx.scalar(operand(one, 1)) for one in (source, node)]
    zeros = [_zero(ctx, operand(one, 2)) for one in (source, node)]
    if None in numbers or None in zeros:
        return Refused(reason="a scale or a zero point is no single constant")
    y_zero = ctx.constant(operand(node, 2))
    stated = int(attribute(node, "output_dtype", 0)) or UINT8.code
    return {
        "x_scale": numbers[0],
        "x_zero": zeros[0],
        "y_scale": numbers[1],
        "y_zero": zeros[1],
        "y_type": stated if y_zero is None else from_numpy(y_zero.dtype).code,
    }


def _zero(ctx: PassContext, value: ir.Value | None) -> int | None:
    if value is None:
        return 0
    found = ctx.scalar(value)
    return None if found is None else int(found)


def _nothing(_ctx: PassContext, _node: ir.Node, _known: dict[str, Any]) -> Extra:
    return {}, ()


def _row(ctx: PassContext, node: ir.Node, *, trailing: bool) -> tuple[int, int] | Refused:
    """The axis of a row function, and the row's size."""
    shape = ctx.shape(operand(node, 0))
    if shape is None:
        return Refused(reason="the rank is unknown")
    axis = int(attribute(node, "axis", -1)) % max(1, len(shape))
    size = product(shape[axis:] if trailing else shape[axis : axis + 1])
    if not size.is_const or not 1 <= size.const <= MAX_ROW:
        return Refused(reason=f"rows of {size}: a size up to {MAX_ROW} must be known")
    return axis, size.const


def _of_softmax(ctx: PassContext, node: ir.Node, _known: dict[str, Any]) -> Extra | Refused:
    row = _row(ctx, node, trailing=False)
    return row if isinstance(row, Refused) else ({"axis": row[0]}, ())


def _of_layer_norm(ctx: PassContext, node: ir.Node, known: dict[str, Any]) -> Extra | Refused:
    row = _row(ctx, node, trailing=True)
    if isinstance(row, Refused):
        return row
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return Refused(reason="the mean or the deviation is read")
    gamma, beta = ctx.constant(operand(node, 1)), ctx.constant(operand(node, 2))
    if gamma is None or (beta is None and operand(node, 2) is not None):
        return Refused(reason="gamma or beta is no constant")
    beta = np.zeros_like(gamma) if beta is None else beta
    found = weights_of(gamma, beta, known["y_scale"], row[1])
    if found is None:
        return Refused(reason="gamma or beta is beyond 2**29 steps of the result")
    attributes = {
        "axis": row[0],
        "size": row[1],
        "norm_bits": found[2].norm,
        "gamma_bits": found[2].gamma,
        "epsilon": float(attribute(node, "epsilon", _EPSILON)),
    }
    weights: tuple[tuple[str, Array], ...] = (("gamma", found[0]), ("beta", found[1]))
    return attributes, tuple(
        ctx.new_constant(array, f"{node.name}/{name}") for name, array in weights
    )


_EXTRAS: dict[str, Callable[[PassContext, ir.Node, dict[str, Any]], Extra | Refused]] = {
    "IntegerSoftmax": _of_softmax,
    "IntegerLayerNormalization": _of_layer_norm,
}


def _run(ctx: PassContext) -> None:
    ctx.info(fresh=True)
    ctx.each(("QuantizeLinear",), _attempt)


make_integer_only = Pass(name="make_integer_only", run=_run)
