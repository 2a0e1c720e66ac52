"""Read a model's protobuf from a path, bytes or an object.

Input -> Output: whatever a caller calls a model -> ``Source``: the parsed proto, folder and name.
Guarantees: only regular files are read; what cannot be parsed, is empty or too large for protobuf
is refused with a remedy; a caller's ``ModelProto`` is never written to.
Not here: whether the parsed content makes sense (check_proto), weights (tensors).
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from tilewright.core.errors import InvalidModel

_PROTOBUF_LIMIT_BYTES = 2**31 - 1
_EXTERNAL_REMEDY = (
    "save the weights beside the model: onnx.save_model(model, path, save_as_external_data=True)"
)
_EXPORT_REMEDY = "export the model to ONNX again; `onnx.checker.check_model(path)` tells more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A parsed model.

    Attributes:
        proto: the model as it was stored.
        folder: where external weights may lie; None for a model in memory.
        name: the file, or a stand-in such as ``<bytes>``, for messages.
        owned: whether nobody else holds the proto.
    """

    proto: onnx.ModelProto
    folder: Path | None
    name: str
    owned: bool


def source_name(source: object) -> str:
    """What errors call a source: its path, or ``<bytes>``, ``<ModelProto>`` and the like."""
    if isinstance(source, str | os.PathLike):
        return os.fsdecode(source)
    return f"<{type(source).__name__}>"


def read_source(source: str | Path | bytes | onnx.ModelProto) -> Source:
    """Parses a model.

    Raises:
        InvalidModel: there is no such file, or it is not an ONNX model.
    """
    name = source_name(source)
    if isinstance(source, onnx.ModelProto):
        return Source(proto=source, folder=None, name=name, owned=False)
    if isinstance(source, bytes | bytearray | memoryview):
        return Source(proto=_parse(bytes(source), name), folder=None, name=name, owned=True)
    if not isinstance(source, str | os.PathLike):
        raise InvalidModel(
            f"an object of type {type(source).__name__} is no model",
            remedy="give a path, bytes, onnx.ModelProto, onnx_ir.Model, or a torch.nn.Module with "
            "example inputs",
        )
    path = Path(os.fsdecode(source))
    return Source(proto=_parse(_read(path), name), folder=path.parent, name=name, owned=True)


def _read(path: Path) -> bytes:
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise InvalidModel("not a regular file", file=str(path), remedy=_EXPORT_REMEDY)
            if status.st_size > _PROTOBUF_LIMIT_BYTES:
                raise InvalidModel(
                    f"the file has {status.st_size} bytes, protobuf holds at most 2 GiB",
                    file=str(path),
                    remedy=_EXTERNAL_REMEDY,
                )
            return file.read(status.st_size)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidModel(
            f"cannot be read: {reason}", file=str(path), remedy="check the path and its permissions"
        ) from error


def _open_without_waiting(path: str, flags: int) -> int:
    """Opens without blocking on a named pipe that nobody writes to."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _parse(data: bytes, name: str) -> onnx.ModelProto:
    if not data:
        raise InvalidModel("the model is empty (0 bytes)", file=name, remedy=_EXPORT_REMEDY)
    if len(data) > _PROTOBUF_LIMIT_BYTES:
        raise InvalidModel(
            f"{len(data)} bytes given, protobuf holds at most 2 GiB",
            file=name,
            remedy=_EXTERNAL_REMEDY,
        )
    if data[:4] == b"PK\x03\x04":
        raise InvalidModel(
            "this is a zip archive, not an ONNX file",
            file=name,
            remedy="an engine is loaded, not compiled (tilewright.load, `tilewright run`); "
            "export a torch file to ONNX first",
        )
    if data.startswith(b"version https://git-lfs"):
        raise InvalidModel(
            "this is a Git LFS pointer, not the model",
            file=name,
            remedy="fetch the file itself: git lfs pull",
        )
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError as error:
        raise InvalidModel(
            "not an ONNX model: truncated, damaged or another format",
            file=name,
            remedy=_EXPORT_REMEDY,
        ) from error
    return proto
