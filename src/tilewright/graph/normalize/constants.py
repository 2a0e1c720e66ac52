"""Make every constant an initialiser of the outermost graph.

Constant(value...) -> initialiser; initialiser of a sub-graph -> initialiser of the outermost graph
Guarantees: a sub-graph that returns a constant returns it through an Identity of its own, since the
output of a graph must be computed in it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tilewright.graph.check_proto import NEWEST_OPSET
from tilewright.graph.walk import Names, all_graphs


def gather_constants(model: ir.Model, names: Names) -> None:
    """Turns Constant nodes into initialisers and lifts initialisers out of sub-graphs, in place."""
    root = model.graph
    for graph in list(all_graphs(root)):
        for node in list(graph):
            if node.domain == "" and node.op_type == "Constant":
                tensor = _tensor_of(node)
                if tensor is not None:
                    _move(root, graph, node.outputs[0], tensor, names)
                    graph.remove(node, safe=True)
        if graph is root:
            continue
        for name, value in list(graph.initializers.items()):
            if value.const_value is not None:
                _move(root, graph, value, value.const_value, names)
            del graph.initializers[name]


def _move(
    root: ir.Graph, graph: ir.Graph, old: ir.Value, tensor: ir.TensorProtocol, names: Names
) -> None:
    name = old.name or names.claim("constant")
    old.name = name if old.is_initializer() else f"{name}#replaced"
    new = ir.Value(
        name=name,
        const_value=tensor,
        type=ir.TensorType(tensor.dtype),
        shape=ir.Shape(list(tensor.shape)),  # type: ignore[arg-type]
    )
    if graph is not root and old.is_graph_output():
        inner = ir.Node("", "Identity", [new], version=NEWEST_OPSET, num_outputs=1)
        inner.name = names.claim(f"{name}/Identity")
        inner.outputs[0].name = names.claim(f"{name}/Identity.out")
        graph.append(inner)
        for index, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[index] = inner.outputs[0]
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    new.name = None
    new.name = name
    if tensor.name != name:
        tensor.name = name
    root.register_initializer(new)


def _tensor_of(node: ir.Node) -> ir.TensorProtocol | None:
    for name, attribute in node.attributes.items():
        match name:
            case "value":
                return attribute.as_tensor()
            case "value_float" | "value_floats":
                return ir.Tensor(np.asarray(attribute.value, dtype=np.float32))
            case "value_int" | "value_ints":
                return ir.Tensor(np.asarray(attribute.value, dtype=np.int64))
            case "value_string":
                return ir.StringTensor([_bytes(attribute.value)], shape=ir.Shape([]))
            case "value_strings":
                texts = [_bytes(text) for text in attribute.value]
                return ir.StringTensor(texts, shape=ir.Shape([len(texts)]))
    return None


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8")
