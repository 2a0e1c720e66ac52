"""Branches of a network on several streams of a GPU give what one stream gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from gpu.launch import arch
from unit.graph.models import model_of, node, tensor_info

pytestmark = pytest.mark.gpu


def _branches(depth: int) -> Any:
    """Four chains of products that begin together and meet in a sum."""
    random = np.random.default_rng(0)
    weights, nodes, ends = {}, [], []
    for branch in range(4):
        name = "x"
        for number in range(depth):
            key = f"{branch}_{number}"
            weights[f"w{key}"] = random.standard_normal((64, 64)).astype(np.float32) / 8
            nodes.append(node("MatMul", [name, f"w{key}"], [f"p{key}"], name=f"product{key}"))
            nodes.append(node("Softmax", [f"p{key}"], [f"a{key}"], name=f"softmax{key}"))
            name = f"a{key}"
        ends.append(name)
    nodes.append(node("Sum", ends, ["y"], name="sum"))
    return model_of(nodes, inputs=[tensor_info("x", ("n", 64))], weights=weights)


@pytest.mark.parametrize("streams", [2, 3, 4])
def test_several_streams_give_the_same(streams: int) -> None:
    engine = tw.compile(_branches(6), target=arch())
    wide = engine.of(replace(engine.parts, info={**engine.parts.info, "streams": streams}))
    for size in (5, 64, 300):
        x = np.random.default_rng(size).standard_normal((size, 64)).astype(np.float32)
        expected = engine.run({"x": x})["y"]
        for _ in range(20):
            np.testing.assert_array_equal(wide.run({"x": x})["y"], expected)
