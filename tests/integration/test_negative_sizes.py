"""Runs in which a value inside of the network would have a negative size: an error that names the
node, whether the value has a buffer or not, and whatever borders or batch it has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.compiler.check import verify
from tilewright.core.errors import ShapeMismatch

_CHANNELS = 12
_RNG = np.random.default_rng(0)

Node = onnx.NodeProto
Arrays = dict[str, npt.NDArray[Any]]


def _weight(*kernel: int) -> npt.NDArray[Any]:
    return _RNG.standard_normal((_CHANNELS, _CHANNELS, *kernel)).astype(np.float32)


def _model(nodes: list[Node], arrays: Arrays) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "small",
        [value("x", TensorProto.FLOAT, ["n", _CHANNELS, "h", "w"])],
        [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _pads(*pads: int) -> npt.NDArray[np.int64]:
    return np.array(pads, dtype=np.int64)


def _node(op_type: str, inputs: str, output: str, name: str = "", **attributes: Any) -> Node:
    return helper.make_node(op_type, inputs.split(), [output], name=name, **attributes)


# The network, the node whose result is too small, sizes that are too small and sizes that are not.
_CASES: dict[str, tuple[list[Node], Arrays, tuple[int, int], tuple[int, int]]] = {
    "a border makes the stored size positive": (
        [
            _node("Conv", "x k", "a", "cut"),
            _node("Sigmoid", "a", "b"),
            _node("Conv", "b one", "y", pads=[4, 0, 0, 0]),
        ],
        {"k": _weight(5, 1), "one": _weight(1, 1)},
        (1, 31),
        (5, 31),
    ),
    "two negative sizes have a positive product": (
        [
            _node("Conv", "x k", "a", "cut"),
            _node("Sigmoid", "a", "b"),
            _node("Conv", "b one", "y", pads=[4, 4, 4, 4]),
        ],
        {"k": _weight(5, 5), "one": _weight(1, 1)},
        (1, 1),
        (5, 5),
    ),
    "MaxPool": (
        [
            _node("MaxPool", "x", "a", "cut", kernel_shape=[5, 5]),
            _node("Conv", "a one", "y", pads=[4, 4, 4, 4]),
        ],
        {"one": _weight(1, 1)},
        (2, 1),
        (5, 6),
    ),
    "Pad": (
        [_node("Pad", "x minus", "a", "cut"), _node("Relu", "a", "b"), _node("Pad", "b plus", "y")],
        {"minus": _pads(0, 0, -3, -3, 0, 0, -3, -3), "plus": _pads(0, 0, 7, 7, 0, 0, 7, 7)},
        (1, 2),
        (6, 8),
    ),
    "Pad before a convolution with pads": (
        [_node("Pad", "x minus", "a", "cut"), _node("Conv", "a one", "y", pads=[4, 4, 4, 4])],
        {"minus": _pads(0, 0, -3, 0, 0, 0, -3, 0), "one": _weight(1, 1)},
        (1, 1),
        (7, 1),
    ),
    "ConvTranspose": (
        [
            _node("ConvTranspose", "x k", "a", "cut", pads=[3, 0, 3, 0]),
            _node("Conv", "a one", "y", pads=[9, 0, 9, 0]),
        ],
        {"k": _weight(2, 1), "one": _weight(1, 1)},
        (1, 1),
        (6, 1),
    ),
    "a reduction": (
        [_node("Conv", "x k", "a", "cut"), _node("GlobalAveragePool", "a", "y")],
        {"k": _weight(5, 5)},
        (1, 1),
        (5, 5),
    ),
    "a view": (
        [_node("Pad", "x minus", "a", "cut"), _node("Flatten", "a", "y")],
        {"minus": _pads(0, 0, -3, 0, 0, 0, 0, 0)},
        (1, 1),
        (3, 1),
    ),
}


@pytest.mark.parametrize("case", list(_CASES))
@pytest.mark.parametrize("batch", [3, 0])
def test_the_node_is_named(case: str, batch: int) -> None:
    nodes, arrays, small, large = _CASES[case]
    engine = tw.compile(_model(nodes, arrays))
    with pytest.raises(ShapeMismatch, match=r"would have the size .* = -\d") as caught:
        engine.run(x=np.zeros((batch, _CHANNELS, *small), np.float32))
    assert caught.value.node == "cut"
    assert caught.value.remedy
    result = engine.run(x=np.zeros((batch, _CHANNELS, *large), np.float32))["y"]
    assert result.shape[0] == batch


def test_a_saved_engine_still_checks(tmp_path: Any) -> None:
    nodes, arrays, small, _ = _CASES["a border makes the stored size positive"]
    tw.compile(_model(nodes, arrays)).save(tmp_path / "a.tw")
    with pytest.raises(ShapeMismatch, match="would have the size"):
        tw.load(tmp_path / "a.tw").run(x=np.zeros((3, _CHANNELS, *small), np.float32))


def test_a_size_of_zero_means_the_same_to_a_run_and_to_its_verification() -> None:
    """A pool leaves no columns; a Reshape to a computed 0 copies a size instead, as ONNX says."""
    nodes = [
        _node("AveragePool", "x", "a", kernel_shape=[1, 2], strides=[1, 2]),
        _node("Shape", "a", "width", start=3, end=4),
        _node("Transpose", "a", "b", perm=[0, 2, 3, 1]),
        _node("Concat", "copy copy1 width channels", "to", axis=0),
        _node("Squeeze", "b height", "c"),
        _node("Reshape", "c to", "y", "fold"),
    ]
    arrays = {"copy": _pads(0), "copy1": _pads(1), "channels": _pads(_CHANNELS), "height": _pads(1)}
    model = _model(nodes, arrays)
    engine = tw.compile(model, threads=1, dims={"h": 1})
    wide = {"x": _RNG.standard_normal((2, _CHANNELS, 1, 5)).astype(np.float32)}
    assert engine.run(wide)["y"].shape == (2, 1, 2, _CHANNELS)
    narrow = {"x": wide["x"][:, :, :, :1]}
    with pytest.raises(ShapeMismatch, match="node fold: a computed size of 0"):
        engine.run(narrow)
    with pytest.raises(tw.UserError, match="node fold"):
        verify(model, engine, narrow)
