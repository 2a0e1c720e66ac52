"""Element-wise operators against ONNX's cases."""

import pytest

from unit.lower.harness import Case, check_case, node_cases

OPERATORS = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr "
    "BitwiseXor Ceil Clip Cos Cosh Div Equal Erf Exp Floor Greater GreaterOrEqual IsInf IsNaN Less "
    "LessOrEqual Log Max Mean Min Mod Mul Neg Not Or Pow Reciprocal Round Sign Sin Sinh Sqrt Sub "
    "Sum Tan Tanh Where Xor"
).split()


@pytest.mark.parametrize("case", node_cases(*OPERATORS))
def test_case(case: Case) -> None:
    check_case(case)
