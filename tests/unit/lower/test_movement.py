"""Renaming and repeating elements: views, broadcasts, triangles, generators, element types."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.core.dtypes import ALL, Kind
from tilewright.kernel.ir import Kernel
from tilewright.lower.context import Unlowerable, View
from unit.lower.direct import Array, lower, run

SYMBOLIC = pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
_TYPES = [dtype for dtype in ALL if dtype.kind not in (Kind.STRING, Kind.COMPLEX)]


def _x(*shape: int) -> Array:
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


@SYMBOLIC
@pytest.mark.parametrize("dtype", _TYPES, ids=str)
def test_every_element_type_moves_bit_for_bit(dtype: Any, symbolic: bool) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype.numpy)
    moved: list[tuple[str, list[Any], Array, dict[str, Any]]] = [
        ("Transpose", [x], x.T, {}),
        ("Concat", [x, x], np.concatenate([x, x], 1), {"attributes": {"axis": 1}}),
        ("Tile", [x, np.array([1, 2])], np.tile(x, (1, 2)), {}),
        ("Expand", [x, np.array([2, 2, 3])], np.stack([x, x]), {}),
        ("Slice", [x], x[:, ::-1], {"params": {"starts": (0, 2), "steps": (1, -1)}}),
        ("Gather", [x, np.array([1])], x[[1]], {}),
    ]
    for op_type, inputs, expected, how in moved:
        (found,) = run(op_type, inputs, [(x.dtype, expected.shape)], symbolic=symbolic, **how)
        assert found.dtype == x.dtype
        assert found.tobytes() == np.ascontiguousarray(expected).tobytes(), op_type


@pytest.mark.parametrize(
    ("op_type", "attributes", "shape", "result"),
    [
        ("Transpose", {"perm": [0, 2, 1]}, (4, 1, 5), (4, 5, 1)),
        ("Expand", {}, (4, 5), (1, 4, 5)),
        ("Tile", {}, (4, 5), (4, 5)),
        ("Concat", {"axis": 0}, (4, 5), (4, 5)),
        ("Flatten", {}, (4, 5, 2), (4, 10)),
        ("Identity", {}, (3,), (3,)),
    ],
)
def test_memory_that_does_not_change_is_a_view(
    op_type: str, attributes: dict[str, Any], shape: tuple[int, ...], result: tuple[int, ...]
) -> None:
    lowering, _ = lower(op_type, [_x(*shape)], [(np.float32, result)], attributes=attributes)
    assert [type(item) for item in lowering.items] == [View]


@pytest.mark.parametrize("op_type", ["Transpose", "Reshape", "Gather", "Concat"])
def test_strings_and_complex_numbers_are_refused(op_type: str) -> None:
    for x, reason in (
        (np.array([["a", "b"]], object), "strings"),
        (np.zeros((1, 2), np.complex64), "complex numbers"),
    ):
        with pytest.raises(Unlowerable, match=reason):
            lower(op_type, [x, x], [(x.dtype, (2, 1))], attributes={"axis": 0})


@SYMBOLIC
def test_expand_stretches_ones_and_keeps_the_rest(symbolic: bool) -> None:
    x = _x(3, 1, 2)
    expected = np.broadcast_to(x, (2, 3, 4, 2))
    (found,) = run("Expand", [x], [(x.dtype, expected.shape)], symbolic=symbolic)
    np.testing.assert_array_equal(found, expected)


@SYMBOLIC
@pytest.mark.parametrize("sizes", [(2, 0, 3), (0, 0), (1, 2, 3, 4), (2, 0, 1) * 200])
def test_concat_and_split_are_inverse(sizes: tuple[int, ...], symbolic: bool) -> None:
    parts = [_x(2, size, 2) for size in sizes]
    whole = np.concatenate(parts, 1)
    (joined,) = run(
        "Concat", parts, [(whole.dtype, whole.shape)], attributes={"axis": -2}, symbolic=symbolic
    )
    np.testing.assert_array_equal(joined, whole)
    found = run(
        "Split",
        [whole],
        [(part.dtype, part.shape) for part in parts],
        attributes={"axis": 1},
        params={"offsets": [sum(sizes[:k]) for k in range(len(sizes))]},
        symbolic=symbolic,
    )
    for left, right in zip(found, parts, strict=True):
        np.testing.assert_array_equal(left, right)


def test_concat_of_many_parts_copies_each_once() -> None:
    parts = [_x(3, 2)] * 20
    lowering, _ = lower("Concat", parts, [(np.float32, (60, 2))], attributes={"axis": 0})
    (kernel,) = lowering.items
    assert isinstance(kernel, Kernel)
    assert len(kernel.stages) == 20


@SYMBOLIC
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space_are_inverse(mode: str, symbolic: bool) -> None:
    x, how = _x(2, 8, 3, 5), {"attributes": {"blocksize": 2, "mode": mode}, "symbolic": symbolic}
    (space,) = run("DepthToSpace", [x], [(x.dtype, (2, 2, 6, 10))], **how)
    (depth,) = run("SpaceToDepth", [space], [(x.dtype, x.shape)], **how)
    assert not np.array_equal(space.reshape(-1), x.reshape(-1))
    np.testing.assert_array_equal(depth, x)


@SYMBOLIC
@pytest.mark.parametrize("k", [-7, -1, 0, 2, 9])
def test_triangles_and_diagonals(k: int, symbolic: bool) -> None:
    x = _x(2, 3, 5)
    for upper, expected in ((1, np.triu(x, k)), (0, np.tril(x, k))):
        (found,) = run(
            "Trilu",
            [x],
            [(x.dtype, x.shape)],
            attributes={"upper": upper},
            params={"k": (k,)},
            symbolic=symbolic,
        )
        np.testing.assert_array_equal(found, expected)
    (eye,) = run(
        "EyeLike",
        [x[0]],
        [(ml_dtypes.bfloat16, (3, 5))],
        attributes={"k": k},
        symbolic=symbolic,
    )
    np.testing.assert_array_equal(eye.astype(np.float32), np.eye(3, 5, k))


@SYMBOLIC
@pytest.mark.parametrize(
    ("start", "stop", "step", "dtype"),
    [
        (0.0, 1.0, 0.1, np.float32),
        (5, -4, -2, np.int16),
        (3, 3, 1, np.int64),
        (1.0, 9.0, 0.5, ml_dtypes.bfloat16),
    ],
)
def test_range(start: float, stop: float, step: float, dtype: Any, symbolic: bool) -> None:
    scalars = [np.array(value, dtype) for value in (start, stop, step)]
    expected = np.arange(*(part.item() for part in scalars)).astype(dtype)
    (found,) = run("Range", scalars, [(dtype, expected.shape)], symbolic=symbolic)
    np.testing.assert_array_equal(found, expected)


@SYMBOLIC
@pytest.mark.parametrize(
    ("attributes", "expected"),
    [({}, [2, 3, 4]), ({"start": -2}, [3, 4]), ({"start": 1, "end": -1}, [3]), ({"end": 0}, [])],
)
def test_shape_and_size(attributes: dict[str, int], expected: list[int], symbolic: bool) -> None:
    x = _x(2, 3, 4)
    (found,) = run(
        "Shape", [x], [(np.int64, (len(expected),))], attributes=attributes, symbolic=symbolic
    )
    assert found.tolist() == expected
    (size,) = run("Size", [x], [(np.int64, ())], symbolic=symbolic)
    assert size == 24


def test_constants() -> None:
    value = np.array([1, -2], ml_dtypes.int4)
    (found,) = run("Constant", [], [(value.dtype, (2,))], attributes={"value": value})
    assert found.tolist() == [1, -2]
    (found,) = run("Constant", [], [(np.float32, (2,))], attributes={"value_floats": [0.5, 2.0]})
    assert found.dtype == np.float32
    (filled,) = run(
        "ConstantOfShape", [np.array([2])], [(value.dtype, (2,))], attributes={"value": value[1:]}
    )
    assert filled.tolist() == [-2, -2]
