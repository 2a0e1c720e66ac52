"""Sampling and regions of interest against ONNX's reference, with odd coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tilewright.core.errors import OutOfRange
from tilewright.lower.context import Unlowerable
from tilewright.runtime.reference import evaluate
from unit.lower.direct import Array, lower, run

SYMBOLIC = pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])


def _reference(op_type: str, inputs: list[Array], attributes: dict[str, Any]) -> Array:
    names = [f"x{k}" for k in range(len(inputs))]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for name, array in zip(names, inputs, strict=True)
    ]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    model = helper.make_model(
        helper.make_graph([node], "g", infos, [result]),
        opset_imports=[helper.make_opsetid("", 22)],
    )
    with np.errstate(all="ignore"):
        (found,) = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    return np.asarray(found)


@SYMBOLIC
@pytest.mark.parametrize("corners", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("rank", [2, 3])
def test_grid_sample(rank: int, mode: str, padding: str, corners: int, symbolic: bool) -> None:
    random = np.random.default_rng(11)
    x = random.standard_normal((2, 2, 4, 5, 3)[: rank + 2]).astype(np.float32)
    grid = random.uniform(-2.3, 2.3, (2, *(3, 4, 2)[:rank], rank)).astype(np.float32)
    how = {"mode": mode, "padding_mode": padding, "align_corners": corners}
    cubic_border = (mode, padding) == ("cubic", "border")
    expected = _inside(x, grid, how) if cubic_border else _reference("GridSample", [x, grid], how)
    (found,) = run(
        "GridSample", [x, grid], [(x.dtype, expected.shape)], attributes=how, symbolic=symbolic
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    (meant,) = evaluate("", "GridSample", [x, grid], how, opset=22)
    np.testing.assert_allclose(np.asarray(meant), expected, rtol=1e-4, atol=1e-5)


def _inside(x: Array, grid: Array, how: dict[str, Any]) -> Array:
    """The same where the border is part of the picture, so that nothing has to be clipped.

    Torch and ONNX Runtime do so; ONNX's reference clips a coordinate before it takes its fraction.
    """
    wide, corners = 16, how["align_corners"]
    padded = np.pad(x, [(0, 0), (0, 0), *[(wide, wide)] * (x.ndim - 2)], mode="edge")
    size = np.array(x.shape[:1:-1], np.float64)
    if corners:
        moved = ((grid + 1) / 2 * (size - 1) + wide) / (size + 2 * wide - 1) * 2 - 1
    else:
        moved = ((grid + 1) * size + 2 * wide) / (size + 2 * wide) - 1
    found = _reference("GridSample", [padded.astype(np.float64), moved], how)
    return found.astype(x.dtype)


@SYMBOLIC
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_odd_coordinates_stay_inside(mode: str, padding: str, symbolic: bool) -> None:
    x = np.ones((1, 1, 1, 3), np.float32)
    grid = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 3e18], np.float32)
    grid = np.stack([grid, grid[::-1]], -1)[None, None]
    for corners in (0, 1):
        (found,) = run(
            "GridSample",
            [x, grid],
            [(x.dtype, (1, 1, 1, 6))],
            attributes={"mode": mode, "padding_mode": padding, "align_corners": corners},
            symbolic=symbolic,
        )
        assert np.isfinite(found).all()
        if padding == "zeros":
            assert not found.any()


@SYMBOLIC
@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transform", ["half_pixel", "output_half_pixel"])
def test_roi_align(transform: str, mode: str, ratio: int, symbolic: bool) -> None:
    random = np.random.default_rng(12)
    x = random.standard_normal((2, 2, 6, 7)).astype(np.float32)
    rois = np.array(
        [
            [0.0, 0.0, 6.0, 5.0],
            [-9.0, -7.0, 22.0, 31.0],  # much larger than the map
            [2.2, 1.1, 2.4, 1.2],  # smaller than an element
            [40.0, 40.0, 50.0, 50.0],  # beside the map
            [5.0, 4.0, 1.0, 0.5],  # inside out
            [1.0, 1.0, 1.0, 1.0],  # empty
        ],
        np.float32,
    )
    batches = np.array([0, 1, 0, 1, 0, 1], np.int64)
    how = {
        "output_height": 2,
        "output_width": 3,
        "sampling_ratio": ratio,
        "spatial_scale": 0.9,
        "mode": mode,
        "coordinate_transformation_mode": transform,
    }
    expected = _reference("RoiAlign", [x, rois, batches], how)
    (found,) = run(
        "RoiAlign",
        [x, rois, batches],
        [(x.dtype, expected.shape)],
        attributes=how,
        symbolic=symbolic,
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@SYMBOLIC
@pytest.mark.parametrize("batch", [1, -1])
def test_a_region_of_no_batch_entry_is_reported(batch: int, symbolic: bool) -> None:
    x, rois = np.ones((1, 1, 2, 2), np.float32), np.array([[0, 0, 2, 2]], np.float32)
    with pytest.raises(OutOfRange):
        run("RoiAlign", [x, rois, np.array([batch])], [(x.dtype, (1, 1, 1, 1))], symbolic=symbolic)


@SYMBOLIC
def test_max_roi_pool(symbolic: bool) -> None:
    x = np.random.default_rng(13).standard_normal((2, 2, 6, 7)).astype(np.float32)
    rois = np.array(
        [[0, 0, 0, 6, 5], [1, 2.5, 1.2, 4.4, 3.9], [1, 20, 20, 30, 30], [0, 5, 4, 1, 2]],
        np.float32,
    )
    expected = np.zeros((4, 2, 2, 3), np.float32)
    for n, (batch, *box) in enumerate(rois):
        x1, y1, x2, y2 = (int(np.floor(edge * 0.8 + 0.5)) for edge in box)
        for i, j in np.ndindex(2, 3):
            height, width = max(y2 - y1 + 1, 1) / 2, max(x2 - x1 + 1, 1) / 3
            rows = np.arange(np.floor(i * height), np.ceil((i + 1) * height)).astype(int) + y1
            columns = np.arange(np.floor(j * width), np.ceil((j + 1) * width)).astype(int) + x1
            rows, columns = rows[(rows >= 0) & (rows < 6)], columns[(columns >= 0) & (columns < 7)]
            if rows.size and columns.size:
                expected[n, :, i, j] = x[int(batch)][:, rows[:, None], columns].max((1, 2))
    (found,) = run(
        "MaxRoiPool",
        [x, rois],
        [(x.dtype, expected.shape)],
        attributes={"spatial_scale": 0.8, "pooled_shape": [2, 3]},
        symbolic=symbolic,
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@SYMBOLIC
@pytest.mark.parametrize("corners", [0, 1])
def test_affine_grid_of_one_pixel(corners: int, symbolic: bool) -> None:
    theta = np.array([[[1, 0, 0.25], [0, 1, -0.5]]], np.float32)
    (found,) = run(
        "AffineGrid",
        [theta, np.array([1, 1, 1, 1])],
        [(np.float32, (1, 1, 1, 2))],
        attributes={"align_corners": corners},
        symbolic=symbolic,
    )
    shift = -1.0 if corners else 0.0
    np.testing.assert_allclose(found[0, 0, 0], [0.25 + shift, -0.5 + shift])


@SYMBOLIC
def test_col2im_wraps_integers(symbolic: bool) -> None:
    x = np.full((1, 4, 4), 100, np.int8)
    params = {"kernel": (2, 2), "strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0)}
    (found,) = run("Col2Im", [x], [(np.int8, (1, 1, 3, 3))], params=params, symbolic=symbolic)
    counts = np.array([[1, 2, 1], [2, 4, 2], [1, 2, 1]])
    np.testing.assert_array_equal(found[0, 0], (counts * 100).astype(np.int8))


def test_booleans_are_not_interpolated() -> None:
    x, grid = np.zeros((1, 1, 2, 2), np.bool_), np.zeros((1, 1, 1, 2), np.float32)
    with pytest.raises(Unlowerable, match="booleans"):
        lower("GridSample", [x, grid], [(np.dtype(np.bool_), (1, 1, 1, 1))])
    with pytest.raises(Unlowerable, match="booleans"):
        lower(
            "Col2Im",
            [np.zeros((1, 1, 1), np.bool_)],
            [(np.dtype(np.bool_), (1, 1, 1, 1))],
            params={"kernel": (1,), "strides": (1,), "dilations": (1,), "pads": (0, 0)},
        )
