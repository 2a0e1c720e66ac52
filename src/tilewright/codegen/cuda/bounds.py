"""Which index arithmetic fits into 32 bits.

Input -> Output: int64 expressions over axes of known extents -> (lowest, highest), or None.
Guarantees: never too narrow; what depends on data or on symbolic sizes is None.
Why: a GPU has no 64-bit integer units; an index in 64 bits costs several times as much.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.core.dtypes import INT64
from tilewright.core.shape import Dim
from tilewright.kernel.affine import Affine
from tilewright.kernel.ir import AxisVar, Call, Const, DimValue, Expr, walk

Interval = tuple[int, int]
_LIMIT = 2**31 - 1


class Bounds:
    """Intervals of index expressions.

    Args:
        extents: of every axis that may appear, merged ones included.
    """

    def __init__(self, extents: Mapping[str, Dim]) -> None:
        self._extents = extents
        self._known: dict[int, Interval | None] = {}

    def of(self, root: Expr) -> Interval | None:
        """The interval of an expression, where it is known."""
        if id(root) not in self._known:
            for node in walk(root):
                if id(node) not in self._known:
                    self._known[id(node)] = self._node(node)
        return self._known[id(root)]

    def axis(self, name: str) -> Interval | None:
        """The interval of an axis' index."""
        extent = self._extents.get(name)
        return (0, max(0, extent.const - 1)) if extent is not None and extent.is_const else None

    def is_narrow(self, root: Expr) -> bool:
        """Whether an int64 value surely fits into 32 bits."""
        return root.dtype is INT64 and fits(self.of(root))

    def form_is_narrow(self, form: Affine) -> bool:
        """Whether an access' address and everything on the way to it fit."""
        if not form.offset.is_const:
            return False
        reach = abs(form.offset.const)
        parts = [(self.axis(name), factor) for name, factor in form.terms.items()]
        parts += [(self.of(expr), factor) for expr, factor in form.rest]
        for interval, factor in parts:
            if interval is None or not factor.is_const:
                return False
            reach += abs(factor.const) * max(map(abs, interval))
        return reach <= _LIMIT

    def _node(self, node: Expr) -> Interval | None:
        if node.dtype is not INT64:
            return None
        match node:
            case Const():
                return int(node.value), int(node.value)
            case DimValue():
                return (node.dim.const, node.dim.const) if node.dim.is_const else None
            case AxisVar():
                return self.axis(node.name)
            case Call():
                parts = [self._known[id(arg)] for arg in node.args if arg.dtype is INT64]
                known = [part for part in parts if part is not None]
                return _call(node.op, known) if len(known) == len(parts) else None
        return None


def fits(interval: Interval | None) -> bool:
    """Whether an interval is known and within 32 bits."""
    return interval is not None and interval[0] >= -_LIMIT and interval[1] <= _LIMIT


def _call(op: str, parts: list[Interval]) -> Interval | None:
    first, last = parts[0], parts[-1]
    match op:
        case "add":
            return first[0] + last[0], first[1] + last[1]
        case "sub":
            return first[0] - last[1], first[1] - last[0]
        case "neg":
            return -first[1], -first[0]
        case "mul":
            corners = [a * b for a in first for b in last]
            return min(corners), max(corners)
        case "min":
            return min(first[0], last[0]), min(first[1], last[1])
        case "max":
            return max(first[0], last[0]), max(first[1], last[1])
        case "select" | "blend":
            return min(first[0], last[0]), max(first[1], last[1])
    if op in ("div", "mod") and last[0] == last[1] and last[0] > 0:
        divisor = last[0]
        if op == "mod":
            return (0, min(first[1], divisor - 1)) if first[0] >= 0 else (0, divisor - 1)
        return _truncated(first[0], divisor), _truncated(first[1], divisor)
    return None


def _truncated(value: int, divisor: int) -> int:
    return value // divisor if value >= 0 else -(-value // divisor)
