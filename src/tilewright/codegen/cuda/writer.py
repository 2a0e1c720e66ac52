"""Expressions to C++ statements.

Input -> Output: roots of a stage -> lines, and the text of each root's value.
Guarantees: a shared sub-expression is computed once a scope; the branches of a ``select`` are
computed only where they are chosen; indices are 32 bits wide where that is proven (bounds).
Requires: ``position`` holds the index of every axis that is in scope.
Not here: which thread computes what (tactics), operations (scalar).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tilewright.codegen.cuda import exact, scalar
from tilewright.codegen.cuda.bounds import Bounds
from tilewright.codegen.cuda.layout import Layout
from tilewright.core.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT8_E4M3FN,
    FLOAT16,
    FLOAT32,
    INT8,
    INT64,
    UINT8,
)
from tilewright.core.errors import InternalError
from tilewright.core.shape import Dim, product
from tilewright.kernel.affine import Affine
from tilewright.kernel.ir import (
    Axis,
    AxisVar,
    Call,
    Cast,
    Const,
    DimValue,
    Expr,
    Kernel,
    Load,
    Reduce,
    Store,
    identity_of,
    walk,
)
from tilewright.kernel.nest import Nest

_LONG_SUM = 512  # a longer sum of floats is kept in parts, which keeps its rounding small
_PART = 128
# Types that do not show the last bits of functions.
_COARSE = (FLOAT16, BFLOAT16, FLOAT8_E4M3FN, INT8, UINT8)


class Writer:
    """The statements of one function.

    Attributes:
        position: index of each axis in scope, as text.
        lines: what is written so far.
    """

    def __init__(self, kernel: Kernel, nest: Nest, layout: Layout) -> None:
        self.kernel, self.nest, self.layout = kernel, nest, layout
        self.types = {buffer.name: buffer.dtype for buffer in kernel.buffers}
        self.stored = {store.buffer for store in nest.stage.stores}
        self.rough = all(self.types[name] in _COARSE for name in self.stored)
        # Quantised values are stated with every operation rounded by itself.
        self.exact = exact.stores_bytes([self.types[name] for name in self.stored])
        self.bounds = Bounds(extents_of(kernel, nest))
        self.position: dict[str, str] = {}
        self.runs: list[tuple[str, list[tuple[str, Dim, str]]]] = []  # decoded numbers
        if kernel.steps is not None:
            self.position[kernel.steps.name] = "step"
        self.lines: list[str] = []
        self._scopes: list[dict[int, str]] = [{}]
        self._unconditional: dict[int, dict[int, Expr]] = {}
        self._indent, self._names = 1, 0

    # --- statements -------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Writes a statement."""
        self.lines.append("  " * self._indent + text)

    def name(self, prefix: str = "v") -> str:
        """A fresh name."""
        self._names += 1
        return f"{prefix}{self._names}"

    @contextmanager
    def block(self, head: str = "", tail: str = "") -> Iterator[None]:
        """A block with a scope of its own."""
        self.line(f"{head} {{".lstrip())
        self._indent += 1
        self._scopes.append({})
        yield
        self._scopes.pop()
        self._indent -= 1
        self.line("}" + tail)

    @contextmanager
    def positions(self) -> Iterator[None]:
        """Positions that are set inside are forgotten after it."""
        kept = dict(self.position), self.runs
        yield
        self.position, self.runs = kept

    def dim(self, dim: Dim) -> str:
        """A size."""
        if dim.is_const:
            return (
                scalar.literal(dim.const, INT64) if abs(dim.const) > 2**31 - 1 else str(dim.const)
            )
        return self.layout.dim(dim)

    def index_type(self, extent: Dim) -> str:
        """The type of a counter up to an extent."""
        return "int" if extent.is_const and extent.const < 2**31 else "s64"

    @contextmanager
    def loop(
        self, axis: Axis, start: str = "0", step: str = "1", counter: str | None = None
    ) -> Iterator[str]:
        """A loop over an axis, whose position is known inside."""
        name = counter or self.name("i")
        kind = self.index_type(axis.extent)
        with (
            self.block(
                f"for ({kind} {name} = {start}; {name} < {self.dim(axis.extent)}; {name} += {step})"
            ),
            self.at(axis.name, name),
        ):
            yield name

    @contextmanager
    def at(self, axis: str, position: str) -> Iterator[None]:
        """The position of an axis inside of a block."""
        self.position[axis] = position
        yield
        del self.position[axis]

    def define(self, kind: str, text: str) -> str:
        """A new variable."""
        name = self.name()
        self.line(f"const {kind} {name} = {text};")
        return name

    def decode(self, number: str, axes: list[tuple[str, Dim]]) -> None:
        """Sets the positions of axes (the last is the fastest) from a number of a point."""
        kind = self.index_type(product(extent for _, extent in axes))
        left = number
        for place, (axis, extent) in reversed(list(enumerate(axes))):
            if place == 0:
                self.position[axis] = left
            elif extent == Dim.of(1):
                self.position[axis] = "0"
            else:
                size = self.dim(extent)
                unsigned = "(u32)" if kind == "int" else "(u64)"
                self.position[axis] = self.define(
                    kind, f"({kind})({unsigned}{left} % {unsigned}{size})"
                )
                if any(e != Dim.of(1) for _, e in axes[:place]):
                    left = self.define(kind, f"({kind})({unsigned}{left} / {unsigned}{size})")
                else:
                    left = "0"
        run = [(axis, extent, self.position[axis]) for axis, extent in axes]
        self.runs = [*self.runs, (number, run)]

    # --- values -----------------------------------------------------------------------------------

    def value(self, root: Expr) -> str:
        """The text of a value; iterative, since expressions may be thousands deep."""
        stack = [root]
        while stack:
            node = stack[-1]
            if self._known(node) is not None:
                stack.pop()
                continue
            missing = [part for part in self._operands(node) if self._known(part) is None]
            if missing:
                stack.extend(reversed(missing))
                continue
            self._scopes[-1][id(node)] = self._compute(node)
            stack.pop()
        return self._text(root)

    def known_as(self, node: Expr, text: str) -> None:
        """A value that was computed by other means."""
        self._scopes[-1][id(node)] = text

    def kind(self, node: Expr) -> str:
        """The C type of a value."""
        return "int" if self.bounds.is_narrow(node) else scalar.c_type(node.dtype)

    def _known(self, node: Expr) -> str | None:
        if isinstance(node, Const):
            if node.dtype is INT64 and abs(int(node.value)) < 2**31:
                return f"({node.value})" if int(node.value) < 0 else str(node.value)
            return scalar.constant(node)
        if isinstance(node, AxisVar):
            return self.position[node.name]
        if isinstance(node, DimValue):
            return self.dim(node.dim)
        for scope in reversed(self._scopes):
            found = scope.get(id(node))
            if found is not None:
                return found
        return None

    def _text(self, node: Expr) -> str:
        found = self._known(node)
        if found is None:
            raise InternalError("a value is used before it is computed")
        return found

    def _operands(self, node: Expr) -> list[Expr]:
        """What has to be known before a node is computed."""
        match node:
            case Load():
                return [expr for expr, _ in self.nest.loads[id(node)].rest]
            case Reduce():
                return self.hoisted(node)
            case Call() if node.op == "select":
                then, other = (self.always(branch) for branch in node.args[1:])
                return [node.args[0], *(part for key, part in then.items() if key in other)]
        return list(node.children)

    def always(self, root: Expr) -> dict[int, Expr]:
        """Sub-expressions that are computed whenever the root is."""
        found = self._unconditional.get(id(root))
        if found is None:
            found, stack = {}, [root]
            while stack:
                node = stack.pop()
                if id(node) not in found:
                    found[id(node)] = node
                    stack.extend(self._always_operands(node))
            self._unconditional[id(root)] = found
        return found

    def hoisted(self, node: Reduce) -> list[Expr]:
        """Reductions inside of a reduction that are the same at each of its points."""
        inner = {axis.name for axis in node.axes}
        parts = self.always(node.body).values()
        return [p for p in parts if isinstance(p, Reduce) and not p.free_axes & inner]

    def _always_operands(self, node: Expr) -> tuple[Expr, ...]:
        match node:
            case Load():
                return tuple(expr for expr, _ in self.nest.loads[id(node)].rest)
            case Reduce():
                return ()
            case Call() if node.op == "select":
                return node.args[:1]
        return node.children

    def _compute(self, node: Expr) -> str:
        match node:
            case Load():
                return self.define(
                    scalar.c_type(node.dtype), scalar.stored(self.load(node), node.dtype)
                )
            case Cast():
                return self._cast(node)
            case Reduce():
                return self.reduce(node)
            case Call():
                return self._call(node)
        raise InternalError(f"no code for a {type(node).__name__}")

    def _cast(self, node: Cast) -> str:
        value = self._text(node.arg)
        if self.kind(node.arg) == "int" and node.arg.dtype is INT64:
            value = f"(s64){value}"
        found = exact.cast(node, value, self._text) if self.exact else None
        return self.define(self.kind(node), found or scalar.convert(node, value))

    def _call(self, node: Call) -> str:
        if node.op in ("select", "blend"):
            return self._choice(node)
        args = [self._text(arg) for arg in node.args]
        if node.op == "checked_index":
            return self.define("s64", f"tw_checked({args[0]}, {args[1]}, status, call)")
        if self.kind(node) == "int" and node.dtype is INT64:
            return self.define("int", self._narrow(node, args))
        if node.args[0].dtype is INT64 and node.dtype is not BOOL:
            args = [f"(s64){arg}" for arg in args]
        if node.op in ("erf", "gelu") and node.dtype is FLOAT32 and self.rough:
            of = exact.contracted(node.args[0], self._text) if self.exact else args[0]
            return self.define("float", f"tw_rough_{node.op}({of})")
        if self.exact and (found := exact.call(node, args, self._text, self.rough)):
            return self.define("float", found)
        return self.define(scalar.c_type(node.dtype), scalar.call(node, args))

    def _narrow(self, node: Call, args: list[str]) -> str:
        infix = {"add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%"}
        low = self.bounds.of(node.args[0])
        if node.op in infix and (
            node.op not in ("mod", "div") or (low is not None and low[0] >= 0)
        ):
            unsigned = "(u32)" if node.op in ("div", "mod") else ""
            return f"(int)({unsigned}{args[0]} {infix[node.op]} {unsigned}{args[1]})"
        if node.op == "neg":
            return f"(-{args[0]})"
        names = {"div": "tw_divide", "mod": "tw_modulo", "min": "tw_min", "max": "tw_max"}
        return f"{names[node.op]}<int>({', '.join(args)})"

    def _choice(self, node: Call) -> str:
        condition, then, other = node.args
        kind, chosen = self.kind(node), self._text(condition)
        limited = exact.limit(node, self._text, self.rough) if self.exact else None
        if limited is not None:
            return self.define(kind, limited)
        if self._known(then) is not None and self._known(other) is not None:
            return self.define(kind, f"{chosen} ? {self._text(then)} : {self._text(other)}")
        if node.op == "blend":
            raise InternalError("a blend has operands that are not computed")
        name = self.name()
        self.line(f"{kind} {name};")
        for head, branch in ((f"if ({chosen})", then), ("else", other)):
            with self.block(head):
                self.line(f"{name} = {self.value(branch)};")
        return name

    # --- memory -----------------------------------------------------------------------------------

    def address(self, form: Affine) -> str:
        """The index of an element."""
        narrow = self.bounds.form_is_narrow(form)
        cast = "" if narrow else "(s64)"
        terms = dict(form.terms)
        parts = [self._term(*run, cast) for run in self._whole_runs(terms)]
        parts += [self._term(self.position[axis], f, cast) for axis, f in terms.items()]
        parts += [self._term(self._text(expr), factor, cast) for expr, factor in form.rest]
        if form.offset.terms or not parts:
            parts.append(self.dim(form.offset))
        return " + ".join(part for part in parts if part != "0") or "0"

    def _whole_runs(self, terms: dict[str, Dim]) -> list[tuple[str, Dim]]:
        """Takes out axes that lie in memory as the number they were decoded from counts them:
        that number, and how far it moves.
        """
        found = []
        for number, run in self.runs:
            long = [(axis, extent, place) for axis, extent, place in run if extent != Dim.of(1)]
            factors = [terms.get(axis, Dim.of(0)) for axis, _, _ in long]
            pairs = zip(factors, factors[1:], long[1:], strict=False)
            if (
                len(long) > 1
                and factors[-1] != Dim.of(0)
                and self.index_type(product(extent for _, extent, _ in long)) == "int"
                and all(self.position[axis] == place for axis, _, place in long)
                and all(outer == inner * extent for outer, inner, (_, extent, _) in pairs)
            ):
                found.append((number, factors[-1]))
                for axis, _, _ in long:
                    terms.pop(axis, None)  # none of extents of 0
        return found

    def _term(self, value: str, factor: Dim, cast: str) -> str:
        if value == "0":
            return "0"
        return f"{cast}{value}" if factor == Dim.of(1) else f"{cast}{value} * {self.dim(factor)}"

    def load(self, node: Load) -> str:
        """The text that reads an element; its index' data-dependent parts are known."""
        return f"{self.layout.buffers[node.buffer]}[{self.address(self.nest.loads[id(node)])}]"

    def store(self, number: int, store: Store) -> None:
        """Writes a store where its guard holds."""
        form = self.nest.stores[number]
        if store.guard is None:
            self._write(store, form)
            return
        with self.block(f"if ({self.value(store.guard)})"):
            self._write(store, form)

    def _write(self, store: Store, form: Affine) -> None:
        for expr, _ in form.rest:
            self.value(expr)
        value = self.value(store.value)
        self.line(f"{self.layout.buffers[store.buffer]}[{self.address(form)}] = {value};")

    def stores(self) -> None:
        """Every store of the stage at the current point, in order."""
        roots = walk(*self.nest.stage.roots)
        rereads = any(isinstance(n, Load) and n.buffer in self.stored for n in roots)
        for number, store in enumerate(self.nest.stage.stores):
            if rereads:
                with self.block():
                    self.store(number, store)
            else:
                self.store(number, store)

    # --- reductions -------------------------------------------------------------------------------

    def reduce(self, node: Reduce) -> str:
        """A reduction by one thread."""
        axes = self.nest.reduce_axes[id(node)]
        return self.accumulate(node, axes, self.loop)

    def accumulate(
        self, node: Reduce, axes: tuple[Axis, ...], loop: Callable[[Axis], object]
    ) -> str:
        """Loops that combine the body into an accumulator; ``loop`` opens one."""
        kind = scalar.c_type(node.dtype)
        start = scalar.literal(identity_of(node.combiner, node.dtype), node.dtype)
        total = self.name("acc")
        self.line(f"{kind} {total} = {start};")
        points = product(axis.extent for axis in axes)
        long = node.combiner == "sum" and node.dtype.is_float
        long = long and not (points.is_const and points.const <= _LONG_SUM)
        part, count = (self.name("part"), self.name("n")) if long else (total, "")
        if long:
            self.line(f"{kind} {part} = 0; int {count} = 0;")
        self._loops(list(axes), loop, lambda: self._combine(node, kind, total, part, count))
        if long:
            self.line(f"{total} += {part};")
        return total

    def _loops(
        self, axes: list[Axis], loop: Callable[[Axis], object], body: Callable[[], None]
    ) -> None:
        if not axes:
            body()
            return
        with loop(axes[0]):  # type: ignore[attr-defined]
            self._loops(axes[1:], loop, body)

    def _combine(self, node: Reduce, kind: str, total: str, part: str, count: str) -> None:
        value = self.value(node.body)
        if node.combiner == "sum":
            self.line(f"{part} = ({kind})({part} + {value});")
        else:
            self.line(f"{part} = {scalar.COMBINE[node.combiner]}<{kind}>({part}, {value});")
        if count:
            self.line(f"if (++{count} % {_PART} == 0) {{ {total} += {part}; {part} = 0; }}")


def extents_of(kernel: Kernel, nest: Nest) -> Mapping[str, Dim]:
    """The extent of every axis, original and merged."""
    axes = [*nest.stage.axes, *nest.axes]
    axes += [axis for own in nest.reduce_axes.values() for axis in own]
    for node in walk(*nest.stage.roots):
        if isinstance(node, Reduce):
            axes = [*node.axes, *axes]
    if kernel.steps is not None:
        axes.append(kernel.steps)
    found: dict[str, Dim] = {}
    for axis in axes:
        found[axis.name] = axis.extent
    return found
