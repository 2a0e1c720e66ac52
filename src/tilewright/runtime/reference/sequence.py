"""Sequences and optionals.

A sequence is a Python list; an optional is its element, or None when it is empty.
Not here: SequenceMap (control_flow)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.registry import Call, Outputs, Value, operator
from tilewright.runtime.reference.shape import one_axis, pieces


@operator("SequenceEmpty", since=11, own_precision=True)
def sequence_empty(_call: Call) -> Outputs:
    return ([],)


@operator("SequenceConstruct", since=11, own_precision=True)
def sequence_construct(_call: Call, *items: Value) -> Outputs:
    return (list(items),)


def _position(call: Call, index: Array, size: int) -> int:
    at = int(index.reshape(()))
    if not -size <= at < size:
        raise call.error(f"position {at} is outside a sequence of {size}")
    return at % size


@operator("SequenceAt", since=11, own_precision=True)
def sequence_at(call: Call, sequence: list[Any], index: Array) -> Outputs:
    return (sequence[_position(call, index, len(sequence))],)


@operator("SequenceErase", since=11, own_precision=True)
def sequence_erase(call: Call, sequence: list[Any], index: Array | None = None) -> Outputs:
    at = _position(call, np.array(-1) if index is None else index, len(sequence))
    return (sequence[:at] + sequence[at + 1 :],)


@operator("SequenceInsert", since=11, own_precision=True)
def sequence_insert(
    call: Call, sequence: list[Any], item: Array, index: Array | None = None
) -> Outputs:
    at = len(sequence) if index is None else int(index.reshape(()))
    if not -len(sequence) <= at <= len(sequence):
        raise call.error(f"position {at} is outside a sequence of {len(sequence)}")
    at = at + len(sequence) if at < 0 else at
    return ([*sequence[:at], item, *sequence[at:]],)


@operator("SequenceLength", since=11, own_precision=True)
def sequence_length(_call: Call, sequence: list[Any]) -> Outputs:
    return (np.array(len(sequence), np.int64),)


@operator("ConcatFromSequence", since=11, own_precision=True)
def concat_from_sequence(call: Call, sequence: list[Any]) -> Outputs:
    if not sequence:
        raise call.error("the sequence is empty")
    new = bool(call.integer("new_axis", 0))
    axis = one_axis(call, call.integer("axis"), sequence[0].ndim + new)
    return (np.stack(sequence, axis=axis) if new else np.concatenate(sequence, axis=axis),)


@operator("SplitToSequence", since=11, own_precision=True)
def split_to_sequence(call: Call, x: Array, split: Array | None = None) -> Outputs:
    axis = one_axis(call, call.integer("axis", 0), x.ndim)
    size = x.shape[axis]
    if split is None:
        parts = pieces(call, x, axis, [1] * size) if size else []
        if not call.integer("keepdims", 1):
            parts = [np.squeeze(part, axis=axis) for part in parts]
        return (parts,)
    if split.ndim == 0:
        step = int(split)
        if step < 1:
            raise call.error(f"split {step} must be positive")
        sizes = [min(step, size - first) for first in range(0, size, step)]
    else:
        sizes = [int(value) for value in split]
    return (pieces(call, x, axis, sizes),)


@operator("Optional", since=15, own_precision=True)
def optional(_call: Call, value: Value = None) -> Outputs:
    return (value,)


@operator("OptionalGetElement", since=15, own_precision=True)
def optional_get_element(call: Call, value: Value = None) -> Outputs:
    if value is None:
        raise call.error("the optional is empty")
    return (value,)


@operator("OptionalHasElement", since=15, own_precision=True)
def optional_has_element(_call: Call, value: Value = None) -> Outputs:
    return (np.array(value is not None),)
