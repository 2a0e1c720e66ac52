"""Runs generated CUDA C++ on the CPU, through the C++ compiler of the machine.

Input -> Output: a kernel, arrays by buffer name, sizes -> the output arrays.
Guarantees: every thread of every block runs, with barriers, shuffles and shared memory.
Not here: speed, caches, races within a warp; what NVIDIA's compiler makes of the text.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tilewright.codegen.cuda.generate import GeneratedKernel, generate
from tilewright.core.errors import OutOfRange
from tilewright.kernel.ir import Kernel

Array = npt.NDArray[Any]
COMPILER = shutil.which("g++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler to emulate with")
_HEADER = Path(__file__).with_name("emulate.h")


@cache
def _scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="tilewright-emulate-"))


def build(made: GeneratedKernel) -> ctypes.CDLL:
    """A library with a ``run_K`` for each stage: (grid, arguments)."""
    assert COMPILER is not None
    text = made.text.replace('extern "C" __global__ void', 'extern "C" void')
    entries = [
        _entry(text, number, stage.launch.threads) for number, stage in enumerate(made.stages)
    ]
    source = "\n".join([_HEADER.read_text(), text, *entries])
    name = hashlib.sha256(source.encode()).hexdigest()[:16]
    library = _scratch() / f"{name}.so"
    if not library.exists():
        path = _scratch() / f"{name}.cpp"
        path.write_text(source)
        flags = ["-O0", "-std=c++17", "-shared", "-fPIC", "-w", "-fwrapv", "-ffp-contract=off"]
        done = subprocess.run(
            [COMPILER, *flags, str(path), "-o", str(library)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[:3000]
    return ctypes.CDLL(str(library))


def _entry(text: str, number: int, threads: int) -> str:
    found = re.search(rf"stage_{number}\((.*?)\) {{", text)
    assert found is not None
    casts = []
    for k, parameter in enumerate(found[1].split(", ")):
        kind = parameter.rsplit(" ", 1)[0].replace("__restrict__", "")
        casts.append(f"({kind})args[{k}]")
    call = f"stage_{number}({', '.join(casts)})"
    return (
        f'extern "C" void run_{number}(const unsigned* grid, const long long* args) {{ '
        f"tw_launch(grid, {threads}, [=] {{ {call}; }}); }}"
    )


def run_emulated(
    kernel: Kernel,
    feeds: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    *,
    disabled: Collection[str] = (),
    made: GeneratedKernel | None = None,
) -> dict[str, Array]:
    """Runs all stages, all of them once for each step.

    Raises:
        OutOfRange: a ``checked_index`` lies outside.
    """
    sizes = dict(sizes or {})
    made = made or generate(kernel, disabled)
    library = build(made)
    arrays = {name: np.ascontiguousarray(array) for name, array in feeds.items()}
    for buffer in (*kernel.outputs, *kernel.temporaries):
        shape = tuple(dim.evaluate(sizes) for dim in buffer.shape)
        raw = np.full(int(np.prod(shape)) * buffer.dtype.storage_bytes, 0xA5, dtype=np.uint8)
        arrays[buffer.name] = raw.view(buffer.dtype.numpy).reshape(shape)
    status = np.zeros(1, dtype=np.int32)
    words = [arrays[name].ctypes.data for name in made.buffers]
    words += [dim.evaluate(sizes) for dim in made.dims]
    steps = kernel.steps.extent.evaluate(sizes) if kernel.steps else 1
    for step in range(steps):
        for number, stage in enumerate(made.stages):
            grid = [dim.evaluate(sizes) for dim in stage.launch.grid]
            if 0 in grid:
                continue
            block = np.array([*words, step, status.ctypes.data, 0], dtype=np.int64)
            function = getattr(library, f"run_{number}")
            function((ctypes.c_uint * 3)(*grid), ctypes.c_void_p(block.ctypes.data))
    if status[0]:
        raise OutOfRange("an index lies outside")
    return {buffer.name: arrays[buffer.name] for buffer in kernel.outputs}
