"""An engine's constants in the form of a safetensors file, written in pieces.

Input -> Output: arrays by name <-> a stream of bytes: length of the header, header (JSON), data.
Guarantees: no copy of all weights is made on either side; each array begins at a multiple of 64
bytes of the engine file; every offset is checked against the data before it is used.
Not here: how the bytes are read (archive).
All arrays are bytes here (``U8``); their types and shapes are in the engine's table, since
safetensors knows fewer types.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from tilewright.core import dtypes
from tilewright.core.dtypes import STRING
from tilewright.core.errors import CorruptEngine
from tilewright.runtime.piece_hash import PieceHash

_ALIGNMENT = 64
_PIECE_BYTES = 16 << 20
_MAX_HEADER_BYTES = 1 << 28
_REMEDY = "build the engine again"

Array = npt.NDArray[Any]
Table = Mapping[str, list[Any]]


# --- write ----------------------------------------------------------------------------------------


def write_weights(file: IO[bytes], start: int, constants: Mapping[str, Array], table: Table) -> str:
    """Writes all constants that are no strings; returns the ``PieceHash`` of what was written.

    Args:
        file: takes the bytes.
        start: where in the engine file the first byte goes.
        constants: arrays by name.
        table: name -> (type, shape).
    """
    digest = PieceHash()
    for piece in _pieces(start, constants, table):
        file.write(piece)
        digest.update(piece)
    return digest.hexdigest()


def _pieces(start: int, constants: Mapping[str, Array], table: Table) -> Iterator[Any]:
    kept = [name for name, (kind, _) in table.items() if kind != "string" and constants[name].size]
    header: dict[str, Any] = {}
    position = 0
    for name in kept:
        position = _enter(header, name, position, constants[name].nbytes)
        if position % _ALIGNMENT:
            padding = _free(f"(padding {position})", table)
            position = _enter(header, padding, position, -position % _ALIGNMENT)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(start + 8 + len(text)) % _ALIGNMENT)
    yield struct.pack("<Q", len(text)) + text
    for name in kept:
        flat = np.ascontiguousarray(constants[name]).reshape(-1).view(np.uint8).data
        for first in range(0, len(flat), _PIECE_BYTES):
            yield flat[first : first + _PIECE_BYTES]
        yield bytes(-len(flat) % _ALIGNMENT)


def _enter(header: dict[str, Any], name: str, position: int, size: int) -> int:
    end = position + size
    header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [position, end]}
    return end


def _free(name: str, table: Table) -> str:
    while name in table:
        name += "_"
    return name


# --- read -----------------------------------------------------------------------------------------


def read_weights(
    data: bytes | memoryview, table: Table, strings: Mapping[str, list[str]]
) -> dict[str, Array]:
    """The constants of a table; they share the data's memory and are read-only.

    Raises:
        CorruptEngine: header, offsets or sizes are wrong.
    """
    header, first = _header(data)
    result: dict[str, Array] = {}
    for name, (type_name, shape) in table.items():
        dtype = dtypes.BY_NAME[type_name]
        if dtype is STRING:
            result[name] = np.array(strings[name], dtype=object).reshape(shape)
            continue
        wanted = math.prod(shape) * dtype.storage_bytes
        begin, end = _offsets(header.get(name), name) if wanted else (0, 0)
        if end - begin != wanted or min(shape, default=0) < 0 or first + end > len(data):
            raise CorruptEngine(f"constant {name} has the wrong size", remedy=_REMEDY)
        raw = np.frombuffer(data, np.uint8, wanted, first + begin if wanted else 0)
        array = raw.view(dtype.numpy).reshape(shape)
        result[name] = array if array.flags.aligned else array.copy()
    return result


def _header(data: bytes | memoryview) -> tuple[dict[str, Any], int]:
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(len(data) - 8, _MAX_HEADER_BYTES):
        raise CorruptEngine("weights cannot be read: no header", remedy=_REMEDY)
    try:
        header = json.loads(bytes(data[8 : 8 + size]))
    except (ValueError, RecursionError) as error:
        raise CorruptEngine(f"weights cannot be read: {error}", remedy=_REMEDY) from error
    if not isinstance(header, dict):
        raise CorruptEngine("weights cannot be read: the header is no object", remedy=_REMEDY)
    return header, 8 + size


def _offsets(entry: Any, name: str) -> tuple[int, int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or [type(part) for part in offsets] != [int, int]:
        raise CorruptEngine(f"constant {name} is missing", remedy=_REMEDY)
    if not 0 <= offsets[0] <= offsets[1]:
        raise CorruptEngine(f"constant {name} has the wrong size", remedy=_REMEDY)
    return offsets[0], offsets[1]
