"""Compiles one expression over arrays, for tests of single instructions.

Input -> Output: a function that emits values from loaded operands -> a callable on NumPy arrays.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.codegen.cpu.emit import I64, PTR, Builder, Module, Value, index
from tilewright.codegen.cpu.memory import load_element, store_element
from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.target import CpuTarget, host_target, named_target
from tilewright.core.dtypes import DType
from tilewright.runtime.cpu.loader import load_object

Array = npt.NDArray[Any]
Emit = Callable[[Builder, list[Value]], Value]


def add_function(
    module: Module, name: str, emit: Emit, sources: Sequence[DType], target: DType, lanes: int
) -> None:
    """A function ``name(out, in..., n)``: ``emit`` on n elements, a multiple of lanes."""
    operands = [f"x{number}" for number in range(len(sources))]
    params = [("out", PTR), *((operand, PTR) for operand in operands), ("n", I64)]
    b = module.function(name, params)
    with b.loop(index(0), b.params["n"], lanes) as i:
        loaded = [
            load_element(b, b.params[operand], i, dtype, lanes)
            for operand, dtype in zip(operands, sources, strict=True)
        ]
        store_element(b, b.params["out"], i, emit(b, loaded), target)


def run_functions(
    module: Module, calls: Sequence[tuple[str, Sequence[Array], DType]]
) -> list[Array]:
    """Compiles the module and calls each function on its arrays of equal size."""
    names = tuple(dict.fromkeys(name for name, _, _ in calls))
    loaded = load_object(compile_module(module.text(), module.target), names)
    results = []
    for name, arrays, dtype in calls:
        result = np.zeros(arrays[0].size, dtype.numpy)
        types = [ctypes.c_void_p] * (1 + len(arrays))
        call = loaded.function(name, None, *types, ctypes.c_int64)
        inputs = [np.ascontiguousarray(array) for array in arrays]
        call(result.ctypes.data, *(array.ctypes.data for array in inputs), result.size)
        results.append(result)
    return results


def apply(
    emit: Emit,
    arrays: Sequence[Array],
    sources: Sequence[DType],
    target: DType,
    lanes: int,
    processor: CpuTarget | None = None,
) -> Array:
    """``emit`` on every element; the number of elements is a multiple of lanes."""
    module = Module(processor or host_target())
    add_function(module, "f", emit, sources, target, lanes)
    return run_functions(module, [("f", arrays, target)])[0]


def runnable_targets() -> list[CpuTarget]:
    """This machine, and older ones whose code it can run too."""
    host = host_target()
    found = [host]
    if host.architecture == "x86_64":
        found += [named_target("x86-64-v2")]
        if host.vector_bytes >= 32:
            found += [named_target("haswell")]
    return found


def special_floats(dtype: DType) -> Array:
    """Zeros, infinities, NaN, halves, limits and denormals."""
    kind = dtype.numpy
    info = np.finfo(kind)
    limits = [info.max, info.tiny, info.smallest_subnormal]
    numbers = [0.0, 1.0, np.inf, 0.5, 1.5, 2.5, 88.0, 104.0, *limits]
    signed = [sign * float(number) for number in numbers for sign in (1, -1)]
    return np.array([*signed, np.nan], kind)


def sample(dtype: DType, count: int, seed: int = 0) -> Array:
    """Values of a computing type: random ones, small ones and all special ones, shuffled."""
    rng = np.random.default_rng(seed)
    kind = dtype.numpy
    if kind == np.bool_:
        return rng.random(count) < 0.5
    if dtype.is_float:
        special = special_floats(dtype)
        values = np.concatenate([special, rng.normal(0, 3, count - special.size).astype(kind)])
    else:
        info = np.iinfo(kind)
        low = -9 if dtype.is_signed else 0
        edges = [0, 1, 2, 3, info.min, info.min + 1, info.max]
        edges += [-1, -2] if dtype.is_signed else []
        special = np.repeat(np.array(edges, kind), 8)
        small = rng.integers(low, 9, count // 2).astype(kind)
        wide = rng.integers(info.min, info.max, count - small.size - special.size, dtype=kind)
        values = np.concatenate([special, small, wide])
    rng.shuffle(values)
    return values
