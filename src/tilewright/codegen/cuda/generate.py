"""A kernel's stages to CUDA C++ functions.

Input -> Output: a canonical ``Kernel`` -> ``GeneratedKernel``: text, parameters, launches.
Guarantees: any verified kernel whose types have code has a function for each stage.
Not here: the choice of tactics (tactics), machine code (compile), launching (runtime.cuda).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from tilewright.codegen.cuda.deep_tile import DeepTile
from tilewright.codegen.cuda.layout import layout_of
from tilewright.codegen.cuda.plan import Draft, Shape
from tilewright.codegen.cuda.scalar import unsupported
from tilewright.codegen.cuda.tactics import Choice, choose
from tilewright.codegen.cuda.tma_tile import TmaTile
from tilewright.core.errors import UnsupportedOp
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Kernel, walk
from tilewright.kernel.nest import prepare
from tilewright.runtime.program import Launch

_CHECK = "tw_checked("  # of an index that was read: prelude.cuh


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedStage:
    """One function, and why other tactics were refused."""

    launch: Launch
    tactic: str
    refused: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedKernel:
    """A kernel's code before compilation.

    Attributes:
        text: CUDA C++.
        buffers, dims: in the order of the parameters.
    """

    text: str
    buffers: tuple[str, ...]
    dims: tuple[Dim, ...]
    stages: tuple[GeneratedStage, ...]


def generate(
    kernel: Kernel,
    disabled: Collection[str] = (),
    *,
    constants: Collection[str] = (),
    clusters: bool = False,
    tile: DeepTile | TmaTile | None = None,
) -> GeneratedKernel:
    """Generates every stage with the first tactic that fits.

    Args:
        constants, clusters, tile: as for ``Draft``.

    Raises:
        UnsupportedOp: a type has no CUDA code.
    """
    _check_types(kernel)
    nests = [prepare(kernel, stage) for stage in kernel.stages]
    layout = layout_of(kernel)
    known = frozenset(constants)
    choices = [
        choose(
            Draft(
                kernel=kernel,
                nest=nest,
                layout=layout,
                constants=known,
                clusters=clusters,
                tile=tile,
            ),
            disabled,
        )
        for nest in nests
    ]
    shapes = [choice.shape for choice in choices]
    names = dict.fromkeys(name for shape in shapes for name in shape.preludes)
    parts = [prelude(name) for name in ("prelude.cuh", *names)]
    parts += dict.fromkeys(shape.support for shape in shapes)
    for number, (nest, choice) in enumerate(zip(nests, choices, strict=True)):
        maps = [f"const __grid_constant__ TwMap map{k}" for k in range(len(choice.shape.matrices))]
        parameters = ", ".join([layout.parameters(kernel, nest), *maps])
        signature = f"{_head(choice.shape)} stage_{number}({parameters})"
        begin = ["  tw_release();"] if choice.shape.releases else []
        begin += [] if choice.shape.begins else ["  tw_begin();"]
        parts.append("\n".join([f"{signature} {{", *begin, *choice.lines, "}\n"]))
    return GeneratedKernel(
        text="\n".join(parts),
        buffers=tuple(layout.buffers),
        dims=tuple(layout.dims),
        stages=tuple(_stage(number, choice) for number, choice in enumerate(choices)),
    )


def _head(shape: Shape) -> str:
    cluster = f" __cluster_dims__({shape.cluster}, 1, 1)" if shape.cluster > 1 else ""
    bounds = f"{shape.threads}, {shape.resident}" if shape.resident > 1 else f"{shape.threads}"
    return f'extern "C" __global__ void __launch_bounds__({bounds}){cluster}'


@cache
def prelude(name: str) -> str:
    """C++ that kernels begin with."""
    return files("tilewright.codegen.cuda").joinpath(name).read_text()


def _stage(number: int, choice: Choice) -> GeneratedStage:
    shape = choice.shape
    launch = Launch(
        symbol=f"stage_{number}",
        grid=shape.grid,
        threads=shape.threads,
        shared_bytes=shape.shared_bytes,
        checked=any(_CHECK in line for line in choice.lines),
        matrices=shape.matrices,
    )
    return GeneratedStage(launch=launch, tactic=shape.tactic, refused=choice.refused)


def _check_types(kernel: Kernel) -> None:
    used = [buffer.dtype for buffer in kernel.buffers] + [n.dtype for n in walk(*kernel.roots)]
    for dtype in dict.fromkeys(used):
        reason = unsupported(dtype)
        if reason is not None:
            raise UnsupportedOp(
                reason, node=" + ".join(kernel.sources), remedy="use another type, or target=cpu"
            )
