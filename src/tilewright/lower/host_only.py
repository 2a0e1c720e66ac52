"""Operators that run on the host because no kernel can express them; each refusal says why.

Input -> Output: a node -> ``Unlowerable``.
Not here: their execution (the executor interprets them).
"""

from __future__ import annotations

from tilewright.lower.context import Lowering, Unlowerable
from tilewright.lower.registry import lowers


@lowers("ImageDecoder")
def image_decoder(ctx: Lowering) -> None:
    """Refused."""
    raise Unlowerable(f"{ctx.node.op_type} parses a compressed file")


@lowers("Gradient", domain="ai.onnx.preview.training")
def gradient(ctx: Lowering) -> None:
    """Refused."""
    raise Unlowerable(f"{ctx.node.op_type} asks for derivatives of the graph around it")
