"""Take a plain picture of a model: ``onnx_ir.Model`` -> ``GraphView``.

Guarantees: see graph.view; dims without a name become symbols of their own (``x.d0``), so that two
unnamed dims are never taken for equal; a dim that divides by 0 is ``InvalidModel``.
Requires: unique names and topological order (graph.load provides both).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tilewright.core import dtypes
from tilewright.core.dtypes import DType
from tilewright.core.errors import InvalidModel
from tilewright.core.parse_dim import DividesByZero, parse
from tilewright.core.shape import Dim
from tilewright.graph.view import GraphView, NodeView, ValueView

_UNNAMED = frozenset(("", "?", "-1", "None"))
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z_0-9]*\Z")
# A product of sums multiplies out; longer text stays one opaque name.
_MAX_EXPRESSION_CHARS = 64
_MAX_EXPRESSION_PRODUCTS = 3


def view(model: ir.Model) -> GraphView:
    """Returns the whole model as plain data; weights are shared, not copied."""
    found = view_graph(model.graph, model.opset_imports)
    return replace(found, inputs=_bindable(found.inputs))


def _bindable(inputs: tuple[ValueView, ...]) -> tuple[ValueView, ...]:
    """Inputs whose shapes set every symbol: ``2*n`` is a name where no input has a plain ``n``."""
    dims = [dim for value in inputs for dim in value.shape or ()]
    plain = {name for dim in dims if (name := dim.as_symbol()) is not None}
    names = {dim: Dim.symbol(str(dim)) for dim in dims if not dim.symbols <= plain}
    if not names:
        return inputs
    return tuple(
        value
        if value.shape is None
        else replace(value, shape=tuple(names.get(dim, dim) for dim in value.shape))
        for value in inputs
    )


def view_graph(graph: ir.Graph, opset_imports: Mapping[str, int]) -> GraphView:
    """Returns one graph or sub-graph as plain data."""
    return GraphView(
        name=graph.name or "",
        inputs=tuple(view_value(value) for value in graph.inputs),
        outputs=tuple(view_value(value) for value in graph.outputs),
        nodes=tuple(view_node(node, opset_imports) for node in graph),
        initializers={
            name: tensor_array(value.const_value)
            for name, value in graph.initializers.items()
            if value.const_value is not None
        },
    )


def view_node(node: ir.Node, opset_imports: Mapping[str, int]) -> NodeView:
    """Returns one node as plain data."""
    version = node.version if node.version is not None else opset_imports.get(node.domain, 1)
    inputs = [value.name if value is not None else None for value in node.inputs]
    while inputs and inputs[-1] is None:
        inputs.pop()
    return NodeView(
        name=node.name or "",
        op_type=node.op_type,
        domain=node.domain,
        opset=version,
        inputs=tuple(inputs),
        outputs=tuple(value.name or None for value in node.outputs),
        attributes={
            name: _attribute(attribute, opset_imports)
            for name, attribute in node.attributes.items()
        },
    )


def view_value(value: ir.Value) -> ValueView:
    """Returns a declaration as plain data."""
    return _declaration(value.name or "", value.type, value.shape)


def tensor_array(tensor: ir.TensorProtocol) -> npt.NDArray[Any]:
    """Returns a tensor's elements; strings as an object array of ``str``."""
    array: npt.NDArray[Any] = tensor.numpy()
    if tensor.dtype is ir.DataType.STRING:
        texts = [t.decode("utf-8") if isinstance(t, bytes) else str(t) for t in array.reshape(-1)]
        result = np.empty(len(texts), dtype=object)
        result[:] = texts
        return result.reshape(array.shape)
    return array


def dimension(dim: int | ir.SymbolicDim, fallback: str) -> Dim:
    """Returns a declared dim; ``fallback`` names one that has no name or is negative."""
    if isinstance(dim, int):
        return Dim.of(dim) if dim >= 0 else Dim.symbol(fallback)
    text = (dim.value or "").strip()
    if text in _UNNAMED:
        return Dim.symbol(fallback)
    if _PLAIN.match(text):
        return Dim.symbol(text)
    if len(text) > _MAX_EXPRESSION_CHARS or text.count("*") > _MAX_EXPRESSION_PRODUCTS:
        return Dim.symbol(text.replace("`", "'"))
    try:
        return parse(text)
    except DividesByZero as error:
        raise InvalidModel(
            f"the dim {text!r} of {fallback.rpartition('.')[0]!r} divides by 0",
            remedy="mend the formula, or declare the dim by a name or a number",
        ) from error
    except ValueError:
        return Dim.symbol(text.replace("`", "'"))


def _declaration(name: str, kind: Any, dims: ir.Shape | None) -> ValueView:
    container = "tensor"
    if isinstance(kind, ir.SequenceType | ir.OptionalType):
        container = "sequence" if isinstance(kind, ir.SequenceType) else "optional"
    while isinstance(kind, ir.SequenceType | ir.OptionalType):
        kind = kind.elem_type
    dtype: DType | None = dtypes.BY_CODE.get(int(kind.dtype)) if kind is not None else None
    return ValueView(
        name=name,
        dtype=dtype,
        shape=None
        if dims is None
        else tuple(dimension(dim, f"{name}.d{axis}") for axis, dim in enumerate(dims)),
        container=container,
    )


def _attribute(attribute: ir.Attr, opset_imports: Mapping[str, int]) -> Any:
    kind, value = attribute.type, attribute.value
    match kind:
        case ir.AttributeType.TENSOR:
            return tensor_array(value)
        case ir.AttributeType.TENSORS:
            return tuple(tensor_array(tensor) for tensor in value)
        case ir.AttributeType.GRAPH:
            return view_graph(value, opset_imports)
        case ir.AttributeType.GRAPHS:
            return tuple(view_graph(graph, opset_imports) for graph in value)
        case ir.AttributeType.TYPE_PROTO:
            return _declaration("", value.type, value.shape)
        case ir.AttributeType.INTS | ir.AttributeType.FLOATS | ir.AttributeType.STRINGS:
            return tuple(value)
    return value
