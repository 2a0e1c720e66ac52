"""Keep weights of few bits as they are in products with floats.

    MatMul(a, DequantizeLinear(w, s, z))         ->  tilewright.MatMulWeights(a, w', s', z')
    MatMul(a, Mul(Cast(w), s)), Gemm(a, .., c)       the same, with Add(.., c)
    com.microsoft.MatMulNBits(a, w, s, z)            the same
    with w of two dims, in 8 or 4 bits, a scale a tensor, a column, or a block of rows in a column
Requires: weights, scales and zero points are constants.
Guarantees: every weight has the value that it had; a MatMulNBits that does not fit the form gets
    its weights as floats.
Not here: products whose data are integers as well (integer_products, which comes before).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from tilewright.core.dtypes import BY_CODE, from_numpy
from tilewright.graph.passes.base import (
    Array,
    Outcome,
    Pass,
    PassContext,
    Refused,
    attribute,
    operand,
)
from tilewright.graph.passes.match import all_finite, maker
from tilewright.runtime.reference.small_weights import (
    DOMAIN,
    NBITS_DOMAIN,
    Weights,
    nbits_weights,
    packed_rows,
)

_HALF_BITS = 4
_HALF_RANGE = 1 << _HALF_BITS


def _of_float(ctx: PassContext, node: ir.Node) -> Outcome:
    """A MatMul or Gemm whose second operand is made of small integers."""
    value, flipped = operand(node, 1), bool(attribute(node, "transB", 0))
    turn = maker(value, "Transpose", graph=node.graph)
    if turn is not None and list(attribute(turn, "perm", (1, 0))) == [1, 0]:
        value, flipped = operand(turn, 0), not flipped
    source = maker(value, "DequantizeLinear", "Mul", graph=node.graph)
    if source is None:
        return None
    found = (_of_dequantize if source.op_type == "DequantizeLinear" else _of_product)(ctx, source)
    if found is None or isinstance(found, Refused):
        return found
    codes, scale, zero, axis, block = found
    if node.op_type == "Gemm" and not _is_plain(node):
        return Refused(reason="the Gemm scales or transposes its data")
    if flipped:
        codes, axis = codes.T, 1 - axis
        if block:
            scale, zero = scale.T, None if zero is None else zero.T
    rows = _rows(codes, scale, zero, axis, block)
    if isinstance(rows, Refused):
        return rows
    return _replace(ctx, node, rows, operand(node, 2) if node.op_type == "Gemm" else None)


Found = tuple[Array, Array, "Array | None", int, int]  # codes, scale, zero, axis of scales, block


def _of_dequantize(ctx: PassContext, node: ir.Node) -> Found | Refused | None:
    codes, scale = (ctx.constant(operand(node, index)) for index in (0, 1))
    zero = ctx.constant(operand(node, 2))
    if codes is None or codes.ndim != 2:
        return None
    kind = from_numpy(codes.dtype)
    if kind.is_float:
        return Refused(reason=f"codes of {kind.name} are no integers")
    if scale is None or (zero is None and operand(node, 2) is not None):
        return Refused(reason="a scale or zero point is no constant")
    axis, block = int(attribute(node, "axis", 1)) % 2, int(attribute(node, "block_size", 0))
    return codes, scale, zero, axis, block


def _of_product(ctx: PassContext, node: ir.Node) -> Found | Refused | None:
    """Weights cast to float, times a constant that is one number, or one a column or row."""
    for position in (0, 1):
        cast = maker(operand(node, position), "Cast", graph=node.graph)
        codes = ctx.constant(operand(cast, 0)) if cast is not None else None
        scale = ctx.constant(operand(node, 1 - position))
        if cast is None or codes is None or scale is None or codes.ndim != 2:
            continue
        target = BY_CODE.get(int(attribute(cast, "to", 0)))
        if target is None or not target.is_float or from_numpy(codes.dtype).is_float:
            return None
        shape = (1,) * (2 - scale.ndim) + scale.shape
        if scale.ndim > 2 or shape[0] not in (1, codes.shape[0]) or 1 not in shape:
            return Refused(reason="the scale is neither one number nor one a column")
        return codes, scale.reshape(-1), None, 0 if shape[0] > 1 else 1, 0
    return None


def _is_plain(node: ir.Node) -> bool:
    factors = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    return factors == (1.0, 1.0) and not attribute(node, "transA", 0)


def _rows(
    codes: Array, scale: Array, zero: Array | None, axis: int, block: int
) -> Weights | Refused:
    """Weights ``[K, N]`` with scales ``[groups, N]``."""
    depth, columns = codes.shape
    if not all_finite(scale):  # the sum would be scaled, and a weight of 0 is NaN, not 0
        return Refused(reason="a scale is NaN or infinite")
    if scale.size == 1:
        scale = np.broadcast_to(scale.reshape(1, 1), (1, columns))
        zero = None if zero is None else np.broadcast_to(zero.reshape(1, 1), (1, columns))
        block = depth
    elif not block:
        if axis == 0:
            return Refused(reason="there is a scale for each row of weights")
        scale, block = scale.reshape(1, -1), depth
        zero = None if zero is None else zero.reshape(1, -1)
    elif axis == 1:
        return Refused(reason="blocks lie along the columns of weights")
    if not depth or depth % block:
        return Refused(reason=f"{depth} rows are no whole blocks of {block}")
    return Weights(codes=codes, scales=scale, zeros=0 if zero is None else zero, block=block)


def _of_nbits(ctx: PassContext, node: ir.Node) -> Outcome:
    found = _nbits(ctx, node)
    if isinstance(found, Refused):
        return found
    if found.codes.shape[0] % found.block:
        return _widen(ctx, node, found, f"rows are no whole blocks of {found.block}")
    bits = int(attribute(node, "bits", 4))
    half = replace(found, codes=found.codes.astype(np.uint8))
    return _replace(ctx, node, half, operand(node, 5), bits=bits)


def _as_floats(ctx: PassContext, node: ir.Node) -> Outcome:
    found = _nbits(ctx, node)
    if isinstance(found, Refused):
        return found
    return _widen(ctx, node, found, "the target multiplies floats")


def _nbits(ctx: PassContext, node: ir.Node) -> Weights | Refused:
    """The weights of a MatMulNBits."""
    codes, scale, zero = (ctx.constant(operand(node, index)) for index in (1, 2, 3))
    if codes is None or scale is None or (zero is None and operand(node, 3) is not None):
        return Refused(reason="weights, scales or zero points are no constants")
    sizes = int(attribute(node, "K")), int(attribute(node, "N"))
    bits, block = int(attribute(node, "bits", 4)), int(attribute(node, "block_size"))
    return nbits_weights(codes, scale, zero, sizes=sizes, bits=bits, block=block)


def _widen(ctx: PassContext, node: ir.Node, weights: Weights, reason: str) -> str:
    """Puts a MatMul of floats in the place of a MatMulNBits."""
    a = operand(node, 0)
    dtype = ctx.dtype(a)
    kind = np.dtype(np.float32) if dtype is None else dtype.numpy
    floats = weights.floats(np.dtype(np.float32)).astype(kind)
    value = ctx.new_constant(np.ascontiguousarray(floats), f"{node.name}/w")
    _conclude(ctx, node, ctx.new_node("MatMul", [a, value], before=node), operand(node, 5))
    return f"weights as {kind}: {reason}"


def _replace(
    ctx: PassContext, node: ir.Node, weights: Weights, bias: ir.Value | None, bits: int = 8
) -> str:
    """Puts MatMulWeights in the place of a product."""
    middle, zeros = _zeros(weights.zeros)
    codes = weights.codes
    if codes.dtype.name in ("int4", "int2"):  # unsigned halves: a shift instead of a sign
        codes, middle = codes.astype(np.int8) + np.int8(8), middle + 8
        zeros = None if zeros is None else zeros.astype(np.int8) + np.int8(8)
    if codes.dtype.name in ("int4", "int2", "uint4", "uint2") or codes is not weights.codes:
        bits, codes = _HALF_BITS, codes.astype(np.uint8)
        zeros = None if zeros is None else zeros.astype(np.uint8)
    bits = _HALF_BITS if bits <= _HALF_BITS and weights.block % 2 == 0 else 8
    if bits == _HALF_BITS:
        codes = packed_rows(codes)
    parts = [("codes", codes), ("scales", weights.scales)]
    if zeros is not None:
        parts.append(("zeros", zeros))
    inputs = [
        ctx.new_constant(np.ascontiguousarray(array), f"{node.name}/{name}")
        for name, array in parts
    ]
    attributes = {"bits": bits, "block_size": weights.block, "zero": middle}
    product = ctx.new_node(
        "MatMulWeights", [operand(node, 0), *inputs], attributes, before=node, domain=DOMAIN
    )
    _conclude(ctx, node, product, bias)
    groups = weights.scales.shape[0]
    each = "a column" if groups == 1 else f"{weights.block} rows of a column"
    return f"weights stay in {bits} bits, a scale for {each}"


def _zeros(zeros: Array | int) -> tuple[int, Array | None]:
    """One number for all, or an array."""
    if isinstance(zeros, int):
        return zeros, None
    values = np.unique(zeros.astype(np.float64))
    if values.size == 1 and values[0] == int(values[0]):
        return int(values[0]), None
    return 0, zeros


def _conclude(ctx: PassContext, node: ir.Node, product: ir.Node, bias: ir.Value | None) -> None:
    """Lets the result, with its bias, stand for the old one."""
    if bias is not None:
        product = ctx.new_node("Add", [product.outputs[0], bias], before=node)
    ctx.adopt(node.outputs[0], product.outputs[0])
    ctx.remove([node])


def _run(ctx: PassContext) -> None:
    ctx.info(fresh=True)
    ctx.each(("MatMulNBits",), _of_nbits, domain=NBITS_DOMAIN)
    ctx.each(("MatMul", "Gemm"), _of_float)


keep_weights_small = Pass(name="keep_weights_small", run=_run)
# For targets whose products have no use for small weights: what only the pass above can read.
widen_weights = Pass(
    name="widen_weights",
    run=lambda ctx: ctx.each(("MatMulNBits",), _as_floats, domain=NBITS_DOMAIN),
)
