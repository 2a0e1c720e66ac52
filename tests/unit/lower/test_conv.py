"""Convolutions against the reference: geometry, groups, types, integer forms; omitted guards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.core.shape import Dim
from tilewright.kernel.affine import affine
from tilewright.kernel.ir import Call, Kernel, Load, Reduce, walk
from tilewright.lower.context import View
from tilewright.lower.window import Window
from unit.lower.against_reference import check, integers, uniform, window
from unit.lower.direct import Array, lower, run

_GEOMETRY: list[tuple[Sequence[int], Sequence[int], dict[str, Sequence[int]]]] = [
    ((7,), (3,), {}),
    ((7,), (3,), {"pads": [2, 0], "strides": [2]}),
    ((6, 5), (3, 3), {"pads": [1, 1, 1, 1]}),
    ((6, 5), (3, 2), {"pads": [0, 1, 2, 0], "strides": [2, 1], "dilations": [1, 2]}),
    ((6, 5), (1, 1), {"strides": [2, 2]}),
    ((4, 5, 6), (2, 3, 2), {"pads": [1, 0, 1, 0, 1, 1], "strides": [1, 2, 2]}),
]


@pytest.mark.parametrize(("size", "kernel", "how"), _GEOMETRY)
@pytest.mark.parametrize(
    ("group", "depth", "filters"), [(1, 2, 3), (2, 2, 3), (3, 1, 1), (2, 2, 1)]
)
def test_conv(
    size: Sequence[int],
    kernel: Sequence[int],
    how: dict[str, Sequence[int]],
    group: int,
    depth: int,
    filters: int,
) -> None:
    attributes, params = window(kernel, **how)
    x = uniform(2, group * depth, *size)
    w = uniform(group * filters, depth, *kernel, seed=1)
    inputs = [x, w, uniform(group * filters, seed=2)]
    check("Conv", inputs, {**attributes, "group": group}, params=params)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_conv_types(dtype: Any) -> None:
    attributes, params = window((3, 3), pads=[1, 1, 1, 1])
    inputs = [uniform(1, 8, 5, 5, dtype=dtype), uniform(4, 8, 3, 3, dtype=dtype, seed=1)]
    check("Conv", inputs, attributes, params=params)


def test_negative_pads_crop() -> None:
    x, w = uniform(1, 2, 9, 8), uniform(3, 2, 2, 3, seed=1)
    attributes, params = window((2, 3), pads=[-1, 1, 0, -2])
    plain, plain_params = window((2, 3), pads=[0, 1, 0, 0])
    for symbolic in (False, True):
        cropped, whole = (
            run(
                "Conv",
                [data, w],
                [(np.float32, (1, 3, 7, 5))],
                attributes=how,
                params=known,
                symbolic=symbolic,
            )[0]
            for data, how, known in (
                (x, attributes, params),
                (x[:, :, 1:, :-2].copy(), plain, plain_params),
            )
        )
        np.testing.assert_array_equal(cropped, whole)


def test_empty_batch_and_no_channels() -> None:
    attributes, params = window((2, 2))
    check("Conv", [uniform(0, 2, 4, 4), uniform(3, 2, 2, 2)], attributes, params=params)
    inputs = [uniform(2, 0, 4, 4), uniform(3, 0, 2, 2), uniform(3)]
    (result,) = run(
        "Conv", inputs, [(np.float32, (2, 3, 3, 3))], attributes=attributes, params=params
    )
    np.testing.assert_array_equal(result, np.broadcast_to(inputs[2][:, None, None], result.shape))


def _lower(x: Array, w: Array, out: tuple[int, ...], how: Any, group: int = 1) -> list[Any]:
    attributes, params = how
    lowering, _ = lower(
        "Conv",
        [x, w],
        [(np.float32, out)],
        attributes={**attributes, "group": group},
        params=params,
    )
    return lowering.items


def _reduction(kernel: Kernel) -> Reduce:
    value = kernel.stages[0].stores[0].value
    assert isinstance(value, Reduce)
    return value


def _selects(kernel: Kernel) -> int:
    return sum(isinstance(n, Call) and n.op == "select" for n in walk(_reduction(kernel)))


def test_pointwise_conv_is_a_matrix_product() -> None:
    (kernel,) = _lower(uniform(2, 4, 5, 6), uniform(3, 4, 1, 1), (2, 3, 5, 6), window((1, 1)))
    assert kernel.is_pure
    assert len(_reduction(kernel).axes) == 1
    assert _selects(kernel) == 0
    data = next(n for n in walk(_reduction(kernel)) if isinstance(n, Load) and n.buffer == "x0")
    assert [len(affine(part).terms) for part in data.index] == [1, 1, 1, 1]


def test_unpadded_conv_has_no_guards_and_padded_has() -> None:
    (plain,) = _lower(uniform(2, 4, 5, 6), uniform(3, 4, 3, 3), (2, 3, 3, 4), window((3, 3)))
    assert _selects(plain) == 0
    how = window((3, 3), pads=[1, 1, 1, 1])
    (padded,) = _lower(uniform(2, 4, 5, 6), uniform(3, 4, 3, 3), (2, 3, 5, 6), how)
    assert _selects(padded) == 1
    assert padded.is_pure


def test_depthwise_conv_reduces_over_taps_only() -> None:
    (kernel,) = _lower(uniform(2, 4, 5, 6), uniform(4, 1, 3, 3), (2, 4, 3, 4), window((3, 3)), 4)
    assert kernel.is_pure
    assert len(_reduction(kernel).axes) == 2


def test_grouped_conv_is_affine_in_two_channel_axes() -> None:
    items = _lower(uniform(2, 4, 5, 6), uniform(6, 2, 3, 3), (2, 6, 3, 4), window((3, 3)), 2)
    kernel, view = items
    assert kernel.is_pure
    assert isinstance(view, View)
    assert len(kernel.outputs[0].shape) == 5
    loads = [node for node in walk(_reduction(kernel)) if isinstance(node, Load)]
    assert not any(affine(part).rest for load in loads for part in load.index)


def _window(size: Dim, out: Dim, begin: int, end: int, stride: int = 2) -> Window:
    dims = {"begin": Dim.of(begin), "end": Dim.of(end), "stride": Dim.of(stride)}
    return Window(size=size, out=out, kernel=Dim.of(3), dilation=Dim.of(1), **dims)


def test_symbolic_unpadded_window_is_whole() -> None:
    size = Dim.symbol("h")
    assert _window(size, (size - 3) // 2 + 1, 0, 0).is_whole


def test_window_that_may_reach_the_padding_is_not_whole() -> None:
    size = Dim.symbol("h")
    assert not _window(size, (size - 2) // 2 + 1, 0, 1).is_whole
    assert not _window(size, (size - 2) // 2 + 1, 1, 0).is_whole
    assert not _window(size, Dim.symbol("unrelated"), 0, 0).is_whole
    assert not _window(Dim.of(6), Dim.of(3), 0, 0).is_whole  # ceil_mode
    assert _window(Dim.of(7), Dim.of(3), 0, 0).is_whole


_TRANSPOSED: list[tuple[Sequence[int], Sequence[int], dict[str, Sequence[int]]]] = [
    ((4,), (3,), {}),
    ((4,), (3,), {"strides": [2], "pads": [1, 0]}),
    ((3, 4), (2, 2), {"strides": [2, 2]}),
    ((3, 4), (4, 3), {"strides": [2, 3], "pads": [1, 1, 1, 0], "output_padding": [1, 2]}),
    ((3, 4), (3, 2), {"dilations": [2, 3], "strides": [1, 2]}),
    ((3, 4), (3, 3), {"dilations": [3, 1], "strides": [2, 2], "pads": [2, 1, 0, 1]}),
    ((2, 3, 2), (3, 2, 3), {"strides": [2, 1, 3]}),
]


@pytest.mark.parametrize(("size", "kernel", "how"), _TRANSPOSED)
@pytest.mark.parametrize(
    ("group", "depth", "filters"), [(1, 2, 3), (2, 2, 3), (3, 1, 1), (2, 2, 1)]
)
def test_conv_transpose(
    size: Sequence[int],
    kernel: Sequence[int],
    how: dict[str, Sequence[int]],
    group: int,
    depth: int,
    filters: int,
) -> None:
    extra = {"output_padding": how["output_padding"]} if "output_padding" in how else {}
    attributes, params = window(kernel, **{k: v for k, v in how.items() if k not in extra})
    x = uniform(2, group * depth, *size)
    w = uniform(group * depth, filters, *kernel, seed=1)
    inputs = [x, w, uniform(group * filters, seed=2)]
    check("ConvTranspose", inputs, {**attributes, **extra, "group": group}, params=params)


def test_conv_transpose_with_negative_pads_is_the_bias_where_nothing_reaches() -> None:
    attributes, params = window((2,), strides=[2])
    x, w, bias = uniform(1, 1, 3), uniform(1, 1, 2, seed=1), uniform(1, seed=2)
    (plain,) = check("ConvTranspose", [x, w, bias], attributes, params=params)
    (result,) = run(
        "ConvTranspose",
        [x, w, bias],
        [(np.float32, (1, 1, 9))],
        attributes={**attributes, "output_shape": [9]},
        params={**params, "pads": [-2, -1]},
    )
    np.testing.assert_allclose(result[0, 0, 2:8], plain[0, 0], rtol=1e-5)
    assert (result[0, 0, [0, 1, 8]] == bias[0]).all()


def test_phases_visit_only_taps_that_can_reach() -> None:
    attributes, params = window((4, 4), strides=[2, 2], pads=[1, 1, 1, 1])
    x, w = uniform(1, 2, 3, 3), uniform(2, 5, 4, 4)
    lowering, _ = lower(
        "ConvTranspose", [x, w], [(np.float32, (1, 5, 6, 6))], attributes=attributes, params=params
    )
    (kernel,) = lowering.items
    assert isinstance(kernel, Kernel)
    assert [axis.extent.const for axis in _reduction(kernel).axes] == [2, 2, 2]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("group", "offset_group"), [(1, 1), (2, 1), (2, 4)])
def test_deform_conv(masked: bool, group: int, offset_group: int) -> None:
    attributes, params = window((2, 3), strides=[1, 2], dilations=[2, 1], pads=[1, 0, 1, 2])
    x, w = uniform(2, 4, 5, 6), uniform(6, 4 // group, 2, 3, seed=1)
    out = (5, 3)
    offset = uniform(2, offset_group * 12, *out, seed=2) * 2.3
    mask = uniform(2, offset_group * 6, *out, seed=3) if masked else None
    known = {**attributes, "group": group, "offset_group": offset_group}
    inputs = [x, w, offset, uniform(6, seed=4), mask]
    check("DeformConv", inputs if masked else inputs[:4], known, params=params)


def test_deform_conv_on_three_axes() -> None:
    attributes, params = window((2, 2, 2))
    x, w = uniform(1, 2, 3, 4, 3), uniform(2, 2, 2, 2, 2, seed=1)
    offset = uniform(1, 24, 2, 3, 2, seed=2) * 1.5
    check("DeformConv", [x, w, offset], attributes, params=params)


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_causal_conv(activation: str, past: bool, length: int) -> None:
    inputs = [uniform(2, 3, length), uniform(3, 1, 4, seed=1), uniform(3, seed=2)]
    state = [uniform(2, 3, 3, seed=3)] if past else []
    check("CausalConvWithState", [*inputs, *state], {"activation": activation}, num_outputs=2)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("per_filter", [False, True])
@pytest.mark.parametrize("group", [1, 2])
def test_conv_integer(dtype: Any, per_filter: bool, group: int) -> None:
    attributes, params = window((3, 2), pads=[1, 0, 0, 1], strides=[2, 1])
    x = integers(2, 4, 6, 5, dtype=np.uint8)
    w = integers(6, 4 // group, 3, 2, dtype=dtype, seed=1)
    zero = integers(6, dtype=dtype, seed=2) if per_filter else np.asarray(3, dtype)
    known = {**attributes, "group": group}
    check("ConvInteger", [x, w, np.asarray(128, np.uint8), zero], known, params=params)
    check("ConvInteger", [x, w], known, params=params)


@pytest.mark.parametrize("per_filter", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_qlinear_conv_is_bit_exact(per_filter: bool, rank: int, bias: bool, group: int) -> None:
    attributes, params = window((3, 3), pads=[1, 1, 1, 1], strides=[1, 2])
    x, w = (
        integers(2, 4, 9, 8, dtype=np.uint8),
        integers(8, 4 // group, 3, 3, dtype=np.int8, seed=1),
    )
    scale = uniform(8, seed=2) ** 2 * 0.01 + 0.001 if per_filter else np.asarray(np.float32(0.0043))
    zero = integers(8, dtype=np.int8, seed=3) if per_filter else np.asarray(1, np.int8)
    if not per_filter:
        scale, zero = scale.reshape((1,) * rank), zero.reshape((1,) * rank)
    inputs = [x, np.asarray(np.float32(0.021)), np.asarray(131, np.uint8), w, scale, zero]
    inputs += [np.asarray(np.float32(0.037)), np.asarray(-5, np.int8)]
    if bias:
        inputs.append(integers(8, dtype=np.int16, seed=4).astype(np.int32))
    check("QLinearConv", inputs, {**attributes, "group": group}, params=params)
