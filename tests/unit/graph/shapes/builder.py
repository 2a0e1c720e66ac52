"""Small graphs for the tests of shape inference, without ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.core import dtypes
from tilewright.core.dtypes import DType
from tilewright.core.parse_dim import parse
from tilewright.core.shape import Dim
from tilewright.graph.info import NodeInfo, TensorInfo
from tilewright.graph.shapes import Inference, infer
from tilewright.graph.view import GraphView, NodeView, ValueView


def dims(*sizes: int | str) -> tuple[Dim, ...]:
    """Sizes and expressions as dims."""
    return tuple(parse(size) if isinstance(size, str) else Dim.of(size) for size in sizes)


@dataclass
class Builder:
    """Collects inputs, constants and nodes; every node is named after its first output."""

    inputs: list[ValueView] = field(default_factory=list)
    nodes: list[NodeView] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)

    def input(self, name: str, *shape: int | str, dtype: DType = dtypes.FLOAT32) -> str:
        self.inputs.append(ValueView(name=name, dtype=dtype, shape=dims(*shape)))
        return name

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, dtype)
        return name

    def add(
        self,
        op_type: str,
        *inputs: str | None,
        out: str | Sequence[str | None] = "",
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Adds a node and returns its first output's name."""
        outputs = [out or f"v{len(self.nodes)}"] if isinstance(out, str) else list(out)
        first = next(name for name in outputs if name)
        self.nodes.append(
            NodeView(
                name=first,
                op_type=op_type,
                domain=domain,
                opset=28,
                inputs=inputs,
                outputs=tuple(outputs),
                attributes=attributes,
            )
        )
        return first

    def graph(self, *outputs: str, name: str = "g") -> GraphView:
        """The graph with these outputs."""
        return GraphView(
            name=name,
            inputs=tuple(self.inputs),
            outputs=tuple(ValueView(name=out, dtype=None, shape=None) for out in outputs),
            nodes=tuple(self.nodes),
            initializers=self.constants,
        )

    def infer(self, **minimum: int) -> Inferred:
        """Infers the graph."""
        return Inferred(infer(self.graph(), minimum=minimum))


@dataclass(frozen=True)
class Inferred:
    """An inference with short questions."""

    inference: Inference

    def info(self, name: str) -> TensorInfo:
        return self.inference.tensors[name]

    def node(self, name: str) -> NodeInfo:
        return self.inference.nodes[name]

    def shape(self, name: str) -> tuple[Dim, ...] | None:
        return self.info(name).shape

    def functions(self) -> list[str]:
        """The bindings of all nodes, in order."""
        return [
            binding.function for info in self.inference.nodes.values() for binding in info.bindings
        ]
