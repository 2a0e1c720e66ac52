"""Additions that take no instruction of their own.

Input -> Output: a nest -> its additions that are part of something else
    sum(...) + bias                     the sum begins with the bias
    max(min(x * a + b, c), d)           the line is one multiply-add
Guarantees: nobody else needs the sum, and its copies and lanes are those of the whole; only short
sums, whose terms are rounded to the size of the whole a few times; a line is rounded once, and only
where it is of a sum of floats: coordinates and what is quantised are computed as they are written.
Not here: loops (reductions).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.codegen.cpu.traits import num_points
from tilewright.core.dtypes import INT32
from tilewright.kernel.ir import Axis, Call, Const, Expr, Reduce, products, walk
from tilewright.kernel.nest import Nest, evaluated

_MOST_TERMS = 64  # a longer sum hardly feels the addition


@dataclass(frozen=True, slots=True)
class Begun:
    """``whole = total + start``."""

    whole: Call
    total: Reduce
    start: Expr


@dataclass(frozen=True, slots=True)
class Line:
    """``place * slope + height``."""

    place: Expr
    slope: Const
    height: Const


def begun_sums(nest: Nest) -> dict[int, Begun]:
    """By id of the addition: sums of floats, and sums of integers if they are of dot products."""
    nodes = _nodes(nest)
    users = _users(nodes)
    found: dict[int, Begun] = {}
    for node in nodes:
        if not (isinstance(node, Call) and node.op == "add"):
            continue
        for total, start in (node.args, node.args[::-1]):
            if not isinstance(total, Reduce) or total.combiner != "sum" or users[id(total)] > 1:
                continue
            is_alike = nest.depends(start) <= nest.depends(total)
            is_known = is_alike and not any(isinstance(part, Reduce) for part in walk(start))
            # Of integers any sum may: it is exact in any order.
            if is_known and (total.dtype is INT32 or _may_begin(nest, total)):
                found[id(node)] = Begun(node, total, start)
    return found


def _may_begin(nest: Nest, total: Reduce) -> bool:
    """A short sum of products of floats."""
    if not total.dtype.is_float or not products(total.body):
        return False
    return _is_short(nest.reduce_axes[id(total)])


def clamped_lines(nest: Nest) -> dict[int, Line]:
    """By id of the addition: lines of sums that only limits are applied to."""
    nodes = _nodes(nest)
    users, found = _users(nodes), dict[int, Line]()
    for node in nodes:
        if not (isinstance(node, Call) and node.op in ("min", "max") and node.dtype.is_float):
            continue
        inner, limit = node.args
        line = _line(inner)
        if line is None or not isinstance(limit, Const) or users[id(inner)] > 1:
            continue
        if any(isinstance(part, Reduce) and part.dtype.is_float for part in walk(line.place)):
            found[id(inner)] = line
    return found


def _line(expr: Expr) -> Line | None:
    if not (isinstance(expr, Call) and expr.op == "add" and isinstance(expr.args[1], Const)):
        return None
    scaled = expr.args[0]
    if not (isinstance(scaled, Call) and scaled.op == "mul" and isinstance(scaled.args[1], Const)):
        return None
    return Line(scaled.args[0], scaled.args[1], expr.args[1])


def _nodes(nest: Nest) -> list[Expr]:
    return walk(*(root for store in nest.stage.stores for root in evaluated(store)))


def _users(nodes: Sequence[Expr]) -> Counter[int]:
    return Counter(id(child) for node in nodes for child in node.children)


def _is_short(axes: tuple[Axis, ...]) -> bool:
    return all(axis.extent.is_const for axis in axes) and num_points(axes) <= _MOST_TERMS
