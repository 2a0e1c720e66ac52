"""Which function lowers which operator.

Input -> Output: ``@lowers("Softmax")`` on a function of one ``Lowering`` -> an entry of
``LOWERINGS``.
Requires: ``lower/families.py`` imports each family file once.
Guarantees: a function either emits items for every wanted output or raises ``Unlowerable`` with a
reason.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.core.errors import InternalError
from tilewright.lower.context import Lowering

LoweringFunction = Callable[[Lowering], None]
LOWERINGS: dict[tuple[str, str], LoweringFunction] = {}


def lowers(*op_types: str, domain: str = "") -> Callable[[LoweringFunction], LoweringFunction]:
    """Registers a lowering for operators of a domain (newest opset semantics)."""

    def register(function: LoweringFunction) -> LoweringFunction:
        for op_type in op_types:
            if (domain, op_type) in LOWERINGS:
                raise InternalError(f"two lowerings for {domain or 'ai.onnx'}.{op_type}")
            LOWERINGS[domain, op_type] = function
        return function

    return register
