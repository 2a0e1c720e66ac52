"""GPUs as sold, one row each: SMs, clocks, memory.

Clocks are the boost clocks at which the vendor states peaks: SMs x rate x clock gives the
datasheet's number.  Memory sizes and bandwidths are decimal, as stated; L2 is in MiB.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.hw.records import GB, MIB, Board

# GeForce boards sum into 32-bit floats at half rate (appendices of the whitepapers below).
_GEFORCE = {"tf32": 0.5, "float16": 0.5, "bfloat16": 0.5, "float8": 0.5}
_HALF = {**_GEFORCE, "int8": 0.5, "int4": 0.5}

_VOLTA = "NVIDIA Tesla V100 GPU Accelerator datasheet"
_A100 = "NVIDIA A100 Tensor Core GPU datasheet and Architecture whitepaper v1.0"
_GA102 = "NVIDIA Ampere GA102 GPU Architecture whitepaper v2.1"
_RTX30 = "NVIDIA GeForce RTX 30 product page; GA102 whitepaper v2.1"
_RTX40 = "NVIDIA Ada GPU Architecture whitepaper v2.1; GeForce RTX 40 product page"
_RTX50 = "NVIDIA RTX Blackwell GPU Architecture whitepaper v1.1; GeForce RTX 50 product page"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet and Architecture whitepaper v1.04, Table 3"


def _board(
    name: str,
    arch: str,
    num_sms: int,
    mhz: float,
    memory_gb: float,
    gb_per_s: float,
    l2_mib: float | None,
    source: str,
    tensor_scale: Mapping[str, float] | None = None,
    tensor_mhz: float | None = None,
) -> Board:
    return Board(
        name=name,
        arch=arch,
        num_sms=num_sms,
        clock_hz=mhz * 1e6,
        tensor_clock_hz=(tensor_mhz or mhz) * 1e6,
        memory_bytes=round(memory_gb * GB),
        memory_bytes_per_s=gb_per_s * GB,
        l2_bytes=None if l2_mib is None else round(l2_mib * MIB),
        source=source,
        tensor_scale=tensor_scale or {},
    )


BOARDS: tuple[Board, ...] = (
    # name, architecture, SMs, MHz, GB, GB/s, MiB of L2, source
    _board("V100-SXM2", "sm_70", 80, 1530, 32, 900, 6, _VOLTA),
    _board("V100-PCIe", "sm_70", 80, 1380, 32, 900, 6, _VOLTA),
    _board("T4", "sm_75", 40, 1590, 16, 320, 4, "NVIDIA T4 datasheet"),
    # --- Ampere -----------------------------------------------------------------------------------
    _board("A100-SXM4-40GB", "sm_80", 108, 1410, 40, 1555, 40, _A100),
    _board("A100-SXM4-80GB", "sm_80", 108, 1410, 80, 2039, 40, _A100),
    _board("A100-PCIe-80GB", "sm_80", 108, 1410, 80, 1935, 40, _A100),
    _board("A30", "sm_80", 56, 1440, 24, 933, 24, "NVIDIA A30 datasheet"),
    _board("A10", "sm_86", 72, 1695, 24, 600, 6, "NVIDIA A10 datasheet"),
    _board("A40", "sm_86", 84, 1740, 48, 696, 6, f"NVIDIA A40 datasheet; {_GA102}"),
    _board("RTX A6000", "sm_86", 84, 1800, 48, 768, 6, f"NVIDIA RTX A6000 datasheet; {_GA102}"),
    _board("RTX 3090 Ti", "sm_86", 84, 1860, 24, 1008, 6, _RTX30, _GEFORCE),
    _board("RTX 3090", "sm_86", 82, 1695, 24, 936, 6, _GA102, _GEFORCE),
    _board("RTX 3080 Ti", "sm_86", 80, 1665, 12, 912, 6, _RTX30, _GEFORCE),
    _board("RTX 3080", "sm_86", 68, 1710, 10, 760, 5, _GA102, _GEFORCE),
    _board("RTX 3070 Ti", "sm_86", 48, 1770, 8, 608, 4, _RTX30, _GEFORCE),
    _board("RTX 3070", "sm_86", 46, 1725, 8, 448, 4, _GA102, _GEFORCE),
    _board("RTX 3060 Ti", "sm_86", 38, 1665, 8, 448, 4, _RTX30, _GEFORCE),
    _board("RTX 3060", "sm_86", 28, 1777, 12, 360, 3, _RTX30, _GEFORCE),
    _board(
        "Jetson AGX Orin 64GB",
        "sm_87",
        16,
        1300,
        64,
        204.8,
        4,
        "NVIDIA Jetson AGX Orin Series technical brief",
    ),
    # --- Ada --------------------------------------------------------------------------------------
    _board("L4", "sm_89", 58, 2040, 24, 300, 48, "NVIDIA L4 datasheet; Ada whitepaper v2.1"),
    _board("L40", "sm_89", 142, 2490, 48, 864, 96, "NVIDIA L40 datasheet", _HALF),
    _board("L40S", "sm_89", 142, 2520, 48, 864, 96, "NVIDIA L40S datasheet"),
    _board("RTX 6000 Ada", "sm_89", 142, 2505, 48, 960, 96, "NVIDIA Ada whitepaper v2.1"),
    _board("RTX 4090", "sm_89", 128, 2520, 24, 1008, 72, _RTX40, _GEFORCE),
    _board("RTX 4080 SUPER", "sm_89", 80, 2550, 16, 736, 64, _RTX40, _GEFORCE),
    _board("RTX 4080", "sm_89", 76, 2505, 16, 716.8, 64, _RTX40, _GEFORCE),
    _board("RTX 4070 Ti SUPER", "sm_89", 66, 2610, 16, 672, 48, _RTX40, _GEFORCE),
    _board("RTX 4070 Ti", "sm_89", 60, 2610, 12, 504, 48, _RTX40, _GEFORCE),
    _board("RTX 4070 SUPER", "sm_89", 56, 2475, 12, 504, 48, _RTX40, _GEFORCE),
    _board("RTX 4070", "sm_89", 46, 2475, 12, 504, 36, _RTX40, _GEFORCE),
    _board("RTX 4060 Ti", "sm_89", 34, 2535, 16, 288, 32, _RTX40, _GEFORCE),
    _board("RTX 4060", "sm_89", 24, 2460, 8, 272, 24, _RTX40, _GEFORCE),
    # --- Hopper -----------------------------------------------------------------------------------
    _board("H100-SXM5", "sm_90", 132, 1980, 80, 3350, 50, _H100, tensor_mhz=1830),
    _board("H100-PCIe", "sm_90", 114, 1755, 80, 2000, 50, _H100, tensor_mhz=1620),
    _board(
        "H100-NVL",
        "sm_90",
        132,
        1785,
        94,
        3900,
        50,
        "NVIDIA H100 NVL datasheet (tensor clock: its 835 TFLOPS FP16 over SMs and rate)",
        tensor_mhz=1545,
    ),
    _board(
        "H200",
        "sm_90",
        132,
        1980,
        141,
        4800,
        60,
        "NVIDIA H200 Tensor Core GPU datasheet; L2 as the driver reports it",
        tensor_mhz=1830,
    ),
    # --- Blackwell --------------------------------------------------------------------------------
    _board(
        "B200",
        "sm_100",
        148,
        1965,
        180,
        8000,
        126,
        "NVIDIA Blackwell Architecture Technical Brief v2.1, Table 3 (HGX B200); clocks: XLA "
        "cuda_core_info_table.cc (2025)",
        tensor_mhz=1835,
    ),
    _board(
        "Jetson T5000 (Thor)",
        "sm_110",
        20,
        1575,
        128,
        273,
        None,
        "NVIDIA Jetson Thor Series Modules datasheet",
    ),
    _board(
        "RTX PRO 6000 Blackwell",
        "sm_120",
        188,
        2617,
        96,
        1792,
        128,
        "NVIDIA RTX PRO Blackwell GPU Architecture whitepaper",
    ),
    _board("RTX 5090", "sm_120", 170, 2407, 32, 1792, 96, _RTX50, _GEFORCE),
    _board("RTX 5080", "sm_120", 84, 2617, 16, 960, 64, _RTX50, _GEFORCE),
    _board("RTX 5070 Ti", "sm_120", 70, 2452, 16, 896, 48, _RTX50, _GEFORCE),
    _board("RTX 5070", "sm_120", 48, 2512, 12, 672, 48, _RTX50, _GEFORCE),
    _board("RTX 5060 Ti", "sm_120", 36, 2572, 16, 448, None, _RTX50, _GEFORCE),
    _board("RTX 5060", "sm_120", 30, 2497, 8, 448, None, _RTX50, _GEFORCE),
)

# What one more kernel adds to a CUDA graph: a dependent one of one block, measured on an H200 with
# CUDA 13 and cuda-core; an empty one took 0.49 us, one of 132 blocks 1.08 us.
GRAPH_KERNEL_US = 0.90
