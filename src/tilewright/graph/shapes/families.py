"""The list of rule families: importing one registers its operators.

To add an operator, write its rule in the file of its family; a new family also needs a line here.
"""

from __future__ import annotations

from tilewright.graph.shapes import (
    attention,
    content_math,
    content_moves,
    contraction,
    control,
    convolution,
    elementwise,
    generation,
    indexing,
    integer_only,
    learning,
    movement,
    normalization,
    quantization,
    recurrent,
    reduction,
    sequence,
    signal,
    slicing,
    small_weights,
    vision,
)
from tilewright.graph.shapes.registry import RULES

FAMILIES = (
    attention,
    content_math,
    content_moves,
    contraction,
    control,
    convolution,
    elementwise,
    generation,
    indexing,
    integer_only,
    learning,
    movement,
    normalization,
    quantization,
    recurrent,
    reduction,
    sequence,
    signal,
    slicing,
    small_weights,
    vision,
)

__all__ = ["FAMILIES", "RULES"]
