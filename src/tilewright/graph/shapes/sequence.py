"""Shape rules of sequences and optionals.

Input -> Output: infos with containers.  A sequence has a shape where all of its elements share it.
Guarantees: an element taken out of a sequence of unknown shapes has an unknown rank.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.core.dtypes import BOOL, FLOAT32, INT64
from tilewright.core.shape import Dim
from tilewright.graph.info import NodeInfo, TensorInfo
from tilewright.graph.shapes.registry import (
    RuleContext,
    Shape,
    attribute_dtype,
    shape_rule,
)
from tilewright.graph.view import ValueView


def _sequence(ctx: RuleContext, position: int) -> TensorInfo:
    info = ctx.info(position)
    if info.container == "tensor":
        ctx.fail(f"input {position} must be a sequence")
    return info


def _common(left: Shape | None, right: Shape | None) -> Shape | None:
    return left if left == right else None


@shape_rule("SequenceEmpty", dtypes=(attribute_dtype("dtype", FLOAT32),))
def sequence_empty(ctx: RuleContext) -> NodeInfo:
    """A sequence without elements."""
    return ctx.result(None, container="sequence")


@shape_rule("SequenceConstruct")
def sequence_construct(ctx: RuleContext) -> NodeInfo:
    """A sequence of the inputs."""
    ctx.same_dtype(*range(len(ctx.inputs)))
    shape = ctx.info(0).shape
    for position in range(1, len(ctx.inputs)):
        shape = _common(shape, ctx.info(position).shape)
    return ctx.result(shape, container="sequence")


@shape_rule("SequenceInsert")
def sequence_insert(ctx: RuleContext) -> NodeInfo:
    """A sequence with one more element."""
    ctx.same_dtype(0, 1)
    shape = _common(_sequence(ctx, 0).shape, ctx.info(1).shape)
    return ctx.result(shape, container="sequence")


@shape_rule("SequenceErase")
def sequence_erase(ctx: RuleContext) -> NodeInfo:
    """A sequence with one element less."""
    return ctx.result(_sequence(ctx, 0).shape, container="sequence")


@shape_rule("SequenceAt")
def sequence_at(ctx: RuleContext) -> NodeInfo:
    """One element."""
    return ctx.result(_sequence(ctx, 0).shape)


@shape_rule("SequenceLength", dtypes=(INT64,))
def sequence_length(ctx: RuleContext) -> NodeInfo:
    """The number of elements."""
    _sequence(ctx, 0)
    return ctx.result(())


@shape_rule("SplitToSequence")
def split_to_sequence(ctx: RuleContext) -> NodeInfo:
    """Parts of one size share a shape; without sizes each slice may lose the axis."""
    shape = ctx.shape(0)
    axis = ctx.axis(0, rank=len(shape))
    rest = (*shape[:axis], *shape[axis + 1 :])
    if not ctx.has(1):
        keep = bool(ctx.integer("keepdims", 1))
        part = (*shape[:axis], Dim.of(1), *shape[axis + 1 :])
        return ctx.result(part if keep else rest, container="sequence")
    sizes = ctx.dims(1)
    split_shape = ctx.info(1).shape
    if sizes is None or split_shape is None or not sizes:
        return ctx.result(None, container="sequence")
    even = len(set(sizes)) == 1
    if not split_shape:
        even = even and (shape[axis] // sizes[0]) * sizes[0] == shape[axis]
    found = (*shape[:axis], sizes[0], *shape[axis + 1 :]) if even else None
    return ctx.result(found, container="sequence")


@shape_rule("ConcatFromSequence")
def concat_from_sequence(ctx: RuleContext) -> NodeInfo:
    """The elements joined along an old or a new axis; how many there are is known only then."""
    shape = _sequence(ctx, 0).shape
    if shape is None:
        return ctx.result(None)
    new = bool(ctx.integer("new_axis", 0))
    rank = len(shape) + new
    axis = ctx.axis(rank=rank)
    rest = list(shape) if new else [*shape[:axis], *shape[axis + 1 :]]
    return ctx.result((*rest[:axis], ctx.late_dim(0, axis), *rest[axis:]))


@shape_rule("Identity")
def identity(ctx: RuleContext) -> NodeInfo:
    """Whatever the input is."""
    info = ctx.info(0)
    return ctx.result(info.shape, content=info.content, container=info.container)


@shape_rule("Optional", dtypes=(lambda ctx: _optional_type(ctx).dtype,))
def optional(ctx: RuleContext) -> NodeInfo:
    """The input wrapped, or nothing of the given type."""
    return ctx.result(_optional_type(ctx).shape, container="optional")


def _optional_type(ctx: RuleContext) -> TensorInfo:
    if ctx.has(0):
        return ctx.info(0)
    declared = ctx.node.attribute("type")
    if not isinstance(declared, ValueView) or declared.dtype is None:
        ctx.fail("an input or the attribute type is needed")
    return TensorInfo(dtype=declared.dtype, shape=None, container=declared.container)


@shape_rule("OptionalHasElement", dtypes=(BOOL,))
def optional_has_element(ctx: RuleContext) -> NodeInfo:
    """Whether there is something inside."""
    return ctx.result(())


@shape_rule("OptionalGetElement")
def optional_get_element(ctx: RuleContext) -> NodeInfo:
    """What is inside; a tensor or sequence is its own content."""
    info = ctx.info(0)
    if info.container != "optional":
        return ctx.result(info.shape, content=info.content, container=info.container)
    found = ctx.result(info.shape)
    inner = ctx.element_container
    outputs = tuple(
        replace(output, container=inner, shape=info.shape if inner == "tensor" else None)
        if output is not None
        else None
        for output in found.outputs
    )
    return replace(found, outputs=outputs)
