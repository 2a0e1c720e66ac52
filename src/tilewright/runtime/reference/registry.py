"""Find the NumPy meaning of an ONNX operator and call it with ONNX's typing rules.

(domain, operator, opset, inputs, attributes) -> outputs, as NumPy arrays (lists for sequences).
Guarantees: the highest implementation with `since` <= opset is used; half-precision inputs are
computed in float32 or better and rounded once; `wide` computes every float in float64; NumPy
warnings stay inside; foreseeable misuse raises `OperatorError`. Inputs are never written, but an
output may share memory with an input. What needs more memory than there is raises
`OutOfMemory`, before it is touched where the size can be told ahead.
Not here: the meanings themselves (one file a family), graph traversal.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from tilewright.core.errors import OutOfMemory
from tilewright.runtime.cpu.allocator import memory_limit_bytes
from tilewright.runtime.reference import dtypes
from tilewright.runtime.reference.dtypes import Array

Value: TypeAlias = "Array | list[Any] | None"
Outputs: TypeAlias = "tuple[Value, ...]"
Subgraph: TypeAlias = "Callable[..., tuple[Value, ...]]"
_F = TypeVar("_F", bound="Callable[..., Outputs]")


class OperatorError(ValueError):
    """An operator was used in a way its ONNX specification does not allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operator application: which operator, its attributes, and which outputs are wanted."""

    domain: str
    op_type: str
    opset: int
    attributes: Mapping[str, object]
    num_outputs: int = 1
    output_mask: tuple[bool, ...] = (True,)
    wide: bool = False

    def get(self, name: str, default: Any = None) -> Any:
        """The attribute as given, or `default` when it is absent."""
        return self.attributes.get(name, default)

    def integer(self, name: str, default: int | None = None) -> int:
        """An INT attribute; required when no default is given."""
        value = self.attributes.get(name, default)
        if value is None:
            raise self.error(f"attribute {name!r} is required")
        return int(value)  # type: ignore[call-overload,no-any-return]

    def number(self, name: str, default: float | None = None) -> float:
        """A FLOAT attribute; required when no default is given."""
        value = self.attributes.get(name, default)
        if value is None:
            raise self.error(f"attribute {name!r} is required")
        return float(value)  # type: ignore[arg-type]

    def text(self, name: str, default: str | None = None) -> str:
        """A STRING attribute, decoded; required when no default is given."""
        value = self.attributes.get(name, default)
        if value is None:
            raise self.error(f"attribute {name!r} is required")
        return as_text(value)

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An INTS attribute, or None when it is absent."""
        value = self.attributes.get(name)
        return None if value is None else tuple(int(item) for item in value)  # type: ignore[attr-defined]

    def numbers(self, name: str) -> tuple[float, ...] | None:
        """A FLOATS attribute, or None when it is absent."""
        value = self.attributes.get(name)
        return None if value is None else tuple(float(item) for item in value)  # type: ignore[attr-defined]

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A STRINGS attribute, decoded, or None when it is absent."""
        value = self.attributes.get(name)
        return None if value is None else tuple(as_text(item) for item in value)  # type: ignore[attr-defined]

    def subgraph(self, name: str) -> Subgraph:
        """A GRAPH attribute as a callable."""
        value = self.attributes.get(name)
        if not callable(value):
            raise self.error(f"attribute {name!r} must be a callable subgraph")
        return value

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """A STRING attribute that must be one of `allowed`."""
        value = self.text(name, default)
        if value not in allowed:
            raise self.error(f"{name}={value!r} is not one of {', '.join(allowed)}")
        return value

    def float_dtype(self, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The dtype to compute and return where `dtype` is specified: float64 in wide mode."""
        return np.dtype(np.float64) if self.wide and dtype in dtypes.RAISED else dtype

    def error(self, message: str) -> OperatorError:
        """An error that names the operator."""
        name = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        return OperatorError(f"{name} (opset {self.opset}): {message}")

    def room(self, shape: Sequence[int], dtype: np.dtype[Any]) -> tuple[int, ...]:
        """A shape that a tensor can have and this machine has memory for.

        Raises:
            OperatorError: a size is negative.
            OutOfMemory: there is not so much memory.
        """
        if any(size < 0 for size in shape):
            raise self.error(f"a shape {list(shape)}")
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes > memory_limit_bytes():
            raise self.out_of_memory(f"a tensor of shape {list(shape)} needs {num_bytes} bytes")
        return tuple(shape)

    def out_of_memory(self, message: str) -> OutOfMemory:
        """An error that names the operator."""
        return OutOfMemory(
            f"{self.op_type}: {message}",
            remedy="use smaller inputs, or a machine with more memory",
        )


def as_text(value: object) -> str:
    """Decode a STRING attribute or string element that may be bytes."""
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    since: int
    run: Callable[..., Outputs]
    own_precision: bool
    num_stated: int  # inputs that the function wants to be given, if only as None


_ENTRIES: dict[tuple[str, str], list[_Entry]] = {}
# What NumPy and Python raise on arguments that do not fit each other.
_MISUSE = (ValueError, IndexError, TypeError, KeyError, ZeroDivisionError, OverflowError)


def operator(
    name: str, domain: str = "", since: int = 1, *, own_precision: bool = False
) -> Callable[[_F], _F]:
    """Register `fn(call, *inputs) -> outputs` as the meaning of an operator from `since` on.

    By default half-precision inputs arrive as float32, and float32 outputs are rounded to the
    dtype of the first float input. With `own_precision` inputs arrive as they are and the
    implementation returns the specified dtypes itself.
    """

    def register(function: _F) -> _F:
        entries = _ENTRIES.setdefault((domain, name), [])
        if any(entry.since == since for entry in entries):
            raise KeyError(f"{domain}.{name} since {since} is registered twice")
        entries.append(
            _Entry(
                since=since,
                run=function,
                own_precision=own_precision,
                num_stated=_num_stated(function),
            )
        )
        entries.sort(key=lambda entry: -entry.since)
        return function

    return register


def _num_stated(function: Callable[..., Outputs]) -> int:
    """How far optional inputs without a default reach; models leave out trailing absent ones."""
    inputs = list(inspect.signature(function).parameters.values())[1:]
    return max(
        (
            number + 1
            for number, given in enumerate(inputs)
            if given.default is inspect.Parameter.empty and "None" in str(given.annotation)
        ),
        default=0,
    )


def _find(domain: str, op_type: str, opset: int) -> _Entry | None:
    for entry in _ENTRIES.get((_domain(domain), op_type), ()):
        if entry.since <= opset:
            return entry
    return None


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def supported(domain: str, op_type: str, opset: int) -> bool:
    """Whether `evaluate` knows this operator at this version of its domain."""
    return _find(domain, op_type, opset) is not None


# They return elements of the data as they are: what is found is raised, not the whole table.
_LOOKUPS = frozenset(("Gather", "GatherElements", "GatherND"))


def operators() -> list[tuple[str, str]]:
    """All known operators as sorted (domain, name) pairs."""
    return sorted(_ENTRIES)


def evaluate(
    domain: str,
    op_type: str,
    inputs: Sequence[Value],
    attributes: Mapping[str, object],
    *,
    opset: int,
    num_outputs: int = 1,
    wide: bool = False,
) -> Outputs:
    """Evaluate one operator.

    `inputs` holds arrays, lists (sequences) or None (absent optional). Attribute values are
    Python scalars, strings or bytes, lists, arrays for tensors (sparse ones made dense), and
    callables for graphs. `opset` is the version of `domain`. With `wide`, float16, bfloat16 and
    float32 inputs are raised to float64 and such outputs are returned as float64.
    Returns exactly `num_outputs` values. Raises `OperatorError`.
    """
    entry = _find(domain, op_type, opset)
    if entry is None:
        raise OperatorError(f"no reference for operator {domain}.{op_type} at opset {opset}")
    call = Call(
        domain=_domain(domain),
        op_type=op_type,
        opset=opset,
        attributes=attributes,
        num_outputs=num_outputs,
        output_mask=(True,) * num_outputs,
        wide=wide,
    )
    values: list[Value] = [_map(_as_array, value) for value in inputs]
    if wide and op_type not in _LOOKUPS:
        values = [_map(_to_float64, value) for value in values]
    home = None if wide or entry.own_precision else _first_float(values)
    if home in dtypes.HALF or (home is not None and _has_half(values)):
        values = [_map(_raise_half, value) for value in values]
    values += [None] * (entry.num_stated - len(values))
    try:
        with np.errstate(all="ignore"):
            outputs = _run(entry, call, values)
    except MemoryError as error:
        raise call.out_of_memory(str(error)) from error
    if len(outputs) < num_outputs:
        raise call.error(f"{num_outputs} outputs wanted, {len(outputs)} exist")
    finish = _to_float64 if wide else _rounder(home)
    return tuple(_map(finish, _map(_as_array, output)) for output in outputs[:num_outputs])


def _run(entry: _Entry, call: Call, values: Sequence[Value]) -> Outputs:
    if any(callable(value) for value in call.attributes.values()):
        return entry.run(call, *values)  # errors inside a subgraph keep their own type
    try:
        return entry.run(call, *values)
    except OperatorError:
        raise
    except _MISUSE as error:
        shapes = ", ".join(_describe(value) for value in values)
        raise call.error(f"{error} (inputs: {shapes})") from error


def _describe(value: Value) -> str:
    if value is None:
        return "absent"
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    return f"{value.dtype}{list(value.shape)}"


def _map(function: Callable[[Any], Array], value: Value) -> Value:
    if value is None:
        return None
    if isinstance(value, list):
        return [_map(function, item) for item in value]
    return function(value)


def _as_array(value: Any) -> Any:
    if isinstance(value, dict):  # maps of ai.onnx.ml travel as they are
        return value
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def _to_float64(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype in dtypes.RAISED:
        with np.errstate(all="ignore"):
            return value.astype(np.float64)
    return value


def _raise_half(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype in dtypes.HALF else array


def _rounder(home: np.dtype[Any] | None) -> Callable[[Array], Array]:
    if home not in dtypes.HALF:
        return lambda array: array

    def narrow(array: Array) -> Array:
        if array.dtype != np.float32:
            return array
        with np.errstate(all="ignore"):
            return array.astype(home)

    return narrow


def _first_float(values: Sequence[Value]) -> np.dtype[Any] | None:
    for value in values:
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, np.ndarray) and item.dtype in dtypes.FLOATS:
                return item.dtype
    return None


def _has_half(values: Sequence[Value]) -> bool:
    return any(isinstance(value, np.ndarray) and value.dtype in dtypes.HALF for value in values)
