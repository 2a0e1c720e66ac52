"""Dims that can only have one size become that size.

Input -> Output: a model, sizes by name of a dim -> the model, with numbers in the declared shapes
of all its values; formulas of such dims alone become numbers too.
Not here: which dims these are (the compiler's options), shapes of values (shapes).
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from tilewright.core.shape import Dim
from tilewright.graph.build_view import view_value
from tilewright.graph.walk import all_graphs, own_values


def fix_sizes(model: ir.Model, sizes: Mapping[str, int]) -> None:
    """Fixes dims in place.

    Args:
        model: any; its sub-graphs are changed as well.
        sizes: by name of a dim, as views of the model call it.
    """
    known = {name: Dim.of(size) for name, size in sizes.items()}
    for graph in all_graphs(model.graph):
        for value in own_values(graph):
            dims = view_value(value).shape
            if value.shape is None or dims is None:
                continue
            fixed = [dim.substitute(known) for dim in dims]
            if fixed != list(dims):
                value.shape = ir.Shape(
                    new.const if new.is_const and new != old else declared
                    for new, old, declared in zip(fixed, dims, value.shape, strict=True)
                )
