"""Attention and LinearAttention against the reference: heads, caches, masks, windows, outputs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.core.dtypes import FLOAT32
from tilewright.core.shape import Dim
from tilewright.kernel.affine import affine
from tilewright.kernel.ir import Buffer, Kernel, Load, walk
from tilewright.lower.attention_heads import heads_of
from tilewright.lower.context import Unlowerable
from unit.lower.against_reference import check, uniform
from unit.lower.direct import Array, lower, run


def _operands(
    group: int = 1,
    *,
    packed: bool = False,
    queries: int = 3,
    keys: int = 5,
    dtype: Any = np.float32,
) -> tuple[list[Array], dict[str, int]]:
    """Query, key, value with two key/value heads; head sizes 4 and 6."""
    shapes = [(2, 2 * group, queries, 4), (2, 2, keys, 4), (2, 2, keys, 6)]
    arrays = [uniform(*shape, dtype=dtype, seed=k) for k, shape in enumerate(shapes)]
    if not packed:
        return arrays, {}
    flat = [
        np.ascontiguousarray(a.transpose(0, 2, 1, 3)).reshape(2, a.shape[2], -1) for a in arrays
    ]
    return flat, {"q_num_heads": 2 * group, "kv_num_heads": 2}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("softcap", [0.0, 0.7])
def test_plain(packed: bool, group: int, causal: int, softcap: float) -> None:
    inputs, heads = _operands(group, packed=packed)
    check("Attention", inputs, {**heads, "is_causal": causal, "softcap": softcap})


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("softcap", [0.0, 0.7])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_every_output(mode: int, softcap: float, packed: bool, dtype: Any) -> None:
    inputs, heads = _operands(2, packed=packed, dtype=dtype)
    past = [uniform(2, 2, 4, 4, dtype=dtype, seed=7), uniform(2, 2, 4, 6, dtype=dtype, seed=8)]
    mask = uniform(3, 9, dtype=dtype, seed=9)
    known = {**heads, "qk_matmul_output_mode": mode, "softcap": softcap, "is_causal": 1}
    check("Attention", [*inputs, mask, *past], known, num_outputs=4)


_MASKS = [(5,), (3, 5), (1, 5), (4, 3, 5), (2, 1, 3, 5), (2, 4, 3, 5), (1, 1, 1, 5), (2, 4, 3, 2)]


@pytest.mark.parametrize("shape", _MASKS)
@pytest.mark.parametrize("boolean", [False, True])
def test_masks(shape: tuple[int, ...], boolean: bool) -> None:
    inputs, _ = _operands(2)
    mask = uniform(*shape, seed=9)
    check("Attention", [*inputs, mask > -0.3 if boolean else mask])


def test_row_without_visible_keys_is_zero() -> None:
    inputs, _ = _operands()
    mask = np.ones((3, 5), np.bool_)
    mask[1] = False
    y, _, _, shares = check(
        "Attention", [*inputs, mask], {"qk_matmul_output_mode": 3}, num_outputs=4
    )
    assert not y[:, :, 1].any()
    assert not shares[:, :, 1].any()


@pytest.mark.parametrize(("left", "right"), [(1, -1), (-1, 1), (2, 0), (0, 0)])
@pytest.mark.parametrize("valid", [False, True])
@pytest.mark.parametrize("causal", [0, 1])
def test_windows_and_external_cache(left: int, right: int, valid: bool, causal: int) -> None:
    inputs, _ = _operands(2)
    lengths = [None, None, None, np.asarray([5, 2])] if valid else []
    known = {"left_window_size": left, "right_window_size": right, "is_causal": causal}
    check("Attention", [*inputs, *lengths], known)


def test_softmax_in_double_precision() -> None:
    inputs, _ = _operands()
    check("Attention", inputs, {"softmax_precision": 11, "scale": 0.3})


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_types(dtype: Any) -> None:
    inputs, heads = _operands(2, packed=True, dtype=dtype)
    check("Attention", inputs, {**heads, "is_causal": 1})


def test_no_keys_and_no_batch() -> None:
    check("Attention", _operands(keys=0)[0])
    check("Attention", [array[:0] for array in _operands()[0]])


def test_grouped_queries_are_affine() -> None:
    inputs, heads = _operands(3, packed=True)
    lowering, _ = lower("Attention", inputs, [(np.float32, (2, 3, 36))], attributes=heads)
    kernels = [item for item in lowering.items if isinstance(item, Kernel)]
    assert len(kernels) == 3
    assert kernels[0].is_pure
    assert kernels[2].is_pure
    for kernel in (kernels[0], kernels[2]):
        loads = [n for n in walk(kernel.stages[0].stores[0].value) if isinstance(n, Load)]
        assert not any(affine(part).rest for node in loads for part in node.index)


def test_packed_operand_without_heads_is_refused() -> None:
    packed = Buffer("q", FLOAT32, (Dim.of(1), Dim.of(2), Dim.of(8)))
    with pytest.raises(Unlowerable, match="q_num_heads"):
        heads_of(packed, None)


_RULES = ["linear", "gated", "delta", "gated_delta"]


def _linear(rule: str, group: int, per_key: bool, tokens: int) -> list[Array | None]:
    heads, d_k, d_v = 2, 4, 3
    q, k = uniform(2, tokens, heads * group * d_k), uniform(2, tokens, heads * d_k, seed=1)
    v = uniform(2, tokens, heads * d_v, seed=2)
    decay = -np.abs(uniform(2, tokens, heads * (d_k if per_key else 1), seed=3))
    beta = np.abs(uniform(2, tokens, 1 if per_key else heads, seed=4))
    gated, corrected = "gated" in rule, "delta" in rule
    return [q, k, v, None, decay if gated else None, beta if corrected else None]


@pytest.mark.parametrize("rule", _RULES)
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize("past", [False, True])
def test_linear_attention(rule: str, group: int, per_key: bool, past: bool) -> None:
    inputs = _linear(rule, group, per_key, tokens=4)
    if past:
        inputs[3] = uniform(2, 2, 4, 3, seed=5)
    known = {"update_rule": rule, "q_num_heads": 2 * group, "kv_num_heads": 2}
    check("LinearAttention", inputs, known, num_outputs=2)


@pytest.mark.parametrize("past", [False, True])
def test_linear_attention_without_tokens_keeps_the_state(past: bool) -> None:
    inputs = _linear("linear", 1, False, tokens=0)
    inputs[3] = uniform(2, 2, 4, 3, seed=5) if past else None
    for symbolic in (False, True):
        _, state = run(
            "LinearAttention",
            inputs,
            [(np.float32, (2, 0, 6)), (np.float32, (2, 2, 4, 3))],
            attributes={"update_rule": "linear", "q_num_heads": 2, "kv_num_heads": 2},
            symbolic=symbolic,
        )
        np.testing.assert_array_equal(state, 0 if inputs[3] is None else inputs[3])
