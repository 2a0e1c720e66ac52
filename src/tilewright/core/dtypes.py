"""The closed set of element types, and how each is stored.

Input -> Output: a type's name -> its kind, width, storage and NumPy type.
Guarantees: sub-byte types are stored one element a byte (as ml_dtypes does); bool is one byte, 0
or 1.
Not here: conversions (kernel.ops states them, codegen and the reference execute them).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np


class Kind(Enum):
    """Families of element types."""

    FLOAT = "float"
    INT = "int"
    UINT = "uint"
    BOOL = "bool"
    STRING = "string"
    COMPLEX = "complex"


@dataclass(frozen=True, slots=True, kw_only=True)
class DType:
    """An element type.

    Attributes:
        name: ONNX's name in lower case (``float32``, ``float8_e4m3fn``, ``int4``, ``bool`` ...).
        kind: its family.
        bits: its width in the ONNX sense.
        storage_bytes: bytes of one element in memory.
        code: ``onnx.TensorProto.DataType`` value.
    """

    name: str
    kind: Kind
    bits: int
    storage_bytes: int
    code: int

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type that holds it (an ml_dtypes type where NumPy has none)."""
        return _numpy_type(self.name)

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @property
    def is_integer(self) -> bool:
        return self.kind in (Kind.INT, Kind.UINT)

    @property
    def is_signed(self) -> bool:
        return self.kind in (Kind.INT, Kind.FLOAT, Kind.COMPLEX)

    def __str__(self) -> str:
        return self.name


def _make(name: str, kind: Kind, bits: int, code: int) -> DType:
    return DType(name=name, kind=kind, bits=bits, storage_bytes=max(1, bits // 8), code=code)


FLOAT32 = _make("float32", Kind.FLOAT, 32, 1)
UINT8 = _make("uint8", Kind.UINT, 8, 2)
INT8 = _make("int8", Kind.INT, 8, 3)
UINT16 = _make("uint16", Kind.UINT, 16, 4)
INT16 = _make("int16", Kind.INT, 16, 5)
INT32 = _make("int32", Kind.INT, 32, 6)
INT64 = _make("int64", Kind.INT, 64, 7)
STRING = _make("string", Kind.STRING, 64, 8)
BOOL = _make("bool", Kind.BOOL, 8, 9)
FLOAT16 = _make("float16", Kind.FLOAT, 16, 10)
FLOAT64 = _make("float64", Kind.FLOAT, 64, 11)
UINT32 = _make("uint32", Kind.UINT, 32, 12)
UINT64 = _make("uint64", Kind.UINT, 64, 13)
COMPLEX64 = _make("complex64", Kind.COMPLEX, 64, 14)
COMPLEX128 = _make("complex128", Kind.COMPLEX, 128, 15)
BFLOAT16 = _make("bfloat16", Kind.FLOAT, 16, 16)
FLOAT8_E4M3FN = _make("float8_e4m3fn", Kind.FLOAT, 8, 17)
FLOAT8_E4M3FNUZ = _make("float8_e4m3fnuz", Kind.FLOAT, 8, 18)
FLOAT8_E5M2 = _make("float8_e5m2", Kind.FLOAT, 8, 19)
FLOAT8_E5M2FNUZ = _make("float8_e5m2fnuz", Kind.FLOAT, 8, 20)
UINT4 = _make("uint4", Kind.UINT, 4, 21)
INT4 = _make("int4", Kind.INT, 4, 22)
FLOAT4_E2M1 = _make("float4_e2m1", Kind.FLOAT, 4, 23)
FLOAT8_E8M0 = _make("float8_e8m0", Kind.FLOAT, 8, 24)
UINT2 = _make("uint2", Kind.UINT, 2, 25)
INT2 = _make("int2", Kind.INT, 2, 26)

ALL: tuple[DType, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, DType)
)
BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in ALL}
BY_CODE: dict[int, DType] = {dtype.code: dtype for dtype in ALL}

_ML_DTYPES = {
    "bfloat16": "bfloat16",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e4m3fnuz": "float8_e4m3fnuz",
    "float8_e5m2": "float8_e5m2",
    "float8_e5m2fnuz": "float8_e5m2fnuz",
    "float8_e8m0": "float8_e8m0fnu",
    "float4_e2m1": "float4_e2m1fn",
    "int4": "int4",
    "uint4": "uint4",
    "int2": "int2",
    "uint2": "uint2",
}


@cache
def _numpy_type(name: str) -> np.dtype[Any]:
    if name in _ML_DTYPES:
        scalar: type[Any] = getattr(ml_dtypes, _ML_DTYPES[name])
        return np.dtype(scalar)
    return np.dtype(object if name == "string" else name)


@cache
def _by_numpy() -> dict[np.dtype[Any], DType]:
    return {dtype.numpy: dtype for dtype in ALL if dtype is not STRING}


def from_numpy(dtype: np.dtype[Any]) -> DType:
    """Returns the element type of a NumPy type.

    Raises:
        KeyError: there is no such ONNX type.
    """
    if dtype.kind in "OUST":
        return STRING
    return _by_numpy()[dtype.newbyteorder("=") if dtype.kind != "V" else dtype]
