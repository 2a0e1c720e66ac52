"""One node to items: looks up the lowering and gives it its inputs.

Input -> Output: a ``NodeView`` with inferred infos -> items and new constants, or the reason why
there are none.
Guarantees: every wanted output is written by an item; kernels are verified.
Not here: order, segments and fusion (compiler.build_program, lower.fuse).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from tilewright.core.dtypes import Kind
from tilewright.core.errors import InternalError
from tilewright.graph.info import NodeInfo, TensorInfo
from tilewright.graph.view import NodeView
from tilewright.kernel.ir import Buffer, Kernel
from tilewright.kernel.verify import verify
from tilewright.lower.context import Item, Lowering, Unlowerable
from tilewright.lower.families import LOWERINGS
from tilewright.lower.reindex import Refusal


@dataclass(frozen=True, slots=True)
class Lowered:
    """Kernels and views of one node, and arrays that they need."""

    items: tuple[Item, ...]
    constants: Mapping[str, npt.NDArray[Any]]


def lower_node(
    node: NodeView,
    info: NodeInfo,
    tensors: Mapping[str, TensorInfo],
    *,
    signed_bytes: bool = False,
) -> Lowered | Refusal:
    """Lowers one node (see the module's docstring); ``signed_bytes``: as for ``Lowering``."""
    function = LOWERINGS.get((node.domain, node.op_type))
    if function is None:
        return Refusal("there is no kernel for this operator")
    names = (*node.inputs, *node.outputs)
    for name in names:
        reason = None if name is None else _opaque(name, tensors)
        if reason is not None:
            return Refusal(reason)
    context = Lowering(
        node=node,
        info=info,
        inputs=tuple(_buffer(name, tensors) for name in node.inputs),
        contents=tuple(tensors[name].content if name else None for name in node.inputs),
        outputs=tuple(_buffer(name, tensors) for name in node.outputs),
        signed_bytes=signed_bytes,
    )
    try:
        function(context)
    except Unlowerable as error:
        return Refusal(error.reason)
    _check(context)
    return Lowered(tuple(context.items), context.constants)


def _opaque(name: str, tensors: Mapping[str, TensorInfo]) -> str | None:
    info = tensors[name]
    if info.container != "tensor":
        return f"{name} is a {info.container}"
    if info.shape is None:
        return f"the rank of {name} is not known"
    if info.dtype.kind in (Kind.STRING, Kind.COMPLEX):
        return f"{name} holds {info.dtype.name}"
    return None


def _buffer(name: str | None, tensors: Mapping[str, TensorInfo]) -> Buffer | None:
    if name is None:
        return None
    info = tensors[name]
    return Buffer(name, info.dtype, info.shape or ())


def _check(context: Lowering) -> None:
    written: set[str] = set()
    for item in context.items:
        if isinstance(item, Kernel):
            verify(item)
            written.update(buffer.name for buffer in item.outputs)
        else:
            written.add(item.target.name)
    for buffer in context.outputs:
        if buffer is not None and buffer.name not in written:
            raise InternalError(f"{context.node.op_type} left its output {buffer.name} unwritten")
