"""Kinds of faults known of compilers: windows, shapes, indices, recurrence, older operator sets.

Our own graphs and numbers; expectations are written out or by a few lines of NumPy.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from integration.faults import Array, engine_of, f32, i64, own_cache, run
from tilewright.core.errors import UserError

__all__ = ["own_cache"]

# --- windows --------------------------------------------------------------------------------------


def _windows(x: Array, kernel: int, stride: int, dilation: int) -> list[Array]:
    """What each window of the last axis sees."""
    reach = (kernel - 1) * dilation + 1
    starts = range(0, x.shape[-1] - reach + 1, stride)
    return [x[..., start : start + reach : dilation] for start in starts]


@pytest.mark.parametrize("pads", [(0, 0), (1, 1), (0, 2), (2, 0)])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(3, 1, 1), (3, 2, 1), (2, 3, 1), (3, 1, 2)]
)
def test_average_pools_count_what_they_should(
    pads: tuple[int, int], kernel: int, stride: int, dilation: int
) -> None:
    x = f32([[[3, -1, 4, 1, -5, 9, 2, -6]]])
    shown = (
        f"kernel_shape=[{kernel}], strides=[{stride}], dilations=[{dilation}], pads={list(pads)}"
    )
    text = f"""g (float[1, 1, n] x) => (a, b) {{ a = AveragePool<{shown}>(x)
    b = AveragePool<{shown}, count_include_pad=1>(x) }}"""
    a, b = engine_of(text).run({"x": x}).values()
    padded = np.pad(x, [(0, 0), (0, 0), pads])
    inside = np.pad(np.ones_like(x), [(0, 0), (0, 0), pads])
    sums = [part.sum() for part in _windows(padded, kernel, stride, dilation)]
    counts = [part.sum() for part in _windows(inside, kernel, stride, dilation)]
    with np.errstate(invalid="ignore"):  # of a window that lies in the padding
        means = np.divide(sums, counts)
    np.testing.assert_allclose(a.ravel(), means, rtol=1e-6)
    np.testing.assert_allclose(b.ravel(), np.divide(sums, kernel), rtol=1e-6)


@pytest.mark.parametrize("size", range(2, 9))
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_ceil_mode_adds_a_window_only_where_data_begins_it(size: int, stride: int) -> None:
    """Kernel 3, a pad of 1 on both sides: no window starts in the padding behind the data."""
    x = f32(np.arange(size) + 1)
    text = f"""g (float[1, 1, n] x) => (y)
    {{ y = MaxPool<kernel_shape=[3], strides=[{stride}], pads=[1, 1], ceil_mode=1>(x) }}"""
    padded = np.pad(x, (1, 3), constant_values=-np.inf)
    starts = [start for start in range(0, size + 1, stride) if start - stride + 3 < size + 2]
    expected = [padded[start : start + 3].max() for start in starts]
    y = engine_of(text).run({"x": x.reshape(1, 1, -1)})["y"]
    np.testing.assert_array_equal(y.ravel(), expected)


def test_max_pool_indices_count_over_the_whole_tensor() -> None:
    x = f32([[[[1, 5], [7, 2]], [[3, 3], [0, 3]]]])
    y, where = run(
        "g (float[1, 2, 2, 2] x) => (y, i) { y, i = MaxPool<kernel_shape=[2, 2]>(x) }", x=x
    )
    assert y.ravel().tolist() == [7, 3]
    assert where.ravel().tolist() == [2, 4]


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (2, 1), (3, 2), (4, 3), (1, 2), (2, 5)])
def test_same_padding_of_convolutions_at_every_size(
    auto_pad: str, kernel: int, stride: int
) -> None:
    w = f32(np.arange(1, kernel + 1).reshape(1, 1, kernel))
    node = f'Conv<auto_pad="{auto_pad}", strides=[{stride}]>(x, w)'
    engine = engine_of(f"g (float[1, 1, n] x) => (y) {{ y = {node} }}", {"w": w})
    for size in (4, 5, 6, 7, 11):
        x = f32(np.arange(size) + 1)
        total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
        small = total // 2
        pads = {"SAME_UPPER": (small, total - small), "SAME_LOWER": (total - small, small)}.get(
            auto_pad, (0, 0)
        )
        parts = _windows(np.pad(x, pads), kernel, stride, 1)
        expected = [float(part @ w.ravel()) for part in parts]
        np.testing.assert_allclose(engine.run({"x": x.reshape(1, 1, -1)})["y"].ravel(), expected)


def _transposed(x: Array, w: Array, stride: int, dilation: int, extra: int) -> Array:
    """The adjoint of a convolution with one channel."""
    full = np.zeros((len(x) - 1) * stride + (len(w) - 1) * dilation + 1 + extra)
    for i, k in itertools.product(range(len(x)), range(len(w))):
        full[i * stride + k * dilation] += x[i] * w[k]
    return full


@pytest.mark.parametrize(
    ("stride", "dilation", "extra"), [(1, 1, 0), (2, 1, 1), (3, 1, 2), (2, 2, 1), (3, 3, 0)]
)
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
def test_transposed_convolutions(kernel: int, stride: int, dilation: int, extra: int) -> None:
    x, w = f32([1, -2, 3, 5]), f32(np.arange(1, kernel + 1))
    text = f"""g (float[1, 1, n] x) => (y, z) {{
    y = ConvTranspose<strides=[{stride}], dilations=[{dilation}], output_padding=[{extra}]>(x, w)
    z = ConvTranspose<strides=[{stride}], dilations=[{dilation}], output_padding=[{extra}],
                      pads=[1, 0]>(x, w) }}"""
    y, z = run(text, {"w": w.reshape(1, 1, -1)}, x=x.reshape(1, 1, -1))
    full = _transposed(x, w, stride, dilation, extra)
    np.testing.assert_allclose(y.ravel(), full)
    np.testing.assert_allclose(z.ravel(), full[1:])


def test_transposed_same_padding_never_crops_what_it_has() -> None:
    """Stride beyond the kernel: nothing is cut, zeros follow."""
    y = run("""g (float[1, 1, 3] x) => (y)
    { y = ConvTranspose<auto_pad="SAME_UPPER", strides=[3]>(x, w) }""",
            {"w": f32([[[1, 10]]])}, x=f32([[[1, 2, 3]]]))  # fmt: skip
    np.testing.assert_array_equal(y.ravel(), [1, 10, 0, 2, 20, 0, 3, 30, 0])


def test_missing_taps_do_not_spread_infinity() -> None:
    y = run("g (float[1, 1, 3] x) => (y) { y = ConvTranspose<strides=[2]>(x, w) }",
            {"w": f32([[[1, 1, 1]]])}, x=f32([[[1, np.inf, 2]]]))  # fmt: skip
    np.testing.assert_array_equal(y.ravel(), [1, 1, np.inf, np.inf, np.inf, 2, 2])


@pytest.mark.parametrize("group", [1, 2, 4])
def test_grouped_convolutions_with_a_sum_of_any_shape(group: int) -> None:
    rng = np.random.default_rng(0)
    x = f32(rng.integers(-3, 4, (2, 4, 6)))
    w = f32(rng.integers(-3, 4, (4, 4 // group, 3)))
    plain = np.zeros((2, 4, 4))
    for n, m, p in itertools.product(range(2), range(4), range(4)):
        first = m // (4 // group) * (4 // group)
        plain[n, m, p] = (x[n, first : first + 4 // group, p : p + 3] * w[m]).sum()
    for shape in ((1,), (4, 1), (1, 1, 4), (2, 4, 4), (2, 1, 1)):
        z = f32(rng.integers(-3, 4, shape))
        y = run(f"g (float[2, 4, 6] x) => (y) {{ c = Conv<group={group}>(x, w) y = Add(c, z) }}",
                {"w": w, "z": z}, x=x)  # fmt: skip
        np.testing.assert_array_equal(y, plain + z)


def test_constant_data_through_a_padded_convolution() -> None:
    """Packing constants must not read what padding stands for."""
    data, w = np.arange(1, 6, dtype=np.float32).reshape(1, 1, 5), f32([[[1, 10, 100]]])
    y = run("g (float[1, 1, 3] w) => (y) { y = Conv<pads=[2, 2]>(d, w) }", {"d": data}, w=w)
    expected = [np.pad(data.ravel(), 2)[k : k + 3] @ w.ravel() for k in range(7)]
    np.testing.assert_array_equal(y.ravel(), expected)


# --- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMax", "ReduceMean", "ReduceProd", "ReduceL2"])
def test_reductions_of_a_scalar_and_over_no_axis(op: str) -> None:
    text = f"""g (float x, float[2, 3] z) => (a, b, c, d)
    {{ a = {op}(x) b = {op}<keepdims=0>(x) c = {op}<noop_with_empty_axes=1>(z, e)
    d = {op}<keepdims=0>(z, e) }}"""
    z = f32([[1, 2, 3], [4, 5, 6]])
    a, b, c, d = run(text, {"e": i64([])}, x=f32(-3), z=z)
    assert a.shape == b.shape == d.shape == ()
    assert abs(float(a)) == 3
    np.testing.assert_array_equal(np.abs(c), z)


@pytest.mark.parametrize(
    ("op", "expected"),
    [("ReduceSum", 0), ("ReduceProd", 1), ("ReduceMax", -np.inf), ("ReduceMin", np.inf)],
)
def test_reductions_over_an_empty_axis(op: str, expected: float) -> None:
    engine = engine_of(
        f"g (float[3, n] x) => (y) {{ y = {op}<keepdims=0>(x, k) }}", {"k": i64([1])}
    )
    np.testing.assert_array_equal(
        engine.run({"x": np.ones((3, 0), np.float32)})["y"], [expected] * 3
    )
    assert engine.run({"x": np.ones((3, 2), np.float32)})["y"].shape == (3,)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ki", [(2, 3), (3, 4)]),
        ("bij,bjk->kb", [(2, 3, 4), (2, 4, 5)]),
        ("ii->i", [(3, 3)]),
        ("...ij->...ji", [(2, 3, 4)]),
        ("...i,...i->...", [(2, 1, 3), (1, 4, 3)]),
        ("i,j,k->kji", [(2,), (3,), (4,)]),
        ("ijk->j", [(2, 3, 4)]),
        ("ab,cd->", [(2, 3), (4, 5)]),
        ("ij,j->i", [(2, 3), (1,)]),
    ],
)
def test_einsum(equation: str, shapes: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(0)
    arrays = [f32(rng.integers(-3, 4, shape)) for shape in shapes]
    names = [f"x{k}" for k in range(len(arrays))]
    inputs = ", ".join(f"float{list(a.shape)} {n}" for n, a in zip(names, arrays, strict=True))
    text = f'g ({inputs}) => (y) {{ y = Einsum<equation="{equation}">({", ".join(names)}) }}'
    expected = np.einsum(equation, *(array.astype(np.float64) for array in arrays))
    np.testing.assert_array_equal(run(text, **dict(zip(names, arrays, strict=True))), expected)


@pytest.mark.parametrize("equation", ["...,...->...", "ij,jk->iik", "ij->ijk", "i j->", "ij,jk"])
def test_einsum_refuses_what_it_cannot_mean(equation: str) -> None:
    shapes = (
        ["float", "float[2, 3]"] if equation.startswith("...") else ["float[2, 3]", "float[4, 5]"]
    )
    count = equation.split("->")[0].count(",") + 1
    inputs = ", ".join(f"{shapes[k]} x{k}" for k in range(count))
    names = ", ".join(f"x{k}" for k in range(count))
    text = f'g ({inputs}) => (y) {{ y = Einsum<equation="{equation}">({names}) }}'
    if equation == "i j->":
        assert run(text, x0=np.ones((2, 3), np.float32)) == 6
        return
    with pytest.raises(UserError):
        engine_of(text)


@pytest.mark.parametrize("target", [(1, 3), (2, 1), (1, 1), (3, 1, 3), (2, 3)])
def test_expand_takes_the_larger_of_both(target: tuple[int, ...]) -> None:
    x = f32([[1], [2]])
    y = run("g (float[2, 1] x) => (y) { y = Expand(x, s) }", {"s": i64(list(target))}, x=x)
    np.testing.assert_array_equal(y, np.broadcast_to(x, np.broadcast_shapes(x.shape, target)))


@pytest.mark.parametrize("constant", [True, False])
def test_tile_by_zero_and_one(constant: bool) -> None:
    x = f32([[1, 2]])
    for repeats in ([0, 1], [2, 3], [1, 0], [1, 1]):
        if constant:
            y = run("g (float[1, 2] x) => (y) { y = Tile(x, r) }", {"r": i64(repeats)}, x=x)
        else:
            y = run("g (float[1, 2] x, int64[2] r) => (y) { y = Tile(x, r) }", x=x, r=i64(repeats))
        np.testing.assert_array_equal(y, np.tile(x, repeats))


def test_concat_with_nothing_and_split_into_nothing() -> None:
    engine = engine_of(
        """g (float[2, n] x, float[2, m] z) => (c, p, q)
        { c = Concat<axis=1>(x, z, x) p, q = Split<axis=0>(z, s) }""",
        {"s": i64(0, 2)},
    )
    x, z = f32([[1], [2]]), np.zeros((2, 0), np.float32)
    for left, right in ((x, z), (z, x), (z, z)):
        c, p, q = engine.run({"x": left, "z": right}).values()
        np.testing.assert_array_equal(c, np.concatenate([left, right, left], 1))
        assert p.shape == (0, right.shape[1])
        np.testing.assert_array_equal(q, right)


@pytest.mark.parametrize(
    ("data", "target", "expected"),
    [
        ((2, 3), [0, -1], (2, 3)),
        ((2, 3), [-1], (6,)),
        ((0, 3), [0, -1], (0, 3)),
        ((0, 3), [-1, 3], (0, 3)),
        ((2, 0, 5), [0, 0, -1], (2, 0, 5)),
        ((), [1, 1], (1, 1)),
        ((1,), [], ()),
        ((4, 1), [2, -1, 2], (2, 1, 2)),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_reshape(
    data: tuple[int, ...], target: list[int], expected: tuple[int, ...], late: bool
) -> None:
    dims = ", ".join(f"d{k}" for k in range(len(data)))
    inputs = f"float{f'[{dims}]' if dims else ''} x"
    x, s = np.ones(data, np.float32), np.asarray(target, np.int64)
    if late:
        engine = engine_of(f"g ({inputs}, int64[{len(target)}] s) => (y) {{ y = Reshape(x, s) }}")
        y = engine.run({"x": x, "s": s})["y"]
    else:
        y = engine_of(f"g ({inputs}) => (y) {{ y = Reshape(x, s) }}", {"s": s}).run({"x": x})["y"]
    assert y.shape == expected


def test_reshapes_that_do_not_fit_are_refused() -> None:
    engine = engine_of("g (float[a, b] x, int64[2] s) => (y) { y = Reshape(x, s) }")
    for target in ([5, -1], [-1, -1], [2, 2], [-2, 3], [7, 0]):
        with pytest.raises(UserError):
            engine.run({"x": np.zeros((2, 3), np.float32), "s": i64(target)})


# --- indexing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_negative_indices_count_from_the_end(axis: int) -> None:
    x = f32(np.arange(12).reshape(3, 4))
    for kind in (np.int64, np.int32):
        ids = np.array([-1, 0, -3], kind)
        name = "int64" if kind is np.int64 else "int32"
        y = run(
            f"g (float[3, 4] x, {name}[3] i) => (y) {{ y = Gather<axis={axis}>(x, i) }}", x=x, i=ids
        )
        np.testing.assert_array_equal(y, x.take(ids.astype(np.int64), axis))


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap", "constant"])
@pytest.mark.parametrize("pads", [(0, 0), (2, 1), (4, 4), (-1, 2), (-2, -2)])
def test_padding_modes(mode: str, pads: tuple[int, int]) -> None:
    x = f32([1, 2, 3, 4, 5])
    engine = engine_of(
        f'g (float[n] x) => (y) {{ y = Pad<mode="{mode}">(x, p) }}', {"p": i64(list(pads))}
    )
    cropped = x[max(-pads[0], 0) : len(x) - max(-pads[1], 0)]
    widths = [(max(pads[0], 0), max(pads[1], 0))]
    expected = np.pad(cropped, widths, mode={"constant": "constant"}.get(mode, mode))  # type: ignore[call-overload]
    np.testing.assert_array_equal(engine.run({"x": x})["y"], expected)


SLICES = [(0, 3, 1), (-2, 100, 1), (4, 0, -1), (100, -100, -1), (1, 4, 2), (-1, -4, -2), (3, 3, 1),
          (2**63 - 1, -(2**63), -1), (0, 2**63 - 1, 3), (5, 2, 1)]  # fmt: skip


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("start", "end", "step"), SLICES)
def test_slices(start: int, end: int, step: int, late: bool) -> None:
    bounds = {"s": i64([start]), "e": i64([end]), "t": i64([step]), "a": i64([0])}
    inputs = ", ".join(["float[n] x", *([f"int64[1] {name}" for name in bounds] if late else [])])
    engine = engine_of(
        f"g ({inputs}) => (y) {{ y = Slice(x, s, e, a, t) }}", None if late else bounds
    )
    for size in (5, 1, 0, 7):
        x = f32(np.arange(size))
        stop = end if end >= -size or step > 0 else None  # before the first element
        first = min(start, size) if step > 0 else start
        expected = x[first:stop:step]
        np.testing.assert_array_equal(
            engine.run({"x": x, **(bounds if late else {})})["y"], expected
        )


@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_running_sums_from_either_end(exclusive: int, reverse: int) -> None:
    x = f32([[1, 2, 3, 4], [5, 6, 7, 8]])
    for axis in (0, 1, -1):
        y = run(f"""g (float[2, 4] x) => (y)
        {{ y = CumSum<exclusive={exclusive}, reverse={reverse}>(x, k) }}""",
                {"k": np.asarray(axis)}, x=x)  # fmt: skip
        turned = np.flip(x, axis) if reverse else x
        total = np.cumsum(turned, axis) - (turned if exclusive else 0)
        np.testing.assert_array_equal(y, np.flip(total, axis) if reverse else total)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_ties_take_the_first_or_the_last(op: str, last: int) -> None:
    x = f32([[2, 7, 7, 2] * 9])
    y = run(f"g (float[1, 36] x) => (y) {{ y = {op}<axis=1, select_last_index={last}>(x) }}", x=x)
    expected = {("ArgMax", 0): 1, ("ArgMax", 1): 34, ("ArgMin", 0): 0, ("ArgMin", 1): 35}[op, last]
    assert y.item() == expected


@pytest.mark.parametrize("largest", [0, 1])
def test_top_of_ties_keeps_their_order(largest: int) -> None:
    x = f32([3, 1, 3, 2, 1, 3])
    values, ids = run(f"g (float[6] x) => (v, i) {{ v, i = TopK<largest={largest}>(x, k) }}",
                      {"k": i64([4])}, x=x)  # fmt: skip
    assert values.tolist() == ([3, 3, 3, 2] if largest else [1, 1, 2, 3])
    assert ids.tolist() == ([0, 2, 5, 3] if largest else [1, 4, 3, 0])


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_scattered_updates_of_one_element_all_count(reduction: str) -> None:
    x, ids, updates = f32(10, 20, 30), i64([1, 1, -2, 0]), f32(2, 3, -4, 5)
    y = run(f"""g (float[3] x) => (y)
    {{ y = ScatterElements<reduction="{reduction}">(x, i, u) }}""",
            {"i": ids, "u": updates}, x=x)  # fmt: skip
    expected = {"add": [15, 21, 30], "mul": [50, -480, 30], "max": [10, 20, 30], "min": [5, -4, 30]}
    assert y.tolist() == expected[reduction]


@pytest.mark.parametrize("mode", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
def test_resizing_on_exact_ties(mode: str) -> None:
    """From 6 to 3 by half pixels every position lies in the middle of two."""
    x = f32(np.arange(6).reshape(1, 1, 6))
    text = f"""g (float[1, 1, 6] x) => (y, z) {{
    y = Resize<nearest_mode="{mode}", coordinate_transformation_mode="half_pixel">(x, , s)
    z = Resize<nearest_mode="{mode}", coordinate_transformation_mode="asymmetric">(x, , t) }}"""
    y, z = run(text, {"s": f32(1, 1, 0.5), "t": f32(1, 1, 2)}, x=x)
    low, high = [0, 2, 4], [1, 3, 5]
    assert y.ravel().tolist() == (low if mode in ("round_prefer_floor", "floor") else high)
    halves = np.arange(12) / 2
    whole = {
        "round_prefer_floor": np.ceil(halves - 0.5),
        "round_prefer_ceil": np.floor(halves + 0.5),
        "floor": np.floor(halves),
        "ceil": np.ceil(halves),
    }[mode]
    assert z.ravel().tolist() == np.clip(whole, 0, 5).tolist()


def test_sizes_that_cannot_be_are_refused() -> None:
    for node, weights in (
        ("Resize(x, , , s)", {"s": i64(1, 1, -2)}),
        ("Resize(x, , s)", {"s": f32(1, 1, -1)}),
        ("Resize(x, , s)", {"s": f32(1, 1)}),
        ("Tile(x, s)", {"s": i64(1, 1, -1)}),
        ("Expand(x, s)", {"s": i64(1, 1, -3)}),
        ("Pad(x, s)", {"s": i64(0, 0, -4, 0, 0, -4)}),
    ):
        with pytest.raises(UserError):
            run(
                f"g (float[1, 1, 6] x) => (y) {{ y = {node} }}",
                weights,
                x=np.ones((1, 1, 6), np.float32),
            )


# --- recurrent ------------------------------------------------------------------------------------


def _gru(x: Array, w: Array, r: Array, before: int) -> Array:
    """One direction, no bias; every step's state."""
    size = r.shape[1]
    state, states = np.zeros((x.shape[1], size)), []
    for step in x:
        zw, rw, hw = np.split(step @ w.T, 3, axis=1)
        zr, rr, hr = np.split(r, 3)
        z = 1 / (1 + np.exp(-(zw + state @ zr.T)))
        reset = 1 / (1 + np.exp(-(rw + state @ rr.T)))
        inner = reset * (state @ hr.T) if before else (reset * state) @ hr.T
        state = (1 - z) * np.tanh(hw + inner) + z * state
        states.append(state)
    return np.stack(states)


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_short_sequences_run_within_their_length(direction: str, before: int) -> None:
    rng = np.random.default_rng(0)
    ways = 2 if direction == "bidirectional" else 1
    x = f32(rng.uniform(-1, 1, (5, 3, 2)))
    w, r = (f32(rng.uniform(-1, 1, (ways, 12, size))) for size in (2, 4))
    lengths = np.array([5, 2, 3], np.int32)
    text = f"""g (float[t, 3, 2] x, int32[3] l) => (y, h)
    {{ y, h = GRU<hidden_size=4, direction="{direction}",
                  linear_before_reset={before}>(x, w, r, , l) }}"""
    y, h = engine_of(text, {"w": w, "r": r}).run({"x": x, "l": lengths}).values()
    for way in range(ways):
        back = direction == "reverse" or way == 1
        for item, length in enumerate(lengths):
            own = x[:length, item : item + 1].astype(np.float64)
            states = _gru(own[::-1] if back else own, w[way], r[way], before)[:, 0]
            np.testing.assert_allclose(h[way, item], states[-1], rtol=1e-4, atol=1e-6)
            shown = states[::-1] if back else states
            np.testing.assert_allclose(y[:length, way, item], shown, rtol=1e-4, atol=1e-6)
            assert not y[length:, way, item].any()


def test_both_ways_of_an_lstm_keep_the_order_of_time() -> None:
    """The second way of reversed weights on reversed data is the first way."""
    rng = np.random.default_rng(1)
    x = f32(rng.uniform(-1, 1, (6, 2, 3)))
    w, r = (np.tile(f32(rng.uniform(-1, 1, (1, 16, size))), (2, 1, 1)) for size in (3, 4))
    text = """g (float[t, 2, 3] x) => (y, h, c)
    { y, h, c = LSTM<hidden_size=4, direction="bidirectional">(x, w, r) }"""
    engine = engine_of(text, {"w": w, "r": r})
    ahead, turned = engine.run({"x": x}), engine.run({"x": x[::-1]})
    np.testing.assert_allclose(ahead["y"][:, 1], turned["y"][::-1, 0], rtol=1e-5)
    np.testing.assert_allclose(ahead["h"][0], ahead["y"][-1, 0], rtol=1e-6)
    np.testing.assert_allclose(ahead["h"][1], ahead["y"][0, 1], rtol=1e-6)


@pytest.mark.parametrize("past", [0, 1, 3])
def test_causal_attention_sees_its_past(past: int) -> None:
    rng = np.random.default_rng(2)
    q, k, v = (f32(rng.uniform(-1, 1, (1, 2, 3, 4))) for _ in range(3))
    pk, pv = (f32(rng.uniform(-1, 1, (1, 2, past, 4))) for _ in range(2))
    text = """g (float[1, 2, s, 4] q, float[1, 2, s, 4] k, float[1, 2, s, 4] v,
               float[1, 2, p, 4] pk, float[1, 2, p, 4] pv) => (y, nk, nv)
    { y, nk, nv = Attention<is_causal=1>(q, k, v, , pk, pv) }"""
    engine = engine_of(text, opset=23)
    y, nk, nv = engine.run({"q": q, "k": k, "v": v, "pk": pk, "pv": pv}).values()
    keys, values = (np.concatenate(pair, 2) for pair in ((pk, k), (pv, v)))
    np.testing.assert_array_equal(nk, keys)
    np.testing.assert_array_equal(nv, values)
    for row in range(3):
        seen = past + row + 1
        score = (q[:, :, row : row + 1] @ keys[:, :, :seen].transpose(0, 1, 3, 2)) / 2
        weight = np.exp(score - score.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        np.testing.assert_allclose(
            y[:, :, row : row + 1], weight @ values[:, :, :seen], rtol=1e-5, atol=1e-6
        )


# --- opset_optional: older versions and optional operands -----------------------------------------


def _old(
    op: str, opset: int, inputs: list[str], weights: dict[str, Array], **attributes: Any
) -> Any:
    node = helper.make_node(op, inputs, ["y"], **attributes)
    names = [name for name in dict.fromkeys(inputs) if name and name not in weights]
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, 1, [None] * 3) for name in names],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return tw.compile(model, verify=False, threads=1)


def test_softmax_before_version_13_is_over_all_that_follows() -> None:
    x = f32(np.arange(12).reshape(2, 3, 2) / 7)
    soft = np.exp(x - x.max((1, 2), keepdims=True))
    expected = soft / soft.sum((1, 2), keepdims=True)
    for op, function in (("Softmax", lambda z: z), ("LogSoftmax", np.log)):
        y = _old(op, 11, ["x"], {}).run({"x": x})["y"]
        np.testing.assert_allclose(y, function(expected), rtol=1e-5, atol=1e-6)
    y = _old("Softmax", 13, ["x"], {}).run({"x": x})["y"]
    np.testing.assert_allclose(y.sum(-1), np.ones((2, 3)), rtol=1e-6)


def test_hardmax_before_version_13() -> None:
    x = f32([[[1, 2], [9, 4]], [[5, 5], [0, 0]]])
    y = _old("Hardmax", 11, ["x"], {}).run({"x": x})["y"]
    np.testing.assert_array_equal(y, [[[0, 0], [1, 0]], [[1, 0], [0, 0]]])


def test_bounds_and_axes_as_attributes() -> None:
    x = f32(np.arange(-6, 6).reshape(2, 2, 3))
    np.testing.assert_array_equal(
        _old("Clip", 6, ["x"], {}, max=2.0).run({"x": x})["y"], np.minimum(x, 2)
    )
    y = _old("ReduceSum", 11, ["x"], {}, axes=[-1], keepdims=0).run({"x": x})["y"]
    np.testing.assert_array_equal(y, x.sum(-1))
    y = _old("Slice", 9, ["x"], {}, starts=[0, 1], ends=[2, 9]).run({"x": x})["y"]
    np.testing.assert_array_equal(y, x[:, 1:])
    y = _old("Pad", 2, ["x"], {}, pads=[0, 0, 1, 0, 0, 0], value=5.0).run({"x": x})["y"]
    np.testing.assert_array_equal(y, np.pad(x, [(0, 0), (0, 0), (1, 0)], constant_values=5))
    y = _old("Unsqueeze", 11, ["x"], {}, axes=[0, 4]).run({"x": x})["y"]
    assert y.shape == (1, 2, 2, 3, 1)
    y = _old("Upsample", 9, ["x", "s"], {"s": f32(1, 1, 2)}, mode="nearest").run({"x": x})["y"]
    np.testing.assert_array_equal(y, np.repeat(x, 2, 2))


def test_old_operands_broadcast_from_an_axis() -> None:
    x, b = f32(np.zeros((2, 3, 4))), f32(1, 2, 3)
    y = _old("Add", 6, ["x", "b"], {"b": b}, broadcast=1, axis=1).run({"x": x})["y"]
    np.testing.assert_array_equal(y, np.broadcast_to(b[:, None], (2, 3, 4)))


def test_slices_with_steps_but_no_axes() -> None:
    x = f32(np.arange(12).reshape(3, 4))
    y = run("g (float[3, 4] x) => (y) { y = Slice(x, s, e, , t) }",
            {"s": i64(2, 3), "e": i64(-9, 0), "t": i64(-1, -2)}, x=x)  # fmt: skip
    np.testing.assert_array_equal(y, x[::-1, 3:0:-2])


def test_optional_operands_in_the_middle() -> None:
    x = f32([-5, 0, 5])
    y = run("g (float[3] x) => (y) { y = Clip(x, , h) }", {"h": f32(2)}, x=x)
    assert y.tolist() == [-5, 0, 2]
    seq = f32(np.ones((2, 1, 1)))
    h = run("""g (float[2, 1, 1] x, float[1, 1, 1] s) => (h)
    { y, h = RNN<hidden_size=1>(x, w, r, , , s) }""",
            {"w": f32([[[0.5]]]), "r": f32([[[0.25]]])}, x=seq, s=f32([[[2]]]))  # fmt: skip
    first = np.tanh(0.5 + 0.25 * 2)
    assert h.item() == pytest.approx(np.tanh(0.5 + 0.25 * first), rel=1e-5)
