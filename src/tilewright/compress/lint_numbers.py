"""Faults in the numbers of a quantised graph: axes, zero points, scales, types, dead channels.

Input -> Output: ``QuantView`` -> ``Finding``s, a rule a function.
Requires: nothing of the graph but that it could be read; what does not fit a rule it passes over.
Guarantees: a rule looks at constants only; parameters that are computed are nobody's fault.
Not here: where Q and DQ stand (lint_placement).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.compress.finding import Finding
from tilewright.compress.quant_view import (
    Array,
    Coded,
    Contraction,
    QuantView,
    is_dequantize,
    is_quantize,
    label,
    operand,
    shown,
)
from tilewright.core.dtypes import BY_CODE, INT32, DType, from_numpy
from tilewright.graph.view import NodeView

_SCALE_TOLERANCE = 1e-4  # of a bias: float32 products in either order, and a margin
_NEEDS_19 = frozenset("float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz".split())
_NEEDS_21 = frozenset("int16 uint16 int4 uint4".split())
_NEEDS_23 = frozenset(["float4_e2m1"])
_NEEDS_25 = frozenset("int2 uint2".split())
_ATTRIBUTES = {"axis": 13, "saturate": 19, "block_size": 21, "output_dtype": 21, "precision": 23}


def output_axis(one: Contraction, rank: int) -> int | None:
    """The axis of the weight's integers that counts output channels; None where it is not known."""
    weight = one.weight
    if weight is None:
        return None
    kind = one.node.op_type
    if "Conv" in kind:
        axis = 1 if kind == "ConvTranspose" else 0
    elif kind == "Gemm":
        axis = 0 if one.node.attribute("transB", 0) else 1
    else:
        axis = rank - 1
    for perm in reversed(weight.moves):
        full = tuple(reversed(range(rank))) if perm is None else perm
        if len(full) != rank:
            return None
        axis = full[axis]
    return axis


def weight_axes(view: QuantView) -> Iterator[Finding]:
    """Weights with a scale each along another axis than that of output channels."""
    for one in view.contractions():
        weight = one.weight
        codes = view.constant(weight.codes) if weight else None
        codes = _before_quantize(view, weight) if codes is None and weight else codes
        scale = view.constant(weight.scale) if weight else None
        if weight is None or codes is None or scale is None or scale.size == 1 or weight.block:
            continue
        wanted = output_axis(one, codes.ndim)
        if wanted is None or scale.ndim != 1:
            continue
        size = codes.shape[wanted]
        axis = wanted if weight.axis is None else weight.axis
        if not -codes.ndim <= axis < codes.ndim or codes.shape[axis] != scale.size:
            yield Finding(
                rule="weight-axis",
                severity="error",
                node=label(weight.node),
                message=f"{scale.size} scales along axis {axis} of weights "
                f"{'x'.join(map(str, codes.shape))}, which have another size there",
                remedy=f"give axis={wanted} and {size} scales",
            )
        elif axis % codes.ndim != wanted:
            yield Finding(
                rule="weight-axis",
                severity="warning",
                node=label(weight.node),
                message=f"scales lie along axis {axis}, the output channels of "
                f"{label(one.node)} along axis {wanted}: no integer kernel can apply them after "
                "the sum",
                remedy=f"quantise along axis {wanted}",
            )


def _before_quantize(view: QuantView, coded: Coded) -> Array | None:
    """Float weights that the file quantises at run time."""
    maker = view.makers.get(coded.codes)
    if maker is None or not is_quantize(maker):
        return None
    return view.constant(operand(maker, 0))


def zero_points(view: QuantView) -> Iterator[Finding]:
    """Zero points of a wrong type, of a wrong shape, or where there should be none."""
    for node in view.graph.nodes:
        if is_quantize(node) or is_dequantize(node):
            yield from _zero_point(view, node)
    for one in view.contractions():
        yield from _weight_zero(view, one)


def _zero_point(view: QuantView, node: NodeView) -> Iterator[Finding]:
    scale, zero = view.constant(operand(node, 1)), view.constant(operand(node, 2))
    codes = view.constant(operand(node, 0)) if is_dequantize(node) else None
    if zero is None:
        return
    stated = BY_CODE.get(int(node.attribute("output_dtype", 0))) if is_quantize(node) else None
    of_codes = _type_of(codes) if codes is not None else stated
    own = _type_of(zero)
    if of_codes is not None and own is not None and own is not of_codes:
        yield Finding(
            rule="zero-point-type",
            severity="error",
            node=label(node),
            message=f"the zero point is {own}, the integers are {of_codes}",
            remedy=f"store the zero point as {of_codes}",
        )
    if scale is not None and scale.size != zero.size:
        yield Finding(
            rule="zero-point-shape",
            severity="error",
            node=label(node),
            message=f"{zero.size} zero points for {scale.size} scales",
            remedy="give both the same shape",
        )
    if own is INT32 and np.any(zero != 0):
        yield Finding(
            rule="zero-point-value",
            severity="error",
            node=label(node),
            message="a zero point of int32 must be 0",
            remedy="leave the zero point out",
        )


def _weight_zero(view: QuantView, one: Contraction) -> Iterator[Finding]:
    """Symmetric weights: int8 around 0, uint8 around 128 (the same weights shifted)."""
    if one.weight is None or one.data is None:
        return  # weights alone: groups with zero points are read as floats anyway
    zero = view.constant(one.weight.zero)
    dtype = _type_of(zero) if zero is not None else None
    if zero is None or dtype is None or not dtype.is_integer:
        return
    middle = 0 if dtype.is_signed else 1 << (dtype.bits - 1)
    wrong = np.flatnonzero(zero.reshape(-1).astype(np.int64) != middle).tolist()
    if wrong:
        yield Finding(
            rule="weight-zero-point",
            severity="warning",
            node=label(one.node),
            message=f"weights are not symmetric in {shown(wrong, 'channel')}: every sum needs that "
            "of its inputs as well, and TensorRT refuses them",
            remedy=f"quantise weights symmetrically (zero point {middle})",
        )


def scales(view: QuantView) -> Iterator[Finding]:
    """Scales that are no positive finite numbers."""
    seen: set[str] = set()
    for node in view.graph.nodes:
        name = operand(node, 1)
        if not (is_quantize(node) or is_dequantize(node)) or name is None or name in seen:
            continue
        seen.add(name)
        found = view.constant(name)
        if found is None:
            continue
        values = found.reshape(-1).astype(np.float64)
        bad = np.flatnonzero(~np.isfinite(values) | (values < 0)).tolist()
        if bad or (values.size == 1 and values[0] == 0):
            yield Finding(
                rule="scale",
                severity="error",
                node=label(node),
                message=f"scale {values[bad[0]] if bad else 0.0:g} is no positive number",
                remedy="calibrate again, and guard ranges of zero width",
            )


def dead_channels(view: QuantView) -> Iterator[Finding]:
    """Output channels whose weights are all zero, or have no scale but 0."""
    for one in view.contractions():
        weight = one.weight
        codes = view.constant(weight.codes) if weight else None
        if weight is None or codes is None or weight.block:
            continue
        axis = output_axis(one, codes.ndim)
        if axis is None or not codes.size or codes.ndim < 2:
            continue
        zero, scale = view.constant(weight.zero), view.constant(weight.scale)
        dead = _unused(codes, zero, scale, axis)
        if dead:
            yield Finding(
                rule="dead-channel",
                severity="warning",
                node=label(one.node),
                message=f"no weight but zero in {shown(dead, 'output channel')} "
                f"of {codes.shape[axis]}",
                remedy="prune them, or look at why calibration or training lost them",
            )


def _unused(codes: Array, zero: Array | None, scale: Array | None, axis: int) -> list[int]:
    size = codes.shape[axis]
    rows = np.moveaxis(codes, axis, 0).reshape(size, -1).astype(np.float64)
    dead = np.zeros(size, bool)
    if zero is None or zero.size in (1, size):
        middle = 0.0 if zero is None else zero.astype(np.float64).reshape(-1, 1)
        dead |= np.all(rows == middle, axis=1)
    if scale is not None and scale.size == size:
        dead |= np.abs(scale.reshape(-1).astype(np.float64)) < np.finfo(np.float32).tiny
    return [int(index) for index in np.flatnonzero(dead)]


def bias_scales(view: QuantView) -> Iterator[Finding]:
    """A bias of integers whose scale is not that of the sum that it is added to."""
    for one in view.contractions():
        bias, data, weight = one.bias, one.data, one.weight
        if bias is None or data is None or weight is None or bias.scale is None:
            continue
        found = [view.constant(part.scale) for part in (bias, data, weight)]
        own, of_data, of_weight = found
        if own is None or of_data is None or of_weight is None or of_data.size != 1:
            continue
        wanted = of_data.reshape(-1).astype(np.float64) * of_weight.reshape(-1).astype(np.float64)
        given = own.reshape(-1).astype(np.float64)
        if given.size != 1 and wanted.size not in (1, given.size):
            continue  # the weight's axis is wrong, which another rule says
        off = ~np.isclose(given, wanted, rtol=_SCALE_TOLERANCE, atol=0)
        if np.any(off):
            at = int(np.flatnonzero(off)[0])
            is_value = np.broadcast_to(given, off.shape)[at]
            should = np.broadcast_to(wanted, off.shape)[at]
            yield Finding(
                rule="bias-scale",
                severity="error",
                node=label(bias.node),
                message=f"the bias of {label(one.node)} has scale {is_value:.6g} in channel {at}; "
                f"the sum's is {should:.6g} (input scale times weight scale): it cannot be added "
                "to the integers",
                remedy="quantise the bias to int32 with that scale",
            )


def opsets(view: QuantView) -> Iterator[Finding]:
    """Types and attributes that the stated operator set does not have."""
    for node in view.graph.nodes:
        if node.domain or not (is_quantize(node) or is_dequantize(node)):
            continue
        needs = {
            f"attribute {name}": since
            for name, since in _ATTRIBUTES.items()
            if name in node.attributes
        }
        for index in (0, 2):
            found = view.constant(operand(node, index))
            dtype = None if found is None or (is_quantize(node) and not index) else _type_of(found)
            if dtype is not None:
                needs[f"type {dtype}"] = _since(dtype)
        missing = {what: since for what, since in needs.items() if since > node.opset}
        if missing:
            newest = max(missing.values())
            yield Finding(
                rule="opset",
                severity="error",
                node=label(node),
                message=f"{', '.join(missing)}: not before opset {newest}; the model states "
                f"{node.opset}",
                remedy=f"state opset {newest} (onnx.version_converter.convert_version), or use the "
                "operator of com.microsoft",
            )


def _since(dtype: DType) -> int:
    for names, since in ((_NEEDS_19, 19), (_NEEDS_21, 21), (_NEEDS_23, 23), (_NEEDS_25, 25)):
        if dtype.name in names:
            return since
    return 10


def size_growth(view: QuantView) -> Iterator[Finding]:
    """Weights that the file keeps as floats and quantises in every run."""
    for node in view.graph.nodes:
        weights = view.constant(operand(node, 0)) if is_quantize(node) else None
        if weights is None or weights.ndim < 2:
            continue
        zero = view.constant(operand(node, 2))
        bits = 8 if zero is None else from_numpy(zero.dtype).bits
        grown = weights.nbytes - weights.size * bits // 8
        yield Finding(
            rule="size-growth",
            severity="warning",
            node=label(node),
            message=f"{weights.size} weights are stored as {weights.dtype} and quantised in every "
            "run",
            remedy="store the integers, and DequantizeLinear alone",
            price_bytes=grown,
        )


def _type_of(array: Array) -> DType | None:
    return from_numpy(array.dtype) if array.dtype != object else None
