"""The closed table of scalar operations that a kernel expression may contain.

Input -> Output: an operation's name -> arity, operand classes, result type rule.
Guarantees: every backend and the interpreter implement exactly this table.
Semantics: float arithmetic is IEEE; integers wrap; integer ``div`` truncates toward zero, ``mod``
follows the divisor's sign, ``fmod`` the dividend's; division by zero of integers gives 0; shifts
by >= width give 0; ``min``/``max`` propagate NaN; ``round`` is half-to-even; ``select`` evaluates
only the chosen branch, ``blend`` both; ``gelu(x)`` is x times the normal distribution function,
``gelu_tanh`` its approximation x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.
``checked_index(i, n)`` wraps a negative index once and reports an error at run time when it lies
outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Result(Enum):
    """How the result type follows from the operands."""

    SAME = "same"  # the type of all operands
    BOOL = "bool"
    BRANCH = "branch"  # the type of operands 1 and 2; operand 0 is a bool
    INDEX = "index"  # int64


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarOp:
    """One operation.

    Attributes:
        name: its name in expressions and printed kernels.
        arity: number of operands.
        classes: letters of allowed operand kinds: f float32/64, i signed, u unsigned, b bool.
        result: rule for the result type.
    """

    name: str
    arity: int
    classes: str
    result: Result = Result.SAME


_FLOAT_UNARY = [
    "sqrt",
    "exp",
    "log",
    "log1p",
    "expm1",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "sigmoid",
    "gelu",
    "gelu_tanh",
    "floor",
    "ceil",
    "round",
    "trunc",
]
_TABLE = (
    *(ScalarOp(name=name, arity=1, classes="f") for name in _FLOAT_UNARY),
    ScalarOp(name="neg", arity=1, classes="fiu"),
    ScalarOp(name="abs", arity=1, classes="fiu"),
    ScalarOp(name="sign", arity=1, classes="fiu"),
    ScalarOp(name="not", arity=1, classes="iub"),
    ScalarOp(name="isnan", arity=1, classes="f", result=Result.BOOL),
    ScalarOp(name="isinf", arity=1, classes="f", result=Result.BOOL),
    *(
        ScalarOp(name=name, arity=2, classes="fiu")
        for name in ("add", "sub", "mul", "div", "mod", "fmod", "pow")
    ),
    *(ScalarOp(name=name, arity=2, classes="fiub") for name in ("min", "max")),
    ScalarOp(name="atan2", arity=2, classes="f"),
    *(ScalarOp(name=name, arity=2, classes="iub") for name in ("and", "or", "xor")),
    *(ScalarOp(name=name, arity=2, classes="iu") for name in ("shl", "shr")),
    *(
        ScalarOp(name=name, arity=2, classes="fiub", result=Result.BOOL)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
    ),
    ScalarOp(name="select", arity=3, classes="*", result=Result.BRANCH),
    ScalarOp(name="blend", arity=3, classes="*", result=Result.BRANCH),
    ScalarOp(name="checked_index", arity=2, classes="i", result=Result.INDEX),
)
SCALAR_OPS: dict[str, ScalarOp] = {op.name: op for op in _TABLE}

COMBINERS: dict[str, str] = {
    # name -> operand kinds; the identity is 0, 1, -inf/lowest, +inf/highest, True, False
    "sum": "fiu",
    "prod": "fiu",
    "max": "fiub",
    "min": "fiub",
    "and": "b",
    "or": "b",
}
