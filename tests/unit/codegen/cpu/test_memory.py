"""Loads and stores: strides, masks, and that nothing outside is touched."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable

import numpy as np
import pytest

from tilewright.codegen.cpu.convert import register_type
from tilewright.codegen.cpu.emit import I64, PTR, Builder, Module, Value, constant, index
from tilewright.codegen.cpu.memory import load_element, store_element
from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.target import CpuTarget, host_target, named_target
from tilewright.core.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT4,
    INT8,
    INT64,
    UINT16,
    DType,
)
from tilewright.core.errors import InternalError
from tilewright.runtime.cpu.loader import load_object
from unit.codegen.cpu.lanes import Array, runnable_targets

DTYPES = [FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT8, INT64, UINT16, INT4, BOOL]
_LANES = 8
_PARAMS = [("out", PTR), ("x", PTR), ("at", I64), ("stride", I64), ("count", I64)]


def _call(
    emit: Callable[[Builder, dict[str, Value]], None],
    out: int,
    x: int,
    numbers: tuple[int, int, int],
    target: CpuTarget | None = None,
) -> None:
    module = Module(target or host_target())
    b = module.function("f", _PARAMS)
    emit(b, b.params)
    loaded = load_object(compile_module(module.text(), module.target), ("f",))
    types = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3
    loaded.function("f", None, *types)(out, x, *numbers)


def _numbers(dtype: DType, count: int) -> Array:
    return (np.arange(count) % 7).astype(np.int8).astype(dtype.numpy)


def _mask(b: Builder, count: Value) -> Value:
    """The first ``count`` lanes."""
    lanes = I64.with_lanes(_LANES)
    return b.icmp("slt", b.iota(lanes), b.splat(count, _LANES))


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("known", [True, False], ids=["constant", "variable"])
def test_strided_load(dtype: DType, known: bool, target: CpuTarget) -> None:
    x = _numbers(dtype, 200)
    strides = [-2, -1, 0, 1, 2, 3, 4, 5, 9]
    out = np.zeros((len(strides), _LANES), dtype.numpy)

    def emit(b: Builder, p: dict[str, Value]) -> None:
        for row, stride in enumerate(strides):
            step: int | Value = stride if known else b.mul(p["stride"], index(stride))
            value = load_element(b, p["x"], p["at"], dtype, _LANES, stride=step)
            store_element(b, p["out"], index(row * _LANES), value, dtype)

    _call(emit, out.ctypes.data, x.ctypes.data, (100, 1, 0), target)
    picked = x[100 + np.array(strides)[:, None] * np.arange(_LANES)]
    assert np.array_equal(out.view(np.uint8), picked.view(np.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stride", [0, 1, 3, -1])
@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_masked_load_gives_zero_elsewhere(dtype: DType, stride: int, count: int) -> None:
    x = _numbers(dtype, 64)
    x[x.astype(np.float32) == 0] = dtype.numpy.type(1)
    out = np.ones(_LANES, dtype.numpy)

    def emit(b: Builder, p: dict[str, Value]) -> None:
        mask = _mask(b, p["count"])
        value = load_element(b, p["x"], p["at"], dtype, _LANES, stride=stride, mask=mask)
        store_element(b, p["out"], index(0), value, dtype)

    _call(emit, out.ctypes.data, x.ctypes.data, (20, stride, count))
    lanes = np.arange(_LANES)
    expected = np.where(lanes < count, x[20 + stride * lanes], np.zeros(1, dtype.numpy))
    assert np.array_equal(out, expected.astype(dtype.numpy))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stride", [1, 2, -3])
@pytest.mark.parametrize("count", [0, 3, 8])
@pytest.mark.parametrize("often_whole", [False, True])
def test_masked_store_leaves_the_rest(
    dtype: DType, stride: int, count: int, often_whole: bool
) -> None:
    x = np.ones(_LANES, dtype.numpy)
    out = np.zeros(64, dtype.numpy)

    def emit(b: Builder, p: dict[str, Value]) -> None:
        value = load_element(b, p["x"], index(0), dtype, _LANES)
        mask = _mask(b, p["count"])
        store_element(
            b,
            p["out"],
            p["at"],
            value,
            dtype,
            stride=stride,
            mask=mask,
            often_whole=often_whole,
        )

    expected = np.zeros(64, dtype.numpy)
    expected[30 + stride * np.arange(count)] = dtype.numpy.type(1)
    for target in runnable_targets():
        out[:] = 0
        _call(emit, out.ctypes.data, x.ctypes.data, (30, stride, count), target)
        assert np.array_equal(out, expected)


@pytest.mark.parametrize(
    ("name", "often_whole", "plain"),
    [("haswell", True, 1), ("haswell", False, 0), ("znver4", True, 0)],
)
def test_without_masks_in_hardware_whole_vectors_are_stored_plainly(
    name: str, often_whole: bool, plain: int
) -> None:
    module = Module(named_target(name))
    b = module.function("f", _PARAMS)
    value, mask = constant(register_type(FLOAT32, _LANES), 1), _mask(b, b.params["count"])
    store_element(b, b.params["out"], index(0), value, FLOAT32, mask=mask, often_whole=often_whole)
    assert module.text().count("store <8 x float>") == plain


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_known_lanes_are_loaded_and_stored_as_a_vector(dtype: DType, count: int) -> None:
    x = np.ones(_LANES, dtype.numpy)
    out = np.full(64, 3, dtype.numpy)

    def emit(b: Builder, p: dict[str, Value]) -> None:
        mask = _mask(b, p["count"])
        value = load_element(b, p["x"], index(0), dtype, _LANES, mask=mask, active=count)
        store_element(b, p["out"], p["at"], value, dtype, mask=mask, active=count)
        store_element(b, p["out"], index(40), value, dtype)

    expected = np.full(64, 3, dtype.numpy)
    expected[30 : 30 + count] = 1
    expected[40 : 40 + _LANES] = [1] * count + [0] * (_LANES - count)
    for target in runnable_targets():
        out[:] = 3
        _call(emit, out.ctypes.data, x.ctypes.data, (30, 1, count), target)
        assert np.array_equal(out, expected.astype(dtype.numpy))


def test_index_lanes_gather_and_scatter() -> None:
    x = np.arange(50, dtype=np.float32)
    out = np.zeros(50, np.float32)

    def emit(b: Builder, p: dict[str, Value]) -> None:
        steps = b.iota(I64.with_lanes(_LANES), 3)
        indices = b.add(steps, b.splat(p["at"], _LANES))
        value = load_element(b, p["x"], indices, FLOAT32, _LANES, stride=None)
        store_element(b, p["out"], indices, value, FLOAT32, stride=None)

    _call(emit, out.ctypes.data, x.ctypes.data, (2, 0, 0))
    expected = np.zeros(50, np.float32)
    expected[2:26:3] = x[2:26:3]
    assert np.array_equal(out, expected)


def test_last_lane_stays_where_lanes_share_an_element() -> None:
    x = np.arange(_LANES, dtype=np.float32)
    out = np.zeros(2, np.float32)

    def emit(b: Builder, p: dict[str, Value]) -> None:
        value = load_element(b, p["x"], index(0), FLOAT32, _LANES)
        store_element(b, p["out"], p["at"], value, FLOAT32, stride=0)

    _call(emit, out.ctypes.data, x.ctypes.data, (1, 0, 0))
    assert out.tolist() == [0, _LANES - 1]


@pytest.mark.parametrize("count", [0, 1])
def test_one_lane_with_a_mask(count: int) -> None:
    x = np.array([5.0, 6.0], np.float32)
    out = np.array([1.0, 2.0], np.float32)

    def emit(b: Builder, p: dict[str, Value]) -> None:
        wanted = b.icmp("ne", p["count"], index(0))
        value = load_element(b, p["x"], index(1), FLOAT32, mask=wanted)
        store_element(b, p["out"], index(0), value, FLOAT32)
        store_element(b, p["out"], index(1), constant(value.type, 9.0), FLOAT32, mask=wanted)

    _call(emit, out.ctypes.data, x.ctypes.data, (0, 0, count))
    assert out.tolist() == ([6.0, 9.0] if count else [0.0, 2.0])


@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
@pytest.mark.parametrize("dtype", [FLOAT32, INT8, FLOAT64, UINT16], ids=str)
def test_accesses_end_with_the_page(target: CpuTarget, dtype: DType) -> None:
    """The last element lies at the end of a page; behind it nothing is mapped."""
    pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    whole = np.frombuffer(pages, np.uint8)
    start = whole.ctypes.data
    del whole
    end = start + 2 * mmap.PAGESIZE
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(end), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    size = dtype.storage_bytes
    out = np.zeros(_LANES, dtype.numpy)

    def emit(b: Builder, p: dict[str, Value]) -> None:
        mask = _mask(b, p["count"])
        store_element(
            b, p["x"], index(0), constant(register_type(dtype, _LANES), 1), dtype, mask=mask
        )
        value = load_element(b, p["x"], index(0), dtype, _LANES, mask=mask)
        store_element(b, p["out"], index(0), value, dtype)

    for count in range(_LANES + 1):
        _call(emit, out.ctypes.data, end - count * size, (0, 0, count), target)
        assert out.tolist() == [1] * count + [0] * (_LANES - count)

    for stride in (2, 3, 4, -1):

        def strided(b: Builder, p: dict[str, Value], stride: int = stride) -> None:
            value = load_element(b, p["x"], p["at"], dtype, _LANES, stride=stride)
            store_element(b, p["out"], index(0), value, dtype)

        first = end - size if stride < 0 else end - (stride * (_LANES - 1) + 1) * size
        _call(strided, out.ctypes.data, first, (0, stride, 0), target)


def test_lanes_need_a_stride() -> None:
    b = Module(host_target()).function("f", [("p", PTR)])
    with pytest.raises(InternalError, match="stride"):
        load_element(b, b.params["p"], index(0), FLOAT32, 4, stride=None)
