"""What tensor cores multiply: the types of factors and sums that they have instructions for.

Input -> Output: how the two factors of a product are stored -> ``Elements``, or None.
Guarantees: products are exact; sums of bytes are exact too.
Not here: which sums are such products (operands), instructions (tensor_core.cuh, wgmma).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.core.dtypes import (
    BFLOAT16,
    FLOAT8_E4M3FN,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    UINT8,
    DType,
)

_COPIED = 16  # bytes that are copied at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """The types of a product.

    Attributes:
        left, right: of the factors.
        total: of the sums.
        name: what holds their instructions in C++.
        ptx: the types in the names of instructions.
        newer: instructions that GPUs before sm_89 lack.
    """

    left: DType
    right: DType
    total: DType
    name: str
    ptx: str
    newer: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of a factor's element."""
        return self.left.storage_bytes

    @property
    def chunk(self) -> int:
        """Neighbours that are copied at once."""
        return _COPIED // self.bytes

    def halves(self, depth: int) -> int:
        """Elements as pairs of bytes, the unit of depth in the code of blocks."""
        return -(-depth * self.bytes // 2)


HALF = Elements(left=FLOAT16, right=FLOAT16, total=FLOAT32, name="TwHalf", ptx="f32.f16.f16")
_ALL = (
    HALF,
    Elements(left=BFLOAT16, right=BFLOAT16, total=FLOAT32, name="TwBfloat", ptx="f32.bf16.bf16"),
    Elements(
        left=FLOAT8_E4M3FN,
        right=FLOAT8_E4M3FN,
        total=FLOAT32,
        name="TwFloat8",
        ptx="f32.e4m3.e4m3",
        newer=True,
    ),
    Elements(left=UINT8, right=INT8, total=INT32, name="TwU8S8", ptx="s32.u8.s8"),
    Elements(left=INT8, right=UINT8, total=INT32, name="TwS8U8", ptx="s32.s8.u8"),
    Elements(left=INT8, right=INT8, total=INT32, name="TwS8S8", ptx="s32.s8.s8"),
    Elements(left=UINT8, right=UINT8, total=INT32, name="TwU8U8", ptx="s32.u8.u8"),
)
_BY_TYPES = {(own.left, own.right, own.total): own for own in _ALL}
_NARROW = frozenset(own.left.numpy for own in _ALL)  # types that factors are stored in


def elements_of(left: DType, right: DType, total: DType) -> Elements | None:
    """The elements of these types, if there are instructions for them."""
    return _BY_TYPES.get((left, right, total))


def is_narrow(dtype: Any) -> bool:
    """Whether tensor cores multiply values of a NumPy type."""
    return np.dtype(dtype) in _NARROW
