"""Windows of tensors: odd steps, negative and folded pads, symbolic dims, empty tensors."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.core.errors import OutOfRange
from tilewright.lower.context import Unlowerable, View
from unit.lower.direct import Array, lower, run

SYMBOLIC = pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])


def _x(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@SYMBOLIC
@pytest.mark.parametrize("mode", ["edge", "wrap", "reflect"])
@pytest.mark.parametrize(
    ("shape", "pads"),
    [
        ((4, 5), (1, 2, 3, 4)),
        ((4, 5), (9, 0, 0, 11)),  # folds more than once
        ((1, 3), (2, 5, 3, 0)),  # reflecting a single element repeats it
        ((2, 3), (2, 2, 2, 2)),  # as much as there is
    ],
)
def test_pad_folds_like_numpy(
    mode: str, shape: tuple[int, ...], pads: tuple[int, ...], symbolic: bool
) -> None:
    x = _x(*shape)
    width = [(pads[0], pads[2]), (pads[1], pads[3])]
    expected = np.pad(x, width, mode=mode)  # type: ignore[call-overload]
    (found,) = run(
        "Pad",
        [x],
        [(x.dtype, expected.shape)],
        attributes={"mode": mode},
        params={"pads": pads},
        symbolic=symbolic,
    )
    np.testing.assert_array_equal(found, expected)


@SYMBOLIC
@pytest.mark.parametrize("mode", ["constant", "edge", "wrap", "reflect"])
def test_negative_pads_crop_first(mode: str, symbolic: bool) -> None:
    x = _x(6, 7)
    cropped = x[2:, :-3]
    width = [(0, 3), (2, 0)]
    expected = np.pad(cropped, width, mode=mode)  # type: ignore[call-overload]
    (found,) = run(
        "Pad",
        [x],
        [(x.dtype, expected.shape)],
        attributes={"mode": mode},
        params={"pads": (-2, 2, 3, -3)},
        symbolic=symbolic,
    )
    np.testing.assert_array_equal(found, expected)


@SYMBOLIC
def test_pad_of_nothing_with_a_value(symbolic: bool) -> None:
    x, value = np.zeros((0, 2), np.int8), np.array(7, np.int8)
    (found,) = run(
        "Pad",
        [x, None, value],
        [(x.dtype, (2, 3))],
        attributes={"mode": "constant"},
        params={"pads": (1, 0, 1, 1)},
        symbolic=symbolic,
    )
    np.testing.assert_array_equal(found, np.full((2, 3), 7, np.int8))


@SYMBOLIC
@pytest.mark.parametrize("mode", ["edge", "wrap", "reflect"])
def test_folding_an_empty_axis_reads_nothing(mode: str, symbolic: bool) -> None:
    x = np.zeros((0,), np.float32)
    (found,) = run(
        "Pad",
        [x],
        [(x.dtype, (3,))],
        attributes={"mode": mode},
        params={"pads": (1, 2)},
        symbolic=symbolic,
    )
    assert found.tolist() == [0.0, 0.0, 0.0]


@SYMBOLIC
@pytest.mark.parametrize(
    ("starts", "steps", "expected"),
    [
        ((0, 6), (2, -3), np.s_[::2, 6::-3]),
        ((4, 1), (-1, 2), np.s_[4::-1, 1::2]),
        ((5, 0), (1, 1), np.s_[5:, :]),
    ],
)
def test_slice(
    starts: tuple[int, ...], steps: tuple[int, ...], expected: tuple[slice, ...], symbolic: bool
) -> None:
    x = _x(5, 7)
    wanted = x[expected]
    (found,) = run(
        "Slice",
        [x],
        [(x.dtype, wanted.shape)],
        params={"starts": starts, "steps": steps},
        symbolic=symbolic,
    )
    np.testing.assert_array_equal(found, wanted)


def test_a_slice_of_everything_is_a_view() -> None:
    lowering, _ = lower(
        "Slice",
        [_x(2, 3)],
        [(np.float32, (2, 3))],
        params={"starts": (0, 0), "steps": (1, 1)},
    )
    assert [type(item) for item in lowering.items] == [View]


@SYMBOLIC
def test_center_crop_pad_puts_the_odd_element_at_the_end(symbolic: bool) -> None:
    x = np.arange(1, 6, dtype=np.int32)
    expectations = ([0, 1, 2, 3, 4, 5, 0, 0], [2, 3], [1, 2, 3, 4, 5, 0], [2, 3, 4])
    for expected in expectations:
        (found,) = run("CenterCropPad", [x], [(x.dtype, (len(expected),))], symbolic=symbolic)
        assert found.tolist() == expected


@SYMBOLIC
def test_reverse_sequence_refuses_a_length_beyond_the_axis(symbolic: bool) -> None:
    x, lengths = _x(4, 2), np.array([4, 5], np.int64)
    with pytest.raises(OutOfRange):
        run("ReverseSequence", [x, lengths], [(x.dtype, x.shape)], symbolic=symbolic)


def test_an_unknown_pad_mode_is_refused() -> None:
    with pytest.raises(Unlowerable, match="pad mode mirror"):
        lower(
            "Pad",
            [_x(2)],
            [(np.float32, (3,))],
            attributes={"mode": "mirror"},
            params={"pads": (1, 0)},
        )
