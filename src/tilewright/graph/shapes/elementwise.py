"""Shape rules of elementwise operators, one table for each family.

Input -> Output: operand shapes -> their broadcast, or the shape of the only input.
Not here: quantisation (quantization), normalisation (normalization).
"""

from __future__ import annotations

from tilewright.core.dtypes import BOOL
from tilewright.core.shape import Dim
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.registry import RuleContext, attribute_dtype, like, shape_rule

_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Ceil Celu Cos Cosh Elu Erf Exp Floor Gelu "
    "HardSigmoid HardSwish Hardmax LRN LeakyRelu Log LogSoftmax LpNormalization "
    "MeanVarianceNormalization Mish Neg Not Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin "
    "Sinh Softmax Softplus Softsign Sqrt Swish Tan Tanh ThresholdedRelu"
).split()
_COUNTS = {"LRN": ("size",), "LpNormalization": ("p",)}
_BINARY = (
    "Add BitwiseAnd BitwiseOr BitwiseXor BitShift Div Mod Mul Sub And Or Xor StringConcat".split()
)
_COMPARE = "Equal Greater GreaterOrEqual Less LessOrEqual".split()


@shape_rule(*_UNARY)
def unary(ctx: RuleContext) -> NodeInfo:
    """The output looks like the input."""
    shape = ctx.shape(0)
    if "axis" in ctx.node.attributes and shape:
        ctx.axis(rank=len(shape))
    for name in _COUNTS.get(ctx.node.op_type, ()):
        ctx.require_least(name, [ctx.integer(name, 1)])
    return ctx.result(shape)


@shape_rule("IsInf", "IsNaN", dtypes=(BOOL,))
def predicate(ctx: RuleContext) -> NodeInfo:
    """A truth value for each element."""
    return ctx.result(ctx.shape(0))


@shape_rule(*_BINARY)
def binary(ctx: RuleContext) -> NodeInfo:
    """Two operands of one type, broadcast."""
    ctx.same_dtype(0, 1)
    return ctx.result(ctx.broadcast(ctx.shape(0), ctx.shape(1)))


@shape_rule(*_COMPARE, dtypes=(BOOL,))
def compare(ctx: RuleContext) -> NodeInfo:
    """A truth value for each pair of elements."""
    ctx.same_dtype(0, 1)
    return ctx.result(ctx.broadcast(ctx.shape(0), ctx.shape(1)))


@shape_rule("Pow")
def power(ctx: RuleContext) -> NodeInfo:
    """The base's type; the exponent may have another."""
    return ctx.result(ctx.broadcast(ctx.shape(0), ctx.shape(1)))


@shape_rule("Max", "Min", "Mean", "Sum")
def variadic(ctx: RuleContext) -> NodeInfo:
    """Any number of operands of one type, broadcast."""
    ctx.info(0)
    ctx.same_dtype(*range(len(ctx.inputs)))
    return ctx.result(ctx.broadcast_inputs())


@shape_rule("Where", dtypes=(like(1),))
def where(ctx: RuleContext) -> NodeInfo:
    """Condition and both choices, broadcast."""
    if ctx.dtype(0) is not BOOL:
        ctx.fail(f"the condition must be bool, it is {ctx.dtype(0)}")
    ctx.same_dtype(1, 2)
    return ctx.result(ctx.broadcast(ctx.shape(0), ctx.shape(1), ctx.shape(2)))


@shape_rule("Clip")
def clip(ctx: RuleContext) -> NodeInfo:
    """The data's shape; the limits are scalars."""
    ctx.same_dtype(0, 1, 2)
    for position in (1, 2):
        if ctx.has(position):
            _require_scalar(ctx, position)
    return ctx.result(ctx.shape(0))


@shape_rule("PRelu")
def prelu(ctx: RuleContext) -> NodeInfo:
    """The slope broadcasts to the data and must not enlarge it."""
    return ctx.result(broadcast_into(ctx, 1, 0))


@shape_rule("SwiGLU")
def swiglu(ctx: RuleContext) -> NodeInfo:
    """Gate and value of equal shape."""
    gate, value = ctx.shape(0), ctx.shape_of_rank(1, len(ctx.shape(0)))
    return ctx.result(tuple(ctx.equal(a, b, "shape") for a, b in zip(gate, value, strict=True)))


@shape_rule("Cast", "BitCast", dtypes=(attribute_dtype("to", like(0)),))
def cast(ctx: RuleContext) -> NodeInfo:
    """The same shape in another type."""
    if not ctx.node.attribute("to"):
        ctx.fail("attribute to is required")
    if ctx.node.op_type == "BitCast" and ctx.output_dtype(0).bits != ctx.dtype(0).bits:
        ctx.fail(f"{ctx.dtype(0)} and {ctx.output_dtype(0)} differ in width")
    return ctx.result(ctx.shape(0))


@shape_rule("CastLike", dtypes=(like(1),))
def cast_like(ctx: RuleContext) -> NodeInfo:
    """The same shape in the type of the second input."""
    return ctx.result(ctx.shape(0))


@shape_rule("Dropout", dtypes=(like(0), BOOL))
def dropout(ctx: RuleContext) -> NodeInfo:
    """Output and mask look like the input."""
    return ctx.result(ctx.shape(0))


@shape_rule("Bernoulli", dtypes=(attribute_dtype("dtype", like(0)),))
def bernoulli(ctx: RuleContext) -> NodeInfo:
    """A draw for each element."""
    return ctx.result(ctx.shape(0))


@shape_rule("RegexFullMatch", dtypes=(BOOL,))
def regex(ctx: RuleContext) -> NodeInfo:
    """A truth value for each string."""
    return ctx.result(ctx.shape(0))


def broadcast_into(ctx: RuleContext, position: int, target: int) -> tuple[Dim, ...]:
    """Requires an input to broadcast to another without enlarging it; the other's shape."""
    small, large = ctx.shape(position), ctx.shape(target)
    if len(small) > len(large):
        ctx.mismatch(f"input {position} has more axes than input {target}")
    for own, size in zip(small, large[len(large) - len(small) :], strict=True):
        if own == size or (own.is_const and own.const == 1):
            continue
        if own.is_const and size.is_const:
            ctx.mismatch(f"input {position}: size {own} does not broadcast to {size}")
        ctx.check("require_broadcast", [(own,), (size,)])
    return large


def _require_scalar(ctx: RuleContext, position: int) -> None:
    for dim in ctx.shape(position):
        ctx.equal(dim, Dim.of(1), f"input {position} must be a scalar")
