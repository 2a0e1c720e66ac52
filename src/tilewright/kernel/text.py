"""Kernels as text for people, golden files and fingerprints.

Input -> Output: a ``Kernel`` -> lines such as
    out[i0, i1] = sum(r0 < k: a[i0, r0] * b[r0, i1])
Guarantees: equal text means equal meaning (types, extents and order are all shown).
Not here: renaming to canonical names (kernel.canonical).
"""

from __future__ import annotations

import math

from tilewright.core.dtypes import BOOL, FLOAT32, INT64
from tilewright.core.errors import InternalError
from tilewright.core.shape import Dim, shape_text
from tilewright.kernel.ir import (
    Axis,
    AxisVar,
    Buffer,
    Call,
    Cast,
    Const,
    DimValue,
    Expr,
    Kernel,
    Load,
    Reduce,
    Stage,
    walk,
)

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}
# A shared sub-expression of at least this many nodes gets a name.
_SHARED_NODES = 4


def print_kernel(kernel: Kernel) -> str:
    """Renders a kernel; shared sub-expressions become ``let``s."""
    lines = [f"kernel {kernel.name}"]
    lines.extend(f"  input {_declare(buffer)}" for buffer in kernel.inputs)
    lines.extend(f"  output {_declare(buffer)}" for buffer in kernel.outputs)
    lines.extend(f"  temporary {_declare(buffer)}" for buffer in kernel.temporaries)
    indent = "  "
    steps: tuple[Axis, ...] = ()
    if kernel.steps is not None:
        lines.append(f"  for {_axis(kernel.steps)} in steps:")
        indent, steps = "    ", (kernel.steps,)
    for stage in kernel.stages:
        lines.extend(indent + line for line in print_stage(stage, steps))
    return "\n".join(lines) + "\n"


def print_stage(stage: Stage, outer: tuple[Axis, ...] = ()) -> list[str]:
    """The lines of one loop nest; ``outer`` are axes around it."""
    printer = _Printer(stage.roots)
    visible = frozenset(axis.name for axis in (*outer, *stage.axes))
    lets, names = printer.lets(printer.roots, visible, {})
    lines = [f"let {let}" for let in lets]
    for store in stage.stores:
        index = ", ".join(printer.text(part, visible, names) for part in store.index)
        value = printer.text(store.value, visible, names)
        guard = ""
        if store.guard is not None:
            guard = f" if {printer.text(store.guard, visible, names)}"
        lines.append(f"{store.buffer}[{index}] = {_bare(value)}{guard}")
    if stage.axes:
        head = f"for {', '.join(_axis(axis) for axis in stage.axes)}:"
        return [head, *(f"  {line}" for line in lines)]
    return lines


def print_expr(expr: Expr) -> str:
    """One expression; for messages."""
    printer = _Printer([expr])
    lets, names = printer.lets([expr], expr.free_axes, {})
    return "; ".join((*lets, _bare(printer.text(expr, expr.free_axes, names))))


def _declare(buffer: Buffer) -> str:
    return f"{buffer.name}: {buffer.dtype}{shape_text(buffer.shape)}"


def _axis(axis: Axis) -> str:
    return f"{axis.name} < {axis.extent}{' in order' if axis.ordered else ''}"


def _bare(text: str) -> str:
    """Drops parentheses around the whole text."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if not depth and position < len(text) - 1:
            return text
    return text[1:-1]


class _Printer:
    """Prints the expressions of one stage, naming what they share."""

    def __init__(self, roots: list[Expr]) -> None:
        self.roots, self.users, self.count = roots, dict[int, int](), 0
        self.sizes: dict[int, int] = {}
        for node in walk(*roots):
            inner = sum(self.sizes[id(child)] for child in node.children)
            self.sizes[id(node)] = min(1 + inner, _SHARED_NODES)
            for child in node.children:
                self.users[id(child)] = self.users.get(id(child), 0) + 1
        for root in roots:
            self.users[id(root)] = self.users.get(id(root), 0) + 1

    def lets(
        self, roots: list[Expr], visible: frozenset[str], outer: dict[int, str]
    ) -> tuple[list[str], dict[int, str]]:
        """Names what is shared and can be computed with the visible axes; operands first."""
        names, lines = dict(outer), list[str]()
        for node in walk(*roots):
            shared = self.users[id(node)] > 1 and self.sizes[id(node)] >= _SHARED_NODES
            if shared and id(node) not in names and node.free_axes <= visible:
                text = self.text(node, visible, names)
                names[id(node)] = f"%{self.count}"
                self.count += 1
                lines.append(f"{names[id(node)]} = {_bare(text)}")
        return lines, names

    def text(self, root: Expr, visible: frozenset[str], names: dict[int, str]) -> str:
        """Iterative, operands before users, as expressions may be thousands deep."""
        texts: dict[int, str] = {}
        stack = [root]
        while stack:
            node = stack[-1]
            if id(node) in texts:
                stack.pop()
            elif id(node) in names:
                texts[id(node)] = names[id(node)]
            elif isinstance(node, Reduce):
                texts[id(node)] = self.reduction(node, visible, names)
            else:
                missing = [child for child in node.children if id(child) not in texts]
                if missing:
                    stack.extend(missing)
                else:
                    texts[id(node)] = _node(node, [texts[id(child)] for child in node.children])
        return texts[id(root)]

    def reduction(self, node: Reduce, visible: frozenset[str], names: dict[int, str]) -> str:
        within = visible | {axis.name for axis in node.axes}
        lets, inner = self.lets([node.body], within, names)
        body = _bare(self.text(node.body, within, inner))
        axes = ", ".join(_axis(axis) for axis in node.axes)
        return f"{node.combiner}({axes}: {'; '.join((*lets, body))})"


def _node(node: Expr, parts: list[str]) -> str:
    if isinstance(node, Const):
        return _constant(node)
    if isinstance(node, AxisVar):
        return node.name
    if isinstance(node, DimValue):
        return _dim(node.dim)
    if isinstance(node, Load):
        return f"{node.buffer}[{', '.join(_bare(part) for part in parts)}]"
    if isinstance(node, Cast):
        how = "bits " if node.bits else "" if node.saturate else "unsaturated "
        return f"{node.dtype}({how}{_bare(parts[0])})"
    if isinstance(node, Call):
        if node.op in _INFIX:
            return f"({parts[0]} {_INFIX[node.op]} {parts[1]})"
        return f"{node.op}({', '.join(_bare(part) for part in parts)})"
    raise InternalError(f"cannot print a {type(node).__name__}")


def _dim(dim: Dim) -> str:
    return f"{{{dim}}}"


def _constant(node: Const) -> str:
    """int64, bool and float32 constants are plain; other types are named."""
    if node.dtype is BOOL:
        return "true" if node.value else "false"
    if not node.dtype.is_float:
        return str(node.value) if node.dtype is INT64 else f"{node.dtype}({node.value})"
    number = float(node.value)
    text = repr(number)
    if math.isnan(number):
        text = "nan" if math.copysign(1, number) > 0 else "-nan"
    return text if node.dtype is FLOAT32 else f"{node.dtype}({text})"
