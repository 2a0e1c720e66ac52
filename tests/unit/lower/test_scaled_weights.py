"""Squeeze-and-excite scales the weights that follow where they are fewer; values are the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model, reference
from unit.compiler.models import compiled, normal
from unit.graph.models import model_of, node, tensor_info


def _model(
    channels: int = 40,
    filters: int = 16,
    *,
    batch: int = 1,
    shared: bool = False,
    taps: int = 1,
    mul: tuple[str, str] = ("a", "s"),
) -> onnx.ModelProto:
    """A convolution, its pixels scaled by what is computed of their means, a convolution."""
    nodes = [
        node("Conv", ["x", "w0"], ["a"], name="first"),
        node("GlobalAveragePool", ["a"], ["p"], name="squeeze"),
        node("Conv", ["p", "w1"], ["e"], name="excite"),
        node("HardSigmoid", ["e"], ["s"], name="gate"),
        node("Mul", list(mul), ["m"], name="scale"),
        node("Conv", ["m", "w2", "b2"], ["y"], name="project"),
    ]
    if shared:
        nodes.append(node("Conv", ["m", "w2"], ["z"], name="other"))
    return model_of(
        nodes,
        inputs=[tensor_info("x", (batch, 3, 9, 17))],
        outputs=["y", "z"] if shared else ["y"],
        weights={
            "w0": normal(channels, 3, 1, 1, seed=1),
            "w1": normal(channels, channels, 1, 1, seed=2),
            "w2": normal(filters, channels, taps, taps, seed=3) / 6,
            "b2": normal(filters, seed=4),
        },
        opset=21,
    )


def _scales_weights(model: onnx.ModelProto, **options: object) -> bool:
    engine = compiled(model, verify=False, **options)
    return any(d.chosen == "the weights are scaled, not the image" for d in engine.decisions)


@pytest.mark.parametrize(
    ("model", "scales"),
    [
        (_model(), True),
        (_model(mul=("s", "a")), True),
        (_model(taps=2), True),
        (_model(filters=128), False),  # more weights than half the pixels
        (_model(batch=2), False),  # each image has scales of its own
        (_model(shared=True), False),
    ],
)
def test_which_weights_are_scaled(model: onnx.ModelProto, scales: bool) -> None:
    assert _scales_weights(model) == scales


def test_it_is_part_of_packing() -> None:
    assert not _scales_weights(_model(), disable=["pack"])


@pytest.mark.parametrize("cpu", ["znver4", "haswell", None])
@pytest.mark.parametrize("channels", [13, 32, 40, 200])
@pytest.mark.parametrize("taps", [1, 2])
def test_values_are_the_same(channels: int, taps: int, cpu: str | None) -> None:
    model = _model(channels, taps=taps)
    engine = compiled(model, verify=False, **({} if cpu is None else {"cpu": cpu}))
    if not engine.runs_here:
        pytest.skip(f"{cpu} code does not run here")
    feeds = {"x": normal(1, 3, 9, 17, seed=5)}
    want = reference(Model.load(model, DecisionLog()).original, feeds)["y"]
    assert np.abs(engine.run(feeds)["y"] - want).max() <= 1e-5 * np.abs(want).max()
