"""Every scalar operation on every type it takes, against the interpreter's NumPy meaning."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.codegen.cpu.emit import I1, Builder, Module, Value, constant
from tilewright.codegen.cpu.objects import compile_module
from tilewright.codegen.cpu.scalar import combine, emit_op
from tilewright.codegen.cpu.target import CpuTarget, named_target
from tilewright.core.dtypes import (
    BOOL,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    DType,
)
from tilewright.core.errors import InternalError
from tilewright.kernel.interp_ops import NUMPY_OPS
from tilewright.kernel.ops import SCALAR_OPS, Result
from unit.codegen.cpu.lanes import (
    Array,
    Emit,
    add_function,
    apply,
    run_functions,
    runnable_targets,
    sample,
)

_CLASSES = {
    "f": (FLOAT32, FLOAT64),
    "i": (INT8, INT16, INT32, INT64),
    "u": (UINT8, UINT16, UINT32, UINT64),
    "b": (BOOL,),
}
_COUNT = 512
# Results that are exact in IEEE arithmetic; the others may differ in the last places.
_EXACT = {
    *("add", "sub", "mul", "div", "fmod", "mod", "sqrt", "floor", "ceil", "round", "trunc"),
    *("neg", "abs", "sign", "min", "max"),
}
CASES = [
    (op, dtype)
    for op, spec in SCALAR_OPS.items()
    if op not in ("select", "blend", "checked_index")
    for letter in spec.classes
    for dtype in _CLASSES[letter]
]


def _result_type(op: str, dtype: DType) -> DType:
    return BOOL if SCALAR_OPS[op].result is Result.BOOL else dtype


def _emit(op: str, dtype: DType) -> Emit:
    return lambda b, args: emit_op(b, op, args, dtype)


def _compute(target: CpuTarget, lanes: int) -> list[tuple[str, DType, list[Array], Array]]:
    module = Module(target)
    calls = []
    for op, dtype in CASES:
        name = f"{op}.{dtype}"
        arity = SCALAR_OPS[op].arity
        result = _result_type(op, dtype)
        add_function(module, name, _emit(op, dtype), [dtype] * arity, result, lanes)
        calls.append((name, [sample(dtype, _COUNT, seed) for seed in range(arity)], result))
    results = run_functions(module, calls)
    return [
        (op, dtype, list(call[1]), result)
        for (op, dtype), call, result in zip(CASES, calls, results, strict=True)
    ]


def _expected(op: str, dtype: DType, arrays: list[Array]) -> Array:
    """The interpreter's meaning; float32 functions are computed in float64 and rounded once."""
    if dtype is FLOAT32 and op not in ("mod", "fmod"):
        arrays = [array.astype(np.float64) for array in arrays]
    with np.errstate(all="ignore"):
        exact = np.asarray(NUMPY_OPS[op](*arrays))
        return exact.astype(_result_type(op, dtype).numpy)


def _distance(result: Array, expected: Array, scale: Array | None = None) -> float:
    """Largest difference in units in the last place of ``scale``, which is ``expected`` by default;
    NaN must meet NaN, infinity infinity.
    """
    same = (result == expected) | (np.isnan(result) & np.isnan(expected))
    scale = expected if scale is None else scale
    wide = expected.astype(np.longdouble)
    with np.errstate(all="ignore"):
        ulps = np.abs(result.astype(np.longdouble) - wide) / np.spacing(np.abs(scale))
    return float(np.max(np.where(same, 0, np.where(np.isfinite(ulps), ulps, np.inf)), initial=0))


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("target", runnable_targets(), ids=lambda target: target.name)
def test_operations_mean_what_the_interpreter_says(target: CpuTarget, lanes: int) -> None:
    wrong = []
    for op, dtype, arrays, result in _compute(target, lanes):
        expected = _expected(op, dtype, arrays)
        if expected.dtype.kind == "f":
            allowed = 0 if op in _EXACT else 4
            # Far below x, results are cancelled.
            scale = arrays[0] if op.startswith("gelu") else expected
            if _distance(result, expected, scale) > allowed:
                wrong.append(f"{op} {dtype}: {_distance(result, expected, scale)} ulp")
        elif not np.array_equal(result, expected):
            at = np.flatnonzero(result != expected)[0]
            wrong.append(f"{op} {dtype}{[a[at] for a in arrays]}: {result[at]}, {expected[at]}")
    assert not wrong


def test_a_lane_does_not_depend_on_the_number_of_lanes() -> None:
    host = runnable_targets()[0]
    for one, many in zip(_compute(host, 1), _compute(host, 16), strict=True):
        assert one[3].tobytes() == many[3].tobytes(), one[:2]


def test_all_operations_compile_for_another_architecture() -> None:
    target = named_target("neoverse-v1")
    module = Module(target)
    for op, dtype in CASES:
        operands = [dtype] * SCALAR_OPS[op].arity
        add_function(
            module, f"{op}.{dtype}", _emit(op, dtype), operands, _result_type(op, dtype), 4
        )
    assert compile_module(module.text(), target)


def _with_constant(op: str, number: int | float, dtype: DType) -> Emit:
    def emit(b: Builder, args: list[Value]) -> Value:
        return emit_op(b, op, [args[0], constant(args[0].type, number)], dtype)

    return emit


@pytest.mark.parametrize("number", [-3, -1, 0, 1, 2, 3, 5, 40, 127])
@pytest.mark.parametrize("dtype", [INT8, INT32, UINT32, INT64], ids=str)
def test_constant_operands(number: int, dtype: DType) -> None:
    if number < 0 and not dtype.is_signed:
        number += 1 << dtype.bits
    module = Module(runnable_targets()[0])
    values = sample(dtype, 256)
    other = np.full(values.size, number, dtype.numpy)
    ops = (
        "add",
        "sub",
        "mul",
        "div",
        "mod",
        "fmod",
        "pow",
        "min",
        "max",
        "shl",
        "shr",
        "and",
        "or",
    )
    for op in ops:
        add_function(module, op, _with_constant(op, number, dtype), [dtype], dtype, 8)
    results = run_functions(module, [(op, [values], dtype) for op in ops])
    for op, result in zip(ops, results, strict=True):
        assert np.array_equal(result, _expected(op, dtype, [values, other])), op


@pytest.mark.parametrize("number", [0.0, -1.0, 1.0, 2.0, 3.0, math.nan, math.inf])
def test_constant_float_operands(number: float) -> None:
    module = Module(runnable_targets()[0])
    values = sample(FLOAT32, 256)
    other = np.full(values.size, number, np.float32)
    for op in ("min", "max", "pow", "div", "mod"):
        add_function(module, op, _with_constant(op, number, FLOAT32), [FLOAT32], FLOAT32, 8)
    ops = ("min", "max", "pow", "div", "mod")
    results = run_functions(module, [(op, [values], FLOAT32) for op in ops])
    for op, result in zip(ops, results, strict=True):
        allowed = 2 if op == "pow" else 0
        assert _distance(result, _expected(op, FLOAT32, [values, other])) <= allowed, op


@pytest.mark.parametrize(
    ("combiner", "dtype", "expected"),
    [
        ("sum", FLOAT32, 36.0),
        ("prod", INT32, 40320),
        ("max", FLOAT64, 8.0),
        ("min", UINT8, 1),
        ("max", INT8, 8),
    ],
)
def test_combiners_reduce_lanes(combiner: str, dtype: DType, expected: float) -> None:
    values = np.array([3, 1, 4, 8, 5, 2, 6, 7], dtype.numpy)

    def emit(b: Builder, args: list[Value]) -> Value:
        return b.splat(b.reduce(args[0], combine(b, combiner, dtype)), 8)

    assert (apply(emit, [values], [dtype], dtype, 8) == expected).all()


def test_maximum_of_lanes_keeps_nan() -> None:
    values = np.ones(16, np.float32)
    values[11] = np.nan

    def emit(b: Builder, args: list[Value]) -> Value:
        return b.splat(b.reduce(args[0], combine(b, "max", FLOAT32)), 16)

    assert np.isnan(apply(emit, [values], [FLOAT32], FLOAT32, 16)).all()


def test_control_flow_is_refused() -> None:
    b = Module(runnable_targets()[0]).function("f", [])
    with pytest.raises(InternalError, match="select"):
        emit_op(b, "select", [constant(I1, 1)] * 3, BOOL)
