"""Quantised operators of ONNX Runtime as what they mean: standard operators between Q and DQ.

    com.microsoft.QLinearAdd(a, as, az, b, bs, bz, cs, cz)  ->
    QuantizeLinear(Add(DequantizeLinear(a, as, az), DequantizeLinear(b, bs, bz)), cs, cz)
    (also Mul, Concat, Sigmoid, LeakyRelu, Softmax, AveragePool, GlobalAveragePool), Q and DQ
    of that domain
Guarantees: results are those of ONNX's definition, which ONNX Runtime's own arithmetic may miss by
    one where a number lies halfway between two.
Not here: QGemm, which is an operator of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from tilewright.graph.check_proto import NEWEST_OPSET
from tilewright.graph.element_types import element_type_of
from tilewright.graph.normalize.edit import Edit

DOMAIN = "com.microsoft"
_REMEDY = "write the operator with DequantizeLinear and QuantizeLinear"


def _plain(edit: Edit, at: int) -> ir.Value:
    """The floats that the input at a position, its scale and its zero point stand for."""
    inputs = [edit.input(at + place) for place in range(3)]
    if inputs[0] is None or inputs[1] is None:
        raise edit.unsupported("an input is absent", _REMEDY)
    return edit.emit("DequantizeLinear", inputs)


def _quantize(edit: Edit, value: ir.Value, at: int, like: ir.Value | None) -> None:
    """Puts the value, quantised by the inputs at a position, in the operator's place."""
    scale, zero = edit.input(at), edit.input(at + 1)
    if zero is None:
        dtype = None if like is None else element_type_of(like)
        if dtype is None:
            raise edit.unsupported("the type of the result is not known", _REMEDY)
        zero = edit.constant(np.zeros((), dtype.numpy), "zero")
    edit.note("standard operators between Q and DQ")
    edit.replace(edit.emit("QuantizeLinear", [value, scale, zero]))


def _binary(op_type: str) -> Callable[[Edit], None]:
    def rewrite(edit: Edit) -> None:
        value = edit.emit(op_type, [_plain(edit, 0), _plain(edit, 3)])
        _quantize(edit, value, 6, edit.data())

    return rewrite


def _unary(op_type: str) -> Callable[[Edit], None]:
    def rewrite(edit: Edit) -> None:
        if edit.take("channels_last", 0):
            raise edit.unsupported("channels_last=1", _REMEDY)
        if edit.take("opset", NEWEST_OPSET) < _SOFTMAX_BY_AXIS:
            raise edit.unsupported("a softmax over all axes from one on", _REMEDY)
        kept = {name: found.value for name, found in edit.node.attributes.items()}
        value = edit.emit(op_type, [_plain(edit, 0)], **kept)
        _quantize(edit, value, 3, edit.data())

    return rewrite


_SOFTMAX_BY_AXIS = 13


def _concat(edit: Edit) -> None:
    """Scale and zero point of the result come first, then each part with its own."""
    parts = [_plain(edit, at) for at in range(2, len(edit.node.inputs), 3)]
    value = edit.emit("Concat", parts, axis=edit.take("axis", 0))
    _quantize(edit, value, 0, edit.input(2))


def _standard(edit: Edit) -> None:
    """Q and DQ are those of ONNX."""
    kept = {name: found.value for name, found in edit.node.attributes.items()}
    edit.replace(edit.emit(edit.node.op_type, list(edit.node.inputs), **kept))


CONTRIB: dict[str, Callable[[Edit], None]] = {
    "DequantizeLinear": _standard,
    "QLinearAdd": _binary("Add"),
    "QLinearAveragePool": _unary("AveragePool"),
    "QLinearConcat": _concat,
    "QLinearGlobalAveragePool": _unary("GlobalAveragePool"),
    "QLinearLeakyRelu": _unary("LeakyRelu"),
    "QLinearMul": _binary("Mul"),
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearSoftmax": _unary("Softmax"),
    "QuantizeLinear": _standard,
}
