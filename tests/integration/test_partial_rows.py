"""Tiles of rows of unknown number: every remainder, beside whole tiles and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw

Array = npt.NDArray[np.float32]
_RNG = np.random.default_rng(3)


def _engine(op_type: str, weights: dict[str, Array], shape: list[Any], pads: int) -> tw.Engine:
    attributes: dict[str, Any] = (
        {"kernel_shape": [3], "pads": [pads, pads]} if op_type == "Conv" else {}
    )
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", *weights], ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return tw.compile(model, verify=False, threads=1)


@pytest.mark.parametrize("columns", [1, 16, 40])
def test_products(columns: int) -> None:
    weights = {"w": _RNG.standard_normal((24, columns)).astype(np.float32)}
    engine = _engine("MatMul", weights, ["rows", 24], 0)
    for rows in range(34):
        x = _RNG.standard_normal((rows, 24)).astype(np.float32)
        want = x.astype(np.float64) @ weights["w"]
        np.testing.assert_allclose(engine.run(x=x)["y"], want, rtol=0, atol=2e-5)


@pytest.mark.parametrize("pads", [0, 1])
def test_convolutions(pads: int) -> None:
    weights = {"w": _RNG.standard_normal((32, 16, 3)).astype(np.float32)}
    engine = _engine("Conv", weights, ["n", 16, "size"], pads)
    for size in range(3, 36):
        x = _RNG.standard_normal((2, 16, size)).astype(np.float32)
        wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (pads, pads)))
        windows = np.lib.stride_tricks.sliding_window_view(wide, 3, axis=2)
        want = np.einsum("ncsk,ock->nos", windows, weights["w"])
        np.testing.assert_allclose(engine.run(x=x)["y"], want, rtol=0, atol=5e-5)
