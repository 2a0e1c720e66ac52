"""Reads and rewrites expressions.

Input -> Output: expressions -> their parts, or the same with some replaced.
Guarantees: a shared sub-expression is visited once; results are re-simplified and interned.
Not here: rewriting whole kernels (kernel.nest, kernel.canonical).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.core.errors import InternalError
from tilewright.kernel.expr import (
    AxisVar,
    Call,
    Cast,
    Expr,
    Load,
    Reduce,
    call,
    cast,
    fresh_name,
    load,
    reduce_axes,
)


def walk(*roots: Expr) -> list[Expr]:
    """Every distinct sub-expression, operands before users."""
    seen: dict[int, Expr] = {}
    stack = list(reversed(roots))
    while stack:
        node = stack[-1]
        missing = [child for child in node.children if id(child) not in seen]
        if missing:
            stack += reversed(missing)
        else:
            seen[id(node)] = stack.pop()
    return list(seen.values())


def products(body: Expr) -> tuple[Call, ...]:
    """The products that an expression is the sum of; none where it has other terms."""
    if not isinstance(body, Call):
        return ()
    if body.op == "mul":
        return (body,)
    if body.op != "add":
        return ()
    left, right = (products(arg) for arg in body.args)
    return (*left, *right) if left and right else ()


def loaded(*roots: Expr) -> list[str]:
    """Names of the buffers that expressions load, in order of appearance."""
    return list(dict.fromkeys(node.buffer for node in walk(*roots) if isinstance(node, Load)))


def rebuild(node: Expr, children: Sequence[Expr]) -> Expr:
    """The same node over other operands (re-simplified)."""
    if all(new is old for new, old in zip(children, node.children, strict=True)):
        return node
    match node:
        case Load():
            return load(node.buffer, node.dtype, children)
        case Call():
            return call(node.op, *children)
        case Cast():
            return cast(children[0], node.dtype, saturate=node.saturate, bits=node.bits)
        case Reduce():
            return reduce_axes(node.combiner, node.axes, children[0])
    raise InternalError(f"a {type(node).__name__} has no operands")


def transform(root: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Rewrites bottom-up: ``rule`` sees each node with rewritten operands; None keeps it."""
    done: dict[int, Expr] = {}
    for node in walk(root):
        fresh = rebuild(node, [done[id(child)] for child in node.children])
        done[id(node)] = rule(fresh) or fresh
    return done[id(root)]


def substitute(root: Expr, axes: Mapping[str, Expr]) -> Expr:
    """Replaces axis indices; bound reduction axes are renamed first, so nothing is captured."""
    if all(isinstance(new, AxisVar) and new.name == name for name, new in axes.items()):
        return root
    done: dict[int, Expr] = {}
    for node in walk(root):
        if not node.free_axes & axes.keys() and not isinstance(node, Reduce):
            done[id(node)] = node
        elif isinstance(node, AxisVar):
            done[id(node)] = axes[node.name]
        elif isinstance(node, Reduce) and node.free_axes & axes.keys():
            fresh = tuple(replace(axis, name=fresh_name()) for axis in node.axes)
            names = {old.name: new.var for old, new in zip(node.axes, fresh, strict=True)}
            done[id(node)] = reduce_axes(
                node.combiner, fresh, substitute(node.body, {**axes, **names})
            )
        else:
            done[id(node)] = rebuild(node, [done[id(child)] for child in node.children])
    return done[id(root)]
