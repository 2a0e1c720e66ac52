"""Which rows of one stage a row of another needs, and when rows do not order both."""

from __future__ import annotations

import pytest

from tilewright.core.dtypes import FLOAT32, INT64
from tilewright.core.shape import Dim
from tilewright.kernel.ir import (
    Axis,
    Buffer,
    Expr,
    Stage,
    Store,
    call,
    constant,
    reduce_axes,
)
from tilewright.kernel.rows import Hand, hand, rings

H, W = Axis("h", Dim.of(8)), Axis("w", Dim.of(8))
Y, TAP = Axis("y", Dim.of(4)), Axis("tap", Dim.of(3))
T = Buffer("t", FLOAT32, (Dim.of(1), Dim.of(1), Dim.of(10), Dim.of(8)))
OUT = Buffer("out", FLOAT32, (Dim.of(1), Dim.of(1), Dim.of(4), Dim.of(8)))


def _writer(row: Expr) -> Stage:
    zero = constant(0, INT64)
    return Stage((H, W), (Store("t", (zero, zero, row, W.var), constant(1.0, FLOAT32)),))


def _reader(row: Expr) -> Stage:
    zero = constant(0, INT64)
    value = reduce_axes("sum", (TAP,), T[0, 0, row, W.var])
    return Stage((Y, W), (Store("out", (zero, zero, Y.var, W.var), value),))


def test_a_window() -> None:
    found = hand(T, _writer(H.var + 1), _reader(Y.var * 2 + TAP.var))
    assert found == Hand(writer=H, reader=Y, stride=2, first=-1, last=1)


@pytest.mark.parametrize(
    ("row", "read", "reason"),
    [
        (H.var * 2, Y.var + TAP.var, "its rows are not stored by one axis"),
        (call("div", H.var, H.var), Y.var, "its rows are not stored by one axis"),
        (H.var, TAP.var, "its rows are not loaded along one axis"),
        (H.var, call("div", Y.var, Y.var) + TAP.var, "its rows are not loaded along one axis"),
        (H.var, TAP.var - Y.var, "its rows are not loaded along one axis"),
    ],
)
def test_refusals(row: Expr, read: Expr, reason: str) -> None:
    assert hand(T, _writer(row), _reader(read)) == reason


def test_a_matrix_has_no_rows() -> None:
    matrix = Buffer("t", FLOAT32, (Dim.of(8), Dim.of(8)))
    assert hand(matrix, _writer(H.var), _reader(Y.var)) == "it has no rows"


def test_rings_hold_what_one_band_needs() -> None:
    """From the last stage back: 2 rows need 5 at stride 2, these need 7; then powers of two."""
    links = [
        Hand(writer=H, reader=Y, stride=1, first=-1, last=1),
        Hand(writer=H, reader=Y, stride=2, first=-1, last=1),
        Hand(writer=H, reader=Y, stride=1, first=0, last=0),
    ]
    assert rings(links, 2) == [8, 8, 2]
    assert rings(links, 1) == [8, 4, 2]
