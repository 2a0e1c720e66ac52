"""Shape rules of contractions: MatMul, Gemm, Einsum and their integer forms.

Input -> Output: operand shapes -> result shape; inner sizes must agree.
Not here: convolution, attention.
"""

from __future__ import annotations

from tilewright.core.dtypes import INT32
from tilewright.core.shape import Dim, shape_text
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.registry import ONE, RuleContext, Shape, shape_rule


def matmul_shape(ctx: RuleContext, left: Shape, right: Shape) -> Shape:
    """The shape of ``left @ right`` as NumPy defines it."""
    if not left or not right:
        ctx.mismatch("a scalar has no matrix product")
    rows = left[-2:-1] if len(left) > 1 else ()
    columns = right[-1:] if len(right) > 1 else ()
    inner = right[-2] if len(right) > 1 else right[-1]
    ctx.equal(left[-1], inner, f"inner sizes of {shape_text(left)} and {shape_text(right)}")
    return (*ctx.broadcast(left[:-2], right[:-2]), *rows, *columns)


@shape_rule("MatMul")
def matmul(ctx: RuleContext) -> NodeInfo:
    """A batched matrix product."""
    ctx.same_dtype(0, 1)
    return ctx.result(matmul_shape(ctx, ctx.shape(0), ctx.shape(1)))


@shape_rule("MatMulInteger", dtypes=(INT32,))
def matmul_integer(ctx: RuleContext) -> NodeInfo:
    """A batched product of 8-bit matrices."""
    return ctx.result(matmul_shape(ctx, ctx.shape(0), ctx.shape(1)))


@shape_rule("Gemm")
def gemm(ctx: RuleContext) -> NodeInfo:
    """``alpha * op(A) @ op(B) + beta * C``; C broadcasts to the product."""
    return ctx.result(gemm_shape(ctx, 0, 1, 2))


def gemm_shape(ctx: RuleContext, a: int, b: int, c: int) -> Shape:
    """The shape of a Gemm of the inputs at these positions."""
    left, right = ctx.shape_of_rank(a, 2), ctx.shape_of_rank(b, 2)
    if ctx.integer("transA", 0):
        left = (left[1], left[0])
    if ctx.integer("transB", 0):
        right = (right[1], right[0])
    ctx.equal(left[1], right[0], "inner sizes")
    result = (left[0], right[1])
    if ctx.has(c):
        bias = ctx.shape(c)
        if len(bias) > 2:
            ctx.mismatch(f"C is {shape_text(bias)}")
        for own, size in zip(bias, result[2 - len(bias) :], strict=True):
            if own not in (ONE, size):
                if own.is_const and size.is_const:
                    ctx.mismatch(f"C {shape_text(bias)} does not broadcast to {shape_text(result)}")
                ctx.check("require_broadcast", [(own,), (size,)])
    return result


@shape_rule("Det")
def determinant(ctx: RuleContext) -> NodeInfo:
    """One number for each square matrix."""
    shape = ctx.shape(0)
    if len(shape) < 2:
        ctx.mismatch("a matrix is needed")
    ctx.equal(shape[-1], shape[-2], "a square matrix")
    return ctx.result(shape[:-2])


@shape_rule("Einsum")
def einsum(ctx: RuleContext) -> NodeInfo:
    """Sizes by their letters; an ellipsis stands for broadcast axes."""
    equation = ctx.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(ctx.inputs):
        ctx.mismatch(f"{equation!r} has {len(terms)} terms for {len(ctx.inputs)} inputs")
    sizes: dict[str, Dim] = {}
    hidden: list[Shape] = [
        found
        for position, term in enumerate(terms)
        if (found := _read_term(ctx, position, term, sizes)) is not None
    ]
    if len({len(shape) for shape in hidden}) > 1:
        ctx.mismatch(f"the ellipses of {equation!r} stand for {[len(s) for s in hidden]} axes")
    ellipsis: Shape = ()
    for shape in hidden:
        ellipsis = ctx.broadcast(ellipsis, shape)
    if not arrow:
        letters = sorted(set(left) - set(",."))
        once = [letter for letter in letters if left.count(letter) == 1]
        right = ("..." if "..." in left else "") + "".join(once)
    result: list[Dim] = []
    before, dots, after = right.partition("...")
    for letter in before + after:
        if letter not in sizes:
            ctx.fail(f"{letter!r} of the result is in no term of {equation!r}")
    if len(set(before + after)) < len(before + after):
        ctx.fail(f"the result of {equation!r} names an axis twice")
    result.extend(sizes[letter] for letter in before)
    if dots:
        result.extend(ellipsis)
    result.extend(sizes[letter] for letter in after)
    return ctx.result(tuple(result))


def _read_term(ctx: RuleContext, position: int, term: str, sizes: dict[str, Dim]) -> Shape | None:
    """Notes the sizes of one term's letters; returns the axes of its ellipsis, if it has one."""
    shape = ctx.shape(position)
    before, dots, after = term.partition("...")
    hidden = len(shape) - len(before) - len(after)
    if not all(letter.isalpha() for letter in before + after):
        ctx.fail(f"{term!r} is no einsum term")
    if hidden < 0 or (hidden and not dots):
        ctx.mismatch(f"term {term!r} does not fit {shape_text(shape)}")
    own = (*shape[: len(before)], *shape[len(before) + hidden :])
    for letter, dim in zip(before + after, own, strict=True):
        known = sizes.get(letter)
        if known is None or known == ONE:
            sizes[letter] = dim
        elif dim != ONE:
            sizes[letter] = ctx.equal(known, dim, f"size {letter!r}")
    return shape[len(before) : len(before) + hidden] if dots else None
