"""Which block size to launch a kernel with.

Registers, shared memory, optionally the work and the SMs -> every block size with its occupancy and
waves, the best one marked with the reason.
Best: the highest product of occupancy and wave efficiency; within 1 % of it first those that fill
the sub-partitions evenly, then the smallest from 128 threads on (a finer tail, cheaper barriers).
Model: occupancy counts as throughput.  That holds while latency is not yet hidden; a kernel with
much instruction-level parallelism may be as fast with less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.core.errors import BadOption
from tilewright.hw.occupancy import (
    REGISTERS,
    SHARED_MEMORY,
    BlockResources,
    Occupancy,
    ceil_div,
    max_registers,
    max_shared_bytes,
    occupancy,
)
from tilewright.hw.records import CudaArch
from tilewright.hw.waves import Waves, wave_quantisation

_CLOSE = 0.99
_LEAST_THREADS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One block size.

    Attributes:
        threads: of the block.
        occupancy: of an SM with such blocks.
        waves: of the whole grid; None when the work or the SMs are unknown.
        score: occupancy times wave efficiency.
    """

    threads: int
    occupancy: Occupancy
    waves: Waves | None
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """All block sizes, ascending, and the best.

    Attributes:
        candidates: multiples of a warp up to the largest block.
        best: threads of the best block; None when no size can run.
        reason: why.
        hint: what the kernel would have to give up for another block per SM; may be empty.
    """

    candidates: tuple[Candidate, ...]
    best: int | None
    reason: str
    hint: str


def advise_block_size(
    arch: CudaArch,
    block: BlockResources,
    *,
    shared_bytes_per_thread: int = 0,
    total_threads: int | None = None,
    num_sms: int | None = None,
) -> Advice:
    """Compares all block sizes.

    Args:
        arch: the compute capability.
        block: registers, shared memory and barriers of a block; its ``threads`` are ignored.
        shared_bytes_per_thread: shared memory that grows with the block, besides the block's own.
        total_threads: threads of the whole launch, for the waves.
        num_sms: SMs of the GPU, for the waves.

    Raises:
        BadOption: a number is out of range.
    """
    if total_threads is not None and total_threads < 1:
        raise BadOption(f"threads={total_threads}", remedy="give a positive number")
    candidates = []
    for threads in range(arch.warp_threads, arch.max_threads_per_block + 1, arch.warp_threads):
        shared = block.shared_bytes + threads * shared_bytes_per_thread
        if shared_bytes_per_thread and shared > arch.max_shared_bytes_per_block:
            break  # so is every larger block
        sized = replace(block, threads=threads, shared_bytes=shared)
        candidates.append(_candidate(arch, sized, total_threads, num_sms))
    best = _best(arch, candidates)
    return Advice(
        candidates=tuple(candidates),
        best=None if best is None else best.threads,
        reason=_reason(arch, best, candidates),
        hint="" if best is None else relief(arch, best.threads, best.occupancy),
    )


def relief(arch: CudaArch, threads: int, found: Occupancy) -> str:
    """What must shrink for one more block per SM; empty when nothing of the kernel's would help."""
    more = found.blocks_per_sm + 1
    parts = []
    if REGISTERS in found.limited_by:
        registers = max_registers(arch, threads, more)
        parts.append(f"at most {registers} registers per thread" if registers else "")
    if SHARED_MEMORY in found.limited_by:
        parts.append(f"at most {max_shared_bytes(arch, more)} bytes of shared memory")
    fixed = [name for name in found.limited_by if name not in (REGISTERS, SHARED_MEMORY)]
    if fixed or not parts or "" in parts:
        return ""
    return f"{more} blocks per SM need {' and '.join(parts)}"


def _candidate(
    arch: CudaArch, block: BlockResources, total_threads: int | None, num_sms: int | None
) -> Candidate:
    found = occupancy(arch, block)
    waves = None
    if total_threads is not None and num_sms is not None and found.blocks_per_sm:
        num_blocks = ceil_div(total_threads, block.threads)
        waves = wave_quantisation(num_blocks, num_sms, found.blocks_per_sm)
    return Candidate(
        threads=block.threads,
        occupancy=found,
        waves=waves,
        score=found.fraction * (1.0 if waves is None else waves.efficiency),
    )


def _best(arch: CudaArch, candidates: list[Candidate]) -> Candidate | None:
    highest = max((candidate.score for candidate in candidates), default=0.0)
    if not highest:
        return None
    close = [candidate for candidate in candidates if candidate.score >= _CLOSE * highest]
    even = arch.warp_threads * arch.num_subpartitions

    def preference(candidate: Candidate) -> tuple[bool, bool, int]:
        size = candidate.threads
        return (size % even != 0, size < _LEAST_THREADS, abs(size - _LEAST_THREADS))

    return min(close, key=preference)


def _reason(arch: CudaArch, best: Candidate | None, candidates: list[Candidate]) -> str:
    if best is None:
        return candidates[0].occupancy.refusal if candidates else "the block uses too much memory"
    found = best.occupancy
    limits = ", ".join(found.limited_by)
    text = (
        f"{found.fraction:.0%} occupancy ({found.warps_per_sm} of {arch.max_warps_per_sm} warps, "
        f"limited by {limits})"
    )
    if best.waves is not None:
        text += f" in {best.waves.waves:.2f} waves that are {best.waves.efficiency:.0%} full"
    equal = sum(candidate.score >= _CLOSE * best.score for candidate in candidates)
    if equal > 1:
        text += f"; of {equal} sizes within 1 % of the best score, the one nearest to 128 threads"
        if best.threads % (arch.warp_threads * arch.num_subpartitions) == 0:
            text += f" that loads the {arch.num_subpartitions} sub-partitions evenly"
    return text
