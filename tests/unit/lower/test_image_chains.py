"""Chains image by image: the same values with less memory, and only where batches are large."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest

import tilewright as tw
from tilewright.core.dtypes import FLOAT32
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.graph.facade import Model, reference
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Axis, Buffer, Expr, Kernel, Stage, Store, reduce_axes
from tilewright.kernel.verify import verify
from tilewright.lower.context import Item, View
from tilewright.lower.image_chains import by_images
from unit.graph.models import model_of, node, tensor_info

RNG = np.random.default_rng(3)
IMAGES, PIXELS = 4, 1 << 20  # 4 MB an image


def _buffer(name: str, *sizes: int) -> Buffer:
    return Buffer(name, FLOAT32, tuple(map(Dim.of, sizes or (IMAGES, PIXELS))))


def _axes(images: int = IMAGES, pixels: int = PIXELS) -> tuple[Axis, Axis]:
    return Axis("n", Dim.of(images)), Axis("p", Dim.of(pixels))


def _kernel(
    inputs: Sequence[Buffer], out: Buffer, value: Expr, axes: tuple[Axis, ...], at: Any = None
) -> Kernel:
    index = at or tuple(axis.var for axis in axes)
    made = Kernel(
        name=out.name,
        inputs=tuple(inputs),
        outputs=(out,),
        stages=(Stage(axes, (Store(out.name, index, value),)),),
        sources=(out.name,),
    )
    verify(made)
    return made


def _sum(name: str, *inputs: Buffer) -> Kernel:
    """Adds 1 and all inputs, pixel by pixel."""
    n, p = _axes()
    value: Expr = inputs[0][n.var, p.var] + 1.0
    for other in inputs[1:]:
        value = value + other[n.var, p.var]
    return _kernel(inputs, _buffer(name), value, (n, p))


X = _buffer("x")


def _join(items: Sequence[Item], keep: str) -> tuple[list[Item], list[Any]]:
    log = DecisionLog()
    result = by_images(items, [keep], [], log)
    return result, [d for d in log.entries if d.stage == "bands"]


def test_a_chain_with_a_residual_is_one_kernel_and_shares_memory() -> None:
    a = _sum("a", X)
    b = _sum("b", a.outputs[0])
    c = _sum("c", b.outputs[0])
    y = _sum("y", c.outputs[0], a.outputs[0])
    (joined,), (decision,) = _join([a, b, c, y], "y")
    assert isinstance(joined, Kernel)
    verify(joined)
    assert decision.chosen == "4 kernels, 1 of 4 images at a time"
    assert [b.name for b in joined.outputs] == ["y"]
    assert {b.shape for b in joined.temporaries} == {(Dim.of(1), Dim.of(PIXELS))}
    assert len(joined.temporaries) == 3  # a, b, c: c is written while b is read


def test_what_others_read_stays_whole() -> None:
    a, b = _sum("a", X), _sum("b", _buffer("a"))
    y = _sum("y", _buffer("b"))
    (joined, view), _ = _join([a, b, y, View(_buffer("v"), _buffer("b"))], "v")
    assert isinstance(joined, Kernel)
    assert isinstance(view, View)
    assert joined.outputs == (_buffer("b"),)


def _reason(*items: Item) -> str:
    result, decisions = _join(items, "y")
    assert result == list(items)
    assert decisions[0].chosen == "all images at once"
    ((_, reason),) = decisions[0].rejected
    return str(reason)


def test_a_sum_over_images_is_refused() -> None:
    a = _sum("a", X)
    (n, p), (m, _) = _axes(), (Axis("m", Dim.of(IMAGES)), None)
    value = reduce_axes("sum", (m,), _buffer("a")[m.var, p.var])
    y = _kernel([_buffer("a")], _buffer("y"), value, (n, p))
    assert _reason(a, y) == "y is not computed image by image"


def test_results_of_other_shapes_are_refused() -> None:
    a = _sum("a", X)
    n, p = _axes()
    out = _buffer("y", IMAGES + 1, PIXELS)
    y = _kernel([_buffer("a")], out, _buffer("a")[n.var, p.var], (n, p))
    assert _reason(a, y) == "y holds more than the images"
    shifted = _kernel([_buffer("a")], out, y.stages[0].stores[0].value, (n, p), (n.var + 1, p.var))
    assert _reason(a, shifted) == "y is not written image by image"


def test_stages_that_run_in_order_are_refused() -> None:
    n, p = _axes()
    ordered = (n, Axis("p", p.extent, ordered=True))
    y = _kernel([_buffer("a")], _buffer("y"), _buffer("a")[n.var, p.var], ordered)
    assert _reason(_sum("a", X), y) == "a stage runs in order"


def test_views_and_steps_end_a_chain() -> None:
    a = _sum("a", X)
    assert _reason(a, View(_buffer("y"), _buffer("a"))) == "y is a view"
    (joined,), _ = _join([a, _sum("b", _buffer("a")), _sum("y", _buffer("b"))], "y")
    assert isinstance(joined, Kernel)
    assert _reason(_sum("x", _buffer("w")), joined) == f"{joined.name} goes in steps"


def test_one_image_is_refused_and_an_unknown_number_too() -> None:
    def single(name: str, of: Buffer, images: Dim) -> Kernel:
        n, p = Axis("n", images), Axis("p", Dim.of(4 * PIXELS))
        out = Buffer(name, FLOAT32, (n.extent, p.extent))
        return _kernel([of], out, of[n.var, p.var] + 1.0, (n, p))

    for images, reason in (
        (Dim.of(1), "there is one image"),
        (Dim.symbol("batch"), "the number of images is not known"),
    ):
        x = Buffer("x", FLOAT32, (images, Dim.of(4 * PIXELS)))
        a = single("a", x, images)
        assert _reason(a, single("y", a.outputs[0], images)) == reason


def test_values_that_fit_the_cache_stay_whole() -> None:
    n, p = _axes(4, 1000)
    small = [_buffer(name, 4, 1000) for name in "xay"]
    kernels = [
        _kernel([source], target, source[n.var, p.var] + 1.0, (n, p))
        for source, target in pairwise(small)
    ]
    assert _join(kernels, "y") == (kernels, [])


def test_joined_kernels_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.lower.image_chains._LARGE_BYTES", 16)
    monkeypatch.setattr("tilewright.lower.image_chains._CACHE_BYTES", 100)
    n, p = _axes(6, 5)
    buffers = [_buffer(name, 6, 5) for name in "xabcy"]
    kernels = [
        _kernel([source], target, source[n.var, p.var] * 2.0 + 1.0, (n, p))
        for source, target in pairwise(buffers)
    ]
    (joined,), (decision,) = _join(kernels, "y")
    assert isinstance(joined, Kernel)
    assert decision.chosen == "4 kernels, 2 of 6 images at a time"
    assert len(joined.temporaries) == 2
    x = RNG.standard_normal((6, 5)).astype(np.float32)
    want = x
    for _ in kernels:
        want = want * np.float32(2) + np.float32(1)
    np.testing.assert_array_equal(interpret(joined, {"x": x}, {})["y"], want)


# --- whole networks -------------------------------------------------------------------------------


def _network(batch: int) -> onnx.ModelProto:
    """Winograd, Strassen, a pool, a residual; its last layers are all done by algorithms."""

    def weight(*sizes: int) -> Any:
        return (RNG.standard_normal(sizes) / np.sqrt(np.prod(sizes[1:]))).astype(np.float32)

    pads = [1, 1, 1, 1]
    return model_of(
        [
            node("Conv", ["x", "w"], ["a"], name="first", pads=pads, strides=[2, 2]),
            node("MaxPool", ["a"], ["p"], pads=pads, kernel_shape=[3, 3], strides=[2, 2]),
            node("Conv", ["p", "v"], ["c"], name="second", pads=pads),
            node("Relu", ["c"], ["r"]),
            node("Add", ["r", "p"], ["d"]),
            node("Conv", ["d", "u"], ["y"], name="last", pads=pads),
        ],
        inputs=[tensor_info("x", [batch, 3, 192, 200])],
        outputs=["y"],
        weights={"w": weight(64, 3, 3, 3), "v": weight(64, 64, 3, 3), "u": weight(32, 64, 3, 3)},
        opset=21,
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_a_network_image_by_image(threads: int) -> None:
    model = _network(8)
    x = RNG.standard_normal((8, 3, 192, 200)).astype(np.float32)
    engine = tw.compile(model, verify=False, cache=None, threads=threads)
    chosen = [d.chosen for d in engine.decisions if d.stage == "bands"]
    assert any(text.endswith("images at a time") for text in chosen)
    got = engine.run({"x": x})["y"]
    want = reference(Model.load(model, DecisionLog()).original, {"x": x})["y"]
    assert float(np.abs(got - want).max() / np.abs(want).max()) <= 2e-5
    whole = tw.compile(model, verify=False, cache=None, threads=threads, disable=["bands"])
    np.testing.assert_array_equal(got, whole.run({"x": x})["y"])
