"""Operators against independent, slow or differently written definitions."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from tilewright.runtime.reference import conv, evaluate

f32 = partial(np.array, dtype=np.float32)
i32 = partial(np.array, dtype=np.int32)
i64 = partial(np.array, dtype=np.int64)
u8 = partial(np.array, dtype=np.uint8)
i8 = partial(np.array, dtype=np.int8)
RNG = np.random.default_rng(7)


def run(name: str, *inputs: Any, opset: int = 23, outputs: int = 1, **attributes: Any) -> Any:
    result = evaluate("", name, list(inputs), attributes, opset=opset, num_outputs=outputs)
    return result[0] if outputs == 1 else result


def random(*shape: int) -> Any:
    return RNG.standard_normal(shape)


def test_erf_is_accurate_to_the_last_bits() -> None:
    x = np.linspace(-7, 7, 20001)
    exact = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(run("Erf", x), exact, rtol=5e-16, atol=0)
    assert np.isnan(run("Erf", np.array([np.nan])))


def test_integer_division_truncates_and_survives_zero() -> None:
    a, b = i32([7, -7, 7, -7, 5]), i32([2, 2, -2, -2, 0])
    assert run("Div", a, b).tolist() == [3, -3, -3, 3, 0]
    assert run("Mod", a, b).tolist() == [1, 1, -1, -1, 0]
    assert run("Mod", a, b, fmod=1).tolist() == [1, -1, 1, -1, 0]


def test_shifts_outside_the_width() -> None:
    x, y = i8([-3, 3, -3, 3]), i8([8, 9, -1, 1])
    assert run("BitShift", x, y, opset=28, direction="RIGHT").tolist() == [-1, 0, -1, 1]
    assert run("BitShift", x, y, opset=28, direction="LEFT").tolist() == [0, 0, 0, 6]


@pytest.mark.parametrize("name", ["Relu", "Clip", "Max", "Min", "ReduceMax", "ReduceMin"])
def test_nan_is_kept(name: str) -> None:
    x = f32([1.0, np.nan, -1.0])
    extra: list[Any] = [f32(-0.5), f32(0.5)] if name == "Clip" else []
    assert np.isnan(run(name, x, *extra)).any()


def test_max_pool_keeps_nan_and_ignores_padding() -> None:
    x = f32([[[-3.0, np.nan, -2.0, -5.0]]])
    y = run("MaxPool", x, kernel_shape=[2], strides=[2], pads=[0, 0])
    assert np.isnan(y[0, 0, 0])
    assert y[0, 0, 1] == -2
    padded = run("MaxPool", x[..., 2:], kernel_shape=[3], strides=[3], pads=[2, 2])
    assert padded.tolist() == [[[-2.0, -5.0]]]


def _naive_conv(x: Any, w: Any, stride: int, dilation: int, pads: list[int], group: int) -> Any:
    x = np.pad(x, [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    kernel = w.shape[2:]
    size = [(x.shape[i + 2] - (kernel[i] - 1) * dilation - 1) // stride + 1 for i in range(2)]
    y = np.zeros((x.shape[0], w.shape[0], *size))
    per = w.shape[0] // group
    for n, m, i, j in np.ndindex(*y.shape):
        for c, a, b in np.ndindex(*w.shape[1:]):
            channel = m // per * w.shape[1] + c
            y[n, m, i, j] += (
                w[m, c, a, b] * x[n, channel, i * stride + a * dilation, j * stride + b * dilation]
            )
    return y


@pytest.mark.parametrize(("stride", "dilation", "group"), [(1, 1, 1), (2, 1, 2), (1, 2, 4)])
def test_conv_and_its_transpose(stride: int, dilation: int, group: int) -> None:
    x, w, pads = random(2, 4, 7, 6), random(8, 4 // group, 3, 2), [1, 0, 2, 1]
    at: dict[str, Any] = {
        "strides": [stride] * 2,
        "dilations": [dilation] * 2,
        "pads": pads,
        "group": group,
    }
    y = run("Conv", x, w, **at)
    np.testing.assert_allclose(y, _naive_conv(x, w, stride, dilation, pads, group), atol=1e-12)
    # <Conv(x), g> = <x, ConvTranspose(g)> defines the transpose.
    g = random(*y.shape)
    unread = [
        (x.shape[i + 2] + pads[i] + pads[i + 2] - (w.shape[i + 2] - 1) * dilation - 1) % stride
        for i in range(2)
    ]
    back = run("ConvTranspose", g, w, output_padding=unread, **at)
    np.testing.assert_allclose(np.vdot(y, g), np.vdot(x, back), rtol=1e-10)


def test_large_convolution_is_cut_into_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = random(1, 3, 20, 9), random(4, 3, 3, 3)
    whole = run("Conv", x, w, pads=[1] * 4)
    monkeypatch.setattr(conv, "_PIECE_BYTES", 4000)
    np.testing.assert_allclose(run("Conv", x, w, pads=[1] * 4), whole, atol=1e-12)


def test_integer_matmul_is_exact_and_wraps() -> None:
    a = np.array([[2**30, 2**30]], np.int32)
    assert run("MatMul", a, np.array([[2], [2]], np.int32)).tolist() == [[0]]
    b = RNG.integers(-1000, 1000, (5, 6))
    assert (run("MatMul", b, b.T) == np.matmul(b, b.T)).all()


@pytest.mark.parametrize("name", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_padded_sequences_equal_separate_runs(name: str, direction: str) -> None:
    gates, hidden, directions = {"RNN": 1, "GRU": 3, "LSTM": 4}[name], 3, 1
    directions = 2 if direction == "bidirectional" else 1
    x, lengths = random(5, 2, 4), [3, 5]
    w, r = random(directions, gates * hidden, 4), random(directions, gates * hidden, hidden)
    at: dict[str, Any] = {"direction": direction, "hidden_size": hidden}
    y, last = run(name, x, w, r, None, i32(lengths), outputs=2, **at)
    for item, length in enumerate(lengths):
        alone, end = run(name, x[:length, item : item + 1], w, r, outputs=2, **at)
        np.testing.assert_allclose(y[:length, :, item], alone[:, :, 0], atol=1e-12)
        np.testing.assert_allclose(last[:, item], end[:, 0], atol=1e-12)
        assert not y[length:, :, item].any()


def test_batch_first_recurrence_is_a_transposition() -> None:
    x, w, r = random(5, 2, 4), random(1, 12, 4), random(1, 12, 3)
    y, h, c = run("LSTM", x, w, r, outputs=3, hidden_size=3)
    z, hb, cb = run("LSTM", x.swapaxes(0, 1), w, r, outputs=3, hidden_size=3, layout=1)
    np.testing.assert_array_equal(z, y.transpose(2, 0, 1, 3))
    np.testing.assert_array_equal(hb, h.swapaxes(0, 1))
    np.testing.assert_array_equal(cb, c.swapaxes(0, 1))


def test_attention_equals_its_formula_and_zeroes_blocked_rows() -> None:
    q, k, v = random(1, 4, 3, 8), random(1, 2, 5, 8), random(1, 2, 5, 6)
    mask = np.ones((3, 5), bool)
    mask[1] = False
    y = run("Attention", q, k, v, mask)
    scores = q @ np.repeat(k, 2, axis=1).swapaxes(-1, -2) / math.sqrt(8)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    expected = weights @ np.repeat(v, 2, axis=1)
    np.testing.assert_allclose(y[:, :, [0, 2]], expected[:, :, [0, 2]], atol=1e-12)
    assert not y[:, :, 1].any()


def test_loop_of_zero_trips_and_scan_backwards() -> None:
    def body(*values: Any) -> tuple[Any, ...]:
        return np.array(True), values[2] + 1, values[2]

    state, scanned = run("Loop", i64(0), np.array(True), f32([5]), outputs=2, opset=16, body=body)
    assert state.tolist() == [5.0]
    assert scanned.shape[0] == 0

    def step(total: Any, x: Any) -> tuple[Any, ...]:
        return total + x, total + x

    total, sums = run(
        "Scan",
        f32(0),
        f32([1, 2, 3]),
        outputs=2,
        opset=16,
        body=step,
        num_scan_inputs=1,
        scan_input_directions=[1],
        scan_output_directions=[1],
    )
    assert float(total) == 6
    assert sums.tolist() == [6.0, 5.0, 3.0]


def test_batched_scan_of_opset_8_stops_at_the_sequence_end() -> None:
    def step(total: Any, x: Any) -> tuple[Any, ...]:
        return total + x, total + x

    total, sums = run(
        "Scan",
        i64([1, 2]),
        np.zeros(2, np.float32),
        f32([[1, 2], [3, 4]]),
        outputs=2,
        opset=8,
        body=step,
        num_scan_inputs=1,
    )
    assert total.tolist() == [1.0, 7.0]
    assert sums.tolist() == [[1.0, 0.0], [3.0, 7.0]]


def test_early_versions_take_attributes() -> None:
    x = f32([[3, 1, 2], [6, 5, 4]])
    assert run("Slice", x, opset=9, starts=[1], ends=[9], axes=[1]).tolist() == [[1, 2], [5, 4]]
    assert run("TopK", x, opset=9, outputs=2, k=1)[1].tolist() == [[0], [0]]
    assert run("Clip", x, opset=10, min=2.0, max=4.0).tolist() == [[3, 2, 2], [4, 4, 4]]
    assert run("Squeeze", x[None], opset=11, axes=[0]).shape == (2, 3)
    assert run("Unsqueeze", x, opset=11, axes=[0, 3]).shape == (1, 2, 3, 1)
    assert run("ReduceSum", x, opset=11, axes=[1]).tolist() == [[6], [15]]
    assert run("Pad", x, opset=10, pads=[0, 1, 0, 0], value=9.0)[0].tolist() == [9, 3, 1, 2]
    assert [p.shape for p in run("Split", x, opset=11, outputs=2, axis=1, split=[1, 2])] == [
        (2, 1),
        (2, 2),
    ]
    assert run("Upsample", x, opset=7, scales=[1.0, 2.0])[0].tolist() == [3, 3, 1, 1, 2, 2]
    mask = run("Dropout", x, opset=7, outputs=2)[1]
    assert mask.dtype == np.float32
    scale = f32([1, 2])
    x4, zero = random(1, 4, 2).astype(np.float32), np.zeros(2, np.float32)
    y = run("GroupNormalization", x4, scale, zero, opset=18, num_groups=2)
    z = run("GroupNormalization", x4, np.repeat(scale, 2), np.zeros(4, np.float32), num_groups=2)
    np.testing.assert_allclose(y, z, atol=1e-6)


def test_resize_is_separable_and_keeps_constants() -> None:
    x = np.full((1, 1, 5, 7), 3.0)
    modes = itertools.product(("nearest", "linear", "cubic"), (0, 1))
    for mode, antialias in modes:
        y = run("Resize", x, None, f32([1, 1, 0.6, 1.7]), mode=mode, antialias=antialias)
        assert y.shape == (1, 1, 3, 11)
        np.testing.assert_allclose(y, 3.0, rtol=1e-12)


def test_quantisation_rounds_half_to_even_and_saturates() -> None:
    x, scale = f32([0.5, 1.5, 2.5, 1e9, -1e9, np.nan]), f32(1)
    y = run("QuantizeLinear", x, scale, u8(3))
    assert y.tolist() == [3, 5, 5, 255, 0, 3]
    blocked = run("DequantizeLinear", i8([[1, 2, 3]]), f32([[2, 10]]), axis=1, block_size=2)
    assert blocked.tolist() == [[2.0, 4.0, 30.0]]


def test_random_operators_follow_their_seed() -> None:
    first = run("RandomNormal", shape=[4], seed=3.0)
    assert (first == run("RandomNormal", shape=[4], seed=3.0)).all()
    assert (first != run("RandomNormal", shape=[4], seed=4.0)).any()
    assert (run("RandomNormal", shape=[64]) != run("RandomNormal", shape=[64])).any()
    drawn = run("Bernoulli", np.full(10_000, 0.25, np.float32), seed=1.0)
    assert 0.2 < float(drawn.mean()) < 0.3
    counts = np.bincount(run("Multinomial", np.log([[0.1, 0.9]]), sample_size=2000, seed=1.0)[0])
    assert 150 < counts[0] < 250


def test_unique_ngrams_and_weights_follow_the_pool() -> None:
    y = run(
        "TfIdfVectorizer",
        np.array([1, 2, 1, 2]),
        mode="TFIDF",
        min_gram_length=1,
        max_gram_length=2,
        max_skip_count=0,
        ngram_counts=[0, 1],
        ngram_indexes=[1, 0],
        pool_int64s=[2, 1, 2],
        weights=[10.0, 0.5],
    )
    assert y.tolist() == [1.0, 20.0]
