"""Check operands' element types against ONNX's schemas.

Input -> Output: a node and its inputs -> the reason why they do not fit, or None.
Guarantees: an operand of a type that the operator does not take, or two of one type variable that
differ, never reach a kernel.
Not here: types of results (the shape rules); operators without a schema (nothing is known of them).
"""

from __future__ import annotations

from functools import lru_cache

import onnx.defs

from tilewright.graph.info import TensorInfo
from tilewright.graph.view import NodeView

_NAMES = {
    "float32": "float",
    "float64": "double",
    "float8_e4m3fn": "float8e4m3fn",
    "float8_e4m3fnuz": "float8e4m3fnuz",
    "float8_e5m2": "float8e5m2",
    "float8_e5m2fnuz": "float8e5m2fnuz",
    "float8_e8m0": "float8e8m0",
    "float4_e2m1": "float4e2m1",
}
_VARIADIC = onnx.defs.OpSchema.FormalParameterOption.Variadic


@lru_cache(maxsize=1024)
def _schema(op_type: str, opset: int, domain: str) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None


@lru_cache(maxsize=1)
def _history() -> dict[tuple[str, str], list[onnx.defs.OpSchema]]:
    found: dict[tuple[str, str], list[onnx.defs.OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        found.setdefault((schema.domain, schema.name), []).append(schema)
    return found


@lru_cache(maxsize=4096)
def _allowed(op_type: str, domain: str, position: int) -> frozenset[str]:
    """Types of an input in any version: newer ones may lack types that older models use."""
    types: set[str] = set()
    for schema in _history().get((domain, op_type), ()):
        if schema.inputs:
            types |= set(schema.inputs[min(position, len(schema.inputs) - 1)].types)
    return frozenset(types)


def type_error(node: NodeView, inputs: tuple[TensorInfo | None, ...]) -> str | None:
    """Why the inputs' types do not fit the operator, None where they do."""
    schema = _schema(node.op_type, node.opset, node.domain)
    if schema is None or not schema.inputs:
        return None
    variables = {entry.type_param_str for entry in schema.type_constraints}
    seen: dict[str, str] = {}
    for position, info in enumerate(inputs):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if position >= len(schema.inputs) and formal.option != _VARIADIC:
            return f"input {position} does not exist"
        if info is None:
            continue
        given, wanted = _type_text(info), formal.type_str
        if wanted not in variables:
            if given is not None and given != wanted:
                return f"input {position} must be {wanted}, it is {given}"
            continue
        if given is not None and given not in _allowed(node.op_type, node.domain, position):
            return f"input {position} cannot be {given}"
        known = seen.setdefault(wanted, given) if given is not None else None
        if known is not None and known != given and formal.is_homogeneous:
            return f"inputs of one type are needed: input {position} is {given}, not {known}"
    return None


def _type_text(info: TensorInfo) -> str | None:
    """ONNX's name of the type; None for optionals, whose content may be of either kind."""
    text = f"tensor({_NAMES.get(info.dtype.name, info.dtype.name)})"
    if info.container == "tensor":
        return text
    return f"seq({text})" if info.container == "sequence" else None
