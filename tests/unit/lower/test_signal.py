"""DFT, STFT and Det against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.core.shape import Dim
from tilewright.kernel.ir import Kernel
from tilewright.lower.context import Unlowerable
from tilewright.lower.fourier import Transform, has_matrix
from unit.lower.against_reference import check, uniform
from unit.lower.direct import lower


@pytest.mark.parametrize("inverse", [0, 1])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("axis", [-2, 1])
@pytest.mark.parametrize("length", [None, 5, 6, 11])
def test_dft(inverse: int, parts: int, axis: int, length: int | None) -> None:
    x = uniform(2, 6, 7, parts)
    _check_dft(x, axis, length, {"inverse": inverse})


@pytest.mark.parametrize("length", [None, 1, 4, 9])
def test_one_sided(length: int | None) -> None:
    _check_dft(uniform(2, 6, 7, 1), 1, length, {"onesided": 1})
    _check_dft(uniform(2, 4, 7, 2), 1, length, {"onesided": 1, "inverse": 1})


def _check_dft(x: Any, axis: int, length: int | None, known: dict[str, int]) -> None:
    at = axis % x.ndim
    size = x.shape[at]
    default = 2 * (size - 1) if len(known) == 2 else size
    params = {
        "outer_axis_inner": [
            int(np.prod(x.shape[:at])),
            size,
            int(np.prod(x.shape[at + 1 : -1])),
        ],
        "dft_length": [default if length is None else length],
    }
    given = None if length is None else np.asarray(length)
    # Whether numbers are complex is read off the shape.
    check("DFT", [x, given, np.asarray(axis)], known, params=params, fixed=(0,))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_dft_types(dtype: Any) -> None:
    params = {"outer_axis_inner": [2, 8, 1], "dft_length": [8]}
    check("DFT", [uniform(2, 8, 2, dtype=dtype)], {}, params=params, fixed=(0,))


def test_short_transform_is_one_product_with_a_constant() -> None:
    params = {"outer_axis_inner": [2, 8, 1], "dft_length": [8]}
    lowering, _ = lower("DFT", [uniform(2, 8, 1)], [(np.float32, (2, 8, 2))], params=params)
    assert [array.shape for array in lowering.constants.values()] == [(8, 1, 8, 2)]
    (kernel,) = [item for item in lowering.items if isinstance(item, Kernel)]
    assert kernel.is_pure


def test_long_transform_has_no_matrix() -> None:
    def of(length: int) -> Transform:
        return Transform(length=Dim.of(length), inverse=False, onesided=False, complex_input=True)

    assert has_matrix(of(1024))
    assert not has_matrix(of(4096))


def test_input_of_unknown_kind_is_refused() -> None:
    params = {"outer_axis_inner": [2, 8, 1], "dft_length": [8]}
    with pytest.raises(Unlowerable, match="complex"):
        lower("DFT", [uniform(2, 8, 1)], [(np.float32, (2, 8, 2))], params=params, symbolic=True)


@pytest.mark.parametrize("one_sided", [0, 1])
@pytest.mark.parametrize("window", [False, True])
@pytest.mark.parametrize("step", [1, 3])
def test_stft(one_sided: int, window: bool, step: int) -> None:
    weights = np.abs(uniform(8, seed=1)) if window else None
    length = None if window else np.asarray(8)
    inputs = [uniform(2, 20, 1), np.asarray(step), weights, length]
    params = {"frame_length": [8]}
    check("STFT", inputs, {"onesided": one_sided}, params=params, fixed=(0,))


def test_stft_of_complex_signal() -> None:
    inputs = [uniform(2, 20, 2), np.asarray(4), None, np.asarray(7)]
    params = {"frame_length": [7]}
    check("STFT", inputs, {"onesided": 0}, params=params, fixed=(0,))


@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 7])
@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_det(size: int, batch: tuple[int, ...], dtype: Any) -> None:
    check("Det", [uniform(*batch, size, size, dtype=dtype)])


def test_det_of_singular_and_permuted_matrices() -> None:
    singular = np.ones((5, 5), np.float32)
    permuted = np.eye(5, dtype=np.float32)[[1, 2, 0, 4, 3]]
    zero_first = np.array(uniform(5, 5))
    zero_first[0, 0] = 0
    check("Det", [np.stack([singular, permuted, zero_first])])
