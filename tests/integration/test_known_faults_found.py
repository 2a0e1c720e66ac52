"""Faults that random models and damaged files have found, each as small as it gets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from integration.faults import engine_of, f32, i64, model_of, own_cache, run
from tilewright.core.errors import CorruptEngine, ShapeMismatch
from tilewright.runtime.engine import Engine

__all__ = ["own_cache"]


def _with_dims(graph: str, *dims: str) -> Engine:
    model = onnx.ModelProto()
    model.ParseFromString(model_of(graph))
    for dim, text in zip(model.graph.input[0].type.tensor_type.shape.dim, dims, strict=True):
        dim.dim_param = text
    return tw.compile(model, verify=False, threads=1)


@pytest.mark.parametrize("dims", [("n*2", "3*n"), ("n+1", "n"), ("-n", "k"), ("a/b", "a*b")])
def test_declared_expressions_of_symbols_that_no_input_sets(dims: tuple[str, str]) -> None:
    """An expression is a name of its own where its symbols have no size."""
    engine = _with_dims("g (float[a, b] x) => (y) { y = Transpose(x) }", *dims)
    if dims == ("n+1", "n"):
        with pytest.raises(ShapeMismatch):
            engine.run({"x": np.ones((2, 3), np.float32)})
        assert engine.run({"x": np.ones((4, 3), np.float32)})["y"].shape == (3, 4)
        return
    assert engine.run({"x": np.ones((2, 5), np.float32)})["y"].shape == (5, 2)


def test_long_chains_of_shared_values_compile_in_time() -> None:
    """Every step uses the one before twice: there are 2**60 paths."""
    lines = [f"v{k + 1} = Add(v{k}, v{k})" for k in range(60)]
    text = f"g (float[n] v0, int64 k) => (y) {{ {' '.join(lines)} y = Gather(v60, k) }}"
    start = time.perf_counter()
    assert run(text, v0=f32(2.0**-60, 3), k=np.asarray(-2)) == 1
    assert time.perf_counter() - start < 60, "paths are followed one by one"


def test_sums_over_several_axes_of_short_rows() -> None:
    x = f32(np.arange(2 * 3 * 4).reshape(2, 3, 4))
    for size in (1, 3, 4):
        part = np.ascontiguousarray(x[..., :size])
        y = engine_of("g (float[a, b, c] x) => (y) { y = ReduceSum<keepdims=0>(x, k) }",
                      {"k": i64(1, 2)}).run({"x": part})["y"]  # fmt: skip
        np.testing.assert_array_equal(y, part.sum((1, 2)))


@pytest.mark.parametrize("code", [2, 3, 9, 10, 16])
@pytest.mark.parametrize("size", [17, 33])
def test_rows_of_one_element_beyond_a_vector(code: int, size: int) -> None:
    """The last element of a row is stored alone, and nothing of the next row."""
    x = f32(np.arange(3 * size).reshape(3, size) % 50)
    text = (
        f"g (float[n, {size}] x, float[{size}] b) => (y) {{ s = Add(x, b) y = Cast<to={code}>(s) }}"
    )
    y = engine_of(text).run({"x": x, "b": np.zeros(size, np.float32)})["y"]
    np.testing.assert_array_equal(y.astype(np.float32), x != 0 if code == 9 else x)


def test_casts_of_known_numbers_wrap() -> None:
    y = run("g (float[1] x) => (y) { y = Cast<to=4>(k) }", {"k": i64(-14, 65_537)}, x=f32([0]))
    assert y.tolist() == [65_522, 1]


def test_integers_in_operators_that_newer_sets_know_for_floats_only() -> None:
    y = run("g (int64[3] x) => (y) { y = ReduceLogSumExp<axes=[0]>(x) }", opset=13, x=i64(1, 1, 1))
    assert y.tolist() == [2]  # log(3e) = 2.0986


def test_same_pools_cut_where_strides_exceed_the_kernel() -> None:
    """Padding as specified may be negative; both sides are cut, the end by more."""
    x = f32(np.arange(9).reshape(1, 1, 9))
    y, z = run("""g (float[1, 1, n] x) => (y, z) {
    y = AveragePool<auto_pad="SAME_UPPER", kernel_shape=[1], strides=[3]>(x)
    z = AveragePool<auto_pad="SAME_LOWER", kernel_shape=[1], strides=[3]>(x) }""", x=x)  # fmt: skip
    assert y.ravel().tolist() == [1, 4, 7]
    assert z.ravel().tolist() == [0, 3, 6]


def test_linear_resizing_to_nothing() -> None:
    y = run("g (float[1, 2, 1] x) => (y) { y = Resize<mode=\"linear\">(x, , s) }",
            {"s": f32(1, 1, 0.5)}, x=f32([[[1], [2]]]))  # fmt: skip
    assert y.shape == (1, 2, 0)


@pytest.mark.parametrize(("channels", "out", "stride"), [(24, 12, 2), (16, 15, 2), (31, 31, 3)])
def test_packed_weights_of_transposed_convolutions(channels: int, out: int, stride: int) -> None:
    """Rows beyond the weights that a guard leaves out are not read."""
    weights = np.ones((channels, out, 1, 3), np.float32)
    node = onnx.helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[1, stride])
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [info("x", 1, ["n", channels, "h", "v"])],
        [info("y", 1, None)],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    opsets = [onnx.helper.make_opsetid("", 18)]
    engine = tw.compile(onnx.helper.make_model(graph, opset_imports=opsets), threads=1)
    assert engine.run({"x": np.ones((1, channels, 2, 1), np.float32)})["y"].max() == channels


@pytest.mark.parametrize("size", [b"\xf0\xff\xff\x7f", b"\0\0\0\x10"])
def test_a_member_that_claims_more_than_the_file_is_refused(tmp_path: Path, size: bytes) -> None:
    """Before anything of that size is allocated."""
    path = tmp_path / "engine.tw"
    engine_of("g (float[n] x) => (y) { y = Abs(x) }").save(path)
    data = bytearray(path.read_bytes())
    place = data.find(b"PK\x01\x02") + 20  # the directory's sizes, packed and plain
    data[place : place + 8] = size * 2
    path.write_bytes(data)
    with pytest.raises(CorruptEngine, match="outside of the file"):
        tw.load(path)


@pytest.mark.parametrize("spatial", [("a",), ("a", "b"), ("a", "b", "c"), (1,), (9, 9)])
def test_convolutions_of_a_symbolic_number_of_channels(spatial: tuple[Any, ...]) -> None:
    """Only the weights tell it; the declared shape does not."""
    rank = len(spatial)
    weights = np.random.default_rng(0).standard_normal((8, 16, *[3] * rank), np.float32)
    x = np.random.default_rng(1).standard_normal((2, 16, *[1] * rank), np.float32)
    sizes = [dim if isinstance(dim, int) else 5 for dim in spatial]
    x = np.ascontiguousarray(np.broadcast_to(x, (2, 16, *sizes)))
    graph = "g (float[n, {}, {}] x) => (y) {{ y = Conv<pads = [{}]>(x, w) }}"
    shape, pads = ", ".join(map(str, spatial)), ", ".join(["1"] * 2 * rank)
    open_one, fixed = (
        engine_of(graph.format(channels, shape, pads), {"w": weights}).run({"x": x})["y"]
        for channels in ("k", 16)
    )
    np.testing.assert_allclose(open_one, fixed, atol=1e-4)


def test_a_sum_of_squares_over_all_of_a_padded_matrix() -> None:
    """A number has no axis of lanes, whose products could be joined."""
    text = "g (bfloat16[3, n] x) => (y) { p = Pad(x, k) y = ReduceL2<keepdims = 0>(p) }"
    engine = engine_of(text, {"k": i64(0, 1, 0, 1)})
    x = f32(np.arange(12).reshape(3, 4)).astype(engine.inputs[0].dtype.numpy)
    np.testing.assert_allclose(engine.run({"x": x})["y"].astype(np.float32), 506**0.5, rtol=1e-2)
