"""Sums of two bytes as multiply-adds of register lanes.

Input -> Output: a ``ByteSum`` and the lanes of both numbers -> lanes of the sum.
Not here: which sums these are (kernel.byte_sums).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.cpu.emit import Builder, Value, constant
from tilewright.kernel.byte_sums import ByteSum


def emit_byte_sum(b: Builder, total: ByteSum, leaves: Sequence[Value]) -> Value:
    """The sum of register lanes."""
    lanes = max(leaf.type.lanes for leaf in leaves)
    first, second = (b.splat(leaf, lanes) for leaf in leaves)
    near, far = (constant(first.type, factor) for factor in total.factors)
    rest = b.mul(second, far)
    if total.offset:
        rest = b.fma(second, far, constant(first.type, total.offset))
    return b.fma(first, near, rest)
