"""Maps by which the copy engine of Hopper and later GPUs finds boxes of a matrix.

Input -> Output: a ``Matrix`` and where its buffer lies -> the driver's map, a kernel parameter.
Guarantees: what lies outside of the matrix reads as zeros; boxes are laid out in rows of 128 bytes
whose 16-byte chunks are swizzled (deep.cuh).
"""

from __future__ import annotations

from typing import Any

from tilewright.runtime.cuda.driver import bindings, check
from tilewright.runtime.program import Matrix

_COLUMNS, _BYTES = 64, 2


def tensor_map(matrix: Matrix, address: int) -> Any:
    """The map of a matrix in the buffer at an address.

    Raises:
        DeviceFault: the driver refuses it.
    """
    driver = bindings()
    start = address + matrix.offset.const * _BYTES
    one, word = driver.cuuint32_t, driver.cuuint64_t
    return check(
        driver.cuTensorMapEncodeTiled(
            driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            2,
            start,
            [word(matrix.columns.const), word(matrix.rows.const)],
            [word(matrix.stride.const * _BYTES)],
            [one(_COLUMNS), one(matrix.box)],
            [one(1), one(1)],
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ),
        f"mapping a matrix of {matrix.rows.const} x {matrix.columns.const}",
    )
