"""The driver: order of rows, loops, errors, splitting over threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tilewright.codegen.cpu.driver import CALL, END, LOOP, ROW_BYTES, add_driver
from tilewright.codegen.cpu.emit import I64, PTR, Module, Value, index
from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.pool import pool_module
from tilewright.codegen.cpu.target import host_target, known_targets, named_target
from tilewright.runtime import segment_layout
from tilewright.runtime.cpu.loader import LoadedObject, load_object
from tilewright.runtime.cpu.threads import ThreadPool, shared_pool

# The recorder's block: where the log is, how long it is, the step, who is calling, the call at
# which it fails, the address of the status words.
LOG, LENGTH, STEP, NAME, FAILS_AT, STATUS = range(6)
ENTRY = 4  # name, first iteration, last iteration, step


def _recorder() -> str:
    module = Module(host_target())
    b = module.function("record", [("args", PTR), ("lo", I64), ("hi", I64)])
    args = b.params["args"]

    def word(number: int) -> Value:
        return b.load(I64, b.gep(args, number, 8), 8)

    length = word(LENGTH)
    entry = b.gep(b.load(PTR, b.gep(args, LOG, 8), 8), b.mul(length, index(8 * ENTRY)))
    for number, value in enumerate((word(NAME), b.params["lo"], b.params["hi"], word(STEP))):
        b.store(value, b.gep(entry, number, 8), 8)
    b.store(b.add(length, index(1)), b.gep(args, LENGTH, 8), 8)
    with b.when(b.icmp("eq", length, word(FAILS_AT))):
        b.store(b.add(word(NAME), index(1)), b.load(PTR, b.gep(args, STATUS, 8), 8), 8)
    b = module.function("count", [("args", PTR), ("lo", I64), ("hi", I64)])
    with b.loop(b.params["lo"], b.params["hi"]) as iteration:
        place = b.gep(b.params["args"], iteration, 8)
        b.store(b.add(b.load(I64, place, 8), index(1)), place, 8)
    return module.text()


@dataclass(frozen=True)
class Driver:
    """The driver, the pool, and stages that keep records."""

    run: Callable[..., Any]
    pool: ThreadPool
    stages: LoadedObject


@pytest.fixture(scope="module")
def driver() -> Driver:
    target = host_target()
    pool = shared_pool(compile_module(pool_module(target), target), 3)
    module = Module(target)
    add_driver(module)
    loaded = load_object(
        compile_module(module.text(), target),
        ("tw_run",),
        {"tw_pool_run": pool.run_address},
    )
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    return Driver(
        run=loaded.function("tw_run", None, pointer, pointer, number, pointer, pointer),
        pool=pool,
        stages=load_object(compile_module(_recorder(), target), ("record", "count")),
    )


@dataclass
class Tape:
    """Blocks for recorders that write to one log, and the status words."""

    driver: Driver

    def __post_init__(self) -> None:
        self.log = np.zeros((64, ENTRY), np.int64)
        self.status = np.zeros(2, np.int64)
        self.block = np.zeros(8, np.int64)
        self.block[[LOG, STATUS]] = self.log.ctypes.data, self.status.ctypes.data
        self.block[FAILS_AT] = -1

    def call(self, iterations: int = 1, grain: int = 1 << 40) -> list[int]:
        """A row that calls the recorder."""
        address = self.driver.stages.address("record")
        return [CALL, address, self.block.ctypes.data, iterations, grain, 0, 0, 0]

    def loop(self, kind: int, target: int, steps: int) -> list[int]:
        """A row that begins or ends a loop."""
        slot = self.block.ctypes.data + 8 * STEP
        return [kind, target, self.block.ctypes.data, 0, 0, slot, steps, 0]

    def run(self, rows: Sequence[Sequence[int]]) -> list[list[int]]:
        """What was called: first, last and step of each."""
        table = np.array(rows, np.int64).reshape(-1, ROW_BYTES // 8)
        data = (table.ctypes.data, len(table), self.status.ctypes.data)
        self.driver.run(self.driver.pool.handle, *data, None)
        return [entry[1:].tolist() for entry in self.log[: self.block[LENGTH]]]


@pytest.fixture
def tape(driver: Driver) -> Tape:
    return Tape(driver)


def test_the_row_format_is_that_of_the_runtime() -> None:
    assert (CALL, LOOP, END) == (
        segment_layout.CALL,
        segment_layout.LOOP,
        segment_layout.END,
    )
    assert segment_layout.ROW_WORDS * 8 == ROW_BYTES


def test_rows_run_in_order(tape: Tape) -> None:
    assert tape.run([tape.call(5), tape.call(2), tape.call(9)]) == [[0, 5, 0], [0, 2, 0], [0, 9, 0]]


def test_no_rows_are_no_work(tape: Tape) -> None:
    assert tape.run([]) == []


@pytest.mark.parametrize("iterations", [0, -3])
def test_a_stage_without_iterations_is_not_entered(tape: Tape, iterations: int) -> None:
    assert tape.run([tape.call(iterations), tape.call(1)]) == [[0, 1, 0]]


def test_loops_repeat_their_rows_and_count(tape: Tape) -> None:
    rows = [tape.call(7), tape.loop(LOOP, 5, 3), tape.call(1), tape.call(2), tape.loop(END, 2, 3)]
    found = tape.run([*rows, tape.call(8)])
    steps = [[0, size, step] for step in range(3) for size in (1, 2)]
    assert found == [[0, 7, 0], *steps, [0, 8, 3]]


@pytest.mark.parametrize("steps", [0, -1])
def test_a_loop_without_steps_is_skipped(tape: Tape, steps: int) -> None:
    rows = [tape.loop(LOOP, 3, steps), tape.call(1), tape.loop(END, 1, steps), tape.call(2)]
    assert tape.run(rows) == [[0, 2, 0]]


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_an_error_stops_the_run(tape: Tape, fails_at: int) -> None:
    tape.block[FAILS_AT], tape.block[NAME] = fails_at, 41
    rows = [tape.call(1), tape.loop(LOOP, 4, 5), tape.call(2), tape.loop(END, 2, 5)]
    assert len(tape.run(rows)) == fails_at + 1
    assert tape.status[0] == 42


def test_small_stages_stay_on_the_caller_and_large_ones_are_shared(driver: Driver) -> None:
    counts = np.zeros(1000, np.int64)
    for iterations, grain in ((1000, 1000), (1000, 999), (1000, 1), (999, 250), (1, 1)):
        counts[:] = 0
        address = driver.stages.address("count")
        row = np.array([CALL, address, counts.ctypes.data, iterations, grain, 0, 0, 0], np.int64)
        status = np.zeros(2, np.int64)
        driver.run(driver.pool.handle, row.ctypes.data, 1, status.ctypes.data, None)
        assert (counts[:iterations] == 1).all()
        assert (counts[iterations:] == 0).all()


def test_the_timed_driver_does_the_same_and_charges_each_row(tape: Tape, driver: Driver) -> None:
    rows = np.array([tape.call(1), tape.loop(LOOP, 4, 3), tape.call(2), tape.loop(END, 2, 3)])
    times = np.zeros(len(rows), np.int64)
    driver.run(
        driver.pool.handle, rows.ctypes.data, len(rows), tape.status.ctypes.data, times.ctypes.data
    )
    assert tape.block[LENGTH] == 4
    assert (times >= 0).all()
    assert times.sum() > 0


@pytest.mark.parametrize("name", known_targets())
def test_every_processor_has_a_driver(name: str) -> None:
    target = named_target(name)
    module = Module(target)
    add_driver(module)
    assert len(compile_module(module.text(), target)) > 500
