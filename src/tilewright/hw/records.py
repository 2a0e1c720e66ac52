"""Records of devices: a row of a table each, with its source.

Guarantees: FLOPs count a multiply-add as 2 and are dense (no sparsity); KiB and MiB are 1024 based;
a rate that no document states is not in the mapping.
Not here: the rows (tables), finding one (lookup), measured numbers (roofs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

KIB = 1024
MIB = 1024 * KIB
GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaArch:
    """What one CUDA compute capability allows on one SM.

    Attributes:
        name: the compilation target, such as ``sm_90``.
        capability: compute capability, major and minor.
        generation: the architecture's name.
        max_threads_per_sm, max_warps_per_sm, max_blocks_per_sm: that can be resident at once.
        shared_bytes_per_sm: shared memory that the largest ordinary carve-out gives.
        max_shared_bytes_per_block: static and dynamic together, after opting in.
        reserved_shared_bytes_per_block: taken by the driver for each block.
        shared_unit_bytes: shared memory is allocated in multiples of this.
        carveouts_bytes: shared-memory capacities that the SM can be split into, ascending.
        unified_cache_bytes: L1 and shared memory together.
        barriers_per_sm: block barriers that resident blocks share.
        limits_barriers: whether NVIDIA's calculator lets barriers limit occupancy.
        vector_flops_per_clk: FLOPs a clock and SM by type, CUDA cores.
        tensor_flops_per_clk: the same for tensor cores, 32-bit accumulation, unreduced boards.
        source: documents of the limits.
        rates_source: documents of the rates; empty when there are none.
        note: where documents disagree, or a condition.
    """

    name: str
    capability: tuple[int, int]
    generation: str
    max_threads_per_sm: int
    max_warps_per_sm: int
    max_blocks_per_sm: int
    shared_bytes_per_sm: int
    max_shared_bytes_per_block: int
    reserved_shared_bytes_per_block: int
    shared_unit_bytes: int
    carveouts_bytes: tuple[int, ...]
    unified_cache_bytes: int
    barriers_per_sm: int
    limits_barriers: bool
    source: str
    max_threads_per_block: int = 1024
    max_registers_per_thread: int = 255
    max_barriers_per_block: int = 16
    registers_per_sm: int = 65536
    registers_per_block: int = 65536
    register_unit: int = 256
    num_subpartitions: int = 4
    warp_threads: int = 32
    shared_banks: int = 32
    shared_bytes_without_opt_in: int = 48 * KIB
    vector_flops_per_clk: Mapping[str, int] = field(default_factory=dict)
    tensor_flops_per_clk: Mapping[str, int] = field(default_factory=dict)
    rates_source: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A GPU as sold.

    Attributes:
        name: short name, such as ``H200``.
        arch: name of its ``CudaArch``.
        num_sms: SMs in use.
        clock_hz: boost clock of the CUDA cores.
        tensor_clock_hz: boost clock that the tensor peaks are stated at.
        memory_bytes, memory_bytes_per_s: of device memory, as the vendor states them.
        l2_bytes: None where the vendor does not state it.
        tensor_scale: rates of this board relative to its architecture's, by type.
        source: documents.
    """

    name: str
    arch: str
    num_sms: int
    clock_hz: float
    tensor_clock_hz: float
    memory_bytes: int
    memory_bytes_per_s: float
    l2_bytes: int | None
    source: str
    tensor_scale: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorUnit:
    """How fast one kind of multiply-add instruction can be issued on one core.

    Attributes:
        dtype: type of the factors.
        instruction: its name with the register class.
        multiply_adds: in one instruction.
        cycles: that one instruction occupies; 0.5 means two every cycle.
    """

    dtype: str
    instruction: str
    multiply_adds: int
    cycles: float

    @property
    def flops_per_cycle(self) -> float:
        """FLOPs (or integer operations) a cycle and core."""
        return 2 * self.multiply_adds / self.cycles


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuIsa:
    """What one core of a processor family issues in a cycle.

    Attributes:
        name: LLVM's name of the processor.
        title: the name that people use.
        units: the fastest multiply-add of each type.
        load_bytes_per_cycle, store_bytes_per_cycle: between registers and L1.
        source: documents.
        note: parts of the family that differ.
    """

    name: str
    title: str
    units: tuple[VectorUnit, ...]
    load_bytes_per_cycle: int
    store_bytes_per_cycle: int
    source: str
    note: str = ""

    @property
    def flops_per_cycle(self) -> dict[str, float]:
        """FLOPs a cycle and core by type."""
        return {unit.dtype: unit.flops_per_cycle for unit in self.units}
