"""Strassen: values of every form of product, and every refusal with its reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model, reference
from tilewright.lower.strassen import NAME
from unit.compiler.models import normal
from unit.graph.models import model_of, node, tensor_info


def product(
    shape: tuple[Any, ...], columns: int, *, transposed: bool = False, constant: bool = True
) -> onnx.ModelProto:
    """x w + b, then an activation and a residual."""
    depth = shape[-1]
    size = (columns, depth) if transposed else (depth, columns)
    weight = normal(*size) / np.float32(np.sqrt(depth))
    nodes = [
        node("Gemm", ["x", "w", "b"], ["m"], name="product", transB=int(transposed))
        if len(shape) == 2
        else node("MatMul", ["x", "w"], ["m"], name="product"),
        node("Add", ["m", "b"], ["a"], name="bias"),
        node("Tanh", ["a"], ["t"], name="tanh"),
        node("Add", ["t", "residual"], ["y"], name="residual"),
    ]
    inputs = [tensor_info("x", shape), tensor_info("residual", (*shape[:-1], columns))]
    weights = {"b": normal(columns, seed=2)}
    if constant:
        weights["w"] = weight
    else:
        inputs.append(tensor_info("w", size))
    return model_of(nodes, inputs=inputs, weights=weights, opset=21)


def decision(engine: tw.Engine) -> tuple[str, str]:
    (found,) = [d for d in engine.decisions if d.stage == "strassen"]
    return found.chosen, found.rejected[0][1] if found.rejected else ""


def compiled(model: onnx.ModelProto, **options: Any) -> tw.Engine:
    return tw.compile(model, verify=False, cache=None, **{"threads": 2, **options})


@pytest.mark.parametrize(
    ("shape", "columns", "transposed"),
    [
        ((128, 384), 512, False),
        ((128, 512), 384, True),
        ((1, 128, 384), 384, False),
        ((3, 130, 384), 416, False),  # no multiple of a vector in any half
        ((2, 3, 64, 384), 512, False),
    ],
)
def test_values(shape: tuple[int, ...], columns: int, transposed: bool) -> None:
    model = product(shape, columns, transposed=transposed)
    engine = compiled(model)
    assert decision(engine)[0].startswith(NAME)
    feeds = {"x": normal(*shape, seed=3), "residual": normal(*shape[:-1], columns, seed=4)}
    want = reference(Model.load(model, DecisionLog()).original, feeds)["y"]
    got = engine.run(feeds)["y"]
    assert float(np.abs(got - want).max() / np.abs(want).max()) <= 5e-6
    one = compiled(model, threads=1).run(feeds)["y"]
    np.testing.assert_array_equal(one, got)


def test_a_whole_network_is_verified() -> None:
    engine = tw.compile(product((128, 384), 512), threads=1, cache=None)
    assert engine.summary["max_error"] <= 1e-5


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (product(("n", 384), 512), "a number of rows or columns is not known"),
        (product((127, 384), 512), "a number of rows, columns or terms is odd"),
        (product((128, 383), 512), "a number of rows, columns or terms is odd"),
        (product((128, 384), 511), "a number of rows, columns or terms is odd"),
        (product((128, 32), 512), "32 terms or columns are too few"),
        (product((2, 384), 512), "it would save -"),
    ],
)
def test_refusals_have_reasons(model: onnx.ModelProto, reason: str) -> None:
    chosen, why = decision(compiled(model))
    assert chosen == "one product"
    assert why.startswith(reason)


def test_channels_of_images_keep_their_blocks() -> None:
    weights = {"w": normal(256, 256, 1, 1), "v": normal(256, 256, 1, 1)}
    nodes = [node("Conv", ["x", "w"], ["c"], name="a"), node("Conv", ["c", "v"], ["y"], name="b")]
    inputs = [tensor_info("x", (1, 256, 14, 14))]
    engine = compiled(model_of(nodes, inputs=inputs, weights=weights, opset=21))
    found = [d for d in engine.decisions if d.stage == "strassen"]
    assert [d.chosen for d in found] == ["one product"] * 2
    assert all("stored in blocks" in d.rejected[0][1] for d in found)


def test_weights_that_are_no_constants_are_left_alone() -> None:
    engine = compiled(product((128, 384), 512, constant=False))
    assert [d for d in engine.decisions if d.stage == "strassen"] == []


def test_it_can_be_disabled() -> None:
    engine = compiled(product((128, 384), 512), disable=["strassen"])
    assert [d for d in engine.decisions if d.stage == "strassen"] == []
