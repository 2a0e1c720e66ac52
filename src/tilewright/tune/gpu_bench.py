"""Times what a run of an engine launches on a GPU, in other ways than it does.

Input -> Output: what was launched, other calls of a kernel or other streams -> timings, in turns
with what the engine has.
Method: a call runs many times in one graph. Its weights lie in several copies that take turns, as
many as the whole network has memory for one kernel's: so they come from the cache or from memory as
in a run of the network. Its inputs are those of the run.
Whole runs are timed as they are, in turns as well.
Guarantees: a call whose values differ from the engine's own has no timing.
Not here: what is timed, and what is chosen (tune.on_gpu).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.runtime.cuda.arrays import DeviceArray
from tilewright.runtime.cuda.executor import CudaExecutor, Launched
from tilewright.runtime.cuda.graph import Chain, Graph, drop_stream, new_stream
from tilewright.runtime.cuda.lanes import Lanes, lanes_of
from tilewright.runtime.cuda.memory import Block
from tilewright.runtime.cuda.plan import Step
from tilewright.runtime.cuda.timing import times_us
from tilewright.runtime.engine import Engine
from tilewright.runtime.program import KernelCall, TensorSpec
from tilewright.tune.store import Timing

Array = npt.NDArray[Any]
_REPEATS, _MOST_COPIES, _MOST_COPIED_BYTES = 16, 64, 1 << 30
_LONGEST_US = 5000.0  # of one graph of repeats
_TURNS, _REPLAYS = 5, 3
_WHOLE_TURNS, _WHOLE_RUNS = 10, 30
_HOPELESS = 4.0  # times as slow at the first look
_PARTS, _PART = 16, 1 << 16  # of a large buffer, which are compared
TOLERANCE = {2: 1e-2, 4: 1e-4, 8: 1e-9}  # of the largest value, by the bytes of a float


class CallBench:
    """One call of a run, to be run again in other ways."""

    def __init__(self, executor: CudaExecutor, one: Launched, number: int, footprint: int) -> None:
        self._executor, self._one, self._number = executor, one, number
        context = one.context
        self._plan, self._stream = context.plan, context.own_stream
        executor.device.use()
        self._addresses = context.addresses(one.buffers)
        self._call = self._plan.segment.calls[number]
        self._formula = self._plan.steps_of(self._call, number)
        self._blocks: list[Block] = []
        self._copies = self._cold(footprint)
        self._restore()
        self._expected = self._values(self._formula)
        self._once_us = self._once(self._formula)
        self._chain = self._repeated(self._formula, self._once_us)

    def close(self) -> None:
        """Frees what timing took."""
        self._chain.close()
        self._blocks.clear()

    def timing(self, alternative: KernelCall, sizes: str) -> Timing | None:
        """What it takes; None where its values differ."""
        steps = self._plan.steps_of(alternative, self._number)
        self._restore()
        if not _alike(self._values(steps), self._expected):
            return None
        once_us = self._once(steps)
        ours, formula = [once_us], [self._once_us]
        if once_us <= _HOPELESS * self._once_us:
            ours, formula = self._turns(steps, once_us)
        return Timing(
            sizes=sizes,
            schedule=alternative.tactic,
            us=round(statistics.median(ours), 4),
            formula_us=round(statistics.median(formula), 4),
            samples=len(ours),
        )

    def _turns(self, steps: Sequence[Step], once_us: float) -> tuple[list[float], list[float]]:
        chain = self._repeated(steps, once_us)
        formula, ours = _in_turns((self._chain, chain), self._stream, _TURNS)
        chain.close()
        return ours, formula

    def _restore(self) -> None:
        """Runs what comes before the call, whose inputs may have been overwritten since."""
        for step in self._plan.steps:
            if step.number < self._number:
                self._one.context.launcher.launch(step, self._addresses, self._stream)

    def _values(self, steps: Sequence[Step]) -> list[Array]:
        """All buffers of the call, after it."""
        for step in steps:
            self._one.context.launcher.launch(step, self._addresses, self._stream)
        specs = {
            spec.name: spec
            for spec in (
                *self._plan.segment.inputs,
                *self._plan.segment.outputs,
                *self._plan.segment.internal,
            )
        }
        found: list[Array] = []
        for name in dict.fromkeys(map(self._plan.root, self._call.buffers)):
            if name in self._executor.constants or name not in specs:
                continue
            found += self._sample(name, specs[name])
        return found

    def _sample(self, name: str, spec: TensorSpec) -> Iterator[Array]:
        """A buffer's values, or parts of them where they are many."""
        dtype, device = spec.dtype.numpy, self._executor.device
        count = math.prod(self._plan.shape_of(spec))
        starts, size = [0], count
        if count > _PARTS * _PART:
            size = _PART
            starts = [k * (count - size) // (_PARTS - 1) for k in range(_PARTS)]
        for start in starts:
            address = self._addresses[name] + start * dtype.itemsize
            yield DeviceArray(address, (size,), dtype, device, int(self._stream), None).numpy()

    def _cold(self, footprint: int) -> list[Mapping[str, int]]:
        """Addresses with copies of the weights, of which each is as cold as in a run."""
        constants = self._executor.constants
        names = [name for name in map(self._plan.root, self._call.buffers) if name in constants]
        size = sum(constants[name].nbytes for name in names)
        if not size:
            return [self._addresses]
        most = min(_MOST_COPIES, max(1, _MOST_COPIED_BYTES // size))
        copies: list[Mapping[str, int]] = [self._addresses]
        for _ in range(min(most, -(-footprint // size)) - 1):
            moved = dict(self._addresses)
            for name in names:
                block = self._executor.duplicate(
                    self._addresses[name], constants[name].nbytes, int(self._stream)
                )
                self._blocks.append(block)
                moved[name] = block.address
            copies.append(moved)
        return copies

    def _once(self, steps: Sequence[Step]) -> float:
        """The time of one launch, which need not be exact."""
        chain = Chain(self._one.context.launcher, [(steps, self._copies[0])], self._stream)
        us = min(chain.times_us(self._stream, 2, 1))
        chain.close()
        return us

    def _repeated(self, steps: Sequence[Step], once_us: float) -> Chain:
        most = int(_LONGEST_US / max(once_us, 0.1))
        count = max(2, min(max(_REPEATS, len(self._copies)), most))
        turns = [(steps, self._copies[k % len(self._copies)]) for k in range(count)]
        return Chain(self._one.context.launcher, turns, self._stream)


def _alike(found: Sequence[Array], expected: Sequence[Array]) -> bool:
    return all(map(_close, found, expected))


def _close(found: Array, expected: Array) -> bool:
    if expected.dtype.kind not in "fV" or not expected.size:
        return bool(np.array_equal(found, expected))
    a, b = found.astype(np.float64), expected.astype(np.float64)
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return False
    finite = np.isfinite(b)
    largest = float(np.abs(b[finite]).max(initial=0.0))
    limit = TOLERANCE[min(8, max(2, expected.dtype.itemsize))] * largest
    return bool(np.all(np.abs(a[finite] - b[finite]) <= limit))


def lanes_timing(launched: Sequence[Launched], count: int, name: str, sizes: str) -> Timing | None:
    """All kernels of a run on so many streams, in turns with one; None where they use fewer."""
    ours = formula = 0.0
    uses = 0
    for one in launched:
        lanes = lanes_of(one.context.plan, count)
        uses = max(uses, lanes.count)
        single = _segment_us(one, None)
        several = _segment_us(one, lanes) if lanes.count > 1 else single
        ours += one.calls * statistics.median(several)
        formula += one.calls * statistics.median(single)
    if uses < count:
        return None
    return Timing(
        sizes=sizes,
        schedule=name,
        us=round(ours, 3),
        formula_us=round(formula, 3),
        samples=_WHOLE_RUNS,
    )


def whole_timing(
    launched: Sequence[Launched],
    instead: Callable[[KernelCall], KernelCall],
    name: str,
    sizes: str,
) -> Timing:
    """All kernels of a run with other calls in place of the engine's, in turns with those."""
    us = [0.0, 0.0]
    for one in launched:
        context, plan = one.context, one.context.plan
        steps = [
            step
            for number, call in enumerate(plan.segment.calls)
            for step in plan.steps_of(instead(call), number)
        ]
        addresses = context.addresses(one.buffers)
        chains = [
            Chain(context.launcher, [(way, addresses)], context.own_stream)
            for way in (plan.steps, steps)
        ]
        for k, times in enumerate(_in_turns(chains, context.own_stream, _WHOLE_TURNS)):
            us[k] += one.calls * statistics.median(times)
        for chain in chains:
            chain.close()
    formula, ours = us
    return Timing(
        sizes=sizes,
        schedule=name,
        us=round(ours, 3),
        formula_us=round(formula, 3),
        samples=_WHOLE_TURNS * _REPLAYS,
    )


def _in_turns(chains: Sequence[Chain], stream: Any, turns: int) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in chains]
    for _ in range(turns):
        for chain, found in zip(chains, times, strict=True):
            found += chain.times_us(stream, _REPLAYS, 1)
    return times


def runs_us(engines: Sequence[Engine], feeds: Mapping[str, Any]) -> list[float]:
    """GPU time of all kernels of a run of each engine, in turns."""
    times: list[list[float]] = [[] for _ in engines]
    for _ in range(_TURNS):
        for engine, found in zip(engines, times, strict=True):
            with segments_of(engine, feeds) as launched:
                us = (one.calls * statistics.median(_segment_us(one, None)) for one in launched)
                found.append(sum(us))
    return [statistics.median(found) for found in times]


@contextmanager
def segments_of(engine: Engine, feeds: Mapping[str, Any]) -> Iterator[list[Launched]]:
    """What a run launches."""
    executor = engine.on_gpu()
    values, symbols = engine.checked(feeds)
    launched: list[Launched] = []
    executor.recorded(launched).run(engine.program, values, symbols)
    yield launched
    for one in launched:
        executor.give_back(one)


def _segment_us(one: Launched, lanes: Lanes | None) -> list[float]:
    """Times of a segment's kernels, on several streams where there are lanes."""
    context = one.context
    streams = [context.own_stream, *(new_stream() for _ in range(lanes.count - 1 if lanes else 0))]
    addresses, steps = context.addresses(one.buffers), context.plan.steps
    graph = Graph(context.launcher, steps, addresses, streams, lanes)
    times = times_us(lambda: graph.launch(streams[0]), streams[0], _WHOLE_RUNS)
    graph.close()
    for stream in streams[1:]:
        drop_stream(stream)
    return times
