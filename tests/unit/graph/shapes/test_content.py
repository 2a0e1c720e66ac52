"""Shape arithmetic of exporters stays symbolic: nothing of it is left for run time."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.core.dtypes import FLOAT32, INT64
from unit.graph.shapes.builder import Builder, dims


def test_same_padding_computed_from_shapes() -> None:
    graph = Builder()
    graph.input("x", "n", 3, "h", "w")
    two = graph.constant(2)
    for axis, name in ((2, "h"), (3, "w")):
        size = graph.add("Gather", graph.add("Shape", "x"), graph.constant(axis), axis=0)
        steps = graph.add("Div", graph.add("Add", size, graph.constant(1)), two)
        reach = graph.add("Add", graph.add("Mul", graph.add("Sub", steps, graph.constant(1)), two),
                          graph.constant(3))  # fmt: skip
        total = graph.add("Max", graph.add("Sub", reach, size), graph.constant(0))
        graph.add("Unsqueeze", graph.add("Div", total, two), graph.constant([0]), out=f"{name}0")
        graph.add("Unsqueeze", total, graph.constant([0]), out=f"{name}t")
        graph.add("Sub", f"{name}t", f"{name}0", out=f"{name}1")
    zeros = graph.constant([0, 0])
    pads = graph.add("Concat", zeros, "h0", "w0", zeros, "h1", "w1", axis=0)
    graph.add("Pad", "x", pads, out="padded")
    found = graph.infer()
    assert not found.functions()
    for height in range(1, 12):
        sizes = {"n": 1, "h": height, "w": 5}
        shape = [dim.evaluate(sizes) for dim in found.shape("padded") or ()]
        assert shape[2] == height + max((-(-height // 2) - 1) * 2 + 3 - height, 0)


def test_expand_with_minus_one_by_where() -> None:
    graph = Builder()
    graph.input("mask", "b", 1, 1, "s")
    graph.input("x", "b", "s")
    shape = graph.add("Concat", graph.add("Shape", "x", end=1), graph.constant([1]),
                      graph.add("Shape", "x", start=1), graph.constant([-1]), axis=0)  # fmt: skip
    ones = graph.add("ConstantOfShape", graph.constant([4]), value=np.array([1], np.int64))
    minus = graph.add("Mul", ones, graph.constant(-1))
    target = graph.add("Where", graph.add("Equal", shape, minus), ones, shape)
    graph.add("Expand", "mask", target, out="y")
    found = graph.infer()
    assert found.shape("y") == dims("b", 1, "s", "s")
    assert not found.functions()


def test_halves_through_floats() -> None:
    graph = Builder()
    graph.input("x", "h", "w")
    sizes = graph.add("Cast", graph.add("Shape", "x"), to=FLOAT32.code)
    half = graph.add("Mul", sizes, graph.constant(0.5, np.float32))
    for rounding in ("Floor", "Ceil"):
        whole = graph.add("Cast", graph.add(rounding, half), to=INT64.code)
        graph.add("ConstantOfShape", whole, out=rounding)
    found = graph.infer()
    assert found.shape("Floor") == dims("floor(h/2)", "floor(w/2)")
    assert [dim.evaluate({"h": 5, "w": 4}) for dim in found.shape("Ceil") or ()] == [3, 2]
    assert not found.functions()


def test_thirds_through_floats_are_left_to_run_time() -> None:
    graph = Builder()
    graph.input("x", "h")
    sizes = graph.add("Cast", graph.add("Shape", "x"), to=FLOAT32.code)
    third = graph.add("Mul", sizes, graph.constant(1 / 3, np.float32))
    graph.add("ConstantOfShape", graph.add("Cast", third, to=INT64.code), out="y")
    assert graph.infer().functions() == ["constant_of_shape"]


def test_products_of_sizes_do_not_pass_through_float32() -> None:
    graph = Builder()
    graph.input("x", "h", "w")
    count = graph.add("Cast", graph.add("Size", "x"), to=FLOAT32.code, out="count")
    assert graph.infer().info(count).content is None


def test_range_of_a_size_and_its_reductions() -> None:
    graph = Builder()
    graph.input("x", "b", "s", 4)
    shape = graph.add("Shape", "x")
    length = graph.add("Squeeze", graph.add("Slice", shape, graph.constant([1]),
                                            graph.constant([2])), graph.constant([0]))  # fmt: skip
    graph.add("Range", graph.constant(0), length, graph.constant(1), out="places")
    graph.add("ReduceProd", shape, None, out="count", keepdims=0)
    found = graph.infer()
    assert found.shape("places") == dims("s")
    content = found.info("count").content
    assert content is not None
    assert content.item() == dims("4*b*s")[0]


def test_scatter_into_a_shape() -> None:
    graph = Builder()
    graph.input("x", "b", "s", 4)
    shape = graph.add("Shape", "x")
    target = graph.add("ScatterND", shape, graph.constant([[2]]), graph.constant([-1]))
    graph.add("Reshape", "x", target, out="y")
    assert graph.infer().shape("y") == dims("b", "s", 4)


def test_small_constants_are_numbers() -> None:
    graph = Builder()
    values = graph.add("Sqrt", graph.constant([4.0, 9.0], np.float32))
    graph.add("Cast", values, to=INT64.code, out="y")
    found = graph.infer().info("y")
    assert found.content is not None
    assert found.content.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("op_type", "other", "expected"),
    [("Equal", -1, False), ("Greater", -1, True), ("Less", 0, False), ("GreaterOrEqual", 0, True)],
)
def test_comparisons_that_are_proven(op_type: str, other: int, expected: bool) -> None:
    graph = Builder()
    graph.input("x", "h")
    graph.add(op_type, graph.add("Shape", "x"), graph.constant(other), out="y")
    content = graph.infer().info("y").content
    assert content is not None
    assert content.tolist() == [expected]


def test_comparisons_that_are_not_proven_have_no_content() -> None:
    graph = Builder()
    graph.input("x", "h")
    graph.add("Equal", graph.add("Shape", "x"), graph.constant(1), out="y")
    assert graph.infer().info("y").content is None
