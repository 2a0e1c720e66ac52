"""Modules, functions and control flow as LLVM IR text.

Input -> Output: calls on a ``Builder`` -> the text of a module.
Guarantees: one pass, no object graph; values stay in SSA form (loops and ``if_else`` emit phis);
``alloca`` always lands in the entry block, where it becomes a register.
Not here: instructions without control flow (instructions), object code (objects).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tilewright.codegen.cpu.declarations import Declarations
from tilewright.codegen.cpu.instructions import Instructions
from tilewright.codegen.cpu.target import CpuTarget
from tilewright.codegen.cpu.values import (
    BFLOAT,
    DOUBLE,
    FLOAT,
    HALF,
    I1,
    I8,
    I16,
    I32,
    I64,
    PTR,
    Type,
    Value,
    constant,
    float_type,
    index,
    int_type,
    lane_constants,
    type_of,
)
from tilewright.core.errors import InternalError

__all__ = [
    "BFLOAT",
    "DOUBLE",
    "FLOAT",
    "HALF",
    "I1",
    "I8",
    "I16",
    "I32",
    "I64",
    "PTR",
    "Builder",
    "Module",
    "Type",
    "Value",
    "constant",
    "float_type",
    "index",
    "int_type",
    "lane_constants",
    "type_of",
]


class Builder(Instructions):
    """One function under construction; get it from ``Module.function``.

    Attributes:
        target: the processor.
        name: the function's name.
        params: parameter values by name.
        block: label of the block that instructions go to.
    """

    def __init__(
        self,
        module: Module,
        name: str,
        params: Sequence[tuple[str, Type]],
        result: Type | None,
        header: str,
    ) -> None:
        super().__init__(module.declarations)
        self.target = module.target
        self.name = name
        self.params = {label: Value(kind, f"%{label}") for label, kind in params}
        self.block = "entry"
        self._result = result
        self._header = header
        self._allocas: list[str] = []

    # --- blocks ----------------------------------------------------------------------------------

    def label(self, hint: str = "b") -> str:
        """A fresh block label."""
        self._count += 1
        return f"{hint}{self._count}"

    def enter(self, label: str) -> None:
        """Starts a block; instructions follow there.  Nothing earlier is known to dominate it."""
        self.forget()
        self._begin(label)

    def _begin(self, label: str, mark: tuple[int, int] | None = None) -> None:
        """Starts a block that is dominated by what came before ``mark``; None: by all so far."""
        if mark is not None:
            self.forget(mark)
        if self._lines and self._lines[-1].endswith(":"):
            self.emit("unreachable")  # the block after a return, in which nothing was put
        self._lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        """Ends the block with a branch."""
        self.emit(f"br label %{label}")

    def branch(self, condition: Value, then: str, otherwise: str, metadata: str = "") -> None:
        """Ends the block with a branch on an i1."""
        if condition.const is not None and not metadata:
            self.jump(then if condition.const else otherwise)
            return
        self.emit(f"br i1 {condition.ref}, label %{then}, label %{otherwise}{metadata}")

    def phi(self, incoming: Sequence[tuple[Value, str]]) -> Value:
        """The value that came from the block by which control arrived."""
        kind = incoming[0][0].type
        parts = ", ".join([f"[ {value.ref}, %{label} ]" for value, label in incoming])
        return self.result(kind, f"phi {kind.text} {parts}")

    def alloca(self, kind: Type, count: int = 1, align: int = 64) -> Value:
        """The address of a local variable (or array) in the entry block."""
        self._count += 1
        ref = f"%a{self._count}"
        many = f", i64 {count}" if count != 1 else ""
        self._allocas.append(f"  {ref} = alloca {kind.text}{many}, align {align}")
        return Value(PTR, ref)

    # --- control flow ----------------------------------------------------------------------------

    @contextmanager
    def loop(
        self, lo: Value | int, hi: Value | int, step: Value | int = 1, *, unroll: bool = False
    ) -> Iterator[Value]:
        """Runs the body for ``lo, lo+step, ... < hi`` (i64, step > 0); yields the counter."""
        first, last, stride = (
            index(bound) if isinstance(bound, int) else bound for bound in (lo, hi, step)
        )
        body, latch, done = self.label("loop"), self.label("latch"), self.label("done")
        before = self.block
        runs = self.icmp("slt", first, last)
        if runs.const:
            self.jump(body)
        else:  # even if never taken: the phi expects this way in
            self.emit(f"br i1 {runs.ref}, label %{body}, label %{done}")
        mark = self.mark()
        self._begin(body)
        self._count += 1
        following = f"%n{self._count}"
        counter = self.result(I64, f"phi i64 [ {first.ref}, %{before} ], [ {following}, %{latch} ]")
        yield counter
        self.jump(latch)
        self._begin(latch)
        self._lines.append(f"  {following} = add nsw i64 {counter.ref}, {stride.ref}")
        again = self.icmp("slt", Value(I64, following), last)
        self.branch(again, body, done, f", !llvm.loop {self.declarations.loop_metadata(unroll)}")
        self._begin(done, mark)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Runs the body where the i1 holds."""
        body, done = self.label("when"), self.label("done")
        self.branch(condition, body, done)
        mark = self.mark()
        self._begin(body)
        yield
        self.jump(done)
        self._begin(done, mark)

    def if_else(
        self, condition: Value, then: Callable[[], Value], otherwise: Callable[[], Value]
    ) -> Value:
        """The value of the chosen side; only that side is executed."""
        if condition.const is not None:
            return then() if condition.const else otherwise()
        yes, no, done = self.label("then"), self.label("else"), self.label("done")
        self.branch(condition, yes, no)
        mark = self.mark()
        self._begin(yes)
        left = then()
        left_block = self.block
        self.jump(done)
        self._begin(no, mark)
        right = otherwise()
        right_block = self.block
        self.jump(done)
        self._begin(done, mark)
        if left.type is not right.type:
            raise InternalError(f"if_else of {left.type} and {right.type}")
        return self.phi([(left, left_block), (right, right_block)])

    @contextmanager
    def forever(self) -> Iterator[str]:
        """Repeats the body until something branches to the yielded label; continues there."""
        body, done = self.label("again"), self.label("done")
        self.jump(body)
        mark = self.mark()
        self._begin(body)
        yield done
        self.jump(body)
        self._begin(done, mark)

    def ret(self, value: Value | None = None) -> None:
        """Returns from the function; what follows in the same block is not reached."""
        self.emit("ret void" if value is None else f"ret {value.typed}")
        self.enter(self.label("after"))

    def text(self) -> str:
        """The function's definition; a void function returns at its end."""
        end = "  ret void" if self._result is None else "  unreachable"
        return "\n".join([self._header, "entry:", *self._allocas, *self._lines, end, "}", ""])


class Module:
    """A module under construction.

    Attributes:
        target: the processor.
        declarations: externals, tables and metadata that functions asked for.
    """

    def __init__(self, target: CpuTarget) -> None:
        self.target = target
        self.declarations = Declarations()
        self._functions: list[Builder] = []

    def function(
        self,
        name: str,
        params: Sequence[tuple[str, Type]],
        *,
        result: Type | None = None,
        internal: bool = False,
        noinline: bool = False,
        attributes: Mapping[str, str] | None = None,
    ) -> Builder:
        """Begins a function.

        Args:
            name: its symbol.
            params: (name, type) of each; read them as ``builder.params[name]``.
            result: type of the returned value, None for void.
            internal: not visible outside of the module.
            noinline: keeps the function as it is (for micro-kernels).
            attributes: LLVM attributes of parameters by name, such as ``noalias align 64``.
        """
        if name in self.declarations.defined:
            raise InternalError(f"@{name} is defined twice")
        self.declarations.defined.add(name)
        extra = attributes or {}
        arguments = ", ".join(
            f"{kind.text} {extra[label] + ' ' if label in extra else ''}%{label}"
            for label, kind in params
        )
        header = (
            f"define {'internal ' if internal else ''}{'void' if result is None else result.text} "
            f"@{name}({arguments}) {'noinline ' if noinline else ''}#0 {{"
        )
        builder = Builder(self, name, params, result, header)
        self._functions.append(builder)
        return builder

    def table(self, kind: Type, numbers: Sequence[int] | Sequence[float]) -> Value:
        """The address of a constant array (64-byte aligned; equal tables exist once)."""
        return self.declarations.table(kind, numbers)

    def text(self) -> str:
        """The module; deterministic."""
        width = 8 * self.target.vector_bytes
        return (
            f'target triple = "{self.target.triple}"\n'
            + "\n".join([function.text() for function in self._functions])
            + self.declarations.text()
            + f'attributes #0 = {{ nounwind "prefer-vector-width"="{width}" }}\n'
        )
