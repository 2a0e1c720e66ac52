"""The native driver: one function that runs all calls of a segment.

Input -> Output: a module -> ``void tw_run(ptr pool, ptr rows, i64 count, ptr status, ptr times)``
in it; ``times`` is null, or one i64 a row, to which the row's nanoseconds are added.
Rows are 8 words (see runtime.segment_layout): CALL runs a stage on the pool; LOOP and END repeat
the rows between them, writing the step number where kernels read it; SKIP jumps unless a boolean in
memory is as expected; FAIL reports an error that was known before.
Guarantees: stops after the first call that reports an error in the status word. Kept times add up
to the time of the whole, and kernels run on the same stack with and without them, because where it
lies makes some of them slower.
Not here: the pool (pool), filling the rows (runtime.segment_layout).
"""

from __future__ import annotations

from tilewright.codegen.cpu.emit import (
    I8,
    I64,
    PTR,
    Builder,
    Module,
    Value,
    constant,
    index,
)
from tilewright.codegen.cpu.pool import clock_ns

ROW_BYTES = 64
KIND, TARGET, ARGS, ITERATIONS, GRAIN, STEP_SLOT, STEPS = range(7)
CALL, LOOP, END, SKIP, FAIL = range(5)


def add_driver(module: Module) -> None:
    """Defines ``tw_run``; the module also defines or imports ``tw_pool_run``."""
    params = [("pool", PTR), ("rows", PTR), ("count", I64), ("status", PTR), ("times", PTR)]
    b = module.function("tw_run", params)
    count = b.params["count"]
    counter = b.alloca(I64)
    b.store(index(0), counter)
    watch = _Watch(b, b.icmp("ne", b.ptrtoint(b.params["times"]), index(0)))
    with b.forever() as done:
        at = b.load(I64, counter)
        _leave_if(b, b.icmp("sge", at, count), done)
        row = b.gep(b.params["rows"], b.mul(at, index(ROW_BYTES)))
        b.store(b.add(at, index(1)), counter)
        kind = _word(b, row, KIND)
        with b.when(b.icmp("eq", kind, index(CALL))):
            _call(b, row)
            failed = b.icmp("ne", b.load(I64, b.params["status"], 8), index(0))
            _leave_if(b, failed, done)
        with b.when(b.icmp("eq", kind, index(LOOP))):
            b.store(index(0), _pointer(b, row, STEP_SLOT), 8)
            empty = b.icmp("sle", _word(b, row, STEPS), index(0))
            with b.when(empty):
                b.store(_word(b, row, TARGET), counter)
        with b.when(b.icmp("eq", kind, index(END))):
            slot = _pointer(b, row, STEP_SLOT)
            step = b.add(b.load(I64, slot, 8), index(1))
            b.store(step, slot, 8)
            with b.when(b.icmp("slt", step, _word(b, row, STEPS))):
                b.store(_word(b, row, TARGET), counter)
        with b.when(b.icmp("eq", kind, index(SKIP))):
            condition = b.load(PTR, _pointer(b, row, ARGS), 8)
            is_true = b.icmp("ne", b.load(I8, condition, 1), constant(I8, 0))
            expected = b.icmp("ne", _word(b, row, ITERATIONS), index(0))
            with b.when(b.icmp("ne", is_true, expected)):
                b.store(_word(b, row, TARGET), counter)
        with b.when(b.icmp("eq", kind, index(FAIL))):
            b.store(_word(b, row, ITERATIONS), b.params["status"], 8)
            _leave_if(b, b.icmp("eq", kind, index(FAIL)), done)
        watch.charge(at)


class _Watch:
    """Adds the time since the last look at the clock to a row, if times are kept."""

    def __init__(self, b: Builder, is_on: Value) -> None:
        self._b = b
        self._is_on = is_on
        self._clock = b.alloca(I64, 2)
        self._last = b.alloca(I64)
        with b.when(is_on):
            b.store(clock_ns(b, self._clock), self._last)

    def charge(self, row: Value) -> None:
        b = self._b
        with b.when(self._is_on):
            now = clock_ns(b, self._clock)
            place = b.gep(b.params["times"], row, 8)
            spent = b.sub(now, b.load(I64, self._last))
            b.store(b.add(b.load(I64, place, 8), spent), place, 8)
            b.store(now, self._last)


def _call(b: Builder, row: Value) -> None:
    """A stage without iterations is not entered: what it computes before its loop may not exist."""
    iterations, grain = _word(b, row, ITERATIONS), _word(b, row, GRAIN)
    function, args = _pointer(b, row, TARGET), _pointer(b, row, ARGS)
    with b.when(b.icmp("sgt", iterations, index(0))):
        small = b.icmp("sle", iterations, grain)
        with b.when(small):
            b.call(function, None, [args, index(0), iterations])
        with b.when(b.not_(small)):
            b.call("tw_pool_run", None, [b.params["pool"], function, args, iterations, grain])


def _word(b: Builder, row: Value, number: int) -> Value:
    return b.load(I64, b.gep(row, number, 8), 8)


def _pointer(b: Builder, row: Value, number: int) -> Value:
    return b.load(PTR, b.gep(row, number, 8), 8)


def _leave_if(b: Builder, condition: Value, done: str) -> None:
    go_on = b.label("on")
    b.branch(condition, done, go_on)
    b.enter(go_on)
