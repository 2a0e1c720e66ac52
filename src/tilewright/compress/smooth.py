"""Move range from the channels of an activation into the weights that it is multiplied with.

    x @ w  ->  (x * (1 / s)) @ (s * w),   s_j = a_j**alpha / w_j**(1 - alpha)
    a_j, w_j: greatest magnitudes of channel j of x and of row j of w
Input -> Output: inputs of matrix products, as calibration data show them -> a factor a channel.
Guarantees: alpha is the one of a grid with the least expected squared error, and a value stays as
it is unless that saves a tenth of the error.
Source: Xiao et al., SmoothQuant (2023); the expected error takes rounding errors for uniform.
Not here: convolutions (equalize).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compress.calibrate import Progress, runner
from tilewright.compress.data import Batches
from tilewright.compress.layers import Layer, Plan
from tilewright.core.record import DecisionLog
from tilewright.graph.quantizable import Quantizable, Smoothed

Array = npt.NDArray[Any]

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
WORTH = 0.9  # of the error without
_LEAST = 1e-5


@dataclass(slots=True)
class Channels:
    """What was seen of each channel: the last dim of a value."""

    low: Array
    high: Array
    squares: Array
    rows: int = 0

    @staticmethod
    def of(width: int) -> Channels:
        """Nothing yet."""
        return Channels(low=np.zeros(width), high=np.zeros(width), squares=np.zeros(width))

    def add(self, x: Array) -> None:
        """Takes a batch."""
        rows = x.reshape(-1, x.shape[-1])
        self.low = np.minimum(self.low, rows.min(0, initial=0))
        self.high = np.maximum(self.high, rows.max(0, initial=0))
        self.squares += np.square(rows, dtype=np.float64).sum(0)
        self.rows += len(rows)


def smooth(
    model: Quantizable,
    plan: Plan,
    batches: Batches,
    log: DecisionLog,
    *,
    per_channel: bool = True,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Quantizable:
    """The same function with smoother activations.

    Args:
        model, plan: in float.
        batches: are walked once.
        log: takes a decision for each value.
        per_channel: whether each output channel will have a weight scale.
        threads: of a run.
        progress: called with (stage, batches so far, 0).
    """
    products = {
        value: layers
        for value in plan.readers
        if (layers := _products(plan, value)) and len(layers) == len(plan.readers[value])
    }
    if not products:
        log.add("remedies", "smooth", "not applied", (("smooth", "no matrix product"),))
        return model
    seen = _watched(model, products, batches, threads, progress)
    chosen: list[Smoothed] = []
    for value, layers in products.items():
        factors = best_factors(seen[value], [_rows(layer) for layer in layers], per_channel)
        if factors is None:
            log.add("remedies", value, "kept", (("smooth", "it would save less than a tenth"),))
            continue
        scaled = {layer.node: _scaled(layer, factors) for layer in layers}
        chosen.append(Smoothed(value=value, factors=(1 / factors), weights=scaled))
    log.add("remedies", "smooth", f"applied to {len(chosen)} of {len(products)} values")
    return model.smoothed(chosen) if chosen else model


def _products(plan: Plan, value: str) -> list[Layer]:
    return [
        layer
        for layer in plan.layers
        if layer.source == value and layer.op_type in ("MatMul", "Gemm")
    ]


def _watched(
    model: Quantizable,
    products: Mapping[str, Sequence[Layer]],
    batches: Batches,
    threads: int | None,
    progress: Progress | None,
) -> dict[str, Channels]:
    seen = {value: Channels.of(_rows(layers[0]).shape[0]) for value, layers in products.items()}
    inputs = {value.name for value in model.view().inputs}
    names = [name for name in products if name not in inputs]
    run = runner(model, names, threads)
    for number, feeds in enumerate(batches):
        values = run(feeds)
        for name, channels in seen.items():
            channels.add(values[name])
        if progress is not None:
            progress("smooth", number + 1, 0)
    return seen


def best_factors(
    seen: Channels, weights: Sequence[Array], per_channel: bool = True
) -> Array | None:
    """The factors with the least expected error, float32 [channels]; None: leave it.

    Args:
        seen: of the activation.
        weights: [channels, outputs] of each product that reads it.
        per_channel: whether each output has a scale.
    """
    matrix = np.concatenate([part.astype(np.float64) for part in weights], axis=1)
    most = np.maximum(np.maximum(-seen.low, seen.high), _LEAST)
    rows = np.maximum(np.abs(matrix).max(1), _LEAST)
    base = expected_error(seen, matrix, np.ones(len(most)), per_channel)
    tried = []
    for alpha in ALPHAS:
        factors = most**alpha / rows ** (1 - alpha)
        factors = factors / np.exp(np.log(factors).mean())
        factors = np.clip(factors, _LEAST, 1 / _LEAST).astype(np.float32)
        tried.append((expected_error(seen, matrix, factors, per_channel), alpha, factors))
    error, _, factors = min(tried, key=lambda one: one[:2])
    return factors if error < WORTH * base else None


def expected_error(seen: Channels, matrix: Array, factors: Array, per_channel: bool) -> float:
    """Squared error of the products: of rounding activations, and of rounding weights."""
    low, high = (seen.low / factors).min(), (seen.high / factors).max()
    step = (high - low) / 255
    scaled = matrix * factors[:, None]
    of_activations = step**2 / 12 * np.square(scaled).sum()
    steps = np.abs(scaled).max(0) / 127
    if not per_channel:
        steps = np.full_like(steps, steps.max())
    power = (seen.squares / max(seen.rows, 1) / factors.astype(np.float64) ** 2).sum()
    return float(of_activations + np.square(steps).sum() / 12 * power)


def _rows(layer: Layer) -> Array:
    """Weights as [inputs, outputs]."""
    return layer.weights.T if layer.transposed else layer.weights


def _scaled(layer: Layer, factors: Array) -> Array:
    scaled = _rows(layer) * factors[:, None]
    return np.ascontiguousarray(scaled.T if layer.transposed else scaled)
