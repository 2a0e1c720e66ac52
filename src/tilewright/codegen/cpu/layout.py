"""The argument block of a compiled kernel: what the runtime fills and generated code reads.

Input -> Output: a canonical kernel -> slots of 8 bytes:
    0 address of the status words   1 number of the call   2 current step
    3.. addresses of buffers (inputs, outputs, temporaries)   then values of ``dims``
Guarantees: constants take no slot; every dim that the code needs is listed once, in a stable
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain, count

from tilewright.core.shape import Dim
from tilewright.kernel.affine import Affine
from tilewright.kernel.ir import DimValue, Kernel, loaded, walk
from tilewright.kernel.nest import Nest

STATUS_SLOT, CALL_SLOT, STEP_SLOT, FIRST_BUFFER_SLOT = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class ArgumentLayout:
    """What one kernel's block holds.

    Attributes:
        buffers, dims: in the order of their slots.
        buffer_slots, dim_slots: their numbers.
    """

    buffers: tuple[str, ...]
    dims: tuple[Dim, ...]
    buffer_slots: Mapping[str, int] = field(init=False, repr=False, compare=False)
    dim_slots: Mapping[Dim, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        slots = count(FIRST_BUFFER_SLOT)
        object.__setattr__(self, "buffer_slots", dict(zip(self.buffers, slots, strict=False)))
        slots = count(FIRST_BUFFER_SLOT + len(self.buffers))
        object.__setattr__(self, "dim_slots", dict(zip(self.dims, slots, strict=False)))

    @property
    def num_slots(self) -> int:
        return FIRST_BUFFER_SLOT + len(self.buffers) + len(self.dims)


def argument_layout(kernel: Kernel, nests: Iterable[Nest]) -> ArgumentLayout:
    """The block of a kernel whose stages were prepared as ``nests``."""
    dims = dict.fromkeys(chain.from_iterable(map(nest_dims, nests)))
    names = tuple(buffer.name for buffer in kernel.buffers)
    return ArgumentLayout(names, tuple(dims))


def nest_buffers(nest: Nest) -> list[str]:
    """Every buffer that the code of a nest uses, in order of appearance."""
    stored = (store.buffer for store in nest.stage.stores)
    return list(dict.fromkeys((*loaded(*nest.stage.roots), *stored)))


def nest_dims(nest: Nest) -> list[Dim]:
    """Every symbolic dim that the code of a nest needs, in order of appearance."""
    dims: dict[Dim, None] = {}
    for axes in (nest.axes, *nest.reduce_axes.values()):
        dims.update(dict.fromkeys(axis.extent for axis in axes))
    for form in (*nest.loads.values(), *nest.stores):
        dims.update(dict.fromkeys(_form_dims(form)))
    for node in walk(*nest.stage.roots):
        if isinstance(node, DimValue):
            dims[node.dim] = None
    return [dim for dim in dims if not dim.is_const]


def _form_dims(form: Affine) -> list[Dim]:
    return [*form.terms.values(), form.offset, *(factor for _, factor in form.rest)]
