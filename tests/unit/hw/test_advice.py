"""Block-size advice: every size is listed, the best one has a reason that holds."""

import pytest

from tilewright.core.errors import BadOption
from tilewright.hw.advice import advise_block_size, relief
from tilewright.hw.lookup import find_arch
from tilewright.hw.occupancy import BlockResources, occupancy
from tilewright.hw.records import KIB, CudaArch
from tilewright.hw.tables.cuda_arch import CUDA_ARCHS

HOPPER = find_arch("sm_90")


def test_every_multiple_of_a_warp_is_compared() -> None:
    advice = advise_block_size(HOPPER, BlockResources(threads=32, registers=32))
    assert [one.threads for one in advice.candidates] == list(range(32, 1025, 32))
    for one in advice.candidates:
        alone = occupancy(HOPPER, BlockResources(threads=one.threads, registers=32))
        assert one.occupancy == alone
        assert one.waves is None


@pytest.mark.parametrize("arch", CUDA_ARCHS, ids=lambda arch: arch.name)
@pytest.mark.parametrize("registers", [32, 80, 168, 255])
def test_the_best_is_within_a_percent_of_the_highest(arch: CudaArch, registers: int) -> None:
    advice = advise_block_size(arch, BlockResources(threads=32, registers=registers))
    chosen = next(one for one in advice.candidates if one.threads == advice.best)
    assert chosen.score >= 0.99 * max(one.score for one in advice.candidates) > 0
    assert f"{chosen.occupancy.fraction:.0%} occupancy" in advice.reason


def test_of_equal_sizes_the_smallest_that_loads_all_schedulers_evenly() -> None:
    """32 registers fill Hopper with blocks of 64 (32 of them), 128, 256, 512, 1024 ..."""
    advice = advise_block_size(HOPPER, BlockResources(threads=32, registers=32))
    assert advice.best == 128
    assert "evenly" in advice.reason


def test_waves_count_in_the_score() -> None:
    block = BlockResources(threads=32, registers=32)
    total = 132 * 2048 + 1024
    advice = advise_block_size(HOPPER, block, total_threads=total, num_sms=132)
    for one in advice.candidates:
        assert one.waves is not None
        grid = -(-total // one.threads)
        slots = 132 * one.occupancy.blocks_per_sm
        assert one.waves.efficiency == pytest.approx(grid / (-(-grid // slots) * slots))
        assert one.score == pytest.approx(one.occupancy.fraction * one.waves.efficiency)
    assert "waves that are" in advice.reason


def test_a_lower_occupancy_wins_where_it_saves_a_wave() -> None:
    """4 SMs, 5 x 1024 threads of 40 registers, 8.6: 768 threads are 48 of 48 warps, 7 blocks in
    one wave of 8 slots; 1024 are 32 warps, 5 blocks in two waves of 4 slots."""
    arch = find_arch("sm_86")
    block = BlockResources(threads=32, registers=40)
    advice = advise_block_size(arch, block, total_threads=5 * 1024, num_sms=4)
    scores = {one.threads: one.score for one in advice.candidates}
    assert scores[768] == pytest.approx(7 / 8)
    assert scores[1024] == pytest.approx(2 / 3 * 5 / 8)
    assert scores[256] == pytest.approx(20 / 24)
    assert scores[advice.best or 0] >= 0.99 * max(scores.values())


def test_shared_memory_that_grows_with_the_block_ends_the_list() -> None:
    advice = advise_block_size(HOPPER, BlockResources(threads=32), shared_bytes_per_thread=KIB)
    assert [one.threads for one in advice.candidates] == [32, 64, 96, 128, 160, 192, 224]
    first = advice.candidates[0].occupancy
    assert first.blocks_per_sm == 228 // 33


def test_sizes_that_cannot_run_are_listed_with_the_reason() -> None:
    advice = advise_block_size(HOPPER, BlockResources(threads=32, registers=255))
    refused = [one for one in advice.candidates if one.occupancy.blocks_per_sm == 0]
    assert [one.threads for one in refused] == list(range(288, 1025, 32))
    assert all("need" in one.occupancy.refusal and one.score == 0 for one in refused)
    assert advice.best is not None
    assert advice.best <= 256


def test_the_hint_is_true() -> None:
    block = BlockResources(threads=256, registers=64, shared_bytes=48 * KIB)
    found = occupancy(HOPPER, block)
    text = relief(HOPPER, 256, found)
    assert text == (
        "5 blocks per SM need at most 48 registers per thread and at most 45568 bytes of shared "
        "memory"
    )
    better = BlockResources(threads=256, registers=48, shared_bytes=45568)
    assert occupancy(HOPPER, better).blocks_per_sm == 5
    for worse in (
        BlockResources(threads=256, registers=49, shared_bytes=45568),
        BlockResources(threads=256, registers=48, shared_bytes=45569),
    ):
        assert occupancy(HOPPER, worse).blocks_per_sm == 4


def test_no_hint_where_the_hardware_is_full() -> None:
    assert relief(HOPPER, 256, occupancy(HOPPER, BlockResources(threads=256, registers=32))) == ""


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(BadOption, match="threads=0"):
        advise_block_size(HOPPER, BlockResources(threads=32), total_threads=0, num_sms=1)
    with pytest.raises(BadOption, match="smem"):
        advise_block_size(HOPPER, BlockResources(threads=32, shared_bytes=228 * KIB))
