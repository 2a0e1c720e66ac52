"""Attention operators: Attention, FlexAttention, LinearAttention, RotaryEmbedding.

Guarantees: grouped queries, caches, causal and windowed masks; a query that may attend to no key
gives zeros; half-precision inputs are computed in float32 or better.
Source: ONNX specification of Attention-25, RotaryEmbedding-23, LinearAttention-27."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.runtime.reference.dtypes import HALF, Array, accumulator, dtype_of
from tilewright.runtime.reference.normalization import softmax
from tilewright.runtime.reference.registry import Call, Outputs, operator


def _heads(call: Call, x: Array, count: int) -> Array:
    """[B, S, heads * D] -> [B, heads, S, D]."""
    if count < 1 or x.shape[2] % count:
        raise call.error(f"{x.shape} does not hold {count} heads")
    return x.reshape(x.shape[0], x.shape[1], count, -1).transpose(0, 2, 1, 3)


def _shared(call: Call, x: Array, query_heads: int) -> Array:
    """Repeat key or value heads for the query heads that share them."""
    if query_heads == x.shape[1]:
        return x
    if x.shape[1] == 0 or query_heads % x.shape[1]:
        raise call.error(f"{query_heads} query heads cannot share {x.shape[1]} key heads")
    return np.repeat(x, query_heads // x.shape[1], axis=1)


def _round(x: Array, dtype: np.dtype[Any], compute: np.dtype[Any]) -> Array:
    return x.astype(dtype).astype(compute) if dtype in HALF else x


def _bias(
    call: Call,
    mask: Array | None,
    shape: tuple[int, int],
    past: int,
    valid: Array | None,
    compute: np.dtype[Any],
) -> Array:
    """Additive mask, broadcastable to [B, H, *shape]; -inf forbids."""
    queries, keys = shape
    bias = np.zeros(shape, compute)
    if mask is not None:
        if mask.shape[-1] < keys:
            fill: Any = False if mask.dtype == bool else -np.inf
            widths = [(0, 0)] * (mask.ndim - 1) + [(0, keys - mask.shape[-1])]
            mask = np.pad(
                mask.astype(mask.dtype if mask.dtype == bool else compute),
                widths,
                constant_values=fill,
            )
        extra = np.where(mask, 0, -np.inf) if mask.dtype == bool else mask
        bias = bias + extra.astype(compute)
    offset: Any = past
    if past == 0 and valid is not None:
        offset = (valid - queries).reshape(-1, 1, 1, 1)
    position = np.arange(queries)[:, None] + offset
    key = np.arange(keys)
    allowed = np.ones((), bool)
    left, right = call.integer("left_window_size", -1), call.integer("right_window_size", -1)
    if min(left, right) < -1:
        raise call.error(f"window sizes {left}, {right} must be at least -1")
    if call.integer("is_causal", 0):
        allowed = allowed & (key <= position)
    if left >= 0:
        allowed = allowed & (key >= position - left)
    if right >= 0:
        allowed = allowed & (key <= position + right)
    if valid is not None:
        allowed = allowed & (key < valid.reshape(-1, 1, 1, 1))
    return np.asarray(np.where(allowed, bias, -np.inf), compute)


def _precision(call: Call, compute: np.dtype[Any]) -> np.dtype[Any]:
    code = call.get("softmax_precision")
    return compute if code is None or call.wide else dtype_of(int(code))


@operator("Attention", since=23, own_precision=True)
def attention(
    call: Call,
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    valid: Array | None = None,
) -> Outputs:
    if (past_key is None) != (past_value is None) or (valid is not None and past_key is not None):
        raise call.error("past_key and past_value come together and without nonpad_kv_seqlen")
    packed, home = q.ndim == 3, q.dtype
    if packed:
        q = _heads(call, q, call.integer("q_num_heads"))
        k, v = (_heads(call, x, call.integer("kv_num_heads")) for x in (k, v))
    if not q.ndim == k.ndim == v.ndim == 4:
        raise call.error(f"Q {q.shape}, K {k.shape} and V {v.shape} must be of rank 3 or 4")
    past = 0
    if past_key is not None and past_value is not None:
        past = past_key.shape[2]
        k, v = np.concatenate([past_key, k], axis=2), np.concatenate([past_value, v], axis=2)
    present = k, v
    compute = accumulator(home)
    scale = math.sqrt(call.number("scale", 1 / math.sqrt(max(q.shape[3], 1))))
    factor = _round(np.array(scale, compute), home, compute)
    left = _round(q.astype(compute) * factor, home, compute)
    right = _round(_shared(call, k, q.shape[1]).astype(compute) * factor, home, compute)
    scores = _round(np.matmul(left, np.swapaxes(right, -1, -2)), home, compute)
    shown = scores
    cap, shows = call.number("softcap", 0.0), call.integer("qk_matmul_output_mode", 0)
    if cap > 0:
        scores = np.tanh(scores / cap) * cap
    bias = _bias(call, mask, (q.shape[2], k.shape[2]), past, valid, compute)
    biased = scores + bias
    precision = _precision(call, compute)
    weights = np.asarray(softmax(biased.astype(precision).astype(accumulator(precision))))
    blocked = np.isneginf(np.max(bias, axis=-1, keepdims=True, initial=-np.inf))
    weights = _round(np.where(blocked, 0, weights).astype(precision), home, compute)
    shown = (shown, scores, biased, weights)[shows]
    values = _shared(call, v, q.shape[1]).astype(compute)
    y = np.matmul(weights.astype(compute), values)
    if packed:
        y = y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)
    return y.astype(home), *present, shown.astype(home)


@operator("FlexAttention", domain="ai.onnx.preview", own_precision=True)
def flex_attention(call: Call, q: Array, k: Array, v: Array) -> Outputs:
    if (
        not q.ndim == k.ndim == v.ndim == 4
        or k.shape[:3] != v.shape[:3]
        or q.shape[3] != k.shape[3]
    ):
        raise call.error(f"Q {q.shape}, K {k.shape} and V {v.shape} do not fit")
    home, compute = q.dtype, accumulator(q.dtype)
    precision = _precision(call, compute)
    scale = math.sqrt(call.number("scale", 1 / math.sqrt(q.shape[3])))
    left = q.astype(compute) * compute.type(scale)
    right = _shared(call, k, q.shape[1]).astype(compute) * compute.type(scale)
    scores = _round(np.matmul(left, np.swapaxes(right, -1, -2)), home, compute).astype(precision)
    if call.get("score_mod") is not None:
        (modified,) = call.subgraph("score_mod")(scores)
        scores = np.asarray(modified).astype(precision)
    weights = np.asarray(softmax(scores.astype(accumulator(precision)))).astype(precision)
    if call.get("prob_mod") is not None:
        (modified,) = call.subgraph("prob_mod")(weights)
        weights = np.asarray(modified).astype(precision)
    values = _shared(call, v, q.shape[1]).astype(accumulator(precision))
    return (np.matmul(weights.astype(accumulator(precision)), values).astype(home),)


@operator("LinearAttention", since=27, own_precision=True)
def linear_attention(
    call: Call,
    q: Array,
    k: Array,
    v: Array,
    past: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
) -> Outputs:
    rule = call.choice("update_rule", "gated_delta", ("linear", "gated", "delta", "gated_delta"))
    gated, corrected = rule.startswith("gated"), rule.endswith("delta")
    if gated != (decay is not None) or corrected != (beta is not None):
        raise call.error(f"update_rule {rule!r} does not fit the decay and beta inputs")
    compute = accumulator(q.dtype)
    state_dtype = q.dtype if past is None else past.dtype
    heads, kv_heads = call.integer("q_num_heads"), call.integer("kv_num_heads")
    if kv_heads < 1 or heads % kv_heads:
        raise call.error(f"{heads} query heads cannot share {kv_heads} key heads")
    queries = _heads(call, q.astype(compute), heads)
    keys, values = (_heads(call, x.astype(compute), kv_heads) for x in (k, v))
    batch, steps, depth = q.shape[0], q.shape[1], queries.shape[3]
    shape = (batch, kv_heads, depth, values.shape[3])
    state = np.zeros(shape, compute) if past is None else past.astype(compute)
    if state.shape != shape:
        raise call.error(f"past_state {state.shape} must be {shape}")
    scale = call.number("scale", 0.0) or 1 / math.sqrt(depth)
    keep = None if decay is None else np.exp(_heads(call, decay.astype(compute), kv_heads))
    rate = None if beta is None else _heads(call, beta.astype(compute), beta.shape[2])
    outputs = np.zeros((batch, heads, steps, values.shape[3]), compute)
    for t in range(steps):
        key, value = keys[:, :, t, :, None], values[:, :, t, None, :]
        if keep is not None:
            state = state * keep[:, :, t, :, None]
        if rate is not None:
            value = rate[:, :, t, :, None] * (value - np.swapaxes(key, -1, -2) @ state)
        state = state + key * value
        reads = _shared(call, state, heads)
        outputs[:, :, t] = scale * (queries[:, :, t, None, :] @ reads)[:, :, 0]
    y = outputs.transpose(0, 2, 1, 3).reshape(batch, steps, -1)
    return y.astype(q.dtype), state.astype(state_dtype)


@operator("RotaryEmbedding", since=23)
def rotary_embedding(
    call: Call, x: Array, cos: Array, sin: Array, positions: Array | None = None
) -> Outputs:
    data = x if x.ndim == 4 else _heads(call, x, call.integer("num_heads"))
    turned = call.integer("rotary_embedding_dim", 0) or data.shape[3]
    if positions is not None:
        if positions.size and (positions.min() < 0 or positions.max() >= cos.shape[0]):
            raise call.error(f"a position is outside a cache of {cos.shape[0]}")
        cos, sin = cos[positions], sin[positions]
    if cos.shape[-1] != turned // 2 or sin.shape != cos.shape or cos.ndim != 3:
        raise call.error(f"caches {cos.shape}, {sin.shape} do not fit {turned} rotated elements")
    cos, sin = cos[:, None], sin[:, None]
    part, rest = data[..., :turned], data[..., turned:]
    interleaved = bool(call.integer("interleaved", 0))
    if interleaved:
        first, second = part[..., 0::2], part[..., 1::2]
    else:
        first, second = part[..., : turned // 2], part[..., turned // 2 :]
    real, imaginary = cos * first - sin * second, sin * first + cos * second
    if interleaved:
        mixed = np.stack([real, imaginary], axis=-1).reshape(part.shape)
    else:
        mixed = np.concatenate([real, imaginary], axis=-1)
    y = np.concatenate([mixed, rest], axis=-1)
    return (y if x.ndim == 4 else y.transpose(0, 2, 1, 3).reshape(x.shape),)
