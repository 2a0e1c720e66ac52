"""Whether this processor can run code that was compiled for another.

Input -> Output: a target triple and the feature names that its code may use -> the features that
are missing.
Guarantees: LLVM is asked only for features that Linux does not name; to load it takes longer than
to load an engine.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
# LLVM's name of a feature where Linux has another (Linux, arch/x86/include/asm/cpufeatures.h).
_LINUX_NAMES = {
    "64bit": "lm",
    "bmi": "bmi1",
    "crc32": "sse4_2",
    "sse3": "pni",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "lzcnt": "abm",
    "sahf": "lahf_lm",
    "prfchw": "3dnowprefetch",
    "pclmul": "pclmulqdq",
    "rdrnd": "rdrand",
    "sha": "sha_ni",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avxvnni": "avx_vnni",
    "amx-int8": "amx_int8",
    "amx-bf16": "amx_bf16",
    "amx-tile": "amx_tile",
}

_UNUSED = frozenset({"shstk"})  # the code does not protect its returns


def missing_features(triple: str, required: Iterable[str]) -> list[str]:
    """Features of the code that this machine lacks; the architecture itself if it differs."""
    wanted = triple.split("-", 1)[0].replace("arm64", "aarch64")
    here = platform.machine().lower().replace("arm64", "aarch64").replace("amd64", "x86_64")
    if wanted and wanted != here:
        return [wanted]
    used = [name for name in required if name not in _UNUSED]
    unknown = [name for name in used if _LINUX_NAMES.get(name, name) not in _linux_flags()]
    return [name for name in unknown if not _llvm_features().get(name, False)]


@cache
def _linux_flags() -> frozenset[str]:
    """Features of all processors that Linux lets programs use; none on other systems."""
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = [set(line.partition(":")[2].split()) for line in lines if line.startswith("flags")]
    return frozenset(set.intersection(*flags)) if flags else frozenset()


@cache
def _llvm_features() -> dict[str, bool]:
    import llvmlite.binding as llvm

    return dict(llvm.get_host_cpu_features())
