"""Find a value's element type from ONNX's operator definitions, without shapes.

Input -> Output: a value of a loaded model -> its ``DType``, or None where only execution tells.
Guarantees: follows producers in a loop, not by recursion: models may be thousands of nodes deep.
Not here: shapes and contents (graph.shapes).
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

from tilewright.core import dtypes
from tilewright.core.dtypes import DType
from tilewright.graph.check_nodes import schema

_NAMES = {"float": "float32", "double": "float64", "float8e4m3fn": "float8_e4m3fn"}
_BODIES = {"If": ("then_branch", 0), "Loop": ("body", 1), "Scan": ("body", 0)}
_MAX_STEPS = 100_000


def element_type_of(value: ir.Value) -> DType | None:
    """Returns the element type of a tensor."""
    for _ in range(_MAX_STEPS):
        node = value.producer()
        if node is None or value.is_initializer():
            return _declared(value)
        found = _from_node(node, value)
        if not isinstance(found, ir.Value):
            return found or _declared(value)
        value = found
    return None


def _declared(value: ir.Value) -> DType | None:
    if value.const_value is not None:
        return dtypes.BY_CODE.get(int(value.const_value.dtype))
    if value.producer() is None and isinstance(value.type, ir.TensorType):
        return dtypes.BY_CODE.get(int(value.type.dtype))
    return None


def _from_node(node: ir.Node, value: ir.Value) -> DType | ir.Value | None:
    """The output's type, or an input that has the same type."""
    definition = schema(node.domain, node.op_type, node.version or 1)
    if definition is None or node.op_type == "Optional":
        return None
    body = _BODIES.get(node.op_type)
    if body is not None:
        name, skipped = body  # a Loop's body also returns its condition
        return node.attributes[name].as_graph().outputs[(value.index() or 0) + skipped]
    for name in ("to", "dtype", "output_dtype"):
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.type is ir.AttributeType.INT and attribute.value:
            return dtypes.BY_CODE.get(attribute.as_int())
    attribute = node.attributes.get("value")
    if attribute is not None and attribute.type is ir.AttributeType.TENSOR:
        return dtypes.BY_CODE.get(int(attribute.as_tensor().dtype))
    formal = definition.outputs[min(value.index() or 0, len(definition.outputs) - 1)]
    for index, given in enumerate(node.inputs):
        parameter = definition.inputs[min(index, len(definition.inputs) - 1)]
        if given is not None and parameter.type_str == formal.type_str:
            return given
    return _fixed(formal)


def _fixed(formal: onnx.defs.OpSchema.FormalParameter) -> DType | None:
    """The type of an output that can have only one."""
    types = list(formal.types)
    if len(types) != 1 or not types[0].startswith("tensor("):
        return None
    name = types[0].removeprefix("tensor(").removesuffix(")")
    return dtypes.BY_NAME.get(_NAMES.get(name, name))
