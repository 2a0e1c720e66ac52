"""Blocks of channels: one vector, or half of one where that costs nothing and saves padding."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from unit.compiler.models import compiled, normal
from unit.graph.models import model_of, node, tensor_info

PADS = [1, 1, 1, 1]


def chain(channels: int, *more: Any, out: str = "d") -> onnx.ModelProto:
    """Convolution, depthwise convolution, residual sum, convolution; ``more`` nodes before it."""
    c = channels
    return model_of(
        [
            node("Conv", ["x", "w0"], ["a"], name="first", pads=PADS),
            node("Conv", ["a", "w1"], ["b"], name="depthwise", pads=PADS, group=c),
            node("Conv", ["b", "w2"], ["c"], name="project"),
            node("Add", ["c", "a"], ["d"], name="residual"),
            *more,
            node("Conv", [out, "w3"], ["y"], name="last", pads=PADS),
        ],
        inputs=[tensor_info("x", (1, 3, 12, 13))],
        outputs=["y"],
        weights={
            "w0": normal(c, 3, 3, 3) / 5,
            "w1": normal(c, 1, 3, 3) / 3,
            "w2": normal(c, c, 1, 1) / 5,
            "w3": normal(32, 16 if more else c, 3, 3) / 15,
        },
        opset=21,
    )


def blocks(model: onnx.ModelProto, cpu: str, **options: Any) -> set[str]:
    engine = compiled(model, cpu=cpu, verify=False, **options)
    return {
        d.chosen.rpartition(" ")[2]
        for d in engine.decisions
        if d.stage == "layout" and d.chosen.startswith("channels in blocks of")
    }


@pytest.mark.parametrize(
    ("channels", "cpu", "found"),
    [
        (24, "znver4", "8"),
        (24, "icelake-server", "16"),  # half a vector would cost as much as a whole one
        (24, "haswell", "8"),
        (40, "znver4", "8"),
        (120, "znver4", "8"),
        (504, "znver4", "16"),  # hardly padded
        (32, "znver4", "16"),
    ],
)
def test_the_block_of_a_chain(channels: int, cpu: str, found: str) -> None:
    assert blocks(chain(channels), cpu) == {found}


def test_a_slice_of_channels_and_its_source_have_one_block() -> None:
    """One axis indexes both of its sides, and 16 channels are whole blocks of 8, too."""
    cut = node("Slice", ["d", "begin", "end", "axis"], ["e"], name="cut")
    model = chain(24, cut, out="e")
    for name, value in (("begin", 0), ("end", 16), ("axis", 1)):
        model.graph.initializer.append(onnx.helper.make_tensor(name, 7, [1], [value]))
    assert blocks(model, "znver4") == {"8"}
    compiled(model)  # and is right


@pytest.mark.parametrize(
    ("left", "right", "cpu", "found"),
    [
        (24, 24, "znver4", "8"),  # no block of 16 starts at channel 24
        (8, 8, "znver4", "8"),
        (24, 24, "icelake-server", "16"),
        (32, 16, "znver4", "16"),
        (36, 12, "znver4", "16"),  # nor do blocks of 8 start at 36
    ],
)
def test_the_block_of_concatenated_channels(left: int, right: int, cpu: str, found: str) -> None:
    model = model_of(
        [
            node("Conv", ["x", "w0"], ["a"], name="left"),
            node("Conv", ["x", "w1"], ["b"], name="right"),
            node("Concat", ["a", "b"], ["c"], name="both", axis=1),
            node("Conv", ["c", "w2"], ["y"], name="last", pads=PADS),
        ],
        inputs=[tensor_info("x", (1, 16, 9, 10))],
        outputs=["y"],
        weights={
            "w0": normal(left, 16, 1, 1) / 4,
            "w1": normal(right, 16, 1, 1) / 4,
            "w2": normal(32, left + right, 3, 3) / 21,
        },
        opset=21,
    )
    assert blocks(model, cpu) == {found}
    assert compiled(model).summary["max_error"] < 1e-5


@pytest.mark.parametrize("channels", [17, 23, 24, 25, 40])
def test_any_number_of_channels_is_right(channels: int) -> None:
    engine = compiled(chain(channels))
    assert engine.summary["max_error"] < 1e-5


@pytest.mark.parametrize("batch_first", [0, 1])
def test_steps_of_a_recurrent_kernel_are_no_channels(batch_first: int) -> None:
    """The steps index the second dim of what it reads and writes, and belong to no stage."""
    model = model_of(
        [
            node("Relu", ["x"], ["a"]),
            node("RNN", ["a", "w", "r"], ["b"], hidden_size=5, layout=batch_first),
            node("Neg", ["b"], ["y"]),
        ],
        inputs=[tensor_info("x", (4, 3, 7))],
        outputs=["y"],
        weights={"w": normal(1, 5, 7) / 3, "r": normal(1, 5, 5) / 3},
        opset=21,
    )
    compiled(model)
