"""Rows of a factor that crowd a set of the cache are put apart, others stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model, reference
from unit.graph.models import model_of, node, tensor_info

RNG = np.random.default_rng(3)


def _product(rows: Any, depth: int) -> onnx.ModelProto:
    weights = RNG.standard_normal((depth, 40)).astype(np.float32)
    nodes = [
        node("Relu", ["x"], ["a"], name="relu"),
        node("Softmax", ["a"], ["b"], name="softmax"),
        node("MatMul", ["b", "w"], ["y"], name="product"),
    ]
    return model_of(nodes, inputs=[tensor_info("x", (2, rows, depth))], weights={"w": weights})


def _padded(model: onnx.ModelProto, rows: int, depth: int) -> list[str]:
    """Compiles, compares with the reference, returns the values whose rows were put apart."""
    engine = tw.compile(model, verify=False, cache=None, threads=2)
    feeds = {"x": RNG.standard_normal((2, rows, depth)).astype(np.float32)}
    want = reference(Model.load(model, DecisionLog()).original, feeds)
    got = engine.run(feeds)
    for name, value in want.items():
        assert np.abs(got[name] - value).max() <= 1e-5 * np.abs(value).max()
    return [d.subject for d in engine.decisions if "elements apart" in d.chosen]


@pytest.mark.parametrize("rows", [17, "n"])
def test_rows_of_a_multiple_of_a_way_are_put_apart(rows: Any) -> None:
    assert _padded(_product(rows, 1024), 17, 1024) == ["b"]


def test_rows_of_other_lengths_stay() -> None:
    assert not _padded(_product(17, 1040), 17, 1040)
    assert not _padded(_product(17, 512), 17, 512)


def test_few_rows_fit_the_ways() -> None:
    assert not _padded(_product(8, 1024), 8, 1024)


def test_what_is_read_outside_or_under_another_shape_stays() -> None:
    model = _product(17, 1024)
    model.graph.output.append(onnx.helper.make_tensor_value_info("b", 1, [2, 17, 1024]))
    assert not _padded(model, 17, 1024)
