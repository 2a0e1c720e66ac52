"""What may be computed where a store's guard does not hold."""

from __future__ import annotations

import math

from tilewright.core.dtypes import FLOAT32
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Expr, axis_var, dim_value, load, select
from tilewright.kernel.totals import total_parts

H = Dim.symbol("h")
EXTENTS = {"c": Dim.of(32), "t": (H + 3) // 4, "r": Dim.of(4)}
SHAPES = {"x": (Dim.of(24), H), "y": (Dim.of(32), H + 3)}
CHANNEL = axis_var("c")
ROW = axis_var("t") * 4 + axis_var("r")  # up to three rows past the last
ZERO = 0.0


def x(channel: Expr, row: Expr) -> Expr:
    return load("x", FLOAT32, (channel, row))


def is_total(root: Expr) -> bool:
    return total_parts(root, SHAPES, EXTENTS) == [root]


def test_a_condition_on_one_index_does_not_keep_the_other_inside() -> None:
    """Lanes past the last channel are cut off here, rows past the last one by the store."""
    assert not is_total(select(CHANNEL.lt(24), x(CHANNEL, ROW), ZERO))


def test_a_condition_on_all_that_may_lie_outside_does() -> None:
    inside = CHANNEL.lt(24) & ROW.lt(dim_value(H))
    assert is_total(select(inside, x(CHANNEL, ROW), ZERO))
    shifted = (ROW - 1).ge(0) & (ROW - 1).lt(dim_value(H)) & CHANNEL.lt(24)
    assert is_total(select(shifted, x(CHANNEL, ROW - 1), ZERO))
    assert not is_total(select(shifted, x(CHANNEL, ROW - 2), ZERO))
    assert not is_total(select(shifted, x(CHANNEL, ROW), ZERO))


def test_comparisons_of_values_say_nothing_of_indices() -> None:
    value = load("y", FLOAT32, (CHANNEL, ROW))
    assert not is_total(select(value.lt(math.inf), x(CHANNEL, ROW), ZERO))
    assert is_total(select(value.ge(-math.inf), value, math.nan))


def test_the_other_branch_has_no_condition() -> None:
    inside = CHANNEL.lt(24) & ROW.lt(dim_value(H))
    assert not is_total(select(inside, ZERO, x(CHANNEL, ROW)))


def test_loads_that_are_always_inside_need_none() -> None:
    always = load("y", FLOAT32, (CHANNEL, ROW))
    assert is_total(always)
    whole = always + select(CHANNEL.lt(24), x(CHANNEL, ROW), ZERO)
    assert always in total_parts(whole, SHAPES, EXTENTS)
    assert not is_total(whole)


def test_conditions_inside_of_branches_count_for_themselves() -> None:
    inner = select(ROW.lt(dim_value(H)) & CHANNEL.lt(24), x(CHANNEL, ROW), ZERO)
    assert is_total(select(CHANNEL.lt(8), inner, ZERO))
    split = select(ROW.lt(dim_value(H)), x(CHANNEL, ROW), ZERO)  # relies on the outer condition
    assert not is_total(split)
