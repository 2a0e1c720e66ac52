"""Products, windows, quantisation, recurrent networks and attention for random models.

Input -> Output: a draft -> the draft with one more node (or a few), or ``Rejected``.
Not here: control flow (families_control).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from property.draft import Dim, Draft, Rejected, Value
from property.families import FLOATS, Maker, floats
from tilewright.core.dtypes import (
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT32,
    INT64,
    UINT8,
    UINT32,
    UINT64,
)


def _matrix(draft: Draft, low: int, high: int) -> Value:
    """A float tensor, sometimes an integer one."""
    if draft.chance(0.15):
        return draft.fresh(draft.one((INT32, INT64, UINT32, UINT64)), draft.shape(low, high))
    return floats(draft, low, high)


def matmul(draft: Draft) -> object:
    x = _matrix(draft, 1, 4)
    inner = x.dims[-1]
    old = [
        v
        for v in draft.values
        if v.dtype is x.dtype and v.rank >= 2 and v.dims[-2] == inner and v is not x
    ]
    if old and draft.chance(0.3):
        return draft.emit("MatMul", [x, draft.one(old)])
    batch: list[Dim] = list(x.dims[:-2]) if draft.chance(0.4) else []
    batch = [dim if draft.chance(0.7) else draft.same(1) for dim in batch]
    columns = [draft.dim()] if draft.chance(0.85) or batch else []
    if not draft.chance(0.3) or x.rank < 2:
        return draft.emit("MatMul", [x, draft.fresh(x.dtype, [*batch, inner, *columns], -1, 1)])
    left = [*batch, draft.dim(), x.dims[-2]]
    return draft.emit("MatMul", [draft.fresh(x.dtype, left, -1, 1), x])


def gemm(draft: Draft) -> object:
    x = _matrix(draft, 2, 2)
    flip, turn = draft.one((0, 1)), draft.one((0, 1))
    rows, inner = x.dims[::-1] if flip else x.dims
    columns = draft.dim()
    right = draft.fresh(x.dtype, [columns, inner] if turn else [inner, columns], -1, 1)
    bias: Value | None = None
    if draft.chance(0.7):
        shapes: list[list[Dim]] = [
            [columns],
            [],
            [rows, draft.same(1)],
            [rows, columns],
            [draft.same(1), columns],
        ]
        bias = draft.fresh(x.dtype, draft.one(shapes))
    scale = x.dtype.is_float and draft.chance(0.4)
    return draft.emit(
        "Gemm",
        [x, right, bias],
        {
            "transA": flip or None,
            "transB": turn or None,
            "alpha": 0.5 if scale else None,
            "beta": draft.one((0.0, 2.0)) if scale else None,
        },
    )


def einsum(draft: Draft) -> object:
    x = floats(draft, 2, 3)
    letters = "abc"[: x.rank]
    kept = draft.rng.sample(letters, draft.rng.randint(1, x.rank))
    other = draft.rng.sample(letters, draft.rng.randint(1, x.rank))
    dims = [x.dims[letters.index(letter)] for letter in other] + [draft.dim()]
    y = draft.fresh(x.dtype, dims, -1, 1)
    result = [*kept, *(["z"] if draft.chance(0.8) else [])]
    draft.rng.shuffle(result)
    return draft.emit(
        "Einsum", [x, y], {"equation": f"{letters},{''.join(other)}z->{''.join(result)}"}
    )


# --- windows --------------------------------------------------------------------------------------


def _image(draft: Draft, least: int = 3) -> Value:
    try:
        if draft.chance(0.6):
            return draft.pick(lambda v: v.dtype.is_float and least <= v.rank <= 4)
    except Rejected:
        pass
    spatial = [
        draft.one((draft.same(5), draft.same(8), draft.same(1), draft.one(draft.symbols)))
        for _ in range(draft.rng.randint(1, 2))
    ]
    batch = draft.one((draft.same(1), draft.one(draft.symbols), draft.same(2)))
    return draft.fresh(
        draft.one(FLOATS), [batch, draft.same(draft.one((1, 2, 3, 4, 6, 8, 16))), *spatial]
    )


def _window(draft: Draft, rank: int, dilate: bool = True) -> dict[str, Any]:
    kernel = [draft.one((1, 2, 3, 3)) for _ in range(rank)]
    found: dict[str, Any] = {"kernel_shape": kernel}
    if draft.chance(0.5):
        found["strides"] = [draft.one((1, 2, 3)) for _ in range(rank)]
    if dilate and draft.chance(0.3):
        found["dilations"] = [draft.one((1, 2)) for _ in range(rank)]
    if draft.chance(0.25):
        found["auto_pad"] = draft.one(("SAME_UPPER", "SAME_LOWER", "VALID"))
        if found["auto_pad"] != "VALID":
            found.pop("dilations", None)
    elif draft.chance(0.6):
        found["pads"] = [draft.rng.randint(0, size - 1) for size in kernel * 2]
    return found


def _weights(draft: Draft, x: Value, sizes: Sequence[int], constant: bool | None = None) -> Value:
    """Finite numbers: whether padding times infinity is computed is left open."""
    return draft.fresh(
        x.dtype,
        [draft.same(size) for size in sizes],
        constant=constant,
        make=lambda shape, _run: draft.array(x.dtype, shape, -1, 1),
    )


def conv(draft: Draft) -> object:
    x = _image(draft)
    channels = x.dims[1][0]
    if len(set(x.dims[1])) > 1 or not channels:
        raise Rejected("weights have one shape")
    window = _window(draft, x.rank - 2)
    group = draft.one([g for g in (1, 1, 1, 2, channels) if channels % g == 0])
    out = group * draft.one((1, 2, 3, 8 // group or 1))
    sizes = (out, channels // group, *window["kernel_shape"])
    weight = _weights(draft, x, sizes, constant=draft.chance(0.8))
    bias = draft.fresh(x.dtype, [draft.same(out)]) if draft.chance(0.6) else None
    result = draft.emit("Conv", [x, weight, bias], {**window, "group": group})
    if draft.chance(0.4):
        draft.emit(draft.one(("Relu", "Sigmoid", "HardSwish")), result)
    return result


def conv_transpose(draft: Draft) -> object:
    x = _image(draft)
    channels = x.dims[1][0]
    if len(set(x.dims[1])) > 1 or not channels:
        raise Rejected("weights have one shape")
    rank = x.rank - 2
    window = _window(draft, rank)
    group = draft.one([g for g in (1, 1, 2) if channels % g == 0])
    out = draft.one((1, 2, 3))
    strides = window.get("strides", [1] * rank)
    if draft.chance(0.3):
        window["output_padding"] = [draft.rng.randint(0, stride - 1) for stride in strides]
    weight = _weights(draft, x, (channels, out, *window["kernel_shape"]))
    bias = draft.fresh(x.dtype, [draft.same(out * group)]) if draft.chance(0.5) else None
    return draft.emit("ConvTranspose", [x, weight, bias], {**window, "group": group})


def pool(draft: Draft) -> object:
    x = _image(draft)
    if draft.chance(0.25):
        if any(array.size == 0 for array in x.narrow):
            raise Rejected("nothing to pool")
        return draft.emit(draft.one(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")), [x])
    op = draft.one(("MaxPool", "AveragePool", "MaxPool", "AveragePool", "LpPool"))
    window = _window(draft, x.rank - 2, dilate=op == "MaxPool" or draft.opset >= 19)
    if "auto_pad" not in window and draft.chance(0.4):
        window["ceil_mode"] = 1
    if op == "AveragePool":
        window["count_include_pad"] = draft.one((0, 1))
    if op == "LpPool":
        window["p"] = draft.one((1, 2))
        window.pop("ceil_mode", None)
    if op == "MaxPool" and draft.chance(0.2) and not x.noisy:
        return draft.emit(op, [x], window, outputs=2)
    return draft.emit(op, [x], window)


# --- quantisation ---------------------------------------------------------------------------------


def _scales(draft: Draft, x: Value, kind: Any, axis: int | None) -> list[Value]:
    dims = [] if axis is None else [x.dims[axis]]
    scale = draft.fresh(x.dtype if x.dtype.is_float else FLOAT32, dims, 1, 2, constant=None)
    return [scale, draft.fresh(kind, dims, -3 if kind is INT8 else 0, 5)]


def quantize(draft: Draft) -> object:
    """Quantises exact numbers by powers of two, so that no rounding is in doubt."""
    x = floats(draft, 1)
    if x.noisy or x.dtype is FLOAT64 or not x.finite or draft.special:
        raise Rejected("a step")
    kind = draft.one((UINT8, INT8))
    axis = draft.one((None, draft.rng.randrange(x.rank)))
    dims = [] if axis is None else [x.dims[axis]]
    powers = np.asarray([0.5, 0.25, 1.0, 2.0])
    scale = draft.fresh(
        x.dtype,
        dims,
        make=lambda shape, _r: (
            np.random.default_rng(draft.rng.getrandbits(32))
            .choice(powers, shape)
            .astype(x.dtype.numpy)
        ),
    )
    zero = draft.fresh(kind, dims, -3 if kind is INT8 else 0, 5)
    quantised = draft.emit("QuantizeLinear", [x, scale, zero], {"axis": axis})
    if draft.chance(0.5):
        return draft.emit("DequantizeLinear", [quantised[0], scale, zero], {"axis": axis})
    return quantised


def dequantize(draft: Draft) -> object:
    kind = draft.one((UINT8, INT8))
    x = draft.fresh(kind, draft.shape(1, 3), -100, 100)
    axis = draft.one((None, draft.rng.randrange(x.rank)))
    scale, zero = _scales(draft, x, kind, axis)
    return draft.emit(
        "DequantizeLinear", [x, scale, zero if draft.chance(0.8) else None], {"axis": axis}
    )


def integer_product(draft: Draft) -> object:
    left, right = draft.one((UINT8, INT8)), draft.one((UINT8, INT8))
    rows, inner, columns = draft.dim(), draft.dim(), draft.dim()
    batch = [draft.dim()] if draft.chance(0.3) else []
    a = draft.fresh(left, [*batch, rows, inner], -100, 200 if left is UINT8 else 100)
    b = draft.fresh(right, [inner, columns], -100, 200 if right is UINT8 else 100)
    zero_a = draft.fresh(left, [], 0, 5) if draft.chance(0.6) else None
    zero_b = draft.fresh(right, [], 0, 5) if draft.chance(0.6) else None
    return draft.emit("MatMulInteger", [a, b, zero_a, zero_b])


def integer_conv(draft: Draft) -> object:
    channels = draft.one((1, 2, 4))
    window = _window(draft, 2)
    x = draft.fresh(
        draft.one((UINT8, INT8)),
        [
            draft.one((draft.same(1), draft.symbols[0])),
            draft.same(channels),
            draft.same(5),
            draft.same(6),
        ],
        -50,
        100,
    )
    w = draft.fresh(
        draft.one((UINT8, INT8)),
        [draft.same(s) for s in (3, channels, *window["kernel_shape"])],
        -50,
        50,
    )
    zero_x = draft.fresh(x.dtype, [], 0, 5) if draft.chance(0.6) else None
    zero_w = draft.fresh(w.dtype, [], 0, 5) if draft.chance(0.5) else None
    return draft.emit("ConvInteger", [x, w, zero_x, zero_w], window)


def quantised_product(draft: Draft) -> object:
    kind = draft.one((UINT8, INT8))
    rows, inner, columns = draft.dim(), draft.dim(), draft.dim()
    a = draft.fresh(kind, [rows, inner], -20, 20)
    b = draft.fresh(kind, [inner, columns], -20, 20)
    parts: list[Value] = []
    for operand in (a, b):
        parts += [
            operand,
            draft.constant(0.25, np.float32),
            draft.fresh(kind, [], 0, 4, constant=True),
        ]
    parts += [draft.constant(0.5, np.float32), draft.fresh(kind, [], 0, 4, constant=True)]
    return draft.emit("QLinearMatMul", parts)


def dynamic_quantize(draft: Draft) -> object:
    x = draft.fresh(FLOAT32, draft.shape(1, 3), constant=False)
    if draft.special:
        raise Rejected("not finite")
    return draft.emit("DynamicQuantizeLinear", [x], outputs=3)


# --- recurrent networks and attention -------------------------------------------------------------


def recurrent(draft: Draft) -> object:
    op = draft.one(("LSTM", "GRU", "RNN"))
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    kind = draft.one((FLOAT32, FLOAT32, FLOAT64, FLOAT16))
    steps, batch = draft.dim(), draft.dim()
    size, hidden = draft.rng.randint(1, 4), draft.rng.randint(1, 5)
    direction = draft.one(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    same = draft.same
    if not all(steps) or not all(batch):
        raise Rejected("no sequence")
    x = draft.fresh(kind, [steps, batch, same(size)], -1, 1)
    w = draft.fresh(kind, [same(ways), same(gates * hidden), same(size)], -1, 1)
    r = draft.fresh(kind, [same(ways), same(gates * hidden), same(hidden)], -1, 1)
    b = (
        draft.fresh(kind, [same(ways), same(2 * gates * hidden)], -1, 1)
        if draft.chance(0.6)
        else None
    )
    lengths = None
    if draft.chance(0.4):
        lengths = draft.per_run(
            [
                np.asarray(
                    [
                        draft.rng.randint(0 if draft.chance(0.1) else 1, steps[run])
                        for _ in range(batch[run])
                    ],
                    np.int32,
                )
                for run in range(draft.num_runs)
            ]
        )
    start = (
        draft.fresh(kind, [same(ways), batch, same(hidden)], -1, 1) if draft.chance(0.4) else None
    )
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "GRU":
        attributes["linear_before_reset"] = draft.one((0, 1))
    return draft.emit(
        op, [x, w, r, b, lengths, start], attributes, outputs=3 if op == "LSTM" else 2
    )


def attention(draft: Draft) -> object:
    heads, size = draft.one((1, 2)), draft.one((2, 4, 8))
    batch, rows, keys = draft.dim(), draft.dim(), draft.dim()
    kind = draft.one((FLOAT32, FLOAT32, FLOAT16))
    if not all(keys):
        raise Rejected("no keys")
    same = draft.same
    q = draft.fresh(kind, [batch, same(heads), rows, same(size)], -1, 1)
    k = draft.fresh(kind, [batch, same(heads), keys, same(size)], -1, 1)
    v = draft.fresh(kind, [batch, same(heads), keys, same(size)], -1, 1)
    if draft.special:
        raise Rejected("not finite")
    mask = draft.fresh(kind, [rows, keys]) if draft.chance(0.4) else None
    return draft.emit(
        "Attention", [q, k, v, mask], {"is_causal": None if mask else draft.one((0, 1))}
    )


def written_attention(draft: Draft) -> object:
    """Attention from MatMul, scale, mask and Softmax."""
    kind = draft.one((FLOAT32, FLOAT64, FLOAT16))
    batch, rows, keys, size = draft.dim(), draft.dim(), draft.dim(), draft.one((2, 4, 8))
    if not all(keys) or draft.special:
        raise Rejected("no keys")
    q = draft.fresh(kind, [batch, rows, draft.same(size)], -1, 1)
    k = draft.fresh(kind, [batch, keys, draft.same(size)], -1, 1)
    turned = draft.emit("Transpose", [k], {"perm": [0, 2, 1]})[0]
    scores = draft.emit("MatMul", [q, turned])[0]
    scaled = draft.emit("Mul", [scores, draft.constant(0.5, kind.numpy)])[0]
    if draft.chance(0.5):
        scaled = draft.emit("Add", [scaled, draft.fresh(kind, [rows, keys])])[0]
    weights = draft.emit("Softmax", [scaled], {"axis": -1})[0]
    v = draft.fresh(kind, [batch, keys, draft.dim()], -1, 1)
    return draft.emit("MatMul", [weights, v])


FAMILIES: tuple[tuple[Maker, float], ...] = (
    (matmul, 3),
    (gemm, 2),
    (einsum, 1),
    (conv, 3),
    (conv_transpose, 1),
    (pool, 2),
    (quantize, 1.5),
    (dequantize, 1),
    (integer_product, 0.7),
    (integer_conv, 0.5),
    (quantised_product, 0.4),
    (dynamic_quantize, 0.4),
    (recurrent, 1),
    (attention, 0.5),
    (written_attention, 0.7),
)
