"""Loops that reach the roofs of a CPU: multiply-adds in registers, streams through memory.

Input -> Output: a target -> a module with the thread pool and a loop for every roof.
Every loop is a body of the pool, ``body(context, lo, hi)``: the context has one row of eight words
a thread; words are repeats, address, elements, and the address that results go to.
Guarantees: accumulators stay in registers and depend on each other only from one repeat to the
next; no loop reads or makes denormals.
Not here: calling them and taking times (probe).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.codegen.cpu.emit import (
    BFLOAT,
    FLOAT,
    I8,
    I32,
    I64,
    PTR,
    Builder,
    Module,
    Type,
    Value,
    constant,
    float_type,
    index,
)
from tilewright.codegen.cpu.pool import add_pool
from tilewright.codegen.cpu.target import CpuTarget

ROW_WORDS = 8
CANARY_STEPS = 64  # dependent single-cycle instructions in one repeat
OPERAND_BYTE = 0x3F  # of factors: a small ordinary number in every type
SCRATCH_BYTES = 256  # for the results of one thread
# Arguments of tw_pool_run: the pool, a body, its context, iterations, iterations at a time.
RUN = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
UNROLL_VECTORS = 8  # arrays are whole multiples of so many vectors
_REPEATS, _ADDRESS, _ELEMENTS, _RESULT = 0, 1, 2, 3
_PEAK_UNROLL = 2

Step = Callable[[Builder, Value, Value, Value], Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakLoop:
    """A loop of multiply-adds.

    Attributes:
        symbol: its function.
        dtype: type of the factors.
        instruction: what it consists of.
        flops_per_repeat: operations of one repeat; a multiply-add counts 2.
    """

    symbol: str
    dtype: str
    instruction: str
    flops_per_repeat: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeModule:
    """The loops of a target.

    Attributes:
        text: LLVM IR.
        peaks: the multiply-adds that the target has.
        exports: every symbol to load.
    """

    text: str
    peaks: tuple[PeakLoop, ...]
    exports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one type multiplies and adds: operand and sum types, and the instruction."""

    dtype: str
    instruction: str
    operand: Type
    total: Type
    step: Step


def probe_module(target: CpuTarget) -> ProbeModule:
    """All loops that the target can run."""
    module = Module(target)
    add_pool(module)
    peaks = tuple(_emit_peak(module, kind) for kind in _kinds(target))
    streams = ("probe_read", "probe_update", "probe_triad", "probe_triad_streaming")
    _emit_read(module)
    _emit_update(module)
    _emit_triad(module, "probe_triad", streaming=False)
    _emit_triad(module, "probe_triad_streaming", streaming=True)
    _emit_fill(module)
    _emit_canary(module)
    _emit_ping_pong(module)
    _emit_fork(module)
    symbols = [peak.symbol for peak in peaks]
    return ProbeModule(
        text=module.text(),
        peaks=peaks,
        exports=(
            *symbols,
            *streams,
            "probe_fill",
            "probe_canary",
            "probe_ping_pong",
            "probe_fork",
            "probe_nothing",
        ),
    )


def _kinds(target: CpuTarget) -> list[_Kind]:
    bits = 8 * target.vector_bytes

    def fma(b: Builder, x: Value, y: Value, total: Value) -> Value:
        return b.fma(x, y, total)

    def called(intrinsic: str) -> Step:
        return lambda b, x, y, total: b.call(intrinsic, total.type, [total, x, y])

    kinds = []
    widths = [("float64", 64), ("float32", 32), *([("float16", 16)] if target.has_fp16 else [])]
    for dtype, width in widths:
        kind = float_type(width, target.lanes(width))
        kinds.append(_Kind(dtype, f"fma {bits}-bit", kind, kind, fma))
    if target.architecture == "x86_64" and target.has_vnni and bits >= 256:
        operand, total = I8.with_lanes(target.lanes(8)), I32.with_lanes(target.lanes(32))
        step = called(f"llvm.x86.avx512.vpdpbusd.{bits}")
        kinds.append(_Kind("int8", f"vpdpbusd {bits}-bit", operand, total, step))
    if target.architecture == "x86_64" and target.has_bf16 and bits >= 256:
        operand, total = BFLOAT.with_lanes(target.lanes(16)), FLOAT.with_lanes(target.lanes(32))
        step = called(f"llvm.x86.avx512bf16.dpbf16ps.{bits}")
        kinds.append(_Kind("bfloat16", f"vdpbf16ps {bits}-bit", operand, total, step))
    return kinds


# --- bodies of the pool ---------------------------------------------------------------------------


def _body(module: Module, symbol: str, emit: Callable[[Builder, Value], None]) -> None:
    """A function over the rows lo .. hi of the context."""
    b = module.function(symbol, [("context", PTR), ("lo", I64), ("hi", I64)])
    with b.loop(b.params["lo"], b.params["hi"]) as part:
        emit(b, b.gep(b.params["context"], b.mul(part, index(8 * ROW_WORDS))))


def _word(b: Builder, row: Value, number: int) -> Value:
    return b.load(I64, b.gep(row, 8 * number))


def _address(b: Builder, row: Value, number: int) -> Value:
    return b.inttoptr(_word(b, row, number))


def _emit_peak(module: Module, kind: _Kind) -> PeakLoop:
    symbol = f"probe_peak_{kind.dtype}"
    num_sums = 24 if module.target.num_vectors >= 32 else 12

    def emit(b: Builder, row: Value) -> None:
        source, result = _address(b, row, _ADDRESS), _address(b, row, _RESULT)
        x = b.load(kind.operand, source)
        y = b.load(kind.operand, b.gep(source, kind.operand.bytes))
        sums = [b.alloca(kind.total) for _ in range(num_sums)]
        for place in sums:
            b.store(b.load(kind.total, source), place)
        with b.loop(0, _word(b, row, _REPEATS)):
            for _ in range(_PEAK_UNROLL):
                for place in sums:
                    b.store(kind.step(b, x, y, b.load(kind.total, place)), place)
        _store_sum(b, kind.total, sums, result)

    _body(module, symbol, emit)
    multiply_adds = kind.operand.lanes * num_sums * _PEAK_UNROLL
    return PeakLoop(
        symbol=symbol,
        dtype=kind.dtype,
        instruction=kind.instruction,
        flops_per_repeat=2 * multiply_adds,
    )


def _store_sum(b: Builder, kind: Type, places: list[Value], result: Value) -> None:
    total = b.load(kind, places[0])
    for place in places[1:]:
        total = b.add(total, b.load(kind, place))
    b.store(total, result)


def _vector(module: Module) -> Type:
    return float_type(32, module.target.lanes(32))


def _emit_read(module: Module) -> None:
    """Sums an array of float32."""
    kind = _vector(module)

    def emit(b: Builder, row: Value) -> None:
        source, elements = _address(b, row, _ADDRESS), _word(b, row, _ELEMENTS)
        sums = [b.alloca(kind) for _ in range(UNROLL_VECTORS)]
        for place in sums:
            b.store(constant(kind, 0.0), place)
        step = UNROLL_VECTORS * kind.lanes
        with b.loop(0, _word(b, row, _REPEATS)), b.loop(0, elements, step) as i:
            for number, place in enumerate(sums):
                here = b.gep(source, b.add(i, index(number * kind.lanes)), 4)
                # Volatile keeps addresses ascending.  LLVM's scheduler reverses the loads of an
                # iteration otherwise, and a prefetcher then reads DRAM at a third of its speed.
                loaded = b.result(
                    kind, f"load volatile {kind.text}, ptr {here.ref}, align {kind.bytes}"
                )
                b.store(b.add(b.load(kind, place), loaded), place)
        _store_sum(b, kind, sums, _address(b, row, _RESULT))

    _body(module, "probe_read", emit)


def _emit_update(module: Module) -> None:
    """``a = 2 - a`` in place: each line goes in and out, and none is fetched only to be written."""
    kind = _vector(module)

    def emit(b: Builder, row: Value) -> None:
        source, two = _address(b, row, _ADDRESS), constant(kind, 2.0)
        elements, step = _word(b, row, _ELEMENTS), UNROLL_VECTORS * kind.lanes
        with b.loop(0, _word(b, row, _REPEATS)), b.loop(0, elements, step) as i:
            for number in range(UNROLL_VECTORS):
                place = b.gep(source, b.add(i, index(number * kind.lanes)), 4)
                b.store(b.sub(two, b.load(kind, place, kind.bytes)), place, kind.bytes)

    _body(module, "probe_update", emit)


def _emit_triad(module: Module, symbol: str, *, streaming: bool) -> None:
    """``a = 3 b + c`` on three float32 arrays; word 4 is their distance in bytes."""
    kind = _vector(module)

    def emit(b: Builder, row: Value) -> None:
        first, distance = _address(b, row, _ADDRESS), _word(b, row, 4)
        second = b.gep(first, distance)
        third = b.gep(second, distance)
        factor = constant(kind, 3.0)
        elements, step = _word(b, row, _ELEMENTS), UNROLL_VECTORS * kind.lanes
        with b.loop(0, _word(b, row, _REPEATS)), b.loop(0, elements, step) as i:
            for number in range(UNROLL_VECTORS):
                offset = b.add(i, index(number * kind.lanes))
                x, y = (b.load(kind, b.gep(p, offset, 4), kind.bytes) for p in (second, third))
                value, place = b.fma(x, factor, y), b.gep(first, offset, 4)
                if streaming:
                    b.stream(value, place)
                else:
                    b.store(value, place, kind.bytes)

    _body(module, symbol, emit)


def _emit_fill(module: Module) -> None:
    """Writes ones, so that the thread that will use the pages is the first to touch them."""
    kind = _vector(module)

    def emit(b: Builder, row: Value) -> None:
        start = _address(b, row, _ADDRESS)
        with b.loop(0, _word(b, row, _ELEMENTS), kind.lanes) as i:
            b.store(constant(kind, 1.0), b.gep(start, i, 4), kind.bytes)

    _body(module, "probe_fill", emit)


def _emit_canary(module: Module) -> None:
    """A chain of dependent ``xor`` and ``add`` of registers, one cycle each."""

    def emit(b: Builder, row: Value) -> None:
        source = _address(b, row, _ADDRESS)
        mask, step = b.load(I64, source), b.load(I64, b.gep(source, 8))
        chain = b.alloca(I64, align=8)
        b.store(mask, chain)
        with b.loop(0, _word(b, row, _REPEATS)):
            value = b.load(I64, chain)
            for _ in range(CANARY_STEPS // 2):
                value = b.add(b.xor(value, mask), step)
            b.store(value, chain)
        b.store(b.load(I64, chain), _address(b, row, _RESULT))

    _body(module, "probe_canary", emit)


def _emit_ping_pong(module: Module) -> None:
    """Two rows take turns at a word; the next one sees it when the cache line has come over.

    Word 4 of a row is whose turn it begins with: 0 or 1.  Both rows run at the same time.
    """

    def emit(b: Builder, row: Value) -> None:
        place, first = _address(b, row, _ADDRESS), _word(b, row, 4)
        with b.loop(0, _word(b, row, _REPEATS)) as turn:
            wanted = b.add(b.add(turn, turn), first)
            with b.forever() as mine:
                seen = b.result(I64, f"load atomic i64, ptr {place.ref} acquire, align 8")
                others = b.label("others")
                b.branch(b.icmp("eq", seen, wanted), mine, others)
                b.enter(others)
            after = b.add(wanted, index(1))
            b.emit(f"store atomic {after.typed}, ptr {place.ref} release, align 8")

    _body(module, "probe_ping_pong", emit)


def _emit_fork(module: Module) -> None:
    """``probe_fork(pool, threads, repeats)``: as many runs of an empty body."""
    _body(module, "probe_nothing", lambda b, row: b.store(index(1), b.gep(row, 8 * _RESULT)))
    b = module.function("probe_fork", [("pool", PTR), ("rows", PTR), ("parts", I64), ("n", I64)])
    nothing = Value(PTR, "@probe_nothing")
    with b.loop(0, b.params["n"]):
        arguments = [b.params["pool"], nothing, b.params["rows"], b.params["parts"], index(1)]
        b.call("tw_pool_run", None, arguments)
