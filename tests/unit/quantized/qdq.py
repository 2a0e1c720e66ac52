"""Quantised models for tests: QDQ form and operators on integers, and what they must give.

Input -> Output: sizes and a seed -> an ONNX model; a model and feeds -> outputs of the simulator
(NumPy, after the graph passes) and of the compiled engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

import tilewright as tw
from tilewright.compiler.pipeline import run_graph_passes
from tilewright.core.record import DecisionLog
from tilewright.graph.facade import Model, reference
from unit.graph.models import model_of, node, tensor_info

OPSET = 21


class Net:
    """Nodes and weights of a model that is being written.

    Attributes:
        rng: of a fixed seed.
    """

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Any] = {}
        self._count = 0

    def name(self, hint: str) -> str:
        """A fresh name."""
        self._count += 1
        return f"{hint}{self._count}"

    def constant(self, array: Any, hint: str = "c") -> str:
        """A weight."""
        name = self.name(hint)
        self.weights[name] = np.asarray(array)
        return name

    def add(self, op_type: str, inputs: list[str], **attributes: Any) -> str:
        """A node of one output."""
        out = self.name(op_type.lower())
        self.nodes.append(node(op_type, inputs, [out], name=out + "_node", **attributes))
        return out

    def parameters(self, scale: Any, zero: Any, dtype: str) -> list[str]:
        """Scale and zero point as inputs."""
        return [self.constant(np.float32(scale), "s"), self.constant(np.asarray(zero, dtype), "z")]

    def quantize(self, x: str, scale: Any, zero: Any, dtype: str = "uint8") -> str:
        """QuantizeLinear and DequantizeLinear."""
        given = self.parameters(scale, zero, dtype)
        return self.add("DequantizeLinear", [self.add("QuantizeLinear", [x, *given]), *given])

    def weight(self, shape: tuple[int, ...], axis: int, *, signed: bool = True) -> tuple[str, Any]:
        """Dequantised weights with one scale an output channel, and the scales."""
        scales = self.rng.uniform(0.002, 0.02, shape[axis]).astype(np.float32)
        low, high, zero = (-127, 128, 0) if signed else (1, 256, 128)
        whole = self.rng.integers(low, high, shape).astype("int8" if signed else "uint8")
        zeros = np.full(shape[axis], zero, whole.dtype)
        inputs = [self.constant(part, "w") for part in (whole, scales, zeros)]
        return self.add("DequantizeLinear", inputs, axis=axis), scales

    def bias(self, count: int, scales: Any) -> str:
        """A dequantised bias."""
        whole = self.rng.integers(-4000, 4000, count).astype(np.int32)
        inputs = [self.constant(whole, "b"), self.constant(np.asarray(scales, np.float32), "s")]
        return self.add("DequantizeLinear", inputs, axis=0)

    def model(self, shape: tuple[int | str, ...], out: str) -> onnx.ModelProto:
        """The model with the float input ``x``."""
        return model_of(
            self.nodes,
            inputs=[tensor_info("x", shape)],
            outputs=[out],
            weights=self.weights,
            opset=OPSET,
        )


def all_pairs_of_bytes(seed: int) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A residual sum of two images of bytes, requantised, and every pair that they may have."""
    rng = np.random.default_rng(seed)
    scales = np.exp2(rng.uniform(-9, 1, 3)) if seed else [0.5, 0.25, 1.5]
    net = Net(seed)
    parts = []
    for name, scale in zip("ab", scales[:2], strict=True):
        given = net.parameters(scale, rng.integers(0, 256), "uint8")
        parts.append(net.add("DequantizeLinear", [name, *given]))
    given = net.parameters(scales[2], rng.integers(0, 256), "uint8")
    out = net.add("QuantizeLinear", [net.add("Add", parts), *given])
    model = model_of(
        net.nodes,
        inputs=[tensor_info(name, (256, 256), TensorProto.UINT8) for name in "ab"],
        outputs=[out],
        weights=net.weights,
        opset=OPSET,
    )
    a, b = np.mgrid[:256, :256].astype(np.uint8)
    return model, {"a": a, "b": b}


def simulated(model: onnx.ModelProto, feeds: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What the simulator gives after the graph passes, and the operators that are left."""
    log = DecisionLog()
    loaded = Model.load(model, log)
    run_graph_passes(loaded, log)
    graph = loaded.view()
    return reference(graph, feeds, wide=False), [node.op_type for node in graph.nodes]


def assert_exact(
    model: onnx.ModelProto, feeds: dict[str, Any], **options: Any
) -> tuple[tw.Engine, list[str]]:
    """The engine gives what the simulator gives, bit for bit."""
    expected, operators = simulated(model, feeds)
    engine = tw.compile(model, cache=None, verify=False, **{"threads": 1, **options})
    found = engine.run(feeds)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    return engine, operators
