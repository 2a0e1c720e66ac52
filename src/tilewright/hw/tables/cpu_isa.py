"""Multiply-adds per cycle and core of processor families, by LLVM's name.

Only rates that a cited document states, or that were measured here, are listed: a type that is
missing may still exist.  Integer rates are those of the dot-product instructions (VNNI, SDOT).
"""

from __future__ import annotations

from tilewright.hw.records import CpuIsa, VectorUnit

_INTEL = "Intel 64 and IA-32 Architectures Optimization Reference Manual (248966)"
_UOPS = "uops.info instruction tables"
_AMX = "Intel, Accelerate AI Workloads with Intel AMX (2022), p. 4"


def _fma(register: str, bits: int, cycles: float) -> tuple[VectorUnit, ...]:
    """Fused multiply-adds of both float types."""
    name = {"zmm": "vfmadd", "ymm": "vfmadd", "xmm": "vfmadd"}.get(register, "fmla")
    return (
        VectorUnit(
            dtype="float64",
            instruction=f"{name} {register} (64-bit)",
            multiply_adds=bits // 64,
            cycles=cycles,
        ),
        VectorUnit(
            dtype="float32",
            instruction=f"{name} {register} (32-bit)",
            multiply_adds=bits // 32,
            cycles=cycles,
        ),
    )


def _dot(instruction: str, bits: int, cycles: float) -> VectorUnit:
    """Dot products of bytes into 32-bit integers."""
    return VectorUnit(dtype="int8", instruction=instruction, multiply_adds=bits // 8, cycles=cycles)


_AMX_INT8 = VectorUnit(
    dtype="int8", instruction="tdpbssd tmm", multiply_adds=16 * 16 * 64, cycles=16
)
_AMX_BF16 = VectorUnit(
    dtype="bfloat16", instruction="tdpbf16ps tmm", multiply_adds=16 * 16 * 32, cycles=16
)
_AVX2_TWO = _fma("ymm", 256, 0.5)
_AVX512_TWO = _fma("zmm", 512, 0.5)
_ONE_PORT = "Bronze and Silver parts with one 512-bit FMA port reach half."


def _xeon_amx(name: str, title: str) -> CpuIsa:
    return CpuIsa(
        name=name,
        title=title,
        units=(*_AVX512_TWO, _AMX_INT8, _AMX_BF16),
        load_bytes_per_cycle=128,
        store_bytes_per_cycle=64,
        source=f"{_INTEL}; {_AMX}",
    )


CPU_ISAS: tuple[CpuIsa, ...] = (
    CpuIsa(
        name="haswell",
        title="Intel Haswell",
        units=_AVX2_TWO,
        load_bytes_per_cycle=64,
        store_bytes_per_cycle=32,
        source=_INTEL,
    ),
    CpuIsa(
        name="broadwell",
        title="Intel Broadwell",
        units=_AVX2_TWO,
        load_bytes_per_cycle=64,
        store_bytes_per_cycle=32,
        source=_INTEL,
    ),
    CpuIsa(
        name="skylake",
        title="Intel Skylake (client)",
        units=_AVX2_TWO,
        load_bytes_per_cycle=64,
        store_bytes_per_cycle=32,
        source=_INTEL,
    ),
    CpuIsa(
        name="alderlake",
        title="Intel Alder Lake (performance cores)",
        units=(*_AVX2_TWO, _dot("vpdpbusd ymm", 256, 0.5)),
        load_bytes_per_cycle=96,
        store_bytes_per_cycle=64,
        source=f"{_INTEL}; {_UOPS}",
        note="Efficiency cores reach half.",
    ),
    CpuIsa(
        name="skylake-avx512",
        title="Intel Xeon Scalable, 1st generation",
        units=_AVX512_TWO,
        load_bytes_per_cycle=128,
        store_bytes_per_cycle=64,
        source=_INTEL,
        note=_ONE_PORT,
    ),
    CpuIsa(
        name="cascadelake",
        title="Intel Xeon Scalable, 2nd generation",
        units=(*_AVX512_TWO, _dot("vpdpbusd zmm", 512, 0.5)),
        load_bytes_per_cycle=128,
        store_bytes_per_cycle=64,
        source=f"{_INTEL}; {_AMX} (256 INT8 operations a cycle with VNNI)",
        note=_ONE_PORT,
    ),
    CpuIsa(
        name="icelake-server",
        title="Intel Xeon Scalable, 3rd generation",
        units=(*_AVX512_TWO, _dot("vpdpbusd zmm", 512, 0.5)),
        load_bytes_per_cycle=128,
        store_bytes_per_cycle=64,
        source=f"{_INTEL}; {_AMX} (256 INT8 operations a cycle with VNNI)",
    ),
    _xeon_amx("sapphirerapids", "Intel Xeon Scalable, 4th generation"),
    _xeon_amx("emeraldrapids", "Intel Xeon Scalable, 5th generation"),
    _xeon_amx("graniterapids", "Intel Xeon 6 (performance cores)"),
    CpuIsa(
        name="znver1",
        title="AMD Zen",
        units=_fma("xmm", 128, 0.5),
        load_bytes_per_cycle=32,
        store_bytes_per_cycle=16,
        source="AMD Software Optimization Guide for Family 17h (55723)",
    ),
    CpuIsa(
        name="znver2",
        title="AMD Zen 2",
        units=_AVX2_TWO,
        load_bytes_per_cycle=64,
        store_bytes_per_cycle=32,
        source="AMD Software Optimization Guide for Family 17h Models 30h and later (56305)",
    ),
    CpuIsa(
        name="znver3",
        title="AMD Zen 3",
        units=_AVX2_TWO,
        load_bytes_per_cycle=64,
        store_bytes_per_cycle=32,
        source="AMD Software Optimization Guide for Family 19h (56665)",
    ),
    CpuIsa(
        name="znver4",
        title="AMD Zen 4",
        units=(
            *_fma("zmm", 512, 1),
            _dot("vpdpbusd zmm", 512, 1),
            VectorUnit(dtype="bfloat16", instruction="vdpbf16ps zmm", multiply_adds=32, cycles=1),
        ),
        load_bytes_per_cycle=64,
        store_bytes_per_cycle=32,
        source=(
            "AMD Software Optimization Guide for the Zen 4 Microarchitecture (57647); int8 and "
            "bfloat16 measured with tilewright device --probe"
        ),
    ),
    CpuIsa(
        name="znver5",
        title="AMD Zen 5",
        units=_AVX512_TWO,
        load_bytes_per_cycle=128,
        store_bytes_per_cycle=64,
        source="AMD Software Optimization Guide for the Zen 5 Microarchitecture (58455)",
        note="Mobile parts with 256-bit data paths reach half.",
    ),
    CpuIsa(
        name="neoverse-n1",
        title="Arm Neoverse N1",
        units=(*_fma("v.4s / v.2d", 128, 0.5), _dot("sdot v.4s", 128, 0.5)),
        load_bytes_per_cycle=32,
        store_bytes_per_cycle=16,
        source="Arm Neoverse N1 Software Optimization Guide",
    ),
    CpuIsa(
        name="neoverse-n2",
        title="Arm Neoverse N2",
        units=(*_fma("v.4s / v.2d", 128, 0.5), _dot("sdot v.4s", 128, 0.5)),
        load_bytes_per_cycle=48,
        store_bytes_per_cycle=32,
        source="Arm Neoverse N2 Software Optimization Guide",
    ),
    CpuIsa(
        name="neoverse-v1",
        title="Arm Neoverse V1",
        units=(*_fma("v.4s / v.2d", 128, 0.25), _dot("sdot v.4s", 128, 0.25)),
        load_bytes_per_cycle=48,
        store_bytes_per_cycle=32,
        source="Arm Neoverse V1 Software Optimization Guide",
    ),
    CpuIsa(
        name="neoverse-v2",
        title="Arm Neoverse V2",
        units=(*_fma("v.4s / v.2d", 128, 0.25), _dot("sdot v.4s", 128, 0.25)),
        load_bytes_per_cycle=48,
        store_bytes_per_cycle=32,
        source="Arm Neoverse V2 Software Optimization Guide",
    ),
)
