"""Measures the roofs of an NVIDIA GPU: memory, launches, PCIe, and matrix products.

Input -> Output: a GPU of ``CudaDriver.gpus()`` -> ``Roofs``.
Method: the best of many batches between two events; kernels are PTX that the driver compiles;
matrix products are cuBLAS's, on varied numbers, if that library can be loaded; else a note says so.
Peaks of types that were not measured are absent.
Not here: keeping the result (roofs), peaks that documents state (tables).
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from tilewright.hw.cublas import PRODUCTS, Cublas, open_cublas
from tilewright.hw.cuda_driver import CudaDriver, Gpu
from tilewright.hw.records import MIB
from tilewright.hw.roofs import Level, Roofs

_MOST_BYTES = 2048 * MIB
_PINNED_BYTES = 256 * MIB
_THREADS = 512
_BLOCKS_PER_SM = 8
_LAUNCHES = 500

Call = Callable[[], object]

_HEAD = ".version 7.0\n.target {target}\n.address_size 64\n"
_EMPTY = ".visible .entry probe_empty() { ret; }\n"
# Four streams a thread, each a quarter of the memory, for enough accesses in flight.  Every thread
# walks over the 16-byte pieces of a quarter, a grid apart.
_STREAM = """
.visible .entry {name}(.param .u64 p_address, .param .u64 p_pieces)
{{
  .reg .pred %p<3>;
  .reg .b32 %r<32>;
  .reg .b64 %rd<12>;
  ld.param.u64 %rd1, [p_address];
  ld.param.u64 %rd2, [p_pieces];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mov.u32 %r4, %nctaid.x;
  mad.lo.u32 %r5, %r1, %r2, %r3;
  mul.lo.u32 %r6, %r2, %r4;
  cvt.u64.u32 %rd3, %r5;
  cvt.u64.u32 %rd4, %r6;
  shl.b64 %rd5, %rd2, 4;
  mov.u32 %r7, 0;
  mov.u32 %r8, 1;
  setp.ge.u64 %p1, %rd3, %rd2;
  @%p1 bra END;
LOOP:
  shl.b64 %rd6, %rd3, 4;
  add.u64 %rd6, %rd1, %rd6;
  add.u64 %rd7, %rd6, %rd5;
  add.u64 %rd8, %rd7, %rd5;
  add.u64 %rd9, %rd8, %rd5;
{body}
  add.u64 %rd3, %rd3, %rd4;
  setp.lt.u64 %p1, %rd3, %rd2;
  @%p1 bra LOOP;
  setp.ne.u32 %p2, %r7, 0x12345678;
  @%p2 bra END;
  st.global.u32 [%rd1], %r7;
END:
  ret;
}}
"""
_QUARTERS = 4
_ADDRESSES = ("%rd6", "%rd7", "%rd8", "%rd9")


def _read_body() -> str:
    """Four loads, then the sum of all their words, so that none can be left out."""
    words = [[f"%r{10 + 4 * quarter + word}" for word in range(4)] for quarter in range(_QUARTERS)]
    loads = [
        f"  ld.global.v4.u32 {{{', '.join(group)}}}, [{address}];"
        for group, address in zip(words, _ADDRESSES, strict=True)
    ]
    sums = [f"  add.u32 %r7, %r7, {word};" for group in words for word in group]
    return "\n".join([*loads, *sums])


def _write_body() -> str:
    return "\n".join(
        f"  st.global.v4.u32 [{address}], {{%r8, %r8, %r8, %r8}};" for address in _ADDRESSES
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProbeOptions:
    """How much to measure.

    Attributes:
        batches: of each thing; the best one counts.
        memory_bytes: device memory to stream through, at most half of what is free.
        matrix_size: of the square matrix products.
    """

    batches: int = 15
    memory_bytes: int = _MOST_BYTES
    matrix_size: int = 8192


def probe_ptx(capability: tuple[int, int]) -> str:
    """The module of the probe's kernels for a device of that compute capability."""
    target = "sm_70" if capability < (7, 5) else "sm_75"
    return (
        _HEAD.format(target=target)
        + _EMPTY
        + _STREAM.format(name="probe_read", body=_read_body())
        + _STREAM.format(name="probe_write", body=_write_body())
    )


def probe_gpu(driver: CudaDriver, gpu: Gpu, options: GpuProbeOptions | None = None) -> Roofs:
    """Measures one GPU.

    Raises:
        BadTarget: the driver reports an error.
    """
    options = options or GpuProbeOptions()
    with ExitStack() as stack:
        stack.enter_context(driver.context(gpu.index))
        module = stack.enter_context(driver.module(probe_ptx(gpu.capability)))
        start, end = stack.enter_context(driver.events())
        bench = _Bench(driver, gpu, module, start, end, options.batches)
        levels, left_out = _memory_levels(bench, options)
        costs = _costs(bench)
        peaks, notes = _peaks(bench, options)
    return Roofs(
        device=gpu.name,
        threads=None,
        peaks_flops=peaks,
        levels=levels,
        source=f"measured on {datetime.now(UTC):%Y-%m-%d}, {gpu.driver}",
        clock_hz=gpu.clock_hz or None,
        instructions=dict.fromkeys(peaks, f"cuBLAS product of {options.matrix_size}² matrices"),
        costs=costs,
        notes=(*left_out, *notes),
    )


@dataclass(frozen=True, slots=True)
class _Bench:
    """What the measurements share."""

    driver: CudaDriver
    gpu: Gpu
    module: ctypes.c_void_p
    start: ctypes.c_void_p
    end: ctypes.c_void_p
    batches: int

    def best_s(self, call: Call, repeats: int = 1) -> float:
        """Device time of one call in the best batch, after one that warms up."""
        call()
        self.driver.synchronize()
        times = []
        for _ in range(self.batches):
            self.driver.record(self.start)
            for _ in range(repeats):
                call()
            self.driver.record(self.end)
            times.append(self.driver.elapsed_s(self.start, self.end) / repeats)
        return min(times)

    def stream(self, name: str, address: int, num_bytes: int) -> Call:
        """A call that reads or writes all of some memory once."""
        function = self.driver.function(self.module, name)
        arguments = (ctypes.c_uint64(address), ctypes.c_uint64(num_bytes // (16 * _QUARTERS)))
        blocks = self.gpu.num_sms * _BLOCKS_PER_SM
        return lambda: self.driver.launch(function, blocks, _THREADS, arguments)


def _memory_levels(
    bench: _Bench, options: GpuProbeOptions
) -> tuple[tuple[Level, ...], tuple[str, ...]]:
    """The levels, and notes on what was left out."""
    driver = bench.driver
    size = min(options.memory_bytes, driver.free_bytes() // 2) // 2 // MIB * MIB
    with driver.device_memory(size) as one, driver.device_memory(size) as other:
        far = {
            "copy": 2 * size / bench.best_s(lambda: driver.copy("DtoD", other, one, size)),
            "read": size / bench.best_s(bench.stream("probe_read", one, size)),
            "write": size / bench.best_s(bench.stream("probe_write", one, size)),
        }
        levels = [_level("DRAM", far, size)]
        near_size = min(bench.gpu.l2_bytes // 4, size) // 64 * 64
        if near_size:
            call = bench.stream("probe_read", one, near_size)
            near = {"read": near_size / bench.best_s(call, repeats=20)}
            if near["read"] > levels[0].bytes_per_s:
                return (_level("L2", near, near_size), *levels), ()
            note = (
                f"L2 was left out: {near_size / MIB:.1f} MiB are read at "
                f"{near['read'] / 1e9:.0f} GB/s, slower than DRAM, as starting a kernel takes "
                "longer"
            )
            return tuple(levels), (note,)
    return tuple(levels), ()


def _level(name: str, patterns: dict[str, float], size: int) -> Level:
    return Level(
        name=name,
        bytes_per_s=max(patterns.values()),
        patterns=patterns,
        working_set_bytes=size,
    )


def _costs(bench: _Bench) -> dict[str, float]:
    """Launches and copies between host and device."""
    driver = bench.driver
    empty = driver.function(bench.module, "probe_empty")

    def launch() -> None:
        driver.launch(empty, 1, 32)

    def round_trip() -> None:
        launch()
        driver.synchronize()

    size = min(_PINNED_BYTES, driver.free_bytes() // 4)
    with driver.pinned_memory(size) as host, driver.device_memory(size) as device:
        to_device_s = bench.best_s(lambda: driver.copy("HtoD", device, host, size))
        to_host_s = bench.best_s(lambda: driver.copy("DtoH", host, device, size))
    return {
        "launch_submit_us": 1e6 * _host_s(driver, launch, bench.batches),
        "launch_device_us": 1e6 * bench.best_s(launch, repeats=_LAUNCHES),
        "launch_round_trip_us": 1e6 * _host_s(driver, round_trip, bench.batches),
        "host_to_device_bytes_per_s": size / to_device_s,
        "device_to_host_bytes_per_s": size / to_host_s,
    }


def _host_s(driver: CudaDriver, call: Call, batches: int) -> float:
    """Host time of one call in the best batch."""
    best = float("inf")
    for _ in range(batches):
        driver.synchronize()
        start = time.perf_counter()
        for _ in range(_LAUNCHES):
            call()
        best = min(best, (time.perf_counter() - start) / _LAUNCHES)
    driver.synchronize()
    return best


def _peaks(bench: _Bench, options: GpuProbeOptions) -> tuple[dict[str, float], tuple[str, ...]]:
    library = open_cublas()
    if not isinstance(library, Cublas):
        return {}, (f"peaks were not measured: {library}",)
    size = options.matrix_size
    peaks: dict[str, float] = {}
    notes: list[str] = []
    with ExitStack() as stack:
        handle = stack.enter_context(library.handle())
        a, b, c = (
            stack.enter_context(bench.driver.device_memory(8 * size * size)) for _ in range(3)
        )
        for address in (a, b):
            bench.driver.fill_varied(address, 8 * size * size)
        for product in PRODUCTS:
            start = partial(library.multiply, handle, product, size, a, b, c)
            status = start()
            if status:
                notes.append(f"{product.dtype} was not measured: cuBLAS status {status}")
            else:
                peaks[product.dtype] = 2.0 * size**3 / bench.best_s(start)
    return peaks, tuple(notes)
