"""Rotary position embedding.

    RotaryEmbedding(x, cos, sin)  ->  for k < d/2: out[k] = c[k]*x[k] - s[k]*x[k+d/2]
                                                   out[k+d/2] = s[k]*x[k] + c[k]*x[k+d/2]
Guarantees: both elements of a pair are computed together; positions outside of the cache raise.
Not here: attention.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.core.dtypes import INT64
from tilewright.core.shape import Dim
from tilewright.kernel.ir import Axis, Buffer, Expr, Stage, Store, cast, dim_value
from tilewright.lower.broadcast import broadcast_load, position_in
from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.precision import compute_type, flag
from tilewright.lower.registry import lowers


@dataclass(frozen=True, slots=True)
class _Heads:
    """A tensor seen as (batch, head, position, element) in either memory order."""

    buffer: Buffer
    position_first: bool

    @property
    def sizes(self) -> tuple[Dim, Dim, Dim, Dim]:
        first, second, third, last = self.buffer.shape
        return (first, third, second, last) if self.position_first else (first, second, third, last)

    def index(self, b: Expr, h: Expr, s: Expr, d: Expr) -> tuple[Expr, ...]:
        return (b, s, h, d) if self.position_first else (b, h, s, d)


@lowers("RotaryEmbedding")
def rotary_embedding(ctx: Lowering) -> None:
    """A 3-D input has its heads in the last dim, next to their elements."""
    out, x = ctx.output(), ctx.input(0)
    if out is None:
        return
    if len(x.shape) == 4:
        _rotate(ctx, _Heads(x, False), _Heads(out, False))
        return
    heads = int(ctx.node.attribute("num_heads", 0))
    if heads < 1:
        raise Unlowerable("num_heads is not given")
    split = (x.shape[0], x.shape[1], Dim.of(heads), x.shape[2] // heads)
    source = ctx.view(ctx.temporary(x.dtype, split), x)
    result = ctx.temporary(out.dtype, split)
    _rotate(ctx, _Heads(source, True), _Heads(result, True))
    ctx.view(out, result)


def _rotate(ctx: Lowering, x: _Heads, out: _Heads) -> None:
    batch, heads, length, width = x.sizes
    turned = Dim.of(int(ctx.node.attribute("rotary_embedding_dim", 0)) or width)
    half, kind = turned // 2, compute_type(x.buffer.dtype)
    own = (Axis("b", batch), Axis("h", heads), Axis("s", length), Axis("k", half))
    b, h, s, k = (axis.var for axis in own)
    axes = (own[0], own[2], own[1], own[3]) if x.position_first else own
    if flag(ctx, "interleaved"):
        places = (k * 2, k * 2 + 1)
    else:
        places = (k, k + dim_value(half))
    first, second = (x.buffer[x.index(b, h, s, place)].cast(kind) for place in places)
    cos, sin = (
        _cached(ctx, ctx.input(position), (batch, length, half), (b, s, k)).cast(kind)
        for position in (1, 2)
    )
    values = (cos * first - sin * second, sin * first + cos * second)
    stores = tuple(
        Store(out.buffer.name, out.index(b, h, s, place), value.cast(out.buffer.dtype))
        for place, value in zip(places, values, strict=True)
    )
    stages = [Stage(axes, stores)]
    if turned != width:
        place = k + dim_value(turned)
        rest = Store(out.buffer.name, out.index(b, h, s, place), x.buffer[x.index(b, h, s, place)])
        stages.append(Stage((*axes[:3], Axis("k", width - turned)), (rest,)))
    ctx.stages(out.buffer, tuple(stages), extra=())


def _cached(
    ctx: Lowering, cache: Buffer, sizes: tuple[Dim, Dim, Dim], index: tuple[Expr, Expr, Expr]
) -> Expr:
    """The cosine or sine for a position: through ``position_ids`` if they are given."""
    positions = ctx.optional(3)
    if positions is None:
        return broadcast_load(cache, sizes, index)
    position = cast(broadcast_load(positions, sizes[:2], index[:2]), INT64)
    return cache[position_in(position, cache.shape[0]), index[2]]
