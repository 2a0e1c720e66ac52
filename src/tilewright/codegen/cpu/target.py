"""Processors that code can be generated for.

Input -> Output: a processor's name, or this machine -> ``CpuTarget``.
Guarantees: a target is a value; the same record gives the same code on any machine.
Not here: measured peaks (hw), the choice of tiles.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache

import llvmlite.binding as llvm

from tilewright.core.errors import BadTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTarget:
    """A processor as the code generator sees it.

    Attributes:
        name: LLVM's name of the processor.
        triple: LLVM's target triple.
        features: LLVM's feature string (``+avx2,-avx512f``); empty means what the name implies.
        vector_bytes: bytes of one vector register to plan for: 64, 32 or 16.
        num_vectors: architectural vector registers.
        halves_vectors: works on the two halves of a vector one after the other, so that half a
            vector costs half as much.
        has_f16c: converts half to float and back in hardware.
        has_fma: fused multiply-add.
        has_gather: gathers in hardware.
        has_masks: masked loads and stores of all lane widths in hardware.
        has_vnni: u8 x s8 dot products into s32.
        has_bf16: bfloat16 dot products into float.
        has_fp16: arithmetic on half.
        has_amx_int8: tile multiplication of bytes.
        has_amx_bf16: tile multiplication of bfloat16.
    """

    name: str
    triple: str
    features: str = ""
    vector_bytes: int
    num_vectors: int
    halves_vectors: bool = False
    has_f16c: bool = False
    has_fma: bool = False
    has_gather: bool = False
    has_masks: bool = False
    has_vnni: bool = False
    has_bf16: bool = False
    has_fp16: bool = False
    has_amx_int8: bool = False
    has_amx_bf16: bool = False

    @property
    def architecture(self) -> str:
        """``x86_64`` or ``aarch64``."""
        head = self.triple.split("-", 1)[0]
        return "aarch64" if head in ("aarch64", "arm64") else head

    @property
    def required_features(self) -> tuple[str, ...]:
        """LLVM's names of features that a machine must have to run code for this target."""
        if self.features:
            named = (part[1:] for part in self.features.split(",") if part.startswith("+"))
            return tuple(sorted(named))
        if self.architecture != "x86_64":
            return ()
        wanted = ["avx2", "f16c", "fma"] if self.has_fma else []
        if self.vector_bytes == 64:
            wanted += ["avx512bw", "avx512dq", "avx512f", "avx512vl"]
        if self.has_vnni and self.vector_bytes == 64:
            wanted.append("avx512vnni")
        return tuple(sorted(wanted))

    @property
    def least_block(self) -> int:
        """Channels (of 32 bits) of the finest block that wastes nothing."""
        return self.lanes(32) // (2 if self.halves_vectors else 1)

    def lanes(self, bits: int) -> int:
        """Elements of that width in one vector register."""
        return max(1, 8 * self.vector_bytes // bits)


_LINUX_X86 = "x86_64-unknown-linux-gnu"
_LINUX_ARM = "aarch64-unknown-linux-gnu"
_V3 = frozenset({"avx2", "fma", "f16c"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
_VNNI = _V4 | {"avx512vnni"}
_SPR = _VNNI | {"avx512bf16", "avx512fp16", "amx-int8", "amx-bf16", "amx-tile"}
_NEON = frozenset({"neon"})
_ARM82 = _NEON | {"fullfp16", "dotprod"}

# Features of the named processors (LLVM 22: X86.td, AArch64Processors.td).
_KNOWN: dict[str, frozenset[str]] = {
    "x86-64-v2": frozenset(),
    "x86-64-v3": _V3,
    "haswell": _V3,
    "broadwell": _V3,
    "skylake": _V3,
    "alderlake": _V3 | {"avxvnni"},
    "znver1": _V3,
    "znver2": _V3,
    "znver3": _V3,
    "x86-64-v4": _V4,
    "skylake-avx512": _V4,
    "cascadelake": _VNNI,
    "cooperlake": _VNNI | {"avx512bf16"},
    "icelake-server": _VNNI,
    "sapphirerapids": _SPR,
    "emeraldrapids": _SPR,
    "graniterapids": _SPR,
    "znver4": _VNNI | {"avx512bf16"},
    "znver5": _VNNI | {"avx512bf16", "avxvnni"},
    "neoverse-n1": _ARM82,
    "neoverse-v1": _ARM82 | {"bf16", "i8mm"},
    "neoverse-n2": _ARM82 | {"bf16", "i8mm"},
    "neoverse-v2": _ARM82 | {"bf16", "i8mm"},
    "apple-m1": _ARM82,
    "cortex-a72": _NEON,
}


# 512-bit operations in two passes of 256 (AMD, Software Optimization Guide for Zen 4, 2.11).
_HALVING = frozenset({"znver4"})


def known_targets() -> tuple[str, ...]:
    """Names that ``named_target`` accepts, besides ``host``."""
    return tuple(sorted(_KNOWN))


def named_target(name: str) -> CpuTarget:
    """The target of that processor (Linux), or this machine for ``host`` or ``native``.

    Raises:
        BadTarget: the name is not in ``known_targets()``.
    """
    if name in ("host", "native"):
        return host_target()
    if name not in _KNOWN:
        raise BadTarget(
            f"unknown processor {name!r}", remedy=f"use host or one of {', '.join(known_targets())}"
        )
    features = _KNOWN[name]
    triple = _LINUX_ARM if "neon" in features else _LINUX_X86
    if name.startswith("apple"):
        triple = "arm64-apple-macosx14.0.0"
    return _target(name, triple, features, "")


@cache
def host_target() -> CpuTarget:
    """This machine, with the features that its processor and operating system really offer."""
    features = llvm.get_host_cpu_features()
    present = frozenset(name for name, on in features.items() if on)
    if platform.machine().lower() in ("aarch64", "arm64"):
        present |= {"neon"}
    return _target(llvm.get_host_cpu_name(), llvm.get_process_triple(), present, features.flatten())


def _target(name: str, triple: str, present: frozenset[str], features: str) -> CpuTarget:
    arm = "neon" in present
    wide = present >= {"avx512f", "avx512bw", "avx512vl", "avx512dq"}
    return CpuTarget(
        name=name,
        triple=triple,
        features=features,
        vector_bytes=64 if wide else 32 if "avx2" in present else 16,
        num_vectors=32 if wide or arm else 16,
        halves_vectors=wide and name in _HALVING,
        has_f16c=arm or "f16c" in present,
        has_fma=arm or "fma" in present,
        has_gather="avx2" in present,
        has_masks=wide,
        has_vnni="avx512vnni" in present or "avxvnni" in present,
        has_bf16="avx512bf16" in present or "bf16" in present,
        has_fp16="avx512fp16" in present or "fullfp16" in present,
        has_amx_int8="amx-int8" in present,
        has_amx_bf16="amx-bf16" in present,
    )
