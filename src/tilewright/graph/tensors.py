"""Turn stored weights into arrays, after checking that they are what they claim to be.

Input -> Output: ``TensorProto`` -> ``onnx_ir.Tensor`` over an array (external: memory-mapped).
Guarantees: type, dims and byte counts are checked before anything is allocated; external files lie
in the model's folder, reached without ``..``, absolute paths or links.
Not here: graph structure (check_proto).
"""

from __future__ import annotations

import math
import mmap
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from tilewright.core import dtypes
from tilewright.core.dtypes import DType
from tilewright.core.errors import InvalidModel

Array = npt.NDArray[Any]

MAX_ELEMENTS = 2**48
_MAX_SPARSE_BYTES = 2**30
_DAMAGED = "the file is damaged or was edited by hand; export the model again"
_FOLDER = "keep weights in the model's folder, as regular files, and name them relative to it"
LARGE_FILE_POINTER = b"version https://git-lfs"
_FIELDS: Mapping[str, tuple[str, int]] = {
    "float32": ("float_data", 1),
    "complex64": ("float_data", 2),
    "float64": ("double_data", 1),
    "complex128": ("double_data", 2),
    "int64": ("int64_data", 1),
    "uint64": ("uint64_data", 1),
    "uint32": ("uint64_data", 1),
}


def element_type(code: int, *, file: str, what: str) -> DType:
    """Returns the element type of an ONNX code.

    Raises:
        InvalidModel: there is no such type, or Tilewright has no such type.
    """
    dtype = dtypes.BY_CODE.get(code)
    if dtype is None:
        known = code in onnx.TensorProto.DataType.values() and code != 0
        text = onnx.TensorProto.DataType.Name(code) if known else f"code {code}"
        raise InvalidModel(
            f"{what} has an element type that is not supported: {text}",
            file=file,
            remedy="use " + ", ".join(sorted(dtypes.BY_NAME)),
        )
    return dtype


def num_elements(dims: list[int], *, file: str, what: str) -> int:
    """The number of elements of a stored shape.

    Raises:
        InvalidModel: a dim is negative or the shape is beyond any memory.
    """
    if any(dim < 0 for dim in dims):
        raise InvalidModel(f"{what} has a negative dimension: {dims}", file=file, remedy=_DAMAGED)
    if math.prod(dim for dim in dims if dim) > MAX_ELEMENTS or len(dims) > 64:
        raise InvalidModel(f"{what} has an impossible shape: {dims}", file=file, remedy=_DAMAGED)
    return math.prod(dims)


def stored_bytes(dtype: DType, count: int) -> int:
    """Bytes of ``count`` elements as ONNX packs them (sub-byte types share bytes)."""
    return (count * dtype.bits + 7) // 8


@dataclass(slots=True)
class TensorReader:
    """Reads the tensors of one model.

    Attributes:
        file: the model's name in messages.
        folder: where external data may lie; None refuses external data.
    """

    file: str
    folder: Path | None
    _maps: dict[str, mmap.mmap | bytes] = field(default_factory=dict)

    def read(self, proto: onnx.TensorProto, what: str) -> ir.TensorProtocol:
        """Returns a checked tensor.

        Raises:
            InvalidModel: type, dims and data contradict each other, or the data cannot be had.
        """
        dtype = element_type(proto.data_type, file=self.file, what=what)
        count = num_elements(list(proto.dims), file=self.file, what=what)
        if proto.HasField("segment"):
            raise InvalidModel(f"{what} is stored in segments", file=self.file, remedy=_DAMAGED)
        given: object = proto.name  # bytes where it is not UTF-8
        name = given if isinstance(given, str) and given else None
        if dtype is dtypes.STRING:
            return self._strings(proto, count, name, what)
        shape = ir.Shape(proto.dims)
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            data = self._external(proto, stored_bytes(dtype, count), what)
            return ir.Tensor(_decode(data, dtype, list(proto.dims)), shape=shape, name=name)
        if proto.HasField("raw_data"):
            raw = proto.raw_data
            self._expect(len(raw), stored_bytes(dtype, count), "bytes", what)
            return ir.Tensor(_decode(raw, dtype, list(proto.dims)), shape=shape, name=name)
        return ir.Tensor(self._typed(proto, dtype, count, what), shape=shape, name=name)

    def _expect(self, given: int, expected: int, unit: str, what: str) -> None:
        if given != expected:
            raise InvalidModel(
                f"{what} should hold {expected} {unit} for its shape and type, it holds {given}",
                file=self.file,
                remedy=_DAMAGED,
            )

    def _typed(self, proto: onnx.TensorProto, dtype: DType, count: int, what: str) -> Array:
        name, scale = _FIELDS.get(dtype.name, ("int32_data", 1))
        packed = name == "int32_data" and dtype.bits < 8
        expected = stored_bytes(dtype, count) if packed else count * scale
        self._expect(len(getattr(proto, name)), expected, f"elements of {name}", what)
        if not count:
            return np.zeros(list(proto.dims), dtype=dtype.numpy)
        array: Array = ir.serde.TensorProtoTensor(proto).numpy()
        return array

    def _strings(
        self, proto: onnx.TensorProto, count: int, name: str | None, what: str
    ) -> ir.TensorProtocol:
        self._expect(len(proto.string_data), count, "strings", what)
        try:
            for text in proto.string_data:
                text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidModel(
                f"{what} holds a string that is not UTF-8", file=self.file, remedy=_DAMAGED
            ) from error
        return ir.StringTensor(list(proto.string_data), shape=ir.Shape(proto.dims), name=name)

    # --- external data ----------------------------------------------------------------------------

    def _external(self, proto: onnx.TensorProto, size: int, what: str) -> memoryview:
        entries = {entry.key: entry.value for entry in proto.external_data}
        if not all(isinstance(text, str) for pair in entries.items() for text in pair):
            raise InvalidModel(f"{what} names a file in bytes", file=self.file, remedy=_DAMAGED)
        return self.external(
            entries.get("location", ""),
            self._number(entries.get("offset"), "offset", what),
            self._number(entries.get("length"), "length", what),
            size,
            what,
        )

    def external(
        self, location: str, offset: int | None, length: int | None, size: int, what: str
    ) -> memoryview:
        """Returns ``size`` bytes of a file in the model's folder, memory-mapped.

        Raises:
            InvalidModel: the path leaves the folder or is a link, or the file is too short.
        """
        if length is not None:
            self._expect(length, size, "bytes", what)
        data = self._mapped(location, what)
        start = offset or 0
        if start + size > len(data):
            raise InvalidModel(
                f"{what} needs bytes {start} to {start + size} of {location!r}, "
                f"which has {len(data)}",
                file=self.file,
                remedy="the weights file is truncated or belongs to another model; copy it again",
            )
        return memoryview(data)[start : start + size]

    def _number(self, text: str | None, key: str, what: str) -> int | None:
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise InvalidModel(
                f"{what} has an external {key} that is not a size: {text[:40]!r}",
                file=self.file,
                remedy=_DAMAGED,
            )
        return int(text)

    def _mapped(self, location: str, what: str) -> mmap.mmap | bytes:
        if location not in self._maps:
            self._maps[location] = self._map(location, what)
        return self._maps[location]

    def _map(self, location: str, what: str) -> mmap.mmap | bytes:
        if self.folder is None:
            raise InvalidModel(
                f"{what} lies in the external file {location!r}, but this model has no folder",
                file=self.file,
                remedy="pass the model's path, or load the weights: onnx.load(path)",
            )
        parts = PurePosixPath(location).parts
        if not parts or location.startswith("/") or ".." in parts or "\0" in location:
            raise InvalidModel(
                f"{what} names a file outside of the model's folder: {location!r}",
                file=self.file,
                remedy=_FOLDER,
            )
        try:
            descriptor = _open_below(self.folder, parts)
        except OSError as error:
            raise InvalidModel(
                f"{what} needs the file {location!r}: {_open_reason(error)}",
                file=self.file,
                remedy=_FOLDER,
            ) from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InvalidModel(
                    f"{what} names {location!r}, which is not a regular file",
                    file=self.file,
                    remedy=_FOLDER,
                )
            self._refuse_stand_in(os.pread(descriptor, 1024, 0), parts, what)
            if not status.st_size:
                return b""
            return mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)

    def _refuse_stand_in(self, start: bytes, parts: tuple[str, ...], what: str) -> None:
        """Refuses the small texts that version control leaves where a link or a large file was."""
        if start.startswith(LARGE_FILE_POINTER):
            raise InvalidModel(
                f"{what} names a Git LFS pointer, not the weights",
                file=self.file,
                remedy="fetch the file itself: git lfs pull",
            )
        if len(start) < 1024 and start.isascii() and start.decode("ascii").isprintable():
            target = start.decode("ascii")
            home = Path(self.folder or ".", *parts[:-1])
            if "/" in target and (home / target).is_file():
                raise InvalidModel(
                    f"{what} names {'/'.join(parts)!r}, which is only the text of a link: {target}",
                    file=self.file,
                    remedy=_FOLDER,
                )


def _open_below(folder: Path, parts: tuple[str, ...]) -> int:
    """Opens a file below a folder, refusing a link at every step (no race with a swapped link)."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for part in parts[:-1]:
        try:
            child = os.open(part, flags | os.O_DIRECTORY, dir_fd=parent)
        finally:
            os.close(parent)
        parent = child
    try:
        return os.open(parts[-1], flags, dir_fd=parent)
    finally:
        os.close(parent)


def _open_reason(error: OSError) -> str:
    text = error.strerror or "cannot be opened"
    if "symbolic" in text or "Not a directory" in text:
        return "it is, or lies behind, a link"
    return text


def _decode(data: bytes | memoryview, dtype: DType, dims: list[int]) -> Array:
    raw = np.frombuffer(data, dtype=np.uint8)
    if dtype is dtypes.BOOL:
        boolean: Array = raw != 0  # any other bit pattern is undefined in compiled code
        return boolean.reshape(dims)
    if dtype.bits >= 8:
        return raw.view(dtype.numpy).reshape(dims)
    per_byte = 8 // dtype.bits
    shifts = np.arange(per_byte, dtype=np.uint8) * dtype.bits
    fields = (raw[:, None] >> shifts) & ((1 << dtype.bits) - 1)
    values = fields.reshape(-1)[: math.prod(dims)].astype(np.uint8)
    if dtype.kind is dtypes.Kind.INT:
        sign = 1 << (dtype.bits - 1)
        signed = (values ^ sign).astype(np.int8) - sign
        return signed.astype(dtype.numpy).reshape(dims)
    return values.view(dtype.numpy).reshape(dims)


# --- sparse tensors -------------------------------------------------------------------------------


def dense(proto: onnx.SparseTensorProto, reader: TensorReader, what: str) -> onnx.TensorProto:
    """Returns a sparse tensor as an ordinary one.

    Raises:
        InvalidModel: indices beyond the shape, or more than 1 GiB when made dense.
    """
    values = reader.read(proto.values, what).numpy()
    indices = reader.read(proto.indices, what).numpy()
    dims = list(proto.dims)
    count = num_elements(dims, file=reader.file, what=what)
    if count * values.dtype.itemsize > _MAX_SPARSE_BYTES:
        raise InvalidModel(
            f"{what} is sparse with shape {dims}; dense it would exceed 1 GiB",
            file=reader.file,
            remedy="store it as a dense weight",
        )
    flat = _flat_indices(indices, dims, values.size)
    if flat is None:
        raise InvalidModel(
            f"{what} is sparse and its indices do not fit shape {dims}",
            file=reader.file,
            remedy=_DAMAGED,
        )
    result = np.zeros(count, dtype=values.dtype)
    result[flat] = values.reshape(-1)
    return ir.serde.serialize_tensor(ir.Tensor(result.reshape(dims), name=proto.values.name))


def _flat_indices(indices: Array, dims: list[int], count: int) -> Array | None:
    if indices.dtype != np.int64:
        return None
    if indices.ndim == 1 and indices.shape[0] == count:
        limit = math.prod(dims)
        return indices if bool(((indices >= 0) & (indices < limit)).all()) else None
    if indices.ndim != 2 or indices.shape != (count, len(dims)):
        return None
    if not bool(((indices >= 0) & (indices < np.asarray(dims, dtype=np.int64))).all()):
        return None
    strides = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
    flat: Array = indices @ np.asarray(strides, dtype=np.int64)
    return flat
