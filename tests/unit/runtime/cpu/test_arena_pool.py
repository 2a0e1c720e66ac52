"""Which block a run gets, and when memory is let go."""

from __future__ import annotations

import ctypes
import gc
import platform
import resource
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from tilewright.core.errors import OutOfMemory
from tilewright.runtime.cpu import allocator
from tilewright.runtime.cpu.allocator import LARGE_PAGE, Pages
from tilewright.runtime.cpu.arena_pool import ArenaPool


def test_a_block_is_used_again_where_it_is_large_enough() -> None:
    pool = ArenaPool()
    large = pool.take(4096, 0)
    pool.give(large)
    assert pool.take(64, 0) is large
    assert pool.take(64, large.address) is not large  # somebody has it


def test_the_last_block_comes_first_and_then_the_smallest() -> None:
    pool = ArenaPool()
    blocks = [pool.take(size, 0) for size in (1024, 256, 512)]
    for block in blocks:
        pool.give(block)
    assert pool.take(200, blocks[0].address) is blocks[0]
    assert pool.take(200, 0) is blocks[1]
    assert pool.take(300, 0) is blocks[2]


def test_small_blocks_are_let_go_before_a_larger_one_is_made() -> None:
    pool = ArenaPool()
    small = pool.take(64, 0)
    memory = weakref.ref(small.memory)
    pool.give(small)
    del small
    assert pool.take(1 << 20, 0).num_bytes == 1 << 20
    gc.collect()
    assert memory() is None


def test_a_large_block_grows_and_keeps_its_pages() -> None:
    """What was touched is not touched again: the system would have to clear new pages."""
    pool, size = ArenaPool(), 2 * LARGE_PAGE
    blocks = [pool.take(size, 0), pool.take(LARGE_PAGE, 0)]
    ctypes.memset(blocks[0].address, 7, size)
    smaller = weakref.ref(blocks[1].memory)
    for block in blocks:
        pool.give(block)
    del block, blocks
    grown = pool.take(5 * LARGE_PAGE + 1, 0)
    assert grown.num_bytes == 6 * LARGE_PAGE
    assert ctypes.string_at(grown.address, size) == b"\7" * size
    assert ctypes.string_at(grown.address + size, 4 * LARGE_PAGE) == bytes(4 * LARGE_PAGE)
    gc.collect()
    assert smaller() is None


def test_a_growth_that_does_not_fit_is_told() -> None:
    pool = ArenaPool()
    pool.give(pool.take(LARGE_PAGE, 0))
    with pytest.raises(OutOfMemory, match="the memory plan of a run needs"):
        pool.take(1 << 60, 0)
    assert pool.take(LARGE_PAGE, 0).num_bytes == LARGE_PAGE


def test_blocks_are_aligned_and_what_does_not_fit_is_told() -> None:
    assert ArenaPool().take(100, 0).address % 64 == 0
    with pytest.raises(OutOfMemory, match="the memory plan of a run needs"):
        ArenaPool().take(1 << 60, 0)


def test_no_two_threads_get_one_block() -> None:
    pool, used, twice = ArenaPool(), set[int](), list[int]()

    def work(number: int) -> None:
        for _ in range(300):
            block = pool.take(64 + 64 * (number % 3), 0)
            if block.address in used:
                twice.append(block.address)
            used.add(block.address)
            used.discard(block.address)
            pool.give(block)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert not twice


def test_many_new_pages_are_cleared_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: list[tuple[int, bool]] = []

    def clear(_memory: object, first: int) -> None:
        cleared.append((first, threading.current_thread() is not threading.main_thread()))

    monkeypatch.setattr(allocator, "_clear", clear)
    monkeypatch.setattr(allocator, "_CLEARED_FROM", 2 * LARGE_PAGE)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    pages = Pages(2 * LARGE_PAGE, "a test")
    pages.grow(3 * LARGE_PAGE)  # one page is cleared where it is touched
    pages.grow(5 * LARGE_PAGE)
    pages.grow(5 * LARGE_PAGE)
    assert cleared == [(0, True), (3 * LARGE_PAGE, True)]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})  # nobody could do it meanwhile
    pages.grow(9 * LARGE_PAGE)
    assert len(cleared) == 2


def test_a_growth_waits_for_the_thread_that_clears(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end, done = threading.Event(), threading.Event(), list[str]()

    def clear(*_: object) -> None:
        begun.set()
        may_end.wait(60)
        done.append("cleared")

    monkeypatch.setattr(allocator, "_clear", clear)
    monkeypatch.setattr(allocator, "_CLEARED_FROM", LARGE_PAGE)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    pages = Pages(LARGE_PAGE, "a test")
    assert begun.wait(60)
    threading.Timer(0.05, may_end.set).start()
    pages.grow(LARGE_PAGE)
    assert done == ["cleared"]


def test_no_thread_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(allocator, "_CLEARED_FROM", LARGE_PAGE)
    pages = Pages(LARGE_PAGE, "a test")
    pages.grow(2 * LARGE_PAGE)
    assert pages.num_bytes == 2 * LARGE_PAGE


def test_cleared_pages_keep_what_they_hold_and_are_not_touched_again() -> None:
    pages = Pages(4 * LARGE_PAGE, "a test")
    ctypes.memset(pages.address, 7, LARGE_PAGE)
    allocator._clear(pages._memory, 0)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    assert ctypes.string_at(pages.address, 1) == b"\7"
    ctypes.memset(pages.address + LARGE_PAGE, 8, 3 * LARGE_PAGE)
    after = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    assert ctypes.string_at(pages.address + LARGE_PAGE, 2) == b"\10\10"
    if tuple(map(int, platform.release().split(".")[:2])) >= (5, 14):
        assert after - before < 3  # of Python's own


@pytest.mark.skipif(platform.system() != "Linux", reason="counts page faults")
@pytest.mark.parametrize("processors", [1, 2])
def test_pages_that_were_prepared_are_not_touched_for_the_first_time(
    monkeypatch: pytest.MonkeyPatch, processors: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(processors)))
    pool, size = ArenaPool(), 16 << 20
    pool.prepare(size)
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.daemon:
            thread.join(10)
    block = pool.take(size // 2, 0)
    assert block.num_bytes >= size
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    ctypes.memset(block.address, 7, size)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before <= 2


def test_no_more_is_prepared_than_a_limit() -> None:
    pool = ArenaPool()
    pool.prepare(100)  # nothing that is worth it
    pool.prepare(1 << 60)
    assert pool.take(64, 0).num_bytes == 128 << 20
