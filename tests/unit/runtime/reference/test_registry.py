"""Version choice, typing rules and error translation of the reference's entry point."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.runtime.reference import OperatorError, evaluate, operators, supported

f32 = partial(np.array, dtype=np.float32)
i32 = partial(np.array, dtype=np.int32)
u8 = partial(np.array, dtype=np.uint8)
i64 = partial(np.array, dtype=np.int64)
BF16 = np.dtype(ml_dtypes.bfloat16)


def run(name: str, *inputs: Any, opset: int = 23, **attributes: Any) -> Any:
    outputs = evaluate("", name, list(inputs), attributes, opset=opset)
    return outputs[0]


def test_highest_version_not_above_the_opset_is_used() -> None:
    x = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    coerced = run("Softmax", x[None], opset=11, axis=1)
    last_axis = run("Softmax", x[None], opset=13)
    np.testing.assert_allclose(coerced.sum(), 1.0, rtol=1e-6)
    np.testing.assert_allclose(last_axis.sum(), 2.0, rtol=1e-6)


def test_supported_follows_versions_and_domains() -> None:
    assert supported("", "Relu", 7)
    assert supported("ai.onnx", "Relu", 7)
    assert not supported("", "Gelu" + "x", 20)
    assert not supported("", "DFT", 16)
    assert supported("ai.onnx.ml", "TreeEnsemble", 5)
    assert ("", "Conv") in operators()
    assert len(operators()) > 220


def test_unknown_operator_is_named() -> None:
    with pytest.raises(OperatorError, match="NoSuchOp"):
        run("NoSuchOp", np.zeros(1))


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BF16])
def test_half_is_computed_wider_and_rounded_once(dtype: np.dtype[Any]) -> None:
    x = np.full(100_000, 1.0, dtype)
    total = run("ReduceMean", x * dtype.type(60000), keepdims=0)
    assert total.dtype == dtype
    np.testing.assert_allclose(float(total), 60000, rtol=2**-7)
    one, tiny = np.array(1, dtype), np.array(2.0**-12, dtype)
    summed = run("Sum", one, *[tiny] * 16)  # vanishes if each addition were rounded
    assert float(summed) == float(f32(1 + 16 * 2.0**-12).astype(dtype))


def test_mixed_types_keep_the_type_of_the_first_float() -> None:
    x, y = np.array([1.5], np.float32), np.array([2.0], np.float16)
    assert run("Pow", x, y).dtype == np.float32
    assert run("Pow", y, x).dtype == np.float16


def test_wide_computes_and_returns_float64() -> None:
    x = np.array([1e-9, 1.0], np.float32)
    (y,) = evaluate("", "ReduceSum", [x], {"keepdims": 0}, opset=13, wide=True)
    assert isinstance(y, np.ndarray)
    assert y.dtype == np.float64
    assert float(y) == float(np.float64(f32(1e-9)) + 1)
    (z,) = evaluate("", "Add", [i32([1]), i32([2])], {}, opset=13, wide=True)
    assert isinstance(z, np.ndarray)
    assert z.dtype == np.int32


def test_wide_lookups_raise_what_they_find_not_the_table(tmp_path: Path) -> None:
    """The table is a hole in a file; raised to float64 it would take 64 GB."""
    path = tmp_path / "table"
    with path.open("wb") as file:
        file.truncate(1 << 35)
    table = np.memmap(path, np.float32, "r", shape=(1 << 30, 8))
    (found,) = evaluate("", "Gather", [table, i64([5])], {}, opset=13, wide=True)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float64
    assert found.shape == (1, 8)


def test_wide_cast_rounds_to_narrow_types_only() -> None:
    x = np.array([1 + 2.0**-30], np.float64)
    assert evaluate("", "Cast", [x], {"to": 1}, opset=13, wide=True)[0] == x
    (half,) = evaluate("", "Cast", [x], {"to": 10}, opset=13, wide=True)
    assert isinstance(half, np.ndarray)
    assert (half.dtype, float(half[0])) == (np.dtype(np.float64), 1.0)
    (eight,) = evaluate("", "Cast", [x], {"to": 17}, opset=19, wide=True)
    assert isinstance(eight, np.ndarray)
    assert eight.dtype == np.dtype(ml_dtypes.float8_e4m3fn)


def test_wide_quantises_from_float64() -> None:
    x = np.array([0.5 + 1e-12], np.float64)  # rounds up in float64, to even in float32
    inputs: list[Any] = [x, np.array(1, np.float32), np.array(0, np.uint8)]
    assert evaluate("", "QuantizeLinear", inputs, {}, opset=13, wide=True)[0] == 1


def test_inputs_are_never_written() -> None:
    x, index = np.zeros((3, 2), np.float32), np.array([[1]])
    run("ScatterND", x, index, np.ones((1, 2), np.float32))
    assert not x.any()


def test_no_numpy_warning_escapes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run("Div", f32([1, 0]), f32([0, 0]))
        run("Div", i32([5]), i32([0]))
        run("Log", f32([-1.0]))
        run("Exp", np.array(1000, np.float16))
        run("Cast", f32([np.nan, 1e30]), to=6)
        run("ReduceMean", np.zeros((0, 2), np.float32))
        run("Mul", np.array(2**31 - 1, np.int32), np.array(2, np.int32))


def test_missing_outputs_are_refused() -> None:
    with pytest.raises(OperatorError, match="2 outputs"):
        evaluate("", "Relu", [np.zeros(1, np.float32)], {}, opset=14, num_outputs=2)


def test_errors_inside_a_subgraph_keep_their_type() -> None:
    def body() -> tuple[Any, ...]:
        raise LookupError("inner")

    with pytest.raises(LookupError, match="inner"):
        evaluate("", "If", [np.array(True)], {"then_branch": body, "else_branch": body}, opset=16)


_X = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "opset"),
    [
        ("Gather", [_X, i64([2])], {"axis": 0}, 13),
        ("Gather", [_X, i64([-3])], {"axis": 0}, 13),
        ("Gather", [_X, i64([0])], {"axis": 2}, 13),
        ("GatherElements", [_X, i64([[5]])], {"axis": 1}, 13),
        ("GatherND", [_X, i64([[0, 9]])], {}, 13),
        ("ScatterND", [_X, i64([[4]]), _X[:1]], {}, 18),
        ("Reshape", [_X, i64([4, 2])], {}, 14),
        ("MatMul", [_X, _X], {}, 13),
        ("Add", [_X, np.zeros((2, 2), np.float32)], {}, 14),
        ("Concat", [_X, np.zeros((2, 2), np.float32)], {"axis": 0}, 13),
        ("Split", [_X, i64([1, 1])], {"axis": 1}, 13),
        ("Squeeze", [_X, i64([0])], {}, 13),
        ("Transpose", [_X], {"perm": [0, 0]}, 13),
        ("Conv", [np.zeros((1, 3, 2, 2)), np.zeros((1, 2, 1, 1))], {}, 11),
        ("Conv", [np.zeros((1, 1, 2, 2)), np.zeros((1, 1, 5, 5))], {}, 11),
        ("MaxPool", [np.zeros((1, 1, 4, 4))], {"kernel_shape": [2]}, 12),
        ("MaxPool", [np.zeros((1, 1, 4, 4))], {}, 12),
        ("Resize", [_X, None, f32([1])], {}, 13),
        ("Resize", [_X, None, f32([1, 1])], {"mode": "spline"}, 13),
        ("TopK", [_X, i64([9])], {}, 11),
        ("Slice", [_X, i64([0]), i64([1]), i64([0]), i64([0])], {}, 13),
        ("OneHot", [i64([0]), i64([2]), f32([0, 1, 2])], {}, 11),
        ("Einsum", [_X, _X], {"equation": "ij,jk->ik"}, 12),
        ("SequenceAt", [[_X], i64(3)], {}, 11),
        ("OptionalGetElement", [None], {}, 18),
        ("LSTM", [np.zeros((2, 1, 3)), np.zeros((1, 8, 4)), np.zeros((1, 8, 2))], {}, 14),
        ("BatchNormalization", [_X[None]], {}, 15),
        ("Cast", [_X], {"to": 99}, 13),
        ("Cast", [_X], {}, 13),
        ("DequantizeLinear", [np.zeros((2, 3), np.uint8), np.ones(2, np.float32)], {"axis": 1}, 13),
        ("BitShift", [u8([1]), u8([1])], {"direction": "UP"}, 11),
        ("TensorScatter", [np.zeros((1, 4, 2)), np.zeros((1, 2, 2)), i64([3])], {}, 24),
        ("GridSample", [np.zeros((1, 1, 2, 2)), np.zeros((1, 2, 2, 3))], {}, 20),
    ],
)
def test_misuse_is_an_operator_error(
    name: str, inputs: list[Any], attributes: dict[str, Any], opset: int
) -> None:
    with pytest.raises(OperatorError, match=name):
        evaluate("", name, inputs, attributes, opset=opset)
