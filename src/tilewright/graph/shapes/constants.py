"""Evaluate nodes whose inputs are small constants.

Input -> Output: a node with constant inputs -> its outputs' arrays, or None.
Guarantees: only deterministic operators on plain tensors; nothing large is computed.
Not here: symbolic contents (content); folding of whole graphs (graph.passes).
"""

from __future__ import annotations

import math

from tilewright.core.dtypes import STRING, from_numpy
from tilewright.core.errors import OutOfMemory
from tilewright.graph.info import NodeInfo, TensorInfo
from tilewright.graph.shapes.registry import MAX_CONTENT, Array
from tilewright.graph.view import GraphView, NodeView
from tilewright.runtime import reference

_RANDOM = frozenset(
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial Dropout "
    "ImageDecoder".split()
)


def fold(
    node: NodeView, inputs: tuple[TensorInfo | None, ...], info: NodeInfo
) -> tuple[Array, ...] | None:
    """The outputs' arrays, or None where the node is not a small constant."""
    if node.op_type in _RANDOM or not inputs or not _small(inputs, info):
        return None
    if any(isinstance(value, GraphView) for value in node.attributes.values()):
        return None
    if not reference.supported(node.domain, node.op_type, node.opset):
        return None
    arguments = [entry.content if entry is not None else None for entry in inputs]
    try:
        found = reference.evaluate(
            node.domain,
            node.op_type,
            arguments,
            node.attributes,
            opset=node.opset,
            num_outputs=len(node.outputs),
        )
    except (reference.OperatorError, OutOfMemory):
        return None
    arrays: list[Array] = []
    for array, output in zip(found, info.outputs, strict=True):
        if array is None or isinstance(array, list) or array.size > MAX_CONTENT:
            return None
        if output is not None and from_numpy(array.dtype) is not output.dtype:
            return None
        arrays.append(array)
    return tuple(arrays)


def _small(inputs: tuple[TensorInfo | None, ...], info: NodeInfo) -> bool:
    for entry in inputs:
        if entry is None:
            continue
        known = entry.content
        if known is None or known.size > MAX_CONTENT or entry.container != "tensor":
            return False
        if known.dtype == object and entry.dtype is not STRING:
            return False
    for output in info.outputs:
        if output is None:
            continue
        if output.container != "tensor" or output.shape is None:
            return False
        sizes = [dim.const for dim in output.shape if dim.is_const]
        if math.prod(sizes) > MAX_CONTENT:
            return False
    return True
