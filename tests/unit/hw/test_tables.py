"""Rows have sources and do not contradict themselves, each other, or the datasheets' peaks."""

import pytest

from tilewright.codegen.cpu.target import known_targets
from tilewright.hw.lookup import find_arch, find_board, find_cpu
from tilewright.hw.records import KIB, Board, CpuIsa, CudaArch
from tilewright.hw.roofs import roofs_of_board
from tilewright.hw.tables.boards import BOARDS
from tilewright.hw.tables.cpu_isa import CPU_ISAS
from tilewright.hw.tables.cuda_arch import CUDA_ARCHS

# TFLOP/s (TOP/s) as the vendor's documents print them, dense.  Sparse numbers are halved.
DATASHEETS: dict[str, dict[str, float]] = {
    "V100-SXM2": {"float64": 7.8, "float32": 15.7, "float16": 125},
    "V100-PCIe": {"float64": 7.0, "float32": 14.0, "float16": 112},
    "T4": {"float32": 8.1, "float16": 65, "int8": 130, "int4": 260},
    "A100-SXM4-80GB": {
        "float64": 19.5,
        "float32": 19.5,
        "tf32": 156,
        "float16": 312,
        "bfloat16": 312,
        "int8": 624,
        "int4": 1248,
    },
    "A30": {"float64": 10.3, "float32": 10.3, "tf32": 82, "float16": 165, "int8": 330},
    "A10": {"float32": 31.2, "tf32": 62.5, "float16": 125, "int8": 250, "int4": 500},
    "A40": {"float32": 37.4, "tf32": 74.8, "float16": 149.7, "int8": 299.3},
    "RTX A6000": {"float32": 38.7, "float16": 154.8},
    "RTX 3090": {"float32": 35.6, "tf32": 35.6, "float16": 71, "bfloat16": 71, "int8": 284},
    "RTX 3080": {"float32": 29.8, "tf32": 29.8, "float16": 59.5, "int8": 238},
    "RTX 3070": {"float32": 20.3, "float16": 40.6, "int8": 162.6},
    "Jetson AGX Orin 64GB": {"float32": 5.3, "int8": 85},
    "L4": {"float32": 30.3, "tf32": 60, "float16": 121, "float8": 242.5, "int8": 242.5},
    "L40": {"float32": 90.5, "tf32": 90.5, "float16": 181.05, "float8": 362, "int8": 362},
    "L40S": {"float32": 91.6, "tf32": 183, "float16": 362, "float8": 733, "int8": 733},
    "RTX 6000 Ada": {"float32": 91.1, "float16": 364.2, "float8": 728.5},
    "RTX 4090": {"float32": 82.6, "tf32": 82.6, "float16": 165.2, "float8": 330.3, "int8": 660.6},
    "RTX 4080": {"float32": 48.7, "float16": 97.5},
    "RTX 4070 Ti": {"float32": 40.1},
    "RTX 4070": {"float32": 29.1},
    "RTX 4060": {"float32": 15.1},
    "H100-SXM5": {
        "float64": 66.9,
        "float32": 66.9,
        "tf32": 494.7,
        "float16": 989.4,
        "float8": 1978.9,
        "int8": 1978.9,
    },
    "H100-PCIe": {"float64": 51.2, "float32": 51.2, "tf32": 378, "float16": 756, "float8": 1513},
    "H100-NVL": {"float64": 60, "float32": 60, "float16": 835, "float8": 1671},
    "H200": {"float64": 67, "float32": 67, "tf32": 494.5, "float16": 989.5, "float8": 1979},
    "B200": {
        "float64": 37,
        "float32": 75,
        "tf32": 1125,
        "float16": 2250,
        "float8": 4500,
        "int8": 4500,
        "float4": 9000,
    },
    "Jetson T5000 (Thor)": {"float4": 1035, "float32": 8.06},
    "RTX PRO 6000 Blackwell": {"float32": 126, "float16": 503.8, "float4": 2015},
    "RTX 5090": {
        "float32": 104.8,
        "tf32": 104.8,
        "float16": 209.5,
        "float8": 419,
        "int8": 838,
        "float4": 1676,
    },
    "RTX 5080": {"float32": 56.3, "float16": 112.6, "float4": 900.4},
    "RTX 5070 Ti": {"float32": 43.9, "float16": 87.9, "float8": 175.8, "float4": 703},
    "RTX 5070": {"float32": 30.9, "float16": 61.7, "float8": 123.5, "int8": 246.9},
}


def test_names_are_unique() -> None:
    for rows in (CUDA_ARCHS, BOARDS, CPU_ISAS):
        names = [row.name for row in rows]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("row", [*CUDA_ARCHS, *BOARDS, *CPU_ISAS], ids=lambda row: row.name)
def test_every_row_has_a_source(row: CudaArch | Board | CpuIsa) -> None:
    assert len(row.source) > 10
    if isinstance(row, CudaArch):
        rates = bool(row.vector_flops_per_clk or row.tensor_flops_per_clk)
        assert rates == bool(row.rates_source)


@pytest.mark.parametrize("arch", CUDA_ARCHS, ids=lambda arch: arch.name)
def test_limits_of_an_architecture_agree(arch: CudaArch) -> None:
    assert arch.name == f"sm_{arch.capability[0]}{arch.capability[1]}"
    assert arch.max_threads_per_sm == 32 * arch.max_warps_per_sm
    assert arch.max_warps_per_sm % arch.num_subpartitions == 0
    assert list(arch.carveouts_bytes) == sorted(set(arch.carveouts_bytes))
    largest = arch.carveouts_bytes[-1]
    assert arch.shared_bytes_per_sm in arch.carveouts_bytes
    assert arch.max_shared_bytes_per_block == largest - arch.reserved_shared_bytes_per_block
    assert largest < arch.unified_cache_bytes
    assert arch.reserved_shared_bytes_per_block == (KIB if arch.capability >= (8, 0) else 0)
    assert arch.shared_unit_bytes == (128 if arch.capability >= (8, 0) else 256)
    assert arch.barriers_per_sm % arch.max_blocks_per_sm == 0
    assert arch.limits_barriers == (arch.capability >= (9, 0))


@pytest.mark.parametrize("arch", CUDA_ARCHS, ids=lambda arch: arch.name)
def test_narrower_types_are_never_slower(arch: CudaArch) -> None:
    order = ("float64", "tf32", "float16", "float8", "float4")
    rates = [arch.tensor_flops_per_clk[name] for name in order if name in arch.tensor_flops_per_clk]
    assert rates == sorted(rates)
    if "bfloat16" in arch.tensor_flops_per_clk:
        assert arch.tensor_flops_per_clk["bfloat16"] == arch.tensor_flops_per_clk["float16"]
    for rate in (*arch.vector_flops_per_clk.values(), *arch.tensor_flops_per_clk.values()):
        assert rate & (rate - 1) == 0 or rate % 3 == 0


def test_the_guides_ratio_of_fp32_to_fp64() -> None:
    """CUDA Programming Guide 13.4, Table 30."""
    ratios = {
        "sm_70": 2,
        "sm_75": 32,
        "sm_80": 2,
        "sm_86": 64,
        "sm_87": 64,
        "sm_89": 64,
        "sm_90": 2,
        "sm_100": 2,
        "sm_103": 64,
        "sm_110": 64,
        "sm_120": 64,
        "sm_121": 64,
    }
    for name, ratio in ratios.items():
        rates = find_arch(name).vector_flops_per_clk
        assert rates["float32"] == ratio * rates["float64"]


@pytest.mark.parametrize("name", sorted(DATASHEETS))
def test_rates_times_clock_give_the_datasheets_peaks(name: str) -> None:
    roofs = roofs_of_board(find_board(name))
    for dtype, tera in DATASHEETS[name].items():
        assert roofs.peaks_flops[dtype] / 1e12 == pytest.approx(tera, rel=0.015), dtype


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.name)
def test_boards_are_plausible(board: Board) -> None:
    arch = find_arch(board.arch)
    assert 1e9 < board.tensor_clock_hz <= board.clock_hz < 3e9
    assert 10 <= board.num_sms <= 200
    assert 8e9 <= board.memory_bytes <= 300e9
    assert 1e11 < board.memory_bytes_per_s <= 8e12
    assert board.l2_bytes is None or board.l2_bytes >= 2 << 20
    assert set(board.tensor_scale) - {"int4"} <= {*arch.tensor_flops_per_clk, "float8"}


def test_all_generations_from_volta_to_blackwell_have_boards() -> None:
    assert {"sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"} <= {
        board.arch for board in BOARDS
    }
    for series in ("RTX 30", "RTX 40", "RTX 50"):
        assert sum(board.name.startswith(series) for board in BOARDS) >= 5


def test_processors_go_by_the_code_generators_names() -> None:
    assert {isa.name for isa in CPU_ISAS} <= set(known_targets())
    assert find_cpu("znver4") is not None
    assert find_cpu("pentium") is None


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("haswell", {"float64": 16, "float32": 32}),
        ("skylake-avx512", {"float64": 32, "float32": 64}),
        ("icelake-server", {"float64": 32, "float32": 64, "int8": 256}),
        ("sapphirerapids", {"float64": 32, "float32": 64, "int8": 2048, "bfloat16": 1024}),
        ("znver1", {"float64": 8, "float32": 16}),
        ("znver4", {"float64": 16, "float32": 32, "int8": 128, "bfloat16": 64}),
        ("neoverse-v2", {"float64": 16, "float32": 32, "int8": 128}),
    ],
)
def test_rates_of_processors(name: str, rates: dict[str, float]) -> None:
    isa = find_cpu(name)
    assert isa is not None
    assert isa.flops_per_cycle == rates


@pytest.mark.parametrize("isa", CPU_ISAS, ids=lambda isa: isa.name)
def test_processors_are_plausible(isa: CpuIsa) -> None:
    rates = isa.flops_per_cycle
    assert rates["float32"] == 2 * rates["float64"]
    assert isa.load_bytes_per_cycle >= isa.store_bytes_per_cycle > 0
