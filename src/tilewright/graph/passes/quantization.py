"""What a QuantizeLinear or DequantizeLinear says: parameters, and what it quantises.

Input -> Output: a node -> ``Parameters`` or the reason why it is of no use to a rewrite.
Guarantees: scale and zero point are constants of one element, or one a channel of a constant; the
scale is float32, positive and finite; the data is int8, uint8 or, for a bias, int32.
Not here: rewriting (integer_products, integer_moves).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tilewright.graph.passes.base import Array, PassContext, Refused, attribute, operand

_BYTES = ("uint8", "int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """How numbers are quantised.

    Attributes:
        node: the QuantizeLinear or DequantizeLinear.
        scale, zero: one element, or one a channel; the zero point has the type of the data.
        axis: of the channels, as the node has it.
    """

    node: ir.Node
    scale: Array
    zero: Array
    axis: int

    @property
    def is_single(self) -> bool:
        """One scale for the whole tensor."""
        return self.scale.size == 1 and self.zero.size == 1

    def same_as(self, other: Parameters) -> bool:
        """Whether both mean the same numbers by the same bytes."""
        return (
            self.is_single
            and other.is_single
            and self.zero.dtype == other.zero.dtype
            and bool(self.scale.reshape(()) == other.scale.reshape(()))
            and bool(self.zero.reshape(()) == other.zero.reshape(()))
        )

    def quantized(self, number: float) -> int:
        """The integer that one number becomes."""
        limits = np.iinfo(self.zero.dtype)
        with np.errstate(all="ignore"):
            ratio = np.float32(number) / np.float32(self.scale.reshape(()))
        whole = float(np.rint(ratio)) + int(self.zero.reshape(()))
        return int(min(max(whole, limits.min), limits.max))


def parameters_of(
    ctx: PassContext, node: ir.Node, types: tuple[str, ...] = _BYTES
) -> Parameters | Refused:
    """The parameters of a node."""
    label = (node.name or "",)
    scale, zero = ctx.constant(operand(node, 1)), operand(node, 2)
    if scale is None or (zero is not None and ctx.constant(zero) is None):
        return Refused(reason="scale or zero point is not constant", nodes=label)
    known = ctx.constant(zero)
    if known is None:
        known = np.zeros(scale.shape, _data_type(ctx, node))
    if str(known.dtype) not in types:
        return Refused(reason=f"it holds {known.dtype}", nodes=label)
    if scale.dtype != np.float32:
        return Refused(reason=f"the scale is {scale.dtype}", nodes=label)
    if attribute(node, "block_size", 0):
        return Refused(reason="scales are one a block", nodes=label)
    if not (np.isfinite(scale).all() and (scale > 0).all()):
        return Refused(reason="a scale is not positive and finite", nodes=label)
    axis = int(attribute(node, "axis", 1))
    return Parameters(node=node, scale=scale, zero=known, axis=axis)


def zero_point(ctx: PassContext, given: Parameters) -> ir.Value:
    """The zero point as an input; zeros where the node has none."""
    found = operand(given.node, 2)
    if found is not None:
        return found
    zero: Array = np.zeros(given.scale.shape, given.zero.dtype)
    return ctx.new_constant(zero, f"{given.node.name}/zero")


def _data_type(ctx: PassContext, node: ir.Node) -> str:
    """The type of the integers of a node without a zero point."""
    value = node.inputs[0] if node.op_type == "DequantizeLinear" else node.outputs[0]
    dtype = ctx.dtype(value)
    return "uint8" if dtype is None else dtype.name
