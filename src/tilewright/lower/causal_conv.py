"""CausalConvWithState: a depthwise causal convolution that carries its last inputs along.

    e = past_state ++ x                                  (zeros where there is no past_state)
    out[n, c, l] = act(b[c] + sum_k e[n, c, l + k] * w[c, 0, k]);   present_state = last k-1 of e
Guarantees: both results are pure kernels.
Not here: Conv (conv), linear attention (linear_attention).
"""

from __future__ import annotations

from tilewright.kernel.ir import Expr, call, constant, dim_value, select
from tilewright.lower.context import Lowering
from tilewright.lower.contraction import ZERO, sum_over, widen
from tilewright.lower.precision import compute_type
from tilewright.lower.registry import lowers


@lowers("CausalConvWithState")
def causal_conv_with_state(ctx: Lowering) -> None:
    """Activations none, silu and swish; unwanted outputs are skipped."""
    x, w = ctx.input(0), ctx.input(1)
    bias, past = ctx.optional(2), ctx.optional(3)
    taps = w.shape[2]
    carried = dim_value(taps - 1)
    zero = constant(0, compute_type(x.dtype))

    def read(n: Expr, c: Expr, position: Expr) -> Expr:
        """An element of the extended sequence; ``position`` counts from the start of x."""
        before = zero if past is None else widen(past[n, c, position + carried])
        return select(position.ge(0), widen(x[n, c, position]), before)

    def body(n: Expr, c: Expr, at: Expr) -> Expr:
        value = sum_over([taps], lambda k: read(n, c, at + k - carried) * widen(w[c, ZERO, k]))
        if bias is not None:
            value = value + widen(bias[c])
        if ctx.node.attribute("activation", "none") in ("silu", "swish"):
            value = value * call("sigmoid", value)
        return value.cast(x.dtype)

    out, state = ctx.output(0), ctx.output(1)
    if out is not None:
        ctx.pure(out, body)
    if state is not None:
        first = dim_value(x.shape[2]) - carried
        ctx.pure(state, lambda n, c, at: read(n, c, at + first).cast(x.dtype))
