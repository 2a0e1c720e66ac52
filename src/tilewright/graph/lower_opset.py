"""Write a model in the oldest operator set that can say the same.

Input -> Output: a model in the newest form -> the same nodes under an older ai.onnx version.
Guarantees: each operator exists in that version with every attribute and input that is used; from
version 21 on, ONNX's versions of operators only add types, attributes and inputs.
Not here: rewriting nodes for versions before 21.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from tilewright.graph.check_proto import NEWEST_OPSET
from tilewright.graph.walk import all_nodes

OLDEST = 21  # QuantizeLinear with blocks


def lower_opset(model: ir.Model) -> None:
    """Sets the version of ai.onnx, in place."""
    nodes = [node for node in all_nodes(model.graph) if not node.domain]
    version = next(
        number
        for number in range(OLDEST, NEWEST_OPSET + 1)
        if number == NEWEST_OPSET or all(_fits(node, number) for node in nodes)
    )
    for node in nodes:
        node.version = version
    model.opset_imports[""] = version


def _fits(node: ir.Node, version: int) -> bool:
    try:
        schema = onnx.defs.get_schema(node.op_type, version, "")
    except onnx.defs.SchemaError:
        return False
    return len(node.inputs) <= schema.max_input and set(node.attributes) <= set(schema.attributes)
