"""Normalisation: ONNX's cases, halves of large values, outputs that nobody wants."""

import numpy as np
import pytest

from unit.lower.harness import Array, Case, check_case, node_cases, run_operator

CASES = node_cases(
    "BatchNormalization",
    "GroupNormalization",
    "InstanceNormalization",
    "LRN",
    "LayerNormalization",
    "LpNormalization",
    "MeanVarianceNormalization",
    "RMSNormalization",
)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("symbolic", [False, True])
def test_case(case: Case, symbolic: bool) -> None:
    check_case(case, symbolic=symbolic)


def _layer_norm(x: Array, epsilon: float = 1e-5) -> Array:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon))


def test_variance_of_values_far_from_zero() -> None:
    x = (np.random.default_rng(5).standard_normal((4, 256)) + 1000).astype(np.float32)
    scale = np.ones(256, np.float32)
    (result,) = run_operator("LayerNormalization", {"x": x, "scale": scale})
    np.testing.assert_allclose(result, _layer_norm(x), atol=2e-3)


def test_halves_do_not_overflow_on_the_way() -> None:
    x = (np.random.default_rng(6).standard_normal((4, 256)) * 1e4).astype(np.float16)
    scale = np.ones(256, np.float16)
    (result,) = run_operator("LayerNormalization", {"x": x, "scale": scale})
    np.testing.assert_allclose(result, _layer_norm(x), atol=2e-3)
    (result,) = run_operator("RMSNormalization", {"x": x, "scale": scale})
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(result, expected, atol=2e-3)


@pytest.mark.parametrize("outputs", [("y", "", ""), ("", "m", ""), ("", "", "d"), ("y", "m", "d")])
def test_layer_normalization_computes_what_is_wanted(outputs: tuple[str, ...]) -> None:
    x = np.random.default_rng(7).standard_normal((2, 3, 8)).astype(np.float16)
    results = run_operator("LayerNormalization", {"x": x, "scale": np.ones(8, np.float16)}, outputs)
    wide = x.astype(np.float64)
    expected = {
        "y": _layer_norm(x),
        "m": wide.mean(-1, keepdims=True),
        "d": 1 / np.sqrt(wide.var(-1, keepdims=True) + 1e-5),
    }
    for name, result in zip(filter(None, outputs), results, strict=True):
        assert result.dtype == (np.float16 if name == "y" else np.float32)
        np.testing.assert_allclose(result, expected[name], atol=2e-3)


def test_scale_and_bias_broadcast_over_several_axes() -> None:
    rng = np.random.default_rng(8)
    x = rng.standard_normal((2, 3, 4)).astype(np.float32)
    scale = rng.standard_normal((3, 4)).astype(np.float32)
    bias = rng.standard_normal((1, 4)).astype(np.float32)
    (result,) = run_operator(
        "LayerNormalization", {"x": x, "scale": scale, "bias": bias}, axis=1, symbolic=True
    )
    flat = _layer_norm(x.reshape(2, 12)).reshape(x.shape)
    np.testing.assert_allclose(result, flat * scale + bias, atol=1e-5)


def test_batch_normalization_of_mixed_types() -> None:
    rng = np.random.default_rng(9)
    x = rng.standard_normal((2, 3, 4)).astype(np.float16)
    scale, bias, mean, variance = (rng.uniform(0.5, 2, 3).astype(np.float32) for _ in range(4))
    feeds = {"x": x, "s": scale, "b": bias, "m": mean, "v": variance}
    (result,) = run_operator("BatchNormalization", feeds)
    at = (slice(None), None)
    expected = (x.astype(np.float64) - mean[at]) / np.sqrt(variance[at] + 1e-5) * scale[at] + bias[
        at
    ]
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, expected, atol=1e-2)


def test_batch_normalization_in_training() -> None:
    rng = np.random.default_rng(10)
    x = (rng.standard_normal((5, 3, 4)) * 3 + 2).astype(np.float32)
    ones = np.ones(3, np.float32)
    feeds = {"x": x, "s": ones, "b": ones, "m": ones, "v": ones}
    y, mean, variance = run_operator(
        "BatchNormalization",
        feeds,
        ("y", "rm", "rv"),
        training_mode=1,
        momentum=0.75,
        symbolic=True,
    )
    wide = x.astype(np.float64)
    current, spread = wide.mean((0, 2)), wide.var((0, 2))
    np.testing.assert_allclose(mean, 0.75 + 0.25 * current, rtol=1e-5)
    np.testing.assert_allclose(variance, 0.75 + 0.25 * spread, rtol=1e-5)
    at = (slice(None), None)
    np.testing.assert_allclose(
        y, (wide - current[at]) / np.sqrt(spread[at] + 1e-5) + 1, rtol=1e-4, atol=1e-5
    )


def test_lp_normalization_of_zeros_is_zero() -> None:
    (result,) = run_operator("LpNormalization", {"x": np.zeros((2, 3), np.float32)})
    np.testing.assert_array_equal(result, np.zeros((2, 3)))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_local_response_at_the_border_channels(size: int) -> None:
    x = np.random.default_rng(11).standard_normal((1, 4, 2)).astype(np.float32)
    (result,) = run_operator("LRN", {"x": x}, size=size, alpha=0.5, beta=0.7, bias=2.0)
    expected = np.empty(x.shape)
    for c in range(4):
        low, high = max(0, c - (size - 1) // 2), min(4, c + size // 2 + 1)
        total = (x[:, low:high].astype(np.float64) ** 2).sum(1)
        expected[:, c] = x[:, c] / (2 + 0.5 / size * total) ** 0.7
    np.testing.assert_allclose(result, expected, rtol=1e-5)
