"""Networks with Q and DQ of float8 (e4m3) around convolutions and products.

Input -> Output: a seed -> an ONNX model whose input ``x`` is [2, 16, 14, 14].
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tilewright.core.dtypes import FLOAT8_E4M3FN

SHAPE = (2, 16, 14, 14)
_LARGEST = 448.0


class _Net:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def known(self, array: Any, *, narrow: bool = False) -> str:
        name = f"c{len(self.weights)}"
        if narrow:
            codes = np.asarray(array).astype(FLOAT8_E4M3FN.numpy)
            kind = TensorProto.FLOAT8E4M3FN
            tensor = helper.make_tensor(name, kind, codes.shape, codes.tobytes(), raw=True)
        else:
            tensor = numpy_helper.from_array(np.asarray(array, np.float32), name)
        self.weights.append(tensor)
        return name

    def add(self, op: str, inputs: list[str], **attributes: Any) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=f"{name}_node", **attributes))
        return name

    def quantized(self, x: str, scale: float) -> str:
        given = [self.known(scale), self.known(0.0, narrow=True)]
        return self.add("DequantizeLinear", [self.add("QuantizeLinear", [x, *given]), *given])

    def convolution(self, x: str, shape: tuple[int, ...], **attributes: Any) -> str:
        array = 0.05 * self.rng.standard_normal(shape)
        scales = np.abs(array).reshape(shape[0], -1).max(axis=1) / _LARGEST
        parts = [
            self.known(array / scales.reshape(-1, 1, 1, 1), narrow=True),
            self.known(scales),
            self.known(np.zeros(shape[0]), narrow=True),
        ]
        bias = self.known(0.1 * self.rng.standard_normal(shape[0]))
        weights = self.add("DequantizeLinear", parts, axis=0)
        return self.add("Conv", [x, weights, bias], **attributes)


def network(seed: int = 0) -> onnx.ModelProto:
    """Two convolutions, a residual sum and a third one, whose result is float32."""
    net = _Net(seed)
    x = net.quantized("x", 0.01)
    first = net.convolution(x, (64, 16, 3, 3), pads=[1, 1, 1, 1])
    first = net.quantized(net.add("Relu", [first]), 0.01)
    second = net.quantized(net.convolution(first, (64, 64, 1, 1)), 0.01)
    total = net.quantized(net.add("Relu", [net.add("Add", [first, second])]), 0.01)
    out = net.convolution(total, (32, 64, 3, 3), pads=[1, 1, 1, 1])
    info = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", SHAPE), (out, (2, 32, 14, 14)))
    ]
    graph = helper.make_graph(net.nodes, "float8", info[:1], info[1:], net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
