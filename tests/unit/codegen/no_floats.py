"""Looks for float types and instructions in the code of kernels.

Input -> Output: a folder of ``compile(dump_kernels=)`` or LLVM IR text -> what is of floats in it.
Moves and logic of bits by instructions that are named after floats (``vmovups``, ``vxorps``,
``vbroadcastss``) compute nothing and do not count.
"""

from __future__ import annotations

import re
from pathlib import Path

from tilewright.codegen.cpu.objects import assembly
from tilewright.codegen.cpu.target import CpuTarget

_FLOAT_TYPE = re.compile(r"\b(half|bfloat|float|double|x86_fp80|fp128)\b")
_COMMENT = re.compile(r";.*$", re.MULTILINE)
_ARITHMETIC = re.compile(
    r"^\s+(v?(?:add|addsub|sub|mul|div|sqrt|rsqrt\w*|rcp\w*|min|max|hadd|hsub|dp|round|rndscale|"
    r"reduce|range|scalef|getexp|getmant|fixupimm|fpclass|cmp\w*|ucomi|comi|fn?m(?:add|sub)\w*|"
    r"fmaddsub\w*|fmsubadd\w*)(?:ps|pd|ss|sd|ph|sh)|v?cvt\w+|vdpbf16ps|f[a-z]+)\s",
    re.MULTILINE,
)


def float_types(ir: str) -> set[str]:
    """Float types that occur in LLVM IR."""
    return set(_FLOAT_TYPE.findall(_COMMENT.sub("", ir)))


def float_instructions(ir: str, target: CpuTarget) -> set[str]:
    """Mnemonics of x86 that compute with floats, in the machine code of LLVM IR."""
    return {match.strip() for match in _ARITHMETIC.findall(assembly(ir, target))}


def assert_no_floats(folder: Path, target: CpuTarget) -> None:
    """Every kernel of a folder of ``dump_kernels`` is free of floats; there is one at least."""
    files = sorted(folder.glob("*.ll"))
    assert files
    for file in files:
        text = file.read_text()
        assert not float_types(text), file.name
        if "x86" in target.triple:
            assert not float_instructions(text, target), file.name


def ptx_floats(ptx: str) -> set[str]:
    """Types of floats that instructions of PTX have."""
    return set(re.findall(r"\.(f16|bf16|f32|f64)\b", ptx))
