"""The emitter: folding, reuse of values, control flow, and code that runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from tilewright.codegen.cpu.emit import (
    FLOAT,
    I1,
    I8,
    I32,
    I64,
    PTR,
    Builder,
    Module,
    Value,
    constant,
    index,
    type_of,
)
from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.target import host_target, named_target
from tilewright.core.errors import InternalError
from tilewright.runtime.cpu.loader import load_object


def _builder() -> Builder:
    return Module(host_target()).function("f", [("p", PTR), ("n", I64)])


def _run(emit: Callable[[Builder], Value], *numbers: int) -> int:
    """Compiles ``i64 f(i64 a, i64 b)`` and calls it."""
    module = Module(host_target())
    b = module.function("f", [("a", I64), ("b", I64)], result=I64)
    b.ret(emit(b))
    loaded = load_object(compile_module(module.text(), module.target), ("f",))
    call = loaded.function("f", ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    return int(call(*numbers, *[0] * (2 - len(numbers))))


def test_types_are_interned_and_spelled_as_llvm_does() -> None:
    assert type_of("f", 32, 16) is FLOAT.with_lanes(16)
    assert FLOAT.with_lanes(16).text == "<16 x float>"
    assert FLOAT.with_lanes(16).mangled == "v16f32"
    assert I1.with_lanes(8).bytes == 8
    assert PTR.text == "ptr"


def test_integer_constants_fold() -> None:
    b = _builder()
    n = b.params["n"]
    assert b.add(index(3), index(4)).const == 7
    assert b.add(n, index(0)) is n
    assert b.mul(index(1), n) is n
    assert b.mul(n, index(0)).const == 0
    assert b.sub(index(3), index(5)).const == -2
    assert b.add(constant(I8, 127), constant(I8, 1)).const == -128
    assert b.icmp("ult", index(1), index(-1)).const == 1
    assert b.gep(b.params["p"], index(0), 4) is b.params["p"]
    assert b.zext(constant(I8, -1), I32).const == 255
    assert b.sext(constant(I8, -1), I32).const == -1
    assert b.text().count("\n") == 4  # header, entry, ret, brace: nothing was emitted


def test_float_literals_are_exact() -> None:
    assert constant(FLOAT, 0.1).const == float(np.float32(0.1))
    assert constant(FLOAT, 0.1).ref == "0x3FB99999A0000000"
    assert constant(FLOAT, -0.0).ref == "0x8000000000000000"
    assert constant(FLOAT, 1e300).const == np.inf


def test_operand_types_must_agree() -> None:
    b = _builder()
    with pytest.raises(InternalError, match="i64 and i32"):
        b.add(b.params["n"], constant(I32, 1))


def test_equal_instructions_are_emitted_once() -> None:
    b = _builder()
    n = b.params["n"]
    assert b.add(n, index(5)) is b.add(n, index(5))


def test_values_of_a_finished_body_are_not_reused() -> None:
    b = _builder()
    n = b.params["n"]
    outside = b.add(n, index(1))
    with b.loop(0, n) as i:
        assert b.add(n, index(1)) is outside
        inside = b.mul(n, i)
        other = b.mul(n, n)
    assert b.mul(n, n) is not other
    with b.when(b.icmp("eq", n, index(4))):
        again = b.xor(n, index(9))
    assert b.xor(n, index(9)) is not again
    del inside


@pytest.mark.parametrize(
    ("lo", "hi", "step", "expected"),
    [(0, 10, 1, 45), (0, 10, 4, 12), (5, 5, 1, 0), (7, 3, 1, 0), (-2, 2, 1, -2)],
)
def test_loop_visits_its_range(lo: int, hi: int, step: int, expected: int) -> None:
    def emit(b: Builder, from_parameters: bool) -> Value:
        total = b.alloca(I64, align=8)
        b.store(index(0), total)
        first, last = (b.params["a"], b.params["b"]) if from_parameters else (index(lo), index(hi))
        with b.loop(first, last, step) as i:
            b.store(b.add(b.load(I64, total), i), total)
        return b.load(I64, total)

    assert _run(lambda b: emit(b, from_parameters=True), lo, hi) == expected
    assert _run(lambda b: emit(b, from_parameters=False)) == expected


def test_nested_control_flow() -> None:
    def emit(b: Builder) -> Value:
        count = b.alloca(I64, align=8)
        b.store(index(0), count)
        rows, columns = b.params["a"], b.params["b"]
        with b.loop(0, rows) as i, b.loop(0, columns) as j, b.when(b.icmp("ne", i, j)):
            above = b.icmp("slt", i, j)
            step = b.if_else(above, lambda: b.add(i, index(100)), lambda: index(1))
            b.store(b.add(b.load(I64, count), step), count)
        return b.load(I64, count)

    expected = sum((i + 100 if i < j else 1) for i in range(4) for j in range(5) if i != j)
    assert _run(emit, 4, 5) == expected


def test_if_else_runs_only_the_chosen_side() -> None:
    def emit(b: Builder) -> Value:
        divisor = b.params["b"]
        is_zero = b.icmp("eq", divisor, index(0))
        return b.if_else(is_zero, lambda: index(-7), lambda: b.sdiv(b.params["a"], divisor))

    assert _run(emit, 8, 0) == -7
    assert _run(emit, 8, 2) == 4


def test_forever_ends_at_its_label() -> None:
    def emit(b: Builder) -> Value:
        place = b.alloca(I64, align=8)
        b.store(b.params["a"], place)
        with b.forever() as done:
            value = b.load(I64, place)
            more = b.label()
            b.branch(b.icmp("sgt", value, index(100)), done, more)
            b.enter(more)
            b.store(b.mul(value, index(3)), place)
        return b.load(I64, place)

    assert _run(emit, 2) == 162


@pytest.mark.parametrize("lanes", [2, 3, 4, 6, 16])
def test_lane_operations(lanes: int) -> None:
    kind = I64.with_lanes(lanes)

    def emit(b: Builder) -> Value:
        values = b.add(b.iota(kind, 2), b.splat(b.params["a"], lanes))
        total = b.reduce_add(values)
        product = b.reduce_mul(b.insert(b.splat(index(1), lanes), b.params["b"], lanes - 1))
        is_odd = b.icmp("eq", b.and_(values, constant(kind, 1)), constant(kind, 1))
        odd = b.zext(b.any_lane(is_odd), I64)
        return b.add(b.add(total, product), b.mul(odd, index(1000)))

    assert _run(emit, 4, 5) == sum(4 + 2 * lane for lane in range(lanes)) + 5
    assert _run(emit, 5, 5) == sum(5 + 2 * lane for lane in range(lanes)) + 5 + 1000


def test_shuffle_and_concat() -> None:
    pair = I64.with_lanes(2)

    def emit(b: Builder) -> Value:
        ab = b.concat(b.params["a"], b.params["b"])
        four = b.concat(ab, b.iota(pair))
        picked = b.shuffle(four, None, [1, 0, 3, 3])
        parts = [b.mul(b.extract(picked, lane), index(10**lane)) for lane in range(4)]
        return b.add(b.add(parts[0], parts[1]), b.add(parts[2], parts[3]))

    assert _run(emit, 7, 9) == 9 + 70 + 100 + 1000


def test_tables_exist_once_and_are_read() -> None:
    def emit(b: Builder) -> Value:
        first = b.declarations.table(I64, [3, 1, 4, 1, 5])
        assert b.declarations.table(I64, [3, 1, 4, 1, 5]) == first
        return b.load(I64, b.gep(first, b.params["a"], 8))

    assert _run(emit, 4) == 5


def test_call_by_pointer_and_by_name() -> None:
    module = Module(host_target())
    square = module.function("square", [("x", I64)], result=I64, internal=True, noinline=True)
    square.ret(square.mul(square.params["x"], square.params["x"]))
    b = module.function("f", [("x", I64)], result=I64)
    named = b.call("square", I64, [b.params["x"]])
    pointed = b.call(Value(PTR, "@square"), I64, [named])
    b.ret(pointed)
    loaded = load_object(compile_module(module.text(), module.target), ("f",))
    assert loaded.function("f", ctypes.c_int64, ctypes.c_int64)(3) == 81


def test_one_name_cannot_have_two_signatures() -> None:
    b = _builder()
    b.call("elsewhere", I64, [index(1)])
    with pytest.raises(InternalError, match="elsewhere"):
        b.call("elsewhere", I32, [index(1)])
    with pytest.raises(InternalError, match="twice"):
        module = Module(host_target())
        module.function("g", [])
        module.function("g", [])


def test_text_is_deterministic_and_names_its_target() -> None:
    texts = []
    for _ in range(2):
        module = Module(named_target("haswell"))
        b = module.function("f", [("p", PTR)], attributes={"p": "noalias"})
        with b.loop(0, 8) as i:
            b.store(constant(FLOAT, 1.0), b.gep(b.params["p"], i, 4))
        texts.append(module.text())
    assert texts[0] == texts[1]
    assert "ptr noalias %p" in texts[0]
    assert '"prefer-vector-width"="256"' in texts[0]
    assert "llvm.loop.unroll.disable" in texts[0]
