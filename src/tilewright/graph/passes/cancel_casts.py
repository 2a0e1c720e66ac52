"""Convert once where the first of two conversions loses nothing.

    Cast(Cast(x: A -> B) -> A)  ->  x
    Cast(Cast(x: A -> B) -> C)  ->  Cast(x -> C)
Requires: every number of A is one of B; for whole numbers taken through floats to an integer C, C
    must hold all of A, since conversions out of range depend on the type they start from.
Guarantees: same values, NaN and Inf included.
Not here: narrowing and back, which rounds, wraps or makes a truth value.
"""

from __future__ import annotations

import onnx_ir as ir

from tilewright.core.dtypes import BOOL, BY_CODE, STRING, DType, Kind
from tilewright.graph.passes.base import Outcome, Pass, PassContext, Refused, attribute
from tilewright.graph.passes.match import maker

# Significant bits, lowest exponent (of the last bit) and highest exponent.
_FLOATS = {
    "float64": (53, -1074, 1023),
    "float32": (24, -149, 127),
    "bfloat16": (8, -133, 127),
    "float16": (11, -24, 15),
    "float8_e5m2": (3, -16, 15),
    "float8_e4m3fn": (4, -9, 8),
}
_FEW_BITS = frozenset(("float8_e4m3fn",))  # it has no infinities: never the wider one


def is_widening(source: DType, target: DType) -> bool:
    """Whether every number of one type, NaN and Inf included, is a number of the other."""
    if source is target:
        return True
    if source is BOOL:
        return target.is_integer or target.name in _FLOATS
    if source.is_integer and target.is_integer:
        low, high = _limits(source)
        lowest, highest = _limits(target)
        return lowest <= low and high <= highest
    if source.is_integer and target.name in _FLOATS:
        significant, _, exponent = _FLOATS[target.name]
        width = source.bits - (source.kind is Kind.INT)
        return width <= significant and width <= exponent
    if source.name in _FLOATS and target.name in _FLOATS and target.name not in _FEW_BITS:
        own, wide = _FLOATS[source.name], _FLOATS[target.name]
        return own[0] <= wide[0] and own[1] >= wide[1] and own[2] <= wide[2]
    return False


def _limits(dtype: DType) -> tuple[int, int]:
    if dtype.kind is Kind.UINT:
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def _illegal(source: DType, middle: DType, target: DType) -> Refused | None:
    if STRING in (source, middle, target) or not is_widening(source, middle):
        return Refused(reason=f"{source} to {middle} loses numbers")
    if source is target or target is BOOL or target.is_float:
        return None
    if middle.is_float and not source.is_float and not is_widening(source, target):
        return Refused(reason=f"{target} does not hold all of {source}")
    return None


def _attempt(ctx: PassContext, node: ir.Node) -> Outcome:
    first = maker(node.inputs[0], "Cast", graph=node.graph)
    if first is None or first.inputs[0] is None:
        return None
    x = first.inputs[0]
    source = ctx.dtype(x)
    middle, target = (BY_CODE.get(int(attribute(part, "to", 0))) for part in (first, node))
    if source is None or middle is None or target is None:
        return Refused(reason="a type is unknown")
    refused = _illegal(source, middle, target)
    if refused is not None:
        return refused
    output = first.outputs[0]
    unread = [first] if len(output.uses()) == 1 and not output.is_graph_output() else []
    if source is target:
        ctx.bypass(node, x, unread)
        return f"{source} to {middle} and back is left out"
    ctx.replace(node, unread, "Cast", [x], node.attributes)
    return f"{source} to {target} without {middle}"


cancel_casts = Pass(name="cancel_casts", run=lambda ctx: ctx.each(("Cast",), _attempt))
