"""Compute equal things once.

    a = f(x); b = f(x)  ->  a = f(x), readers of b read a
    two constants with equal type, shape and bytes  ->  one
Requires: the same operator, inputs, attributes (floats by their bits) and present outputs; not
    random, without sub-graphs.
Guarantees: an inner graph reuses values of the graphs around it; two graph outputs stay two values;
    -0.0 and 0.0 differ, and so do NaNs with different bits.
Not here: equality up to commutation.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Hashable
from typing import Any

import onnx_ir as ir

from tilewright.graph.build_view import tensor_array
from tilewright.graph.passes.base import RANDOM, Pass, PassContext, Refused, attribute
from tilewright.graph.walk import node_label, subgraphs

_Key = tuple[Hashable, ...]
_Known = dict[_Key, ir.Node]
_TWO_OUTPUTS = Refused(reason="both are graph outputs, or lie in different graphs")


def _run(ctx: PassContext) -> None:
    _merge_constants(ctx)
    _merge_nodes(ctx, ctx.model.graph, [])


eliminate_common_subexpressions = Pass(name="eliminate_common_subexpressions", run=_run)


# --- constants ------------------------------------------------------------------------------------


def _merge_constants(ctx: PassContext) -> None:
    """Only constants that share type and shape are read."""
    alike: dict[_Key, list[ir.Value]] = {}
    for value in ctx.model.graph.initializers.values():
        tensor = value.const_value
        if tensor is not None and not value.is_graph_input():
            shape = tuple(int(dim) for dim in tensor.shape)  # type: ignore[arg-type]
            alike.setdefault((tensor.dtype.value, shape), []).append(value)
    for group in alike.values():
        if len(group) < 2:
            continue
        first: dict[bytes, ir.Value] = {}
        for value in group:
            if value.const_value is None:
                continue
            kept = first.setdefault(_digest(value.const_value), value)
            if kept is value or value.is_graph_output():
                continue
            value.replace_all_uses_with(kept)
            ctx.model.graph.initializers.pop(value.name or "")
            ctx.did(value.name or "", f"equal to constant {kept.name}")


def _digest(tensor: ir.TensorProtocol) -> bytes:
    if tensor.dtype is ir.DataType.STRING:
        texts = [str(text).encode() for text in tensor_array(tensor).flat]
        return b"".join(struct.pack("<q", len(text)) + text for text in texts)
    return hashlib.blake2b(tensor.tobytes(), digest_size=32).digest()


# --- nodes ----------------------------------------------------------------------------------------


def _merge_nodes(ctx: PassContext, graph: ir.Graph, around: list[_Known]) -> None:
    own: _Known = {}
    scopes = [*around, own]
    for node in list(graph):
        inner = list(subgraphs(node))
        for part in inner:
            _merge_nodes(ctx, part, scopes)
        if inner or node.op_type in RANDOM or not any(value.name for value in node.outputs):
            continue
        if node.op_type == "Dropout" and attribute(node, "seed") is None and len(node.inputs) > 2:
            continue  # random in training
        key = _key(node)
        earlier = next((scope[key] for scope in scopes if key in scope), None)
        if earlier is None:
            own[key] = node
        else:
            _merge(ctx, earlier, node)


def _merge(ctx: PassContext, earlier: ir.Node, node: ir.Node) -> None:
    label = node_label(node)
    pairs = [(new, old) for new, old in zip(earlier.outputs, node.outputs, strict=True) if old.name]
    for new, old in pairs:
        if old.is_graph_output() and (new.is_graph_output() or new.graph is not old.graph):
            ctx.refuse(label, _TWO_OUTPUTS)
            for kept, other in pairs:
                if not other.is_graph_output() and other.uses():
                    ctx.redirect(other, kept)
            return
    for new, old in pairs:
        ctx.redirect(old, new)
    ctx.remove([node])
    ctx.did(label, f"same as {node_label(earlier)}")


def _key(node: ir.Node) -> _Key:
    return (
        node.domain,
        node.op_type,
        node.overload,
        node.version,
        tuple(None if value is None else id(value) for value in node.inputs),
        tuple(bool(value.name) for value in node.outputs),
        tuple((name, _frozen(node.attributes[name])) for name in sorted(node.attributes)),
    )


def _frozen(attribute: ir.Attr) -> Hashable:
    value: Any = attribute.value
    match attribute.type:
        case ir.AttributeType.FLOAT:
            return struct.pack("<d", value)
        case ir.AttributeType.FLOATS:
            return tuple(struct.pack("<d", part) for part in value)
        case ir.AttributeType.TENSOR:
            return _frozen_tensor(value)
        case ir.AttributeType.TENSORS:
            return tuple(_frozen_tensor(tensor) for tensor in value)
        case ir.AttributeType.INTS | ir.AttributeType.STRINGS:
            return tuple(value)
        case ir.AttributeType.INT | ir.AttributeType.STRING:
            return (attribute.type.value, value)
    return id(attribute)  # types and the like: equal only to itself


def _frozen_tensor(tensor: ir.TensorProtocol) -> Hashable:
    shape = tuple(int(dim) for dim in tensor.shape)  # type: ignore[arg-type]
    return (tensor.dtype.value, shape, _digest(tensor))
