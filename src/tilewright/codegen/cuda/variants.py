"""Other ways to run a kernel, for the clock to choose from.

Input -> Output: a kernel -> generated kernels that compute the same: first the one that the
formulas choose, then other tiles, then what is left when the tactics that it used are switched off,
and so on.
Guarantees: no two are alike; the order depends on nothing but the kernel.
Not here: which is best (tune.on_gpu).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from tilewright.codegen.cuda.deep_tile import DeepTile
from tilewright.codegen.cuda.generate import GeneratedKernel, generate
from tilewright.codegen.cuda.tactics import OPTIONAL
from tilewright.codegen.cuda.tma_tile import TmaTile
from tilewright.kernel.ir import Kernel

Make = Callable[..., GeneratedKernel]


def variants(
    kernel: Kernel,
    disabled: Collection[str],
    most: int,
    make: Make = generate,
    tiles: Sequence[DeepTile | TmaTile] = (),
) -> list[GeneratedKernel]:
    """At most so many; see the module's docstring.

    Args:
        make: generates a kernel without some tactics, with a tile if one is given.
        tiles: of its product, the best first.

    Raises:
        UnsupportedOp: a type has no CUDA code.
    """
    queue = deque([tuple(sorted(disabled))])
    seen = set(queue)
    found: dict[str, GeneratedKernel] = {}
    while queue and len(found) < most:
        without = queue.popleft()
        made = make(kernel, without)
        found.setdefault(made.text, made)
        if len(found) == 1:
            for tile in tiles[: most - 1]:
                other = make(kernel, without, tile=tile)
                found.setdefault(other.text, other)
        used = {stage.tactic.split("(")[0] for stage in made.stages}
        for name in sorted(used.intersection(OPTIONAL).difference(without)):
            more = tuple(sorted((*without, name)))
            if more not in seen:
                seen.add(more)
                queue.append(more)
    return list(found.values())[:most]
