"""Constants are written in pieces; no header makes a reader go astray."""

from __future__ import annotations

import hashlib
import io
import json
import struct
from typing import Any

import numpy as np
import pytest

from tilewright.core.errors import CorruptEngine
from tilewright.runtime import weights_file
from tilewright.runtime.weights_file import read_weights, write_weights

ARRAYS: dict[str, Any] = {
    "a": np.arange(7, dtype=np.int8),
    "b": np.arange(6, dtype=np.float64).reshape(2, 3),
    "empty": np.empty((0, 3), np.float32),
    "scalar": np.float32(1.5).reshape(()),
    "turned": np.arange(12, dtype=np.float32).reshape(3, 4).T,
}
TABLE: dict[str, list[Any]] = {
    "a": ["int8", [7]],
    "b": ["float64", [2, 3]],
    "empty": ["float32", [0, 3]],
    "scalar": ["float32", []],
    "text": ["string", [2]],
    "turned": ["float32", [4, 3]],
}
STRINGS = {"text": ["x", "y"]}


def _written(start: int = 0) -> bytes:
    stream = io.BytesIO()
    digest = write_weights(stream, start, ARRAYS, TABLE)
    data = stream.getvalue()
    assert hashlib.sha256(data).hexdigest() == digest
    return data


@pytest.mark.parametrize("start", [0, 69, 123])
def test_every_array_comes_back_from_an_aligned_place(start: int) -> None:
    data = _written(start)
    found = read_weights(data, TABLE, STRINGS)
    assert found.keys() == TABLE.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    assert found["text"].tolist() == ["x", "y"]
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    first = start + 8 + int.from_bytes(data[:8], "little")
    for name in ("a", "b", "scalar", "turned"):
        assert (first + header[name]["data_offsets"][0]) % 64 == 0


def test_the_safetensors_library_reads_it() -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    found = safetensors.load(_written())
    np.testing.assert_array_equal(found["b"].view(np.float64), ARRAYS["b"].reshape(-1))


def test_the_same_arrays_give_the_same_bytes() -> None:
    assert _written() == _written()


def test_a_large_array_is_written_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_file, "_PIECE_BYTES", 5)
    pieces: list[int] = []

    class Stream(io.BytesIO):
        def write(self, data: Any) -> int:
            pieces.append(len(data))
            return super().write(data)

    write_weights(Stream(), 0, ARRAYS, TABLE)
    assert max(pieces[1:]) <= 64  # the header, pieces of five, paddings


def test_a_name_that_looks_like_padding_is_kept() -> None:
    arrays = {"a": np.arange(3, dtype=np.int8), "(padding 3)": np.arange(5, dtype=np.int8)}
    table: dict[str, list[Any]] = {"a": ["int8", [3]], "(padding 3)": ["int8", [5]]}
    stream = io.BytesIO()
    write_weights(stream, 0, arrays, table)
    found = read_weights(stream.getvalue(), table, {})
    np.testing.assert_array_equal(found["(padding 3)"], arrays["(padding 3)"])


def _with_header(header: Any, data: bytes = bytes(64)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _entry(*offsets: Any) -> dict[str, Any]:
    return {"x": {"dtype": "U8", "shape": [8], "data_offsets": list(offsets)}}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01",
        struct.pack("<Q", 1 << 60) + bytes(64),
        _with_header(b"no json"),
        _with_header([1]),
        _with_header({}),
        _with_header({"x": 3}),
        _with_header({"x": {}}),
        _with_header(_entry(0)),
        _with_header(_entry(0, 8.0)),
        _with_header(_entry(False, 8)),
        _with_header(_entry(-8, 0)),
        _with_header(_entry(8, 0)),
        _with_header(_entry(0, 9)),
        _with_header(_entry(64, 72)),
        _with_header(_entry(1 << 62, (1 << 62) + 8)),
    ],
)
def test_wrong_headers_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptEngine):
        read_weights(data, {"x": ["float32", [2]]}, {})
