"""One engine that runs a model with any of its layers quantised, each in any way.

Input -> Output: a model and its plan -> ``run(settings, feeds)``: outputs as the quantised model
gives them, for whatever is quantised in these settings.
    reads x  ->  clip(round(x / scale), low, high) * scale, weights and biases as inputs
Guarantees: nothing is compiled between settings; a quantiser that is off keeps every bit of
numbers from 2**-36 to 2**60; one that is on gives the numbers of QuantizeLinear and
DequantizeLinear.
Not here: which settings are worth a run (sensitivity, search).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.compiler.build import compile as compile_model
from tilewright.compress.affine import dequantize
from tilewright.compress.layers import Layer, Plan
from tilewright.graph.insert_qdq import SIMULATED, Affine, QuantizedLayer, Recipe
from tilewright.graph.quantizable import Quantizable

Array = npt.NDArray[Any]

_FINE = 2.0**-60  # a step so small that rounding to it does nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiser:
    """``clip(round(x / scale), low, high) * scale``."""

    scale: float = _FINE
    low: float = -np.inf
    high: float = np.inf

    @staticmethod
    def of(params: Affine) -> Quantiser:
        """What QuantizeLinear and DequantizeLinear do."""
        limits, zero = np.iinfo(params.zero.dtype), int(params.zero)
        return Quantiser(scale=float(params.scale), low=limits.min - zero, high=limits.max - zero)

    @property
    def clipping(self) -> Quantiser:
        """Its range, without its steps."""
        factor = self.scale / _FINE
        return Quantiser(low=self.low * factor, high=self.high * factor)

    @property
    def rounding(self) -> Quantiser:
        """Its steps, without its range."""
        return Quantiser(scale=self.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSetting:
    """What one node works with.

    Attributes:
        reads: a quantiser for each value that it reads.
        weights, bias: float32; None: as in the float model.
    """

    reads: Mapping[str, Quantiser]
    weights: Array | None = None
    bias: Array | None = None


Settings = Mapping[str, NodeSetting]  # by node; the others stay in float


class Simulator:
    """Of one model."""

    def __init__(self, model: Quantizable, plan: Plan, *, threads: int | None = None) -> None:
        weights = tuple(
            QuantizedLayer(
                node=layer.node,
                weights=layer.weights,
                params=_NO_PARAMS,
                bias=_float_bias(layer),
            )
            for layer in plan.layers
        )
        recipe = Recipe(readers=plan.readers, layers=weights)
        self._engine = compile_model(model.simulated(recipe), threads=threads, verify=False)
        self._float = self._feeds_of_float(plan)
        self.nodes = (*(layer.node for layer in plan.layers), *plan.carriers)

    def run(self, settings: Settings, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs with some nodes quantised."""
        given = dict(self._float)
        for node, setting in settings.items():
            for value, quantiser in setting.reads.items():
                given.update(_parameters(node, value, quantiser))
            for part, array in (("weights", setting.weights), ("bias", setting.bias)):
                if array is not None:
                    given[f"{node}:{part}"] = array
        return self._engine.run({**feeds, **given})

    def _feeds_of_float(self, plan: Plan) -> dict[str, Array]:
        given: dict[str, Array] = {}
        for value, readers in plan.readers.items():
            for node in readers:
                given.update(_parameters(node, value, Quantiser()))
        for layer in plan.layers:
            given[f"{layer.node}:weights"] = layer.weights
            if (bias := _float_bias(layer)) is not None:
                given[f"{layer.node}:bias"] = bias
        return given


_NO_PARAMS = Affine(scale=np.ones((), np.float32), zero=np.zeros((), np.int8))


def _float_bias(layer: Layer) -> Array | None:
    """The bias, zeros for a convolution without one; None where there can be none."""
    if layer.bias is None and layer.op_type in ("Conv", "ConvTranspose"):
        return np.zeros(layer.num_channels, np.float32)
    return layer.bias


def _parameters(node: str, value: str, quantiser: Quantiser) -> dict[str, Array]:
    numbers = (quantiser.scale, quantiser.low, quantiser.high)
    return {
        f"{node}<{value}:{part}": np.asarray(number, np.float32)
        for part, number in zip(SIMULATED, numbers, strict=True)
    }


def settings_of(
    plan: Plan, recipe: Recipe, nodes: Collection[str] | None = None
) -> dict[str, NodeSetting]:
    """What the quantised model does at each node (at some of them)."""
    reads: dict[str, dict[str, Quantiser]] = {}
    for value, readers in recipe.readers.items():
        for node in readers:
            reads.setdefault(node, {})[value] = Quantiser.of(recipe.points[value])
    layers = {layer.node: layer for layer in recipe.layers}
    found = {}
    for node in (*layers, *plan.carriers):
        if nodes is not None and node not in nodes:
            continue
        layer = layers.get(node)
        found[node] = NodeSetting(
            reads=reads.get(node, {}),
            weights=None if layer is None else dequantize(layer.weights, layer.params),
            bias=None if layer is None else bias_of(layer),
        )
    return found


def bias_of(layer: QuantizedLayer) -> Array | None:
    """The bias that the integers stand for."""
    if layer.bias is None or layer.bias_scale is None:
        return None
    return (layer.bias.astype(np.float64) * layer.bias_scale).astype(np.float32)
