"""What functions of a module refer to: externals, constant tables, loop metadata.

Input -> Output: requests while functions are emitted -> the module's global text.
Guarantees: equal tables exist once; the text depends only on the order of requests.
Not here: functions (emit).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.cpu.values import PTR, Type, Value, constant
from tilewright.core.errors import InternalError


class Declarations:
    """Collects the global entities of one module."""

    def __init__(self) -> None:
        self.defined: set[str] = set()
        self._external: dict[str, tuple[str, str]] = {}
        self._tables: dict[str, str] = {}
        self._loops: list[bool] = []

    def declare(self, result: str, name: str, params: Sequence[str]) -> None:
        """Makes a function known that this module may not define; signatures must agree."""
        signature = (result, ", ".join(params))
        if self._external.setdefault(name, signature) != signature:
            raise InternalError(f"@{name} is called as {self._external[name]} and {signature}")

    def table(self, kind: Type, numbers: Sequence[int] | Sequence[float]) -> Value:
        """The address of a constant array with one number an element, 64-byte aligned."""
        element = kind.text
        parts = ", ".join([f"{element} {constant(kind, number).ref}" for number in numbers])
        body = f"constant [{len(numbers)} x {element}] [{parts}], align 64"
        name = self._tables.setdefault(body, f"@table.{len(self._tables)}")
        return Value(PTR, name)

    def loop_metadata(self, unroll: bool) -> str:
        """A fresh loop identity that allows or forbids unrolling; returns its reference."""
        self._loops.append(unroll)
        return f"!{len(self._loops) + 2}"

    def text(self) -> str:
        """All declarations, tables and metadata."""
        lines = [f"{name} = internal unnamed_addr {body}" for body, name in self._tables.items()]
        lines += [
            f"declare {result} @{name}({params})"
            for name, (result, params) in self._external.items()
            if name not in self.defined
        ]
        lines.append('!0 = !{!"llvm.loop.unroll.disable"}')
        lines.append('!1 = !{!"llvm.loop.unroll.enable"}')
        lines.append("!2 = !{i32 1}")
        lines += [
            f"!{number + 3} = distinct !{{!{number + 3}, !{int(unroll)}}}"
            for number, unroll in enumerate(self._loops)
        ]
        return "\n".join(lines) + "\n"
