"""The float32 functions over the whole range of floats, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tilewright.codegen.cpu.emit import Module
from tilewright.codegen.cpu.target import CpuTarget
from tilewright.codegen.cpu.vector_math import emit_math
from tilewright.core.dtypes import FLOAT32
from unit.codegen.cpu.lanes import Array, Emit, add_function, apply, run_functions, runnable_targets


def _sigmoid(x: Array) -> Array:
    decay = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + decay), decay / (1 + decay))


# name -> (float64 reference, units in the last place)
FUNCTIONS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "exp": (np.exp, 1.1),
    "expm1": (np.expm1, 1.5),
    "log": (np.log, 1.0),
    "log1p": (np.log1p, 1.5),
    "tanh": (np.tanh, 1.5),
    "sigmoid": (_sigmoid, 2.5),
    "erf": (np.vectorize(math.erf, otypes=[np.float64]), 1.2),
}


def _gelu(x: Array) -> Array:
    tail = np.vectorize(math.erfc, otypes=[np.float64])(-x * math.sqrt(0.5))
    return np.asarray(x * 0.5 * tail)


def _gelu_tanh(x: Array) -> Array:
    return np.asarray(x) * _sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


GELUS: dict[str, Callable[[Array], Array]] = {"gelu": _gelu, "gelu_tanh": _gelu_tanh}


def _grid(step: int) -> Array:
    """Every step-th float32 pattern (both signs, denormals, NaNs), a multiple of 16 of them."""
    patterns = np.arange(0, 1 << 32, step, dtype=np.uint64).astype(np.uint32)
    dense = np.linspace(-20, 20, 40_001, dtype=np.float32)
    values = np.concatenate([patterns.view(np.float32), dense])
    return np.resize(values, -(-values.size // 16) * 16)


def _emit(name: str) -> Emit:
    return lambda b, args: emit_math(b, name, args)


def _ulps(result: Array, exact: Array) -> Array:
    with np.errstate(all="ignore"):
        rounded = exact.astype(np.float32)
        unit = np.maximum(np.spacing(np.abs(rounded)).astype(np.float64), 2.0**-149)
        distance = np.abs(result.astype(np.float64) - exact) / unit
    same = (result == rounded) | (np.isnan(result) & np.isnan(rounded))
    return np.where(same, 0, np.where(np.isnan(distance), np.inf, distance))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_error_over_the_whole_range(name: str) -> None:
    reference, allowed = FUNCTIONS[name]
    x = _grid(20_011 if name == "erf" else 2_003)
    result = apply(_emit(name), [x], [FLOAT32], FLOAT32, 16)
    with np.errstate(all="ignore"):
        error = _ulps(result, reference(x.astype(np.float64)))
    worst = int(error.argmax())
    assert error[worst] <= allowed, (x[worst], result[worst])


@pytest.mark.parametrize("name", GELUS)
def test_gelu_over_the_whole_range(name: str) -> None:
    x = _grid(20_011)
    result = apply(_emit(name), [x], [FLOAT32], FLOAT32, 16)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        exact = GELUS[name](wide)
        outside = np.abs(result - exact) > 2.5e-7 * np.abs(wide) + 2.0**-149
    assert not outside[np.isfinite(x)].any()
    assert np.isnan(result[np.isnan(x)]).all()


@pytest.mark.parametrize("name", GELUS)
def test_gelu_is_exact_far_from_zero(name: str) -> None:
    x = np.array([6.0, 100.0, 3e38, math.inf, -10.5, -100.0, -3e38, -0.0], np.float32)
    result = apply(_emit(name), [x], [FLOAT32], FLOAT32, 8)
    assert result.tolist() == [*x[:4].tolist(), 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", [*FUNCTIONS, *GELUS])
def test_lanes_and_processors_agree_bit_for_bit(name: str) -> None:
    x = _grid(200_003)
    first = apply(_emit(name), [x], [FLOAT32], FLOAT32, 1)
    for target in runnable_targets():
        for lanes in (1, 4, 8, 16):
            other = apply(_emit(name), [x], [FLOAT32], FLOAT32, lanes, target)
            both_nan = np.isnan(first) & np.isnan(other)
            assert np.array_equal(
                first.view(np.uint32)[~both_nan], other.view(np.uint32)[~both_nan]
            ), (target.name, lanes)


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
def test_special_values(target: CpuTarget) -> None:
    inf, nan = math.inf, math.nan
    cases = {
        "exp": [(inf, inf), (-inf, 0.0), (0.0, 1.0), (89.0, inf), (-104.0, 0.0), (nan, nan)],
        "expm1": [(inf, inf), (-inf, -1.0), (-0.0, -0.0), (1e-40, 1e-40), (nan, nan)],
        "log": [(inf, inf), (0.0, -inf), (-0.0, -inf), (-1.0, nan), (1.0, 0.0), (nan, nan)],
        "log1p": [(inf, inf), (-1.0, -inf), (-2.0, nan), (-0.0, -0.0), (1e-40, 1e-40)],
        "tanh": [(inf, 1.0), (-inf, -1.0), (-0.0, -0.0), (1e-40, 1e-40), (nan, nan)],
        "sigmoid": [(inf, 1.0), (-inf, 0.0), (0.0, 0.5), (nan, nan)],
        "erf": [(inf, 1.0), (-inf, -1.0), (-0.0, -0.0), (4.0, 1.0), (nan, nan)],
    }
    module = Module(target)
    calls = []
    for name, pairs in cases.items():
        add_function(module, name, _emit(name), [FLOAT32], FLOAT32, 4)
        calls.append((name, [np.resize(np.array([x for x, _ in pairs], np.float32), 8)], FLOAT32))
    for (name, pairs), result in zip(cases.items(), run_functions(module, calls), strict=True):
        expected = np.resize(np.array([y for _, y in pairs], np.float32), 8)
        assert np.array_equal(result, expected, equal_nan=True), name
        signs = ~np.isnan(expected)
        assert np.array_equal(np.signbit(result[signs]), np.signbit(expected[signs])), name


def test_denormal_results_are_kept() -> None:
    x = np.array([-88.0, -95.0, -100.0, -103.0], np.float32)
    result = apply(_emit("exp"), [x], [FLOAT32], FLOAT32, 4)
    assert np.array_equal(result, np.exp(x.astype(np.float64)).astype(np.float32))
    assert (result[1:] < np.finfo(np.float32).tiny).all()
    assert (result > 0).all()
