"""Occupancy equals NVIDIA's rules: worked by hand, by its own calculator, and by placing warps."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.core.errors import BadOption
from tilewright.hw.lookup import find_arch
from tilewright.hw.occupancy import (
    BARRIERS,
    BLOCKS,
    REGISTERS,
    SHARED_MEMORY,
    WARPS,
    BlockResources,
    Occupancy,
    max_registers,
    max_shared_bytes,
    occupancy,
)
from tilewright.hw.records import KIB, CudaArch
from tilewright.hw.tables.cuda_arch import CUDA_ARCHS

# Worked by hand from the guide's limits.  R: registers of a warp, a multiple of 256, and warps that
# fit into four sub-partitions of 16384; S: shared memory with the driver's 1 KiB (from 8.0 on).
BY_HAND = [
    # arch, threads, registers, KiB, barriers -> blocks, limited by
    ("sm_70", 256, 32, 0, 1, 8, {WARPS, REGISTERS}),  # 64/8; R 1024, 4*16 warps / 8
    ("sm_70", 256, 32, 48, 1, 2, {SHARED_MEMORY}),  # 96/48, nothing reserved
    ("sm_70", 256, 32, 96, 1, 1, {SHARED_MEMORY}),
    ("sm_70", 32, 16, 0, 1, 32, {BLOCKS}),  # 64 warps, R 512: 128 warps
    ("sm_75", 1024, 64, 0, 1, 1, {WARPS, REGISTERS}),  # 32/32; R 2048, 4*8 / 32
    ("sm_75", 1024, 65, 0, 1, 0, {REGISTERS}),  # R 2080 -> 2304; 32 * 2304 > 65536
    ("sm_75", 64, 128, 0, 1, 8, {REGISTERS}),  # R 4096, 4*4 / 2
    ("sm_75", 128, 32, 33, 1, 1, {SHARED_MEMORY}),  # 64/33
    ("sm_80", 256, 64, 48, 1, 3, {SHARED_MEMORY}),  # 164/49; R 2048 would give 4
    ("sm_80", 256, 64, 163, 1, 1, {SHARED_MEMORY}),  # 164/164
    ("sm_80", 96, 40, 0, 1, 16, {REGISTERS}),  # R 1280, 4*12 / 3; warps would give 21
    ("sm_80", 96, 33, 0, 1, 16, {REGISTERS}),  # R 1056 -> 1280, as with 40
    ("sm_86", 256, 40, 0, 1, 6, {WARPS, REGISTERS}),  # 48/8; R 1280, 48/8
    ("sm_86", 64, 32, 0, 1, 16, {BLOCKS}),  # warps would give 24, R 1024: 32
    ("sm_86", 256, 32, 49, 1, 2, {SHARED_MEMORY}),  # 100/50
    ("sm_86", 256, 32, 49.5, 1, 1, {SHARED_MEMORY}),  # 100/50.5
    ("sm_86", 768, 40, 0, 1, 2, {WARPS, REGISTERS}),  # 48/24; 48/24
    ("sm_86", 1024, 64, 0, 1, 1, {WARPS, REGISTERS}),  # 48/32; R 2048, 32/32
    ("sm_87", 128, 32, 40, 1, 4, {SHARED_MEMORY}),  # 164/41
    ("sm_88", 256, 32, 33, 1, 2, {SHARED_MEMORY}),  # 100/34
    ("sm_89", 32, 32, 0, 1, 24, {BLOCKS}),
    ("sm_89", 64, 32, 0, 1, 24, {WARPS, BLOCKS}),  # 48/2
    ("sm_89", 128, 48, 0, 1, 10, {REGISTERS}),  # R 1536: 10 in each quarter, 40/4
    ("sm_89", 32, 32, 0, 16, 24, {BLOCKS}),  # barriers do not count before 9.0
    ("sm_90", 128, 168, 0, 1, 3, {REGISTERS}),  # R 5376: 3 in each quarter, 12/4
    ("sm_90", 384, 168, 0, 1, 1, {REGISTERS}),  # 12/12; 12 * 5376 = 64512 is allowed
    ("sm_90", 352, 168, 0, 1, 1, {REGISTERS}),  # 11 warps count as 12 at launch
    ("sm_90", 416, 168, 0, 1, 0, {REGISTERS}),  # 13 warps count as 16: 86016 > 65536
    ("sm_90", 256, 64, 48, 1, 4, {REGISTERS, SHARED_MEMORY}),  # R 2048, 32/8; 228/49
    ("sm_90", 256, 32, 227, 1, 1, {SHARED_MEMORY}),
    ("sm_90", 32, 24, 0, 16, 4, {BARRIERS}),  # 64/16
    ("sm_90", 64, 32, 0, 1, 32, {WARPS, BLOCKS, REGISTERS}),  # 64/2; 32; R 1024, 64/2
    ("sm_90", 1024, 32, 0, 1, 2, {WARPS, REGISTERS}),
    ("sm_90", 992, 64, 0, 1, 1, {REGISTERS}),  # 31 warps: R 2048, 32/31; 32 * 2048 = 65536
    ("sm_100", 256, 128, 100, 1, 2, {REGISTERS, SHARED_MEMORY}),  # R 4096, 16/8; 228/101
    ("sm_100", 512, 96, 0, 1, 1, {REGISTERS}),  # R 3072: 5 in each quarter, 20/16
    ("sm_103", 64, 16, 0, 3, 10, {BARRIERS}),  # 32/3
    ("sm_107", 256, 32, 0, 1, 4, {WARPS}),  # 32/8
    ("sm_107", 128, 32, 300, 1, 1, {SHARED_MEMORY}),  # 328/301, the oversized carve-out
    ("sm_107", 32, 32, 0, 2, 8, {BARRIERS}),  # 16/2
    ("sm_110", 64, 40, 0, 1, 24, {WARPS, BLOCKS, REGISTERS, BARRIERS}),  # 48/2; 24; 48/2; 24
    ("sm_110", 128, 80, 30, 1, 6, {REGISTERS}),  # R 2560: 6 in each quarter, 24/4; 228/31 = 7
    ("sm_120", 128, 32, 24, 1, 4, {SHARED_MEMORY}),  # 100/25
    ("sm_120", 256, 255, 0, 1, 1, {REGISTERS}),  # R 8160 -> 8192: 2 in each quarter, 8/8
    ("sm_120", 288, 255, 0, 1, 0, {REGISTERS}),  # 9 warps count as 12
    ("sm_121", 192, 56, 0, 1, 6, {REGISTERS}),  # R 1792: 9 in each quarter, 36/6
]

FACTORS = {1: WARPS, 2: REGISTERS, 4: SHARED_MEMORY, 8: BLOCKS, 16: BARRIERS}
CALCULATOR = json.loads((Path(__file__).parent / "occupancy_cases.json").read_text())["cases"]


def _occupancy(arch: str, threads: int, registers: int, **more: int) -> Occupancy:
    block = BlockResources(threads=threads, registers=registers, **more)
    return occupancy(find_arch(arch), block)


@pytest.mark.parametrize("case", BY_HAND, ids=lambda case: "-".join(map(str, case[:5])))
def test_worked_by_hand(case: tuple[str, int, int, float, int, int, set[str]]) -> None:
    arch, threads, registers, kib, barriers, blocks, limited_by = case
    found = _occupancy(arch, threads, registers, shared_bytes=int(kib * KIB), barriers=barriers)
    assert (found.blocks_per_sm, set(found.limited_by)) == (blocks, limited_by)
    assert bool(found.refusal) == (blocks == 0)
    assert found.warps_per_sm == blocks * -(-threads // 32)


def test_cases_cover_every_capability() -> None:
    names = {arch.name for arch in CUDA_ARCHS}
    assert names == set(CALCULATOR) == {case[0] for case in BY_HAND}
    assert len(names) >= 12
    assert sum(map(len, CALCULATOR.values())) >= 500


@pytest.mark.parametrize("name", sorted(CALCULATOR))
def test_nvidias_calculator(name: str) -> None:
    arch = find_arch(name)
    for threads, registers, shared, barriers, percent, *expected in CALCULATOR[name]:
        block = BlockResources(
            threads=threads, registers=registers, shared_bytes=shared, barriers=barriers
        )
        carveout = None if percent < 0 else percent * arch.shared_bytes_per_sm // 100
        found = occupancy(arch, block, carveout_bytes=carveout)
        blocks, factors, *allocated = expected
        assert found.blocks_per_sm == blocks, block
        assert [found.registers_per_block, found.shared_bytes_per_block] == allocated, block
        named = {limit for bit, limit in FACTORS.items() if factors & bit}
        if BARRIERS in named and found.limits[BARRIERS] < min(
            limit for name, limit in found.limits.items() if name != BARRIERS
        ):
            named = {BARRIERS}  # the calculator keeps naming what limited before barriers did
        assert set(found.limited_by) == named, block


@given(
    arch=st.sampled_from(CUDA_ARCHS),
    threads=st.integers(1, 1024),
    registers=st.integers(1, 255),
    shared=st.integers(0, 48 * KIB),
)
def test_placing_blocks_one_by_one_gives_the_same(
    arch: CudaArch, threads: int, registers: int, shared: int
) -> None:
    """Warps go to the emptiest of four register files until a block does not fit."""
    warps = -(-threads // 32)
    each = -(-registers * 32 // 256) * 256
    found = occupancy(
        arch, BlockResources(threads=threads, registers=registers, shared_bytes=shared)
    )
    if found.blocks_per_sm == 0:
        assert each * -(-warps // 4) * 4 > 65536
        return
    files = [16384] * 4
    room = arch.shared_bytes_per_sm
    blocks = resident = 0
    taken = shared + arch.reserved_shared_bytes_per_block
    taken = -(-taken // arch.shared_unit_bytes) * arch.shared_unit_bytes
    while blocks < arch.max_blocks_per_sm and resident + warps <= arch.max_warps_per_sm:
        for _ in range(warps):
            files[files.index(max(files))] -= each
        room -= taken
        if min(files) < 0 or room < 0:
            break
        blocks, resident = blocks + 1, resident + warps
    assert found.blocks_per_sm == blocks


@given(
    arch=st.sampled_from(CUDA_ARCHS),
    threads=st.integers(1, 1024),
    registers=st.integers(0, 254),
    shared=st.integers(0, 40 * KIB),
)
def test_more_resources_never_raise_occupancy(
    arch: CudaArch, threads: int, registers: int, shared: int
) -> None:
    name = arch.name
    found = _occupancy(name, threads, registers, shared_bytes=shared)
    for more in (
        _occupancy(name, threads, registers + 1, shared_bytes=shared),
        _occupancy(name, threads, registers, shared_bytes=shared + 1),
    ):
        assert more.blocks_per_sm <= found.blocks_per_sm


def test_a_carveout_limits_but_never_forbids() -> None:
    arch = find_arch("sm_90")
    block = BlockResources(threads=128, shared_bytes=15 * KIB)  # 16 KiB with the reserve
    assert occupancy(arch, block, carveout_bytes=33 * KIB).carveout_bytes == 64 * KIB
    assert occupancy(arch, block, carveout_bytes=33 * KIB).blocks_per_sm == 4
    assert occupancy(arch, block, carveout_bytes=0).blocks_per_sm == 1  # 16 KiB are taken anyway


def test_the_least_carveout_holds_the_blocks() -> None:
    found = _occupancy("sm_90", 256, 64, shared_bytes=48 * KIB)  # 4 blocks of 49 KiB
    assert (found.carveout_bytes, found.least_carveout_bytes) == (228 * KIB, 196 * KIB)
    assert found.needs_opt_in is False
    assert _occupancy("sm_90", 256, 64, shared_bytes=48 * KIB + 1).needs_opt_in is True


def test_the_fraction_counts_warps() -> None:
    assert _occupancy("sm_90", 256, 64).fraction == 0.5
    assert _occupancy("sm_86", 512, 32).fraction == 1.0


def test_a_refusal_says_what_is_too_much() -> None:
    found = _occupancy("sm_90", 1024, 128)
    assert found.blocks_per_sm == 0
    assert (
        found.refusal == "1024 threads with 128 registers need 131072 registers, a block has 65536"
    )


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ({"threads": 0}, "block=0: sm_86 has 1 to 1024 threads"),
        ({"threads": 1025}, "block=1025: sm_86 has 1 to 1024 threads"),
        ({"threads": 32, "registers": 256}, "regs=256: sm_86 has 0 to 255 registers per thread"),
        ({"threads": 32, "registers": -1}, "regs=-1"),
        ({"threads": 32, "shared_bytes": 99 * KIB + 1}, r"smem=101377: .* 101376 bytes .*99 KiB"),
        ({"threads": 32, "barriers": 17}, "barriers=17: sm_86 has 0 to 16 barriers per block"),
    ],
)
def test_numbers_out_of_range_name_the_limit(resources: dict[str, int], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        occupancy(find_arch("sm_86"), BlockResources(**resources))


def test_a_carveout_beyond_the_largest_is_refused() -> None:
    with pytest.raises(BadOption, match="carveout=.*228 KiB"):
        occupancy(find_arch("sm_90"), BlockResources(threads=32), carveout_bytes=229 * KIB)


def test_what_would_allow_more_blocks() -> None:
    arch = find_arch("sm_90")
    assert max_registers(arch, 256, 8) == 32
    assert max_registers(arch, 256, 5) == 48  # R 1536: 10 in each quarter, 40/8
    assert max_registers(arch, 256, 300) == 0
    assert max_shared_bytes(arch, 4) == 57 * KIB - KIB
    assert max_shared_bytes(arch, 1) == 227 * KIB
    for blocks in range(1, 9):
        block = BlockResources(threads=256, registers=max_registers(arch, 256, blocks))
        assert occupancy(arch, block).limits[REGISTERS] >= blocks
        block = BlockResources(threads=32, shared_bytes=max_shared_bytes(arch, blocks))
        assert occupancy(arch, block).limits[SHARED_MEMORY] >= blocks
