"""The files beside a model that hold its weights.

Input -> Output: the path of an ONNX file -> paths of the files that it names.
Guarantees: nothing but the model itself is opened; what is no model names no files.
Not here: whether such a file may be read (tensors).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.message import Message  # type: ignore[import-untyped]
from onnx import TensorProto

from tilewright.core.errors import InvalidModel
from tilewright.graph.source import read_source


def external_files(model: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The files, which need not exist; none where there is no model to read."""
    try:
        source = read_source(Path(os.fsdecode(model)))
    except InvalidModel:  # whoever imports it says so
        return ()
    named = {
        entry.value
        for tensor in _tensors(source.proto)
        for entry in tensor.external_data
        if entry.key == "location" and "\0" not in entry.value
    }
    return tuple(Path(os.fsdecode(model)).parent / name for name in sorted(named) if name)


def _tensors(message: Message) -> Iterator[TensorProto]:
    """All tensors of a message: of graphs, of those inside of nodes, of functions."""
    if isinstance(message, TensorProto):
        yield message
        return
    for _, value in message.ListFields():
        parts = (value,) if isinstance(value, Message | str | bytes | int | float) else value
        for part in parts:
            if isinstance(part, Message):
                yield from _tensors(part)
