"""Types, constants, operations and conversions as C++.

Input -> Output: an expression node and the texts of its operands -> the text of its value.
Guarantees: what ``kernel.ops`` and ``kernel.ir.Cast`` state; every result has the node's C type.
Not here: loads, loops, the order of evaluation (expressions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.core.dtypes import (
    BFLOAT16,
    BOOL,
    FLOAT8_E4M3FN,
    FLOAT8_E8M0,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    DType,
)
from tilewright.core.errors import InternalError
from tilewright.kernel.interp_ops import integer_range
from tilewright.kernel.ir import Call, Cast, Const

_C_TYPES = {"float32": "float", "float64": "double", "bool": "bool"}
# Exponent and mantissa bits, bias and kind of each small float (prelude.cuh).
_SMALL = {
    "float8_e4m3fn": "4, 3, 7, 1",
    "float8_e4m3fnuz": "4, 3, 8, 2",
    "float8_e5m2": "5, 2, 15, 0",
    "float8_e5m2fnuz": "5, 2, 16, 2",
    "float4_e2m1": "2, 1, 1, 3",
}
_INFIX = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BITWISE = {"and": "&", "or": "|", "xor": "^"}
_WRAPPING = {"add": "+", "sub": "-", "mul": "*"}
_INTEGER_CALLS = {
    "div": "tw_divide",
    "mod": "tw_modulo",
    "fmod": "tw_remainder",
    "pow": "tw_power",
    "shl": "tw_shl",
    "shr": "tw_shr",
    "min": "tw_min",
    "max": "tw_max",
    "sign": "tw_signum",
}
_HELPERS = {
    "min": "tw_min",
    "max": "tw_max",
    "mod": "tw_modulo",
    "sign": "tw_signum",
    "sigmoid": "tw_sigmoid",
    "gelu": "tw_gelu",
    "gelu_tanh": "tw_gelu_tanh",
}
_MATHS = {"abs": "fabs", "round": "rint"}
COMBINE = {
    "sum": "tw_add",
    "prod": "tw_times",
    "max": "tw_max",
    "min": "tw_min",
    "and": "tw_and",
    "or": "tw_or",
}


def c_type(dtype: DType) -> str:
    """The C type that holds a value; narrow floats are held as their bits."""
    if dtype.name in _C_TYPES:
        return _C_TYPES[dtype.name]
    if dtype.is_float:
        return f"u{8 * dtype.storage_bytes}"
    return f"{'s' if dtype.is_signed else 'u'}{8 * dtype.storage_bytes}"


def unsupported(dtype: DType) -> str | None:
    """Why a type cannot be computed with, or None."""
    if dtype.name == "string" or dtype.name.startswith("complex"):
        return f"{dtype.name} has no CUDA code"
    return None


def stored(text: str, dtype: DType) -> str:
    """A value as it was stored; the upper bits of types below a byte are not defined."""
    if not dtype.is_integer or dtype.bits >= 8:
        return text
    if dtype.is_signed:
        return f"tw_sign_extend<{c_type(dtype)}>({text}, {dtype.bits})"
    return f"({c_type(dtype)})({text} & {2**dtype.bits - 1})"


def literal(value: float | bool, dtype: DType) -> str:
    """A constant with its exact bits."""
    if dtype is BOOL:
        return "true" if value else "false"
    if dtype.is_integer:
        return _integer(int(value), dtype)
    exact = np.asarray(float(value)).astype(dtype.numpy)
    if dtype not in (FLOAT32, FLOAT64):
        return f"(({c_type(dtype)}){exact.view(f'u{dtype.storage_bytes}').item()})"
    number = float(exact)
    if not math.isfinite(number):
        bits = exact.view(f"u{dtype.storage_bytes}").item()
        return f"tw_bits<{c_type(dtype)}>((u{dtype.bits}){bits}ull)"
    text = number.hex() + ("f" if dtype is FLOAT32 else "")
    return f"({text})" if text.startswith("-") else text


def _integer(value: int, dtype: DType) -> str:
    if dtype.bits == 64:
        if value == -(2**63):
            return "(-9223372036854775807ll - 1)"
        text = f"{value}{'ll' if dtype.is_signed else 'ull'}"
    elif value == -(2**31):
        return "(-2147483647 - 1)"
    else:
        text = f"{value}{'' if dtype.is_signed else 'u'}"
    return f"(({c_type(dtype)}){text})" if dtype.bits < 32 else f"({text})" if value < 0 else text


def constant(node: Const) -> str:
    """A constant node."""
    return literal(node.value, node.dtype)


def call(node: Call, args: Sequence[str]) -> str:
    """A scalar operation other than select, blend and checked_index."""
    operand = node.args[0].dtype
    if node.op in _INFIX:
        return f"({args[0]} {_INFIX[node.op]} {args[1]})"
    if node.op in _BITWISE:
        return f"({c_type(operand)})({args[0]} {_BITWISE[node.op]} {args[1]})"
    if operand is BOOL:
        return _bool_call(node.op, args)
    return _float_call(node, args) if operand.is_float else _integer_call(node, args)


def _bool_call(op: str, args: Sequence[str]) -> str:
    if op == "not":
        return f"!{args[0]}"
    return f"(bool)({args[0]} {'&' if op == 'min' else '|'} {args[1]})"


def _integer_call(node: Call, args: Sequence[str]) -> str:
    kind = c_type(node.args[0].dtype)
    if node.op in _WRAPPING:
        wide = "u64" if node.args[0].dtype.bits == 64 else "u32"
        return f"({kind})(({wide}){args[0]} {_WRAPPING[node.op]} ({wide}){args[1]})"
    if node.op in _INTEGER_CALLS:
        return f"{_INTEGER_CALLS[node.op]}<{kind}>({', '.join(args)})"
    if node.op == "neg":
        return f"({kind})(0 - (u64){args[0]})"
    if node.op == "abs":
        return f"({kind})({args[0]} < 0 ? 0 - (u64){args[0]} : (u64){args[0]})"
    if node.op == "not":
        return f"({kind})(~{args[0]})"
    raise InternalError(f"no integer operation {node.op}")


def _float_call(node: Call, args: Sequence[str]) -> str:
    op, dtype = node.op, node.args[0].dtype
    if op in _WRAPPING or op == "div":
        return f"({args[0]} {_WRAPPING.get(op, '/')} {args[1]})"
    if op == "neg":
        return f"(-{args[0]})"
    if op == "isnan":
        return f"({args[0]} != {args[0]})"
    if op == "isinf":
        top = literal(math.inf, dtype)
        return f"({args[0]} == {top} || {args[0]} == -{top})"
    if op in _HELPERS:
        return f"{_HELPERS[op]}({', '.join(args)})"
    suffix = "f" if dtype is FLOAT32 else ""
    return f"{_MATHS.get(op, op)}{suffix}({', '.join(args)})"


def convert(node: Cast, value: str) -> str:
    """A conversion (``kernel.ir.Cast``)."""
    source, target = node.arg.dtype, node.dtype
    if node.bits:
        return f"tw_bits<{c_type(target)}>({value})"
    if source.is_float and source not in (FLOAT32, FLOAT64):
        value, source = _widened(value, source), FLOAT32
    if target is BOOL:
        return f"({value} != 0)"
    if target.is_float:
        return _to_float(value, source, target, node.saturate)
    kind = c_type(target)
    if source.is_float:
        low, high = integer_range(target)
        above = literal(float(high + 1), source)
        bounds = f"{literal(low, target)}, {literal(high, target)}"
        return f"tw_saturate<{kind}, {c_type(source)}>({value}, {bounds}, {above})"
    return stored(f"({kind}){value}", target)


def _widened(value: str, source: DType) -> str:
    if source is FLOAT16:
        return f"tw_half_to_float({value})"
    if source is BFLOAT16:
        return f"tw_bfloat_to_float({value})"
    if source is FLOAT8_E8M0:
        return f"tw_scale_to_float({value})"
    if source is FLOAT8_E4M3FN:
        return f"tw_e4m3_to_float({value})"
    return f"tw_small_to_float({value}, {_SMALL[source.name]})"


def _to_float(value: str, source: DType, target: DType, saturate: bool) -> str:
    if target in (FLOAT32, FLOAT64):
        return f"({c_type(target)}){value}"
    wide = source is FLOAT64 or (source.is_integer and source.bits > 24)
    if target is FLOAT8_E4M3FN and saturate and not wide:
        return f"tw_float_to_e4m3((float){value})"
    if target.name in _SMALL:
        return f"tw_float_to_small((double){value}, {_SMALL[target.name]}, {int(saturate)})"
    if target is FLOAT8_E8M0:
        return f"tw_float_to_scale((double){value}, {int(saturate)})"
    name = "half" if target is FLOAT16 else "bfloat"
    kind = "double" if wide else "float"
    return f"tw_{kind}_to_{name}(({kind}){value})"
