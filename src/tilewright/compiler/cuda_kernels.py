"""Kernels to CUDA code: each distinct one once.

Input -> Output: kernels of a draft -> ``KernelCall``s with launches; texts by key.
Guarantees: equal kernels share one function; every choice and what it costs is a decision.
Not here: tactics (codegen.cuda.tactics), machine code (codegen.cuda.nvrtc).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.codegen.cuda.contraction import NAME as TENSOR_CORE
from tilewright.codegen.cuda.generate import GeneratedKernel, generate
from tilewright.codegen.cuda.nvrtc import Compiled
from tilewright.compiler.compile_kernels import tactic_text
from tilewright.core.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.canonical import canonicalize
from tilewright.kernel.counts import compute_dtype, count
from tilewright.kernel.ir import Kernel
from tilewright.kernel.text import print_kernel
from tilewright.runtime.program import KernelCall, Launch

_WIDENED = (FLOAT16, BFLOAT16)  # scalar code computes them in float32


@dataclass(slots=True)
class CudaStore:
    """Generated kernels by canonical text.

    Attributes:
        texts: CUDA C++ by key.
        exports: function names by key.
        kernels: readable kernel by key.
        names: nodes that the first kernel of each key computes.
    """

    log: DecisionLog
    disabled: tuple[str, ...] = ()
    texts: dict[str, str] = field(default_factory=dict)
    exports: dict[str, tuple[str, ...]] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    _generated: dict[str, tuple[str, GeneratedKernel]] = field(default_factory=dict)

    def call(self, kernel: Kernel) -> KernelCall:
        """The call of a kernel; its code is generated when it is new.

        Raises:
            UnsupportedOp: a type has no CUDA code.
        """
        canonical = canonicalize(kernel)
        name = "+".join(kernel.sources)
        key, made = self._code(replace(canonical.kernel, sources=kernel.sources), name)
        old_buffers = {new: old for old, new in canonical.buffers.items()}
        old_dims = {new: Dim.symbol(old) for old, new in canonical.symbols.items()}
        work = count(kernel)
        buffers = tuple(old_buffers[buffer] for buffer in made.buffers)
        for stage in made.stages:
            self.log.add("tactic", name, stage.tactic, stage.refused)
        return KernelCall(
            kernel=key,
            name=kernel.name,
            sources=kernel.sources,
            buffers=buffers,
            dims=tuple(dim.substitute(old_dims) for dim in made.dims),
            stages=tuple(_launch(stage.launch, old_dims) for stage in made.stages),
            steps=None if kernel.steps is None else kernel.steps.extent,
            traffic=tuple(work.traffic[buffer] for buffer in buffers),
            flops=work.flops,
            dtype=_dtype(kernel, [stage.tactic for stage in made.stages]),
            tactic=tactic_text([stage.tactic for stage in made.stages]),
        )

    def _code(self, kernel: Kernel, name: str) -> tuple[str, GeneratedKernel]:
        text = print_kernel(kernel)
        found = self._generated.get(text)
        if found is None:
            made = generate(kernel, self.disabled)
            key = hashlib.sha256(made.text.encode()).hexdigest()[:32]
            found = self._generated[text] = (key, made)
            self.texts[key] = made.text
            self.exports[key] = tuple(stage.launch.symbol for stage in made.stages)
            self.kernels[key] = text
            self.names[key] = name
        return found

    def log_usage(self, compiled: Mapping[str, Mapping[str, Compiled]]) -> None:
        """Records registers, spills and shared memory of every function."""
        for key, by_arch in compiled.items():
            for arch, made in by_arch.items():
                for symbol, usage in made.usage.items():
                    self.log.add(
                        "resources",
                        self.names[key],
                        f"{arch} {symbol}: {usage.registers} registers, {usage.spill_bytes} bytes "
                        f"spilled, {usage.shared_bytes} bytes of static shared memory",
                    )


def _dtype(kernel: Kernel, tactics: Sequence[str]) -> str:
    """The type whose peak bounds a kernel: that of the products on tensor cores, else of scalars.

    Operations beside such products count by the same peak, which only makes the bound lower.
    """
    if any(tactic.startswith(TENSOR_CORE) for tactic in tactics):
        return FLOAT16.name
    dtype = compute_dtype(kernel)
    return FLOAT32.name if dtype in _WIDENED else dtype.name


def _launch(launch: Launch, dims: Mapping[str, Dim]) -> Launch:
    x, y, z = (dim.substitute(dims) for dim in launch.grid)
    return replace(launch, grid=(x, y, z))
