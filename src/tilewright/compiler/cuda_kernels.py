"""Kernels to CUDA code: each distinct one once.

Input -> Output: kernels of a draft -> ``KernelCall``s with launches; texts by key.
Guarantees: equal kernels share one function; every choice and what it costs is a decision.
Not here: tactics (codegen.cuda.tactics), machine code (codegen.cuda.nvrtc).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tilewright.codegen.cuda.contraction import NAME as TENSOR_CORE
from tilewright.codegen.cuda.contraction import ranked_tiles
from tilewright.codegen.cuda.deep_tile import DeepTile
from tilewright.codegen.cuda.generate import GeneratedKernel, generate
from tilewright.codegen.cuda.nvrtc import Compiled
from tilewright.codegen.cuda.tma_tile import TmaTile
from tilewright.codegen.cuda.variants import variants
from tilewright.compiler.compile_kernels import tactic_text
from tilewright.core.dtypes import BFLOAT16, FLOAT8_E4M3FN, FLOAT16, FLOAT32, DType
from tilewright.core.record import DecisionLog
from tilewright.core.shape import Dim
from tilewright.kernel.canonical import Canonical, canonicalize
from tilewright.kernel.counts import compute_dtype, count
from tilewright.kernel.ir import Buffer, Kernel, Load, Reduce, walk
from tilewright.kernel.text import print_kernel
from tilewright.runtime.program import KernelCall, Launch
from tilewright.tune.on_gpu import fastest
from tilewright.tune.store import Stage, Timing

_MOST_KNOWN = 16  # ways that a store's timings may choose between
_PEAKS = (BFLOAT16, FLOAT8_E4M3FN)  # of tensor cores, beside float16 and integers
_WIDENED = (FLOAT16, BFLOAT16)  # scalar code computes them in float32


@dataclass(slots=True)
class CudaStore:
    """Generated kernels by canonical text.

    Attributes:
        constants: names of the buffers that no kernel writes.
        clusters: all GPUs that the code is for have clusters of blocks.
        tile: of every product, to time it; None: chosen by formula.
        texts: CUDA C++ by key.
        exports: function names by key.
        candidates: how many ways to run each kernel the engine is to have.
        timings: of a store, to choose by; then the engine has one way.
        kernels: readable kernel by key.
        names: nodes that the first kernel of each key computes.
        rings: none; private buffers are kept whole.
    """

    log: DecisionLog
    disabled: tuple[str, ...] = ()
    constants: Collection[str] = ()
    clusters: bool = False
    tile: DeepTile | TmaTile | None = None
    candidates: int = 1
    timings: Mapping[Stage, list[Timing]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    exports: dict[str, tuple[str, ...]] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    rings: dict[str, Buffer] = field(default_factory=dict)
    _generated: dict[tuple[str, frozenset[str]], list[GeneratedKernel]] = field(
        default_factory=dict
    )

    def call(self, kernel: Kernel) -> KernelCall:
        """The call of a kernel; its code is generated when it is new.

        Raises:
            UnsupportedOp: a type has no CUDA code.
        """
        canonical = canonicalize(kernel)
        fixed = frozenset(new for old, new in canonical.buffers.items() if old in self.constants)
        ways = self._ways(replace(canonical.kernel, sources=kernel.sources), fixed)
        for stage in ways[0].stages:
            self.log.add("tactic", "+".join(kernel.sources), stage.tactic, stage.refused)
        first, *others = (self._call(kernel, canonical, made) for made in ways)
        return replace(first, alternatives=tuple(others))

    def _call(self, kernel: Kernel, canonical: Canonical, made: GeneratedKernel) -> KernelCall:
        key = key_of(made)
        self.texts[key] = made.text
        self.exports[key] = tuple(stage.launch.symbol for stage in made.stages)
        self.kernels.setdefault(key, print_kernel(canonical.kernel))
        self.names.setdefault(key, "+".join(kernel.sources))
        old_buffers = {new: old for old, new in canonical.buffers.items()}
        old_dims = {new: Dim.symbol(old) for old, new in canonical.symbols.items()}
        work = count(kernel)
        buffers = tuple(old_buffers[buffer] for buffer in made.buffers)
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
            tactic=tactic_of(made),
        )

    def _ways(self, kernel: Kernel, constants: frozenset[str]) -> list[GeneratedKernel]:
        """The ways to run a kernel, the one to take first."""
        text = print_kernel(kernel)
        found = self._generated.get((text, constants))
        if found is None:
            most = _MOST_KNOWN if self.timings else self.candidates
            make = partial(generate, constants=constants, clusters=self.clusters, tile=self.tile)
            tiles = ranked_tiles(kernel, self.disabled, self.clusters) if most > 1 else []
            found = variants(kernel, self.disabled, most, make, tiles)
            if self.timings:
                timed = self.timings.get(Stage(key_of(found[0]), 0), [])
                tactics = [tactic_of(made) for made in found]
                found = [found[tactics.index(fastest(tactics[0], tactics[1:], timed))]]
            self._generated[text, constants] = found
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


def key_of(made: GeneratedKernel) -> str:
    """The name of code in an engine and in a timing store."""
    return hashlib.sha256(made.text.encode()).hexdigest()[:32]


def tactic_of(made: GeneratedKernel) -> str:
    """How all stages run."""
    return tactic_text([stage.tactic for stage in made.stages])


def _dtype(kernel: Kernel, tactics: Sequence[str]) -> str:
    """The type whose peak bounds a kernel: that of the products on tensor cores, else of scalars.

    Operations beside such products count by the same peak, which only makes the bound lower.
    """
    dtype = compute_dtype(kernel)
    if dtype.is_float and any(tactic.startswith(TENSOR_CORE) for tactic in tactics):
        return next((own.name for own in _factors(kernel) if own in _PEAKS), FLOAT16.name)
    return FLOAT32.name if dtype in _WIDENED else dtype.name


def _factors(kernel: Kernel) -> Iterator[DType]:
    """The types of what sums read."""
    for node in walk(*kernel.roots):
        if isinstance(node, Reduce) and node.combiner == "sum":
            yield from (part.dtype for part in walk(node.body) if isinstance(part, Load))


def _launch(launch: Launch, dims: Mapping[str, Dim]) -> Launch:
    x, y, z = (dim.substitute(dims) for dim in launch.grid)
    return replace(launch, grid=(x, y, z))
