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
        (product(("n", 384), 512), "a number of rows is not known"),
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


def convolution(
    shape: tuple[Any, ...], filters: int, taps: tuple[int, ...], **attributes: Any
) -> onnx.ModelProto:
    """Two convolutions, so that the first one's results lie in blocks of channels."""
    depth = shape[1]
    weights = {
        "w": normal(filters, depth, *taps) / np.float32(np.sqrt(depth * np.prod(taps))),
        "b": normal(filters, seed=2),
        "v": normal(16, filters, *[1] * len(taps), seed=5) / np.float32(np.sqrt(filters)),
    }
    nodes = [
        node("Conv", ["x", "w", "b"], ["c"], name="product", **attributes),
        node("Relu", ["c"], ["r"], name="relu"),
        node("Conv", ["r", "v"], ["y"], name="next"),
    ]
    return model_of(nodes, inputs=[tensor_info("x", shape)], weights=weights, opset=21)


@pytest.mark.parametrize(
    ("shape", "taps", "attributes"),
    [
        ((1, 256, 28, 28), (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((1, 256, 29, 27), (3, 3), {"strides": [2, 2], "pads": [1, 0, 0, 1]}),
        ((1, 256, 260), (5,), {}),
        ((1, 256, 256), (5,), {"pads": [2, 2]}),
        ((2, 256, 24, 9), (5, 2), {"dilations": [2, 1], "pads": [2, 0, 2, 1]}),
    ],
)
def test_convolutions(shape: tuple[int, ...], taps: tuple[int, ...], attributes: Any) -> None:
    model = convolution(shape, 512, taps, **attributes)
    engine = compiled(model)
    assert any(d.chosen.startswith(NAME) for d in engine.decisions if d.stage == "strassen")
    feeds = {"x": normal(*shape, seed=3)}
    want = reference(Model.load(model, DecisionLog()).original, feeds)["y"]
    got = engine.run(feeds)["y"]
    assert float(np.abs(got - want).max() / np.abs(want).max()) <= 5e-6


def deep(shape: tuple[int, int, Any, Any], middle: int = 384) -> onnx.ModelProto:
    """1x1 convolutions between images in blocks, the second one with a residual."""
    depth = shape[1]
    weights = {
        "u": normal(depth, 3, 1, 1),
        "w": normal(middle, depth, 1, 1, seed=2) / np.float32(np.sqrt(depth)),
        "b": normal(middle, seed=3),
        "v": normal(depth, middle, 1, 1, seed=4) / np.float32(np.sqrt(middle)),
        "last": normal(8, depth, 1, 1, seed=5) / np.float32(np.sqrt(depth)),
    }
    nodes = [
        node("Conv", ["x", "u"], ["a"], name="stem"),
        node("Conv", ["a", "w", "b"], ["c"], name="expand"),
        node("Gelu", ["c"], ["g"], name="gelu"),
        node("Conv", ["g", "v"], ["d"], name="project"),
        node("Add", ["d", "a"], ["s"], name="residual"),
        node("Conv", ["s", "last"], ["y"], name="last"),
    ]
    inputs = [tensor_info("x", (shape[0], 3, *shape[2:]))]
    return model_of(nodes, inputs=inputs, outputs=["y"], weights=weights, opset=21)


@pytest.mark.parametrize(
    ("shape", "middle", "chosen"),
    [
        ((1, 384, 6, 40), 768, 2),
        ((1, 384, 7, 40), 768, 2),  # columns of the image are halved
        ((1, 352, 16, 16), 384, 2),
        ((1, 384, 7, 41), 768, 0),  # nothing can be halved
        ((1, 360, 6, 40), 768, 0),  # half the channels are no whole blocks: they would be gathered
        ((1, 64, 6, 40), 128, 0),  # too little to multiply
        ((1, 192, 80, 160), 192, 0),  # the sums exceed the caches
        ((2, 384, 6, 40), 768, 0),  # several images are gathered
    ],
)
def test_images_in_blocks(shape: tuple[int, int, int, int], middle: int, chosen: int) -> None:
    model = deep(shape, middle)
    engine = compiled(model)
    found = [d for d in engine.decisions if d.stage == "strassen"]
    assert sum(d.chosen.startswith(NAME) for d in found) == chosen
    blocked = [
        d.subject
        for d in engine.decisions
        if "/strassen" in d.subject and d.chosen.startswith("channels in blocks of")
    ]
    assert len(blocked) == 2 * chosen  # sums and products
    feeds = {"x": normal(shape[0], 3, *shape[2:], seed=6)}
    want = reference(Model.load(model, DecisionLog()).original, feeds)["y"]
    got = engine.run(feeds)["y"]
    assert float(np.abs(got - want).max() / np.abs(want).max()) <= 5e-6


def test_threads_share_the_pixels_of_images() -> None:
    engine = compiled(deep((1, 384, 6, 40), 768), cpu="skylake-avx512")
    chosen = [d.chosen for d in engine.decisions if d.stage == "tactic"]
    assert len([one for one in chosen if "i3x14,i1x2], outer=[i3]" in one]) == 2


@pytest.mark.parametrize("cpu", ["haswell", "x86-64-v2"])
def test_images_on_other_processors(cpu: str) -> None:
    model = deep((1, 384, 6, 40), 768)
    engine = compiled(model, cpu=cpu)
    if not engine.runs_here:
        pytest.skip(f"{cpu} code does not run here")
    feeds = {"x": normal(1, 3, 6, 40, seed=6)}
    want = reference(Model.load(model, DecisionLog()).original, feeds)["y"]
    got = engine.run(feeds)["y"]
    assert float(np.abs(got - want).max() / np.abs(want).max()) <= 5e-6


def test_images_pay_for_their_sums() -> None:
    engine = compiled(convolution((1, 128, 14, 14), 128, (1, 1)))
    first = next(d for d in engine.decisions if d.stage == "strassen")
    assert first.chosen == "one product"
    assert first.rejected[0][1].startswith("it would save -")


@pytest.mark.parametrize("batch", [1, 3])
def test_the_number_of_images_or_sequences_may_be_unknown(batch: int) -> None:
    models = {
        "product": (product(("n", 128, 384), 512), (128, 384), (128, 512)),
        "convolution": (
            convolution(("n", 256, 28, 28), 512, (3, 3), strides=[2, 2], pads=[1, 1, 1, 1]),
            (256, 28, 28),
            None,
        ),
    }
    for model, shape, residual in models.values():
        engine = compiled(model)
        assert any(d.chosen.startswith(NAME) for d in engine.decisions if d.stage == "strassen")
        feeds = {"x": normal(batch, *shape, seed=3)}
        if residual is not None:
            feeds["residual"] = normal(batch, *residual, seed=4)
        want = reference(Model.load(model, DecisionLog()).original, feeds)["y"]
        got = engine.run(feeds)["y"]
        assert float(np.abs(got - want).max() / np.abs(want).max()) <= 5e-6


@pytest.mark.parametrize("disabled", [[], ["bands"], ["layout"]])
def test_sizes_of_an_image_may_be_unknown(disabled: list[str]) -> None:
    model = deep((1, 384, "height", "width"), 768)
    engines = [compiled(model, threads=threads, disable=disabled) for threads in (1, 2)]
    for engine in engines:
        found = [d for d in engine.decisions if d.stage == "strassen"]
        assert sum(d.chosen.startswith(NAME) for d in found) == 2
        assert not any(d.stage == "bands" and "at a time" in d.chosen for d in engine.decisions)
    original = Model.load(model, DecisionLog()).original
    for size in [(6, 40), (7, 41), (1, 1), (2, 1), (1, 17), (3, 2), (13, 5)]:
        feeds = {"x": normal(1, 3, *size, seed=6)}
        want = reference(original, feeds)["y"]
        one, two = (engine.run(feeds)["y"] for engine in engines)
        assert float(np.abs(one - want).max() / np.abs(want).max()) <= 5e-6
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("taps", "attributes"),
    [
        ((3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((5, 2), {"dilations": [2, 1], "pads": [4, 0, 3, 1]}),
        ((3, 1), {"strides": [2, 1], "pads": [2, 0, 0, 0]}),
    ],
)
def test_windows_in_images_of_unknown_sizes(taps: tuple[int, int], attributes: Any) -> None:
    model = convolution((1, 256, "height", "width"), 512, taps, **attributes)
    engine = compiled(model)
    assert any(d.chosen.startswith(NAME) for d in engine.decisions if d.stage == "strassen")
    original = Model.load(model, DecisionLog()).original
    for size in [(28, 28), (29, 27), (9, 4), (3, 3), (2, 5)]:
        feeds = {"x": normal(1, 256, *size, seed=3)}
        want = reference(original, feeds)["y"]
        got = engine.run(feeds)["y"]
        assert got.shape == want.shape
        assert float(np.abs(got - want).max() / np.abs(want).max()) <= 5e-6


def test_the_first_products_get_the_room_for_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="first"),
        node("Relu", ["a"], ["b"], name="relu"),
        node("MatMul", ["b", "v"], ["y"], name="second"),
    ]
    weights = {"w": normal(512, 512), "v": normal(512, 512, seed=2)}
    model = model_of(nodes, inputs=[tensor_info("x", (128, 512))], weights=weights, opset=21)

    def decided() -> list[tuple[str, str]]:
        found = [d for d in compiled(model).decisions if d.stage == "strassen"]
        return [(d.chosen, d.rejected[0][1] if d.rejected else "") for d in found]

    assert all(chosen.startswith(NAME) for chosen, _ in decided())
    monkeypatch.setattr("tilewright.lower.strassen._MORE_BYTES", 1 << 20)
    first, second = decided()
    assert first[0].startswith(NAME)
    assert second == (
        "one product",
        "its weights would take 0.8 MiB more, and others take the room",
    )


def test_groups_are_left_alone() -> None:
    nodes = [node("Conv", ["x", "w"], ["y"], name="c", group=2, pads=[1, 1, 1, 1], strides=[2, 2])]
    weights = {"w": normal(512, 128, 3, 3)}
    inputs = [tensor_info("x", (1, 256, 28, 28))]
    engine = compiled(model_of(nodes, inputs=inputs, weights=weights, opset=21))
    assert [d for d in engine.decisions if d.stage == "strassen"] == []


def test_weights_that_are_no_constants_are_left_alone() -> None:
    engine = compiled(product((128, 384), 512, constant=False))
    assert [d for d in engine.decisions if d.stage == "strassen"] == []


def test_it_can_be_disabled() -> None:
    engine = compiled(product((128, 384), 512), disable=["strassen"])
    assert [d for d in engine.decisions if d.stage == "strassen"] == []
