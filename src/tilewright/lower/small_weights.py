"""Matrix products whose weights stay small in memory: 8 or 4 bits, with a scale for each group.

    MatMulWeights(a, codes, scales, zeros)
        ->  out[.., m, n] = sum(g: scales[g, n] * sum(i: a[.., m, k] * (codes[k, n] - zeros[g, n])))
            with k = g * block + i
Guarantees: weights are widened where they are multiplied, once for all rows of a register tile; a
scale is applied to the sum of its group.  Two codes of 4 bits share a byte: rows 2j (low) and
2j + 1 (high) of the weights.
Not here: where such weights come from (graph.passes.keep_weights_small).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.core.dtypes import FLOAT32, INT32, DType
from tilewright.kernel.ir import Buffer, Expr, call, cast, constant
from tilewright.lower.broadcast import refuse_opaque
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.contraction import common_compute_type, sum_over
from tilewright.lower.registry import lowers
from tilewright.runtime.reference.small_weights import DOMAIN, NBITS_DOMAIN

_HALF_BITS = 4
_HIDDEN = 23  # bits of a float32 behind its leading one
_MAGIC = (127 + _HIDDEN) << _HIDDEN  # 2**23: its lowest bits are units


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operands:
    """The weights of one product, and how they are widened."""

    codes: Buffer
    scales: Buffer
    zeros: Buffer | None
    middle: int
    in_halves: bool
    kind: DType

    def widened(self, j: Expr, g: Expr, n: Expr) -> list[Expr]:
        """The codes of a byte less their zero point, which is exact in any float."""
        byte = self.codes[j, n]
        if not self.in_halves:
            return [self._centred(byte.cast(self.kind), 0.0, g, n)]
        wide = byte.cast(INT32)
        low = wide & constant((1 << _HALF_BITS) - 1, INT32)
        parts = [low, call("shr", wide, _HALF_BITS)]
        if self.kind is not FLOAT32:
            return [self._centred(part.cast(self.kind), 0.0, g, n) for part in parts]
        # The code as the lowest bits of 2**23 + code: no conversion, and the same subtraction.
        floats = [cast(part | constant(_MAGIC, INT32), FLOAT32, bits=True) for part in parts]
        return [self._centred(value, 2.0**_HIDDEN, g, n) for value in floats]

    def _centred(self, code: Expr, more: float, g: Expr, n: Expr) -> Expr:
        """``code`` is too large by ``more``, which whole zero points can be added to exactly."""
        if self.zeros is None:
            return code - (self.middle + more) if self.middle or more else code
        zero = self.zeros[g, n].cast(self.kind)
        if self.zeros.dtype.is_float:
            return (code - more if more else code) - zero
        return code - (zero + more if more else zero)

    def scale(self, g: Expr, n: Expr) -> Expr:
        """The scale of a group."""
        return self.scales[g, n].cast(self.kind)


@lowers("MatMulNBits", domain=NBITS_DOMAIN)
def matmul_nbits(_ctx: Lowering) -> None:
    """Constant weights have become those of MatMulWeights before."""
    raise Unlowerable("weights, scales or zero points are no constants")


@lowers("MatMulWeights", domain=DOMAIN)
def matmul_weights(ctx: Lowering) -> None:
    """Two-dimensional weights for rows of any number of dims."""
    out, a, scales = ctx.output(), ctx.input(0), ctx.input(2)
    if out is None:
        return
    refuse_opaque(a)
    in_halves = int(ctx.node.attribute("bits", 8)) == _HALF_BITS
    own = _Operands(
        codes=ctx.input(1),
        scales=scales,
        zeros=ctx.optional(3),
        middle=int(ctx.node.attribute("zero", 0)),
        in_halves=in_halves,
        kind=common_compute_type(a, scales),
    )
    count = 2 if in_halves else 1
    steps = int(ctx.node.attribute("block_size")) // count

    def body(*index: Expr) -> Expr:
        row, n = index[:-1], index[-1]

        def term(g: Expr, i: Expr) -> Expr:
            j = g * steps + i
            products = [
                a[(*row, j * count + number)].cast(own.kind) * weight
                for number, weight in enumerate(own.widened(j, g, n))
            ]
            return products[0] if count == 1 else products[0] + products[1]

        def group(g: Expr) -> Expr:
            return own.scale(g, n) * sum_over([steps], lambda i: term(g, i))

        return sum_over([scales.shape[0]], group).cast(out.dtype)

    ctx.pure(out, body)
