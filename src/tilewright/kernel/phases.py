"""Kernels whose indices divide an axis by a constant, one store for each remainder.

Input -> Output: a ``Kernel`` -> the same kernel with stages whose indices are affine.
    out[w] = f(x[(w + 1) div 2], k[(w + 1) mod 2])
    ->  out[2*v] = f(x[v], k[1]);  out[2*v + 1] = f(x[v + 1], k[0])
Remainders with equally many elements share a stage, and with it what they load.
Requires: the divided values are not negative (transposed convolutions, upsampling).
Guarantees: each element is stored by exactly one stage; other kernels are returned as they are.
Not here: layouts (lower.layout).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from tilewright.core.dtypes import INT64
from tilewright.core.shape import Dim
from tilewright.kernel.affine import Affine, affine
from tilewright.kernel.ir import (
    Axis,
    Call,
    Const,
    Expr,
    Kernel,
    Reduce,
    Stage,
    Store,
    axis_var,
    constant,
    dim_value,
    rebuild,
    reduce_axes,
    substitute,
    walk,
)

_MAX_STAGES = 16


def split_phases(kernel: Kernel) -> Kernel:
    """Splits every axis that is divided inside a sum (see the module's docstring)."""
    if len(kernel.stages) != 1 or kernel.steps is not None:
        return kernel
    stage = kernel.stages[0]
    divisors = _divisors(stage)
    count = 1
    for divisor in divisors.values():
        count *= divisor
    if not divisors or count > _MAX_STAGES or any(axis.ordered for axis in stage.axes):
        return kernel
    stages: list[Stage] = []
    for remainders in product(*(range(divisor) for divisor in divisors.values())):
        chosen = dict(zip(divisors, remainders, strict=True))
        stages.append(_phase(stage, divisors, chosen))
    alike: dict[tuple[Axis, ...], list[Store]] = {}
    for one in stages:
        alike.setdefault(one.axes, []).extend(one.stores)
    together = tuple(Stage(axes, tuple(stores)) for axes, stores in alike.items())
    return replace(kernel, stages=together)


def _divisors(stage: Stage) -> dict[str, int]:
    """Axes that a reduction divides, each with its one divisor."""
    parallel = {axis.name for axis in stage.axes}
    found: dict[str, int] = {}
    for node in walk(*(store.value for store in stage.stores)):
        if not isinstance(node, Reduce):
            continue
        for part in walk(node.body):
            single = _divided_axis(part)
            if single is None or single[0] not in parallel:
                continue
            axis, divisor = single
            if found.setdefault(axis, divisor) != divisor:
                return {}
    return found


def _divided_axis(node: Expr) -> tuple[str, int] | None:
    """The axis and divisor of ``(axis + constant) div constant`` and the like."""
    if not isinstance(node, Call) or node.op not in ("div", "mod") or node.dtype is not INT64:
        return None
    divisor = node.args[1]
    form = affine(node.args[0])
    if not isinstance(divisor, Const) or int(divisor.value) < 2 or form.rest:
        return None
    if len(form.terms) != 1 or not form.offset.is_const:
        return None
    ((axis, factor),) = form.terms.items()
    return (axis, int(divisor.value)) if factor == Dim.of(1) else None


def _phase(stage: Stage, divisors: Mapping[str, int], remainders: Mapping[str, int]) -> Stage:
    axes: list[Axis] = []
    names: dict[str, Expr] = {}
    for axis in stage.axes:
        divisor = divisors.get(axis.name)
        if divisor is None:
            axes.append(axis)
            continue
        fresh = Axis(f"{axis.name}p", (axis.extent - remainders[axis.name]).ceildiv(divisor))
        axes.append(fresh)
        names[axis.name] = fresh.var * divisor + remainders[axis.name]

    def moved(expr: Expr) -> Expr:
        return _simplified(substitute(expr, names))

    stores = tuple(
        Store(
            store.buffer,
            tuple(moved(part) for part in store.index),
            moved(store.value),
            None if store.guard is None else moved(store.guard),
        )
        for store in stage.stores
    )
    return Stage(tuple(axes), stores)


def _simplified(root: Expr) -> Expr:
    """Divisions of sums of multiples of the divisor become affine."""
    done: dict[int, Expr] = {}
    for node in walk(root):
        children = [done[id(child)] for child in node.children]
        if isinstance(node, Reduce):
            done[id(node)] = reduce_axes(node.combiner, node.axes, children[0])
            continue
        fresh = rebuild(node, children)
        done[id(node)] = _quotient(fresh) or fresh
    return done[id(root)]


def _quotient(node: Expr) -> Expr | None:
    if not isinstance(node, Call) or node.op not in ("div", "mod") or node.dtype is not INT64:
        return None
    divisor = node.args[1]
    if not isinstance(divisor, Const) or int(divisor.value) < 2:
        return None
    number = int(divisor.value)
    form = affine(node.args[0])
    multiples = all((factor % number) == Dim.of(0) for factor in form.terms.values())
    if form.rest or not multiples or not form.offset.is_const:
        return None
    if node.op == "mod":
        return constant(form.offset.const % number, INT64)
    terms = {axis: factor // number for axis, factor in form.terms.items()}
    total: Expr = dim_value(form.offset.const // number)
    for axis, factor in Affine(terms).terms.items():
        total = axis_var(axis) * dim_value(factor) + total
    return total
