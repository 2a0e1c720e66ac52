"""Which layer hurts, by how much, and why.

Input -> Output: a quantisation and data to score on -> for each node, what the model loses when it
alone is quantised, how much more that is than its bits should cost, and what the model gains when
it alone is not; for the worst, which part of its error does it.
    clipping    inputs beyond their range
    rounding    steps of inputs and of weights
    saturation  weights beyond +-127 steps
    bias shift  the mean error that is left in its results, and the rounding of its bias
Guarantees: causes are found by running the model with that part alone; nothing is estimated.  Nodes
that lose ``BROKEN_DB`` more than their bits should come first, whatever others lose.
Not here: what to do about it (search).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compress.affine import dequantize, spread
from tilewright.compress.bias_correction import mean_error
from tilewright.compress.calibrate import Calibration, Progress
from tilewright.compress.layers import Layer, Plan
from tilewright.compress.score import Scorer, Scores, decibels
from tilewright.compress.simulator import NodeSetting, Settings, Simulator, bias_of, settings_of
from tilewright.graph.insert_qdq import QuantizedLayer, Recipe
from tilewright.report.quantization import BROKEN_DB, NodeEffect, Sensitivity

Array = npt.NDArray[Any]

CAUSES = ("clipping", "rounding", "saturation", "bias shift")
NUM_EXPLAINED = 8  # of the worst nodes
_ROUNDING = 1e-12  # noise of float32 itself


def measure(
    simulator: Simulator,
    scorer: Scorer,
    plan: Plan,
    recipe: Recipe,
    expected: Recipe,
    op_types: Mapping[str, str],
    seen: Calibration | None,
    *,
    explained: int = NUM_EXPLAINED,
    progress: Progress | None = None,
) -> Sensitivity:
    """Puts each node in and out.

    Args:
        simulator: of the model.
        scorer: of its outputs.
        plan, recipe: where and how it is quantised.
        expected: how it should be, by its bits.
        op_types: by node.
        seen: for mean errors; None leaves the bias shift to the rounding of biases.
        explained: how many of the worst nodes are split by cause.
        progress: called with (stage, runs so far, runs in all).
    """
    settings = settings_of(plan, recipe)
    ideal = settings_of(plan, expected)
    total = 3 * len(settings) + len(CAUSES) * min(explained, len(settings))
    score = _Counted(simulator=simulator, scorer=scorer, total=total, progress=progress)
    base, whole = score({}), score(settings)
    alone = {node: score({node: setting}) for node, setting in settings.items()}
    coarser_db = _coarser_db(recipe, expected)
    excess_db = {
        node: max(coarser_db[node], _excess_db(alone[node].noise, score({node: ideal[node]}).noise))
        for node in alone
    }
    order = sorted(alone, key=lambda node: _place(excess_db[node], alone[node].noise))
    layers = {layer.node: layer for layer in plan.layers}
    causes = {
        node: _causes(node, settings, layers.get(node), recipe, seen, score)
        for node in order[:explained]
    }

    def effect(node: str) -> NodeEffect:
        without = score({name: one for name, one in settings.items() if name != node})
        return NodeEffect(
            node=node,
            op_type=op_types[node],
            sqnr_db=alone[node].sqnr_db,
            noise=alone[node].noise,
            excess_db=excess_db[node],
            drop=_difference(base.metric, alone[node].metric),
            gain=_gain(without, whole),
            causes=causes.get(node, {}),
        )

    return Sensitivity(
        samples=scorer.count,
        float_metric=base.metric,
        metric=whole.metric,
        sqnr_db=whole.sqnr_db,
        nodes=tuple(effect(node) for node in order),
    )


@dataclass(slots=True, kw_only=True)
class _Counted:
    """Scores of settings, with progress."""

    simulator: Simulator
    scorer: Scorer
    total: int
    progress: Progress | None
    done: int = 0

    def __call__(self, chosen: Settings) -> Scores:
        self.done += 1
        if self.progress is not None:
            self.progress("sensitivity", min(self.done, self.total), self.total)
        return self.scorer(lambda feeds: self.simulator.run(chosen, feeds))


def _excess_db(noise: float, expected: float) -> float:
    """How many times the expected noise there is, in dB; what float32 rounds alike is alike."""
    return decibels(max(expected, _ROUNDING)) - decibels(max(noise, _ROUNDING))


def _coarser_db(recipe: Recipe, expected: Recipe) -> dict[str, float]:
    """By node, how much too coarse its steps are, which other noise may hide at the outputs."""
    found = {
        one.node: float(np.median(one.params.scale / ideal.params.scale))
        for one, ideal in zip(recipe.layers, expected.layers, strict=True)
    }
    for value, readers in recipe.readers.items():
        ratio = float(recipe.points[value].scale / expected.points[value].scale)
        for node in readers:
            found[node] = max(found.get(node, 0.0), ratio)
    return {node: 20 * math.log10(ratio) for node, ratio in found.items()}


def _place(excess_db: float, noise: float) -> tuple[bool, float]:
    """Broken nodes first, those that lose most first."""
    return excess_db < BROKEN_DB, -noise


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else before - after


def _gain(without: Scores, whole: Scores) -> float:
    if without.metric is not None and whole.metric is not None:
        return without.metric - whole.metric
    return decibels(without.noise) - decibels(whole.noise) if without.noise else 0.0


def _causes(
    node: str,
    settings: Settings,
    layer: Layer | None,
    recipe: Recipe,
    seen: Calibration | None,
    score: Callable[[Settings], Scores],
) -> dict[str, float]:
    """The noise of each part of a node's error alone."""
    setting = settings[node]
    clipped = {name: one.clipping for name, one in setting.reads.items()}
    rounded = {name: one.rounding for name, one in setting.reads.items()}
    if layer is None:
        parts = [("clipping", NodeSetting(reads=clipped)), ("rounding", NodeSetting(reads=rounded))]
        return {name: score({node: part}).noise for name, part in parts}
    quantized = next(one for one in recipe.layers if one.node == node)
    parts = [
        ("clipping", NodeSetting(reads=clipped)),
        ("rounding", NodeSetting(reads=rounded, weights=_unsaturated(layer, quantized))),
        ("saturation", NodeSetting(reads={}, weights=_saturated(layer, quantized))),
        ("bias shift", NodeSetting(reads={}, bias=_shifted(layer, quantized, seen))),
    ]
    return {name: score({node: part}).noise for name, part in parts}


def _limits(layer: Layer, quantized: QuantizedLayer) -> Array:
    scale, _ = spread(quantized.params, layer.weights.shape)
    return np.asarray(127 * scale, np.float32)


def _saturated(layer: Layer, quantized: QuantizedLayer) -> Array:
    """The float weights, clipped to what the integers can say."""
    limits = _limits(layer, quantized)
    return np.clip(layer.weights, -limits, limits)


def _unsaturated(layer: Layer, quantized: QuantizedLayer) -> Array:
    """The weights as they are rounded, without the clipping."""
    excess = layer.weights - _saturated(layer, quantized)
    rounded: Array = dequantize(quantized.weights, quantized.params) + excess
    return rounded


def _shifted(layer: Layer, quantized: QuantizedLayer, seen: Calibration | None) -> Array | None:
    """The float bias, with the mean error of the quantised layer."""
    bias = bias_of(quantized)
    if bias is None:
        return None
    moments = None if seen is None else seen.moments.get(layer.node)
    shift: Array = np.zeros(len(bias))
    if moments is not None and moments.known:
        shift = mean_error(layer, quantized.weights, quantized.params, moments.mean)
    moved: Array = (bias + shift).astype(np.float32)
    return moved
