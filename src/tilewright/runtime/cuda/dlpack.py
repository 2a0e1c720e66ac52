"""DLPack's structures: arrays on GPUs between libraries of one process, without copies.

Input -> Output: a capsule of another library -> address, shape, type; an array of ours -> a
capsule.
Guarantees: a capsule of ours keeps its array until the taker has let go of it.
Not here: streams (arrays).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.core import dtypes
from tilewright.core.errors import ShapeMismatch

CUDA, CUDA_MANAGED = 2, 13
_NAME = b"dltensor"  # until somebody takes the array
_KINDS = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_BFLOAT = 4
_TYPES = {
    (code, bits): np.dtype(f"{letter}{bits // 8}")
    for letter, code, widths in (
        ("i", 0, (8, 16, 32, 64)),
        ("u", 1, (8, 16, 32, 64)),
        ("f", 2, (16, 32, 64)),
        ("c", 5, (64, 128)),
    )
    for bits in widths
}
_TYPES[6, 8] = np.dtype(np.bool_)
_TYPES[_BFLOAT, 16] = dtypes.BFLOAT16.numpy


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    _fields_ = (
        ("tensor", _Tensor),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
# Of a capsule that is being destroyed, which no Python object may stand for any more.
_dying_is = ctypes.PyDLL(None).PyCapsule_IsValid
_dying_is.restype, _dying_is.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)
_dying_pointer = ctypes.PyDLL(None).PyCapsule_GetPointer
_dying_pointer.restype, _dying_pointer.argtypes = (
    ctypes.c_void_p,
    (
        ctypes.c_void_p,
        ctypes.c_char_p,
    ),
)


@dataclass(frozen=True, slots=True)
class Given:
    """An array of another library; ``owner`` keeps it alive."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int
    is_row_major: bool
    owner: Any


def read(capsule: Any) -> Given:
    """What a capsule says.

    Raises:
        ShapeMismatch: its element type has no name here.
    """
    managed = _Managed.from_address(_pointer(capsule, _NAME))
    tensor = managed.tensor
    dtype = _TYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise ShapeMismatch(
            f"an array on a GPU of an unknown type (DLPack code {tensor.code}, {tensor.bits} bits)",
            remedy="convert it to a type of the engine's inputs",
        )
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    return Given(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        dtype,
        tensor.device_id,
        strides is None or is_row_major(shape, strides),
        capsule,
    )


def is_row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements lie as in C; strides of axes of one point say nothing."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return 0 in shape
        expected *= size
    return True


_shared: dict[int, tuple[_Managed, Any, Any]] = {}


def write(
    owner: Any, address: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: int
) -> Any:
    """A capsule of an array that ``owner`` keeps alive.

    Raises:
        BufferError: DLPack has no such type.
    """
    is_bfloat = dtype == dtypes.BFLOAT16.numpy
    code = _BFLOAT if is_bfloat else _KINDS.get(dtype.kind)
    if code is None:
        raise BufferError(f"DLPack has no type {dtype}")
    sizes = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    managed = _Managed()
    tensor = managed.tensor
    tensor.data, tensor.device_type, tensor.device_id = address, CUDA, device
    tensor.ndim, tensor.shape = len(shape), ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    tensor.code, tensor.bits, tensor.lanes = code, 8 * dtype.itemsize, 1
    managed.deleter = ctypes.cast(_deleter, ctypes.c_void_p)
    place = ctypes.addressof(managed)
    _shared[place] = (managed, sizes, owner)
    return _new(place, _NAME, ctypes.cast(_destructor, ctypes.c_void_p))


def _delete(place: int) -> None:
    _shared.pop(place, None)


def _destroy(capsule: int) -> None:
    if _dying_is(capsule, _NAME):  # nobody has taken it
        _shared.pop(_dying_pointer(capsule, _NAME), None)


_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy)
