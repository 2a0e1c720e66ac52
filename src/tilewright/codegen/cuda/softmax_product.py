"""What attention is as one expression.

    out[.., i, .., d] = f(sum_j w(j) * v[j, d])
    w(j) = exp(s(j) - max_j s) / sum_j exp(s(j) - max_j s), or times the inverse of the sum
    s(j) = g(sum_c q[i, c] * k[j, c], ..), where w may be guarded: isnan(w) ? 0 : w
Input -> Output: the value of a store -> its parts, or why it is something else.
Guarantees: the three scores are the same but for the axis of keys.
Not here: accesses and code (attention).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.core.dtypes import BFLOAT16, FLOAT16, FLOAT32
from tilewright.kernel.ir import (
    Axis,
    AxisVar,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Reduce,
    walk,
)


@dataclass(frozen=True, slots=True)
class Rows:
    """Keys or values: rows of one load, or ``past`` rows of the first and the rest of a second."""

    loads: tuple[Load, ...]
    past: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxProduct:
    """The parts: ``scores`` is a function of ``products`` and of the axis of ``total``."""

    total: Reduce
    scores: Expr
    products: Reduce
    q: Load
    k: Rows
    v: Rows
    guarded: bool

    @property
    def keys(self) -> Axis:
        """The axis that the softmax runs along."""
        return self.total.axes[0]

    @property
    def is_joined(self) -> bool:
        """Whether keys or values are of two loads."""
        return len(self.k.loads) + len(self.v.loads) > 2


def softmax_product(value: Expr, *, joined: bool = False) -> SoftmaxProduct | str:
    """The parts of a value, or what it lacks.

    Args:
        joined: keys and values may be of two loads.
    """
    for node in walk(value):
        if isinstance(node, Reduce) and node.combiner == "sum" and len(node.axes) == 1:
            found = _weighted(node)
            if not isinstance(found, str) and not joined and found.is_joined:
                return "keys or values of two buffers"
            if not isinstance(found, str):
                return found
    return "no sum of values that a softmax weighs"


def _weighted(node: Reduce) -> SoftmaxProduct | str:
    body = node.body
    if not isinstance(body, Call) or body.op != "mul":
        return "no product"
    for first, second in (body.args, body.args[::-1]):
        v = _rows(second, node.axes[0].name)
        rounded = first.arg if isinstance(first, Cast) else None
        if v is None or not isinstance(rounded, Cast) or rounded.dtype is not v.loads[0].dtype:
            continue
        if rounded.arg.dtype is FLOAT32:
            return _softmax(node, rounded.arg, v)
    return "the weights are not rounded to float16 or bfloat16"


def _softmax(node: Reduce, weight: Expr, v: Rows) -> SoftmaxProduct | str:
    guarded, weight = _unguarded(weight)
    parts = _quotient(weight)
    if parts is None:
        return "the weights are no quotients"
    above, below = parts
    if not isinstance(below, Reduce) or below.combiner != "sum" or len(below.axes) != 1:
        return "the weights are not divided by their sum"
    keys = node.axes[0]
    if not alike(above, below.body, {keys.name: below.axes[0].name}):
        return "the weights are not divided by their sum"
    if not isinstance(above, Call) or above.op != "exp" or not isinstance(above.args[0], Call):
        return "the weights are no exponentials"
    difference = above.args[0]
    if difference.op != "sub" or not isinstance(difference.args[1], Reduce):
        return "the exponents are not relative to a maximum"
    scores, highest = difference.args
    if not isinstance(highest, Reduce) or highest.combiner != "max" or len(highest.axes) != 1:
        return "the exponents are not relative to a maximum"
    if not alike(scores, highest.body, {keys.name: highest.axes[0].name}):
        return "the maximum is of other scores"
    products = [part for part in walk(scores) if isinstance(part, Reduce)]
    if len(products) != 1 or products[0].combiner != "sum" or len(products[0].axes) != 1:
        return "the scores are not of one product"
    factors = products[0].body
    if not isinstance(factors, Call) or factors.op != "mul":
        return "the scores are not of one product"
    name = keys.name
    first, second = factors.args if name not in factors.args[0].free_axes else factors.args[::-1]
    q, k = _half(first), _rows(second, name)
    if q is None or k is None or {q.dtype, k.loads[0].dtype} != {v.loads[0].dtype}:
        return "queries and keys are not stored as values are"
    return SoftmaxProduct(
        total=node, scores=scores, products=products[0], q=q, k=k, v=v, guarded=guarded
    )


def joined_rows(node: Expr, keys: str) -> Rows | None:
    """Rows of ``j < past ? load : load`` along an axis, or of a load."""
    if isinstance(node, Load):
        return Rows((node,))
    if not isinstance(node, Call) or node.op != "select":
        return None
    test, *loads = node.args
    if not isinstance(test, Call) or test.op != "lt":
        return None
    axis, past = test.args
    if not isinstance(axis, AxisVar) or axis.name != keys or not isinstance(past, Const):
        return None
    found = tuple(part for part in loads if isinstance(part, Load))
    return Rows(found, int(past.value)) if len(found) == 2 else None


def _rows(node: Expr, keys: str) -> Rows | None:
    if isinstance(node, Cast) and node.arg.dtype in (FLOAT16, BFLOAT16) and not node.bits:
        return joined_rows(node.arg, keys)
    return None


def _half(node: Expr) -> Load | None:
    if (
        isinstance(node, Cast)
        and node.arg.dtype in (FLOAT16, BFLOAT16)
        and isinstance(node.arg, Load)
    ):
        return node.arg
    return None


def _quotient(node: Expr) -> tuple[Expr, Expr] | None:
    """The parts of ``above / below``, or of ``above * (1 / below)``."""
    if not isinstance(node, Call) or node.op not in ("div", "mul"):
        return None
    left, right = node.args
    if node.op == "div":
        return left, right
    for above, share in ((left, right), (right, left)):
        top = share.args[0] if isinstance(share, Call) and share.op == "div" else None
        if isinstance(top, Const) and float(top.value) == 1:
            return above, share.children[1]
    return None


def _unguarded(weight: Expr) -> tuple[bool, Expr]:
    if isinstance(weight, Call) and weight.op == "select":
        test, then, other = weight.args
        is_zero = isinstance(then, Const) and float(then.value) == 0
        if is_zero and isinstance(test, Call) and test.op == "isnan" and test.args[0] is other:
            return True, other
    return False, weight


def alike(left: Expr, right: Expr, names: Mapping[str, str]) -> bool:
    """Whether two expressions are equal but for names of axes."""
    if type(left) is not type(right) or left.dtype is not right.dtype:
        return False
    if isinstance(left, AxisVar) and isinstance(right, AxisVar):
        return names.get(left.name, left.name) == right.name
    if not left.children:
        return left is right
    if _label(left) != _label(right):
        return False
    if isinstance(left, Reduce) and isinstance(right, Reduce):
        pairs = zip(left.axes, right.axes, strict=True)
        names = {**names, **{a.name: b.name for a, b in pairs}}
    return all(alike(a, b, names) for a, b in zip(left.children, right.children, strict=True))


def _label(node: Expr) -> object:
    """What a node is besides its type and operands."""
    match node:
        case Load():
            return node.buffer
        case Call():
            return node.op
        case Cast():
            return node.saturate, node.bits
        case Reduce():
            return node.combiner, [axis.extent for axis in node.axes]
    return None
