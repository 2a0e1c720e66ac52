"""Representative graphs whose kernels and schedules are kept as text.

Input -> Output: a name of ``GRAPHS`` -> a model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from unit.graph.models import model_of, node, tensor_info


def _weight(*shape: int) -> Any:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _graph(
    *nodes: onnx.NodeProto,
    shape: tuple[int | str, ...],
    outputs: tuple[str, ...] = ("y",),
    dtype: int = TensorProto.FLOAT,
    more: tuple[onnx.ValueInfoProto, ...] = (),
    **weights: Any,
) -> onnx.ModelProto:
    return model_of(
        list(nodes),
        inputs=[tensor_info("x", shape, dtype), *more],
        outputs=list(outputs),
        weights=weights,
        opset=21,
    )


def elementwise_chain() -> onnx.ModelProto:
    return _graph(
        node("Mul", ["x", "scale"], ["a"]),
        node("Add", ["a", "shift"], ["b"]),
        node("Sigmoid", ["b"], ["c"]),
        node("Mul", ["b", "c"], ["y"]),
        shape=("batch", 16),
        scale=_weight(16),
        shift=_weight(16) + 2,
    )


def linear_relu() -> onnx.ModelProto:
    return _graph(
        node("Gemm", ["x", "w", "bias"], ["h"], transB=1),
        node("Relu", ["h"], ["y"]),
        shape=("batch", 32),
        w=_weight(24, 32),
        bias=_weight(24),
    )


def softmax() -> onnx.ModelProto:
    return _graph(node("Softmax", ["x"], ["y"], axis=-1), shape=("batch", "length"))


def layer_norm() -> onnx.ModelProto:
    return _graph(
        node("LayerNormalization", ["x", "scale", "bias"], ["y"], axis=-1),
        shape=("batch", 48),
        scale=_weight(48),
        bias=_weight(48) + 2,
    )


def convolution() -> onnx.ModelProto:
    return _graph(
        node("Conv", ["x", "w", "bias"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c"], ["y"]),
        shape=(1, 3, "height", "width"),
        w=_weight(16, 3, 3, 3),
        bias=_weight(16),
    )


def depthwise() -> onnx.ModelProto:
    return _graph(
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], group=32),
        node("HardSwish", ["c"], ["y"]),
        shape=(1, 32, 14, 14),
        w=_weight(32, 1, 3, 3),
    )


def pooling() -> onnx.ModelProto:
    return _graph(
        node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["p"], ["y"]),
        shape=("batch", 8, 16, 16),
    )


def attention_scores() -> onnx.ModelProto:
    return _graph(
        node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]),
        node("MatMul", ["x", "t"], ["s"]),
        node("Mul", ["s", "scale"], ["m"]),
        node("Softmax", ["m"], ["p"], axis=-1),
        node("MatMul", ["p", "x"], ["y"]),
        shape=("batch", 4, "length", 16),
        scale=np.float32(0.25),
    )


def embedding() -> onnx.ModelProto:
    return _graph(
        node("Gather", ["table", "x"], ["e"], axis=0),
        node("Add", ["e", "positions"], ["y"]),
        shape=("batch", 8),
        dtype=TensorProto.INT64,
        table=_weight(100, 16),
        positions=_weight(8, 16),
    )


def quantized_linear() -> onnx.ModelProto:
    return _graph(
        node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        node("MatMulInteger", ["q", "w", "xz", "wz"], ["i"]),
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["f", "scale"], ["y"]),
        shape=("batch", 32),
        xs=np.float32(0.1),
        xz=np.uint8(128),
        w=(np.arange(32 * 16) % 255 - 127).astype(np.int8).reshape(32, 16),
        wz=np.int8(0),
        scale=np.float32(0.01),
    )


def concat_and_split() -> onnx.ModelProto:
    return _graph(
        node("Split", ["x"], ["left", "right"], axis=1, num_outputs=2),
        node("Neg", ["right"], ["turned"]),
        node("Concat", ["turned", "left"], ["y"], axis=1),
        shape=("batch", 16),
    )


def cumulative_sum() -> onnx.ModelProto:
    return _graph(node("CumSum", ["x", "axis"], ["y"]), shape=("batch", "length"), axis=np.int64(1))


def lstm() -> onnx.ModelProto:
    return _graph(
        node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4),
        shape=("length", 1, 8),
        w=_weight(1, 16, 8),
        r=_weight(1, 16, 4),
    )


def resize() -> onnx.ModelProto:
    return _graph(
        node("Resize", ["x", "", "scales"], ["r"], mode="nearest"),
        node("Add", ["r", "r"], ["y"]),
        shape=(1, 4, "height", "width"),
        scales=np.array([1, 1, 2, 2], np.float32),
    )


GRAPHS: dict[str, Callable[[], onnx.ModelProto]] = {
    function.__name__: function
    for function in (
        elementwise_chain,
        linear_relu,
        softmax,
        layer_norm,
        convolution,
        depthwise,
        pooling,
        attention_scores,
        embedding,
        quantized_linear,
        concat_and_split,
        cumulative_sum,
        lstm,
        resize,
    )
}
