"""Products of the copy engine's kernels on the CPU: every thread, with barriers and boxes."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.codegen.cuda.generate import GeneratedKernel, generate, prelude
from tilewright.codegen.cuda.tma_tile import TmaTile
from tilewright.core.dtypes import FLOAT32, INT8, INT32, UINT8
from tilewright.core.shape import Dim
from tilewright.kernel.interp import interpret
from tilewright.kernel.ir import Axis, Expr, Kernel, constant, reduce_axes
from tilewright.lower.quantized import requantized
from tilewright.runtime.program import Matrix
from unit.codegen.cpu.kernels import buffer, pure
from unit.codegen.cuda import emulate
from unit.codegen.cuda.contractions import feeds_of, product
from unit.codegen.cuda.emulate import needs_compiler

INSTRUCTIONS = Path(__file__).with_name("emulate_tma.h")
TILES = (
    TmaTile(rows=128, columns=64, groups=2, stages=2, resident=2),
    TmaTile(rows=128, columns=64, groups=2, stages=2, gives=True),
    TmaTile(rows=64, columns=64, groups=2, stages=3, resident=2, turns=True),
    TmaTile(rows=64, columns=32, groups=1, stages=2, resident=2),
)


def residual(m: int, n: int, k: int) -> Kernel:
    """``requantised(a @ b' by columns) + d`` of bytes, requantised again."""
    a, b = buffer("a", m, k, dtype=UINT8), buffer("b", n, k, dtype=INT8)
    d, factor, r = buffer("d", m, n, dtype=UINT8), buffer("factor", n), Axis("r", Dim.of(k))

    def body(i: Expr, j: Expr) -> Expr:
        total = reduce_axes("sum", (r,), a[i, r.var].cast(INT32) * b[j, r.var].cast(INT32))
        first = requantized(total, factor[j], constant(3, UINT8), UINT8).cast(FLOAT32)
        both = first * 0.0303 + (d[i, j].cast(FLOAT32) - 7.0) * 0.0471
        return requantized(both / 0.0612, constant(1.0, FLOAT32), constant(5, UINT8), UINT8)

    return pure(buffer("out", m, n, dtype=UINT8), (a, b, d, factor), body)


KERNELS = {
    "bytes": residual(328, 72, 256),
    "bytes, whole tiles": residual(384, 64, 128),
    "halves": product(328, 64, 128, b_flip=True, added=True),
}


@needs_compiler
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: f"{tile.rows}x{tile.columns}")
@pytest.mark.parametrize("name", KERNELS)
def test_blocks_take_tile_after_tile(name: str, tile: TmaTile) -> None:
    kernel = KERNELS[name]
    feeds = feeds_of(kernel)
    expected = interpret(kernel, feeds, {})["out"]
    made = generate(kernel, clusters=True, constants=("b",), tile=tile)
    assert "copy engine" in made.stages[0].tactic
    found = _run(made, kernel, feeds, blocks=2)
    if kernel.outputs[0].dtype.is_integer:
        np.testing.assert_array_equal(found, expected)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


def _run(made: GeneratedKernel, kernel: Kernel, feeds: dict[str, Any], blocks: int) -> Any:
    arrays = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
    (own,) = kernel.outputs
    arrays[own.name] = np.full([d.const for d in own.shape], 0xA5, np.uint8).astype(own.dtype.numpy)
    status = np.zeros(1, np.int32)
    maps = []
    for matrix in made.stages[0].launch.matrices:
        assert isinstance(matrix, Matrix)
        address = arrays[made.buffers[matrix.buffer]].ctypes.data + 2 * matrix.offset.const
        sizes = (matrix.rows, matrix.stride, matrix.columns)
        maps.append(np.array([address, *(d.const for d in sizes), matrix.box, 0], np.int64))
    words = [arrays[name].ctypes.data for name in made.buffers]
    words += [0, status.ctypes.data, 0, *(each.ctypes.data for each in maps)]
    block = np.array(words, np.int64)
    grid = (ctypes.c_uint * 3)(blocks, 1, 1)
    emulate.build(replace(made, text=_text(made))).run_0(grid, ctypes.c_void_p(block.ctypes.data))
    return arrays[own.name]


def _text(made: GeneratedKernel) -> str:
    """The kernel with this machine's functions for instructions, and pointers to its maps."""
    engine = prelude("tma.cuh")
    begin, end = engine.index("struct alignas(64) TwMap"), engine.index("#if TW_WGMMA")
    text = made.text.replace(engine[begin:end], INSTRUCTIONS.read_text())
    text = re.sub(r'asm volatile\("fence.mbarrier_init[^;]*;" ::: "memory"\);', "", text)
    text = text.replace("const __grid_constant__ TwMap map", "const TwMap* map")
    return text.replace("&map", "map")
