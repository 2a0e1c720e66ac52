"""Networks of the kinds that reports are read for, small enough to build in a test."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from unit.graph.models import model_of, node, tensor_info


class _Layers:
    """Collects nodes and random weights."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, Any] = {
            "six": np.float32(6),
            "zero": np.float32(0),
        }
        self._rng = np.random.default_rng(0)

    def conv(self, x: str, name: str, shape: tuple[int, ...], **attributes: Any) -> str:
        """A convolution with bias."""
        fan_in = int(np.prod(shape[1:]))
        self.weights[f"{name}.w"] = self._rng.standard_normal(shape, np.float32) / fan_in**0.5
        self.weights[f"{name}.b"] = self._rng.standard_normal(shape[0], np.float32)
        inputs = [x, f"{name}.w", f"{name}.b"]
        self.nodes.append(node("Conv", inputs, [f"{name}.y"], name=name, **attributes))
        return f"{name}.y"

    def clip(self, x: str, name: str) -> str:
        """The activation of the mobile networks."""
        self.nodes.append(node("Clip", [x, "zero", "six"], [f"{name}.y"], name=name))
        return f"{name}.y"


def mobile_network(blocks: int = 3) -> onnx.ModelProto:
    """A network of inverted residual blocks for 32 x 32 pictures, as EfficientNet-Lite is."""
    layers, width = _Layers(), 16
    x = layers.clip(layers.conv("x", "stem", (width, 3, 3, 3), pads=[1, 1, 1, 1]), "stem_act")
    for number in range(blocks):
        name, wide = f"block{number}", 6 * width
        y = layers.clip(layers.conv(x, f"{name}.expand", (wide, width, 1, 1)), f"{name}.act1")
        y = layers.conv(y, f"{name}.depthwise", (wide, 1, 3, 3), pads=[1, 1, 1, 1], group=wide)
        y = layers.conv(layers.clip(y, f"{name}.act2"), f"{name}.project", (width, wide, 1, 1))
        layers.nodes.append(node("Add", [x, y], [f"{name}.y"], name=f"{name}.add"))
        x = f"{name}.y"
    layers.weights["fc.w"] = np.ones((width, 10), np.float32)
    layers.nodes += [
        node("GlobalAveragePool", [x], ["pooled"], name="pool"),
        node("Flatten", ["pooled"], ["flat"], name="flatten"),
        node("MatMul", ["flat", "fc.w"], ["logits"], name="fc"),
        node("Softmax", ["logits"], ["y"], name="softmax", axis=-1),
    ]
    inputs = [tensor_info("x", ("batch", 3, 32, 32))]
    return model_of(layers.nodes, inputs=inputs, weights=layers.weights, opset=21)
