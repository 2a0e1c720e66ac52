"""Bounds of a value's elements, from types and constants.

Input -> Output: a value -> (lowest, highest), or None where nothing is proven.
Guarantees: bounds hold for every input of the right type; a range means that no element is NaN or
infinite, since each step stays inside of what its type holds.
Not here: bounds of whole sizes (core.shape).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilewright.core.dtypes import BOOL, BY_CODE, DType, Kind
from tilewright.graph.passes.base import PassContext, attribute, operand
from tilewright.graph.passes.match import all_finite

Range = tuple[float, float]
_MAX_DEPTH = 24
_MOVING = frozenset(
    "Identity Reshape Transpose Unsqueeze Squeeze Flatten Expand Slice Gather GatherElements "
    "GatherND Tile Trilu Split DepthToSpace SpaceToDepth".split()
)


def value_range(ctx: PassContext, value: ir.Value | None, depth: int = 0) -> Range | None:
    """Returns bounds of a float, integer or bool tensor's elements."""
    array = ctx.constant(value)
    if array is not None:
        if not array.size or array.dtype.kind in "OSUc" or not all_finite(array):
            return None
        wide = array.astype(np.float64)
        return float(wide.min()), float(wide.max())
    dtype = ctx.dtype(value)
    node = value.producer() if value is not None else None
    found = None
    if node is not None and not node.domain and depth < _MAX_DEPTH:
        found = _of_node(ctx, node, depth + 1)
    if found is None:
        return _of_type(dtype)
    return found if _holds(dtype, found) else _of_type(dtype)


def _of_node(ctx: PassContext, node: ir.Node, depth: int) -> Range | None:
    first = operand(node, 0)
    match node.op_type:
        case "Cast":
            source, target = ctx.dtype(first), BY_CODE.get(int(attribute(node, "to", 0)))
            found = value_range(ctx, first, depth)
            if source is None or target is None or found is None:
                return None
            # Out of range integers wrap; the bounds then say nothing and the check on types fails.
            return found
        case "Where":
            return _union(*(value_range(ctx, operand(node, k), depth) for k in (1, 2)))
        case "Concat" | "Max" | "Min":
            return _union(*(value_range(ctx, value, depth) for value in node.inputs))
        case "Add" | "Sub" | "Mul":
            left, right = (value_range(ctx, operand(node, k), depth) for k in (0, 1))
            return None if left is None or right is None else _combine(node.op_type, left, right)
        case "Neg":
            found = value_range(ctx, first, depth)
            return None if found is None else (-found[1], -found[0])
        case name if name in _MOVING:
            low = value_range(ctx, first, depth)
            # Trilu fills with zeros.
            return _union(low, (0.0, 0.0)) if name == "Trilu" else low
    return None


def _combine(op_type: str, left: Range, right: Range) -> Range:
    if op_type == "Add":
        return left[0] + right[0], left[1] + right[1]
    if op_type == "Sub":
        return left[0] - right[1], left[1] - right[0]
    products = [a * b for a in left for b in right]
    return min(products), max(products)


def _union(*ranges: Range | None) -> Range | None:
    known = [part for part in ranges if part is not None]
    if not known or len(known) != len(ranges):
        return None
    return min(part[0] for part in known), max(part[1] for part in known)


def _of_type(dtype: DType | None) -> Range | None:
    if dtype is BOOL:
        return 0.0, 1.0
    if dtype is None or not dtype.is_integer:
        return None
    if dtype.kind is Kind.UINT:
        return 0.0, float(2**dtype.bits - 1)
    return -float(2 ** (dtype.bits - 1)), float(2 ** (dtype.bits - 1) - 1)


def _holds(dtype: DType | None, found: Range) -> bool:
    """Whether results between these bounds neither overflow nor wrap in the type."""
    if dtype is None:
        return False
    if dtype is BOOL:
        return True
    if dtype.is_integer:
        limits = _of_type(dtype)
        return limits is not None and limits[0] <= found[0] and found[1] <= limits[1]
    highest = _LARGEST.get(dtype.name, 0.0)
    return -highest <= found[0] and found[1] <= highest


# The largest finite numbers.
_LARGEST = {
    "float64": 1.7976931348623157e308,
    "float32": 3.4028234663852886e38,
    "bfloat16": 3.3895313892515355e38,
    "float16": 65504.0,
}
