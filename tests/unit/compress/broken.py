"""Recipes with one deliberate fault: a scale of a layer times a factor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tilewright.compress.affine import quantize
from tilewright.compress.layers import Layer
from tilewright.graph.insert_qdq import Affine, QuantizedLayer, Recipe


def with_stored_scale(recipe: Recipe, layer: Layer, factor: float) -> Recipe:
    """Only the scale of the weights that the file has: they stand for other numbers."""

    def broken(one: QuantizedLayer) -> QuantizedLayer:
        return replace(one, params=_scaled(one.params, factor))

    return _with_layer(recipe, layer, broken)


def with_weight_scale(recipe: Recipe, layer: Layer, factor: float) -> Recipe:
    """The scale that the weights are quantised with: coarser, or too small to hold them."""

    def broken(one: QuantizedLayer) -> QuantizedLayer:
        params = _scaled(one.params, factor)
        return replace(
            one,
            weights=np.clip(quantize(layer.weights, params), -127, 127),
            params=params,
            bias=None if one.bias is None else np.rint(one.bias / factor).astype(np.int32),
            bias_scale=None if one.bias_scale is None else one.bias_scale * np.float32(factor),
        )

    return _with_layer(recipe, layer, broken)


def with_activation_scale(recipe: Recipe, layer: Layer, factor: float) -> Recipe:
    """The scale of what the layer reads."""
    point = recipe.points[layer.source]
    return replace(recipe, points={**recipe.points, layer.source: _scaled(point, factor)})


def _scaled(params: Affine, factor: float) -> Affine:
    return replace(params, scale=np.asarray(params.scale * factor, np.float32))


def _with_layer(
    recipe: Recipe, layer: Layer, change: Callable[[QuantizedLayer], QuantizedLayer]
) -> Recipe:
    layers = (change(one) if one.node == layer.node else one for one in recipe.layers)
    return replace(recipe, layers=tuple(layers))
