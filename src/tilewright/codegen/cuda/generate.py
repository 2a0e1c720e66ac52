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
from tilewright.codegen.cuda.layout import Layout, layout_of
from tilewright.codegen.cuda.plan import Draft, Shape
from tilewright.codegen.cuda.scalar import unsupported
from tilewright.codegen.cuda.tactics import Choice, choose
from tilewright.codegen.cuda.tma_tile import TmaTile
from tilewright.core.errors import UnsupportedOp
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Kernel, Stage, loaded, walk
from tilewright.kernel.nest import Nest, prepare
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
    groups = _groups(nests, choices)
    for number, group in enumerate(groups):
        parts.append(_function(kernel, layout, number, group, known))
    return GeneratedKernel(
        text="\n".join(parts),
        buffers=tuple(layout.buffers),
        dims=tuple(layout.dims),
        stages=tuple(_stage(number, group) for number, group in enumerate(groups)),
    )


def _groups(nests: list[Nest], choices: list[Choice]) -> list[list[tuple[Nest, Choice]]]:
    """Stages that share a launch: neighbours that can and do not need each other."""
    found: list[list[tuple[Nest, Choice]]] = []
    for nest, choice in zip(nests, choices, strict=True):
        group = found[-1] if found else []
        before = [own.stage for own, _ in group]
        alike = choice.shape.beside and all(
            other.shape.beside and other.shape.threads == choice.shape.threads for _, other in group
        )
        if group and alike and not any(_meet(stage, nest.stage) for stage in before):
            group.append((nest, choice))
        else:
            found.append([(nest, choice)])
    return found


def _meet(first: Stage, second: Stage) -> bool:
    """Whether one of two stages stores what the other touches."""
    stored = [{store.buffer for store in stage.stores} for stage in (first, second)]
    touched = [own | set(loaded(*s.roots)) for own, s in zip(stored, (first, second), strict=True)]
    return not (stored[0].isdisjoint(touched[1]) and stored[1].isdisjoint(touched[0]))


def _function(
    kernel: Kernel,
    layout: Layout,
    number: int,
    group: list[tuple[Nest, Choice]],
    constants: Collection[str],
) -> str:
    shapes = [choice.shape for _, choice in group]
    first = shapes[0]
    maps = [f"const __grid_constant__ TwMap map{k}" for k in range(len(first.matrices))]
    stored = {store.buffer for nest, _ in group for store in nest.stage.stores}
    parameters = ", ".join(
        [layout.parameters(kernel, stored, constants if first.plain else None), *maps]
    )
    lines = [f"{_head(first)} stage_{number}({parameters}) {{"]
    lines += ["  tw_release();"] if first.releases else []
    lines += [] if first.begins else ["  tw_begin();"]
    start = 0
    for place, (_, choice) in enumerate(group):
        own = list(choice.lines)
        if choice.shape.beside:
            own.insert(0, f"  const int block = (int)blockIdx.x - {start};")
        if len(group) > 1:
            start += choice.shape.grid[0].const
            last = place == len(group) - 1
            own = ["  {" if last else f"  if (blockIdx.x < {start}) {{", *own]
            own.append("  }" if last else "  } else")
        lines += own
    return "\n".join([*lines, "}\n"])


def _head(shape: Shape) -> str:
    cluster = f" __cluster_dims__({shape.cluster}, 1, 1)" if shape.cluster > 1 else ""
    bounds = f"{shape.threads}, {shape.resident}" if shape.resident > 1 else f"{shape.threads}"
    return f'extern "C" __global__ void __launch_bounds__({bounds}){cluster}'


@cache
def prelude(name: str) -> str:
    """C++ that kernels begin with."""
    return files("tilewright.codegen.cuda").joinpath(name).read_text()


def _stage(number: int, group: list[tuple[Nest, Choice]]) -> GeneratedStage:
    choices = [choice for _, choice in group]
    shapes = [choice.shape for choice in choices]
    (x, *others), first = [shape.grid[0] for shape in shapes], shapes[0]
    launch = Launch(
        symbol=f"stage_{number}",
        grid=(sum(others, x), *first.grid[1:]),
        threads=first.threads,
        shared_bytes=max(shape.shared_bytes for shape in shapes),
        checked=any(_CHECK in line for choice in choices for line in choice.lines),
        matrices=first.matrices,
    )
    tactic = " beside ".join(shape.tactic for shape in shapes)
    return GeneratedStage(launch=launch, tactic=tactic, refused=choices[0].refused)


def _check_types(kernel: Kernel) -> None:
    used = [buffer.dtype for buffer in kernel.buffers] + [n.dtype for n in walk(*kernel.roots)]
    for dtype in dict.fromkeys(used):
        reason = unsupported(dtype)
        if reason is not None:
            raise UnsupportedOp(
                reason, node=" + ".join(kernel.sources), remedy="use another type, or target=cpu"
            )
