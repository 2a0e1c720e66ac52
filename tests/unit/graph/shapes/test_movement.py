"""Reshape, Slice, Split and their like: symbolic where they can be, refused where they must be."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tilewright.core.dtypes import INT64
from tilewright.core.errors import InvalidModel, ShapeMismatch
from tilewright.core.shape import Dim
from tilewright.graph.shapes.algebra import HUGE
from unit.graph.shapes.builder import Builder, dims


def _reshape(shape: tuple[int | str, ...], target: list[int], **attributes: Any) -> object:
    graph = Builder()
    graph.input("x", *shape)
    graph.add("Reshape", "x", graph.constant(target), out="y", **attributes)
    found = graph.infer()
    return found.shape("y"), found.functions()


@pytest.mark.parametrize(
    ("shape", "target", "expected"),
    [
        (("b", "h*w", 768), [0, -1], ("b", "768*h*w")),
        (("b", "s", 768), [0, 0, 12, 64], ("b", "s", 12, 64)),
        (("b*s", 768), [-1, 64], ("12*b*s", 64)),
        ((2, 3, 4), [-1], (24,)),
        (("b", "floor(h/2)+1", 4), [0, -1], ("b", "4*floor(h/2)+4")),
    ],
)
def test_reshape_gives_clean_dims(
    shape: tuple[int | str, ...], target: list[int], expected: tuple[int | str, ...]
) -> None:
    assert _reshape(shape, target) == (dims(*expected), [])


def test_reshape_checks_at_run_time_what_is_not_proven() -> None:
    assert _reshape(("b", "s"), [-1, 64]) == (dims("floor(b*s/64)", 64), ["require_same_count"])


@pytest.mark.parametrize("allow_zero", [0, 1])
def test_reshape_checks_computed_sizes_that_may_be_zero(allow_zero: int) -> None:
    graph = Builder()
    graph.input("x", "b", "w", 4)
    size = graph.add("Shape", "x", start=1, end=2)
    shape = graph.add("Concat", graph.constant([0, 1]), size, graph.constant([4]), axis=0)
    graph.add("Reshape", "x", shape, out="y", allowzero=allow_zero)
    found = graph.infer()
    assert found.shape("y") == dims(0 if allow_zero else "b", 1, "w", 4)
    assert ("require_no_copies" in found.functions()) == (not allow_zero)


def test_reshape_may_keep_a_zero() -> None:
    assert _reshape((0, 3), [3, 0], allowzero=1) == (dims(3, 0), [])


@pytest.mark.parametrize("target", [[5], [-1, -1], [-2], [2, 3, 4, 0], [-1, 5]])
def test_reshape_refuses(target: list[int]) -> None:
    with pytest.raises(ShapeMismatch, match="node y"):
        _reshape((2, 3, 4), target)


def test_reshape_by_a_run_time_tensor_is_bound() -> None:
    graph = Builder()
    graph.input("x", "b", 4)
    graph.input("to", 2, dtype=INT64)
    graph.add("Reshape", "x", "to", out="y")
    graph.add("Reshape", "x", "to", out="z")
    found = graph.infer()
    assert found.functions() == ["reshape"]  # the second gives the same sizes
    assert found.shape("y") == found.shape("z") == dims("`y.shape0`", "`y.shape1`")


_INDICES = (-HUGE - 1, -7, -4, -1, 0, 1, 3, 5, 9, HUGE)


@pytest.mark.parametrize("step", [1, 2, -1, -3])
@pytest.mark.parametrize("size", ["n", "n+2"])
def test_slices_agree_with_numpy_for_every_size(step: int, size: str) -> None:
    graph = Builder()
    graph.input("x", size)
    axes, steps = graph.constant([0]), graph.constant([step])
    pairs = list(itertools.product(_INDICES, repeat=2))
    for number, (start, end) in enumerate(pairs):
        bounds = (graph.constant([start]), graph.constant([end]))
        graph.add("Slice", "x", *bounds, axes, steps, out=f"y{number}")
    found = graph.infer()
    assert not found.functions()
    for number, (start, end) in enumerate(pairs):
        (length,) = found.shape(f"y{number}") or ()
        first, _ = (found.node(f"y{number}").params[name][0] for name in ("starts", "steps"))
        for n in range(8):
            data = np.arange(whole := n + (2 if size != "n" else 0))
            # Unlike NumPy, ONNX clamps a start before the front to the first element.
            begin = max(start, -whole) if step < 0 and whole else start
            stop = None if step < 0 and end < -whole else end
            expected = data[begin:stop:step]
            assert length.evaluate({"n": n}) == len(expected), (start, end, n)
            if len(expected):
                assert first.evaluate({"n": n}) == expected[0], (start, end, n)


def test_slice_to_a_size_stays_symbolic() -> None:
    graph = Builder()
    graph.input("table", 512, 64)
    graph.input("x", "b", "s")
    shape = graph.add("Shape", "x", start=1)
    graph.add("Slice", "table", graph.constant([0]), shape, graph.constant([0]), out="y")
    graph.add("Slice", "x", graph.constant([0]), shape, graph.constant([1]), out="all")
    found = graph.infer()
    assert found.shape("y") == dims("min(512, s)", 64)
    assert found.shape("all") == dims("b", "s")
    assert not found.functions()


def test_slice_from_the_back_by_the_whole_size() -> None:
    graph = Builder()
    graph.input("x", "s", "s")
    negative = graph.add("Neg", graph.add("Shape", "x", end=1))
    graph.add("Slice", "x", negative, graph.constant([HUGE]), graph.constant([0]), out="y")
    found = graph.infer()
    assert found.shape("y") == dims("s", "s")
    assert found.node("y").params["starts"] == dims(0, 0)


def test_slice_by_a_run_time_end_binds_only_its_axis() -> None:
    graph = Builder()
    graph.input("x", "b", "s")
    graph.input("end", 1, dtype=INT64)
    graph.add("Slice", "x", graph.constant([0]), "end", graph.constant([-1]), out="y")
    found = graph.infer()
    assert found.shape("y") == (Dim.symbol("b"), Dim.symbol("y.length1"))
    assert found.node("y").params["steps"] == (Dim.of(1), Dim.symbol("y.step1"))


def test_a_step_of_zero_is_refused() -> None:
    graph = Builder()
    graph.input("x", "s")
    zero = graph.constant([0])
    graph.add("Slice", "x", zero, zero, zero, zero)
    with pytest.raises(InvalidModel, match="step of 0"):
        graph.infer()


@pytest.mark.parametrize("count", [2, 3, 4])
def test_even_splits_of_any_size(count: int) -> None:
    graph = Builder()
    graph.input("x", "n")
    outputs = [f"y{part}" for part in range(count)]
    graph.add("Split", "x", out=outputs, axis=0, num_outputs=count)
    found = graph.infer()
    offsets = found.node("y0").params["offsets"]
    for n in range(13):
        part = -(-n // count)
        sizes = [(found.shape(name) or ())[0].evaluate({"n": n}) for name in outputs]
        assert sizes == [max(min(part, n - k * part), 0) for k in range(count)]
        assert [offset.evaluate({"n": n}) for offset in offsets] == [
            min(part * k, n) for k in range(count)
        ]


def test_concat_and_split_undo_each_other() -> None:
    graph = Builder()
    graph.input("past", "b", "p", 8)
    graph.input("new", "b", "s", 8)
    graph.add("Concat", "past", "new", out="all", axis=1)
    sizes = [graph.add("Shape", name, start=1, end=2) for name in ("past", "new")]
    split = graph.add("Concat", *sizes, axis=0)
    graph.add("Split", "all", split, out=("left", "right"), axis=1)
    found = graph.infer()
    assert found.shape("right") == dims("b", "s", 8)
    assert found.node("left").params["offsets"] == dims(0, "p")
    assert not found.functions()


def test_concat_of_static_sizes_that_differ_is_refused() -> None:
    graph = Builder()
    graph.add("Concat", graph.input("x", 2, 3), graph.input("y", 3, 3), axis=1)
    with pytest.raises(ShapeMismatch, match="axis 0 of input 1"):
        graph.infer()


def test_squeeze_of_a_symbolic_size_is_checked() -> None:
    graph = Builder()
    graph.input("x", "a", "b")
    graph.add("Squeeze", "x", graph.constant([1]), out="y")
    graph.add("Squeeze", "x", out="z")
    found = graph.infer()
    assert (found.shape("y"), found.functions()) == (dims("a"), ["require_equal"])
    assert found.shape("z") is None  # which sizes are 1 is known only at run time


def test_impossible_sizes_are_refused() -> None:
    graph = Builder()
    graph.add("ConstantOfShape", graph.constant([2**31, 2**31]))
    with pytest.raises(ShapeMismatch, match="would have the shape"):
        graph.infer()
