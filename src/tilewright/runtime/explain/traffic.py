"""Who writes and reads which buffer, and how many bytes of each kind a kernel call moves.

Input -> Output: a ``Program`` and the sizes of its constants -> ``CallTraffic`` for each call.
Guarantees: sums of the formulas in the engine; None where a size is only known while it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.core.shape import Dim
from tilewright.runtime.explain.floors import Traffic
from tilewright.runtime.program import KernelCall, Program, Segment, TensorSpec, all_steps

ZERO = Dim.of(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTraffic:
    """One kernel call.

    Attributes:
        index: its number in the engine; ``segment`` is its segment's.
        weights, reads, writes: bytes of constants, of other inputs, of results.
        inputs, outputs: the specs behind the buffers; temporaries are left out.
    """

    index: int
    segment: int
    call: KernelCall
    weights: Dim
    reads: Dim
    writes: Dim
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """A buffer of an arena or a result, from the call that writes it to one that reads it."""

    value: TensorSpec
    producer: int
    consumer: int
    is_only_reader: bool
    is_kept: bool


def root_of(segment: Segment, name: str) -> str:
    """The buffer whose memory a view is."""
    while name in segment.aliases:
        name = segment.aliases[name]
    return name


def call_traffic(program: Program, constants: Mapping[str, int]) -> list[CallTraffic]:
    """Every call in order.

    Args:
        program: of an engine.
        constants: bytes by name.
    """
    result: list[CallTraffic] = []
    for number, segment in enumerate(_segments(program)):
        specs = {spec.name: spec for spec in (*segment.inputs, *segment.outputs, *segment.internal)}
        given = {spec.name for spec in segment.inputs}
        written: set[str] = set()
        for call in segment.calls:
            totals = {"weights": ZERO, "reads": ZERO, "writes": ZERO}
            inputs: dict[str, TensorSpec] = {}
            outputs: dict[str, TensorSpec] = {}
            for name, moved in zip(call.buffers, call.traffic, strict=True):
                root = root_of(segment, name)
                fresh = root not in written and root not in given
                kind = "weights" if root in constants else "writes" if fresh else "reads"
                totals[kind] = totals[kind] + moved
                if moved.terms:
                    (outputs if fresh else inputs)[root] = specs[root]
            written.update(root_of(segment, name) for name in call.buffers)
            result.append(
                CallTraffic(
                    index=len(result),
                    segment=number,
                    call=call,
                    inputs=tuple(inputs.values()),
                    outputs=tuple(outputs.values()),
                    **totals,
                )
            )
    return result


def flows(program: Program, constants: Mapping[str, int]) -> list[Flow]:
    """Every value that one kernel of a segment writes and a later one reads."""
    result: list[Flow] = []
    first = 0
    calls = call_traffic(program, constants)
    for segment in _segments(program):
        kept = {spec.name for spec in segment.outputs}
        own = calls[first : first + len(segment.calls)]
        first += len(segment.calls)
        producers: dict[str, int] = {}
        readers: dict[str, list[int]] = {}
        for item in own:
            for spec in item.inputs:
                if spec.name in producers:
                    readers.setdefault(spec.name, []).append(item.index)
            for spec in item.outputs:
                producers[spec.name] = item.index
        specs = {spec.name: spec for item in own for spec in item.outputs}
        result += [
            Flow(
                value=specs[name],
                producer=producers[name],
                consumer=consumer,
                is_only_reader=len(consumers) == 1,
                is_kept=name in kept,
            )
            for name, consumers in readers.items()
            for consumer in consumers
        ]
    return sorted(result, key=lambda flow: (flow.producer, flow.consumer))


def size_of(dim: Dim, sizes: Mapping[str, int]) -> int | None:
    """The value of a formula; None where one of its sizes is not known."""
    return dim.evaluate(sizes) if dim.symbols <= sizes.keys() else None


def traffic_of(item: CallTraffic, sizes: Mapping[str, int]) -> Traffic | None:
    """Bytes of one call at known sizes."""
    parts = (item.weights, item.reads, item.writes)
    weights, reads, writes = (size_of(dim, sizes) for dim in parts)
    if weights is None or reads is None or writes is None:
        return None
    return Traffic(weights=weights, reads=reads, writes=writes)


def spec_bytes(spec: TensorSpec, sizes: Mapping[str, int]) -> int | None:
    """Bytes of a tensor as it lies in memory."""
    total = spec.dtype.storage_bytes
    for dim in spec.shape or ():
        size = size_of(dim, sizes)
        if size is None:
            return None
        total *= max(0, size)
    return total


def _segments(program: Program) -> list[Segment]:
    return [step for step in all_steps(program) if isinstance(step, Segment)]
