"""Programs and decisions as JSON values, and back.

Input -> Output: a record of a closed set of classes <-> a JSON value; its dims stand in a table of
their own (core.dim_table).
Guarantees: exact (floats, NaN, bytes, arrays, dims); reading executes nothing and makes only
known classes, with fields of the annotated types.
Not here: files and hashes (runtime.engine_file).
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from tilewright.core import dtypes
from tilewright.core.dim_table import DimTable, dim_of
from tilewright.core.dtypes import DType
from tilewright.core.errors import CorruptEngine
from tilewright.core.record import Decision, Placement
from tilewright.core.shape import Atom, Dim
from tilewright.runtime import program

_CLASSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        Decision,
        Placement,
        program.Blocked,
        program.TensorSpec,
        program.StageCall,
        program.Launch,
        program.Matrix,
        program.Image,
        program.Guard,
        program.KernelCall,
        program.Extent,
        program.Check,
        program.Segment,
        program.TensorArg,
        program.DimsArg,
        program.LiteralArg,
        program.Bind,
        program.Interpret,
        program.Reshape,
        program.Refuse,
        program.Branch,
        program.Repeat,
        program.Sweep,
        program.Program,
    )
}
Check = Callable[[Any], bool]
_MAX_DEPTH = 200
_MAX_ELEMENTS = 1 << 26


def encode(value: Any, sizes: DimTable | None = None) -> Any:
    """A JSON value for a record, container, number, text, bytes, array, dim or dtype.

    Args:
        sizes: gets the dims; None where there are none.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Dim) and sizes is not None:
        return {"$dim": sizes.number(value)}
    if isinstance(value, DType):
        return {"$dtype": value.name}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, np.ndarray):
        return _encode_array(value)
    if isinstance(value, list | tuple):
        return [encode(part, sizes) for part in value]
    if is_dataclass(value) and type(value).__name__ in _CLASSES:
        body = {field.name: encode(getattr(value, field.name), sizes) for field in fields(value)}
        return {"$record": type(value).__name__, **body}
    if hasattr(value, "items"):
        return {"$map": {str(key): encode(part, sizes) for key, part in value.items()}}
    raise TypeError(f"cannot encode a {type(value).__name__}")


def _encode_array(array: np.ndarray[Any, Any]) -> Any:
    dtype = dtypes.from_numpy(array.dtype)
    if dtype is dtypes.STRING:
        data: Any = [str(part) for part in array.reshape(-1).tolist()]
    else:
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
    return {"$array": [dtype.name, list(array.shape), data]}


def decode(value: Any, sizes: Sequence[Dim | Atom] = ()) -> Any:
    """The record of a JSON value.

    Args:
        sizes: what ``read_dims`` gives; none where there are no dims.

    Raises:
        CorruptEngine: it is not what ``encode`` writes.
    """
    try:
        return _decode(value, sizes, 0)
    except (
        TypeError,
        ValueError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise CorruptEngine(
            f"unreadable record: {error}", remedy="build the engine again"
        ) from error


def _decode(value: Any, sizes: Sequence[Dim | Atom], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("records are nested too deeply")
    if isinstance(value, list):
        return tuple([_decode(part, sizes, depth + 1) for part in value])
    if not isinstance(value, dict):
        return value
    if "$record" in value:
        cls = _CLASSES[value["$record"]]
        body = {
            name: _decode(part, sizes, depth + 1)
            for name, part in value.items()
            if name != "$record"
        }
        for name, check in _checks(cls):
            if name in body and not check(body[name]):
                raise TypeError(f"{cls.__name__}.{name} is {str(body[name])[:40]!r}")
        return cls(**body)
    if len(value) != 1:
        raise ValueError(f"unknown keys {sorted(value)[:4]}")
    ((kind, body),) = value.items()
    match kind:
        case "$map":
            return {str(name): _decode(part, sizes, depth + 1) for name, part in body.items()}
        case "$dim":
            return dim_of(body, sizes)
        case "$dtype":
            return dtypes.BY_NAME[body]
        case "$float":
            return float(body)
        case "$bytes":
            return base64.b64decode(body, validate=True)
        case "$array":
            return _decode_array(*body)
    raise ValueError(f"unknown kind {kind!r}")


@cache
def _checks(cls: Any) -> tuple[tuple[str, Check], ...]:
    """The check of each field of a class."""
    return tuple((name, _check(hint)) for name, hint in get_type_hints(cls).items())


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type, of those that records use."""
    return _check(hint)(value)


@cache
def _check(hint: Any) -> Check:
    """``fits`` for one type: an engine has thousands of fields, and few types."""
    kind, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        hint = object
    if kind in (Union, UnionType):
        checks = tuple(map(_check, parts))
        return lambda value: any(check(value) for check in checks)
    if kind is tuple:
        return _check_tuple(parts)
    if kind is Mapping:
        check = _check(parts[1])
        return lambda value: isinstance(value, dict) and all(map(check, value.values()))
    if hint in (int, float):
        numbers = int if hint is int else int | float
        return lambda value: isinstance(value, numbers) and not isinstance(value, bool)
    return lambda value: isinstance(value, hint)


def _check_tuple(parts: tuple[Any, ...]) -> Check:
    if parts[1:] == (...,):
        check = _check(parts[0])
        return lambda value: isinstance(value, tuple) and all(map(check, value))
    checks = tuple(map(_check, parts))

    def check_each(value: Any) -> bool:
        right = isinstance(value, tuple) and len(value) == len(checks)
        return right and all(check(part) for check, part in zip(checks, value, strict=True))

    return check_each


def _decode_array(name: str, shape: list[int], data: Any) -> np.ndarray[Any, Any]:
    dtype = dtypes.BY_NAME[name]
    count = math.prod(shape)
    if count > _MAX_ELEMENTS or any(size < 0 for size in shape):
        raise ValueError(f"array of shape {shape}")
    if dtype is dtypes.STRING:
        if len(data) != count:
            raise ValueError("array of the wrong size")
        return np.array([str(part) for part in data], dtype=object).reshape(shape)
    raw = base64.b64decode(data, validate=True)
    if len(raw) != count * dtype.storage_bytes:
        raise ValueError("array of the wrong size")
    return np.frombuffer(raw, dtype=dtype.numpy).reshape(shape)
