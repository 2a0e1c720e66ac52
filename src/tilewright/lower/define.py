"""Elementwise operators of other domains, from one definition.

Input -> Output: a NumPy function and the same as a scalar expression -> a shape rule (broadcast,
one element type), a reference and a lowering.
Requires: the defining module is listed in ``lower.families``.
Guarantees: the two functions get the same attributes, and every test and every ``compile``
compares the one with the other.
Not here: operators of ai.onnx, whose reference the runtime needs without the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tilewright.core.errors import InternalError
from tilewright.graph.info import NodeInfo
from tilewright.graph.shapes.registry import RuleContext, shape_rule
from tilewright.kernel.ir import Expr
from tilewright.lower.broadcast import elementwise
from tilewright.lower.context import Lowering
from tilewright.lower.precision import number
from tilewright.lower.registry import lowers
from tilewright.runtime.reference import Call, Outputs, operator


def define_elementwise(
    op_type: str,
    domain: str,
    *,
    values: Callable[..., Any],
    kernel: Callable[..., Expr],
    attributes: Mapping[str, float] | None = None,
) -> None:
    """Defines an operator of any number of float inputs, which broadcast, and one output.

    Args:
        op_type, domain: its name.
        values: of arrays, by NumPy; the attributes are keywords.
        kernel: of one element of each input, with the same keywords.
        attributes: their names and defaults, all of them numbers.
    """
    if domain in ("", "ai.onnx"):
        raise InternalError(f"{op_type} of ai.onnx needs its reference in the runtime")
    defaults = dict(attributes or {})

    @shape_rule(op_type, domain=domain)
    def infer_shape(ctx: RuleContext) -> NodeInfo:
        ctx.same_dtype(*range(len(ctx.inputs)))
        if not ctx.dtype(0).is_float:
            # Nothing may be left for the runtime to interpret, which does not know the operator.
            ctx.fail(f"{domain}.{op_type} is defined for floats, not for {ctx.dtype(0)}")
        return ctx.result(ctx.broadcast_inputs())

    @operator(op_type, domain)
    def reference(call: Call, *inputs: Any) -> Outputs:
        known = {name: call.number(name, default) for name, default in defaults.items()}
        return (values(*inputs, **known),)

    @lowers(op_type, domain=domain)
    def lower(ctx: Lowering) -> None:
        known = {name: number(ctx, name, default) for name, default in defaults.items()}
        elementwise(ctx, partial(kernel, **known))
