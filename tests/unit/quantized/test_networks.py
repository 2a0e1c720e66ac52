"""Whole quantised networks run on integers, and give what the simulator gives, bit for bit."""

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.program import Segment
from unit.quantized.qdq import Net, assert_exact


def feeds(*shape: int, seed: int = 3) -> dict[str, Any]:
    """Numbers somewhat beyond what is quantised, so that both ends are clamped."""
    return {"x": np.random.default_rng(seed).uniform(-3, 3, shape).astype(np.float32)}


def tactics(engine: tw.Engine) -> list[str]:
    """How the first stage of each kernel runs."""
    segments = [step for step in engine.program.steps if isinstance(step, Segment)]
    return [call.tactic.split(" ")[0] for segment in segments for call in segment.calls]


def convolution(
    net: Net, x: str, scale: float, shape: tuple[int, ...], **attributes: Any
) -> tuple[str, float]:
    """A quantised convolution with a bias, and the scale of its result."""
    weights, scales = net.weight(shape, 0, signed=bool(net.rng.integers(2)))
    bias = net.bias(shape[0], scale * scales)
    found = net.add("Conv", [x, weights, bias], **attributes)
    return found, scale * 60


def network(seed: int) -> tuple[Any, dict[str, Any]]:
    """Stem, expansion, depthwise, projection, residual sum, matrix product."""
    net = Net(seed)
    rng = net.rng
    channels, wide = int(rng.choice([8, 16, 20])), int(rng.choice([16, 36, 48]))
    dtype = str(rng.choice(["uint8", "int8"]))
    zero = int(rng.integers(0, 100))
    kernel = int(rng.choice([3, 5]))
    scale = 0.02
    x = net.quantize("x", scale, zero, dtype)
    y, scale = convolution(net, x, scale, (channels, 3, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    first = x = net.quantize(net.add("Relu", [y]), scale, 0, "uint8")
    own = scale
    y, scale = convolution(net, x, scale, (wide, channels, 1, 1))
    x = net.quantize(y, scale, zero, dtype)
    y, scale = convolution(
        net, x, scale, (wide, 1, kernel, kernel), group=wide, pads=[kernel // 2] * 4
    )
    x = net.quantize(y, scale, zero, dtype)
    y, scale = convolution(net, x, scale, (channels, wide, 1, 1))
    x = net.quantize(y, scale, 120, "uint8")
    x = net.quantize(net.add("Add", [x, first]), scale + own, 100, "uint8")
    scale += own
    x = net.quantize(net.add("Flatten", [x]), scale, 100, "uint8")
    weights, scales = net.weight((channels * 25, 10), 1)
    y = net.add("Gemm", [x, weights, net.bias(10, scale * scales)])
    out = net.quantize(y, scale * 20, 128)
    return net.model((1, 3, 10, 10), out), feeds(1, 3, 10, 10, seed=seed)


@pytest.mark.parametrize("seed", range(6))
def test_networks_equal_the_simulator(seed: int) -> None:
    model, given = network(seed)
    engine, operators = assert_exact(model, given, require=["compiled"])
    assert operators.count("QLinearConv") == 4
    assert operators.count("QGemm") == 1
    assert "Conv" not in operators
    assert tactics(engine).count("dot_product") == 5


def test_matrix_products_of_rank_three_run_row_by_row() -> None:
    """Rows are no channels, though they stand where those of an image would."""
    net = Net(7)
    weights, _ = net.weight((64, 48), 1)
    x = net.quantize("x", 0.02, 30)
    out = net.quantize(net.add("MatMul", [x, weights]), 0.1, 120)
    engine, operators = assert_exact(net.model((1, 32, 64), out), feeds(1, 32, 64))
    assert "QLinearMatMul" in operators
    assert "dot_product" in tactics(engine)


@pytest.mark.parametrize("cpu", ["skylake-avx512", "haswell", "x86-64-v2"])
def test_every_target_gives_the_same(cpu: str) -> None:
    model, given = network(1)
    assert_exact(model, given, cpu=cpu)


def test_threads_change_nothing() -> None:
    model, given = network(2)
    assert_exact(model, given, threads=2)


def test_they_are_verified_against_the_original() -> None:
    model, given = network(4)
    tw.compile(model, cache=None, threads=1, verify_feeds=given)


def test_layouts_may_be_switched_off() -> None:
    model, given = network(3)
    assert_exact(model, given, disable=["layout", "pack"])
