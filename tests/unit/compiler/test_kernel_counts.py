"""Bytes and operations that the engine records of its kernels, against counts by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tilewright.core.shape import Dim
from tilewright.runtime.profile import all_calls
from tilewright.runtime.program import KernelCall
from unit.compiler.models import compiled, normal
from unit.graph.models import model_of, node, tensor_info

N, S = Dim.symbol("n"), Dim.symbol("s")


def calls_of(
    nodes: list[Any],
    shapes: dict[str, tuple[int | str, ...]],
    weights: dict[str, Any] | None = None,
    dtypes: dict[str, int] | None = None,
) -> list[KernelCall]:
    inputs = [
        tensor_info(name, shape, (dtypes or {}).get(name, onnx.TensorProto.FLOAT))
        for name, shape in shapes.items()
    ]
    model = model_of(nodes, inputs=inputs, weights=weights, opset=21)
    return list(all_calls(compiled(model, verify=False).program))


def only(calls: list[KernelCall]) -> KernelCall:
    (call,) = calls
    return call


def test_matrix_product() -> None:
    call = only(calls_of([node("MatMul", ["a", "b"], ["y"])], {"a": ("n", 64), "b": (64, 32)}))
    assert call.bytes == 4 * (N * 64 + 64 * 32 + N * 32)
    assert call.flops == 2 * N * 64 * 32
    assert call.dtype == "float32"
    assert call.tactic


def test_product_with_bias_and_activation_in_its_epilogue() -> None:
    nodes = [node("Gemm", ["x", "w", "b"], ["g"]), node("Relu", ["g"], ["y"])]
    weights = {"w": normal(16, 8), "b": normal(8)}
    call = only(calls_of(nodes, {"x": ("n", 16)}, weights))
    assert call.bytes == 4 * (N * 16 + 16 * 8 + 8 + N * 8)
    assert call.flops == 2 * N * 16 * 8 + N * 8 + N * 8  # product, bias, maximum


def test_padded_convolution_whose_mask_is_no_work() -> None:
    weights = {"w": normal(6, 3, 3, 3)}
    nodes = [node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])]
    call = only(calls_of(nodes, {"x": ("n", 3, 10, 12)}, weights))
    assert call.bytes == 4 * (N * 3 * 10 * 12 + 6 * 3 * 9 + N * 6 * 10 * 12)
    assert call.flops == 2 * N * 6 * 10 * 12 * 3 * 9


def test_depthwise_convolution() -> None:
    weights = {"w": normal(4, 1, 5, 5)}
    nodes = [node("Conv", ["x", "w"], ["y"], group=4, strides=[2, 2], pads=[2, 2, 2, 2])]
    call = only(calls_of(nodes, {"x": (1, 4, 16, 16)}, weights))
    assert call.bytes == Dim.of(4 * (4 * 16 * 16 + 4 * 25 + 4 * 8 * 8))
    assert call.flops == Dim.of(2 * 4 * 8 * 8 * 25)


def test_pointwise_convolution_with_a_stride_reads_a_quarter() -> None:
    weights = {"w": normal(4, 8, 1, 1)}
    nodes = [node("Conv", ["x", "w"], ["y"], strides=[2, 2])]
    call = only(calls_of(nodes, {"x": (1, 8, 16, 16)}, weights))
    assert call.bytes == Dim.of(4 * (8 * 8 * 8 + 4 * 8 + 4 * 8 * 8))


def test_max_pool() -> None:
    nodes = [node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2])]
    call = only(calls_of(nodes, {"x": ("n", 4, 8, 8)}))
    assert call.bytes == 4 * (N * 4 * 64 + N * 4 * 16)
    assert call.flops == N * 4 * 16 * 4


def test_softmax_is_counted_as_if_it_computed_its_exponentials_twice() -> None:
    calls = calls_of([node("Softmax", ["x"], ["y"], axis=-1)], {"x": ("n", 50)})
    assert sum((call.bytes for call in calls), Dim.of(0)) == 4 * 2 * N * 50
    # maximum; difference, exp and sum; difference, exp and product; one inverse a row
    assert sum((call.flops for call in calls), Dim.of(0)) == (7 * 50 + 1) * N


def test_a_lookup_reads_rows_not_the_table() -> None:
    nodes = [node("Gather", ["w", "i"], ["y"], axis=0)]
    int64 = onnx.TensorProto.INT64
    call = only(calls_of(nodes, {"i": (2, 7)}, {"w": normal(1000, 16)}, {"i": int64}))
    assert call.bytes == Dim.of(8 * 14 + 4 * 14 * 16 + 4 * 14 * 16)
    assert call.flops == Dim.of(0)


def test_a_slice_reads_what_it_keeps() -> None:
    nodes = [node("Slice", ["x", "low", "high", "axes", "steps"], ["y"])]
    weights = {
        "low": np.array([2], np.int64),
        "high": np.array([8], np.int64),
        "axes": np.array([1], np.int64),
        "steps": np.array([2], np.int64),
    }
    call = only(calls_of(nodes, {"x": ("n", 10, 5)}, weights))
    assert call.bytes == 4 * (N * 3 * 5 * 2)
    assert call.flops == Dim.of(0)


def test_transpose_moves_and_computes_nothing() -> None:
    nodes = [node("Transpose", ["x"], ["y"], perm=[0, 2, 1])]
    call = only(calls_of(nodes, {"x": ("n", "s", 8)}))
    assert call.bytes == 4 * 2 * N * S * 8
    assert call.flops == Dim.of(0)


def test_concat_reads_each_part_once() -> None:
    calls = calls_of([node("Concat", ["a", "b"], ["y"], axis=1)], {"a": (4, 3), "b": (4, 5)})
    assert sum((call.bytes for call in calls), Dim.of(0)) == Dim.of(4 * (12 + 20 + 32))
    assert all(call.flops == Dim.of(0) for call in calls)


def test_broadcast_reads_the_small_operand_once() -> None:
    calls = calls_of([node("Mul", ["a", "b"], ["y"])], {"a": ("n", 32), "b": (32,)})
    call = only(calls)
    assert call.bytes == 4 * (N * 32 + 32 + N * 32)
    assert call.flops == N * 32


def test_integer_product_counts_as_int8() -> None:
    nodes = [node("MatMulInteger", ["a", "b"], ["z"]), node("Cast", ["z"], ["y"], to=1)]
    uint8 = onnx.TensorProto.UINT8
    call = only(calls_of(nodes, {"a": ("n", 64)}, {"b": np.ones((64, 8), np.uint8)}, {"a": uint8}))
    assert call.dtype == "int8"
    assert call.flops == 2 * N * 64 * 8
    assert call.bytes == N * 64 + 64 * 8 + 4 * N * 8


@pytest.mark.parametrize("field", ["traffic", "flops", "dtype", "tactic"])
def test_counts_survive_a_file(field: str, tmp_path: Any) -> None:
    import tilewright as tw

    model = model_of([node("Relu", ["x"], ["y"])], inputs=[tensor_info("x", ("n", 4))], opset=21)
    engine = compiled(model, verify=False)
    engine.save(tmp_path / "e.tw")
    (before,), (after,) = (list(all_calls(e.program)) for e in (engine, tw.load(tmp_path / "e.tw")))
    assert getattr(after, field) == getattr(before, field)
