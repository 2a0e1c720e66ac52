"""Runs one kernel on the GPU of this machine.

Input -> Output: a kernel, arrays by buffer name, sizes -> the output arrays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy.typing as npt

from tilewright.codegen.cuda.deep_tile import DeepTile
from tilewright.codegen.cuda.nvrtc import compile_text
from tilewright.codegen.cuda.target import cuda_target
from tilewright.codegen.cuda.tma_tile import TmaTile
from tilewright.compiler.cuda_kernels import CudaStore
from tilewright.core.record import DecisionLog
from tilewright.kernel.ir import Buffer, Kernel
from tilewright.runtime.cuda.driver import open_device
from tilewright.runtime.cuda.executor import CudaExecutor
from tilewright.runtime.program import Program, Segment, TensorSpec

Array = npt.NDArray[Any]


def arch() -> str:
    """The architecture of the GPU."""
    return f"sm_{open_device().capability}"


def run_on_gpu(
    kernel: Kernel,
    feeds: Mapping[str, Array],
    sizes: Mapping[str, int],
    *,
    disabled: Collection[str] = (),
    constants: Collection[str] = (),
    tile: DeepTile | TmaTile | None = None,
) -> dict[str, Array]:
    """Generates, compiles and runs a kernel.

    Args:
        constants: inputs that no kernel writes.
        tile: of its product.

    Raises:
        OutOfRange: a ``checked_index`` lies outside.
    """
    store = CudaStore(
        DecisionLog(),
        tuple(disabled),
        constants=constants,
        clusters=cuda_target(arch()).clusters,
        tile=tile,
    )
    call = store.call(kernel)
    code = {
        f"{key}.{arch()}.cubin": compile_text(text, arch()).cubin
        for key, text in store.texts.items()
    }
    segment = Segment(
        calls=(call,),
        inputs=_specs(kernel.inputs),
        outputs=_specs(kernel.outputs),
        internal=_specs(kernel.temporaries),
    )
    program = Program(inputs=(), outputs=_specs(kernel.outputs), steps=(segment,))
    weights = {name: feeds[name] for name in constants}
    executor = CudaExecutor(weights, code, open_device())
    others = {name: array for name, array in feeds.items() if name not in weights}
    found, _ = executor.run(program, others, dict(sizes))
    return {buffer.name: array for buffer, array in zip(kernel.outputs, found, strict=True)}


def _specs(buffers: tuple[Buffer, ...]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(name=b.name, dtype=b.dtype, shape=b.shape) for b in buffers)
