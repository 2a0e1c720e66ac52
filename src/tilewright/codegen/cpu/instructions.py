"""Straight-line instructions: every one typed, integer constants folded.

Input -> Output: ``Value`` operands -> a line of LLVM IR and its result ``Value``.
Requires: operands of one instruction have the same type (``splat`` first).
Guarantees: integer literals are folded (add, sub, mul and what follows from 0 and 1); no fast-math
flag unless the caller writes it.
Not here: control flow and functions (emit), operations with stated semantics (scalar, convert).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.codegen.cpu.declarations import Declarations
from tilewright.codegen.cpu.values import (
    I1,
    I32,
    I64,
    PTR,
    Type,
    Value,
    constant,
    int_type,
    lane_constants,
    wrap,
)
from tilewright.core.errors import InternalError


class Instructions:
    """A list of instructions of one function; ``Builder`` adds blocks."""

    def __init__(self, declarations: Declarations) -> None:
        self.declarations = declarations
        self._lines: list[str] = []
        self._count = 0
        self._known: dict[str, Value] = {}
        self._added: list[str] = []
        self._generation = 0

    # --- plumbing --------------------------------------------------------------------------------

    def emit(self, text: str) -> None:
        """Appends an instruction that has no result."""
        self._lines.append("  " + text)

    def result(self, kind: Type, text: str) -> Value:
        """Appends an instruction and names its result."""
        self._count += 1
        ref = f"%v{self._count}"
        self._lines.append(f"  {ref} = {text}")
        return Value(kind, ref)

    def pure(self, kind: Type, text: str) -> Value:
        """The result of an instruction without effects; an equal one that dominates is reused."""
        found = self._known.get(text)
        if found is None:
            found = self._known[text] = self.result(kind, text)
            self._added.append(text)
        return found

    def mark(self) -> tuple[int, int]:
        """A point to which ``forget`` can go back."""
        return self._generation, len(self._added)

    def forget(self, mark: tuple[int, int] | None = None) -> None:
        """Drops what ``pure`` remembers since the mark (or all): it no longer dominates."""
        if mark is None or mark[0] != self._generation:
            self._generation += 1
            self._known.clear()
            self._added.clear()
            return
        for text in self._added[mark[1] :]:
            del self._known[text]
        del self._added[mark[1] :]

    def _binary(self, name: str, a: Value, b: Value) -> Value:
        if a.type is not b.type:
            raise InternalError(f"{name} of {a.type} and {b.type}")
        return self.pure(a.type, f"{name} {a.type.text} {a.ref}, {b.ref}")

    # --- integer and float arithmetic ------------------------------------------------------------

    def add(self, a: Value, b: Value, *, nsw: bool = False, flags: str = "") -> Value:
        """Sum; integers wrap unless ``nsw`` promises that they do not."""
        if a.type.is_float:
            return self._binary(_flagged("fadd", flags), a, b)
        if isinstance(a.const, int):
            if isinstance(b.const, int):
                return constant(a.type, a.const + b.const)
            a, b = b, a
        if b.const == 0:
            return a
        return self._binary("add nsw" if nsw else "add", a, b)

    def sub(self, a: Value, b: Value, *, nsw: bool = False, flags: str = "") -> Value:
        """Difference."""
        if a.type.is_float:
            return self._binary(_flagged("fsub", flags), a, b)
        if isinstance(a.const, int) and isinstance(b.const, int):
            return constant(a.type, a.const - b.const)
        if b.const == 0:
            return a
        return self._binary("sub nsw" if nsw else "sub", a, b)

    def mul(self, a: Value, b: Value, *, nsw: bool = False, flags: str = "") -> Value:
        """Product."""
        if a.type.is_float:
            return self._binary(_flagged("fmul", flags), a, b)
        if isinstance(a.const, int):
            if isinstance(b.const, int):
                return constant(a.type, a.const * b.const)
            a, b = b, a
        if b.const == 1:
            return a
        if b.const == 0:
            return b
        return self._binary("mul nsw" if nsw else "mul", a, b)

    def fdiv(self, a: Value, b: Value, *, flags: str = "") -> Value:
        return self._binary(_flagged("fdiv", flags), a, b)

    def frem(self, a: Value, b: Value) -> Value:
        return self._binary("frem", a, b)

    def fneg(self, a: Value) -> Value:
        return self.pure(a.type, f"fneg {a.typed}")

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """``a*b + c`` rounded once."""
        return self.intrinsic("fma", a.type, [a, b, c])

    def sdiv(self, a: Value, b: Value) -> Value:
        """Truncating quotient; undefined for a zero divisor and for the lowest number by -1."""
        return a if b.const == 1 else self._binary("sdiv", a, b)

    def udiv(self, a: Value, b: Value) -> Value:
        return a if b.const == 1 else self._binary("udiv", a, b)

    def srem(self, a: Value, b: Value) -> Value:
        return self._binary("srem", a, b)

    def urem(self, a: Value, b: Value) -> Value:
        return self._binary("urem", a, b)

    def and_(self, a: Value, b: Value) -> Value:
        if isinstance(a.const, int):
            if isinstance(b.const, int):
                return constant(a.type, a.const & b.const)
            a, b = b, a
        if b.const is not None:
            if b.const == 0:
                return b
            if b.const == wrap(-1, b.type.bits):
                return a
        return self._binary("and", a, b)

    def or_(self, a: Value, b: Value) -> Value:
        if isinstance(a.const, int):
            if isinstance(b.const, int):
                return constant(a.type, a.const | b.const)
            a, b = b, a
        if b.const is not None:
            if b.const == 0:
                return a
            if b.const == wrap(-1, b.type.bits):
                return b
        return self._binary("or", a, b)

    def xor(self, a: Value, b: Value) -> Value:
        if isinstance(a.const, int) and isinstance(b.const, int):
            return constant(a.type, a.const ^ b.const)
        return a if b.const == 0 else self._binary("xor", a, b)

    def not_(self, a: Value) -> Value:
        """All bits flipped."""
        return self.xor(a, constant(a.type, -1))

    def shl(self, a: Value, b: Value) -> Value:
        """Shift left; undefined for shifts of the width or more (as for lshr and ashr)."""
        return a if b.const == 0 else self._binary("shl", a, b)

    def lshr(self, a: Value, b: Value) -> Value:
        return a if b.const == 0 else self._binary("lshr", a, b)

    def ashr(self, a: Value, b: Value) -> Value:
        return a if b.const == 0 else self._binary("ashr", a, b)

    # --- comparisons and choice ------------------------------------------------------------------

    def icmp(self, predicate: str, a: Value, b: Value) -> Value:
        """``eq ne slt sle sgt sge ult ule ugt uge`` -> i1 lanes."""
        kind = I1.with_lanes(a.type.lanes)
        if isinstance(a.const, int) and isinstance(b.const, int):
            return constant(kind, _compare(predicate, a.const, b.const, a.type.bits))
        return self.pure(kind, f"icmp {predicate} {a.typed}, {b.ref}")

    def fcmp(self, predicate: str, a: Value, b: Value) -> Value:
        """``o..`` is false, ``u..`` true when an operand is NaN -> i1 lanes."""
        kind = I1.with_lanes(a.type.lanes)
        return self.pure(kind, f"fcmp {predicate} {a.typed}, {b.ref}")

    def select(self, condition: Value, then: Value, otherwise: Value) -> Value:
        """Both sides are evaluated; the condition is i1 or has as many lanes."""
        if then.type is not otherwise.type:
            raise InternalError(f"select of {then.type} and {otherwise.type}")
        if condition.const is not None:
            return then if condition.const else otherwise
        return self.pure(then.type, f"select {condition.typed}, {then.typed}, {otherwise.typed}")

    # --- conversions -----------------------------------------------------------------------------

    def _convert(self, name: str, a: Value, kind: Type) -> Value:
        if a.type is kind:
            return a
        if a.type.lanes != kind.lanes and name != "bitcast":
            raise InternalError(f"{name} from {a.type} to {kind}")
        if isinstance(a.const, int) and name in ("trunc", "sext"):
            return constant(kind, -a.const if name == "sext" and a.type.bits == 1 else a.const)
        if isinstance(a.const, int) and name == "zext":
            return constant(kind, a.const & ((1 << a.type.bits) - 1))
        return self.pure(kind, f"{name} {a.typed} to {kind.text}")

    def trunc(self, a: Value, kind: Type) -> Value:
        return self._convert("trunc", a, kind)

    def zext(self, a: Value, kind: Type) -> Value:
        return self._convert("zext", a, kind)

    def sext(self, a: Value, kind: Type) -> Value:
        return self._convert("sext", a, kind)

    def fptrunc(self, a: Value, kind: Type) -> Value:
        return self._convert("fptrunc", a, kind)

    def fpext(self, a: Value, kind: Type) -> Value:
        return self._convert("fpext", a, kind)

    def sitofp(self, a: Value, kind: Type) -> Value:
        return self._convert("sitofp", a, kind)

    def uitofp(self, a: Value, kind: Type) -> Value:
        return self._convert("uitofp", a, kind)

    def fptosi(self, a: Value, kind: Type) -> Value:
        """Truncates toward zero; undefined where the result does not fit, NaN included."""
        return self._convert("fptosi", a, kind)

    def fptoui(self, a: Value, kind: Type) -> Value:
        return self._convert("fptoui", a, kind)

    def bitcast(self, a: Value, kind: Type) -> Value:
        return self._convert("bitcast", a, kind)

    def ptrtoint(self, a: Value, kind: Type = I64) -> Value:
        return self._convert("ptrtoint", a, kind)

    def inttoptr(self, a: Value) -> Value:
        return self._convert("inttoptr", a, PTR.with_lanes(a.type.lanes))

    def fptosi_sat(self, a: Value, kind: Type) -> Value:
        """Truncates toward zero, saturates; NaN gives 0."""
        name = f"llvm.fptosi.sat.{kind.mangled}.{a.type.mangled}"
        return self._intrinsic(name, kind, [a])

    def fptoui_sat(self, a: Value, kind: Type) -> Value:
        name = f"llvm.fptoui.sat.{kind.mangled}.{a.type.mangled}"
        return self._intrinsic(name, kind, [a])

    # --- lanes -----------------------------------------------------------------------------------

    def insert(self, vector: Value, element: Value, lane: int) -> Value:
        """The vector with one lane replaced."""
        return self.pure(vector.type, f"insertelement {vector.typed}, {element.typed}, i64 {lane}")

    def extract(self, vector: Value, lane: int) -> Value:
        """One lane; of a scalar, the scalar itself."""
        if not vector.type.is_vector:
            return vector
        if vector.const is not None:
            return constant(vector.type.element, vector.const)
        return self.pure(vector.type.element, f"extractelement {vector.typed}, i64 {lane}")

    def splat(self, element: Value, lanes: int) -> Value:
        """The value in every lane; a vector of that many lanes is returned as it is."""
        if element.type.lanes == lanes:
            return element
        kind = element.type.with_lanes(lanes)
        if element.const is not None and kind.kind != "ptr":
            return constant(kind, element.const)
        first = self.pure(kind, f"insertelement {kind.text} poison, {element.typed}, i64 0")
        return self.pure(
            kind,
            f"shufflevector {first.typed}, {kind.text} poison, <{lanes} x i32> zeroinitializer",
        )

    def shuffle(self, a: Value, b: Value | None, lanes: Sequence[int]) -> Value:
        """Lanes of ``a`` then ``b`` picked by number; -1 leaves a lane undefined.

        One picked lane gives a scalar.
        """
        if len(lanes) == 1:
            first = lanes[0] < a.type.lanes or b is None
            return (
                self.extract(a, lanes[0])
                if first or b is None
                else self.extract(b, lanes[0] - a.type.lanes)
            )
        kind = a.type.with_lanes(len(lanes))
        other = "poison" if b is None else b.ref
        mask = ", ".join(f"i32 {lane}" if lane >= 0 else "i32 poison" for lane in lanes)
        return self.pure(
            kind, f"shufflevector {a.typed}, {a.type.text} {other}, <{len(lanes)} x i32> <{mask}>"
        )

    def concat(self, a: Value, b: Value) -> Value:
        """The lanes of both (equal types), ``a`` first."""
        if not a.type.is_vector:
            pair = Value(a.type.with_lanes(2), "poison")
            return self.insert(self.insert(pair, a, 0), b, 1)
        return self.shuffle(a, b, range(2 * a.type.lanes))

    def iota(self, kind: Type, step: int = 1) -> Value:
        """0, step, 2 step ... in an integer type."""
        if not kind.is_vector:
            return constant(kind, 0)
        return lane_constants(kind, [lane * step for lane in range(kind.lanes)])

    def reduce(self, value: Value, combine: Callable[[Value, Value], Value]) -> Value:
        """Combines all lanes in a fixed order: halves for powers of two, else one by one."""
        lanes = value.type.lanes
        if lanes & (lanes - 1):
            total = self.extract(value, 0)
            for lane in range(1, lanes):
                total = combine(total, self.extract(value, lane))
            return total
        while lanes > 1:
            lanes //= 2
            low = self.shuffle(value, None, range(lanes))
            value = combine(low, self.shuffle(value, None, range(lanes, 2 * lanes)))
        return value

    def reduce_add(self, value: Value) -> Value:
        return self.reduce(value, self.add)

    def reduce_mul(self, value: Value) -> Value:
        return self.reduce(value, self.mul)

    def reduce_and(self, value: Value) -> Value:
        return self.reduce(value, self.and_)

    def reduce_or(self, value: Value) -> Value:
        return self.reduce(value, self.or_)

    def any_lane(self, mask: Value) -> Value:
        """Whether some lane of i1 holds."""
        return self._mask_test("ne", mask, 0)

    def all_lanes(self, mask: Value) -> Value:
        """Whether every lane of i1 holds."""
        return self._mask_test("eq", mask, -1)

    def _mask_test(self, predicate: str, mask: Value, bits: int) -> Value:
        if not mask.type.is_vector:
            return mask
        whole = int_type(mask.type.lanes)
        return self.icmp(predicate, self.bitcast(mask, whole), constant(whole, bits))

    # --- memory ----------------------------------------------------------------------------------

    def gep(self, pointer: Value, offset: Value | int, element_bytes: int = 1) -> Value:
        """``pointer + offset * element_bytes``; offset lanes give a vector of pointers."""
        if isinstance(offset, int):
            offset = constant(I64, offset)
        if offset.const == 0 and offset.type.lanes == pointer.type.lanes:
            return pointer
        unit = (
            f"i{8 * element_bytes}" if element_bytes in (1, 2, 4, 8) else f"[{element_bytes} x i8]"
        )
        lanes = max(offset.type.lanes, pointer.type.lanes)
        return self.pure(
            PTR.with_lanes(lanes), f"getelementptr {unit}, {pointer.typed}, {offset.typed}"
        )

    def load(
        self, kind: Type, pointer: Value, align: int | None = None, *, volatile: bool = False
    ) -> Value:
        """Loads all lanes; alignment in bytes, by default that of one lane."""
        how = "load volatile" if volatile else "load"
        return self.result(
            kind, f"{how} {kind.text}, ptr {pointer.ref}, align {align or kind.element_bytes}"
        )

    def store(
        self, value: Value, pointer: Value, align: int | None = None, *, volatile: bool = False
    ) -> None:
        """Stores all lanes; alignment in bytes, by default that of one lane."""
        align = align or value.type.element_bytes
        how = "store volatile" if volatile else "store"
        self.emit(f"{how} {value.typed}, ptr {pointer.ref}, align {align}")

    def keep_order(self) -> None:
        """No access to memory is moved from one side of this place to the other."""
        self.emit('call void asm sideeffect "", "~{memory}"()')

    def stream(self, value: Value, pointer: Value) -> None:
        """Stores past the caches; the pointer is aligned to the whole vector."""
        self.emit(
            f"store {value.typed}, ptr {pointer.ref}, align {value.type.bytes}, !nontemporal !2"
        )

    def prefetch(self, pointer: Value, *, write: bool = False, locality: int = 3) -> None:
        """Asks for a cache line; never faults.  Locality 3 keeps it in L1, 0 streams."""
        arguments = [pointer, constant(I32, int(write)), constant(I32, locality), constant(I32, 1)]
        self.call("llvm.prefetch.p0", None, arguments)

    def masked_load(
        self,
        kind: Type,
        pointer: Value,
        mask: Value,
        otherwise: Value | None = None,
        align: int | None = None,
    ) -> Value:
        """Loads the lanes whose mask holds; the others are ``otherwise`` (default 0)."""
        rest = otherwise or constant(kind, 0)
        return self.call(
            f"llvm.masked.load.{kind.mangled}.p0",
            kind,
            [pointer, constant(I32, align or kind.element_bytes), mask, rest],
        )

    def masked_store(
        self, value: Value, pointer: Value, mask: Value, align: int | None = None
    ) -> None:
        """Stores the lanes whose mask holds."""
        if value.type.bits < 32 or (value.type.kind == "i" and value.type.bits < 64):
            # LLVM 22 on x86 stores too many bytes for the one lane of a known mask when integers
            # were narrowed; so the mask must not become known.
            unknown = self.result(I32, 'call i32 asm "", "=r,0"(i32 1)')
            holds = self.icmp("ne", unknown, constant(I32, 0))
            mask = self.and_(mask, self.splat(holds, mask.type.lanes))
        self.call(
            f"llvm.masked.store.{value.type.mangled}.p0",
            None,
            [value, pointer, constant(I32, align or value.type.element_bytes), mask],
        )

    def gather(
        self, kind: Type, pointers: Value, mask: Value | None = None, otherwise: Value | None = None
    ) -> Value:
        """Loads a lane from each pointer where the mask holds."""
        mask = mask or constant(I1.with_lanes(kind.lanes), 1)
        rest = otherwise or constant(kind, 0)
        return self.call(
            f"llvm.masked.gather.{kind.mangled}.{pointers.type.mangled}",
            kind,
            [pointers, constant(I32, kind.element_bytes), mask, rest],
        )

    def scatter(self, value: Value, pointers: Value, mask: Value | None = None) -> None:
        """Stores a lane to each pointer where the mask holds, lane 0 first."""
        mask = mask or constant(I1.with_lanes(value.type.lanes), 1)
        self.call(
            f"llvm.masked.scatter.{value.type.mangled}.{pointers.type.mangled}",
            None,
            [value, pointers, constant(I32, value.type.element_bytes), mask],
        )

    # --- calls -----------------------------------------------------------------------------------

    def call(
        self, callee: str | Value, kind: Type | None, args: Sequence[Value], flags: str = ""
    ) -> Value:
        """Calls a function by name (declared when the module does not define it) or by pointer.

        ``kind`` None is void; the returned value must then not be used.
        """
        text = "void" if kind is None else kind.text
        if isinstance(callee, str):
            self.declarations.declare(text, callee, [arg.type.text for arg in args])
            ref = "@" + callee
        else:
            ref = callee.ref
        line = f"{_flagged('call', flags)} {text} {ref}({', '.join([arg.typed for arg in args])})"
        if kind is None:
            self.emit(line)
            return Value(I1, "poison")
        return self.result(kind, line)

    def intrinsic(self, name: str, kind: Type, args: Sequence[Value], flags: str = "") -> Value:
        """An LLVM intrinsic without effects, overloaded on its result type only, as ``sqrt``."""
        return self._intrinsic(f"llvm.{name}.{kind.mangled}", kind, args, flags)

    def _intrinsic(self, name: str, kind: Type, args: Sequence[Value], flags: str = "") -> Value:
        self.declarations.declare(kind.text, name, [arg.type.text for arg in args])
        operands = ", ".join([arg.typed for arg in args])
        return self.pure(kind, f"{_flagged('call', flags)} {kind.text} @{name}({operands})")


def _flagged(name: str, flags: str) -> str:
    return f"{name} {flags}" if flags else name


def _compare(predicate: str, a: int, b: int, bits: int) -> bool:
    if predicate[0] == "u":
        a, b = a & ((1 << bits) - 1), b & ((1 << bits) - 1)
    match predicate[-2:]:
        case "eq":
            return a == b
        case "ne":
            return a != b
        case "lt":
            return a < b
        case "le":
            return a <= b
        case "gt":
            return a > b
        case "ge":
            return a >= b
    raise InternalError(f"no predicate {predicate}")
