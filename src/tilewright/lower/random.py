"""Operators that draw random numbers, and Dropout, which does so only in training.

    Dropout(x)  ->  out is x
Guarantees: nothing random is compiled; such nodes are interpreted, with a reason.
Not here: the generators (runtime.reference).
"""

from __future__ import annotations

from tilewright.core.dtypes import BOOL
from tilewright.kernel.ir import constant
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.registry import lowers


@lowers(
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)
def random(ctx: Lowering) -> None:
    """Refuses."""
    raise Unlowerable(f"{ctx.node.op_type} draws random numbers")


@lowers("Dropout")
def dropout(ctx: Lowering) -> None:
    """The identity when not training, or when nothing is dropped."""
    if ctx.optional(2) is not None:
        training = ctx.content(2)
        if training is None:
            raise Unlowerable("whether Dropout trains is known only at run time")
        if bool(training.reshape(-1)[0]):
            _require_no_drops(ctx)
    out, mask = ctx.output(0), ctx.output(1)
    if out is not None:
        ctx.view(out, ctx.input(0))
    if mask is not None:
        ctx.pure(mask, lambda *_: constant(True, BOOL))


def _require_no_drops(ctx: Lowering) -> None:
    if ctx.optional(1) is not None:
        ratio = ctx.content(1)
        if ratio is not None and float(ratio.reshape(-1)[0]) == 0.0:
            return
    raise Unlowerable("Dropout draws random numbers in training")
