"""What each node should lose with the bits that it has: nearest integers, ranges of what is scored.

Input -> Output: a model, its plan, the numbers that it is quantised with, and data -> a ``Recipe``
of the same types whose scales hold exactly what the data and the weights are (what is 0 on all data
keeps its scale).
Guarantees: memory is that of one batch; tied values share a range, as they do when calibrated.
Not here: how far a node is from it (sensitivity).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.compress.affine import affine, quantize_weights, symmetric
from tilewright.compress.calibrate import runner
from tilewright.compress.data import Batches
from tilewright.compress.layers import Plan
from tilewright.graph.insert_qdq import Affine, QuantizedLayer, Recipe
from tilewright.graph.quantizable import Quantizable

Range = tuple[float, float]


def expected_recipe(
    model: Quantizable, plan: Plan, recipe: Recipe, batches: Batches, threads: int | None = None
) -> Recipe:
    """The recipe that scales by what is there.

    Args:
        model: in float.
        plan: where it is quantised.
        recipe: how; its types and axes are kept.
        batches: that scores are measured on.
        threads: of a run.

    Raises:
        BadData: a value is not finite on the data.
    """
    ranges = _ranges(model, plan, batches, threads)
    layers = {layer.node: layer for layer in plan.layers}
    return replace(
        recipe,
        points={
            name: _point(ranges[name], point) if any(ranges[name]) else point
            for name, point in recipe.points.items()
        },
        layers=tuple(_layer(layers[one.node].weights, one) for one in recipe.layers),
    )


def _layer(weights: Any, one: QuantizedLayer) -> QuantizedLayer:
    integers, params = quantize_weights(weights, one.params.axis, one.params.block)
    return replace(one, weights=integers, params=params, bias=None, bias_scale=None)


def _point(seen: Range, point: Affine) -> Affine:
    low, high = seen
    if point.zero.dtype == np.int8:
        return symmetric(np.float64(max(-low, high)))
    return affine(low, high, point.zero.dtype)


def _ranges(
    model: Quantizable, plan: Plan, batches: Batches, threads: int | None
) -> Mapping[str, Range]:
    """The ends of every value that is quantised."""
    inputs = {value.name for value in model.view().inputs}
    run = runner(model, [name for name in plan.readers if name not in inputs], threads)
    found = dict.fromkeys(plan.readers, (0.0, 0.0))
    for feeds in batches:
        values = run(feeds)
        for name, (low, high) in found.items():
            low, high = values[name].min(initial=low), values[name].max(initial=high)
            found[name] = float(low), float(high)
    for group in plan.ties:
        lows, highs = zip(*(found[name] for name in group), strict=True)
        found.update(dict.fromkeys(group, (min(lows), max(highs))))
    return found
