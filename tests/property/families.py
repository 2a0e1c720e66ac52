"""Element-wise, reducing, normalising and scanning operators for random models.

Input -> Output: a draft -> the draft with one more node (or a few), or ``Rejected``.
Not here: movement (families_tensor), products and windows (families_heavy), control flow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from property.draft import Dim, Draft, Rejected, Value
from tilewright.core.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)

Maker = Callable[[Draft], object]
FLOATS = (FLOAT32, FLOAT32, FLOAT32, FLOAT64, FLOAT16, BFLOAT16)
INTEGERS = (INT64, INT32, INT8, UINT8, INT16, UINT16, UINT32, UINT64)

SMOOTH = (
    "Sigmoid Tanh Erf Sin Cos Atan Asinh Softplus Softsign Gelu Mish HardSwish Swish Exp".split()
)
EXACT_UNARY = "Abs Neg Relu Identity Sign".split()
STEPS = "Floor Ceil Round Sign".split()


def floats(draft: Draft, low: int = 0, high: int = 4) -> Value:
    """A float tensor: an old one, or a new one."""
    if draft.chance(0.85):
        try:
            return draft.pick(lambda v: v.dtype.is_float and low <= v.rank <= high)
        except Rejected:
            pass
    return draft.fresh(draft.one(FLOATS), draft.shape(low, high))


def anything(draft: Draft, low: int = 0, high: int = 4) -> Value:
    """A tensor of any type."""
    if draft.chance(0.85):
        try:
            return draft.pick(lambda v: low <= v.rank <= high)
        except Rejected:
            pass
    kinds = (*FLOATS, *INTEGERS[:3], draft.one(INTEGERS), BOOL)
    return draft.fresh(draft.one(kinds), draft.shape(low, high))


def numbers(draft: Draft, low: int = 0, high: int = 4) -> Value:
    """A tensor of any type but bool."""
    value = anything(draft, low, high)
    return numbers(draft, low, high) if value.dtype is BOOL else value


def partner(
    draft: Draft, x: Value, low: float = -3, high: float = 3, dtype: DType | None = None
) -> Value:
    """An operand that broadcasts with x: an old value by luck, or a new one."""
    dtype = dtype or x.dtype
    old = [v for v in draft.values if v.dtype is dtype and _broadcasts(v, x)]
    if old and draft.chance(0.4):
        return draft.one(old)  # type: ignore[no-any-return]
    dims: list[Dim] = [dim if draft.chance(0.65) else draft.same(1) for dim in x.dims]
    dims = dims[draft.rng.randint(0, len(dims)) :] if draft.chance(0.4) else dims
    if draft.chance(0.15) and len(dims) < 5:
        dims = [draft.dim(), *dims]
    return draft.fresh(dtype, dims, low, high)


def _broadcasts(a: Value, b: Value) -> bool:
    try:
        for left, right in zip(a.narrow, b.narrow, strict=True):
            np.broadcast_shapes(left.shape, right.shape)
    except ValueError:
        return False
    return True


def unary(draft: Draft) -> object:
    x = anything(draft)
    if x.dtype is BOOL:
        return draft.emit("Not", [x])
    if not x.dtype.is_float:
        return draft.emit(draft.one(("Abs", "Neg", "Relu", "Sign", "BitwiseNot", "Identity")), [x])
    if draft.chance(0.3):
        return draft.emit(draft.one(EXACT_UNARY if not x.noisy else EXACT_UNARY[:-1]), [x])
    if draft.chance(0.2) and not x.noisy:
        return draft.emit(draft.one(STEPS), [x])
    if draft.chance(0.15):
        return draft.emit(draft.one(("IsNaN", "IsInf")), [x])
    return draft.emit(draft.one(SMOOTH), [x])


def parametrised(draft: Draft) -> object:
    """Activations with attributes."""
    x = floats(draft)
    rng = draft.rng
    op = draft.one("LeakyRelu Elu Selu Celu HardSigmoid ThresholdedRelu Shrink Gelu Swish".split())
    if op in ("ThresholdedRelu", "Shrink") and x.noisy:
        raise Rejected("a step")
    attributes: dict[str, dict[str, Any]] = {
        "LeakyRelu": {"alpha": rng.choice((0.01, 0.5, -0.25, 2.0))},
        "Elu": {"alpha": rng.choice((1.0, 0.5))},
        "Celu": {"alpha": rng.choice((1.0, 0.5, 2.0))},
        "HardSigmoid": {"alpha": rng.choice((0.2, 0.25)), "beta": 0.5},
        "ThresholdedRelu": {"alpha": rng.choice((1.0, 0.5))},
        "Shrink": {"lambd": rng.choice((0.5, 1.0)), "bias": rng.choice((0.0, 0.25))},
        "Gelu": {"approximate": rng.choice(("none", "tanh"))},
        "Swish": {"alpha": rng.choice((1.0, 0.5, 1.702))},
    }
    return draft.emit(op, [x], attributes.get(op))


def guarded(draft: Draft) -> object:
    """Functions with poles, on arguments away from them."""
    x = floats(draft)
    positive = draft.emit("Abs", [x])[0]
    one = draft.fresh(
        x.dtype, [], 1, 3, constant=True, make=lambda _s, _r: np.asarray(1.5, x.dtype.numpy)
    )
    shifted = draft.emit("Add", [positive, one])[0]
    return draft.emit(draft.one("Sqrt Log Reciprocal Acosh Sqrt".split()), [shifted])


def binary(draft: Draft) -> object:
    x = anything(draft)
    if x.dtype is BOOL:
        return draft.emit(
            draft.one(("And", "Or", "Xor", "Equal")), _swapped(draft, x, partner(draft, x))
        )
    if x.dtype.is_integer:
        op = draft.one("Add Sub Mul Div Mod Max Min BitwiseAnd BitwiseOr BitwiseXor Pow".split())
        y = partner(draft, x, 0, 3) if op == "Pow" else partner(draft, x, -60, 60)
        if op == "Pow" and any((array < 0).any() for array in y.narrow):
            raise Rejected("no integer")
        if op in ("Div", "Mod"):
            y = draft.emit("Max", [y, draft.constant(1, y.dtype.numpy)])[0]
            return draft.emit(op, [x, y])
        return draft.emit(op, [x, y] if op == "Pow" else _swapped(draft, x, y))
    op = draft.one("Add Sub Mul Max Min Add Mul".split())
    return draft.emit(op, _swapped(draft, x, partner(draft, x)))


def _swapped(draft: Draft, x: Value, y: Value) -> list[Value]:
    return [y, x] if draft.chance(0.4) else [x, y]


def division(draft: Draft) -> object:
    x = floats(draft)
    y = partner(draft, x, 1, 3)
    if draft.chance(0.2) and not x.noisy:
        return draft.emit("Mod", [x, y], {"fmod": 1})
    if draft.chance(0.2):
        return draft.emit(
            "Pow",
            [draft.emit("Abs", [x])[0], draft.constant(draft.one((2, 0.5, 3)), x.dtype.numpy)],
        )
    return draft.emit("Div", [x, y])


def shift(draft: Draft) -> object:
    x = draft.fresh(draft.one((UINT8, UINT16, UINT32, UINT64)), draft.shape(0, 3), 0, 200)
    y = partner(draft, x, 0, 9)
    return draft.emit("BitShift", [x, y], {"direction": draft.one(("LEFT", "RIGHT"))})


def variadic(draft: Draft) -> object:
    x = numbers(draft)
    op = draft.one("Max Min Sum Mean".split())
    count = draft.rng.randint(0, 3)
    parts = [x] + [x if draft.chance(0.2) else partner(draft, x) for _ in range(count)]
    draft.rng.shuffle(parts)
    return draft.emit(op, parts)


def compare(draft: Draft) -> object:
    x = numbers(draft)
    if x.noisy:
        raise Rejected("a step")
    y = partner(draft, x)
    if y.noisy:
        raise Rejected("a step")
    op = draft.one("Equal Less Greater LessOrEqual GreaterOrEqual".split())
    return draft.emit(op, _swapped(draft, x, y))


def where(draft: Draft) -> object:
    x = anything(draft)
    condition = partner(draft, x, dtype=BOOL)
    return draft.emit("Where", [condition, *_swapped(draft, x, partner(draft, x))])


def clip(draft: Draft) -> object:
    x = numbers(draft)
    bounds = [
        draft.constant(number, x.dtype.numpy) if draft.chance(0.7) else None
        for number in ((-1 if x.dtype.is_signed else 1), 2)
    ]
    return draft.emit("Clip", [x, *bounds])


def prelu(draft: Draft) -> object:
    x = floats(draft, 1)
    dims = [dim if draft.chance(0.5) else draft.same(1) for dim in x.dims]
    return draft.emit("PRelu", [x, draft.fresh(x.dtype, dims[draft.rng.randint(0, len(dims)) :])])


def cast(draft: Draft) -> object:
    x = anything(draft)
    target = draft.one((*FLOATS, *INTEGERS, BOOL))
    if target.is_integer and x.dtype.is_float:
        low, high = np.iinfo(target.numpy).min, np.iinfo(target.numpy).max
        inside = all(bool(((a > low) & (a < high)).all()) for a in x.wide)
        if x.noisy or not x.finite or not inside:
            raise Rejected("a conversion that ONNX leaves open")
    if target is BOOL and x.noisy:
        raise Rejected("a step")
    if draft.chance(0.2):
        return draft.emit("CastLike", [x, draft.fresh(target, [draft.same(1)])])
    return draft.emit("Cast", [x], {"to": target.code})


# --- reductions -----------------------------------------------------------------------------------


def axes_of(draft: Draft, x: Value) -> list[int]:
    """Some axes, negative ones too."""
    chosen = draft.rng.sample(range(x.rank), draft.rng.randint(1, x.rank)) if x.rank else []
    return [axis - x.rank if draft.chance(0.3) else axis for axis in chosen]


def reduction(draft: Draft) -> object:
    x = numbers(draft)
    op = "Reduce" + draft.one("Sum Mean Max Min Prod L1 L2 SumSquare LogSumExp Max Sum".split())
    if op == "ReduceProd" and x.dtype.is_float and x.noisy and draft.chance(0.5):
        raise Rejected("large")
    large = x.dtype.is_integer and any((np.abs(a.astype(float)) > 1e4).any() for a in x.narrow)
    if (op == "ReduceLogSumExp" and not x.dtype.is_float) or (op == "ReduceL2" and large):
        raise Rejected("a conversion that ONNX leaves open")
    if op in ("ReduceMax", "ReduceMin", "ReduceMean") and _reduces_nothing(x):
        raise Rejected("a maximum of nothing")
    axes = axes_of(draft, x) if draft.chance(0.85) else []
    keep = draft.one((0, 1))
    from_input = draft.opset >= 18 or (op == "ReduceSum" and draft.opset >= 13)
    if not from_input:
        return draft.emit(op, [x], {"axes": axes or None, "keepdims": keep})
    given = draft.constant(axes) if axes or draft.chance(0.3) else None
    noop = draft.one((None, None, 0, 1))
    return draft.emit(op, [x, given], {"keepdims": keep, "noop_with_empty_axes": noop})


def _reduces_nothing(x: Value) -> bool:
    return any(array.size == 0 for array in x.narrow)


def arg_reduction(draft: Draft) -> object:
    x = numbers(draft, 1)
    if x.noisy or _reduces_nothing(x) or not x.finite:
        raise Rejected("a step")
    return draft.emit(
        draft.one(("ArgMax", "ArgMin")),
        [x],
        {
            "axis": draft.rng.randint(-x.rank, x.rank - 1),
            "keepdims": draft.one((0, 1)),
            "select_last_index": draft.one((0, 1)),
        },
    )


def scan(draft: Draft) -> object:
    x = numbers(draft, 1)
    axis = draft.constant(draft.rng.randint(-x.rank, x.rank - 1))
    op = "CumProd" if draft.opset >= 26 and draft.chance(0.2) else "CumSum"
    return draft.emit(op, [x, axis], {"exclusive": draft.one((0, 1)), "reverse": draft.one((0, 1))})


def topk(draft: Draft) -> object:
    x = numbers(draft, 1)
    axis = draft.rng.randint(-x.rank, x.rank - 1)
    shortest = min(array.shape[axis] for array in x.narrow)
    if x.noisy or not x.finite:
        raise Rejected("a step")
    k = draft.rng.randint(0 if draft.chance(0.1) else min(1, shortest), shortest)
    return draft.emit(
        "TopK", [x, draft.constant([k])], {"axis": axis, "largest": draft.one((0, 1))}, outputs=2
    )


# --- normalisation --------------------------------------------------------------------------------


def softmax(draft: Draft) -> object:
    x = floats(draft, 1)
    op = draft.one(("Softmax", "Softmax", "LogSoftmax", "Hardmax"))
    if op == "Hardmax" and (x.noisy or not x.finite):
        raise Rejected("a step")
    return draft.emit(op, [x], {"axis": draft.one((None, *range(-x.rank, x.rank)))})


def layer_norm(draft: Draft) -> object:
    x = floats(draft, 1)
    axis = draft.rng.randint(-x.rank, x.rank - 1)
    dims = list(x.dims[axis:])
    scale = draft.fresh(x.dtype, dims, 1, 2)
    if draft.opset >= 23 and draft.chance(0.4):
        return draft.emit("RMSNormalization", [x, scale], {"axis": axis, "epsilon": 0.01})
    bias = draft.fresh(x.dtype, dims) if draft.chance(0.7) else None
    return draft.emit("LayerNormalization", [x, scale, bias], {"axis": axis, "epsilon": 0.01})


def channel_norm(draft: Draft) -> object:
    x = floats(draft, 3 if draft.chance(0.8) else 2)
    channels = x.dims[1]
    vectors = [draft.fresh(x.dtype, [channels], 1, 2) for _ in range(4)]
    choice = draft.one(("batch", "instance", "group", "lrn"))
    if choice == "batch":
        return draft.emit(
            "BatchNormalization",
            [x, vectors[0], vectors[1], vectors[2], vectors[3]],
            {"epsilon": 0.01},
        )
    if choice == "instance":
        return draft.emit("InstanceNormalization", [x, vectors[0], vectors[1]], {"epsilon": 0.01})
    if choice == "group":
        groups = draft.one([g for g in (1, 2, 3, 4) if all(c and c % g == 0 for c in channels)])
        return draft.emit(
            "GroupNormalization",
            [x, vectors[0], vectors[1]],
            {"num_groups": groups, "epsilon": 0.01},
        )
    return draft.emit("LRN", [x], {"size": draft.one((1, 2, 3, 5)), "bias": 1.0})


def other_norm(draft: Draft) -> object:
    x = floats(draft, 1)
    if draft.chance(0.5):
        if any(not array.any(axis=-1).all() for array in x.wide):
            raise Rejected("a zero norm")
        return draft.emit("LpNormalization", [x], {"axis": -1, "p": draft.one((1, 2))})
    if x.rank != 4 or x.dtype is FLOAT16:
        raise Rejected("for images")
    return draft.emit("MeanVarianceNormalization", [x])


FAMILIES: tuple[tuple[Maker, float], ...] = (
    (unary, 7),
    (parametrised, 3),
    (guarded, 1.5),
    (binary, 8),
    (division, 2),
    (shift, 0.4),
    (variadic, 1),
    (compare, 1),
    (where, 1.5),
    (clip, 1),
    (prelu, 0.5),
    (cast, 3),
    (reduction, 5),
    (arg_reduction, 1.5),
    (scan, 1),
    (topk, 1),
    (softmax, 1.5),
    (layer_norm, 1.5),
    (channel_norm, 2),
    (other_norm, 0.5),
)
