"""Quantised operators of ONNX Runtime: the same bits as it gives, or one apart at halves."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import tilewright as tw
from tilewright.core.errors import UnsupportedOp
from unit.graph.models import model_of, node, tensor_info

RNG = np.random.default_rng(5)
PARAMETERS = {
    "as_": np.float32(0.021),
    "az": np.uint8(117),
    "bs": np.float32(0.013),
    "bz": np.uint8(90),
    "cs": np.float32(0.03),
    "cz": np.uint8(101),
}
A, B, C = ["a", "as_", "az"], ["b", "bs", "bz"], ["cs", "cz"]
SHAPE = (1, 3, 6, 6)


def model_with(op_type: str, inputs: list[str], **attributes: Any) -> onnx.ModelProto:
    made = node(op_type, inputs, ["y"], name="op", domain="com.microsoft", **attributes)
    return model_of(
        [made],
        inputs=[
            tensor_info(name, SHAPE, TensorProto.UINT8) for name in ("a", "b") if name in inputs
        ],
        weights={name: value for name, value in PARAMETERS.items() if name in inputs},
        domains=["com.microsoft"],
        opset=21,
    )


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("QLinearAdd", [*A, *B, *C], {}),
        ("QLinearMul", [*A, *B, *C], {}),
        ("QLinearConcat", [*C, *A, *B], {"axis": 1}),
        ("QLinearSigmoid", [*A, *C], {}),
        ("QLinearLeakyRelu", [*A, *C], {"alpha": 0.2}),
        ("QLinearAveragePool", [*A, *C], {"kernel_shape": [3, 3], "strides": [2, 2]}),
        ("QLinearGlobalAveragePool", [*A, *C], {"channels_last": 0}),
        ("QLinearSoftmax", [*A, *C], {"axis": -1, "opset": 13}),
    ],
)
def test_results_are_those_of_onnxruntime(
    op_type: str, inputs: list[str], attributes: dict[str, Any]
) -> None:
    model = model_with(op_type, inputs, **attributes)
    feeds: dict[str, Any] = {
        name: RNG.integers(0, 256, SHAPE, dtype=np.uint8) for name in ("a", "b") if name in inputs
    }
    engine = tw.compile(model, cache=None, threads=1, require=["compiled"], verify_feeds=feeds)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, feeds)
    found = engine.run(feeds)["y"]
    assert found.dtype == expected.dtype
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    assert (found != expected).mean() < 0.08  # one sum in thirty lies halfway


def test_channels_in_the_last_dim_are_refused() -> None:
    model = model_with("QLinearGlobalAveragePool", [*A, *C], channels_last=1)
    with pytest.raises(UnsupportedOp, match="channels_last=1"):
        tw.compile(model, cache=None)
