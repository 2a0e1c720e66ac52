"""CUDA C++ to machine code, without a GPU.

Input -> Output: a kernel's text and architectures -> cubins, PTX, and what its functions use.
Guarantees: the same text, architecture and compiler give the same bytes.
Requires: the extra ``[cuda]`` (NVIDIA's run-time compiler, as wheels).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from tilewright.codegen.cuda.target import CudaTarget
from tilewright.core.errors import BadTarget, InternalError

Progress = Callable[[str, int, int], None]
_OWN = {"sm_90": "sm_90a"}  # instructions that no newer architecture has
_OPTIONS = ("-std=c++17", "--ptxas-options=-v", "-diag-suppress=177")
_USAGE = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<spill>\d+) bytes spill stores.*?"
    r"Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a function needs of a multiprocessor, as the assembler reports it."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    shared_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A kernel for one architecture."""

    cubin: bytes
    ptx: bytes
    usage: Mapping[str, Usage]


def compiler_version() -> str:
    """The version of the compiler.

    Raises:
        BadTarget: it is not installed.
    """
    major, minor = _checked(_nvrtc().nvrtcVersion())
    return f"{major}.{minor}"


def compile_text(text: str, arch: str) -> Compiled:
    """Compiles CUDA C++ for one architecture.

    Machine code may use what only this architecture has (``sm_90a``); the PTX runs on newer ones.

    Raises:
        BadTarget: the compiler is not installed, or does not know the architecture.
        InternalError: the text is wrong.
    """
    own = _OWN.get(arch)
    cubin, ptx, log = _compile(text, own or arch)
    if own is not None:
        _, ptx, _ = _compile(text, arch.replace("sm_", "compute_"))
    return Compiled(cubin=cubin, ptx=ptx, usage=_usage(log))


def _compile(text: str, arch: str) -> tuple[bytes, bytes, str]:
    """Machine code (none for a virtual architecture), PTX and the assembler's report."""
    nvrtc = _nvrtc()
    (program,) = _checked(nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", 0, [], []))
    options = [option.encode() for option in (f"-arch={arch}", *_OPTIONS)]
    (failed,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    log = _text(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog).decode()
    if int(failed) == int(nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION):
        raise BadTarget(
            f"the installed compiler does not know {arch}: {log.strip()[:200]}",
            remedy="install a newer nvidia-cuda-nvrtc, or choose another architecture",
        )
    if int(failed):
        raise InternalError(f"generated CUDA C++ does not compile for {arch}: {log[:2000]}")
    is_real = arch.startswith("sm_")
    cubin = _text(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN) if is_real else b""
    ptx = _text(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    _checked(nvrtc.nvrtcDestroyProgram(program))
    return cubin, ptx, log


def compile_all(
    texts: Mapping[str, str], target: CudaTarget, progress: Progress | None = None
) -> tuple[dict[str, bytes], dict[str, dict[str, Compiled]]]:
    """Machine code of every kernel for every architecture, several at a time.

    Returns:
        Code by file name (``KEY.sm_90.cubin``, and ``KEY.ptx`` of the lowest architecture), and
        what was compiled by key and architecture.
    """
    jobs = [(key, arch) for key in texts for arch in target.archs]
    code: dict[str, bytes] = {}
    found: dict[str, dict[str, Compiled]] = {key: {} for key in texts}
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        made = pool.map(lambda job: compile_text(texts[job[0]], job[1]), jobs)
        for done, ((key, arch), compiled) in enumerate(zip(jobs, made, strict=True), start=1):
            code[f"{key}.{arch}.cubin"] = compiled.cubin
            if arch == target.archs[0]:
                code[f"{key}.ptx"] = compiled.ptx
            found[key][arch] = compiled
            if progress is not None:
                progress("compile kernels", done, len(jobs))
    return code, found


def _usage(log: str) -> dict[str, Usage]:
    found: dict[str, Usage] = {}
    for match in _USAGE.finditer(log):
        shared = re.search(r"(\d+) bytes smem", match["rest"])
        found[match["name"]] = Usage(
            registers=int(match["registers"]),
            spill_bytes=int(match["spill"]),
            stack_bytes=int(match["stack"]),
            shared_bytes=int(shared[1]) if shared else 0,
        )
    return found


@cache
def _nvrtc() -> Any:
    remedy = 'pip install "tilewright[cuda]"'
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise BadTarget("the CUDA compiler is not installed", remedy=remedy) from error
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:
        raise BadTarget(f"the CUDA compiler cannot be loaded: {error}", remedy=remedy) from error
    return nvrtc


def _checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    if int(result[0]):
        raise InternalError(f"the CUDA compiler answers {result[0]}")
    return result[1:]


def _text(program: Any, size: Callable[..., Any], read: Callable[..., Any]) -> bytes:
    (count,) = _checked(size(program))
    data = bytearray(count)
    _checked(read(program, data))
    return bytes(data).rstrip(b"\0") if read.__name__ != "nvrtcGetCUBIN" else bytes(data)
