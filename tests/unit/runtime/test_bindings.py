"""Sizes from data: the right ones, and a refusal of hostile ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.core.errors import OutOfRange, ShapeMismatch, UserError
from tilewright.runtime.bindings import BINDINGS, run

_BIG = 2**41


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("require_equal", ((3,), (3,), "x"), ()),
        ("require_at_most", ((3,), (3,), "x"), ()),
        ("require_broadcast", ((1,), (7,)), ()),
        ("require_same_count", ((2, 6), (3, 4)), ()),
        ("require_no_copies", ((0, 5), (0, 2)), ()),
        ("broadcast", ((1,), (7,)), (7,)),
        ("broadcast", ((0,), (1,)), (0,)),
        ("reshape", (np.array([0, -1]), (2, 3, 4), 0), (2, 12)),
        ("reshape", (np.array([0, 3]), (3, 0), 1), (0, 3)),
        ("reshape", (np.array([0, -1]), (0, 4), 0), (0, 4)),
        ("reshape", (np.array([-1, 0, 2]), (0, 0, 6), 0), (0, 0, 2)),
        ("expand", (np.array([3, 1]), (2, 1, 5)), (2, 3, 5)),
        ("tile", (np.array([2, 0]), (3, 4)), (6, 0)),
        ("squeeze", (np.array([-1]), (3, 1)), (3,)),
        ("unsqueeze", (np.array([0, -1]), (3,)), (1, 3, 1)),
        ("sizes", (np.array([2, 3]), 2), (2, 3)),
        ("constant_of_shape", (np.array([], np.int64), 0), ()),
        ("integer", (np.array(-3),), (-3,)),
        ("positive", (np.array([2]),), (2,)),
        ("slice", ([1], [-1], [1], None, (4, 5), [1]), (1, 1, 3)),
        ("slice", ([9, -1], [-9, 0], [1, 0], [-2, -1], (4, 5), [0, 1]), (3, 4, -1, -2, 3, 3)),
        ("split", (np.array([1, 0, 3]), (4,), 3), (0, 1, 1, 1, 0, 3)),
        ("pad", (np.array([1, 2]), np.array([-1]), (4, 5)), (0, 1, 0, 2)),
        ("pad", ([-1, 0, 0, -1], None, (4, 5)), (-1, 0, 0, -1)),
        ("topk", (np.array([0]), (4,)), (0,)),
        ("onehot", (np.array([3.7], np.float32),), (3,)),
        ("reduce_axes", (np.array([-1]), 3, False), (0, 0, 1)),
        ("reduce_axes", (np.array([], np.int64), 2, False), (1, 1)),
        ("reduce_axes", (None, 2, True), (0, 0)),
        ("reduce_shape", (np.array([1]), 3, False, (4, 5, 6)), (4, 6)),
        ("axis_split", (np.array(-2), (2, 3, 4, 5)), (6, 4, 5)),
        ("dft", (np.array(1), None, (1, 10, 3), False, True), (1, 10, 3, 10, 1, 6, 3)),
        ("dft", (-2, np.array(4), (1, 10), True, False), (1, 10, 1, 4, 1, 4)),
        ("range", (np.array(10), np.array(4), np.array(-4)), (2,)),
        ("range", (0, 2**62, 2**61), (2,)),
        ("range", (np.float32(1), np.float32(5), np.float32(2)), (2,)),
        ("range", (5, 1, 1), (0,)),
        ("nonzero_count", (np.array([[0.0, np.nan], [-0.0, 2]]),), (2,)),
        ("tensor_rank", (np.zeros((2, 3)),), (2,)),
        ("compress_count", (np.array([True, False, True]), (4,)), (2,)),
        ("resize_sizes", ([9, 9], (1, 2, 4), [1, 2], "not_larger"), (5, 9)),
        ("resize_sizes", ([9, 9], (1, 2, 4), [1, 2], "not_smaller"), (9, 18)),
        ("resize_scales", (np.array([0.7], np.float32), (10,), [0]), (7,)),
    ],
)
def test_sizes(name: str, arguments: tuple[Any, ...], expected: tuple[int, ...]) -> None:
    found = run(name, *arguments)
    assert found == expected
    assert all(type(size) is int for size in found)


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("require_equal", ((3,), (4,), "x"), ShapeMismatch),
        ("require_at_most", ((4,), (3,), "x"), ShapeMismatch),
        ("require_broadcast", ((2,), (7,)), ShapeMismatch),
        ("require_broadcast", ((7,), (1,)), ShapeMismatch),
        ("require_same_count", ((2, 6), (3, 5)), ShapeMismatch),
        ("require_same_count", ((2, 6), (-3, -4)), ShapeMismatch),
        ("require_no_copies", ((1, 5), (1, 0)), ShapeMismatch),
        ("broadcast", ((2,), (3,)), ShapeMismatch),
        ("reshape", (np.array([-1, -1]), (4,), 0), ShapeMismatch),
        ("reshape", (np.array([-1, 3]), (4,), 0), ShapeMismatch),
        ("reshape", (np.array([-2, -2]), (4,), 0), ShapeMismatch),
        ("reshape", (np.array([2, 0]), (2,), 0), ShapeMismatch),
        ("reshape", (np.array([0, -1]), (0, 4), 1), ShapeMismatch),
        ("expand", (np.array([3]), (2,)), ShapeMismatch),
        ("expand", (np.array([-1]), (1,)), ShapeMismatch),
        ("expand", (np.array([_BIG]), (1,)), ShapeMismatch),
        ("tile", (np.array([2]), (3, 4)), ShapeMismatch),
        ("tile", (np.array([-1]), (3,)), ShapeMismatch),
        ("tile", (np.array([2**30]), (2**30,)), ShapeMismatch),
        ("squeeze", (np.array([0]), (3, 1)), ShapeMismatch),
        ("squeeze", (np.array([2]), (3, 1)), OutOfRange),
        ("unsqueeze", (np.array([0, 0]), (3,)), ShapeMismatch),
        ("unsqueeze", (np.array([3]), (3,)), OutOfRange),
        ("sizes", (np.array([2, 3]), 3), ShapeMismatch),
        ("sizes", (np.array([-2]), 1), ShapeMismatch),
        ("constant_of_shape", (np.array([2**62, 4]), 2), ShapeMismatch),
        ("positive", (np.array(0),), OutOfRange),
        ("integer", (np.array(0.5),), OutOfRange),
        ("integer", (np.array(np.inf),), OutOfRange),
        ("integer", (np.array([1, 2]),), ShapeMismatch),
        ("slice", ([0], [1], [2], None, (4, 5), [0]), OutOfRange),
        ("slice", ([0], [1], [0], [0], (4, 5), [0]), OutOfRange),
        ("slice", ([0, 0], [1], None, None, (4, 5), [0]), ShapeMismatch),
        ("slice", ([0, 0], [1, 1], [0, -2], None, (4, 5), [0]), ShapeMismatch),
        ("split", (np.array([1, 2]), (4,), 2), ShapeMismatch),
        ("split", (np.array([-1, 5]), (4,), 2), ShapeMismatch),
        ("split", (np.array([4]), (4,), 2), ShapeMismatch),
        ("pad", (np.array([-3, -2]), None, (4,)), ShapeMismatch),
        ("pad", (np.array([_BIG, 0]), None, (4,)), ShapeMismatch),
        ("pad", (np.array([1]), None, (4,)), ShapeMismatch),
        ("topk", (np.array([5]), (4,)), OutOfRange),
        ("topk", (np.array([-1]), (4,)), OutOfRange),
        ("onehot", (np.array(np.nan),), OutOfRange),
        ("onehot", (np.array(-1),), ShapeMismatch),
        ("reduce_axes", (np.array([3]), 3, False), OutOfRange),
        ("reduce_axes", (np.array([0, -3]), 3, False), ShapeMismatch),
        ("axis_split", (np.array(2), (3, 4)), OutOfRange),
        ("dft", (np.array(2), None, (3, 4), False, False), OutOfRange),
        ("dft", (np.array(0), np.array(-4), (3, 4), False, False), ShapeMismatch),
        ("range", (0, 5, 0), OutOfRange),
        ("range", (0.0, np.inf, 1.0), OutOfRange),
        ("range", (0.0, 1e300, 1e-300), ShapeMismatch),
        ("range", (0, 2**62, 1), ShapeMismatch),
        ("range", ([0, 1], 5, 1), ShapeMismatch),
        ("compress_count", (np.ones(5, bool), (4,)), ShapeMismatch),
        ("resize_sizes", ([9], (1, 2), [0, 1], "stretch"), ShapeMismatch),
        ("resize_sizes", ([-9], (1, 2), [1], "stretch"), ShapeMismatch),
        ("resize_sizes", ([9], (1, 0), [1], "not_larger"), ShapeMismatch),
        ("resize_scales", (np.array([-1.0]), (4,), [0]), OutOfRange),
        ("resize_scales", (np.array([np.nan]), (4,), [0]), OutOfRange),
        ("resize_scales", (np.array([1e30]), (4,), [0]), ShapeMismatch),
        ("reshape", (np.zeros(5000, np.int64), (4,), 0), ShapeMismatch),
        ("no_such_binding", (), ShapeMismatch),
    ],
)
def test_hostile_values_are_refused(
    name: str, arguments: tuple[Any, ...], error: type[UserError]
) -> None:
    with pytest.raises(error):
        run(name, *arguments)


def test_garbage_gives_integers_or_a_user_error() -> None:
    garbage = (None, np.array([np.nan]), np.array([-1, 2**63 - 1]), "text", (0,))
    for function in BINDINGS.values():
        count = function.__code__.co_argcount
        for value in garbage:
            try:
                found = function(*[value] * count)
            except UserError:
                continue
            assert all(isinstance(size, int) for size in found)
