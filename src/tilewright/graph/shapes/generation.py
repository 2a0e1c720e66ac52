"""Shape rules of operators that make tensors from nothing, from shapes or from scalars.

Input -> Output: attributes, shapes and scalars -> shapes; Shape and Size also give contents.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.core.dtypes import (
    FLOAT32,
    INT32,
    INT64,
    STRING,
    DType,
    from_numpy,
)
from tilewright.core.shape import Dim, product
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.registry import (
    ONE,
    Array,
    RuleContext,
    Shape,
    attribute_dtype,
    like,
    shape_rule,
)

_CONSTANTS: dict[str, DType] = {
    "value_int": INT64,
    "value_ints": INT64,
    "value_float": FLOAT32,
    "value_floats": FLOAT32,
    "value_string": STRING,
    "value_strings": STRING,
}


def dim_array(dims: Shape) -> Array:
    """An int64 array where all dims are constants, else an object array of them."""
    if all(dim.is_const for dim in dims):
        return np.array([dim.const for dim in dims], np.int64)
    result = np.empty(len(dims), object)
    result[:] = dims
    return result


@shape_rule("Shape", dtypes=(INT64,))
def shape_of(ctx: RuleContext) -> NodeInfo:
    """The sizes themselves, as contents."""
    shape = ctx.info(0).shape
    if shape is None:
        return ctx.result(ctx.late(0, 1))
    rank = len(shape)
    start = min(max(_from_back(ctx.integer("start", 0), rank), 0), rank)
    end = min(max(_from_back(ctx.integer("end", rank), rank), 0), rank)
    part = shape[start : max(end, start)]
    return ctx.result((Dim.of(len(part)),), content=dim_array(part))


def _from_back(position: int, rank: int) -> int:
    return position + rank if position < 0 else position


@shape_rule("Size", dtypes=(INT64,))
def size_of(ctx: RuleContext) -> NodeInfo:
    """The number of elements, as contents."""
    shape = ctx.info(0).shape
    if shape is None:
        return ctx.result(())
    return ctx.result((), content=dim_array((product(shape),)).reshape(()))


def _constant_array(ctx: RuleContext) -> Array:
    value = ctx.node.attribute("value", ctx.node.attribute("sparse_value"))
    if value is not None:
        return np.asarray(value)
    for name, dtype in _CONSTANTS.items():
        found = ctx.node.attribute(name)
        if found is not None:
            plain = [found] if isinstance(found, str | bytes | int | float) else list(found)
            array = np.empty(len(plain), dtype.numpy)
            array[:] = plain
            return array if name.endswith("s") else array.reshape(())
    return ctx.fail("a value is required")


def _constant_dtype(ctx: RuleContext) -> DType:
    return from_numpy(_constant_array(ctx).dtype)


@shape_rule("Constant", dtypes=(_constant_dtype,))
def constant(ctx: RuleContext) -> NodeInfo:
    """A tensor that is an attribute."""
    array = _constant_array(ctx)
    return ctx.result(tuple(Dim.of(size) for size in array.shape), content=array)


def _fill_dtype(ctx: RuleContext) -> DType:
    value = ctx.node.attribute("value")
    return FLOAT32 if value is None else from_numpy(np.asarray(value).dtype)


@shape_rule("ConstantOfShape", dtypes=(_fill_dtype,))
def constant_of_shape(ctx: RuleContext) -> NodeInfo:
    """A filled tensor of the given shape."""
    return ctx.result(stated_shape(ctx, 0))


def stated_shape(ctx: RuleContext, position: int) -> Shape | None:
    """The shape that an integer input states, bound at run time where its contents are unknown."""
    dims = ctx.dims(position)
    if dims is not None and all(ctx.facts.non_negative(dim) for dim in dims):
        return dims
    if dims is not None and any(dim.is_const and dim.const < 0 for dim in dims):
        ctx.mismatch("a negative size")
    rank = ctx.length(position)
    if rank is None:
        return None
    return ctx.bind_shape("constant_of_shape", [ctx.argument(position), rank], rank)


@shape_rule("Range")
def range_rule(ctx: RuleContext) -> NodeInfo:
    """``max(ceil((limit - start) / delta), 0)`` elements."""
    ctx.same_dtype(0, 1, 2)
    parts = [ctx.dims(position) for position in range(3)]
    start, limit, delta = (part[0] if part and len(part) == 1 else None for part in parts)
    if start is not None and limit is not None and delta is not None and delta.is_const:
        if not delta.const:
            ctx.fail("a step of 0")
        span = limit - start if delta.const > 0 else start - limit
        return ctx.result((ctx.facts.larger(span.ceildiv(abs(delta.const)), Dim.of(0)),))
    values = [ctx.content(position) for position in range(3)]
    if all(value is not None and value.dtype != object for value in values):
        first, last, step = (float(np.asarray(value).reshape(-1)[0]) for value in values)
        if not step:
            ctx.fail("a step of 0")
        count = (last - first) / step
        if not math.isfinite(count):
            ctx.fail(f"from {first} to {last} by {step}", "give finite numbers")
        return ctx.result((Dim.of(max(math.ceil(count), 0)),))
    return ctx.result(ctx.bind_shape("range", [ctx.argument(k) for k in range(3)], 1))


@shape_rule("RandomNormal", "RandomUniform", dtypes=(attribute_dtype("dtype", FLOAT32),))
def random(ctx: RuleContext) -> NodeInfo:
    """Random numbers in a shape that is an attribute."""
    sizes = ctx.integers("shape")
    if sizes is None or any(size < 0 for size in sizes):
        ctx.fail("attribute shape is required and not negative")
    return ctx.result(tuple(Dim.of(size) for size in sizes))


@shape_rule("RandomNormalLike", "RandomUniformLike", dtypes=(attribute_dtype("dtype", like(0)),))
def random_like(ctx: RuleContext) -> NodeInfo:
    """Random numbers in the input's shape."""
    return ctx.result(ctx.shape(0))


@shape_rule("Multinomial", dtypes=(attribute_dtype("dtype", INT32),))
def multinomial(ctx: RuleContext) -> NodeInfo:
    """Drawn classes: [batch, sample_size]."""
    batch, _ = ctx.shape_of_rank(0, 2)
    return ctx.result((batch, Dim.of(ctx.integer("sample_size", 1))))


@shape_rule("EyeLike", dtypes=(attribute_dtype("dtype", like(0)),))
def eye_like(ctx: RuleContext) -> NodeInfo:
    """A diagonal in the input's shape."""
    return ctx.result(ctx.shape_of_rank(0, 2))


@shape_rule(
    "BlackmanWindow",
    "HammingWindow",
    "HannWindow",
    dtypes=(attribute_dtype("output_datatype", FLOAT32),),
)
def window_function(ctx: RuleContext) -> NodeInfo:
    """A window of ``size`` samples."""
    sizes = ctx.dims(0)
    if sizes is not None and len(sizes) == 1 and ctx.facts.non_negative(sizes[0]):
        return ctx.result(sizes)
    return ctx.result(ctx.bind_shape("sizes", [ctx.argument(0), 1], 1))


@shape_rule("MelWeightMatrix", dtypes=(attribute_dtype("output_datatype", FLOAT32),))
def mel_weights(ctx: RuleContext) -> NodeInfo:
    """[floor(dft_length / 2) + 1, num_mel_bins]."""
    sizes: list[Dim] = []
    for position, name in ((1, "dft_length"), (0, "bins")):
        known = ctx.dims(position)
        if known is None or not ctx.facts.non_negative(known[0]):
            known = ctx.bind_shape("sizes", [ctx.argument(position), 1], 1, name)
        sizes.append(known[0])
    return ctx.result((sizes[0] // 2 + ONE, sizes[1]))
