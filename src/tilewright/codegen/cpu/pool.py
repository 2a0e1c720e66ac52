"""The thread pool, emitted as LLVM IR: fork and join in a fraction of a microsecond.

Input -> Output: a target -> a module that exports ``POOL_EXPORTS``; the runtime calls them through
``runtime.cpu.threads``, kernels call ``tw_pool_run``.
    Each thread takes its own part of the range chunk by chunk, then what is left of the others'.
Guarantees: every index goes to exactly one call of the body; ``run`` returns after all of them, and
waits for no thread that has not begun; calls while the pool is busy, nested calls, and calls in a
forked child run on the caller's thread.
Idle workers spin for a moment, then sleep until the next run: they use no processor time.
Not here: how work is cut (generate), who owns pools (runtime.cpu.threads).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.codegen.cpu.emit import (
    I1,
    I8,
    I32,
    I64,
    PTR,
    Builder,
    Module,
    Value,
    constant,
    index,
)
from tilewright.codegen.cpu.target import CpuTarget

POOL_EXPORTS = (
    "tw_pool_create",
    "tw_pool_stop",
    "tw_pool_destroy",
    "tw_pool_run",
    "tw_pool_size",
    "tw_pool_pin",
)

# Head of a pool, bytes.  The kernel hands a forked child this memory filled with zeros, so that
# its size reads 0 and everything runs on the caller.  Where that is not offered, PROCESS is set.
# RUN counts runs, FINISHED the iterations that workers have ever done, BEFORE those before the
# present run.
_SIZE, _PROCESS, _BYTES, _RUN, _BEFORE = 0, 8, 16, 24, 32
_LOCK, _FINISHED = 64, 128
# One slot a thread, the caller's first.  What a run is lies in one cache line, as a worker has to
# wait for each line that the caller has written.
_SLOTS, _SLOT_BYTES = 192, 640
_EPOCH, _CLAIM, _CHUNK, _HIGH, _TOP, _BODY, _CONTEXT, _SHARED = range(0, 64, 8)
_POOL, _NUMBER, _STOP = 64, 72, 80
_ASLEEP, _MUTEX, _CONDITION, _THREAD = 128, 192, 320, 448

_MOST_CHUNKS = 8  # of one part: what a thread that is held up leaves to others
_LEAST_GRAINS = 8  # of one chunk
_SPINS_A_CHECK = 256  # pauses between looks at the clock
_SPIN_NS = 20_000  # then yield the processor between looks
_AWAKE_NS = 1_500_000  # then sleep


def pool_module(target: CpuTarget) -> str:
    """A module with nothing but the pool, as text."""
    module = Module(target)
    add_pool(module)
    return module.text()


def add_pool(module: Module) -> None:
    """Defines the pool's functions in a module for Linux or macOS.

    ::

        ptr  tw_pool_create(i64 threads)     null when there is no memory; fewer threads if refused
        void tw_pool_stop(ptr)               joins the workers; later runs stay on their caller
        void tw_pool_destroy(ptr)            stops it and frees the memory; not to be used again
        void tw_pool_run(ptr pool, ptr body, ptr context, i64 total, i64 grain)
                                             body(context, lo, hi) on parts of 0 .. total, bounds
                                             multiples of grain; pool may be null
        i64  tw_pool_size(ptr)               threads that share the work, the caller included
        i64  tw_pool_pin(ptr, i64 worker, i64 cpu)   0 when done (Linux only); worker from 1
    """
    _emit_worker(module)
    _emit_part(module)
    _emit_work(module)
    _emit_wait(module)
    _emit_create(module)
    _emit_stop(module)
    _emit_destroy(module)
    _emit_run(module)
    _emit_size(module)
    _emit_pin(module)


def _is_macos(target: CpuTarget) -> bool:
    return "apple" in target.triple or "darwin" in target.triple


# --- small pieces ---------------------------------------------------------------------------------


def _field(b: Builder, base: Value, offset: int) -> Value:
    return b.gep(base, offset)


def _read(b: Builder, base: Value, offset: int) -> Value:
    return b.load(I64, _field(b, base, offset))


def _write(b: Builder, base: Value, offset: int, value: Value) -> None:
    b.store(value, _field(b, base, offset), 8)


def _atomic_read(b: Builder, base: Value, offset: int, order: str) -> Value:
    return b.result(I64, f"load atomic i64, ptr {_field(b, base, offset).ref} {order}, align 8")


def _write_atomically(b: Builder, base: Value, fields: Mapping[int, Value]) -> None:
    """What threads may read that do not use it."""
    for offset, value in fields.items():
        address = _field(b, base, offset)
        b.emit(f"store atomic {value.typed}, ptr {address.ref} monotonic, align 8")


def _atomic_write(b: Builder, base: Value, offset: int, value: Value, order: str) -> None:
    address = _field(b, base, offset)
    b.emit(f"store atomic {value.typed}, ptr {address.ref} {order}, align 8")


def _slot(b: Builder, pool: Value, worker: Value) -> Value:
    """Workers count from 1; the caller is 0."""
    return b.gep(pool, b.add(b.mul(worker, index(_SLOT_BYTES)), index(_SLOTS)))


def _pause(b: Builder) -> None:
    if b.target.architecture == "x86_64":
        b.call("llvm.x86.sse2.pause", None, [])
    else:
        b.call("llvm.aarch64.hint", None, [constant(I32, 1)])  # yield


def clock_ns(b: Builder, place: Value) -> Value:
    """Monotonic time in ns; ``place`` holds two i64."""
    monotonic = 6 if _is_macos(b.target) else 1
    b.call("clock_gettime", I32, [constant(I32, monotonic), place])
    seconds = b.mul(b.load(I64, place), index(1_000_000_000))
    return b.add(seconds, b.load(I64, b.gep(place, 8)))


# --- workers --------------------------------------------------------------------------------------


def _emit_worker(module: Module) -> None:
    """A worker's life: wait for its epoch to change, work on the run of that number, again."""
    b = module.function("tw_pool_worker", [("slot", PTR)], result=PTR, internal=True)
    slot = b.params["slot"]
    pool, number = b.load(PTR, _field(b, slot, _POOL)), _read(b, slot, _NUMBER)
    seen = b.alloca(I64, align=8)
    b.store(index(0), seen)
    with b.forever() as leave:
        epoch = b.call("tw_pool_wait", I64, [slot, b.load(I64, seen)])
        b.store(epoch, seen)
        work = b.label("work")
        stopped = _atomic_read(b, slot, _STOP, "monotonic")
        b.branch(b.icmp("ne", stopped, index(0)), leave, work)
        b.enter(work)
        b.call("tw_pool_work", None, [pool, number, epoch])
    b.ret(constant(PTR, 0))


def _emit_work(module: Module) -> None:
    """What a worker does of a run: its own part, then what is left of the others'."""
    params = [("pool", PTR), ("number", I64), ("run", I64)]
    b = module.function("tw_pool_work", params, internal=True, noinline=True)
    pool, number, run = (b.params[name] for name in ("pool", "number", "run"))
    own = _slot(b, pool, number)
    parts = _atomic_read(b, own, _SHARED, "monotonic")
    _report(b, pool, b.call("tw_pool_part", I64, [own, run]))
    with b.loop(1, parts) as turn:
        place = b.add(number, turn)
        wrapped = b.select(b.icmp("slt", place, parts), place, b.sub(place, parts))
        _report(b, pool, b.call("tw_pool_part", I64, [_slot(b, pool, wrapped), run]))


def _report(b: Builder, pool: Value, done: Value) -> None:
    with b.when(b.icmp("sgt", done, index(0))):
        finished = _field(b, pool, _FINISHED)
        b.result(I64, f"atomicrmw add ptr {finished.ref}, {done.typed} release, align 8")


def _emit_part(module: Module) -> None:
    """Claims and does chunks of one part until none is left; returns the iterations done.

    A claim is one word of each part: the run's number, modulo 2**32, over the chunks left.  It
    changes by compare-and-swap only, so that a thread that comes late, to a run that has ended, can
    claim nothing: whatever it has read of another run by then is not used.
    """
    params = [("slot", PTR), ("run", I64)]
    b = module.function("tw_pool_part", params, result=I64, internal=True, noinline=True)
    slot, tag = b.params["slot"], b.shl(b.params["run"], index(32))
    done = b.alloca(I64, align=8)
    b.store(index(0), done)
    with b.forever() as empty:
        word = _atomic_read(b, slot, _CLAIM, "acquire")
        left = b.and_(word, index((1 << 32) - 1))
        for useless in (b.icmp("ne", b.sub(word, left), tag), b.icmp("eq", left, index(0))):
            some = b.label("some")
            b.branch(useless, empty, some)
            b.enter(some)
        chunk, high, top = (_atomic_read(b, slot, at, "monotonic") for at in (_CHUNK, _HIGH, _TOP))
        body, context = (_atomic_pointer(b, slot, at) for at in (_BODY, _CONTEXT))
        with b.when(_swap(b, _field(b, slot, _CLAIM), word, b.sub(word, index(1)))):
            low = b.sub(top, b.mul(left, chunk))
            end = b.intrinsic("smin", I64, [high, b.add(low, chunk)])
            b.call(body, None, [context, low, end])
            b.store(b.add(b.load(I64, done), b.sub(end, low)), done)
    b.ret(b.load(I64, done))


def _atomic_pointer(b: Builder, base: Value, offset: int) -> Value:
    return b.result(PTR, f"load atomic ptr, ptr {_field(b, base, offset).ref} monotonic, align 8")


def _swap(b: Builder, place: Value, old: Value, new: Value) -> Value:
    """i1: the word was as expected, and is the new one now."""
    words = f"ptr {place.ref}, {old.typed}, {new.typed}"
    pair = b.result(I64, f"cmpxchg {words} acq_rel monotonic, align 8")
    return b.result(I1, f"extractvalue {{ i64, i1 }} {pair.ref}, 1")


def _emit_wait(module: Module) -> None:
    """Returns the slot's epoch when it differs from ``seen``: spin, then yield, then sleep."""
    b = module.function(
        "tw_pool_wait", [("slot", PTR), ("seen", I64)], result=I64, internal=True, noinline=True
    )
    slot, seen = b.params["slot"], b.params["seen"]
    clock = b.alloca(I64, 2)
    start = b.alloca(I64, align=8)
    b.store(index(0), start)
    with b.forever() as tired:
        with b.loop(0, _SPINS_A_CHECK):
            _return_if_new(b, slot, seen)
            _pause(b)
        now = clock_ns(b, clock)
        began = b.load(I64, start)
        is_first = b.icmp("eq", began, index(0))
        b.store(b.select(is_first, now, began), start)
        waited = b.sub(now, b.load(I64, start))
        with b.when(b.icmp("sgt", waited, index(_SPIN_NS))):
            b.call("sched_yield", I32, [])
        more = b.label("more")
        b.branch(b.icmp("sgt", waited, index(_AWAKE_NS)), tired, more)
        b.enter(more)
    _sleep(b, slot, seen)


def _return_if_new(b: Builder, slot: Value, seen: Value) -> None:
    epoch = _atomic_read(b, slot, _EPOCH, "acquire")
    found, same = b.label("found"), b.label("same")
    b.branch(b.icmp("ne", epoch, seen), found, same)
    b.enter(found)
    b.emit(f"ret i64 {epoch.ref}")
    b.enter(same)


def _sleep(b: Builder, slot: Value, seen: Value) -> None:
    """Blocks on the condition until the epoch changes, and returns it.

    No wake-up is lost: this thread sets ASLEEP and then reads EPOCH, the caller sets EPOCH and then
    reads ASLEEP, all sequentially consistent, so at least one of them sees the other's write.
    """
    mutex, condition = _field(b, slot, _MUTEX), _field(b, slot, _CONDITION)
    b.call("pthread_mutex_lock", I32, [mutex])
    _atomic_write(b, slot, _ASLEEP, index(1), "seq_cst")
    with b.forever() as awake:
        epoch = _atomic_read(b, slot, _EPOCH, "seq_cst")
        rest = b.label("rest")
        b.branch(b.icmp("ne", epoch, seen), awake, rest)
        b.enter(rest)
        b.call("pthread_cond_wait", I32, [condition, mutex])
    _atomic_write(b, slot, _ASLEEP, index(0), "monotonic")
    b.call("pthread_mutex_unlock", I32, [mutex])
    b.ret(_atomic_read(b, slot, _EPOCH, "acquire"))


def _wake(b: Builder, slot: Value, run: Value) -> None:
    """Publishes what was written for a run."""
    _atomic_write(b, slot, _EPOCH, run, "seq_cst")
    asleep = _atomic_read(b, slot, _ASLEEP, "seq_cst")
    with b.when(b.icmp("ne", asleep, index(0))):
        mutex = _field(b, slot, _MUTEX)
        b.call("pthread_mutex_lock", I32, [mutex])
        b.call("pthread_cond_signal", I32, [_field(b, slot, _CONDITION)])
        b.call("pthread_mutex_unlock", I32, [mutex])


def _next_run(b: Builder, pool: Value) -> Value:
    run = b.add(_read(b, pool, _RUN), index(1))
    _write(b, pool, _RUN, run)
    return run


# --- creation and destruction ---------------------------------------------------------------------


def _emit_create(module: Module) -> None:
    b = module.function("tw_pool_create", [("threads", I64)], result=PTR)
    threads = b.params["threads"]
    needed = b.add(b.mul(threads, index(_SLOT_BYTES)), index(_SLOTS + 4095))
    size = b.and_(needed, index(-4096))
    macos = _is_macos(b.target)
    flags = 0x1002 if macos else 0x22  # private, anonymous
    arguments = [constant(PTR, 0), size, constant(I32, 3), constant(I32, flags)]
    pool = b.call("mmap", PTR, [*arguments, constant(I32, -1), index(0)])
    with b.when(b.icmp("eq", b.ptrtoint(pool), index(-1))):
        b.ret(constant(PTR, 0))
    process = b.sext(b.call("getpid", I32, []), I64)
    if not macos:
        wiped = b.call("madvise", I32, [pool, size, constant(I32, 18)])  # MADV_WIPEONFORK
        process = b.select(b.icmp("eq", wiped, constant(I32, 0)), index(0), process)
    _write(b, pool, _PROCESS, process)
    _write(b, pool, _BYTES, size)
    count = b.alloca(I64, align=8)
    b.store(index(1), count)
    _with_signals_blocked(b, lambda: _start_workers(b, pool, threads, count))
    _write(b, pool, _SIZE, b.load(I64, count))
    b.ret(pool)


def _with_signals_blocked(b: Builder, body: Callable[[], None]) -> None:
    """Workers inherit a full signal mask: handlers stay with the threads of the application."""
    everything, before = b.alloca(I8, 128), b.alloca(I8, 128)
    set_mask = constant(I32, 3 if _is_macos(b.target) else 2)
    b.call("sigfillset", I32, [everything])
    b.call("pthread_sigmask", I32, [set_mask, everything, before])
    body()
    b.call("pthread_sigmask", I32, [set_mask, before, constant(PTR, 0)])


def _start_workers(b: Builder, pool: Value, threads: Value, count: Value) -> None:
    start = Value(PTR, "@tw_pool_worker")
    with b.loop(1, threads) as worker, b.when(b.icmp("eq", b.load(I64, count), worker)):
        # (After one refusal no further thread is asked for.)
        slot = _slot(b, pool, worker)
        b.store(pool, _field(b, slot, _POOL), 8)
        _write(b, slot, _NUMBER, worker)
        b.call("pthread_mutex_init", I32, [_field(b, slot, _MUTEX), constant(PTR, 0)])
        b.call("pthread_cond_init", I32, [_field(b, slot, _CONDITION), constant(PTR, 0)])
        arguments = [_field(b, slot, _THREAD), constant(PTR, 0), start, slot]
        refused = b.call("pthread_create", I32, arguments)
        started = b.icmp("eq", refused, constant(I32, 0))
        b.store(b.add(b.load(I64, count), b.zext(started, I64)), count)


def _emit_stop(module: Module) -> None:
    b = module.function("tw_pool_stop", [("pool", PTR)])
    pool = b.params["pool"]
    with b.when(_runs_alone(b, pool, _read(b, pool, _SIZE), least=1)):
        b.ret()
    with b.forever() as mine:  # a run in progress ends first
        wait = b.label("wait")
        b.branch(_is_taken(b, _field(b, pool, _LOCK)), wait, mine)
        b.enter(wait)
        b.call("sched_yield", I32, [])
    size = _read(b, pool, _SIZE)
    _write(b, pool, _SIZE, index(1))
    run = _next_run(b, pool)
    with b.loop(1, size) as worker:
        slot = _slot(b, pool, worker)
        _atomic_write(b, slot, _STOP, index(1), "monotonic")
        _wake(b, slot, run)
    with b.loop(1, size) as worker:
        thread = _read(b, _slot(b, pool, worker), _THREAD)
        b.call("pthread_join", I32, [thread, constant(PTR, 0)])
    _atomic_write(b, pool, _LOCK, index(0), "release")


def _emit_destroy(module: Module) -> None:
    b = module.function("tw_pool_destroy", [("pool", PTR)])
    pool = b.params["pool"]
    with b.when(_runs_alone(b, pool, _read(b, pool, _SIZE), least=1)):
        b.ret()
    b.call("tw_pool_stop", None, [pool])
    b.call("munmap", I32, [pool, _read(b, pool, _BYTES)])


# --- running --------------------------------------------------------------------------------------


def _runs_alone(b: Builder, pool: Value, size: Value, least: int) -> Value:
    """Fewer threads than that, or another process than the one that made the pool."""
    process = _read(b, pool, _PROCESS)

    def is_foreign() -> Value:
        return b.icmp("ne", b.sext(b.call("getpid", I32, []), I64), process)

    known = b.icmp("ne", process, index(0))
    foreign = b.if_else(known, is_foreign, lambda: constant(known.type, 0))
    return b.or_(foreign, b.icmp("slt", size, index(least)))


def _emit_run(module: Module) -> None:
    params = [("pool", PTR), ("body", PTR), ("context", PTR), ("total", I64), ("grain", I64)]
    b = module.function("tw_pool_run", params)
    pool, body, context = b.params["pool"], b.params["body"], b.params["context"]
    total, grain = b.params["total"], b.params["grain"]
    alone = b.label("alone")

    def unless(condition: Value) -> None:
        here = b.label("shared")
        b.branch(condition, alone, here)
        b.enter(here)

    grain = b.intrinsic("smax", I64, [grain, index(1)])
    units = _ceildiv(b, total, grain)
    unless(b.icmp("slt", units, index(2)))
    unless(b.icmp("eq", b.ptrtoint(pool), index(0)))
    size = _read(b, pool, _SIZE)
    unless(_runs_alone(b, pool, size, least=2))
    lock = _field(b, pool, _LOCK)
    unless(_is_taken(b, lock))
    # A pool that has been stopped meanwhile has size 1: one part, on this thread.
    parts = b.intrinsic("smin", I64, [units, _read(b, pool, _SIZE)])
    run = _next_run(b, pool)
    # Small parts have one chunk, which only a caller that waits for long takes from its owner.
    small = b.icmp("slt", b.sdiv(units, parts), index(2 * _LEAST_GRAINS))
    shared = b.select(small, index(1), parts)
    with b.loop(b.zext(small, I64), parts) as part:
        slot = _slot(b, pool, part)
        _write_atomically(b, slot, {_BODY: body, _CONTEXT: context, _SHARED: shared})
        _offer(b, slot, run, (total, units, grain), (part, parts))
        with b.when(b.icmp("sgt", part, index(0))):
            _wake(b, slot, run)

    def whole() -> Value:
        first = b.intrinsic("smin", I64, [total, b.mul(b.sdiv(units, parts), grain)])
        b.call(body, None, [context, index(0), first])
        return first

    def in_chunks() -> Value:
        return b.call("tw_pool_part", I64, [_slot(b, pool, index(0)), run])

    wanted = b.alloca(I64, align=8)
    everything = b.add(_read(b, pool, _BEFORE), total)
    b.store(b.sub(everything, b.if_else(small, whole, in_chunks)), wanted)
    with b.forever() as done:
        _spin(b, pool, b.load(I64, wanted), done)
        with b.loop(1, parts) as part:
            taken = b.call("tw_pool_part", I64, [_slot(b, pool, part), run])
            b.store(b.sub(b.load(I64, wanted), taken), wanted)
        b.call("sched_yield", I32, [])
    _write(b, pool, _BEFORE, b.load(I64, wanted))
    _atomic_write(b, pool, _LOCK, index(0), "release")
    b.ret()
    b.enter(alone)
    with b.when(b.icmp("sgt", total, index(0))):
        b.call(body, None, [context, index(0), total])


def _is_taken(b: Builder, lock: Value) -> Value:
    """Tries to take the lock; i1: somebody else has it."""
    busy = b.result(I64, f"load atomic i64, ptr {lock.ref} monotonic, align 8")

    def compete() -> Value:
        old = b.result(I64, f"atomicrmw xchg ptr {lock.ref}, i64 1 acquire, align 8")
        return b.icmp("ne", old, index(0))

    is_free = b.icmp("eq", busy, index(0))
    return b.if_else(is_free, compete, lambda: constant(is_free.type, 1))


def _offer(
    b: Builder,
    slot: Value,
    run: Value,
    work: tuple[Value, Value, Value],
    part: tuple[Value, Value],
) -> None:
    """Cuts a part into chunks of equal numbers of grains, and lets threads claim them."""
    (total, units, grain), (number, parts) = work, part
    first, last = (b.sdiv(b.mul(units, at), parts) for at in (number, b.add(number, index(1))))
    size = b.sub(last, first)
    most = b.intrinsic("smin", I64, [b.sdiv(size, index(_LEAST_GRAINS)), index(_MOST_CHUNKS)])
    grains = _ceildiv(b, size, b.intrinsic("smax", I64, [most, index(1)]))
    count, chunk = _ceildiv(b, size, grains), b.mul(grains, grain)
    top = b.add(b.mul(first, grain), b.mul(count, chunk))
    high = b.intrinsic("smin", I64, [total, b.mul(last, grain)])
    _write_atomically(b, slot, {_CHUNK: chunk, _HIGH: high, _TOP: top})
    _atomic_write(b, slot, _CLAIM, b.or_(b.shl(run, index(32)), count), "release")


def _ceildiv(b: Builder, whole: Value, part: Value) -> Value:
    return b.sdiv(b.add(whole, b.sub(part, index(1))), part)


def _spin(b: Builder, pool: Value, wanted: Value, done: str) -> None:
    """Goes on at ``done`` when workers have done so many iterations, or below after a while."""
    with b.loop(0, _SPINS_A_CHECK):
        later = b.label("later")
        finished = _atomic_read(b, pool, _FINISHED, "acquire")
        b.branch(b.icmp("eq", finished, wanted), done, later)
        b.enter(later)
        _pause(b)


def _emit_size(module: Module) -> None:
    b = module.function("tw_pool_size", [("pool", PTR)], result=I64)
    b.ret(b.intrinsic("smax", I64, [_read(b, b.params["pool"], _SIZE), index(1)]))


def _emit_pin(module: Module) -> None:
    """Restricts a worker to one processor of the first 1024."""
    params = [("pool", PTR), ("worker", I64), ("cpu", I64)]
    b = module.function("tw_pool_pin", params, result=I64)
    if _is_macos(b.target):
        b.ret(index(-1))
        return
    cpus = b.alloca(I64, 16)
    b.store(constant(I64.with_lanes(16), 0), cpus, 64)
    word = b.gep(cpus, b.lshr(b.params["cpu"], index(6)), 8)
    b.store(b.shl(index(1), b.and_(b.params["cpu"], index(63))), word)
    thread = _read(b, _slot(b, b.params["pool"], b.params["worker"]), _THREAD)
    result = b.call("pthread_setaffinity_np", I32, [thread, index(128), cpus])
    b.ret(b.sext(result, I64))
