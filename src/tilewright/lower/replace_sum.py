"""Expressions of a kernel at other places, with another sum: for algorithms that sum otherwise.

Input -> Output: an epilogue, its sum, a value for the sum, places of axes -> the epilogue there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.kernel.ir import AxisVar, Expr, Load, Reduce, Store, rebuild, walk


def still_read(name: str, stores: Sequence[Store]) -> bool:
    """Whether any store's value reads a buffer."""
    return any(isinstance(n, Load) and n.buffer == name for s in stores for n in walk(s.value))


def with_sum(root: Expr, total: Reduce, value: Expr, names: Mapping[str, Expr]) -> Expr:
    """The epilogue at another place, with the sum replaced by a value."""
    done: dict[int, Expr] = {}
    inside = {id(node) for node in walk(total)}
    for node in walk(root):
        if node is total:
            done[id(node)] = value
        elif isinstance(node, AxisVar):
            done[id(node)] = names.get(node.name, node)
        elif id(node) in inside and any(id(child) not in done for child in node.children):
            continue
        else:
            done[id(node)] = rebuild(node, [done[id(child)] for child in node.children])
    return done[id(root)]


def rebuilt(root: Expr, names: Mapping[str, Expr]) -> Expr:
    """An expression with axes replaced."""
    done: dict[int, Expr] = {}
    for node in walk(root):
        if isinstance(node, AxisVar):
            done[id(node)] = names.get(node.name, node)
        else:
            done[id(node)] = rebuild(node, [done[id(child)] for child in node.children])
    return done[id(root)]
