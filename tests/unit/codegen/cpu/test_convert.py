"""Every conversion between element types, bit for bit against the interpreter and ml_dtypes."""

from __future__ import annotations

import dataclasses
import math

import ml_dtypes
import numpy as np
import pytest

from tilewright.codegen.cpu.convert import emit_cast, emit_constant, register_type, storage_type
from tilewright.codegen.cpu.emit import Builder, Module, Value
from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.target import CpuTarget, host_target, named_target
from tilewright.core.dtypes import (
    ALL,
    BFLOAT16,
    BOOL,
    BY_NAME,
    FLOAT4_E2M1,
    FLOAT8_E4M3FN,
    FLOAT8_E4M3FNUZ,
    FLOAT8_E5M2,
    FLOAT8_E5M2FNUZ,
    FLOAT8_E8M0,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT4,
    INT8,
    INT32,
    INT64,
    STRING,
    UINT4,
    UINT8,
    UINT16,
    UINT32,
    DType,
    Kind,
)
from tilewright.core.errors import InternalError
from tilewright.kernel.interp_ops import convert, reinterpret
from unit.codegen.cpu.lanes import Array, Emit, add_function, apply, run_functions, runnable_targets

TYPES = [dtype for dtype in ALL if dtype.kind not in (Kind.STRING, Kind.COMPLEX)]
NARROW_FLOATS = [dtype for dtype in TYPES if dtype.is_float and dtype.bits <= 16]
_COUNT = 1 << 16

pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")


def _codes(dtype: DType) -> Array:
    """Every value of a type of at most 16 bits."""
    kind = dtype.numpy
    if dtype is BOOL:
        return np.array([False, True])
    if dtype.is_integer and dtype.bits < 8:
        low = -(1 << dtype.bits - 1) if dtype.is_signed else 0
        return np.arange(low, low + (1 << dtype.bits)).astype(np.int8).astype(kind)
    unsigned = np.uint16 if dtype.bits == 16 else np.uint8
    return np.arange(1 << dtype.bits, dtype=np.uint32).astype(unsigned).view(kind)


def _near_ties(kind: np.dtype[np.float32] | np.dtype[np.float64]) -> list[Array]:
    """Numbers of each narrow format, the middles between them, and the neighbours of both."""
    rng = np.random.default_rng(5)
    parts = []
    for dtype in NARROW_FLOATS:
        numbers = np.unique(_codes(dtype).astype(np.float64))
        numbers = numbers[np.isfinite(numbers)]
        if numbers.size > 1000:
            first = rng.integers(0, numbers.size - 1, 700)
            pairs = [numbers[first], (numbers[first] + numbers[first + 1]) / 2]
        else:
            pairs = [numbers, (numbers[1:] + numbers[:-1]) / 2]
        points = np.concatenate(pairs).astype(kind)
        up, down = np.nextafter(points, kind.type(math.inf)), np.nextafter(points, -kind.type(9e9))
        parts += [points, up, down]
    return parts


def _wide(dtype: DType) -> Array:
    """Numbers of all magnitudes of a 32 or 64-bit type."""
    rng = np.random.default_rng(3)
    kind = dtype.numpy
    words = rng.integers(0, 1 << 63, _COUNT // 4, dtype=np.uint64) * np.uint64(2)
    words += rng.integers(0, 2, words.size).astype(np.uint64)
    if dtype.is_integer:
        shifted = words >> rng.integers(0, 64, words.size).astype(np.uint64)
        return np.concatenate([shifted, ~shifted]).astype(f"u{kind.itemsize}").view(kind)
    patterns = (words >> np.uint64(64 - dtype.bits)).astype(f"u{kind.itemsize}").view(kind)
    edges = [2.0**bits + delta for bits in (7, 8, 15, 16, 31, 32) for delta in (-1, 0, 1)]
    edges += [2.0**63, 2.0**64, 448, 464, 480, 57344, 61440, 65504, 65520, 1e30, 0.0, 0.5, math.inf]
    special = np.array([*edges, *(-edge for edge in edges), math.nan], kind)
    return np.concatenate([patterns, *_near_ties(kind), special])


def _values(dtype: DType) -> Array:
    values = _codes(dtype) if dtype.bits <= 16 else _wide(dtype)
    return np.resize(values, _COUNT)


def _emit(source: DType, target: DType, saturate: bool = True, bits: bool = False) -> Emit:
    return lambda b, args: emit_cast(b, args[0], source, target, saturate, bits=bits)


def _bytes(array: Array, dtype: DType) -> Array:
    """Codes; every NaN of a type of more than 8 bits counts as the same."""
    plain = array.astype(dtype.numpy)
    if dtype.is_float and dtype.bits > 8:
        plain = np.where(np.isnan(plain.astype(np.float64)), dtype.numpy.type(math.nan), plain)
    return plain.view(np.uint8).reshape(array.size, -1)


def _targets() -> list[CpuTarget]:
    """Among them one that converts half precision by bit operations."""
    targets = runnable_targets()
    if all(target.has_f16c for target in targets):
        targets.append(dataclasses.replace(host_target(), has_f16c=False))
    return targets


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("target", _targets(), ids=lambda t: f"{t.name}-f16c{t.has_f16c:d}")
def test_all_pairs(target: CpuTarget, lanes: int) -> None:
    module = Module(target)
    cases, calls = [], []
    for source in TYPES:
        values = _values(source)
        for goal in TYPES:
            eight_bit = goal.is_float and goal.bits == 8
            for saturate in (True, False) if eight_bit else (True,):
                name = f"{source}.{goal}.{saturate}"
                add_function(module, name, _emit(source, goal, saturate), [source], goal, lanes)
                cases.append((source, goal, saturate, values))
                calls.append((name, [values], goal))
    wrong = []
    with np.errstate(all="ignore"):
        for case, result in zip(cases, run_functions(module, calls), strict=True):
            source, goal, saturate, values = case
            expected = values if source is goal else convert(values, source, goal, saturate, False)
            differs = (_bytes(result, goal) != _bytes(expected, goal)).any(axis=1)
            if differs.any():
                at = np.flatnonzero(differs)[0]
                wrong.append(f"{source} {values[at]} -> {goal}: {result[at]}, not {expected[at]}")
    assert not wrong


def test_all_pairs_compile_for_another_architecture() -> None:
    target = named_target("neoverse-v1")
    module = Module(target)
    for source in TYPES:
        for goal in TYPES:
            add_function(module, f"{source}.{goal}", _emit(source, goal), [source], goal, 4)
    assert compile_module(module.text(), target)


@pytest.mark.parametrize("dtype", NARROW_FLOATS, ids=str)
def test_narrow_floats_round_once_from_float64(dtype: DType) -> None:
    """A number just above a tie in float64 is the tie itself in float32."""
    codes = _codes(dtype).astype(np.float64)
    numbers = np.unique(codes[np.isfinite(codes) & (codes >= 0)])
    ties = (numbers[1:] + numbers[:-1]) / 2
    above = np.nextafter(ties, np.inf)
    if dtype is FLOAT8_E8M0:
        above, numbers = np.nextafter(numbers[1:] * 1.5, 0), numbers[:-1] * 2
        above, expected = above[:-1], numbers[:-1]
    else:
        expected = numbers[1:]
    size = -(-above.size // 16) * 16
    result = apply(_emit(FLOAT64, dtype), [np.resize(above, size)], [FLOAT64], dtype, 16)
    assert np.array_equal(result[: above.size].astype(np.float64), expected)


def test_float8_tables_of_the_cast_operator() -> None:
    """Inf and what exceeds the largest number: ONNX's two tables."""
    nan, inf = math.nan, math.inf
    x = np.array([inf, -inf, 1e9, -1e9, nan, -0.0, 0.0, 1.0], np.float32)
    largest = {
        FLOAT8_E4M3FN: 448.0,
        FLOAT8_E4M3FNUZ: 240.0,
        FLOAT8_E5M2: 57344.0,
        FLOAT8_E5M2FNUZ: 57344.0,
    }
    for dtype, top in largest.items():
        saturated = apply(_emit(FLOAT32, dtype, True), [x], [FLOAT32], dtype, 8)
        expected = [top, -top, top, -top, nan, 0.0, 0.0, 1.0]
        assert np.array_equal(saturated.astype(np.float64), expected, equal_nan=True)
        plain = apply(_emit(FLOAT32, dtype, False), [x], [FLOAT32], dtype, 8)
        over = inf if dtype is FLOAT8_E5M2 else nan
        expected = [over, -over, over, -over, nan, 0.0, 0.0, 1.0]
        assert np.array_equal(plain.astype(np.float64), expected, equal_nan=True)
        keeps_zero = dtype in (FLOAT8_E4M3FN, FLOAT8_E5M2)
        assert np.signbit(plain[5].astype(np.float32)) == keeps_zero


def test_floats_to_integers_saturate_and_nan_is_zero() -> None:
    x = np.array([math.nan, math.inf, -math.inf, 1e20, -1e20, -0.9, 2.9, -2.9], np.float32)
    for dtype in (INT8, UINT8, UINT16, INT32, UINT32, INT64, INT4, UINT4):
        signed = dtype.is_signed
        low = -(2 ** (dtype.bits - 1)) if signed else 0
        high = low + 2**dtype.bits - 1
        result = apply(_emit(FLOAT32, dtype), [x], [FLOAT32], dtype, 8)
        expected = [0, high, low, high, low, 0, 2, -2 if signed else 0]
        assert result.astype(object).tolist() == [dtype.numpy.type(value) for value in expected]


def test_integers_wrap() -> None:
    x = np.array([200, -56, 300, -129, 8, -9, 15, 16], np.int32)
    assert apply(_emit(INT32, INT8), [x], [INT32], INT8, 8).tolist() == x.astype(np.int8).tolist()
    small = apply(_emit(INT32, INT4), [x], [INT32], INT4, 8).astype(np.int8)
    assert small.tolist() == [-8, -8, -4, -1, -8, 7, -1, 0]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (FLOAT32, INT32),
        (INT32, FLOAT32),
        (FLOAT64, INT64),
        (FLOAT16, UINT16),
        (UINT16, BFLOAT16),
        (BFLOAT16, FLOAT16),
        (FLOAT8_E5M2, INT8),
        (UINT8, FLOAT8_E4M3FN),
        (INT4, UINT4),
        (UINT4, INT4),
        (FLOAT4_E2M1, UINT4),
    ],
    ids=str,
)
def test_bits_are_reinterpreted(source: DType, target: DType) -> None:
    values = _values(source)[:4096]
    result = apply(_emit(source, target, bits=True), [values], [source], target, 16)
    expected = reinterpret(values, source, target, False)
    assert np.array_equal(result.view(np.uint8), expected.view(np.uint8))


def test_reinterpreting_another_width_is_refused() -> None:
    b = Module(host_target()).function("f", [])
    with pytest.raises(InternalError, match="widths"):
        emit_cast(b, emit_constant(1.0, FLOAT32), FLOAT32, FLOAT64, bits=True)


def test_strings_are_not_compiled() -> None:
    with pytest.raises(InternalError, match="string"):
        storage_type(STRING)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_constants_are_what_numpy_says(dtype: DType) -> None:
    def emit(b: Builder, args: list[Value]) -> Value:
        del b, args
        return emit_constant(1, dtype, 4)

    result = apply(emit, [np.zeros(4, np.int8)], [INT8], dtype, 4)
    assert np.array_equal(result, np.ones(4, dtype.numpy))
    assert register_type(dtype, 4).lanes == 4


def test_bfloat16_keeps_nan() -> None:
    x = np.array([0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0xFF800001], np.uint32).view(np.float32)
    result = apply(_emit(FLOAT32, BFLOAT16), [x], [FLOAT32], BFLOAT16, 4)
    assert np.isnan(result.astype(np.float32)).all()
    assert result.tobytes() == x.astype(ml_dtypes.bfloat16).tobytes()


def test_all_types_are_covered() -> None:
    assert {dtype.name for dtype in TYPES} == BY_NAME.keys() - {"string", "complex64", "complex128"}
