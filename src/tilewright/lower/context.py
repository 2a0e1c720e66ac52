"""What a lowering function is given, and how it hands back kernels.

Input -> Output: a ``NodeView`` with its ``NodeInfo`` -> items (kernels, views) in execution
order.
Guarantees: outputs are declared buffers with the inferred type and shape; temporaries have unique
names.
Not here: which function lowers which operator (lower.registry); fusion (lower.fuse).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from tilewright.core.dtypes import DType, from_numpy
from tilewright.core.shape import Dim
from tilewright.graph.info import NodeInfo
from tilewright.graph.view import NodeView
from tilewright.kernel.ir import Axis, Buffer, Expr, Kernel, Stage, Store, loaded


class Unlowerable(Exception):
    """No kernel exists for this node; the reason becomes a decision and the node is interpreted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class View:
    """``target`` is the same memory as ``source`` under another shape (the same bytes; in kernels
    that are lowered, the same elements).
    """

    target: Buffer
    source: Buffer


Item = Kernel | View
Array = npt.NDArray[Any]


@dataclass(slots=True)
class Lowering:
    """One node being lowered.

    Attributes:
        node, info: the operator call and what is known of it (``info.params`` in normal form).
        inputs: a buffer for each input position, None where absent.
        contents: known contents of inputs (constants, or object arrays of ``Dim``), None elsewhere.
        outputs: a buffer for each output position, None where nobody reads it.
        items: what has been emitted so far.
        constants: arrays added by this lowering (packed weights, tables), by name.
        signed_bytes: products of bytes take int8 data as it is; otherwise as uint8.
    """

    node: NodeView
    info: NodeInfo
    inputs: tuple[Buffer | None, ...]
    contents: tuple[npt.NDArray[Any] | None, ...]
    outputs: tuple[Buffer | None, ...]
    items: list[Item] = field(default_factory=list)
    constants: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    signed_bytes: bool = False
    _fresh: int = 0

    def input(self, position: int) -> Buffer:
        """A required input.

        Raises:
            Unlowerable: it is absent.
        """
        found = self.optional(position)
        if found is None:
            raise Unlowerable(f"input {position} is absent")
        return found

    def optional(self, position: int) -> Buffer | None:
        """An input that may be absent."""
        return self.inputs[position] if position < len(self.inputs) else None

    def content(self, position: int) -> npt.NDArray[Any] | None:
        """The known contents of an input (numbers only), else None."""
        found = self.contents[position] if position < len(self.contents) else None
        return found if found is not None and found.dtype != object else None

    def output(self, position: int = 0) -> Buffer | None:
        """An output's buffer, None when it is not wanted."""
        return self.outputs[position] if position < len(self.outputs) else None

    def param(self, name: str) -> tuple[Dim, ...]:
        """A normalised parameter of the shape rule."""
        return self.info.params[name]

    def temporary(self, dtype: DType, shape: tuple[Dim | int, ...]) -> Buffer:
        """Declares a fresh buffer that belongs to this node."""
        self._fresh += 1
        dims = tuple(Dim.of(dim) for dim in shape)
        return Buffer(f"{self.node.name}/t{self._fresh}", dtype, dims)

    def constant(self, array: npt.NDArray[Any], dtype: DType) -> Buffer:
        """Adds a constant array and returns its buffer."""
        self._fresh += 1
        name = f"{self.node.name}/c{self._fresh}"
        self.constants[name] = array
        return Buffer(name, dtype, tuple(Dim.of(size) for size in array.shape))

    def pure(self, out: Buffer, body: Callable[..., Expr]) -> Buffer:
        """Emits ``out[i...] = body(i...)`` (index expressions in, value of ``out``'s type out)."""
        axes = tuple(Axis(f"i{k}", dim) for k, dim in enumerate(out.shape))
        value = body(*(axis.var for axis in axes))
        store = Store(out.name, tuple(axis.var for axis in axes), value)
        self.stages(out, (Stage(axes, (store,)),), extra=())
        return out

    def view(self, out: Buffer, source: Buffer) -> Buffer:
        """Declares an output as another shape of the same memory."""
        self.items.append(View(out, source))
        return out

    def stages(
        self,
        out: Buffer | tuple[Buffer, ...],
        stages: tuple[Stage, ...],
        *,
        extra: tuple[Buffer, ...],
        steps: Axis | None = None,
        reads: tuple[Buffer, ...] = (),
    ) -> None:
        """Emits a kernel of several stages.

        Args:
            out: buffers written and read by others.
            stages: the loop nests in order.
            extra: temporaries private to the kernel.
            steps: an ordered axis around all stages.
            reads: temporaries of earlier kernels of this node that are loaded here.
        """
        outputs = out if isinstance(out, tuple) else (out,)
        known = {buffer.name: buffer for buffer in (*self.inputs, *reads) if buffer is not None}
        known.update({buffer.name: buffer for buffer in self._written()})
        for name, array_shape in self._constant_buffers().items():
            known.setdefault(name, array_shape)
        own = {buffer.name for buffer in (*outputs, *extra)}
        roots = [root for stage in stages for root in stage.roots]
        used = [name for name in loaded(*roots) if name not in own]
        self.items.append(
            Kernel(
                name=self.node.op_type,
                inputs=tuple(known[name] for name in used),
                outputs=outputs,
                temporaries=extra,
                stages=stages,
                steps=steps,
                sources=(self.node.name,),
            )
        )

    def _written(self) -> list[Buffer]:
        written: list[Buffer] = []
        for item in self.items:
            written.extend(item.outputs if isinstance(item, Kernel) else (item.target,))
        return written

    def _constant_buffers(self) -> dict[str, Buffer]:
        return {
            name: Buffer(name, from_numpy(array.dtype), tuple(Dim.of(s) for s in array.shape))
            for name, array in self.constants.items()
        }
