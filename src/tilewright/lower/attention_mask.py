"""Which keys a query of Attention may see: causal and window limits, valid lengths, mask tensors.

Input -> Output: a node's attributes and inputs -> ``Mask.apply(score, b, h, i, j)``.
Guarantees: a forbidden key scores -inf whatever its product is; limits count from the offset of
the query block (length of the past, or valid keys minus queries); a mask shorter than the keys
forbids the rest.
Not here: the products and the softmax (attention).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.core.dtypes import BOOL
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Buffer, Expr, constant, dim_value, select
from tilewright.lower.context import Lowering
from tilewright.lower.contraction import ZERO, all_of, dim_index


@dataclass(frozen=True, slots=True, kw_only=True)
class Mask:
    """What restricts the keys.

    Attributes:
        tensor: bool (True = visible) or float (added to the score); broadcasts to [b, h, i, j],
            its last dim may be shorter than the keys.
        shape: [batch, query heads, queries, keys].
        past: number of keys before the first query, if there is an internal cache.
        valid: valid keys of each batch entry (an external cache), or None.
        causal: whether keys after the query are hidden.
        left, right: how far a query sees to either side; -1 is unlimited.
    """

    tensor: Buffer | None = None
    shape: tuple[Dim, ...]
    past: Dim | None = None
    valid: Buffer | None = None
    causal: bool = False
    left: int = -1
    right: int = -1

    @property
    def is_empty(self) -> bool:
        """Whether every query sees every key, unweighted."""
        limited = self.causal or self.left >= 0 or self.right >= 0
        return self.tensor is None and self.valid is None and not limited

    def apply(self, score: Expr, b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        """The score with the mask added; -inf where the key is hidden."""
        conditions = self._limits(b, i, j)
        if self.tensor is not None:
            hidden = constant(False, BOOL) if self.tensor.dtype is BOOL else -math.inf
            seen = self._element(self.tensor, b, h, i, j)
            value = seen if self.tensor.dtype is BOOL else seen.cast(score.dtype)
            own = self.tensor.shape[-1]
            if own != self.shape[3]:
                value = select(j.lt(dim_value(own)), value, hidden)
            if self.tensor.dtype is BOOL:
                conditions.append(value)
            else:
                score = score + value
        condition = all_of(conditions)
        return score if condition is None else select(condition, score, -math.inf)

    def _element(self, tensor: Buffer, b: Expr, h: Expr, i: Expr, j: Expr) -> Expr:
        rank = len(tensor.shape)
        places = [
            dim_index(var, own, target)
            for var, own, target in zip(
                (b, h, i)[4 - rank :], tensor.shape[:-1], self.shape[4 - rank : 3], strict=True
            )
        ]
        return tensor[(*places, j)]

    def _limits(self, b: Expr, i: Expr, j: Expr) -> list[Expr]:
        """Conditions that come from positions alone."""
        offset = ZERO
        if self.past is not None:
            offset = dim_value(self.past)
        elif self.valid is not None:
            offset = self.valid[b] - dim_value(self.shape[2])
        position = i + offset
        found: list[Expr] = []
        if self.causal:
            found.append(j.le(position))
        if self.left >= 0:
            found.append(j.ge(position - self.left))
        if self.right >= 0:
            found.append(j.le(position + self.right))
        if self.valid is not None:
            found.append(j.lt(self.valid[b]))
        return found


def mask_of(ctx: Lowering, shape: tuple[Dim, ...]) -> Mask:
    """The mask of an Attention node whose scores have the given shape."""
    past = ctx.optional(4)
    return Mask(
        tensor=ctx.optional(3),
        shape=shape,
        past=None if past is None else past.shape[2],
        valid=ctx.optional(6),
        causal=bool(ctx.node.attribute("is_causal", 0)),
        left=int(ctx.node.attribute("left_window_size", -1)),
        right=int(ctx.node.attribute("right_window_size", -1)),
    )
