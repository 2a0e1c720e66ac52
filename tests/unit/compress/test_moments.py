"""Moments of patches: against convolutions written out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.compress.adaround import adaround
from tilewright.compress.affine import dequantize, quantize, quantize_weights
from tilewright.compress.bias_correction import corrected, mean_error
from tilewright.compress.gptq import Steps, closer, factor_of, gptq, squared_errors
from tilewright.compress.layers import Layer, find_layers
from tilewright.compress.moments import Moments, as_matrix, from_matrix, why_none
from tilewright.compress.refine import refine
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import reference
from tilewright.graph.quantizable import Quantizable
from unit.compiler.models import normal
from unit.graph.models import model_of, node, tensor_info

CASES: list[dict[str, Any]] = [
    {"weights": (4, 3, 3, 3), "pads": [1, 1, 1, 1]},
    {"weights": (4, 3, 3, 2), "pads": [0, 1, 2, 0], "strides": [2, 1]},
    {"weights": (6, 1, 3, 3), "group": 6, "pads": [1, 1, 1, 1], "channels": 6},
    {"weights": (4, 2, 3, 3), "group": 2, "dilations": [2, 1], "channels": 4},
    {"weights": (4, 3, 5), "pads": [2, 2], "spatial": 1},
]


def _conv(case: dict[str, Any]) -> tuple[Quantizable, Layer, Moments, Any]:
    options = dict(case)
    shape, spatial = options.pop("weights"), options.pop("spatial", 2)
    channels = options.pop("channels", 3)
    x = normal(5, channels, *(7, 6)[:spatial], seed=3)
    model = model_of(
        [node("Conv", ["x", "w", "b"], ["y"], name="layer", **options)],
        inputs=[tensor_info("x", x.shape)],
        weights={"w": normal(*shape, seed=4), "b": normal(shape[0])},
        opset=21,
    )
    loaded = Quantizable.load(model, DecisionLog())
    (layer,) = find_layers(loaded.view()).layers
    moments = Moments(layer, loaded.view().nodes[0], second=True)
    moments.add(x[:2])
    moments.add(x[2:])
    return loaded, layer, moments, x


@pytest.mark.parametrize("case", CASES)
def test_the_mean_error_of_a_convolution_is_found_and_corrected(case: dict[str, Any]) -> None:
    loaded, layer, moments, x = _conv(case)
    integers, params = quantize_weights(layer.weights, None)
    rounded = dequantize(integers, params)

    def mean_result(weights: Any, bias: Any) -> Any:
        changed = loaded.with_weights({("layer", 1): weights, ("layer", 2): bias})
        (name,) = (value.name for value in changed.view().outputs)
        y = reference(changed.view(), {"x": x})[name]
        return y.mean(axis=(0, *range(2, y.ndim)))

    exact = mean_result(layer.weights, layer.bias)
    expected = mean_result(rounded, layer.bias) - exact
    assert np.abs(expected).max() > 1e-4
    np.testing.assert_allclose(
        mean_error(layer, integers, params, moments.mean), expected, atol=1e-6
    )
    bias = corrected(layer, integers, params, moments.mean)
    np.testing.assert_allclose(mean_result(rounded, bias), exact, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_second_moments_give_the_squared_error_of_a_convolution(case: dict[str, Any]) -> None:
    loaded, layer, moments, x = _conv(case)
    integers, params = quantize_weights(layer.weights, None)
    off = dequantize(integers, params) - layer.weights
    zero = np.zeros(layer.num_channels, np.float32)
    changed = loaded.with_weights({("layer", 1): off, ("layer", 2): zero})
    (name,) = (value.name for value in changed.view().outputs)
    y = reference(changed.view(), {"x": x})[name]
    expected = np.square(y).mean(axis=(0, *range(2, y.ndim)))
    matrix = as_matrix(layer, layer.weights)
    steps = np.full(matrix.shape, params.scale)
    wrong = (as_matrix(layer, integers) * steps - matrix).transpose(0, 2, 1)
    found = squared_errors(wrong, moments.gram(centred=False))
    np.testing.assert_allclose(found.reshape(-1), expected, rtol=1e-4)


def _product(seed: int = 0) -> tuple[Layer, Any]:
    """A layer whose inputs are strongly correlated."""
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((400, 3)) @ rng.standard_normal((3, 24))
    x = (mixed + 0.1 * rng.standard_normal((400, 24))).astype(np.float32)
    weights = rng.standard_normal((24, 10)).astype(np.float32)
    layer = Layer(
        node="layer",
        op_type="MatMul",
        source="x",
        result="y",
        weights=weights,
        bias=None,
        axis=1,
    )
    return layer, x


@pytest.mark.parametrize("size", [1, 1e30])
@pytest.mark.parametrize("rounding", [gptq, adaround])
def test_rounding_by_second_moments_is_closer_than_to_the_nearest(
    rounding: Any, size: float
) -> None:
    layer, x = _product()
    layer = replace(layer, weights=layer.weights * np.float32(size))
    _, params = quantize_weights(layer.weights, None)
    coarse = type(params)(scale=params.scale * 8, zero=params.zero)
    gram = (x.T @ x / len(x)).astype(np.float64)[None]
    nearest = quantize(layer.weights, coarse)
    found = rounding(layer, coarse, gram)
    assert found.dtype == np.int8

    def error(integers: Any) -> float:
        off = (dequantize(integers, coarse) - layer.weights).astype(np.float64)
        return float(np.square(x @ off).mean())

    assert error(found) < 0.5 * error(nearest)


@pytest.mark.parametrize("rounding", [gptq, adaround])
def test_rounding_stands_inputs_that_are_always_0(rounding: Any) -> None:
    layer, x = _product()
    x[:, 5] = 0
    _, params = quantize_weights(layer.weights, 1)
    gram = (x.T @ x / len(x)).astype(np.float64)[None]
    assert np.abs(rounding(layer, params, gram).astype(int)).max() <= 127


def test_matrices_go_back_to_weights() -> None:
    layer, _ = _product()
    np.testing.assert_array_equal(
        from_matrix(layer, as_matrix(layer, layer.weights)), layer.weights
    )


def test_only_means_when_only_these_were_asked_for() -> None:
    layer, x = _product()
    moments = Moments(layer, None, second=False)  # type: ignore[arg-type]
    moments.add(x)
    np.testing.assert_allclose(moments.mean[0], x.mean(0), atol=1e-5)
    with pytest.raises(ValueError, match="no second ones"):
        moments.gram(centred=True)


def test_inputs_whose_squares_exceed_float32_give_means_only() -> None:
    """Sums that overflow would choose integers by nothing."""
    _, _, moments, x = _conv(CASES[0])
    assert why_none(moments) is None
    for factor in (1e25, 1):
        moments.add(x * np.float32(factor))
        assert "exceed 1e+15" in str(why_none(moments))
    assert np.isfinite(moments.mean).all()
    with pytest.raises(ValueError, match="no second ones"):
        moments.gram(centred=False)


def test_moving_single_integers_comes_closer_than_one_pass() -> None:
    layer, x = _product()
    rows = layer.weights.astype(np.float64)[None]  # [1, 24, 10]
    gram = (x.T @ x / len(x)).astype(np.float64)[None]
    raised = gram + 0.01 * np.trace(gram[0]) / 24 * np.eye(24)
    scale = np.abs(rows).reshape(1, 3, 8, 10).max(2) / 7
    steps = Steps(scale=scale, zero=np.full_like(scale, 8), block=8, limits=(0, 15))
    nearest = np.clip(np.rint(rows / scale.repeat(8, 1)) + 8, 0, 15)
    once = closer(rows, steps, gram, factor_of(gram, ordered=True), nearest)
    found = refine(once, rows, steps, gram)
    assert found.min() >= 0
    assert found.max() <= 15
    np.testing.assert_array_equal(found, np.rint(found))

    def error(codes: Any) -> Any:
        return squared_errors(steps.floats(codes) - rows, raised)

    assert (error(found) <= error(once) * (1 + 1e-6)).all()
    assert error(found).sum() < 0.95 * error(once).sum() < 0.5 * error(nearest).sum()


def test_elements_are_found_again_in_any_order() -> None:
    """Groups with orders of their own; where moments are of each element alone, all is nearest."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((2, 12, 5))
    gram = np.stack([np.diag(rng.exponential(1, 12)) for _ in range(2)])
    scale = rng.uniform(0.1, 0.3, (2, 3, 5))
    steps = Steps(scale=scale, zero=np.zeros_like(scale), block=4, limits=(-127, 127))
    nearest = np.rint(rows / scale.repeat(4, 1))
    for ordered in (False, True):
        found = closer(rows, steps, gram, factor_of(gram, ordered=ordered), nearest)
        np.testing.assert_array_equal(found, nearest)
    np.testing.assert_array_equal(refine(nearest, rows, steps, gram), nearest)
