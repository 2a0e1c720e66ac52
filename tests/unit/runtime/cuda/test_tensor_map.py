"""Maps for the copy engine: what the driver is told."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.core.shape import Dim
from tilewright.runtime.cuda import tensor_map as module
from tilewright.runtime.cuda.tensor_map import tensor_map
from tilewright.runtime.program import Image, Matrix


class _Names:
    def __getattr__(self, name: str) -> str:
        return name


class _Driver:
    cuuint32_t = cuuint64_t = int
    CUtensorMapInterleave = CUtensorMapSwizzle = _Names()
    CUtensorMapL2promotion = CUtensorMapFloatOOBfill = CUtensorMapDataType = _Names()

    @staticmethod
    def cuTensorMapEncodeTiled(*args: Any) -> tuple[int, Any]:  # noqa: N802
        _, rank, start, extents, strides, box, steps, *_ = args
        assert len(extents) == len(box) == len(steps) == len(strides) + 1 == rank
        return 0, SimpleNamespace(start=start, extents=extents, strides=strides, box=box)

    @staticmethod
    def cuTensorMapEncodeIm2col(*args: Any) -> tuple[int, Any]:  # noqa: N802
        _, rank, _, extents, strides, lower, upper, channels, pixels, steps, *_ = args
        assert len(extents) == len(steps) == len(strides) + 1 == rank
        return 0, SimpleNamespace(
            extents=extents, lower=lower, upper=upper, box=(channels, pixels), steps=steps
        )


@pytest.fixture(autouse=True)
def _driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "bindings", _Driver)


def _matrix(*, mixed: bool) -> Matrix:
    rows, columns, stride = Dim.of(96), Dim.of(256), Dim.of(320)
    return Matrix(
        buffer=0, offset=Dim.of(8), rows=rows, columns=columns, stride=stride, box=64, mixed=mixed
    )


def test_a_plain_matrix() -> None:
    found = tensor_map(_matrix(mixed=False), 4096)
    assert (found.start, found.extents, found.strides) == (4112, [256, 96], [640])
    assert found.box == [64, 64]


def test_rows_of_a_mixed_box_lie_as_the_record_says() -> None:
    found = tensor_map(_matrix(mixed=True), 4096)
    assert found.box[0] == 64
    places = product(*(range(extent) for extent in reversed(found.box[1:])))  # as memory has them
    rows = [
        sum(k * step for k, step in zip(reversed(place), found.strides, strict=True)) // 640
        for place in places
    ]
    expected = [8 * q + 2 * j + e for j in range(4) for q in range(4) for e in range(2)]
    assert rows == [32 * group + row for group in range(2) for row in expected]


def test_windows_end_where_the_last_one_begins() -> None:
    image = Image(buffer=0, shape=(2, 9, 12, 64), first=(-1, 0), last=(7, 10), step=(2, 1), box=128)
    found = tensor_map(image, 4096)
    assert found.extents == [64, 12, 9, 2]
    assert (found.lower, found.upper) == ([0, -1], [-1, -1])
    assert (found.box, found.steps) == ((64, 128), [1, 1, 2, 1])
