"""The argument block of a compiled kernel: what the runtime fills and generated code reads.

Input -> Output: a canonical kernel -> slots of 8 bytes:
    0 address of the status words   1 number of the call   2 current step
    3.. addresses of buffers (inputs, outputs, temporaries)   then values of ``dims``
Guarantees: constants take no slot; every dim that the code needs is listed once, in a stable
order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.core.shape import Dim
from tilewright.kernel.affine import Affine
from tilewright.kernel.ir import DimValue, Kernel, walk
from tilewright.kernel.nest import Nest

STATUS_SLOT, CALL_SLOT, STEP_SLOT, FIRST_BUFFER_SLOT = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class ArgumentLayout:
    """Slot numbers of one kernel's block."""

    buffers: tuple[str, ...]
    dims: tuple[Dim, ...]

    def buffer_slot(self, name: str) -> int:
        """The slot with a buffer's address."""
        return FIRST_BUFFER_SLOT + self.buffers.index(name)

    def dim_slot(self, dim: Dim) -> int:
        """The slot with a dim's value."""
        return FIRST_BUFFER_SLOT + len(self.buffers) + self.dims.index(dim)

    @property
    def num_slots(self) -> int:
        return FIRST_BUFFER_SLOT + len(self.buffers) + len(self.dims)


def argument_layout(kernel: Kernel, nests: Iterable[Nest]) -> ArgumentLayout:
    """The block of a kernel whose stages were prepared as ``nests``."""
    dims: dict[Dim, None] = {}
    for nest in nests:
        for axes in (nest.axes, *nest.reduce_axes.values()):
            dims.update(dict.fromkeys(axis.extent for axis in axes))
        for form in (*nest.loads.values(), *nest.stores):
            dims.update(dict.fromkeys(_dims(form)))
        for node in walk(*nest.stage.roots):
            if isinstance(node, DimValue):
                dims[node.dim] = None
    names = tuple(buffer.name for buffer in kernel.buffers)
    return ArgumentLayout(names, tuple(dim for dim in dims if not dim.is_const))


def _dims(form: Affine) -> list[Dim]:
    return [*form.terms.values(), form.offset, *(factor for _, factor in form.rest)]
