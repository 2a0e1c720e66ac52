"""If, Loop, Scan and SequenceMap over callable subgraphs.

A subgraph is `body(*inputs) -> outputs`; names of the outer graph are its own business. It may
carry `output_specs`, one (dtype, shape) or None an output. A loop of zero trips takes the element
type and shape of its empty scan outputs from a trial iteration, or from them where that fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.core.errors import UserError
from tilewright.runtime.reference.dtypes import Array
from tilewright.runtime.reference.registry import (
    Call,
    OperatorError,
    Outputs,
    Subgraph,
    Value,
    operator,
)
from tilewright.runtime.reference.shape import one_axis


def _truth(call: Call, value: Value) -> bool:
    if value is None or isinstance(value, list) or value.size != 1:
        raise call.error("a condition must be one boolean")
    return bool(value.reshape(()))


@operator("If", own_precision=True)
def if_else(call: Call, condition: Array) -> Outputs:
    branch = "then_branch" if _truth(call, condition) else "else_branch"
    return tuple(call.subgraph(branch)())


def _trial(body: Subgraph, *inputs: Value) -> tuple[Value, ...]:
    """One iteration whose results only tell shapes; nothing where it cannot run."""
    try:
        return tuple(body(*inputs))
    except (OperatorError, UserError):
        return ()


def _empty(body: Subgraph, index: int, trial: Sequence[Value] = (), axis: int = 0) -> Array:
    if index < len(trial) and isinstance(found := trial[index], np.ndarray):
        return np.stack([found], axis=axis).take([], axis=axis)
    specs: Sequence[Any] = getattr(body, "output_specs", None) or ()
    spec = specs[index] if index < len(specs) else None
    if spec is None:
        return np.zeros((0,), np.float32)
    dtype, shape = spec
    return np.zeros((0, *(size if isinstance(size, int) else 0 for size in shape)), dtype)


def _stacked(call: Call, parts: list[Any], axis: int = 0) -> Array:
    if any(part.shape != parts[0].shape for part in parts):
        raise call.error(f"scan output changes shape: {sorted({part.shape for part in parts})}")
    return np.stack(parts, axis=axis)


@operator("Loop", own_precision=True)
def loop(call: Call, trips: Array | None, condition: Array | None, *initial: Value) -> Outputs:
    body = call.subgraph("body")
    carried: list[Value] = list(initial)
    count = len(initial)
    limit = None if trips is None else int(trips.reshape(()))
    running = condition is None or _truth(call, condition)
    scans: list[list[Any]] = [[] for _ in range(max(0, call.num_outputs - count))]
    trip = 0
    while running and (limit is None or trip < limit):
        results = body(np.array(trip, np.int64), np.array(running), *carried)
        if len(results) < 1 + count + len(scans):
            raise call.error(f"the body gives {len(results)} outputs, too few")
        running = _truth(call, results[0])
        carried = list(results[1 : 1 + count])
        for scan, value in zip(scans, results[1 + count :], strict=False):
            scan.append(value)
        trip += 1
    trial: tuple[Value, ...] = ()
    if scans and not trip:
        trial = _trial(body, np.array(0, np.int64), np.array(True), *carried)
    outputs = [
        _stacked(call, scan) if scan else _empty(body, 1 + count + index, trial)
        for index, scan in enumerate(scans)
    ]
    return (*carried, *outputs)


def _flags(call: Call, name: str, count: int) -> tuple[int, ...]:
    value = call.integers(name) or (0,) * count
    if len(value) != count:
        raise call.error(f"{name}={list(value)} needs {count} values")
    return value


@operator("Scan", since=9, own_precision=True)
def scan(call: Call, *inputs: Array) -> Outputs:
    body, num_scans = call.subgraph("body"), call.integer("num_scan_inputs")
    count = len(inputs) - num_scans
    states: list[Value] = list(inputs[:count])
    directions = _flags(call, "scan_input_directions", num_scans)
    axes = _flags(call, "scan_input_axes", num_scans)
    sources = []
    for x, axis, backwards in zip(inputs[count:], axes, directions, strict=True):
        moved = np.moveaxis(x, one_axis(call, axis, x.ndim), 0)
        sources.append(moved[::-1] if backwards else moved)
    trips = {source.shape[0] for source in sources}
    if len(trips) != 1:
        raise call.error(f"scan inputs differ in length: {sorted(trips)}")
    num_outputs = call.num_outputs - count
    collected: list[list[Any]] = [[] for _ in range(num_outputs)]
    for trip in range(trips.pop()):
        results = body(*states, *(source[trip] for source in sources))
        states = list(results[:count])
        for part, value in zip(collected, results[count:], strict=False):
            part.append(value)
    trial: tuple[Value, ...] = ()
    if num_outputs and not collected[0]:
        slices = (np.zeros(source.shape[1:], source.dtype) for source in sources)
        trial = _trial(body, *states, *slices)
    outputs = []
    out_axes = _flags(call, "scan_output_axes", num_outputs)
    for index, backwards in enumerate(_flags(call, "scan_output_directions", num_outputs)):
        parts = collected[index][::-1] if backwards else collected[index]
        if not parts:
            outputs.append(_empty(body, count + index, trial, out_axes[index]))
            continue
        rank = parts[0].ndim + 1
        outputs.append(_stacked(call, parts, one_axis(call, out_axes[index], rank)))
    return (*states, *outputs)


@operator("Scan", since=8, own_precision=True)
def scan_batched(call: Call, lengths: Array | None, *inputs: Array) -> Outputs:
    """Opset 8: axis 0 is a batch, axis 1 the sequence; sequences may end early."""
    body, num_scans = call.subgraph("body"), call.integer("num_scan_inputs")
    count = len(inputs) - num_scans
    directions = _flags(call, "directions", num_scans)
    batch, longest = inputs[count].shape[:2]
    ends = np.full(batch, longest) if lengths is None else lengths.astype(np.int64).ravel()
    rows: list[list[Any]] = []
    for item, end in enumerate(ends.tolist()):
        states: list[Any] = [state[item] for state in inputs[:count]]
        collected: list[list[Any]] = [[] for _ in range(call.num_outputs - count)]
        for trip in range(end):
            at = [end - 1 - trip if backwards else trip for backwards in directions]
            slices = (x[item, t] for x, t in zip(inputs[count:], at, strict=True))
            results = body(*states, *slices)
            states = list(results[:count])
            for part, value in zip(collected, results[count:], strict=False):
                part.append(value)
        padded = []
        for index, parts in enumerate(collected):
            full = _stacked(call, parts) if parts else _empty(body, count + index)
            widths = [(0, longest - full.shape[0])] + [(0, 0)] * (full.ndim - 1)
            padded.append(np.pad(full, widths))
        rows.append([*states, *padded])
    return tuple(np.stack([row[index] for row in rows]) for index in range(call.num_outputs))


@operator("SequenceMap", since=17, own_precision=True)
def sequence_map(call: Call, sequence: list[Any], *others: Value) -> Outputs:
    body = call.subgraph("body")
    results: list[list[Any]] = [[] for _ in range(call.num_outputs)]
    for index, item in enumerate(sequence):
        extra = (other[index] if isinstance(other, list) else other for other in others)
        for collected, value in zip(results, body(item, *extra), strict=False):
            collected.append(value)
    return tuple(results)
