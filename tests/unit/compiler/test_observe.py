"""Observed values are those of the reference, whatever their layout in memory."""

from __future__ import annotations

import numpy as np
import onnx

from tilewright.compiler.observe import observe, unblocked
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model, reference
from tilewright.runtime.program import Blocked, Segment
from unit.compiler.models import compiled, normal
from unit.graph.models import model_of, node, tensor_info


def _convolutions() -> onnx.ModelProto:
    """Channels of whole vectors and a few more, with padding, so that values are blocked."""
    return model_of(
        [
            node("Conv", ["x", "w0"], ["a"], name="first", pads=[1, 1, 1, 1]),
            node("Relu", ["a"], ["b"], name="relu"),
            node("Conv", ["b", "w1"], ["c"], name="second", pads=[2, 1, 0, 1]),
            node("Conv", ["c", "w2"], ["y"], name="third"),
        ],
        inputs=[tensor_info("x", ("n", 3, 6, "w"))],
        weights={
            "w0": normal(32, 3, 3, 3),
            "w1": normal(32, 32, 3, 3) / 16,
            "w2": normal(32, 32, 1, 1) / 6,
        },
        opset=21,
    )


def test_blocked_values_are_seen_row_by_row() -> None:
    model = _convolutions()
    engine = compiled(model, verify=False)
    (segment,) = (step for step in engine.program.steps if isinstance(step, Segment))
    blocked = [spec.name for spec in segment.internal if spec.stored is not None]
    assert blocked  # else this test shows nothing
    feeds = {"x": normal(2, 3, 6, 5)}
    values = observe(engine, feeds)
    graph = Model.load(model, DecisionLog()).original
    made = {name for found in graph.nodes for name in found.outputs}
    names = [name for name in values if name in made]  # kernels may have values of their own
    assert {"b", "c", "y"} <= set(names)
    for name, want in reference(graph, feeds, keep=names).items():
        assert values[name].shape == want.shape
        np.testing.assert_allclose(values[name], want, rtol=1e-4, atol=1e-5)


def test_blocks_and_borders_are_taken_away() -> None:
    plain = np.arange(2 * 5 * 3, dtype=np.float32).reshape(2, 5, 3)
    padded = np.pad(plain, ((0, 0), (0, 3), (2, 1)))
    blocks = np.moveaxis(padded.reshape(2, 2, 4, 6), 2, -1)
    stored = Blocked(dim=1, block=4, size=5, border=((2, 2, 1),))
    np.testing.assert_array_equal(unblocked(blocks, stored), plain)
    assert unblocked(plain, None) is plain
