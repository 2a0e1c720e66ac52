"""Small models for the tests of this folder."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def tensor_info(
    name: str, shape: Sequence[int | str | None] | None = (2,), dtype: int = TensorProto.FLOAT
) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    *,
    inputs: Sequence[onnx.ValueInfoProto] | None = None,
    outputs: Sequence[str] = ("y",),
    output_shape: Sequence[int | str | None] | None = None,
    weights: dict[str, Any] | None = None,
    opset: int = 17,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model whose outputs are float tensors if their shape is given, else undeclared."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        list(inputs) if inputs is not None else [tensor_info("x")],
        [
            onnx.ValueInfoProto(name=name)
            if output_shape is None
            else tensor_info(name, output_shape)
            for name in outputs
        ],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    return helper.make_node(op, list(inputs), list(outputs), **attributes)
