"""Reductions and running sums: axes that are constants and axes that come as data."""

from __future__ import annotations

import pytest

from tilewright.core.dtypes import BOOL, FLOAT64, INT64
from tilewright.core.errors import InvalidModel, ShapeMismatch
from tilewright.core.shape import Dim
from unit.graph.shapes.builder import Builder, dims


def test_constant_axes() -> None:
    graph = Builder()
    graph.input("x", "b", "s", 4)
    axes = graph.constant([-1, 0])
    graph.add("ReduceSum", "x", axes, out="kept", keepdims=1)
    graph.add("ReduceSum", "x", axes, out="dropped", keepdims=0)
    graph.add("ReduceSum", "x", out="all", keepdims=0)
    graph.add("ReduceSum", "x", out="none", keepdims=0, noop_with_empty_axes=1)
    found = graph.infer()
    assert found.shape("kept") == dims(1, "s", 1)
    assert found.shape("dropped") == dims("s")
    assert found.shape("all") == ()
    assert found.shape("none") == dims("b", "s", 4)
    params = found.node("kept").params
    assert params["reduced"] == dims(1, 0, 1)
    assert params["reduce_extent"] == dims("b", 1, 4)
    assert params["keep_extent"] == dims(1, "s", 1)


def test_axes_that_come_as_data() -> None:
    graph = Builder()
    graph.input("x", "b", 5)
    graph.input("axes", 1, dtype=INT64)
    graph.add("ReduceMax", "x", "axes", out="kept", keepdims=1)
    graph.add("ReduceMax", "x", "axes", out="dropped", keepdims=0)
    found = graph.infer()
    assert found.functions() == ["reduce_axes", "reduce_shape"]
    sizes = {"b": 3, "kept.reduced0": 0, "kept.reduced1": 1}
    params = found.node("kept").params
    assert [dim.evaluate(sizes) for dim in params["reduce_extent"]] == [1, 5]
    assert [dim.evaluate(sizes) for dim in found.shape("kept") or ()] == [3, 1]
    assert found.shape("dropped") == (Dim.symbol("dropped.shape0"),)


def test_running_sums_split_the_shape_at_the_axis() -> None:
    graph = Builder()
    graph.input("x", "a", "b", 4)
    graph.input("axis", dtype=INT64)
    graph.add("CumSum", "x", graph.constant(-2), out="known")
    graph.add("CumSum", "x", "axis", out="data")
    found = graph.infer()
    assert found.node("known").params["outer_axis_inner"] == dims("a", "b", 4)
    assert found.functions() == ["axis_split"]


def test_topk_of_the_smaller_of_two_sizes() -> None:
    graph = Builder()
    graph.input("x", "b", "n")
    size = graph.add("Shape", "x", start=1)
    k = graph.add("Min", size, graph.constant([100]))
    graph.add("TopK", "x", k, out=("values", "places"), axis=-1)
    found = graph.infer()
    assert found.shape("places") == dims("b", "min(100, n)")
    assert found.info("places").dtype is INT64
    assert not found.functions()


def test_topk_of_more_than_there_are_is_refused() -> None:
    graph = Builder()
    graph.add("TopK", graph.input("x", 4), graph.constant([5]), out=("v", "i"))
    with pytest.raises(ShapeMismatch, match="k = 5"):
        graph.infer()


@pytest.mark.parametrize("axis", [2, -3])
def test_an_axis_outside_of_the_rank_is_refused(axis: int) -> None:
    graph = Builder()
    graph.add("Softmax", graph.input("x", 3, 4), axis=axis)
    with pytest.raises(ShapeMismatch, match="outside of rank 2"):
        graph.infer()


def test_lengths_found_in_data_are_bound() -> None:
    graph = Builder()
    graph.input("x", "a", "b")
    graph.input("keep", "a", dtype=BOOL)
    graph.add("NonZero", "x", out="places")
    graph.add("Compress", "x", "keep", out="rows", axis=0)
    graph.add("Unique", "x", out=("values", None, "where", None))
    found = graph.infer()
    assert found.functions() == ["nonzero_count", "compress_count"]
    assert found.shape("places") == (Dim.of(2), Dim.symbol("places.count0"))
    assert found.shape("values") == (Dim.symbol("values.d0"),)
    assert found.shape("where") == dims("a*b")
    assert found.inference.late == {"values.d0"}


@pytest.mark.parametrize(
    ("op_type", "dtype", "text"),
    [("Softmax", INT64, "cannot be tensor.int64"), ("And", FLOAT64, "cannot be tensor.double")],
)
def test_element_types_that_an_operator_does_not_take(
    op_type: str, dtype: object, text: str
) -> None:
    graph = Builder()
    graph.input("x", 3, dtype=dtype)  # type: ignore[arg-type]
    graph.add(op_type, "x", *(["x"] if op_type == "And" else []))
    with pytest.raises(InvalidModel, match=text):
        graph.infer()


def test_too_many_inputs_are_refused() -> None:
    graph = Builder()
    graph.input("x", 3)
    graph.add("Relu", "x", "x")
    with pytest.raises(InvalidModel, match="input 1 does not exist"):
        graph.infer()
