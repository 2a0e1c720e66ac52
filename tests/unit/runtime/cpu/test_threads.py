"""The thread pool under load: every index exactly once, whoever calls, whatever sleeps."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import pytest

from tilewright.codegen.cpu.emit import I64, PTR, Module, Value, index
from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.pool import POOL_EXPORTS, add_pool
from tilewright.codegen.cpu.target import host_target
from tilewright.core.errors import BadOption
from tilewright.runtime.cpu.threads import ThreadPool, shared_pool

_EXTRA = ("count", "repeat", "nested")


@cache
def _code() -> bytes:
    """The pool, and bodies: ``count`` adds 1 to context[lo..hi); ``nested`` runs it on the pool."""
    module = Module(host_target())
    add_pool(module)
    body = [("context", PTR), ("lo", I64), ("hi", I64)]
    b = module.function("count", body)
    with b.loop(b.params["lo"], b.params["hi"]) as i:
        place = b.gep(b.params["context"], i, 8)
        b.store(b.add(b.load(I64, place), index(1)), place)
    b = module.function("nested", body)
    # context: the pool, then 64 counters for each outer index
    pool = b.load(PTR, b.params["context"])
    with b.loop(b.params["lo"], b.params["hi"]) as i:
        counters = b.gep(b.params["context"], b.add(index(8), b.mul(i, index(512))))
        count = Value(PTR, "@count")
        b.call("tw_pool_run", None, [pool, count, counters, index(64), index(1)])
    names = ["pool", "body", "context"]
    params = [(name, PTR) for name in names] + [(name, I64) for name in ("total", "grain", "times")]
    b = module.function("repeat", params)
    with b.loop(0, b.params["times"]):
        arguments = [b.params[name] for name in (*names, "total", "grain")]
        b.call("tw_pool_run", None, arguments)
    return compile_module(module.text(), module.target)


def _repeat(pool: ThreadPool) -> Callable[..., Any]:
    return pool.loaded.function("repeat", None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 3)


def _count(pool: ThreadPool, total: int, grain: int, times: int, handle: int | None = None) -> Any:
    counters = np.zeros(max(total, 1) + 8, np.int64)
    body = pool.loaded.address("count")
    used = pool.handle if handle is None else handle
    _repeat(pool)(used, body, counters.ctypes.data, total, grain, times)
    assert (counters[total:] == 0).all()
    return counters[:total]


def test_exports_are_those_that_the_pool_defines() -> None:
    pool = shared_pool(_code(), 1, _EXTRA)
    assert set(pool.loaded.exports) == {*POOL_EXPORTS, *_EXTRA}


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("total", [0, 1, 2, 7, 64, 1000])
@pytest.mark.parametrize("grain", [0, 1, 16, 999, 5000])
def test_every_index_once(threads: int, total: int, grain: int) -> None:
    pool = shared_pool(_code(), threads, _EXTRA)
    assert pool.size == threads
    assert (_count(pool, total, grain, times=3) == 3).all()


def test_bounds_are_multiples_of_the_grain() -> None:
    pool = shared_pool(_code(), 3, _EXTRA)
    seen: list[tuple[int, int]] = []

    def record(context: int, lo: int, hi: int) -> None:
        del context
        seen.append((lo, hi))

    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    body = signature(record)
    address = ctypes.cast(body, ctypes.c_void_p).value
    _repeat(pool)(pool.handle, address, 0, 100, 16, 1)
    seen.sort()
    assert [lo for lo, _ in seen] == [0, *(hi for _, hi in seen[:-1])]
    assert seen[-1][1] == 100
    assert len(seen) == 3
    assert all(lo % 16 == 0 for lo, _ in seen)


@pytest.mark.parametrize(("part", "chunks"), [(8, 3), (128, 24)])
def test_others_do_what_a_thread_that_is_held_up_has_not_begun(part: int, chunks: int) -> None:
    """The first worker rests in its first call until everything else is done."""
    pool = shared_pool(_code(), 3, _EXTRA)
    caller = threading.get_ident()
    seen: list[tuple[int, int, int]] = []
    resting: list[int] = []

    def body(context: int, lo: int, hi: int) -> None:
        del context
        mine = threading.get_ident()
        seen.append((lo, hi, mine))
        if mine != caller and not resting:
            resting.append(mine)
            end = time.monotonic() + 20
            while len(seen) < chunks and time.monotonic() < end:
                time.sleep(0.001)

    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    call = signature(body)
    address = ctypes.cast(call, ctypes.c_void_p).value
    _repeat(pool)(pool.handle, address, 0, 3 * part, 1, 1)
    assert sum(hi - lo for lo, hi, _ in seen) == 3 * part
    assert len({lo for lo, _, _ in seen}) == len(seen) == chunks
    assert all(sum(one == by for _, _, by in seen) == 1 for one in resting)


def test_no_wake_up_is_lost_after_naps() -> None:
    """Pauses around the moment at which workers go to sleep."""
    pool = shared_pool(_code(), 2, _EXTRA)
    for pause_ms in [0.0, 0.5, 1.4, 1.5, 1.6, 2.0, 3.0] * 20:
        time.sleep(pause_ms / 1000)
        assert (_count(pool, 64, 1, times=2) == 2).all()


def test_millions_of_short_runs() -> None:
    pool = shared_pool(_code(), 2, _EXTRA)
    assert (_count(pool, 16, 1, times=200_000) == 200_000).all()


def test_several_callers_at_once() -> None:
    pool = shared_pool(_code(), 2, _EXTRA)

    def call(_: int) -> bool:
        return all((_count(pool, 64, 1, times=500) == 500).all() for _ in range(40))

    with ThreadPoolExecutor(4) as callers:
        assert all(callers.map(call, range(4)))


def test_nested_runs_stay_on_their_thread() -> None:
    pool = shared_pool(_code(), 2, _EXTRA)
    outer = 8
    context = np.zeros(1 + 64 * outer, np.int64)
    context[0] = pool.handle
    body = pool.loaded.address("nested")
    _repeat(pool)(pool.handle, body, context.ctypes.data, outer, 1, 100)
    assert (context[1:] == 100).all()


def test_no_pool_is_the_callers_thread() -> None:
    assert (_count(shared_pool(_code(), 1, _EXTRA), 100, 1, times=2, handle=0) == 2).all()


def test_idle_pools_use_no_processor_time() -> None:
    pool = shared_pool(_code(), 3, _EXTRA)
    _count(pool, 64, 1, times=1)
    time.sleep(0.05)
    before = resource.getrusage(resource.RUSAGE_SELF)
    time.sleep(0.4)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert used < 0.1  # three spinning threads would use 0.8 s here on two processors


def test_engines_share_pools() -> None:
    assert shared_pool(_code(), 2, _EXTRA) is shared_pool(_code(), 2, _EXTRA)
    assert shared_pool(_code(), 2, _EXTRA) is not shared_pool(_code(), 3, _EXTRA)


def test_closed_pool_works_on_the_caller() -> None:
    pool = ThreadPool(_code(), 3, _EXTRA)
    tasks = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else None
    pool.close()
    if tasks is not None:
        assert len(os.listdir("/proc/self/task")) == tasks - 2
    assert pool.size == 1
    assert (_count(pool, 64, 1, times=5) == 5).all()
    pool.close()


def test_destroyed_pool_frees_its_threads() -> None:
    pool = ThreadPool(_code(), 2, _EXTRA)
    create = pool.loaded.function("tw_pool_create", ctypes.c_void_p, ctypes.c_int64)
    destroy = pool.loaded.function("tw_pool_destroy", None, ctypes.c_void_p)
    for _ in range(50):
        destroy(create(3))
    pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux binds threads to processors")
def test_workers_can_be_pinned() -> None:
    pool = ThreadPool(_code(), 2, _EXTRA)
    allowed = sorted(os.sched_getaffinity(0))
    assert pool.pin([allowed[0], allowed[-1]])
    assert not pool.pin([allowed[0], 1000])  # no such processor
    assert (_count(pool, 64, 1, times=100) == 100).all()
    pool.close()


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_impossible_numbers_are_refused(threads: int) -> None:
    with pytest.raises(BadOption, match="threads"):
        ThreadPool(_code(), threads)


_FORK = """
import os, sys
from unit.runtime.cpu.test_threads import _EXTRA, _code, _count
from tilewright.runtime.cpu.threads import shared_pool
pool = shared_pool(_code(), 2, _EXTRA)
old = pool.handle
assert (_count(pool, 64, 1, 10) == 10).all()
child = os.fork()
if child == 0:
    inherited = (_count(pool, 64, 1, 10, handle=old) == 10).all()  # on its own thread
    renewed = (_count(pool, 64, 1, 10) == 10).all()
    sys.exit(0 if inherited and renewed and pool.handle != old and pool.size == 2 else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert (_count(pool, 64, 1, 10, handle=old) == 10).all()
print("both work")
"""


def test_forked_child_gets_threads_of_its_own() -> None:
    """In a process of its own; it also shows that workers do not outlive the interpreter."""
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _FORK],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "both work\n"), done.stderr
