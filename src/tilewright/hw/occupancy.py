"""How many blocks of a kernel an SM can hold, and which resource decides that.

``CudaArch`` and ``BlockResources`` -> ``Occupancy``.
Guarantees: equal to NVIDIA's occupancy calculator (cuda_occupancy.h, CUDA 13.5) for static plus
dynamic shared memory up to the opt-in limit; a block that cannot run gives 0 blocks and the reason.
Rules, from that header: registers are allocated to warps in units, and warps to the SM's
sub-partitions; shared memory in units, after the driver's reserve; barriers count from 9.0 on.
Not modelled: clusters, and the header's "virtual resources" from 10.0 on.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.core.errors import BadOption
from tilewright.hw.records import KIB, CudaArch

REGISTERS = "registers"
SHARED_MEMORY = "shared memory"
WARPS = "warps"
BLOCKS = "blocks"
BARRIERS = "barriers"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockResources:
    """What one thread block uses.

    Attributes:
        threads: of the block, at least 1.
        registers: of one thread, as the compiler reports them.
        shared_bytes: static and dynamic shared memory of the block.
        barriers: named barriers of the block.
    """

    threads: int
    registers: int = 32
    shared_bytes: int = 0
    barriers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """What an SM holds of a kernel.

    Attributes:
        blocks_per_sm: resident blocks; 0 when the block cannot run.
        warps_per_sm: resident warps.
        fraction: of the SM's warps, 0 to 1.
        limits: blocks that each resource would allow; resources that set no limit are absent.
        limited_by: the resources with the lowest limit.
        refusal: why the block cannot run; empty when it can.
        registers_per_block, shared_bytes_per_block: as allocated.
        carveout_bytes: shared-memory capacity that is assumed.
        least_carveout_bytes: smallest capacity that holds as many blocks; the rest is L1.
        needs_opt_in: the kernel must ask for more than 48 KiB (``cudaFuncSetAttribute``).
    """

    blocks_per_sm: int
    warps_per_sm: int
    fraction: float
    limits: dict[str, int]
    limited_by: tuple[str, ...]
    refusal: str
    registers_per_block: int
    shared_bytes_per_block: int
    carveout_bytes: int
    least_carveout_bytes: int
    needs_opt_in: bool


def occupancy(
    arch: CudaArch, block: BlockResources, *, carveout_bytes: int | None = None
) -> Occupancy:
    """Occupancy of a block.

    Args:
        arch: the compute capability.
        block: what a block uses.
        carveout_bytes: preferred shared-memory capacity of the SM; by default the largest.

    Raises:
        BadOption: a number is outside of what the architecture has; the message names the limit.
    """
    _check_ranges(arch, block, carveout_bytes)
    warps = ceil_div(block.threads, arch.warp_threads)
    shared = allocated_shared_bytes(arch, block.shared_bytes)
    registers = warps * registers_per_warp(arch, block.registers)
    carveout = _carveout(arch, shared, carveout_bytes)
    limits = _limits(arch, block, warps, shared, carveout)
    blocks = min(limits.values())
    return Occupancy(
        blocks_per_sm=blocks,
        warps_per_sm=blocks * warps,
        fraction=blocks * warps / arch.max_warps_per_sm,
        limits=limits,
        limited_by=tuple(name for name, limit in limits.items() if limit == blocks),
        refusal="" if blocks else _refusal(arch, block, warps),
        registers_per_block=registers,
        shared_bytes_per_block=shared,
        carveout_bytes=carveout,
        least_carveout_bytes=_at_least(arch, max(blocks, 1) * shared),
        needs_opt_in=block.shared_bytes > arch.shared_bytes_without_opt_in,
    )


def registers_per_warp(arch: CudaArch, registers: int) -> int:
    """Registers that a warp is given, for so many of a thread."""
    return round_up(registers * arch.warp_threads, arch.register_unit)


def allocated_shared_bytes(arch: CudaArch, shared_bytes: int) -> int:
    """Shared memory that a block is given, the driver's reserve included."""
    return round_up(shared_bytes + arch.reserved_shared_bytes_per_block, arch.shared_unit_bytes)


def max_registers(arch: CudaArch, threads: int, blocks: int) -> int:
    """Most registers of a thread with which so many blocks fit; 0 when none do."""
    warps = ceil_div(threads, arch.warp_threads)
    for registers in range(arch.max_registers_per_thread, 0, -1):
        if _blocks_by_registers(arch, registers, warps) >= blocks:
            return registers
    return 0


def max_shared_bytes(arch: CudaArch, blocks: int) -> int:
    """Most shared memory of a block with which so many fit into the largest carve-out."""
    unit = arch.shared_unit_bytes
    share = arch.shared_bytes_per_sm // blocks // unit * unit
    usable = share - arch.reserved_shared_bytes_per_block
    return max(0, min(usable, arch.max_shared_bytes_per_block))


def ceil_div(number: int, divisor: int) -> int:
    """The quotient rounded up."""
    return -(-number // divisor)


def round_up(number: int, unit: int) -> int:
    """The least multiple of ``unit`` that is not below ``number``."""
    return ceil_div(number, unit) * unit


# --- the rules ------------------------------------------------------------------------------------


def _limits(
    arch: CudaArch, block: BlockResources, warps: int, shared: int, carveout: int
) -> dict[str, int]:
    limits = {WARPS: arch.max_warps_per_sm // warps, BLOCKS: arch.max_blocks_per_sm}
    if block.registers:
        limits[REGISTERS] = _blocks_by_registers(arch, block.registers, warps)
    if shared:
        limits[SHARED_MEMORY] = carveout // shared
    if arch.limits_barriers and block.barriers:
        limits[BARRIERS] = arch.barriers_per_sm // block.barriers
    return limits


def _blocks_by_registers(arch: CudaArch, registers: int, warps: int) -> int:
    each = registers_per_warp(arch, registers)
    # The check at launch assumes that every sub-partition gets as many warps as the fullest.
    if each * round_up(warps, arch.num_subpartitions) > arch.registers_per_block:
        return 0
    in_subpartition = arch.registers_per_sm // arch.num_subpartitions // each
    return in_subpartition * arch.num_subpartitions // warps


def _carveout(arch: CudaArch, shared: int, preferred: int | None) -> int:
    """A preference is rounded up, and ignored where not even one block would fit."""
    wanted = arch.shared_bytes_per_sm if preferred is None else _at_least(arch, preferred)
    return wanted if wanted >= shared else _at_least(arch, shared)


def _at_least(arch: CudaArch, num_bytes: int) -> int:
    return next(size for size in arch.carveouts_bytes if size >= num_bytes)


def _refusal(arch: CudaArch, block: BlockResources, warps: int) -> str:
    each = registers_per_warp(arch, block.registers)
    needed = each * round_up(warps, arch.num_subpartitions)
    return (
        f"{block.threads} threads with {block.registers} registers need {needed} registers, a block"
        f" has {arch.registers_per_block}"
    )


def _check_ranges(arch: CudaArch, block: BlockResources, carveout_bytes: int | None) -> None:
    ranges = (
        ("block", block.threads, 1, arch.max_threads_per_block, "threads"),
        ("regs", block.registers, 0, arch.max_registers_per_thread, "registers per thread"),
        ("smem", block.shared_bytes, 0, arch.max_shared_bytes_per_block, "bytes per block"),
        ("barriers", block.barriers, 0, arch.max_barriers_per_block, "barriers per block"),
        ("carveout", carveout_bytes or 0, 0, arch.carveouts_bytes[-1], "bytes per SM"),
    )
    for name, value, low, high, unit in ranges:
        if not low <= value <= high:
            size = f" ({high // KIB} KiB)" if "bytes" in unit else ""
            raise BadOption(
                f"{name}={value}: {arch.name} has {low} to {high} {unit}{size}",
                remedy=f"give a number in that range, or another architecture than {arch.name}",
            )
