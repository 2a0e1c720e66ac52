"""Maps by which the copy engine of Hopper and later GPUs finds boxes of a matrix or an image.

Input -> Output: what to map and where its buffer lies -> the driver's map, a kernel parameter.
Guarantees: what lies outside of it reads as zeros; boxes are laid out in rows of 128 bytes
whose 16-byte chunks are swizzled (deep.cuh).
"""

from __future__ import annotations

from typing import Any

from tilewright.runtime.cuda.driver import bindings, check
from tilewright.runtime.program import Image, Matrix

_COLUMNS, _BYTES = 64, 2


def tensor_map(mapped: Matrix | Image, address: int) -> Any:
    """The map of a matrix or an image in the buffer at an address.

    Raises:
        DeviceFault: the driver refuses it.
    """
    driver = bindings()
    layout = (
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    kind = driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16
    if isinstance(mapped, Image):
        found = driver.cuTensorMapEncodeIm2col(kind, *_image(driver, mapped, address), *layout)
    else:
        found = driver.cuTensorMapEncodeTiled(kind, *_matrix(driver, mapped, address), *layout)
    return check(found, f"mapping {mapped}")


def _matrix(driver: Any, matrix: Matrix, address: int) -> tuple[Any, ...]:
    # What an axis has: elements, elements from one to the next, those of a box.
    axes = [(matrix.columns.const, 1, _COLUMNS)]
    row = matrix.stride.const
    if matrix.mixed:
        axes += [(2, row, 2), (4, 8 * row, 4), (4, 2 * row, 4)]
        axes += [(matrix.rows.const // 32, 32 * row, matrix.box // 32)]
    else:
        axes += [(matrix.rows.const, row, matrix.box)]
    return (
        len(axes),
        address + matrix.offset.const * _BYTES,
        [driver.cuuint64_t(extent) for extent, _, _ in axes],
        [driver.cuuint64_t(step * _BYTES) for _, step, _ in axes[1:]],
        [driver.cuuint32_t(box) for _, _, box in axes],
        [driver.cuuint32_t(1)] * len(axes),
    )


def _image(driver: Any, image: Image, address: int) -> tuple[Any, ...]:
    images, high, wide, channels = image.shape
    down, across = range(2)
    last = [image.last[d] - (size - 1) for d, size in ((across, wide), (down, high))]
    steps = (1, image.step[across], image.step[down], 1)
    strides = (channels, wide * channels, high * wide * channels)
    return (
        len(image.shape),
        address,
        [driver.cuuint64_t(extent) for extent in (channels, wide, high, images)],
        [driver.cuuint64_t(stride * _BYTES) for stride in strides],
        [image.first[across], image.first[down]],
        last,
        _COLUMNS,
        image.box,
        [driver.cuuint32_t(step) for step in steps],
    )
