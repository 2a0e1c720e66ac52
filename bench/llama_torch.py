"""The decoder of ``llama`` in torch: static shapes, one call a token or a prompt.

Input -> Output: a ``Shape``, its weights -> a module of (ids, positions, past keys and values ..)
that gives the logits of the last token and the new keys and values, as the ONNX model does.
Guarantees: in the type it is given; attention by torch's fused operator. The cache has room for the
new token, which is written in place, as a server would.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from llama import EPSILON, Shape
from torch import Tensor, nn
from torch.nn import functional


class Decoder(nn.Module):
    """The network; ``past`` tokens are in the cache."""

    def __init__(self, shape: Shape, weights: Mapping[str, Any], dtype: torch.dtype) -> None:
        super().__init__()
        self.shape = shape
        for name, array in weights.items():
            tensor = torch.from_numpy(array).to("cuda", dtype)
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, ids: Tensor, positions: Tensor, *caches: Tensor) -> list[Tensor]:
        """The logits, then keys and values of the new tokens of each layer."""
        x = self.embedding[ids]
        cos, sin = (table[positions[0]][:, None] for table in (self.cos, self.sin))
        new: list[Tensor] = []
        for k in range(self.shape.layers):
            x = self.layer(x, k, (cos, sin), positions[0], caches[2 * k : 2 * k + 2], new)
        logits = functional.linear(self.normalized(x[-1:], self.norm), self.head)
        return [logits, *new]

    def layer(
        self,
        x: Tensor,
        k: int,
        rotation: tuple[Tensor, Tensor],
        positions: Tensor,
        cache: tuple[Tensor, ...],
        new: list[Tensor],
    ) -> Tensor:
        """One block of attention and gated products."""
        s, tokens = self.shape, x.shape[0]
        own = getattr
        packed = functional.linear(
            self.normalized(x, own(self, f"a_norm_{k}")), own(self, f"qkv_{k}")
        )
        parts = packed.split([s.width, s.cache, s.cache], dim=-1)
        q, key, value = (part.view(tokens, -1, s.head) for part in parts)
        q, key = _rotated(q, *rotation), _rotated(key, *rotation)
        new += [key, value]
        q, key, value = (part.transpose(0, 1)[None] for part in (q, key, value))
        if len(cache) > 0:
            for there, made in zip(cache, (key, value), strict=True):
                there.index_copy_(2, positions, made)
            key, value = cache
        y = functional.scaled_dot_product_attention(
            q, key, value, is_causal=len(cache) == 0, enable_gqa=True
        )
        y = y[0].transpose(0, 1).reshape(tokens, s.width)
        x = x + functional.linear(y, own(self, f"o_{k}"))
        normal = self.normalized(x, own(self, f"m_norm_{k}"))
        gate = functional.silu(functional.linear(normal, own(self, f"gate_{k}")))
        up = functional.linear(normal, own(self, f"up_{k}"))
        return x + functional.linear(gate * up, own(self, f"down_{k}"))

    def normalized(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS normalisation."""
        return functional.rms_norm(x, (self.shape.width,), weight, EPSILON)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Neighbouring elements as pairs that are turned."""
    first, second = x[..., 0::2], x[..., 1::2]
    turned = (cos * first - sin * second, sin * first + cos * second)
    return torch.stack(turned, dim=-1).flatten(-2)
