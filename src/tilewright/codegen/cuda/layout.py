"""The parameters of a kernel's functions.

    (T0* b0, T1* b1, .., s64 d0, .., s64 step, int* status, int call)
All stages of a kernel take the same: its buffers (inputs, outputs, temporaries), the sizes that its
code asked for, the current step, the word that an index out of range is reported in, and the call's
number, which is what is reported.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from tilewright.codegen.cuda.scalar import c_type
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Kernel


@dataclass(slots=True)
class Layout:
    """Names of parameters; sizes are added as they are asked for, while stages are written.

    Attributes:
        buffers: name of each buffer's parameter, in order.
        dims: name of each symbolic size's parameter, in order.
    """

    buffers: dict[str, str]
    dims: dict[Dim, str] = field(default_factory=dict)

    def dim(self, dim: Dim) -> str:
        """The parameter of a symbolic size."""
        return self.dims.setdefault(dim, f"d{len(self.dims)}")

    def parameters(
        self, kernel: Kernel, stored: Collection[str], alone: Collection[str] | None = None
    ) -> str:
        """The parameter list of a function.

        Args:
            stored: what it stores.
            alone: what nobody stores while it runs; None: all that it does not store itself.
        """
        parts = []
        for buffer in kernel.buffers:
            kind, name = c_type(buffer.dtype), self.buffers[buffer.name]
            is_alone = alone is None or buffer.name in alone
            restrict = " __restrict__" if is_alone else ""
            is_stored = buffer.name in stored
            parts.append(f"{kind}* {name}" if is_stored else f"const {kind}*{restrict} {name}")
        parts += [f"s64 {name}" for name in self.dims.values()]
        return ", ".join([*parts, "s64 step", "int* status", "int call"])


def layout_of(kernel: Kernel) -> Layout:
    """The parameters of a kernel, without sizes."""
    return Layout({buffer.name: f"b{k}" for k, buffer in enumerate(kernel.buffers)})
