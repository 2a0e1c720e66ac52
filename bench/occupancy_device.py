"""Compares hw.occupancy with the driver's own calculator on a GPU: PYTHONPATH=src python FILE.

Kernels are PTX that keeps a chosen number of values alive, so that no compiler is needed; how many
registers each really uses, the driver tells (CU_FUNC_ATTRIBUTE_NUM_REGS).
Output: JSON with the device, the number of cases and every mismatch, to ``$OUT`` (a folder) or the
working folder as ``occupancy_device.json``; then, unless ``--no-probe``, the roofs that
``hw.gpu_probe`` measures, as ``gpu_roofs.json``.  Exit code 1 when something differs.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tilewright.core.errors import UserError
from tilewright.hw.cuda_driver import (
    FUNCTION_MAX_THREADS,
    FUNCTION_REGISTERS,
    FUNCTION_STATIC_SHARED,
    CudaDriver,
    Gpu,
    open_driver,
)
from tilewright.hw.gpu_probe import probe_gpu
from tilewright.hw.lookup import find_arch
from tilewright.hw.occupancy import BlockResources, occupancy
from tilewright.hw.records import KIB, CudaArch

# Left alone, the compiler takes as many registers as do not lower occupancy; a limit a little above
# the number of live values makes it take about so many.
LIVE_VALUES = (1, 5, 9, 13, 21, 29, 37, 45, 53, 61, 69, 77, 90, 117, 150, 200)
LIMITED_LIVE_VALUES = (
    17,
    26,
    33,
    41,
    50,
    59,
    66,
    75,
    83,
    95,
    103,
    111,
    122,
    131,
    141,
    149,
    157,
    170,
)
MANY_LIMITED_LIVE_VALUES = (181, 190, 199, 207, 215, 223, 231, 238)
SPARE_REGISTERS = 9
STATIC_SHARED = (0, 1000, 16 * KIB, 48 * KIB)
BARRIERS = (1, 2, 3, 4, 5, 8, 11, 16)
THREADS = (1, 32, 33, 64, 96, 128, 160, 192, 224, 256, 288, 320, 384, 416, 512, 640, 768, 992, 1024)
DYNAMIC_SHARED_KIB = (0, 0.5, 1, 3, 7, 8, 15.9, 24, 33, 48, 64, 75, 99, 100, 113, 150, 200)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What a generated kernel is asked to use."""

    live_values: int
    static_shared: int = 0
    barriers: int = 1
    most_registers: int = 0


def kernels() -> Iterator[Kernel]:
    """Register counts alone, then static shared memory, then barriers."""
    for live in LIVE_VALUES:
        yield Kernel(live_values=live)
    for live in (*LIMITED_LIVE_VALUES, *MANY_LIMITED_LIVE_VALUES):
        yield Kernel(live_values=live, most_registers=live + SPARE_REGISTERS)
    for size in STATIC_SHARED[1:]:
        yield Kernel(live_values=21, static_shared=size)
    for number in BARRIERS[1:]:
        yield Kernel(live_values=9, barriers=number)


def ptx(kernel: Kernel, target: str) -> str:
    """All values are loaded, then barriers, then all are stored: volatile accesses stay in order,
    so that every value lives across the barriers."""
    live = range(kernel.live_values)
    shared = f"  .shared .align 16 .b8 buffer[{max(16, kernel.static_shared)}];\n"
    keep = "  st.volatile.shared.u32 [buffer], %r0;\n"
    return (
        f".version 7.0\n.target {target}\n.address_size 64\n"
        ".visible .entry kernel(.param .u64 p_address)\n"
        + (f".maxnreg {kernel.most_registers}\n" if kernel.most_registers else "")
        + "{\n"
        f"  .reg .b32 %r<{kernel.live_values + 1}>;\n  .reg .b64 %rd<3>;\n"
        + (shared if kernel.static_shared else "")
        + "  ld.param.u64 %rd1, [p_address];\n  cvta.to.global.u64 %rd1, %rd1;\n"
        + "".join(f"  ld.volatile.global.u32 %r{i}, [%rd1+{4 * i}];\n" for i in live)
        + (keep if kernel.static_shared else "")
        + "".join(f"  bar.sync {i};\n" for i in range(kernel.barriers))
        + "".join(f"  st.volatile.global.u32 [%rd1+{4 * i}], %r{i};\n" for i in live)
        + "  ret;\n}\n"
    )


def compare(driver: CudaDriver, arch: CudaArch, kernel: Kernel) -> Iterator[dict[str, Any]]:
    """All launches of one kernel: what was asked, what the driver says, what we say."""
    target = "sm_70" if arch.capability < (7, 5) else "sm_75"
    with driver.module(ptx(kernel, target)) as module:
        function = driver.function(module, "kernel")
        registers = driver.function_fact(function, FUNCTION_REGISTERS)
        static = driver.function_fact(function, FUNCTION_STATIC_SHARED)
        most_threads = driver.function_fact(function, FUNCTION_MAX_THREADS)
        driver.allow_shared_bytes(function, arch.max_shared_bytes_per_block - static)
        for dynamic in sizes(arch, static):
            for threads in THREADS:
                block = BlockResources(
                    threads=threads,
                    registers=registers,
                    shared_bytes=static + dynamic,
                    barriers=kernel.barriers,
                )
                ours = occupancy(arch, block)
                theirs, error = driver.max_active_blocks(function, threads, dynamic)
                yield {
                    **asdict(block),
                    "static_shared": static,
                    "max_threads_of_kernel": most_threads,
                    "driver": theirs,
                    "driver_error": error,
                    "ours": ours.blocks_per_sm,
                    "limited_by": ours.limited_by,
                }


def sizes(arch: CudaArch, static: int) -> list[int]:
    """Dynamic shared memory that fits beside the static, the largest included."""
    most = arch.max_shared_bytes_per_block - static
    chosen = [int(KIB * size) for size in DYNAMIC_SHARED_KIB]
    return [size for size in chosen if size < most] + [most - 129, most]


def table_mismatches(gpu: Gpu, arch: CudaArch) -> list[str]:
    """Limits that the driver states and our table does not share."""
    pairs = {
        "max_threads_per_sm": (gpu.max_threads_per_sm, arch.max_threads_per_sm),
        "max_blocks_per_sm": (gpu.max_blocks_per_sm, arch.max_blocks_per_sm),
        "shared_bytes_per_sm": (gpu.shared_bytes_per_sm, arch.shared_bytes_per_sm),
        "max_shared_bytes_per_block": (
            gpu.max_shared_bytes_per_block,
            arch.max_shared_bytes_per_block,
        ),
        "reserved_shared_bytes_per_block": (
            gpu.reserved_shared_bytes_per_block,
            arch.reserved_shared_bytes_per_block,
        ),
    }
    return [
        f"{name}: the driver says {theirs}, the table {ours}"
        for name, (theirs, ours) in pairs.items()
        if theirs != ours
    ]


def run(driver: CudaDriver, gpu: Gpu) -> dict[str, Any]:
    """The comparison on one GPU."""
    arch = find_arch(f"{gpu.capability[0]}.{gpu.capability[1]}")
    cases: list[dict[str, Any]] = []
    with driver.context(gpu.index):
        for kernel in kernels():
            cases += compare(driver, arch, kernel)
    mismatches = [case for case in cases if case["driver"] != case["ours"]]
    return {
        "device": asdict(gpu),
        "driver": gpu.driver,
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "arch": arch.name,
        "cases": len(cases),
        "registers": sorted({case["registers"] for case in cases}),
        "cases_that_cannot_run": sum(case["ours"] == 0 for case in cases),
        "table_mismatches": table_mismatches(gpu, arch),
        "mismatches": mismatches,
    }


def main() -> int:
    """Runs on the first GPU and returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--no-probe", action="store_true", help="do not measure roofs")
    options = parser.parse_args()
    folder = Path(os.environ.get("OUT", "."))
    driver = open_driver()
    if isinstance(driver, str):
        print(driver, file=sys.stderr)
        return 1
    gpus = driver.gpus()
    if not gpus:
        print("the driver finds no GPU", file=sys.stderr)
        return 1
    result = run(driver, gpus[0])
    (folder / "occupancy_device.json").write_text(json.dumps(result, indent=1) + "\n")
    failed = bool(result["mismatches"] or result["table_mismatches"])
    print(
        f"{gpus[0].name}: {result['cases']} cases, {len(result['mismatches'])} mismatches, "
        f"registers {result['registers'][0]} to {result['registers'][-1]}"
    )
    for line in result["table_mismatches"]:
        print(line)
    for case in result["mismatches"][:10]:
        print(case)
    if not options.no_probe:
        try:
            roofs = probe_gpu(driver, gpus[0])
        except UserError as error:
            print(f"the probe failed: {error}", file=sys.stderr)
            return 1
        (folder / "gpu_roofs.json").write_text(json.dumps(asdict(roofs), indent=1) + "\n")
        print(json.dumps(asdict(roofs), indent=1))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
